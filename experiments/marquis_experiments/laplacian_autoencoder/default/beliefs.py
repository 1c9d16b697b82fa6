"""What was believed about the default before the study, beside its numbers: four statements of earlier pilots."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import with_error
from marquis_experiments.laplacian_autoencoder.default.candidates import PRESENT

POSTHOC = "post-hoc, kronecker, linearised at T=1, noise one"
COLDER = "post-hoc, kronecker, linearised at T=0.1, noise one"
NEAR = ("kmnist", "rotated")
"""Outliers that are near to digits."""
KINDS = {"output_variance": "output variance", "latent_variance": "latent variance", "mean_rank": "all scores together"}
DEARER = 0.6
"""By what share more error online Kronecker curvature was believed to cost."""
TEMPERATURES = ("0.01", "0.1", "1")


def areas(results: dict[str, Any], name: str, score: str, near_digits: bool = False) -> dict[tuple[str, int], float]:
    """Return a candidate's AUROC, averaged over outlier sets, by data set and seed; or against `NEAR` alone."""
    found = {}
    for row in results["opened"]:
        if name in row["scores"] and (not near_digits or row["data"] == "mnist"):
            by_set = row["scores"][name]["auroc"]
            chosen = [by_set[outliers][score] for outliers in (NEAR if near_digits else by_set)]
            found[row["data"], row["seed"]] = mean(chosen)
    return found


def gains(results: dict[str, Any], name: str, other: str, near_digits: bool = False) -> dict[str, list[float]]:
    """Return the paired differences in AUROC of two candidates by every kind of score."""
    pairs = {kind: [areas(results, one, kind, near_digits) for one in (name, other)] for kind in KINDS}
    return {kind: [ours[key] - theirs[key] for key in ours] for kind, (ours, theirs) in pairs.items()}


def first_scores(results: dict[str, Any], training: str, name: str) -> list[dict[str, Any]]:
    """Return a candidate's scores with the first seed, one data set after the other."""
    rows = [row for row in results["rows"] if row["seed"] == 0 and row["training"] == training]
    return [row["scores"][name] for data in results["settings"]["data"] for row in rows if row["data"] == data]


def below(differences: Sequence[float]) -> bool:
    """Return whether a mean is negative by more than two standard errors."""
    return mean(differences) < -2 * standard_error(differences)


def outcome(*holds: bool) -> str:
    """Return what became of a statement."""
    return "confirmed" if all(holds) else "in part" if any(holds) else "refuted"


def beliefs(results: dict[str, Any]) -> list[dict[str, str]]:
    """Return every statement with what was measured and its outcome; the sets must be open."""
    overall, near = gains(results, POSTHOC, PRESENT.name), gains(results, POSTHOC, PRESENT.name, near_digits=True)
    warmer = gains(results, POSTHOC, COLDER)
    plain = [scores["error"] for scores in first_scores(results, "plain-one", POSTHOC)]
    dearer = {
        t: [
            scores["error"] / error - 1
            for scores, error in zip(
                first_scores(results, f"online-kronecker-{t}-one", factored(t)), plain, strict=True
            )
        ]
        for t in TEMPERATURES
    }
    densities = {t: first_scores(results, f"online-diagonal-{t}-one", diagonal(t)) for t in TEMPERATURES}
    density = {t: [scores["density"] for scores in each] for t, each in densities.items()}
    error = max(scores["density_error"] for each in densities.values() for scores in each)
    spread = [max(each) - min(each) for each in zip(*density.values(), strict=True)]
    return [
        {
            "belief": "post-hoc Kronecker curvature, linearised, ties with training online, and needs no temperature",
            "measured": f"AUROC on the opened sets minus the present default's: {texts(overall)}; "
            f"T = 1 minus T = 0.1: {mean(warmer['mean_rank']):.4f}",
            "outcome": outcome(not any(map(below, overall.values())), abs(mean(warmer["mean_rank"])) < 0.01),
        },
        {
            "belief": "trained on digits, against near outliers (KMNIST, rotated), the order is the other way",
            "measured": f"the same difference: {texts(near)}",
            "outcome": outcome(*map(below, near.values())),
        },
        {
            "belief": "online Kronecker curvature costs 60 % more error (8x8 digits)",
            "measured": "; ".join(
                f"T = {t}: {', '.join(f'{100 * share:+.0f} %' for share in shares)}" for t, shares in dearer.items()
            ),
            "outcome": outcome(*(min(shares) >= DEARER for shares in dearer.values())),
        },
        {
            "belief": "held-out likelihood with noise per output does not choose a temperature",
            "measured": f"online, T = {', '.join(TEMPERATURES)}: "
            + "; ".join(", ".join(f"{value:.0f}" for value in each) for each in zip(*density.values(), strict=True))
            + f" nats (± {error:.0f})",
            "outcome": outcome(*(gap < 2 * error for gap in spread)),
        },
    ]


def factored(temperature: str) -> str:
    """Return the name of the candidate trained online with Kronecker curvature, evaluated as it was trained."""
    return f"online T={temperature}, training, kronecker, sampled at T={temperature}, noise one"


def diagonal(temperature: str) -> str:
    """Return the name of the candidate trained online with diagonal curvature, evaluated as it was trained."""
    return f"online T={temperature}, training, diagonal, sampled at T={temperature}, noise one"


def texts(differences: dict[str, list[float]]) -> str:
    """Return differences by kind of score, with their errors."""
    return ", ".join(f"{KINDS[kind]} {with_error(each)}" for kind, each in differences.items())
