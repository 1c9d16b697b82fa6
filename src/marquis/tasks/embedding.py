"""Encode data in one pass, and choose at random the rows that have a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.randomness import permutation
from marquis.tasks.batches import SameSeed, batches, naming_shape, require_method


@dataclass(frozen=True, eq=False)
class Codes:
    """Hold mean codes `[n, K]` of all data, copies `[S, m, K]` of rows that ever have a label, and their places."""

    means: Tensor
    copies: Tensor
    place: Tensor

    def copies_of(self, rows: Tensor) -> Tensor:
        """Return the samples `[S, len(rows), K]` of these rows."""
        return self.copies[:, self.place[rows]]


def codes_of(
    model: Any, x: Tensor, sets: list[Tensor], copies: int, same: SameSeed, batch_size: int, progress: bool
) -> Codes:
    """Encode all data in one pass; samples are kept only of those that are in one of the sets."""
    selected = torch.zeros(len(x), dtype=torch.bool)
    selected[torch.cat(sets)] = True
    means, copies_of_code = means_and_copies(model, x, selected, copies, same, batch_size, progress)
    return Codes(means, copies_of_code, selected.cumsum(0) - 1)


@torch.no_grad()
def means_and_copies(
    model: Any, x: Tensor, selected: Tensor, samples: int, same: SameSeed, batch_size: int, progress: bool
) -> tuple[Tensor, Tensor]:
    """Return mean codes `[n, K]`, and all samples `[S, m, K]` of the m selected rows."""
    require_method(model, "encode")
    means, copies, start = [], [], 0
    for batch in batches(model, x, batch_size, "codes", progress):
        here = selected[start : start + len(batch)]
        start, keep = start + len(batch), bool(here.any())
        with naming_shape(model, batch, "codes"):
            encoded = model.encode(batch, samples, generator=same.generator(), keep=keep)
        if len(encoded.mean) != len(batch) or (
            keep and (encoded.samples is None or encoded.samples.shape[1] != len(batch))
        ):
            raise DataError("encode(x, keep=True) must give a mean [n, K] and samples [S, n, K].")
        means.append(encoded.mean.flatten(1).cpu())
        if keep:
            copies.append(encoded.samples[:, here.to(encoded.samples.device)].flatten(2).cpu())
    return torch.cat(means), torch.cat(copies, 1) if copies else torch.cat(means)[None, :0]


def label_sets(
    labels: Tensor, per_class: Sequence[int], repetitions: int, generator: torch.Generator | None
) -> list[list[Tensor]]:
    """Return which rows have labels, for each number of labels and each repetition."""
    counts = torch.bincount(labels)
    smallest, classes = int(counts[counts > 0].min()), int((counts > 0).sum())
    if not per_class or min(per_class) < 1 or max(per_class) > smallest or max(per_class) * classes >= len(labels):
        raise DataError(
            f"per_class={list(per_class)}: at least 1, at most the {smallest} data of the smallest class, and some of "
            f"the {len(labels)} data must be left for evaluation."
        )
    return [[rows_of_each_class(labels, n, generator) for _ in range(repetitions)] for n in per_class]


def rows_of_each_class(labels: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Return indices of n random rows of each class."""
    order = permutation(len(labels), generator)
    shuffled = labels.cpu()[order]
    return torch.cat([order[shuffled == c][:n] for c in shuffled.unique().tolist()])
