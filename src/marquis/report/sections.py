"""Write the sections that the report on one model and the comparison of several have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from marquis.report.examples import MOST_COLUMNS, MOST_POINTS, choose, image_figure, is_image, table_figure
from marquis.report.figures import History, series, training_curves, variance_figure, widths_figure
from marquis.report.html import Page, cell
from marquis.report.latent_map import latent_figure
from marquis.report.study import Study

MEASURES = (
    "Log-likelihood: of a held-out sample under its reconstruction, averaged over posterior samples within the "
    "logarithm; the encoder has seen the sample, so it is no density of data. Squared error: of the mean, summed over "
    "the entries of a sample. Coverage: the share of entries in the central 90 % interval of a new observation; a "
    "calibrated model has 90 %. Variances: over posterior samples, averaged over the entries; zero for a single "
    "network. AUROC: the probability that an OOD sample has a larger variance (or error) than a held-out one; chance "
    "level 0.5."
)


def shown_rows(shape: Sequence[int], labels: Tensor | None, count: int) -> Tensor:
    """Return which rows become examples: ten images, or enough rows of a table for its panels."""
    return choose(labels, count) if is_image(shape) else torch.arange(min(MOST_POINTS, count))


def add_table(page: Page, studies: Mapping[str, Study]) -> None:
    """Add a table with the numbers of all models."""
    names = list(dict.fromkeys(name for result in studies.values() for name in result.numbers))
    rows = [[name, *(cell(result.numbers.get(name)) for result in studies.values())] for name in names]
    page.table(["", *studies], rows)
    page.text(MEASURES, small=True)


def add_map(page: Page, studies: Mapping[str, Study], labels: Tensor | None, classes: Sequence[str] | None) -> None:
    """Add a map of the codes in two dimensions."""
    page.heading("Latent map")
    size = next(iter(studies.values())).codes.shape[1]
    where = {
        1: "The code is one number, from left to right; the vertical position has no meaning. ",
        2: "",
    }.get(
        size, f"The code has {size} numbers: shown are its first two principal axes, and the plane through its mean. "
    )
    page.figure(
        "latent",
        latent_figure({name: result.map for name, result in studies.items()}, labels, classes),
        f"Codes of held-out data over a map of the decoder's standard deviation (root of the mean variance of the "
        f"outputs), dark where it is large. {where}Every map has its own scale.",
    )


def add_examples(
    page: Page, studies: Mapping[str, Study], originals: Tensor, names: Sequence[str] | None = None, units: str = ""
) -> None:
    """Add originals beside the reconstructions of every model."""
    page.heading("Reconstructions")
    examples = {name: result.examples for name, result in studies.items()}
    if is_image(originals.shape[1:]):
        page.figure(
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
    page.figure(
        "reconstructions",
        figure,
        f"Reconstruction against original{units}, with two standard deviations of a new observation; the line is a "
        f"perfect reconstruction.{worst}",
    )


def add_variances(page: Page, studies: Mapping[str, Study]) -> None:
    """Add histograms of variances; models without variance are named instead."""
    page.heading("Variances")
    uncertain = {name: result for name, result in studies.items() if result.samples > 1}
    certain = [name for name in studies if name not in uncertain]
    if certain:
        page.text(f"{', '.join(certain)}: a single network, without variance.")
    if uncertain:
        page.figure(
            "variances",
            variance_figure({name: result.variances for name, result in uncertain.items()}),
            "Variance over posterior samples, averaged over the entries of a sample.",
        )


def add_widths(page: Page, studies: Mapping[str, Study]) -> None:
    """Add the posteriors' standard deviations, where there are posteriors."""
    widths = {name: result.widths for name, result in studies.items() if result.widths}
    if widths:
        page.heading("Posterior")
        page.figure(
            "posterior",
            widths_figure(widths),
            "Standard deviations of the weights, parameter by parameter: box for the quartiles, line for the median, "
            "whiskers from the 1 % to the 99 % quantile.",
        )


def add_training(page: Page, histories: Mapping[str, History]) -> None:
    """Add training curves, where there was a training."""
    trained = {name: rows for name, rows in histories.items() if series(rows, "train_loss")[0]}
    if trained:
        page.heading("Training")
        page.figure(
            "training",
            training_curves(trained),
            "Loss per sample by epoch, and learnt hyperparameters. The validation loss is the expected negative "
            "log-likelihood over ten posterior samples; the training loss may contain more (a prior, a bound).",
        )
