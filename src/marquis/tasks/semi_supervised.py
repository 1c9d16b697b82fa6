"""Few labels, many draws: each labelled datum stands for as many codes as the model has opinions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.tasks.batches import SameDraws, batches, require
from marquis.tasks.neighbours import CANDIDATES, choose_k, flat, predict

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder

PER_CLASS = (1, 2, 4, 6, 8, 10, 15, 25, 50, 100)


@dataclass(frozen=True, eq=False)
class FewLabelsResult:
    """Accuracy for each number of labels per class; `print` it for a table.

    Attributes:
        per_class: Numbers of labels per class.
        accuracy: `[len(per_class), repetitions]`, on the data without a label.
        neighbours: The k that cross-validation chose, of the same shape.
        copies: How many codes each labelled datum had (1 for a model without uncertainty).
    """

    per_class: tuple[int, ...]
    accuracy: Tensor
    neighbours: Tensor
    copies: int

    def __str__(self) -> str:
        lines = [f"{self.copies} code(s) per label, {self.accuracy.shape[1]} repetition(s)"]
        lines.append("labels per class   accuracy          k")
        for n, accuracy, ks in zip(self.per_class, self.accuracy, self.neighbours.tolist(), strict=True):
            spread = f" ± {float(accuracy.std()):.4f}" if len(accuracy) > 1 else ""
            lines.append(f"{n:16d}   {float(accuracy.mean()):.4f}{spread:9}   {', '.join(map(str, ks))}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class MultiLabelResult:
    """Accuracy for each of A yes-or-no attributes; `print` it for a table.

    Attributes:
        names: Names of the attributes.
        accuracy: `[repetitions, A]`, on the data without labels.
        majority: Accuracy of always giving the commoner answer of the evaluated data, `[repetitions, A]`. Beat this:
            "98 % right about baldness" is what one gets for always saying no.
        neighbours: The k that cross-validation chose, per repetition.
        labelled: How many data had labels.
        copies: How many codes each of them had.
    """

    names: tuple[str, ...]
    accuracy: Tensor
    majority: Tensor
    neighbours: tuple[int, ...]
    labelled: int
    copies: int

    @property
    def overall(self) -> float:
        """Mean over attributes and repetitions."""
        return float(self.accuracy.mean())

    def __str__(self) -> str:
        width = max(len("attribute"), *map(len, self.names))
        head = f"{self.labelled} labelled, {self.copies} code(s) each, {len(self.accuracy)} repetition(s)"
        lines = [head, f"{'attribute':<{width}}  accuracy  majority"]
        for name, accuracy, majority in zip(self.names, self.accuracy.mean(0), self.majority.mean(0), strict=True):
            lines.append(f"{name:<{width}}  {float(accuracy):8.4f}  {float(majority):8.4f}")
        return "\n".join([*lines, f"{'overall':<{width}}  {self.overall:8.4f}  {float(self.majority.mean()):8.4f}"])


def embed(
    model: UncertainAutoencoder,
    x: Tensor,
    samples: int = 100,
    *,
    copies: bool = False,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Tensor:
    """Mean codes `[n, K]`, or with `copies` the code of every draw `[S, n, K]`; all data meet the same draws.

    Cost: `samples` passes of the encoder.

    Args:
        model: Anything with `encode`.
        x: Data `[n, ...]`.
        samples: How many draws; a model without uncertainty gives one.
        copies: Whether to give every draw instead of the mean.
        generator: For the draws.
        batch_size: How many data at a time.
        progress: Show a bar on a terminal.
    """
    return _embed(model, x, samples, copies, SameDraws(model, generator), batch_size, progress)


def evaluate(
    model: UncertainAutoencoder,
    x: Tensor,
    labels: Tensor,
    per_class: Sequence[int] = PER_CLASS,
    *,
    repetitions: int = 5,
    copies: int = 100,
    candidates: Sequence[int] = CANDIDATES,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> FewLabelsResult:
    """Accuracy of nearest neighbours with few labels (methods.md 8.4; Figure 12).

    For each number of labels and each repetition: that many data of every class are drawn and embedded by `copies`
    draws of the model, k is chosen by two-fold cross-validation in which copies stay together (k = 1 for one label per
    class), and all other data are classified at their *mean* code.
    Cost: `copies` encoder passes over `x` and over the labelled data of each repetition, and the neighbour searches.

    Args:
        model: Anything with `encode`.
        x: Data `[n, ...]` that the model was not trained on.
        labels: Classes `[n]`, integers from 0.
        per_class: Numbers of labels per class.
        repetitions: How often labels are drawn anew.
        copies: How many draws of the model embed each labelled datum, and make up each mean code.
        candidates: The k to choose from.
        generator: For labels, folds and draws.
        batch_size: How many data at a time.
        progress: Show bars on a terminal.
    """
    _check(x, labels, 1, repetitions, copies)
    counts = torch.bincount(labels)
    counts = counts[counts > 0]
    if (
        not per_class
        or min(per_class) < 1
        or max(per_class) > int(counts.min())
        or max(per_class) * len(counts) >= len(x)
    ):
        raise DataError(
            f"per_class={list(per_class)}: at least 1, at most the {int(counts.min())} data of the smallest class, and "
            f"some of the {len(x)} data must be left for evaluation."
        )
    same = SameDraws(model, generator)
    means = _embed(model, x, copies, False, same, batch_size, progress)
    accuracy = torch.zeros(len(per_class), repetitions, dtype=torch.float64)
    neighbours, codes = torch.zeros(len(per_class), repetitions, dtype=torch.long), means[None]
    for row, n in enumerate(per_class):
        for column in range(repetitions):
            chosen = _of_each_class(labels, n, generator)
            codes = _embed(model, x[chosen], copies, True, same, batch_size, progress)
            known = labels[chosen]
            k = 1 if n == 1 else choose_k(codes, known, candidates=candidates, generator=generator)
            rest = _others(len(x), chosen)
            answers = predict(*flat(codes, known), means[rest], [k])[0]
            accuracy[row, column] = (answers == labels[rest].cpu()).double().mean()
            neighbours[row, column] = k
    return FewLabelsResult(tuple(per_class), accuracy, neighbours, len(codes))


def evaluate_multilabel(
    model: UncertainAutoencoder,
    x: Tensor,
    attributes: Tensor,
    labelled: int = 10,
    *,
    names: Sequence[str] | None = None,
    repetitions: int = 5,
    copies: int = 100,
    candidates: Sequence[int] = CANDIDATES,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> MultiLabelResult:
    """The same for data with many yes-or-no attributes (methods.md 8.4; Table 4, CelebA's 40 attributes).

    `labelled` data in all are drawn; every attribute is voted on by itself, with one k for all of them.

    Args:
        model: Anything with `encode`.
        x: Data `[n, ...]` that the model was not trained on.
        attributes: `[n, A]`, boolean or 0 and 1.
        labelled: How many data have labels.
        names: Names of the attributes.
        repetitions: How often the labelled data are drawn anew.
        copies: How many draws of the model embed each labelled datum, and make up each mean code.
        candidates: The k to choose from.
        generator: For labels, folds and draws.
        batch_size: How many data at a time.
        progress: Show bars on a terminal.
    """
    attributes = attributes.long() if attributes.dtype == torch.bool else attributes
    _check(x, attributes, 2, repetitions, copies)
    names = tuple(names) if names is not None else tuple(f"attribute {i}" for i in range(attributes.shape[1]))
    if bool((attributes > 1).any()) or len(names) != attributes.shape[1]:
        raise DataError(
            f"attributes are yes or no, each with a name: got {len(names)} names, {attributes.shape[1]} columns."
        )
    if not 1 <= labelled < len(x):
        raise DataError(f"labelled={labelled}: at least 1, and some of the {len(x)} data must be left for evaluation.")
    same = SameDraws(model, generator)
    means = _embed(model, x, copies, False, same, batch_size, progress)
    accuracy, majority, ks, codes = [], [], [], means[None]
    for _ in range(repetitions):
        chosen = _permutation(len(x), generator)[:labelled]
        codes = _embed(model, x[chosen], copies, True, same, batch_size, progress)
        known = attributes[chosen]
        ks.append(1 if labelled == 1 else choose_k(codes, known, candidates=candidates, generator=generator))
        rest = _others(len(x), chosen)
        truth = attributes[rest].cpu()
        accuracy.append((predict(*flat(codes, known), means[rest], ks[-1:])[0] == truth).double().mean(0))
        share = truth.double().mean(0)
        majority.append(torch.maximum(share, 1 - share))
    return MultiLabelResult(names, torch.stack(accuracy), torch.stack(majority), tuple(ks), labelled, len(codes))


@torch.no_grad()
def _embed(
    model: Any, x: Tensor, samples: int, copies: bool, same: SameDraws, batch_size: int, progress: bool
) -> Tensor:
    require(model, "encode")
    found = []
    for batch in batches(model, x, batch_size, "codes", progress):
        said = model.encode(batch, samples, generator=same.again(), keep=copies)
        codes = said.samples if copies else said.mean
        if codes is None or len(codes if not copies else codes[0]) != len(batch):
            raise DataError("encode(x, keep=True) must give samples [S, n, K].")
        found.append(codes.flatten(2 if copies else 1).cpu())
    return torch.cat(found, 1 if copies else 0)


def _of_each_class(labels: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Indices of n random data of each class."""
    order = _permutation(len(labels), generator)
    shuffled = labels.cpu()[order]
    return torch.cat([order[shuffled == c][:n] for c in shuffled.unique().tolist()])


def _permutation(n: int, generator: torch.Generator | None) -> Tensor:
    place = "cpu" if generator is None else generator.device
    return torch.randperm(n, generator=generator, device=place).cpu()


def _others(n: int, chosen: Tensor) -> Tensor:
    kept = torch.ones(n, dtype=torch.bool)
    kept[chosen] = False
    return kept.nonzero().squeeze(1)


def _check(x: Tensor, labels: Tensor, dim: int, repetitions: int, copies: int) -> None:
    if labels.dim() != dim or len(labels) != len(x) or len(x) == 0:
        wanted = "[n]" if dim == 1 else "[n, A]"
        raise DataError(f"labels must be {wanted} for data [n, ...]; got {list(labels.shape)} for {list(x.shape)}.")
    if labels.is_floating_point() or labels.dtype == torch.bool or bool((labels < 0).any()):
        raise DataError(f"labels must be integers from 0, got {labels.dtype}.")
    if repetitions < 1 or copies < 1:
        raise DataError(f"repetitions={repetitions} and copies={copies} must be at least 1.")
