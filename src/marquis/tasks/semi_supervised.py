"""Classify with few labels: nearest neighbours on codes, with many sampled codes of each labelled example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked_arrays
from marquis.choices import choose
from marquis.errors import DataError
from marquis.functional.checks import check_finite
from marquis.randomness import permutation
from marquis.tasks.batches import SameSeed, as_tensor, data_tensor
from marquis.tasks.embedding import Codes, codes_of, label_sets, means_and_copies
from marquis.tasks.neighbours import CANDIDATES, choose_k, labelled_copies, predict
from marquis.tasks.semi_supervised_results import FewLabelsResult, MultiLabelResult

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder

__all__ = [
    "PER_CLASS",
    "Count",
    "FewLabelsResult",
    "MultiLabelResult",
    "embed",
    "evaluate",
    "evaluate_codes",
    "evaluate_multilabel",
    "evaluate_multilabel_codes",
]

Count = Literal["codes", "data"]
PER_CLASS = (1, 2, 4, 6, 8, 10, 15, 25, 50, 100)


@checked_arrays
def embed(
    model: UncertainAutoencoder,
    x: Tensor,
    samples: int = 100,
    *,
    copies: bool = False,
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> Tensor:
    """Return mean codes `[n, K]`, or with `copies` the code of every sampled network `[S, n, K]`.

    Cost: `samples` passes of the encoder.

    Args:
        model: Anything with `encode`.
        x: Data `[n, ...]`.
        samples: Number of networks; a model without uncertainty gives one.
        copies: Whether to return every sampled code instead of the mean.
        generator: Source of the sampled networks.
        batch_size: Number of samples at a time.
        progress: Show a bar on a terminal.
    """
    x = data_tensor(model, x, "data")
    selected, same = torch.full((len(x),), copies), SameSeed(model, generator)
    means, samples_of_all = means_and_copies(model, x, selected, samples, same, batch_size, progress)
    return samples_of_all if copies else means


@checked_arrays
def evaluate(
    model: UncertainAutoencoder,
    x: Tensor,
    labels: Tensor,
    per_class: Sequence[int] = PER_CLASS,
    *,
    repetitions: AtLeastOne = 5,
    copies: AtLeastOne = 100,
    candidates: Sequence[int] = CANDIDATES,
    count: Count = "codes",
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> FewLabelsResult:
    """Measure the accuracy of nearest neighbours with few labels (LAE Figure 12; docs/method/tasks.md).

    For each number of labels and each repetition: that many samples of every class are chosen at random and encoded by
    `copies` networks, k is chosen by two-fold cross-validation in which copies stay in one fold (k = 1 for one label
    per class), and all other data are classified at their *mean* code. So is the held-out fold. Generators with the
    same seed give every model the same labelled data and the same folds: results of two models can be compared in
    pairs.
    Cost: `copies` encoder passes over `x`, and the neighbour searches.

    Args:
        model: Anything with `encode`.
        x: Data `[n, ...]` that the model was not trained on.
        labels: Classes `[n]`, integers from 0.
        per_class: Numbers of labels per class.
        repetitions: Number of random choices of the labelled rows.
        copies: Number of networks that encode each labelled sample and are averaged for each mean code.
        candidates: The k to choose from.
        count: What k counts. "codes" as in the paper: with 100 copies that lie close to each other, the ten nearest
            codes are one sample, and every k up to ten is one neighbour. "data" multiplies the candidates by the
            copies.
        generator: Source of labels, folds and networks.
        batch_size: Number of samples at a time.
        progress: Show bars on a terminal.
    """
    x = data_tensor(model, x, "data")
    labels = _checked_labels(x, labels, 1)
    same = SameSeed(model, generator)
    sets = label_sets(labels, per_class, repetitions, generator)
    codes = codes_of(model, x, [rows for row in sets for rows in row], copies, same, batch_size, progress)
    return _few_labels_result(codes, labels, per_class, sets, candidates, count, generator)


@checked_arrays
def evaluate_codes(
    codes: Tensor,
    labels: Tensor,
    per_class: Sequence[int] = PER_CLASS,
    *,
    means: Tensor | None = None,
    repetitions: AtLeastOne = 5,
    candidates: Sequence[int] = CANDIDATES,
    count: Count = "codes",
    generator: torch.Generator | None = None,
) -> FewLabelsResult:
    """Run `evaluate` on codes that exist already: of `embed`, or the data themselves (`x.flatten(1)[None]`).

    Args:
        codes: Copies `[S, n, K]`; one copy for codes without uncertainty.
        labels: Classes `[n]`, integers from 0.
        per_class: Numbers of labels per class.
        means: Where data without a label are classified, `[n, K]`; by default the mean of their copies.
        repetitions: As in `evaluate`.
        candidates: As in `evaluate`.
        count: As in `evaluate`.
        generator: As in `evaluate`; the same seed gives the same labelled data whatever the codes.
    """
    existing = _existing_codes(codes, means)
    labels = _checked_labels(existing.means, labels, 1)
    sets = label_sets(labels, per_class, repetitions, generator)
    return _few_labels_result(existing, labels, per_class, sets, candidates, count, generator)


@checked_arrays
def evaluate_multilabel(
    model: UncertainAutoencoder,
    x: Tensor,
    attributes: Tensor,
    labelled: int = 10,
    *,
    names: Sequence[str] | None = None,
    repetitions: AtLeastOne = 5,
    copies: AtLeastOne = 100,
    candidates: Sequence[int] = CANDIDATES,
    count: Count = "codes",
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> MultiLabelResult:
    """Measure the accuracy with few labels for many binary attributes (LAE Table 4, CelebA's 40 attributes).

    `labelled` rows in all are chosen; every attribute is voted on separately, with one k for all of them. `attributes`
    are `[n, A]`, boolean or 0 and 1, with `names`; the other arguments are those of `evaluate`.
    """
    x = data_tensor(model, x, "data")
    attributes, names = _checked_attributes(x, attributes, names, labelled)
    same = SameSeed(model, generator)
    sets = [permutation(len(x), generator)[:labelled] for _ in range(repetitions)]
    codes = codes_of(model, x, sets, copies, same, batch_size, progress)
    return _multilabel_result(codes, attributes, names, sets, candidates, count, generator)


@checked_arrays
def evaluate_multilabel_codes(
    codes: Tensor,
    attributes: Tensor,
    labelled: int = 10,
    *,
    means: Tensor | None = None,
    names: Sequence[str] | None = None,
    repetitions: AtLeastOne = 5,
    candidates: Sequence[int] = CANDIDATES,
    count: Count = "codes",
    generator: torch.Generator | None = None,
) -> MultiLabelResult:
    """Run `evaluate_multilabel` on codes that exist already; arguments as there and in `evaluate_codes`."""
    existing = _existing_codes(codes, means)
    rows = existing.means
    attributes, names = _checked_attributes(rows, attributes, names, labelled)
    sets = [permutation(len(rows), generator)[:labelled] for _ in range(repetitions)]
    return _multilabel_result(existing, attributes, names, sets, candidates, count, generator)


def _few_labels_result(
    codes: Codes,
    labels: Tensor,
    per_class: Sequence[int],
    sets: list[list[Tensor]],
    candidates: Sequence[int],
    count: Count,
    generator: torch.Generator | None,
) -> FewLabelsResult:
    """Classify with every set of labelled rows, and return the accuracies."""
    accuracy = torch.zeros(len(sets), len(sets[0]), dtype=torch.float64)
    neighbours = torch.zeros(accuracy.shape, dtype=torch.long)
    for row, n in enumerate(per_class):
        for column, chosen in enumerate(sets[row]):
            right, _, neighbours[row, column] = _classified(codes, labels, chosen, n == 1, candidates, count, generator)
            accuracy[row, column] = right.mean()
    return FewLabelsResult(tuple(per_class), accuracy, neighbours, len(codes.copies))


def _multilabel_result(
    codes: Codes,
    attributes: Tensor,
    names: tuple[str, ...],
    sets: list[Tensor],
    candidates: Sequence[int],
    count: Count,
    generator: torch.Generator | None,
) -> MultiLabelResult:
    """Classify every attribute with every set of labelled rows, and return the accuracies."""
    accuracy, balanced, majority, ks = [], [], [], []
    for chosen in sets:
        right, truth, k = _classified(codes, attributes, chosen, len(chosen) == 1, candidates, count, generator)
        share = truth.double().mean(0)
        accuracy.append(right.mean(0))
        rates = [(right * (truth == value)).sum(0) / (truth == value).sum(0) for value in (0, 1)]
        balanced.append((rates[0] + rates[1]) / 2)
        majority.append(torch.maximum(share, 1 - share))
        ks.append(k)
    right, balance, majorities = (torch.stack(part) for part in (accuracy, balanced, majority))
    return MultiLabelResult(names, right, balance, majorities, tuple(ks), len(sets[0]), len(codes.copies))


def _classified(
    codes: Codes, labels: Tensor, chosen: Tensor, one: bool, candidates: Sequence[int], count: Count, generator: Any
) -> tuple[Tensor, Tensor, int]:
    """Classify the rows that are not `chosen`; return which are right (1 or 0), their labels, and k.

    k is chosen by cross-validation; with `one`, a single row per class, there is none to choose.
    """
    copies, known = codes.copies_of(chosen), labels[chosen]
    each = len(copies) if choose("count", count, ("codes", "data"), error=DataError) == "data" else 1
    k, ks = each, [each * k for k in candidates]
    if not one:
        k = choose_k(copies, known, candidates=ks, at=codes.means[chosen], generator=generator)
    rest = torch.ones(len(codes.means), dtype=torch.bool)
    rest[chosen] = False
    truth = labels[rest.to(labels.device)].cpu()
    return (predict(*labelled_copies(copies, known), codes.means[rest], [k])[0] == truth).double(), truth, k


def _checked_labels(x: Tensor, labels: Tensor, dim: int) -> Tensor:
    """Return the labels, if they are integers, one or several per row."""
    labels = as_tensor(labels, "labels")
    if labels.dim() != dim or len(labels) != len(x) or len(x) == 0:
        shape = "[n]" if dim == 1 else "[n, A]"
        raise DataError(f"labels must be {shape} for data [n, ...]; got {list(labels.shape)} for {list(x.shape)}.")
    if labels.is_floating_point() or labels.dtype == torch.bool or bool((labels < 0).any()):
        raise DataError(f"labels must be integers from 0, got {labels.dtype}.")
    return labels


def _existing_codes(codes: Tensor, means: Tensor | None) -> Codes:
    """Return codes of the user's, with the mean of each row."""
    codes = as_tensor(codes, "codes")
    codes = codes if codes.is_floating_point() else codes.double()  # pixels, which have a mean, too
    means = codes.mean(0) if means is None else as_tensor(means, "means")
    if codes.dim() != 3 or means.shape != codes.shape[1:] or len(codes) == 0:
        raise DataError(
            f"codes must be [S, n, K] with at least one copy, and means [n, K]; got {list(codes.shape)}, "
            f"{list(means.shape)}."
        )
    check_finite(codes, "codes")
    check_finite(means, "means")
    return Codes(means, codes, torch.arange(len(means)))


def _checked_attributes(
    x: Tensor, attributes: Tensor, names: Sequence[str] | None, labelled: int
) -> tuple[Tensor, tuple[str, ...]]:
    """Return binary attributes and their names, checked."""
    attributes = as_tensor(attributes, "attributes")
    attributes = attributes.long() if attributes.dtype == torch.bool else attributes
    _checked_labels(x, attributes, 2)
    names = tuple(names) if names is not None else tuple(f"attribute {i}" for i in range(attributes.shape[1]))
    if bool((attributes > 1).any()) or len(names) != attributes.shape[1]:
        raise DataError(
            f"attributes are yes or no, each with a name: got {len(names)} names, {attributes.shape[1]} columns."
        )
    if not 1 <= labelled < len(x):
        raise DataError(f"labelled={labelled}: at least 1, and some of the {len(x)} data must be left for evaluation.")
    return attributes, names
