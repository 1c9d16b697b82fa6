"""The page of `imputation`, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marquis.experiments.hessians_report import data_name, describe_data
from marquis.experiments.imputation_pictures import LABELS, draw_reliability
from marquis.experiments.imputation_tables import (
    MAIN,
    Row,
    choice,
    errors,
    generation,
    label,
    mce_of_filled_bins,
    of,
    why,
)
from marquis.experiments.pages import command, table, with_error, write_page

PAPER = {
    "vae": (0.22, 0.18, 0.34, 0.19, 104.73, 104.75),
    "dropout": (0.45, 0.28, 0.38, 0.29, 106.05, 106.05),
    "ensemble": (0.53, 0.12, 0.20, 0.13, 96.23, 100.94),
    "posthoc-sketched": (0.51, 0.16, 0.27, 0.18, 101.62, 107.25),
    "online-sketched-paper-code": (0.53, 0.12, 0.16, 0.13, 99.59, 106.29),
}
"""LAE Table 3: accuracy, ECE, MCE, RMSCE, MSE, -log p (with the sign turned), by the row that comes nearest."""
PAPER_CLASSIFIER = (0.53, 0.16, 0.25, 0.18)
TARGET = {"accuracy": 0.53, "ece": 0.12, "mce": 0.16, "rmsce": 0.13}
SCORES = ("accuracy", "ece", "mce", "rmsce")
HEAD = ["accuracy", "ECE", "MCE", "RMSCE"]
WAYS: dict[str, Callable[[Row], Row]] = {
    "published": lambda row: row["published"]["reconstructions"],
    "published, given half put back": lambda row: row["published"]["put_back"],
    "own, given half put back": lambda row: row["own"]["put_back"],
}


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `imputation.md` and the reliability diagrams; whatever rows have finished are shown."""
    rows = [row for row in results["rows"] if not row["failed"]]
    settings = results["settings"]
    keys = [key for key in settings["keys"] if of(rows, key)]
    if keys:
        panels = {
            key: {name: [way(row)["bins"] for row in of(rows, key)] for name, way in WAYS.items()} for key in keys
        }
        draw_reliability(folder / "imputation-reliability.png", panels)
    pieces = ["# The upper half of a digit from the lower one", introduction(results)]
    if keys:
        pieces += [targets(rows, results), published(rows, keys), own(rows, keys, results["chosen"])]
    pieces += [reference_rows(results), errors(rows, keys), why(rows, keys), choice(results), generation(rows, results)]
    pieces += [cuts(results)]
    return write_page(folder / "imputation.md", [piece for piece in pieces if piece])


def introduction(results: dict[str, Any]) -> str:
    """Data, models, classifier, procedure."""
    settings = results["settings"]
    classifier, recipe = settings["classifier"], settings["recipe"]
    complete = results["references"].get("classifier, complete image")
    reads = f" It reads {complete['accuracy']:.1%} of the complete test images correctly." if complete else ""
    return (
        f"Written by {command('imputation', results['size'])} (LAE Table 3 and Figure 11). The upper half of an image "
        f"is hidden; a model fills it in. {describe_data(recipe)} Every model is trained {settings['seeds']} "
        f"time{'s' * (settings['seeds'] > 1)}; tables have means ± standard errors over these trainings, on the same "
        f"{settings['test']:,} test images. From the images alone an accuracy of a half has a standard error of "
        f"{(0.25 / settings['test']) ** 0.5:.3f}.\n\n"
        "**Published procedure**: the hidden half is filled with noise; 5 networks reconstruct that; the given half is "
        "put back into each; 5 networks reconstruct each again, and their average is a *version*. A classifier reads "
        "the versions, and its softmax is averaged over them.\n\n"
        f"**Classifier**: a small CNN, {classifier['epochs']} epochs on the first {classifier['train']:,} training "
        f"images, in evaluation mode. Neither it nor any autoencoder was fitted to the {settings['validation']:,} "
        f"validation images after those or to the test images.{reads} The published numbers have another classifier, "
        "with dropout left on and trained on the images that it judged, so only the order of their rows compares."
    )


def targets(rows: list[Row], results: dict[str, Any]) -> str:
    """Which of the four numbers of the paper's best row our default reaches, by which way."""
    found = of(rows, MAIN)
    if not found:
        return ""
    lines = []
    for name, way in WAYS.items():
        values = {score: mean(way(row)[score] for row in found) for score in SCORES}
        reached = [s for s in SCORES if (values[s] >= TARGET[s] if s == "accuracy" else values[s] <= TARGET[s])]
        numbers = ", ".join(f"{HEAD[i]} {values[s]:.3f}" for i, s in enumerate(SCORES))
        missed = [HEAD[SCORES.index(s)] for s in SCORES if s not in reached]
        verdict = "all four reached" if not missed else f"missed: {', '.join(missed)}"
        if "MCE" in missed:
            bins = mean(mce_of_filled_bins(way(row)["bins"]) for row in found)
            verdict += f" (MCE over bins with at least 1 % of the images: {bins:.3f})"
        lines.append(f"- {name}: {numbers}; {verdict}.")
    return (
        f"## Against the paper\n\nThe paper's online model has accuracy {TARGET['accuracy']}, ECE {TARGET['ece']}, MCE "
        f"{TARGET['mce']}, RMSCE {TARGET['rmsce']}. Our default, mean of {len(found)} training"
        f"{'s' * (len(found) > 1)}:\n\n" + "\n".join(lines) + "\n\nThe own procedure of every model was chosen on "
        "validation images, by the likelihood of the true class; the list is below. Test images were not looked at for "
        "it. (That the given half should be put back before the classifier reads, and that versions should start from "
        "training images, was found on validation images with earlier trainings of some of these models.)"
    )


def scores_table(rows: list[Row], keys: Sequence[str], way: Callable[[Row], Row], more: Callable[[str], list[str]]):
    """Models against the four scores; `more` gives further columns."""
    return [[label(key), *(with_error([way(r)[s] for r in of(rows, key)]) for s in SCORES), *more(key)] for key in keys]


def published(rows: list[Row], keys: Sequence[str]) -> str:
    """Table 3."""

    def more(key: str) -> list[str]:
        numbers = [with_error([row["published"]["errors"][n] for row in of(rows, key)], 1) for n in ERRORS_C]
        return [*numbers, " / ".join(f"{value:g}" for value in PAPER[key]) if key in PAPER else "–"]

    head = ["model", *HEAD, "MSE (c)", "-log p (c)", "paper: accuracy / ECE / MCE / RMSCE / MSE / -log p"]
    return (
        "## The published procedure\n\n"
        + table(head, scores_table(rows, keys, WAYS["published"], more))
        + "\n\n(c) is the definition behind the published table: squared error against the *noise-filled* image, of "
        "the mean version and averaged over the versions. Most of it is the energy of the noise. A plain autoencoder "
        "has one version.\n\n![Versions by the published procedure](imputation.png)\n\nVersions as the second stage "
        "left them. The standard deviation is over the versions, each with a scale of its own whose end is written "
        "below it."
    )


ERRORS_C = ("published_of_mean", "published")


def own(rows: list[Row], keys: Sequence[str], chosen: dict[str, str | None]) -> str:
    """The procedures of our own."""

    def filled_bins(name: str, key: str) -> str:
        return with_error([mce_of_filled_bins(WAYS[name](row)["bins"]) for row in of(rows, key)])

    before, after = "published, given half put back", "own, given half put back"
    put_back = scores_table(rows, keys, WAYS[before], lambda key: [filled_bins(before, key)])
    best = scores_table(rows, keys, WAYS[after], lambda key: [filled_bins(after, key), chosen[key] or "–"])
    return (
        "## Ours\n\nThe second stage reconstructs the given half too, although it is known. The same versions with the "
        "given half put back before the classifier reads them:\n\n"
        + table(["model", *HEAD, "MCE, bins ≥ 1 %"], put_back)
        + "\n\nAnd with the procedure chosen for each model on validation images (start, versions × networks averaged, "
        "rounds):\n\n"
        + table(["model", *HEAD, "MCE, bins ≥ 1 %", "procedure"], best)
        + f"\n\n{order_line(rows, keys, WAYS[after])}"
        + "\n\n![Versions by our own procedure](imputation-own.png)\n\n"
        "![Reliability diagrams](imputation-reliability.png)\n\nReliability in 15 bins, all trainings together; the "
        "area of a point is the share of the images in the bin. MCE is the worst bin however few images it holds, "
        "which may be one; beside it, ours, the worst of the bins with at least 1 % of the images "
        "(a column that was added after the first test scores had been seen)."
    )


def order_line(rows: list[Row], keys: Sequence[str], way: Callable[[Row], Row]) -> str:
    """Who is best by accuracy and by ECE, and what uncertain weights add to a plain autoencoder."""
    found = {key: {s: mean(way(row)[s] for row in of(rows, key)) for s in ("accuracy", "ece")} for key in keys}
    right = max(keys, key=lambda key: found[key]["accuracy"])
    honest = min(keys, key=lambda key: found[key]["ece"])
    line = f"Most accurate: {LABELS[right]} ({found[right]['accuracy']:.3f}); lowest ECE: {LABELS[honest]} "
    line += f"({found[honest]['ece']:.3f})."
    if MAIN in keys and "ae" in keys:
        gain = found["ae"]["ece"] - found[MAIN]["ece"]
        word = "less" if gain > 0 else "more"
        line += (
            f" Our default's ECE is {abs(gain):.3f} {word} than that of a plain autoencoder, whose weights are sure."
        )
    return line


def reference_rows(results: dict[str, Any]) -> str:
    """What can be had without an autoencoder."""
    found: dict[str, Row] = results["references"]
    if not found:
        return ""
    lines = [[name, *(f"{scores[s]:.3f}" for s in SCORES)] for name, scores in found.items()]
    lines.append(["*paper: classifier*", *(f"{value:g}" for value in PAPER_CLASSIFIER)])
    rows = [row for row in results["rows"] if not row["failed"]]
    verdict = f"\n\n{simple_verdict(found, rows)}" if rows else ""
    return "## Without an autoencoder\n\n" + table(["reference", *HEAD], lines) + verdict


def simple_verdict(found: dict[str, Row], rows: list[Row]) -> str:
    """Whether the references that know the task beat the autoencoders."""
    simple = max((found[name]["accuracy"], name) for name in simple_names(found))
    way = WAYS["own, given half put back"]
    best = max((mean(way(row)["accuracy"] for row in of(rows, key)), key) for key in LABELS if of(rows, key))
    told = f"{simple[1]}: accuracy {simple[0]:.3f}; best autoencoder by its own procedure: "
    told += f"{LABELS[best[1]]}, {best[0]:.3f}."
    if simple[0] <= best[0]:
        return told
    return f"**The simple method wins**: {told} A code of two numbers holds less of the lower half than its pixels do."


def simple_names(found: dict[str, Row]) -> list[str]:
    """References that know the task: the classifier of lower halves and the neighbours."""
    return [name for name in found if "lower halves" in name or "nearest" in name]


def cuts(results: dict[str, Any]) -> str:
    """What is smaller than in the paper."""
    settings = results["settings"]
    recipe = settings["recipe"]
    planned = {(key, seed) for key in settings["keys"] for seed in range(settings["seeds"])}
    left = planned - {(row["key"], row["seed"]) for row in results["rows"]}
    failed = [
        f"- {LABELS[row['key']]}, seed {row['seed']}: {row['failed']}" for row in results["rows"] if row["failed"]
    ]
    lines = []
    if results["size"] != "full":
        lines.append(
            f"Cut down for two cores: {recipe['images']:,} training images and {recipe['epochs']} epochs (paper: "
            f"55,000 with early stopping), {settings['test']:,} test images (paper: 5,000 validation images). "
            f"`--full` has not been run here. {data_name(recipe)} only, one classifier."
        )
    if left:
        names = ", ".join(f"{LABELS[key]} ({seed})" for key, seed in sorted(left))
        lines.append(f"**Not complete.** Not run yet: {names}. The same command goes on from here.")
    if failed:
        lines.append("Trainings that failed:\n\n" + "\n".join(failed))
    return "\n\n".join(lines)
