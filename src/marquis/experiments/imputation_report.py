"""The page of `imputation`, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from marquis.experiments.hessians_report import data_name, describe_data
from marquis.experiments.imputation_pictures import LABELS, draw_reliability
from marquis.experiments.imputation_procedures import PUBLISHED
from marquis.experiments.pages import command, table, write_page

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
MAIN = "online-sketched"
SCORES = ("accuracy", "ece", "mce", "rmsce")
HEAD = ["accuracy", "ECE", "MCE", "RMSCE"]
Row = dict[str, Any]
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


def of(rows: list[Row], key: str) -> list[Row]:
    """Seeds of one model."""
    return [row for row in rows if row["key"] == key]


def shown(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error over seeds."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{error}"


def label(key: str) -> str:
    """The row of our default in bold."""
    return f"**{LABELS[key]}**" if key == MAIN else LABELS[key]


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
    return [[label(key), *(shown([way(r)[s] for r in of(rows, key)]) for s in SCORES), *more(key)] for key in keys]


def published(rows: list[Row], keys: Sequence[str]) -> str:
    """Table 3."""

    def more(key: str) -> list[str]:
        numbers = [shown([row["published"]["errors"][n] for row in of(rows, key)], 1) for n in ERRORS_C]
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
    put_back = scores_table(rows, keys, WAYS["published, given half put back"], lambda key: [])
    best = scores_table(rows, keys, WAYS["own, given half put back"], lambda key: [chosen[key] or "–"])
    return (
        "## Ours\n\nThe second stage reconstructs the given half too, although it is known. The same versions with the "
        "given half put back before the classifier reads them:\n\n"
        + table(["model", *HEAD], put_back)
        + "\n\nAnd with the procedure chosen for each model on validation images (start, versions × networks averaged, "
        "rounds):\n\n"
        + table(["model", *HEAD, "procedure"], best)
        + "\n\n![Versions by our own procedure](imputation-own.png)\n\n"
        "![Reliability diagrams](imputation-reliability.png)\n\nReliability in 15 bins, all trainings together; the "
        "area of a point is the share of the images in the bin. MCE is the worst bin however few images it holds, and "
        "the noisiest of the scores."
    )


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


def errors(rows: list[Row], keys: Sequence[str]) -> str:
    """Squared errors against the original."""
    if not keys:
        return ""
    names = ("all_of_mean", "all", "missing_of_mean", "missing")
    lines = []
    for key in keys:
        for way, word in (("published", "published"), ("own", "own")):
            found = [row[way] for row in of(rows, key)]
            numbers = [shown([one["errors"][name] for one in found], 1) for name in names]
            lines.append([label(key), word, *numbers, shown([one["coverage"] for one in found], 2)])
    head = ["model", "procedure", "MSE (a)", "-log p (a)", "MSE (b)", "-log p (b)", "90 % intervals hold"]
    return (
        "## Errors against the original\n\nSquared error summed over (a) all pixels, (b) the missing ones, against the "
        "original image, before the given half is put back: MSE of the mean version, and -log p as the paper defines "
        "it, the error averaged over the versions. Intervals: of the total variance of missing pixels (between "
        "versions, within them, noise); models whose noise is fixed at one hold nearly everything.\n\n"
        + table(head, lines)
    )


def why(rows: list[Row], keys: Sequence[str]) -> str:
    """What limits accuracy and calibration: the code, and versions that agree."""
    if not keys:
        return ""
    lines = []
    for key in keys:
        found = of(rows, key)
        lines.append(
            [
                label(key),
                shown([row["complete"]["accuracy"] for row in found]),
                shown([row["complete"]["error"] for row in found], 1),
                *(shown([row[way]["spread"] for row in found]) for way in ("published", "own")),
                *(shown([row[way]["put_back"]["several_classes"] for row in found]) for way in ("published", "own")),
            ]
        )
    head = ["model", "accuracy on reconstructions of complete images", "their error"]
    head += ["spread, published", "spread, own", "several classes, published", "several classes, own"]
    return (
        "## What limits the rows\n\nNothing that is read off a reconstruction can be better than what is read off the "
        "reconstruction of the *complete* image: the code has two numbers. Putting the given half back is what passes "
        "that ceiling. *Spread* is the standard deviation over versions, averaged over missing pixels; *several "
        "classes* is the share of images whose versions are not all read as the same digit, which is what honest "
        "doubt between a 3 and a 5 takes.\n\n" + table(head, lines) + "\n\n" + spread_verdict(rows, keys)
    )


def spread_verdict(rows: list[Row], keys: Sequence[str]) -> str:
    """Whether the versions of our default differ, and where the differences come from."""
    if MAIN not in keys:
        return ""
    found = of(rows, MAIN)
    before, after = (mean(row[way]["put_back"]["several_classes"] for row in found) for way in ("published", "own"))
    wrong = 1 - mean(row["published"]["put_back"]["accuracy"] for row in found)
    agree = (
        f"By the published procedure {before:.0%} of the images have versions of several classes with our default, "
        f"while {wrong:.0%} are read wrongly: "
    )
    agree += "the networks agree too much to show the doubt." if before < wrong else "enough to show the doubt."
    return (
        f"{agree} By its own procedure it is {after:.0%}. Starting every version from another training image makes "
        "versions differ whatever the model, a plain autoencoder included: that part of the doubt comes from the "
        "starting points, not from the weights."
    )


def choice(results: dict[str, Any]) -> str:
    """All procedures on validation images."""
    found = [one for one in results["validation"] if one["procedures"]]
    if not found:
        return ""
    lines = []
    for name in results["options"]:
        cells = []
        for one in found:
            scores = one["procedures"][name]["put_back"]
            text = f"{scores['nll']:.2f} ({scores['accuracy']:.2f}, {scores['ece']:.2f})"
            cells.append(f"**{text}**" if results["chosen"].get(one["key"]) == name else text)
        lines.append([name + (" (published)" if name == PUBLISHED.name else ""), *cells])
    return (
        f"## The choice on {results['settings']['validation']:,} validation images\n\nNegative log-likelihood of the "
        "true class (accuracy, ECE), given half put back, first training of every model; the chosen one in bold.\n\n"
        + table(["procedure", *(LABELS[one["key"]] for one in found)], lines)
        + "\n\nThe same for reconstructions as they are, as the paper reads them:\n\n"
        + table(
            ["procedure", *(LABELS[one["key"]] for one in found)],
            [
                [
                    name,
                    *(
                        "{nll:.2f} ({accuracy:.2f}, {ece:.2f})".format(**one["procedures"][name]["reconstructions"])
                        for one in found
                    ),
                ]
                for name in results["options"]
            ],
        )
    )


def generation(rows: list[Row], results: dict[str, Any]) -> str:
    """Everything hidden."""
    keys = [key for key in results["settings"]["keys"] if of(rows, key)]
    if not keys:
        return ""
    rounds = [str(number) for number in results["settings"]["rounds"]]
    lines = []
    for key in keys:
        cells = []
        for number in rounds:
            found = [row["generated"][number] for row in of(rows, key)]
            cells += [
                shown([one[name] for one in found], 2) for name in ("entropy_bits", "confidence", "several_classes")
            ]
        lines.append([label(key), *cells])
    head = ["model"]
    for number in rounds:
        head += [f"entropy of classes, {number} rounds (bits)", "confidence", "several classes"]
    return (
        f"## Everything hidden\n\n{results['settings']['generated']} images of noise, 5 versions each, by the same "
        "procedure with nothing to put back. Entropy of the classes that the classifier reads (all ten equally often: "
        "3.32 bits; one only: 0), its mean confidence, and the share of starts whose versions are of several classes."
        "\n\n"
        + table(head, lines)
        + "\n\n![From noise](imputation-generated.png)\n\nTwo starts, five versions of each; "
        f"left {rounds[0]}, right {rounds[-1]} rounds. " + generation_verdict(rows, rounds[-1])
    )


def generation_verdict(rows: list[Row], rounds: str) -> str:
    """Whether our default generates many classes, and how the others compare."""
    found = {
        key: mean(row["generated"][rounds]["entropy_bits"] for row in of(rows, key)) for key in LABELS if of(rows, key)
    }
    if MAIN not in found:
        return ""
    most = max(found, key=lambda key: found[key])
    claim = "many classes" if found[MAIN] > 2 else "few classes: repeating pulls all starts to the same few digits"
    return (
        f"After {rounds} rounds our default draws {claim} ({found[MAIN]:.2f} bits); the most varied is "
        f"{LABELS[most]} ({found[most]:.2f} bits), which says nothing about whether its pictures are digits."
    )


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
