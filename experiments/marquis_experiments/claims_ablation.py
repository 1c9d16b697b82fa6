"""The sections of the page of `claims` on the default: the ablation on the digits and on Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.claims_pictures import draw_ablation
from marquis_experiments.claims_tables import (
    DEFAULT,
    FIT,
    LEARNT,
    Row,
    average,
    difference,
    error,
    failures,
    gap_words,
    lines,
    log_prob,
    of,
    outliers,
    refitted,
)


def ablation_section(rows: list[Row], settings: dict[str, Any], folder: Path) -> list[str]:
    """The switches of the default."""
    draw_ablation(folder / "claims-ablation.png", rows, settings["temperatures"])
    labels = list(dict.fromkeys(row["label"] for row in rows))
    best = max((label for label in labels if of(rows, label)), key=lambda label: average(rows, label, log_prob))
    reference = "noise learnt, prior 1"
    pieces = [
        "## The ablation: noise, prior, temperature",
        "![Held-out scores against temperature](claims-ablation.png)",
        lines(rows, {**FIT, **LEARNT}),
        "Outliers, AUROC:",
        lines(rows, outliers(rows)),
        *failures(rows),
        f"**Verdict.** Best held-out likelihood with its own noise: *{best}* ({average(rows, best, log_prob):.1f} "
        "nats; the default "
        f"{average(rows, DEFAULT, log_prob):.1f}).",
    ]
    points = []
    if of(rows, f"{reference}, T = 1"):
        gap = difference(rows, DEFAULT, f"{reference}, T = 1", refitted)
        points.append(
            f"- *Temperature.* From 1 to 0.01 changes log p (refitted) by {gap_words(gap)} and the error from "
            f"{average(rows, f'{reference}, T = 1', error):.2f} to {average(rows, DEFAULT, error):.2f} (plain: "
            f"{average(rows, 'plain autoencoder', error):.2f}). A diagonal posterior ignores that the weights' errors "
            "could cancel; at temperature 1 its draws scatter far more than the data allow, and the network learns to "
            "live with that noise instead of learning the images."
        )
    if of(rows, "noise learnt, prior learnt, T = 0.01"):
        gap = difference(rows, DEFAULT, "noise learnt, prior learnt, T = 0.01", refitted)
        learnt = average(rows, "noise learnt, prior learnt, T = 0.01", lambda row: row["prior"])
        points.append(
            f"- *Prior.* The default has {gap_words(gap)} against a learnt prior, whose precision went to "
            f"{learnt:.0f}. Our reading: the fixed point γ/|μ|² counts every weight as determined whose *diagonal* "
            "curvature exceeds the prior's, which overstates γ; the larger precision shrinks the weights, and the next "
            "round starts from smaller ones. Root mean square weight "
            f"{average(rows, 'noise learnt, prior learnt, T = 0.01', lambda row: row['weight_size']):.3f} "
            f"against {average(rows, DEFAULT, lambda row: row['weight_size']):.3f}."
        )
    if of(rows, "noise 1, prior 1, T = 0.01"):
        gap = difference(rows, DEFAULT, "noise 1, prior 1, T = 0.01", log_prob)
        same = difference(rows, DEFAULT, "noise 1, prior 1, T = 0.01", refitted)
        points.append(
            f"- *Noise.* Learning it is worth {gap_words(gap)} of claimed likelihood, most of it honesty "
            "about the "
            f"pixels' scale: with the noise refitted for both, {gap_words(same)}. With unit noise the intervals "
            "hold everything "
            "(coverage 1): they say nothing."
        )
    points += against(rows)
    return [*pieces, "\n".join(points)]


def against(rows: list[Row]) -> list[str]:
    """What speaks against the default, from the numbers."""
    found = []
    colder = "noise learnt, prior 1, T = 0.001"
    if of(rows, colder):
        gap = difference(rows, colder, DEFAULT, log_prob)
        chosen = (
            "so the likelihood alone does not choose 0.01: a variance that small hardly enters log p, and less "
            "noise in "
            "training fits better"
            if gap[0] > 0
            else "so the likelihood, too, prefers 0.01"
        )
        found.append(
            f"- *Even colder.* T = 0.001 has {gap_words(gap)} against the default, {chosen}. At 0.01 the variance over "
            f"networks is {average(rows, DEFAULT, lambda row: row['output_variance']):.3f} per image beside an "
            "error of "
            f"{average(rows, DEFAULT, error):.2f}: it may rank images, but it does not explain their errors; the "
            "learnt "
            "noise does."
        )
    plain = difference(rows, "plain autoencoder", DEFAULT, refitted)
    found.append(
        f"- *The plain autoencoder*, with its noise refitted, has {gap_words(plain)} against the default."
        + (" The posterior does not improve the fit." if plain[0] > 0 else "")
    )
    columns = outliers(rows)
    pairs = {
        name: [average(rows, DEFAULT, columns[f"{name}, {score}"][0]) for score in ("output", "-log p")]
        for name in ("shuffled", "mirrored")
    }
    said = "; ".join(f"{name}: output variance {v:.2f}, -log p {d:.2f}" for name, (v, d) in pairs.items())
    found.append(
        f"- *Variances as detectors.* AUROCs of the default: {said}. A plain autoencoder has the second kind of "
        "score, too"
        + ("; on these outliers the variance does not beat it." if all(v <= d for v, d in pairs.values()) else ".")
    )
    intervals = average(rows, DEFAULT, lambda row: row["coverage"])
    words = f"- *Coverage* of the default is {intervals:.3f} for 0.9"
    parts = [row["pixel_coverage"] for row in of(rows, DEFAULT) if "pixel_coverage" in row]
    if parts:
        quiet, lively = (mean(part[name] for part in parts) for name in ("quiet", "lively"))
        words += (
            f", but not pixel by pixel: {quiet:.3f} where the training images hardly vary and {lively:.3f} where "
            "they vary "
            "most. One noise precision for all pixels is too wide for the border and too narrow for the strokes, "
            "and the "
            "two nearly cancel"
        )
    return [*found, f"{words}."]


def fashion_section(rows: list[Row], settings: dict[str, Any], folder: Path) -> list[str]:
    """The main rows on larger images."""
    columns = outliers(rows)
    labels = [label for label in dict.fromkeys(row["label"] for row in rows) if of(rows, label)]
    ahead = [label for label in labels if average(rows, label, refitted) > average(rows, DEFAULT, refitted)]
    behind = [label for label in labels if label != DEFAULT and label not in ahead]

    def listed(chosen: list[str]) -> str:
        gaps = [f"*{name}* {gap_words(difference(rows, name, DEFAULT, refitted))}" for name in chosen]
        return ", ".join(gaps) if gaps else "nothing"

    output, latent, density = (
        average(rows, DEFAULT, columns[f"mnist, {score}"][0]) for score in ("output", "latent", "-log p")
    )
    best = max(labels, key=lambda label: average(rows, label, columns["mnist, output"][0]))
    verdict = (
        f"**Verdict.** In log p (noise refitted) ahead of the default: {listed(ahead)}; behind it: "
        f"{listed(behind)}. As "
        f"detectors of MNIST digits, the default's output variance has AUROC {output:.2f}, its latent variance "
        f"{latent:.2f}, "
        f"-log p {density:.2f}; the best output variance is *{best}* with "
        f"{average(rows, best, columns['mnist, output'][0]):.2f}. "
    )
    if output < 0.5:
        verdict += (
            "Below 0.5, MNIST digits get *smaller* output variances than clothes: with this network and this little "
            "training the output variance is no detector. Why is not settled here. "
        )
    if settings["fashion_seeds"] == 1:
        verdict += "One seed: small differences mean nothing."
    return [
        "## The same on Fashion-MNIST",
        f"{settings['fashion']} images of Fashion-MNIST, dense autoencoder 784-512-256-2 and back, rate 0.001, "
        f"{settings['fashion_epochs']} epochs, {settings['fashion_seeds']} "
        f"seed{'s' * (settings['fashion_seeds'] > 1)}, "
        f"{settings['test']} test images; outliers: as many MNIST digits.",
        lines(rows, {**FIT, **LEARNT}),
        lines(rows, columns),
        *failures(rows),
        verdict,
    ]
