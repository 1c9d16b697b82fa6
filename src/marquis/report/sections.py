"""The parts of a page that reports on one model and pages that compare several have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from marquis.report.curves import History, series, training_curves
from marquis.report.examples import MOST_COLUMNS, MOST_POINTS, choose, image_figure, is_image, table_figure
from marquis.report.histograms import variance_figure
from marquis.report.html import Page, cell
from marquis.report.latent_map import latent_figure
from marquis.report.study import Study
from marquis.report.widths import widths_figure

MEASURES = (
    "log p: log-likelihood of a held-out datum under its own reconstruction, averaged over the draws of the model "
    "inside the logarithm; the encoder has seen the datum, so it is no density of data. Squared error: of the mean, "
    "summed over the entries of a datum. Coverage: the share of entries inside the central 90 % interval of a new "
    "observation; honest is 90 %. Variances: over the draws of the model, averaged over the entries; zero for a single "
    "network. AUROC: the chance that a datum from elsewhere has a larger variance (or error) than a held-out one; "
    "guessing has 0.5."
)


def shown_rows(shape: Sequence[int], labels: Tensor | None, count: int) -> Tensor:
    """Which data become examples: ten images, or enough rows of a table for its panels."""
    return choose(labels, count) if is_image(shape) else torch.arange(min(MOST_POINTS, count))


def add_table(page: Page, studies: Mapping[str, Study]) -> None:
    """The numbers of all models."""
    names = list(dict.fromkeys(name for found in studies.values() for name in found.numbers))
    rows = [[name, *(cell(found.numbers.get(name)) for found in studies.values())] for name in names]
    page.table(["", *studies], rows)
    page.text(MEASURES, small=True)


def add_map(page: Page, studies: Mapping[str, Study], labels: Tensor | None, classes: Sequence[str] | None) -> None:
    """The code in two dimensions."""
    page.heading("Code")
    size = next(iter(studies.values())).codes.shape[1]
    where = {
        1: "The code is one number, from left to right; the vertical position means nothing. ",
        2: "",
    }.get(
        size, f"The code has {size} numbers: shown are its first two principal axes, and the plane through its mean. "
    )
    page.picture(
        "latent",
        latent_figure({name: found.map for name, found in studies.items()}, labels, classes),
        f"Codes of held-out data over a map of the decoder's standard deviation (root of the mean variance of the "
        f"outputs), dark where it is large. {where}Every map has a scale of its own.",
    )


def add_examples(
    page: Page, studies: Mapping[str, Study], originals: Tensor, names: Sequence[str] | None = None, units: str = ""
) -> None:
    """Reconstructions."""
    page.heading("Reconstructions")
    examples = {name: found.examples for name, found in studies.items()}
    if is_image(originals.shape[1:]):
        page.picture(
            "reconstructions",
            image_figure(originals, examples),
            "Held-out data, their reconstructions and the standard deviation of every pixel, bright where it is large. "
            "Left out: standard deviations that are zero or the same for all pixels.",
        )
        return
    figure, columns = table_figure(originals, examples, names)
    worst = (
        f" Of {columns} columns, the {MOST_COLUMNS} with the largest relative error." if columns > MOST_COLUMNS else ""
    )
    page.picture(
        "reconstructions",
        figure,
        f"Reconstruction against original{units}, with two standard deviations of a new observation; the line is a "
        f"perfect reconstruction.{worst}",
    )


def add_variances(page: Page, studies: Mapping[str, Study]) -> None:
    """Histograms of variances; models without any are named instead."""
    page.heading("Variances")
    uncertain = {name: found for name, found in studies.items() if found.draws > 1}
    certain = [name for name in studies if name not in uncertain]
    if certain:
        page.text(f"{', '.join(certain)}: a single network, without variance.")
    if uncertain:
        page.picture(
            "variances",
            variance_figure({name: found.variances for name, found in uncertain.items()}),
            "Variance over the draws of the model, averaged over the entries of a datum.",
        )


def add_widths(page: Page, studies: Mapping[str, Study]) -> None:
    """The posteriors' standard deviations, where there are posteriors."""
    widths = {name: found.widths for name, found in studies.items() if found.widths}
    if widths:
        page.heading("Posterior")
        page.picture(
            "posterior",
            widths_figure(widths),
            "Standard deviations of the weights, parameter by parameter: box for the quartiles, line for the median, "
            "whiskers from the 1 % to the 99 % quantile.",
        )


def add_training(page: Page, histories: Mapping[str, History]) -> None:
    """Training curves, where there was a training."""
    drawn = {name: rows for name, rows in histories.items() if series(rows, "train_loss")[0]}
    if drawn:
        page.heading("Training")
        page.picture(
            "training",
            training_curves(drawn),
            "Loss per datum by epoch, and what was learnt besides the weights. The validation loss is the expected "
            "negative log-likelihood over ten draws; the training loss may contain more (a prior, a bound).",
        )
