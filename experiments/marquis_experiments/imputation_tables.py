"""Tables of the page of `imputation` beyond the scores of the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.hessians_report import data_name
from marquis_experiments.imputation_pictures import LABELS, pooled
from marquis_experiments.imputation_procedures import PUBLISHED, WEIGHTED
from marquis_experiments.pages import table, with_error

MAIN = "online-sketched"
WORDS = {"published": "published", "own": "two stages", "weighted": "weighted"}
"""What was done, as tables say it."""
Row = dict[str, Any]


def of(rows: list[Row], key: str) -> list[Row]:
    """Seeds of one model."""
    return [row for row in rows if row["key"] == key]


def mce_of_filled_bins(bins: dict[str, Any], least: float = 0.01) -> float:
    """The worst bin among those that hold at least this share of the images: a bin of one image says little."""
    enough = least * sum(bins["count"])
    held = zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
    return max(abs(right - sure) for count, sure, right in held if count and count >= enough)


def mce_by_luck(bins: dict[str, Any], draws: int = 2000) -> float:
    """Expected MCE of a reader whose confidences are exactly right: what few images in a bin make of nothing.

    As many images per bin, each right with the mean confidence of its bin; mean of the worst gap over seeded draws.
    """
    held = [(count, sure) for count, sure in zip(bins["count"], bins["confidence"], strict=True) if count]
    counts, sure = (np.array(values) for values in zip(*held, strict=True))
    right = np.random.default_rng(0).binomial(counts, np.clip(sure, 0, 1), (draws, len(counts))) / counts
    return float(np.abs(right - sure).max(1).mean())


def mce_of_all(bins: Sequence[dict[str, Any]]) -> float:
    """The worst bin with the images of all trainings together."""
    confidence, accuracy, _ = pooled(bins)
    return max(abs(right - sure) for sure, right in zip(confidence, accuracy, strict=True))


def label(key: str) -> str:
    """The row of our default in bold."""
    return f"**{LABELS[key]}**" if key == MAIN else LABELS[key]


def errors(rows: list[Row], keys: Sequence[str]) -> str:
    """Squared errors against the original."""
    if not keys:
        return ""
    names = ("all_of_mean", "all", "missing_of_mean", "missing")
    lines = []
    for key in keys:
        for way, word in WORDS.items():
            found = [row[way] for row in of(rows, key)]
            numbers = [with_error([one["errors"][name] for one in found], 1) for name in names]
            lines.append([label(key), word, *numbers, with_error([one["coverage"] for one in found], 2)])
    head = ["model", "procedure", "MSE (a)", "-log p (a)", "MSE (b)", "-log p (b)", "90 % intervals hold"]
    return (
        "## Errors against the original\n\nSquared error summed over (a) all pixels, (b) the missing ones, against the "
        "original image, before the given half is put back: MSE of the mean version, and -log p as the paper defines "
        "it, the error averaged over the versions. Intervals: of the total variance of missing pixels (between "
        "versions, within them, noise); models whose noise is fixed at one hold nearly everything. Weighted codes of "
        "some models are measured on more images.\n\n" + table(head, lines)
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
                with_error([row["complete"]["accuracy"] for row in found]),
                with_error([row["complete"]["error"] for row in found], 1),
                *(with_error([row[way]["spread"] for row in found]) for way in WORDS),
                *(with_error([row[way]["put_back"]["several_classes"] for row in found]) for way in WORDS),
            ]
        )
    head = ["model", "accuracy on reconstructions of complete images", "their error"]
    head += [f"{what}, {word}" for what in ("spread", "several classes") for word in WORDS.values()]
    return (
        "## What limits the rows\n\nWhat is read off a reconstruction is hardly better than what is read off the "
        "reconstruction of the *complete* image, whose code has two numbers. Putting the given half back is a way past "
        "that ceiling. *Spread* is the standard deviation over versions, averaged over missing pixels; *several "
        "classes* is the share of images whose versions are not all read as the same digit, which is what honest "
        "doubt between a 3 and a 5 takes.\n\n" + table(head, lines) + "\n\n" + spread_verdict(rows, keys)
    )


def spread_verdict(rows: list[Row], keys: Sequence[str]) -> str:
    """Whether the versions of our default differ, and where the differences come from."""
    if MAIN not in keys:
        return ""
    found = of(rows, MAIN)
    before, after, last = (mean(row[way]["put_back"]["several_classes"] for row in found) for way in WORDS)
    wrong = 1 - mean(row["published"]["put_back"]["accuracy"] for row in found)
    agree = (
        f"By the published procedure {before:.0%} of the images have versions of several classes with our default, "
        f"while {wrong:.0%} are read wrongly: "
    )
    agree += "the networks agree too much to show the doubt." if before < wrong else "enough to show the doubt."
    return (
        f"{agree} From better starts it is {after:.0%}, by weight {last:.0%} (of more versions). Both make versions "
        "differ whatever the model, a plain autoencoder included: that part of the doubt comes from the training "
        "images, not from uncertain weights of the network."
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
            cells.append(f"**{text}**" if name in results["chosen"].get(one["key"], {}).values() else text)
        lines.append([name + (" (published)" if name == PUBLISHED.name else ""), *cells])
    return (
        f"## The choice on {results['settings']['validation']:,} validation images\n\nNegative log-likelihood of the "
        "true class (accuracy, ECE), given half put back, first training of every model; the chosen ones in bold, one "
        "of the two stages and one of weighted codes.\n\n"
        + table(["procedure", *(LABELS[one["key"]] for one in found)], lines)
        + "\n\nThe same for reconstructions of the two stages as they are, as the paper reads them:\n\n"
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
                if "reconstructions" in found[0]["procedures"][name]
            ],
        )
    )


def generation(rows: list[Row], results: dict[str, Any]) -> str:
    """Everything hidden."""
    keys = [key for key in results["settings"]["keys"] if of(rows, key)]
    if not keys:
        return ""
    rounds = [str(number) for number in results["settings"]["rounds"]]
    ways = {number: f"{number} round{'s' * (number != '1')}" for number in rounds} | {WEIGHTED: "codes"}
    lines = []
    for key in keys:
        cells = []
        for number in ways:
            found = [row["generated"][number] for row in of(rows, key)]
            cells += [
                with_error([one[name] for one in found], 2)
                for name in ("entropy_bits", "confidence", "several_classes")
            ]
        lines.append([label(key), *cells])
    head = ["model"]
    for word in ways.values():
        head += [f"entropy of classes (bits), {word}", "confidence", "several classes"]
    return (
        f"## Everything hidden\n\n{results['settings']['generated']} images from nothing, 5 versions each: by the two "
        "stages from noise with nothing to put back, and by codes of training images, which weigh the same where "
        "nothing was observed (*codes*: what the model says about training images). Entropy of the classes that the "
        "classifier reads (all ten equally often: 3.32 bits; one only: 0), its mean confidence, and the share of "
        "starts whose versions are of several classes.\n\n"
        + table(head, lines)
        + "\n\n![From nothing](imputation-generated.png)\n\nTwo starts, three versions of each. "
        + generation_verdict(rows, rounds[-1])
    )


def generation_verdict(rows: list[Row], rounds: str) -> str:
    """Whether our default generates many classes, and how the others compare."""
    found = {
        key: mean(row["generated"][rounds]["entropy_bits"] for row in of(rows, key)) for key in LABELS if of(rows, key)
    }
    if MAIN not in found:
        return ""
    most = max(found, key=lambda key: found[key])
    codes = mean(row["generated"][WEIGHTED]["entropy_bits"] for row in of(rows, MAIN))
    claim = "many classes" if found[MAIN] > 2 else "few classes: repeating pulls all starts to the same few digits"
    return (
        f"After {rounds} rounds our default draws {claim} ({found[MAIN]:.2f} bits); the most varied is "
        f"{LABELS[most]} ({found[most]:.2f} bits), which says nothing about whether its pictures are digits. "
        f"From codes of training images our default has {codes:.2f} bits."
    )


def fewer(results: dict[str, Any]) -> str:
    """Which models have fewer trainings than planned so far."""
    counts = {key: len(of(results["rows"], key)) for key in results["settings"]["keys"]}
    short = [f"{LABELS[key]}: {count}" for key, count in counts.items() if count < results["settings"]["seeds"]]
    return f" (so far fewer: {'; '.join(short)})" if short else ""


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
            f"55,000 with early stopping), {settings['test']:,} test images for the two stages (paper: 5,000 "
            "validation images). "
            f"`--full` has not been run here. {data_name(recipe)} only, one classifier."
        )
    if left:
        names = ", ".join(f"{LABELS[key]} ({seed})" for key, seed in sorted(left))
        lines.append(f"**Not complete.** Not run yet: {names}. The same command goes on from here.")
    if failed:
        lines.append("Trainings that failed:\n\n" + "\n".join(failed))
    return "\n\n".join(lines)
