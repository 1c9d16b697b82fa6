"""The page and the chart of the experiment `hessians`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture, command, table, write_page

Row = dict[str, Any]
Paper = dict[str, tuple[float, float, float, float]]

PAPER: Paper = {
    "posthoc-kronecker": (9683.9, 2455.0, 121.6, 24.5),
    "posthoc-exact": (283.3, 88.6, 27.1, 0.9),
    "posthoc-approximate": (232.0, 65.5, 26.6, 0.6),
    "online-exact": (25.8, 0.2, 25.7, 0.2),
    "online-approximate": (25.9, 0.4, 25.8, 0.4),
}
"""LAE Table 2: -log p and MSE, each with its standard deviation. The last -log p is misprinted there ("256.9+04")."""
SUFFIXES = {
    "-unit-noise": ", noise fixed at 1",
    "-paper-code": ", preset paper-code",
    "-paper": ", preset paper",
    "": "",
}
COLOURS = {"ae": GREY, "posthoc": ORANGE, "online": BLUE}
ONLINE_TARGETS = {
    "online-exact-paper-code": "online-exact",
    "online-approximate-paper-code": "online-approximate",
    "online-sketched-paper-code": "online-exact",
    "online-exact": "online-exact",
    "online-approximate": "online-approximate",
    "online-sketched": "online-exact",
}
"""Our rows and the paper's rows that they are held against."""
VARIANCES = (
    *(f"posthoc-{name}-unit-noise" for name in ("kronecker", "exact", "approximate")),
    *("online-exact-paper-code", "online-exact"),
)
MEASURES = {
    "nlp": ("-log p as the paper defines it, lower is better", -1),
    "mse": ("MSE as the paper defines it, lower is better", -1),
    "log_p_refitted": ("normalised log p(x) with β refitted, higher is better", 1),
}


def base_of(name: str) -> tuple[str, str]:
    """A row's name without its variant, and the variant's end."""
    end = next(end for end in SUFFIXES if name.endswith(end))
    return name.removesuffix(end), end


def label_of(name: str) -> str:
    """For tables."""
    if name == "ae":
        return "plain autoencoder"
    base, end = base_of(name)
    kind, _, estimator = base.partition("-")
    said = "post-hoc" if kind == "posthoc" else "online"
    shown = "Kronecker (sketched)" if estimator == "kronecker" else estimator
    every = ", every 10th step" if base == "online-exact" else ""
    variant = ", default" if kind == "online" and not end else ", noise learnt" if not end else SUFFIXES[end]
    return f"{said} {shown}{every}{variant}"


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `hessians.md` and `hessians.png`; whatever rows have finished are shown."""
    rows, settings = results["rows"], results["settings"]
    paper = PAPER if settings["recipe"]["data"] == "mnist" else {}  # other data are not comparable
    names = list(dict.fromkeys(name for name, _ in results["planned"]))
    draw(folder / "hessians.png", rows, names, paper)
    recipe = settings["recipe"]
    pieces = [
        "# Which curvature for a Laplacian autoencoder",
        f"Written by {command('hessians', results['size'])} from its results (LAE Table 2 and Figure 8). "
        f"{describe_data(recipe)} Scores are means over {settings['test']:,} test images and {settings['samples']} "
        "drawn networks. As the paper defines them (without the half and without the constant), *-log p* is the "
        "squared error of a drawn network, summed over pixels and averaged over draws, and *MSE* that of the mean of "
        "the draws; their difference is the variance over draws, summed over pixels.",
        missing(results),
        "## The paper's numbers",
        "± is the standard deviation over seeds; rows without it have one seed. The standard error of the plain "
        f"autoencoder's MSE over test images is {error_of_mse(rows)}, but all rows are judged by the same images.",
        paper_table(rows, names, paper),
        "![The paper's two numbers](hessians.png)",
        "## Properly normalised",
        "`log p(x)` is the logarithm of the average density over the draws, in nats per image, normalised, with the "
        "model's own noise precision β; and with β refitted to the squared errors of drawn networks on "
        f"{settings['noise']:,} training images, so that a row whose noise is fixed at 1 is not judged by that number "
        "alone. Higher is better. `T` is the effective temperature (1: the Laplace posterior; less: colder).",
        density_table(rows, names),
        "## What came out",
        verdict(rows, recipe, paper),
        "## Mean and standard deviation of drawn networks",
        "As Figure 8 of the paper: one autoencoder with a posterior made afterwards (noise fixed at 1, the paper's "
        "setting), and autoencoders that were trained with theirs (sketched diagonal). Each row of standard deviations "
        "has a scale of its own.",
        "![Reconstructions](hessians-reconstructions.png)",
        "## What was cut",
        cuts(results),
    ]
    return write_page(folder / "hessians.md", [piece for piece in pieces if piece])


def describe_data(recipe: dict[str, Any]) -> str:
    """Data, network and training in two sentences."""
    stopping = (
        f"at most {recipe['epochs']} epochs with early stopping on {recipe['validation']:,} further images"
        if recipe["validation"]
        else f"{recipe['epochs']} epochs, a fixed number, in a plain loop without validation data or schedule"
    )
    network = "dense 784-512-256-2 and back" if recipe["architecture"] == "mnist-dense" else "a small dense network"
    return (
        f"{data_name(recipe)}, {recipe['images']:,} training images, {network}; Adam at {recipe['lr']:g}, batches of "
        f"{recipe['batch']}, {stopping}. All post-hoc rows are posteriors of the same plain autoencoder, prior "
        "precision by the evidence."
    )


def data_name(recipe: dict[str, Any]) -> str:
    """As it begins a sentence."""
    name: str = recipe["data"]
    return "MNIST" if name == "mnist" else name.capitalize()


def missing(results: dict[str, Any]) -> str:
    """Which rows have not been run."""
    done = {(row["name"], row["seed"]) for row in results["rows"]}
    left = [f"{label_of(name)} (seed {seed})" for name, seed in results["planned"] if (name, seed) not in done]
    return f"**Not complete.** Not run yet: {'; '.join(left)}. The same command goes on from here." if left else ""


def of(rows: list[Row], name: str) -> list[Row]:
    """Seeds of one row that were trained to the end."""
    return [row for row in rows if row["name"] == name and not row["failed"]]


def shown(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation over seeds."""
    digits = 0 if abs(mean(values)) >= 1000 else 1 if abs(mean(values)) >= 100 else digits
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):,.{digits}f}{spread}"


def average(rows: list[Row], name: str, key: str) -> float | None:
    """Mean over seeds, or None where there is no such row."""
    found = of(rows, name)
    return mean(row[key] for row in found) if found else None


def error_of_mse(rows: list[Row]) -> str:
    """Typical standard error over images."""
    found = of(rows, "ae") or [row for row in rows if not row["failed"]]
    return f"{mean(row['mse_error'] for row in found):.2f}" if found else "?"


def paper_table(rows: list[Row], names: list[str], paper: Paper) -> str:
    """Rows against -log p and MSE, with the paper's beside."""
    lines = []
    for name in names:
        known = paper.get(base_of(name)[0])
        theirs = "" if known is None else f"{known[0]:,g} ± {known[1]:,g} / {known[2]:g} ± {known[3]:g}"
        own = of(rows, name)
        failed = [row for row in rows if row["name"] == name and row["failed"]]
        if own:
            numbers = [shown([row[key] for row in own]) for key in ("nlp", "mse")]
            gap = mean(row["variance"] for row in own)
            numbers.append(f"{gap:.3g}" if gap < 1000 else f"{gap:,.0f}")
        else:
            numbers = ["*failed*" if failed else "*not run*"] * 3
        seconds = [row["train_seconds"] for row in rows if row["name"] == name]
        lines.append([label_of(name), len(own), *numbers, theirs, f"{mean(seconds):.0f}" if seconds else ""])
    head = ["row", "seeds", "-log p", "MSE", "variance", "paper: -log p / MSE", "CPU s"]
    return table(head, lines)


def density_table(rows: list[Row], names: list[str]) -> str:
    """Rows against normalised log densities, noise and temperature."""
    lines = []
    for name in names:
        own = of(rows, name)
        if not own:
            continue
        temperature = own[0]["temperature"]
        lines.append(
            [
                label_of(name),
                shown([row["log_p"] for row in own], 1),
                shown([row["log_p_refitted"] for row in own], 1),
                f"{mean(row['noise_precision'] for row in own):.3g}",
                f"{mean(row['noise_refitted'] for row in own):.3g}",
                "" if temperature is None else f"{mean(row['temperature'] for row in own):.3g}",
                "" if temperature is None else f"{mean(row['prior_precision'] for row in own):.3g}",
            ]
        )
    head = ["row", "log p(x), own β", "log p(x), β refitted", "own β", "β refitted", "T", "prior precision"]
    return table(head, lines) if lines else "*Nothing has run.*"


def verdict(rows: list[Row], recipe: dict[str, Any], paper: Paper) -> str:
    """The paper's claims and the question of the task against the numbers."""
    said = [f"{label_of(row['name'])} could not be trained: {row['failed']}" for row in rows if row["failed"]]
    if paper:
        said += [against_paper(rows, name, paper) for name in ONLINE_TARGETS if of(rows, name)]
        plain = average(rows, "ae", "mse")
        if plain is not None and not recipe["validation"]:
            said.append(
                "The paper trains on 55,000 images until early stopping. How much of the difference is training: the "
                f"plain autoencoder, which has no posterior, has an MSE of {plain:.1f} after as many steps as all rows "
                "here."
            )
        said += [variance_line(rows, name, paper) for name in VARIANCES if of(rows, name)]
    lines = [noise_line(rows), forgotten_line(rows, recipe), *(order_line(rows, key) for key in MEASURES)]
    said += [line for line in lines if line]
    return "\n".join(f"- {line}" for line in said)


def against_paper(rows: list[Row], name: str, paper: Paper) -> str:
    """How close one online row is."""
    target = ONLINE_TARGETS[name]
    nlp, mse = (mean(row[key] for row in of(rows, name)) for key in ("nlp", "mse"))
    theirs = paper[target]
    reached = "reached" if nlp <= theirs[0] + theirs[1] else "**not reached**"
    return (
        f"{label_of(name)}: {nlp:.1f} / {mse:.1f} against the paper's {theirs[0]:g} / {theirs[2]:g} "
        f"({target.replace('-', ' ')}): {reached}, {nlp - theirs[0]:+.1f} in -log p."
    )


def variance_line(rows: list[Row], name: str, paper: Paper) -> str:
    """Is a drawn network as good as the mean of many?"""
    own, theirs = mean(row["variance"] for row in of(rows, name)), paper[base_of(name)[0]]
    return (
        f"-log p minus MSE, the variance over draws, {label_of(name)}: {own:,.3g}; in the paper "
        f"{theirs[0] - theirs[2]:,.3g}."
    )


def noise_line(rows: list[Row]) -> str:
    """How much of the distance between post-hoc and online is the noise that the posterior believes in."""
    names = ("posthoc-exact-unit-noise", "posthoc-exact", "online-exact", "posthoc-kronecker-unit-noise")
    unit, learnt, online, factors = (average(rows, name, "nlp") for name in names)
    if unit is None or learnt is None or online is None:
        return ""
    text = (
        f"-log p post hoc against online, exact: {unit:.1f} with the noise fixed at 1, {learnt:.1f} with it learnt, "
        f"{online:.1f} online. Learning the noise closes {(unit - learnt) / (unit - online):.0%} of the distance"
    )
    kronecker = average(rows, "posthoc-kronecker", "nlp")
    if factors is None or kronecker is None:
        return f"{text}."
    return f"{text}; for Kronecker factors it is {factors:.1f} and {kronecker:.1f}."


def seed_spread(rows: list[Row], key: str) -> float:
    """Standard deviation over seeds, pooled over the plain and the sketched online rows: few seeds each."""
    names = ("ae", "online-sketched", "online-sketched-paper-code")
    groups = [[row[key] for row in of(rows, name)] for name in names]
    squares = [(len(values) - 1, variance(values)) for values in groups if len(values) > 1]
    freedom = sum(count for count, _ in squares)
    return (sum(count * value for count, value in squares) / freedom) ** 0.5 if freedom else 0.0


def forgotten_line(rows: list[Row], recipe: dict[str, Any]) -> str:
    """What the preset "paper", which has no prior in the precision, does to weights that see no data."""
    steps = max((row["steps"] for row in rows if base_of(row["name"])[1] == "-paper"), default=0)
    if steps == 0:
        return ""
    left = (1 - recipe["batch"] / recipe["images"]) ** steps
    return (
        "The preset paper has no prior in the precision: a weight that no image reaches (an always-black pixel's) has "
        f"forgotten its precision down to {left:.2g} of its start value 1 after {steps} steps, standard deviation "
        f"{left**-0.5:.3g}. Every epoch divides it by e, so that after about a hundred epochs it is zero in single "
        "precision and training ends with an error; no row here was trained for that long."
    )


def order_line(rows: list[Row], key: str) -> str:
    """Which rows the sketched diagonal with learnt noise beats; level is within two deviations of a difference."""
    own = [row[key] for row in of(rows, "online-sketched")]
    if not own:
        return ""
    text, sign = MEASURES[key]
    spread = 2 * 2**0.5 * seed_spread(rows, key)
    better, level, worse = [], [], []
    for name in dict.fromkeys(row["name"] for row in rows if row["name"] != "online-sketched"):
        other = average(rows, name, key)
        if other is not None:
            gain = sign * (mean(own) - other)
            place = level if abs(gain) <= spread else better if gain > 0 else worse
            place.append(f"{label_of(name)} ({mean(own) - other:+,.2f})")
    parts = [f"it beats {len(better)} of {len(better) + len(level) + len(worse)} rows"]
    if level:
        within = f"within {spread:.2g}, two standard deviations of a difference between seeds"
        parts.append(f"is level ({within}) with {', '.join(level)}")
    parts += [f"is beaten by {', '.join(worse)}"] if worse else []
    return f"Online sketched with learnt noise, {text}: {'; '.join(parts)}."


def cuts(results: dict[str, Any]) -> str:
    """What differs from the paper's protocol."""
    recipe, settings = results["settings"]["recipe"], results["settings"]
    seconds = {(row["name"].removesuffix("-unit-noise"), row["seed"]): row["train_seconds"] for row in results["rows"]}
    total = sum(seconds.values()) + sum(row.get("evaluation_seconds", 0.0) for row in results["rows"])
    if recipe["validation"]:
        return f"Nothing but the exact online curvature, refreshed every tenth step; {total / 60:.0f} CPU minutes."
    return (
        f"{recipe['images']:,} training images (the paper: 55,000), {recipe['epochs']} epochs ({steps_of(results)} "
        f"steps) without early stopping; seeds: {settings['main_seeds']} of the main rows, {settings['seeds']} of the "
        f"others; {settings['test']:,} test images; exact curvature of online rows at every tenth step only (it stands "
        f"for ten). All of it took {total / 60:.1f} CPU minutes on one core. `--full` runs 55,000 images with early "
        "stopping, five seeds of every row and all test images."
    )


def steps_of(results: dict[str, Any]) -> int:
    """Steps of the longest training."""
    return max((row["steps"] for row in results["rows"]), default=0)


def draw(path: Path, rows: list[Row], names: list[str], paper: Paper) -> None:
    """-log p (filled) and MSE (hollow) of every row, logarithmic; the paper's as diamonds."""
    present = [name for name in names if of(rows, name)]
    if not present:
        return
    picture = Picture(1, 1, 8.2, 0.7 + 0.32 * len(present))
    axis = picture.axes[0]
    for place, name in enumerate(reversed(present)):
        nlp, mse = average(rows, name, "nlp"), average(rows, name, "mse")
        assert nlp is not None and mse is not None
        colour = COLOURS[name.partition("-")[0]]
        axis.plot([mse, nlp], [place, place], color=colour, lw=1.2, alpha=0.6)
        axis.plot([mse], [place], "o", mfc="white", mec=colour, ms=7, label="MSE" if not place else None)
        axis.plot([nlp], [place], "o", color=colour, ms=5, label="-log p" if not place else None)
        known = paper.get(base_of(name)[0])
        if known is not None:
            axis.plot([known[2]], [place], "D", mfc="none", mec=GREEN, ms=5)
            axis.plot([known[0]], [place], "D", color=GREEN, ms=4)
    if paper:
        axis.plot([], [], "D", color=GREEN, ms=4, label="paper: -log p")
        axis.plot([], [], "D", mfc="none", mec=GREEN, ms=5, label="paper: MSE")
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000) if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set_yticks(range(len(present)), [label_of(name) for name in reversed(present)], fontsize=8)
    axis.set_xlabel("squared error per image (logarithmic)", fontsize=8)
    axis.grid(axis="x", color="#dddddd", lw=0.6)
    picture.figure.legend(fontsize=8, loc="outside upper center", ncols=4, frameon=False)
    picture.save(path)
