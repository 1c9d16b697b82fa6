"""The page of `imputation`, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.hessians_report import describe_data
from marquis_experiments.imputation_pictures import LABELS, draw_reliability
from marquis_experiments.imputation_procedures import WEIGHTED
from marquis_experiments.imputation_settings import JUDGED
from marquis_experiments.imputation_tables import (
    MAIN,
    Row,
    choice,
    cuts,
    errors,
    fewer,
    generation,
    label,
    mce_by_luck,
    mce_of_all,
    mce_of_filled_bins,
    of,
    why,
)
from marquis_experiments.pages import command, standard_error, table, with_error, write_page

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
PUT_BACK, STAGES = "published, given half put back", "two stages, chosen"
WEIGHED, MORE_IMAGES = "weighted codes", "weighted codes, more images"
WAYS: dict[str, Callable[[Row], Row]] = {
    "published": lambda row: row["published"]["reconstructions"],
    PUT_BACK: lambda row: row["published"]["put_back"],
    STAGES: lambda row: row["own"]["put_back"],
    WEIGHED: lambda row: row["weighted"]["first"],
    MORE_IMAGES: lambda row: row["weighted"]["put_back"],
}
DRAWN = ("published", STAGES, MORE_IMAGES)
"""In the reliability diagrams."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `imputation.md` and the reliability diagrams; whatever rows have finished are shown."""
    rows = [row for row in results["rows"] if not row["failed"]]
    settings = results["settings"]
    keys = [key for key in settings["keys"] if of(rows, key)]
    if keys:
        panels = {key: {name: [WAYS[name](row)["bins"] for row in of(rows, key)] for name in DRAWN} for key in keys}
        draw_reliability(folder / "imputation-reliability.png", panels)
    pieces = ["# The upper half of a digit from the lower one", introduction(results)]
    if keys:
        pieces += [targets(rows, results), published(rows, keys), two_stages(rows, keys, results["chosen"])]
        pieces += [weighted(rows, keys, results)]
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
        f"time{'s' * (settings['seeds'] > 1)}{fewer(results)}; tables have means ± standard errors over "
        f"these trainings, on the same {settings['test']:,} test images (weighted codes of "
        f"some models also on {settings['all_test']:,}, which begin with those). From the images alone an accuracy "
        f"of a half has a standard error of {(0.25 / settings['test']) ** 0.5:.3f} "
        f"({(0.25 / settings['all_test']) ** 0.5:.3f}).\n\n"
        "**Published procedure**: the hidden half is filled with noise; 5 networks reconstruct that; the given half is "
        "put back into each; 5 networks reconstruct each again, and their average is a *version*. A classifier reads "
        "the versions, and its softmax is averaged over them.\n\n"
        "**Weighted codes** (ours, [`imputation.condition`](../tasks.md#missing-entries)): what the model says about "
        "the codes of training images are candidates, weighted by the likelihood of the given half; versions are drawn "
        "by weight.\n\n"
        f"**Classifier**: a small CNN, {classifier['epochs']} epochs on the first {classifier['train']:,} training "
        f"images, in evaluation mode. Neither it nor any autoencoder was fitted to the {settings['validation']:,} "
        f"validation images after those or to the test images.{reads} The published numbers have another classifier, "
        "with dropout left on and trained on the images that it judged, so only the order of their rows compares."
    )


def targets(rows: list[Row], results: dict[str, Any]) -> str:
    """Which of the four numbers of the paper's best row ours reach, by which way."""
    lines = []
    for key in JUDGED:
        found = of(rows, key)
        for name, way in WAYS.items() if found else ():
            values = {score: mean(way(row)[score] for row in found) for score in SCORES}
            bins = [way(row)["bins"] for row in found]
            others = [mce_of_all(bins), *(mean(map(how, bins)) for how in (mce_of_filled_bins, mce_by_luck))]
            numbers = [f"{values[s]:.3f}" if reached(s, values[s]) else f"*{values[s]:.3f}*" for s in SCORES]
            missed = [HEAD[SCORES.index(s)] for s in SCORES if not reached(s, values[s])]
            verdict = f"missed: {', '.join(missed)}" if missed else "**all four reached**"
            more = [f"{value:.3f}" for value in others]
            lines.append([f"{LABELS[key]}: {name}", f"{sum(bins[0]['count']):,}", *numbers, *more, verdict])
    if not lines:
        return ""
    head = [
        "row",
        "images",
        *(f"{HEAD[i]} {'≥' if s == 'accuracy' else '≤'} {TARGET[s]}" for i, s in enumerate(SCORES)),
    ]
    return (
        "## Against the paper\n\nThe targets are the numbers of the paper's online model. Means over trainings; what "
        "misses its target in italics. MCE is a maximum over bins that may hold a single image. Beside it: that of the "
        "images of all trainings together; the worst of the bins that hold at least 1 % of the images; and the MCE "
        "that a reader with *exactly right* confidences would have on average, with as many images in every bin: below "
        "that an MCE is luck.\n\n"
        + table([*head, "MCE, trainings together", "MCE, bins ≥ 1 %", "MCE by luck alone", "targets"], lines)
        + f"\n\n{harder_line(rows)}What there was to choose was chosen for every model on validation images, by the "
        "likelihood of the true class; the list is below. Test images were not looked at for it. (That the given half "
        "should be put back before the classifier reads, that versions should start from training images, and that "
        "weighted codes are worth a row was found on validation images. That weighted codes are also read on more test "
        "images was decided before any of their test scores, knowing that MCE had been missed on few images; the "
        "columns beside MCE are of after.)"
    )


def harder_line(rows: list[Row]) -> str:
    """How the images of most tables compare with all of them; the procedure is the same."""
    found = of(rows, MAIN)
    if not found:
        return ""
    first, every = (mean(WAYS[name](row)["accuracy"] for row in found) for name in (WEIGHED, MORE_IMAGES))
    count = sum(WAYS[WEIGHED](found[0])["bins"]["count"])
    word = "harder" if first < every else "easier"
    return (
        f"The first {count:,} images are {word} than all together (accuracy {first:.3f} against {every:.3f} for the "
        "same weighted codes of our default): compare rows on the same images only. "
    )


def reached(score: str, value: float) -> bool:
    """Whether the paper's number is reached or passed."""
    return value >= TARGET[score] if score == "accuracy" else value <= TARGET[score]


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


def filled_bins(rows: list[Row], name: str, key: str) -> str:
    """Worst bin that holds enough images."""
    return with_error([mce_of_filled_bins(WAYS[name](row)["bins"]) for row in of(rows, key)])


def two_stages(rows: list[Row], keys: Sequence[str], chosen: dict[str, dict[str, str | None]]) -> str:
    """The two stages with the given half put back, and from better starts."""
    before = scores_table(rows, keys, WAYS[PUT_BACK], lambda key: [filled_bins(rows, PUT_BACK, key)])
    after = scores_table(
        rows, keys, WAYS[STAGES], lambda key: [filled_bins(rows, STAGES, key), chosen[key]["own"] or "–"]
    )
    return (
        "## The two stages, made better\n\nThe second stage reconstructs the given half too, although it is known. The "
        "same versions with the given half put back before the classifier reads them:\n\n"
        + table(["model", *HEAD, "MCE, bins ≥ 1 %"], before)
        + "\n\nAnd with the start, versions × networks averaged and rounds chosen for each model on validation "
        "images:\n\n"
        + table(["model", *HEAD, "MCE, bins ≥ 1 %", "procedure"], after)
        + f"\n\n{order_line(rows, keys, WAYS[STAGES])}"
    )


def weighted(rows: list[Row], keys: Sequence[str], results: dict[str, Any]) -> str:
    """Codes of training images, weighted by the likelihood of the given half."""
    settings, chosen = results["settings"], results["chosen"]
    option = next(option for option in settings["options"] if option["start"] == WEIGHTED)

    def more(key: str) -> list[str]:
        return [filled_bins(rows, WEIGHED, key), (chosen[key]["weighted"] or "–").rpartition(" ")[2]]

    head = ["model", *HEAD, "MCE, bins ≥ 1 %", "exponent"]
    return (
        "## Weighted codes\n\nNone of the above asks whether a version explains the given half. Here up to "
        f"{option['networks']} networks reconstruct {option['donors']:,} training images; each answer is a candidate "
        "for every test image, weighted by the Gaussian likelihood of the given half under it, raised to an exponent; "
        f"{option['versions']} versions per image are drawn by weight, and the given half is put back. This is "
        "importance sampling of the code given what was observed. All pixels as independent witnesses (exponent 1 "
        "with a learnt noise) would be far too sure; the exponent is chosen on validation images. On the same "
        f"{settings['test']:,} test images as above:\n\n"
        + table(head, scores_table(rows, keys, WAYS[WEIGHED], more))
        + f"\n\n{order_line(rows, keys, WAYS[WEIGHED])} {gain_line(rows, keys)}"
        + "\n\n![Versions by weight](imputation-own.png)\n\n"
        "![Reliability diagrams](imputation-reliability.png)\n\nReliability in 15 bins, all trainings together; the "
        "area of a point is the share of the images in the bin. The column of bins with at least 1 % of the images "
        "was added after the first test scores of the two stages had been seen."
    )


def gain_line(rows: list[Row], keys: Sequence[str]) -> str:
    """What weighting changed against the chosen two stages, on the same images."""
    if MAIN not in keys:
        return ""
    parts = []
    for score, name in (("accuracy", "accuracy"), ("ece", "ECE")):
        changes = [WAYS[WEIGHED](row)[score] - WAYS[STAGES](row)[score] for row in of(rows, MAIN)]
        doubt = f" ± {standard_error(changes):.3f}" if len(changes) > 1 else ""
        parts.append(f"{name} by {mean(changes):+.3f}{doubt}")
    return f"Against the chosen two stages on the same images, weights change our default's {' and '.join(parts)}."


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
    way = WAYS[WEIGHED]
    best = max((mean(way(row)["accuracy"] for row in of(rows, key)), key) for key in LABELS if of(rows, key))
    told = f"{simple[1]}: accuracy {simple[0]:.3f}; best autoencoder by weighted codes on the same images: "
    told += f"{LABELS[best[1]]}, {best[0]:.3f}."
    if simple[0] <= best[0]:
        return f"The simple methods do not win: {told}"
    return f"**The simple method wins**: {told} A code of two numbers holds less of the lower half than its pixels do."


def simple_names(found: dict[str, Row]) -> list[str]:
    """References that know the task: the classifier of lower halves and the neighbours."""
    return [name for name in found if "lower halves" in name or "nearest" in name]
