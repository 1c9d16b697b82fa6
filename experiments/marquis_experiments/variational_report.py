"""The page and the pictures of the experiment `vl`, made from its results alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.variational_overfitting import draw_overfitting, overfitting_section, verdict
from marquis_experiments.variational_tables import (
    COLOURS,
    MARKERS,
    VARIANTS,
    Row,
    chosen_tempering,
    comparisons,
    draw_scores,
    of_variant,
    order_table,
    picture,
    score_cells,
    table,
)

PAPER = {
    "VL": (0.16, 94.6, 0.010),
    "VI (mean)": (0.23, 94.0, 0.034),
    "VI (10 samples)": (0.29, 93.6, 0.016),
    "MAP": (0.29, 93.6, 0.096),
}
"""VL Table 1, Fashion-MNIST: test NLL, accuracy in percent, ECE."""
PAPER_SECONDS = {"vl": 114.9, "vi": 43.2, "map": 41.8}
"""VL Table 2, CIFAR-10 on a GPU."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `variational.md` and its pictures next to the results; parts that have not run are named as missing."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [_head(results)]
    if missing := _missing(results):
        pieces.append(missing)
    if results["grid"]:
        picture(folder / "vl-tempering.png", 2, lambda axes: draw_scores(axes, results["grid"]))
        pieces += [_grid_section(results["grid"]), _ordering(results)]
    if results["overfitting"]:
        draw_overfitting(results["overfitting"], folder / "vl-overfitting.png")
        pieces.append(overfitting_section(results["overfitting"], results["settings"]["overfitting"]))
    if results["resnet"]:
        pieces.append(_resnet_section(results))
    if results["multiplier"]:
        _draw_multiplier(results["multiplier"], folder / "vl-multiplier.png")
        pieces.append(_multiplier_section(results["multiplier"]))
    if results["grid"]:
        pieces.append(_time_section(results))
    pieces.append(_cuts(results))
    page = folder / "variational.md"
    page.write_text("\n\n".join(pieces) + "\n", encoding="utf-8")
    return page


def _head(results: dict[str, Any]) -> str:
    command = {"quick": " --quick", "full": " --full"}.get(results["size"], "")
    return (
        "# Variational Laplace on Fashion-MNIST\n\n"
        f"Written by `marquis reproduce vl{command}` from its results. Variational Laplace (VL), mean-field "
        "variational "
        "inference (VI) and MAP train the same network with the same optimiser, prior and tempering β "
        "([the method](../variational.md)). The paper's numbers are for a full-width PreactResNet-18, all 60,000 "
        "images and 200 epochs on a GPU; these are for what a CPU does in minutes, so compare the order, not the "
        "values."
    )


def planned(settings: dict[str, Any]) -> dict[str, int]:
    """How many cells each part has when it is complete."""
    few = settings["overfitting"]
    return {
        "grid": len(settings["seeds"]) * len(settings["temperings"]) * len(PAPER_SECONDS),
        "multiplier": len(settings["study_temperings"]) * len(settings["multipliers"]) * 2,
        "resnet": len(PAPER_SECONDS),
        "overfitting": len(few["seeds"]) * len(few["temperings"]) * len(PAPER_SECONDS),
    }


def _missing(results: dict[str, Any]) -> str:
    """What has not been run, in words; empty when everything has."""
    total = planned(results["settings"])
    short = [
        f"{part}: {len(results[part])} of {count} cells" for part, count in total.items() if len(results[part]) < count
    ]
    if not short:
        return ""
    return (
        f"**Not complete.** Finished so far: {'; '.join(short)}. What is missing is shown as *not run*, and "
        "conclusions "
        "drawn from the rest are provisional. The same command computes only what is missing."
    )


def _grid_section(grid: list[Row]) -> str:
    lines = []
    for variant in VARIANTS:
        best = chosen_tempering(grid, variant)
        rows = of_variant(grid, variant, best)
        nll, accuracy, ece = PAPER[variant]
        lines.append(
            [
                variant,
                "-" if best is None else f"{best:g}",
                *score_cells(rows, variant, grid),
                f"{nll} / {accuracy} / {ece:.3f}",
            ]
        )
    seeds = len({row["seed"] for row in grid})
    chosen = table(["method", "β", "test NLL", "accuracy %", "ECE", "paper: NLL / accuracy / ECE"], lines)
    full = []
    for tempering in sorted({row["tempering"] for row in grid}):
        for variant in VARIANTS:
            rows, among = of_variant(grid, variant, tempering), [r for r in grid if r["tempering"] == tempering]
            full.append([f"{tempering:g}", variant, *score_cells(rows, variant, among)])
    return (
        "## The CNN, at the tempering that validation chose\n\n"
        f"Mean and standard deviation over {seeds} seed(s). β is the one with the least NLL on validation images; the "
        "paper "
        f"reports the best β on the test set.\n\n{chosen}\n\n"
        "![Test NLL and ECE of the four methods against the tempering](vl-tempering.png)\n\n"
        f"All of the grid:\n\n{table(['β', 'method', 'test NLL', 'accuracy %', 'ECE'], full)}"
    )


def _ordering(results: dict[str, Any]) -> str:
    """Whether VL < VI, MAP came out, in words, with the differences next to those between seeds."""
    compared = comparisons(results["grid"])
    if not compared:
        return "**VL, or everything beside it, has no finished run: the paper's order cannot be judged.**"
    closing = "All of it comes out." if all(c.won for c in compared) else _why(results)
    crude = f"With {len({row['seed'] for row in results['grid']})} seed(s) their range is a crude yardstick."
    return f"### Does the paper's order come out?\n\n{order_table(compared)}\n\n{crude} {closing}"


def _why(results: dict[str, Any]) -> str:
    s = results["settings"]
    guess = (
        "**The paper's order does not come out as a whole.** The paper trains a network with 11 million weights for "
        f"200 epochs, and its MAP is overconfident (ECE {PAPER['MAP'][2]}); here a small CNN has {s['epochs']} epochs "
        f"on {s['train']:,} images, every "
        "method chooses its own β, and MAP at its best β is hardly overconfident, so there is little for the penalty "
        "on curvature to mend. "
    )
    if not results["overfitting"]:
        return guess + "Whether that is the reason has not been tested: the part `overfitting` has not run."
    return guess + f"Whether that is the reason is tested in the next section: {verdict(results['overfitting'])}"


def _resnet_section(results: dict[str, Any]) -> str:
    lines = []
    for variant in VARIANTS:
        rows = of_variant(results["resnet"], variant)
        if any(row["method"] == VARIANTS[variant][0] for row in results["resnet"]):
            nll, accuracy, ece = PAPER[variant]
            beta = f"{rows[0]['tempering']:g}" if rows else "-"
            lines.append(
                [variant, beta, *score_cells(rows, variant, results["resnet"]), f"{nll} / {accuracy} / {ece:.3f}"]
            )
    settings = results["settings"]
    return (
        f"## The narrow PreactResNet-18\n\nWidth factor {settings['resnet_width']:g}, {settings['resnet_epochs']} "
        "epoch(s), "
        "one seed, each method at the β that the CNN's validation chose.\n\n"
        + table(["method", "β", "test NLL", "accuracy %", "ECE", "paper: NLL / accuracy / ECE"], lines)
        + f"\n\n{_resnet_verdict(results)}"
    )


def _resnet_verdict(results: dict[str, Any]) -> str:
    """Where VL stands among the mean networks, in plain words."""
    names = [variant for variant, (_, kind) in VARIANTS.items() if kind == "mean"]
    found = {name: row["mean"] for name in names for row in of_variant(results["resnet"], name)}
    if len(found) < len(names):
        return "Not every mean network has finished: nothing can be said about the order."
    places: dict[str, list[str]] = {}
    for metric, name in (("nll", "NLL"), ("accuracy", "accuracy"), ("ece", "ECE")):
        sign = -1 if metric == "accuracy" else 1
        better = sum(sign * scores[metric] < sign * found["VL"][metric] for scores in found.values())
        places.setdefault(("the best", "in the middle", "the worst")[better], []).append(name)
    standing = "; ".join(f"{place} in {_listed(metrics)}" for place, metrics in places.items())
    agrees = places.get("the best") == ["NLL", "accuracy", "ECE"]
    return (
        f"**Of the three mean networks, VL is {standing}.** One seed and {results['settings']['resnet_epochs']} "
        f"epoch(s) are too few to call that a property of the method, "
        + ("though it is what the paper finds." if agrees else "but it does not support the paper's order.")
    )


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _multiplier_section(study: list[Row]) -> str:
    lines = []
    for row in sorted(study, key=lambda r: (-r["tempering"], r["method"], r["multiplier"])):
        start = [f"{row['tempering']:g}", row["method"].upper(), f"{row['multiplier']:g}"]
        if row["diverged"]:
            lines.append([*start, *["diverged"] * 5])
            continue
        test = row["mean"]
        lines.append(
            [
                *start,
                f"{row['elbo']:.3f}",
                f"{row['elbo_by_draws']:.3f}",
                f"{-test['nll']:.3f}",
                f"{100 * test['accuracy']:.1f}",
                f"{row['median_sigma_over_prior']:.2f}",
            ]
        )
    header = ["β", "method", "multiplier", "ELBO/N", "ELBO/N by draws", "test log-lik.", "accuracy %", "median σ/s"]
    return (
        "## The learning-rate multiplier of log σ (Figure 2)\n\n"
        "Adam moves a parameter by at most its learning rate per step, and log σ starts 3 below the prior's. With a "
        "small multiplier the widths "
        "are still on their way when training ends: the column σ/s shows it. *ELBO* is each method's own value of the "
        "tempered bound "
        "(VL: its quadratic), *by draws* the same bound with weights drawn from the posterior. Mean networks, one "
        "seed.\n\n"
        "![ELBO, test log-likelihood and accuracy against the multiplier](vl-multiplier.png)\n\n" + table(header, lines)
    )


def _time_section(results: dict[str, Any]) -> str:
    lines = []
    for name, rows in (("CNN", results["grid"]), ("narrow ResNet", results["resnet"])):
        seconds = {}
        for method in PAPER_SECONDS:
            found = [r["cpu_seconds_per_epoch"] for r in rows if r["method"] == method and not r["diverged"]]
            if found:
                seconds[method] = mean(found)
        if "map" in seconds:
            for method, value in seconds.items():
                lines.append([name, method.upper(), f"{value:.1f}", f"{value / seconds['map']:.2f}"])
    for method, value in PAPER_SECONDS.items():
        lines.append(["paper: full ResNet, GPU", method.upper(), f"{value}", f"{value / PAPER_SECONDS['map']:.2f}"])
    return (
        "## Time per epoch (Table 2)\n\nSeconds of one core's time, measured during the runs above on a shared "
        "machine; "
        "the benchmark `python -m benchmarks.variational` compares single steps in turn and is the better measure of "
        "the ratio.\n\n" + table(["network", "method", "seconds per epoch", "ratio to MAP"], lines)
    )


def _cuts(results: dict[str, Any]) -> str:
    s = results["settings"]
    few = s["overfitting"]
    network = (
        f"CNN of width {s['width']}, {s['epochs']} epochs, batches of {s['batch']}, Adam with learning rate {s['lr']:g}"
    )
    return (
        "## What was cut\n\n"
        f"* Data: {s['data']}, the first {s['train']:,} training images, the next {s['validation']:,} for validation, "
        f"{s['test']:,} test images. No augmentation.\n"
        f"* {network}, divided by ten after half and three quarters of the epochs. The paper: PreactResNet-18, 200 "
        "epochs, "
        "batches of 128, 1e-4.\n"
        f"* β in {', '.join(f'{t:g}' for t in s['temperings'])}; {len(s['seeds'])} seed(s).\n"
        "* The prior's scale is 1/sqrt(fan-in); the paper does not say what it used.\n"
        "* Learning rate, batch size and standardised inputs were settled for the default size by short pilot "
        "runs of MAP, VL and VI with seed 0 whose test scores were in sight; the number of epochs was then cut twice "
        "for time, not by score.\n"
        f"* Where the network overfits: β in {', '.join(f'{t:g}' for t in few['temperings'])}. Images and epochs were "
        "settled for the default size by one run of MAP with another seed, of which training and validation NLL were "
        "seen. β = 0.001 and 1 were tried with seed 0 and dropped for time: at 0.001 test NLL was 1.04 (VL), 1.16 (VI, "
        "mean) and 1.05 (MAP); at 1 it was 1.19, 2.30 and 2.31, the last two being no better than guessing. 0.3 was "
        "added after test scores at 0.1 had been seen, because MAP was still overconfident there.\n"
        "* CIFAR-10, CIFAR-100 and SVHN: not run, the data is not at hand.\n"
        "* `marquis reproduce vl --full` runs the paper's number of epochs with a width of 1/4 on 55,000 images."
    )


def _draw_multiplier(study: list[Row], path: Path) -> None:
    def draw(axes: Any) -> None:
        columns: list[tuple[str, Callable[[Row], float]]] = [
            ("ELBO / N (by draws)", lambda r: r["elbo_by_draws"]),
            ("test log-likelihood", lambda r: -r["mean"]["nll"]),
            ("test accuracy %", lambda r: 100 * r["mean"]["accuracy"]),
        ]
        for axis, (name, value) in zip(axes, columns, strict=True):
            for tempering, line in zip(
                sorted({r["tempering"] for r in study}, reverse=True), ("-", "--"), strict=False
            ):
                for method, label in (("vl", "VL"), ("vi", "VI (mean)")):
                    rows = [
                        r for r in study if (r["method"], r["tempering"]) == (method, tempering) and not r["diverged"]
                    ]
                    rows.sort(key=lambda r: r["multiplier"])
                    axis.plot(
                        [r["multiplier"] for r in rows],
                        [value(r) for r in rows],
                        line,
                        marker=MARKERS[label],
                        color=COLOURS[label],
                        label=f"{method.upper()}, β = {tempering:g}",
                    )
            ticks = sorted({r["multiplier"] for r in study})
            axis.set(xscale="log", xlabel="multiplier of the learning rate of log σ", ylabel=name)
            axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)

    picture(path, 3, draw)
