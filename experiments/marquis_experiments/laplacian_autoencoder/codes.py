"""Codes of images under a model, how wide they scatter, and errors of accuracies over seeds and draws of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.autoencoders import EnsembleAutoencoder, LinearisedAutoencoder, VariationalAutoencoder
from marquis.autoencoders.base import BaseAutoencoder
from marquis.tasks.semi_supervised import embed
from marquis_experiments.common.page import table
from marquis_experiments.laplacian_autoencoder.describe import label

SAMPLES_SEED = 2000


def codes_of(
    autoencoder: BaseAutoencoder, x: Tensor, copies: int, seed: int, batch: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Compute sampled codes `[S, n, K]`, and the mean codes where they are not the mean of the samples.

    The members of an ensemble do not share a code: their codes are concatenated, one sample of `[n, 5 K]`. A
    variational and a linearised autoencoder know their means exactly. All images are one batch by default, because
    every batch samples weights again, which costs as much as a thousand images of the dense network.
    """
    source = torch.Generator().manual_seed(SAMPLES_SEED + seed)
    options: dict[str, Any] = {"generator": source, "batch_size": batch or len(x), "progress": False}
    codes = embed(autoencoder, x, copies, copies=True, **options)
    if isinstance(autoencoder, EnsembleAutoencoder):
        return codes.transpose(0, 1).flatten(1)[None], None
    knows_mean = isinstance(autoencoder, (LinearisedAutoencoder, VariationalAutoencoder))
    return codes, embed(autoencoder, x, 1, **options) if knows_mean else None


def width(codes: Tensor, means: Tensor) -> float:
    """Compute the root of (variance over samples of one image / variance of mean codes over images)."""
    if len(codes) < 2:
        return 0.0
    within = (codes.double() - means.double()).square().sum(-1).mean()
    between = means.double().var(0, correction=0).sum()
    return float((within / between).sqrt())


def scores_by_way(
    codes: Tensor, means: Tensor | None, score: Callable[[Tensor, dict[str, Any]], Any], data_copies: int | None = None
) -> dict[str, Any]:
    """Score codes in three ways: by their means, by all samples with k counting codes, and with k counting images.

    Args:
        codes: Sampled codes `[S, n, K]`; with a single sample there is only the first way.
        means: Mean codes where they are not the mean of the samples.
        score: Function of codes and options of `marquis.tasks.semi_supervised` that returns JSON values.
        data_copies: Number of samples where k counts images; all by default.
    """
    means = codes.mean(0) if means is None else means
    ways = {"mean": score(means[None], {"means": means, "count": "codes"})}
    if len(codes) > 1:
        ways["codes"] = score(codes, {"means": means, "count": "codes"})
        ways["data"] = score(codes[:data_copies], {"means": means, "count": "data"})
    return {"ways": ways, "width": width(codes, means)}


def by_name_and_seed(rows: Iterable[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the rows whose training did not fail, by name and seed."""
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        if not row["failed"]:
            by_name.setdefault(row["name"], {})[row["seed"]] = row
    return by_name


def paired(first: Mapping[int, np.ndarray], second: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Return the differences of scores of the same seeds, which are on the same labelled images."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def samples_table(
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]], columns: Sequence[str], gap: Callable[[str, str, str], str]
) -> str:
    """Return a table of what sampled codes add to mean codes, where neighbours are counted in both ways.

    Args:
        rows: Rows by name and seed.
        columns: Scores.
        gap: Function of a row's name, a score and a way ("codes" or "data") that returns a cell of the table.
    """
    body = []
    for name, seeds in rows.items():
        if all("codes" in row["ways"] for row in seeds.values()):
            cells = [gap(name, column, way) for column in columns for way in ("codes", "data")]
            body.append([label(name), f"{np.mean([row['width'] for row in seeds.values()]):.3f}", *cells])
    head = [f"{column}, k counts {way}" for column in columns for way in ("codes", "images")]
    return table(["model", "width", *head], body)


def mean_and_error(seeds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean over seeds and repetitions of `[rows, repetitions]`, and the larger of two standard errors.

    One is over the seeds' means, which are independent; with two or three of them it may come out small by chance. The
    other is over all draws of labels, as if those of one seed were independent; for a single seed it is the only one,
    and does not contain the weights. NaN for a single number.
    """
    each = np.stack(seeds)  # [seeds, rows, repetitions]
    count, repetitions = len(each), each.shape[2]
    errors = np.full((2, each.shape[1]), np.nan)
    if count > 1:
        errors[0] = each.mean(2).std(0, ddof=1) / count**0.5
    if repetitions > 1:
        errors[1] = (each.var(2, ddof=1).mean(0) / (count * repetitions)) ** 0.5
    return each.mean((0, 2)), np.fmax(*errors)


def points(mean: float, error: float, sign: bool = False) -> str:
    """Return a share or a difference of shares in per cent, with its standard error."""
    text = f"{100 * mean:+.1f}" if sign else f"{100 * mean:.1f}"
    return text if np.isnan(error) else f"{text} ± {100 * error:.1f}"


def exceeds(mean: float, error: float) -> bool:
    """Return whether a difference is positive by more than two standard errors."""
    return bool(mean > 2 * error)
