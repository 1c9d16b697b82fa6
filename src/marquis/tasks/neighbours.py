"""Classify codes by k nearest neighbours, with k chosen by cross-validation that keeps copies of a sample together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marquis.arguments import checked_arrays
from marquis.errors import DataError
from marquis.randomness import permutation
from marquis.tasks.batches import as_tensor

CANDIDATES = tuple(range(1, 11))
FOLDS = 2

VOTES = 2**22
"""Votes that are counted at a time: `queries x neighbours x labels x classes`, 8 bytes each."""


@checked_arrays
def predict(codes: Tensor, labels: Tensor, queries: Tensor, ks: Sequence[int]) -> Tensor:
    """Classify by majority vote of the k nearest codes, for several k at once, `[len(ks), m]` or `[len(ks), m, A]`.

    Ties go to the smallest class, as in scikit-learn. The neighbours are searched once. With several labels per code
    each is voted on by itself.

    Args:
        codes: `[n, K]`.
        labels: Integers from 0, `[n]`, or `[n, A]` for A labels each.
        queries: `[m, K]`.
        ks: Numbers of neighbours, each at most n.
    """
    from sklearn.neighbors import NearestNeighbors

    codes, labels, queries = as_tensor(codes, "codes"), as_tensor(labels, "labels"), as_tensor(queries, "queries")
    _check(codes, labels)
    if not ks or min(ks) < 1 or max(ks) > len(codes):
        raise DataError(f"k must lie between 1 and the number of labelled codes, {len(codes)}; got {list(ks)}.")
    search = NearestNeighbors(n_neighbors=max(ks)).fit(_array(codes))
    near = torch.from_numpy(search.kneighbors(_array(queries), return_distance=False))
    labels = labels.cpu().long()
    classes = int(labels.max()) + 1
    rows = max(1, VOTES // (max(ks) * labels[0].numel() * classes))
    return torch.cat([_vote(labels, part, ks, classes) for part in near.split(rows)], 1)


def _vote(labels: Tensor, near: Tensor, ks: Sequence[int], classes: int) -> Tensor:
    """Return the majority classes for queries with neighbours `near [m, max(ks)]`, nearest first."""
    votes, predictions, counted = torch.zeros(0), {}, 0
    for k in sorted(set(ks)):
        fresh = torch.nn.functional.one_hot(labels[near[:, counted:k]], classes).sum(1)
        votes = votes + fresh if counted else fresh
        predictions[k], counted = votes.argmax(-1), k  # the first of equals: the smallest class
    return torch.stack([predictions[k] for k in ks])


def grouped_folds(labels: Tensor, folds: int, generator: torch.Generator | None = None) -> Tensor:
    """Return the fold of each *sample* (not copy), `[n]`; classes are spread evenly over the folds.

    Args:
        labels: `[n]`, or `[n, A]`, in which case there is no class to spread.
        folds: Number of folds, at most n.
        generator: Source of the order.
    """
    labels = as_tensor(labels, "labels")
    n = len(labels)
    if not 2 <= folds <= n:
        raise DataError(f"{folds} folds of {n} data: there must be at least two folds and a sample for each.")
    order = permutation(n, generator)
    if labels.dim() == 1:  # dealt out class by class, like cards
        order = order[labels.cpu()[order].argsort(stable=True)]
    fold = torch.empty(n, dtype=torch.long)
    fold[order] = torch.arange(n) % folds
    return fold


@checked_arrays
def choose_k(
    copies: Tensor,
    labels: Tensor,
    *,
    candidates: Sequence[int] = CANDIDATES,
    folds: int = FOLDS,
    at: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> int:
    """Return the k with the best cross-validated accuracy, the smallest of equals.

    All copies of a sample are in one fold: a copy in the other would find its twin, and k = 1 would always win.

    Args:
        copies: Codes of each labelled sample `[S, n, K]`.
        labels: `[n]` or `[n, A]`.
        candidates: The k to choose from; those that exceed the codes of the smallest training fold are left out.
        folds: Number of folds.
        at: Codes `[n, K]` at which held-out data are classified, such as their means; by default all their copies.
        generator: Source of the folds.
    """
    right = cross_validated(copies, labels, grouped_folds(labels, folds, generator), candidates=candidates, at=at)
    return max(right, key=lambda k: (right[k], -k))


def cross_validated(
    copies: Tensor,
    labels: Tensor,
    fold: Tensor,
    *,
    candidates: Sequence[int] = CANDIDATES,
    at: Tensor | None = None,
) -> dict[int, float]:
    """Count the held-out codes that get the right label, for each k that every training fold can have.

    `fold` is the fold of each sample, `[n]`, from 0; the other arguments are those of `choose_k`.
    """
    copies, labels, fold = as_tensor(copies, "copies"), as_tensor(labels, "labels"), as_tensor(fold, "fold")
    at = None if at is None else as_tensor(at, "at")
    if at is not None and at.shape != copies.shape[1:]:
        raise DataError(f"at must be [n, K] for copies [S, n, K]; got {list(at.shape)}, {list(copies.shape)}.")
    queries = copies if at is None else at[None]
    parts = range(int(fold.max()) + 1)
    smallest = min(int((fold != part).sum()) for part in parts) * len(copies)
    ks = [k for k in candidates if 1 <= k <= smallest]
    if not ks:
        raise DataError(
            f"none of the candidates {list(candidates)} lies between 1 and {smallest}, the codes of a fold."
        )
    right = torch.zeros(len(ks), dtype=torch.float64)
    for part in parts:
        held_out = fold == part
        predictions = predict(
            *labelled_copies(copies[:, ~held_out], labels[~held_out.to(labels.device)]),
            queries[:, held_out].flatten(0, 1),
            ks,
        )
        truth = labelled_copies(queries[:, held_out], labels[held_out.to(labels.device)])[1].cpu()
        right += (predictions == truth).double().flatten(1).sum(1)
    return dict(zip(ks, right.tolist(), strict=True))


def labelled_copies(copies: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return copies `[S, n, K]` as codes `[S n, K]`, each with the label of its sample."""
    return copies.flatten(0, 1), labels.repeat(len(copies), *[1] * (labels.dim() - 1))


def _check(codes: Tensor, labels: Tensor) -> None:
    """Refuse codes and labels that do not fit each other."""
    if codes.dim() != 2 or len(codes) == 0 or len(labels) != len(codes) or labels.dim() not in (1, 2):
        raise DataError(
            f"neighbours need codes [n, K] and labels [n] or [n, A]; got {list(codes.shape)}, {list(labels.shape)}."
        )
    if labels.is_floating_point() or bool((labels < 0).any()):
        raise DataError("labels must be integers from 0.")
    if not bool(codes.isfinite().all()):
        raise DataError("codes must be finite: they have distances.")


def _array(codes: Tensor) -> np.ndarray:
    """Return codes as an array in double precision."""
    return codes.detach().double().cpu().numpy()
