"""Show the results of `marquis evaluate --ood` in the report of a run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from marquis.errors import MarquisError
from marquis.io.checksum import read_json
from marquis.report.html import Page, cell

MEANINGS = {
    "error": "squared error of the reconstruction",
    "nll": "negative log-likelihood of the reconstruction",
    "output_variance": "variance of the outputs over posterior samples, summed over entries",
    "output_std": "the same with standard deviations",
    "total_variance": "output variance with the noise of the decoder",
    "latent_variance": "variance of the code over posterior samples, summed",
    "latent_std": "the same with standard deviations",
    "typicality": "distance of the error from that of training rows",
    "typicality_nll": "distance of the negative log-likelihood from that of training rows",
    "combined": "negative log-likelihood, output and latent variance, each compared with training rows",
}
"""What every score is; larger means more likely out-of-distribution."""
EXPLAINED = (
    "Every score ranks rows; larger means more likely OOD, and nothing is flipped. AUROC: the probability that an OOD "
    "row has a larger score than a held-out one (0.5 is chance, below it the score prefers OOD data). AUPR: area under "
    "the precision-recall curve with as many OOD as held-out rows. FPR95: share of held-out rows above the score that "
    "95 % of the OOD rows exceed; small is good. Do not choose a score by this table and report its AUROC from it."
)


def add_ood(page: Page, folder: Path) -> None:
    """Add a table and a figure for every OOD data set that the run was evaluated on; nothing if there is none."""
    results = {path.stem.removeprefix("ood-"): path for path in sorted(folder.glob("ood-*.json"))}
    parts = {name: result for name, path in results.items() if (result := _read(path)) is not None}
    if not parts:
        return
    page.heading("Out-of-distribution data")
    page.text(EXPLAINED, small=True)
    for number, (name, result) in enumerate(parts.items(), 1):
        held_out, ood = result["in_distribution"], result["out_of_distribution"]
        page.text(f"{name}: {ood} OOD rows against {held_out} held-out rows, {result['samples']} posterior samples.")
        rows = [
            [score, MEANINGS.get(score, ""), *(cell(float(row[key])) for key in ("auroc", "aupr", "fpr95"))]
            for score, row in result["table"].items()
        ]
        page.table(["score", "what it is", "AUROC", "AUPR", "FPR95"], rows)
        figure = results[name].with_suffix(".png")
        if figure.is_file():
            label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            caption = f"{name}: ROC curves of some scores, and their histograms on held-out and OOD rows."
            page.image(f"ood-{number}-{label}".rstrip("-"), figure.read_bytes(), caption)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the results; a damaged file is no reason to have no report."""
    try:
        result = read_json(path, unsealed=(None,))
        _ = {key: result[key] for key in ("in_distribution", "out_of_distribution", "samples")}
        _ = [float(row[key]) for row in result["table"].values() for key in ("auroc", "aupr", "fpr95")]
    except (MarquisError, ValueError, KeyError, TypeError, AttributeError) as problem:
        warnings.warn(f"the report leaves out {path}, which cannot be read ({problem})", stacklevel=3)
        return None
    return result
