"""Detect out-of-distribution (OOD) data: outlier scores of each sample, and how well they tell OOD data apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked, checked_arrays, checked_methods, describe_value
from marquis.errors import DataError
from marquis.notebook import ShownAsText
from marquis.options import renamed_arguments, renamed_attributes, warn_renamed
from marquis.tasks.batches import Data, SameSeed, as_tensor, batches, naming_shape, require_method
from marquis.tasks.contributions import contributions as contributions
from marquis.tasks.contributions import entries_of
from marquis.tasks.ranking import RocCurve, auroc, average_precision, fpr_at_tpr, roc_curve

if TYPE_CHECKING:
    from marquis.autoencoders import Reconstruction, UncertainAutoencoder

Scores = dict[str, Tensor]
"""One tensor `[n]` per kind of score; larger means more likely OOD."""

COMBINED_OF = ("nll", "output_variance", "latent_variance")
"""Scores that the combined score joins by default."""

DERIVED = ("typicality", "typicality_nll", "combined")
"""Scores that are computed from the others and those of training data."""

FPR_AT, TAIL_FROM = 0.95, 0.9


@renamed_attributes(inside="in_distribution", outside="out_of_distribution", draws="samples")
@checked_methods
@dataclass(frozen=True, eq=False)
class OodResult(ShownAsText):
    """Hold scores of in-distribution, OOD and training data, and how well each separates them. `print` it for a table.

    Attributes:
        in_distribution: Scores of in-distribution data.
        out_of_distribution: Scores of OOD data.
        train: Scores of the training data, against which typicality and the combined score are measured.
        table: For each score `auroc`, `aupr` and `fpr95`; OOD is the positive class, nothing is flipped.
        samples: Number of networks that each score averages (1 for a model without uncertainty).
    """

    in_distribution: Scores
    out_of_distribution: Scores
    train: Scores
    table: dict[str, dict[str, float]]
    samples: int

    def roc(self, score: str) -> RocCurve:
        """Return the points of one score's ROC curve."""
        self._check_name(score)
        return roc_curve(self.in_distribution[score], self.out_of_distribution[score])

    def histogram(self, score: str, bins: AtLeastOne = 50) -> tuple[Tensor, Tensor, Tensor]:
        """Return common edges `[bins + 1]`, and the counts of in-distribution and OOD data between them."""
        self._check_name(score)
        both = torch.cat([self.in_distribution[score], self.out_of_distribution[score]]).double()
        low, high = float(both.min()), float(both.max())
        high = high if high > low else low + 1
        edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
        parts = (self.in_distribution, self.out_of_distribution)
        counts = [torch.histc(part[score].double(), bins, low, high).long() for part in parts]
        return edges, counts[0], counts[1]

    def varies(self, score: str) -> bool:
        """Return whether a score differs between data; variances of a model without uncertainty do not."""
        self._check_name(score)
        both = torch.cat([self.in_distribution[score], self.out_of_distribution[score]])
        return bool((both != both[0]).any())

    def __str__(self) -> str:
        n, m = len(self.in_distribution["nll"]), len(self.out_of_distribution["nll"])
        head = f"{n} in-distribution, {m} OOD, {self.samples} sample(s)"
        lines = [head, f"{'score':<18} {'AUROC':>7} {'AUPR':>7} {'FPR95':>7}"]
        for name, row in self.table.items():
            cells = [f"{row[key]:7.4f}" if self.varies(name) else f"{'-':>7}" for key in ("auroc", "aupr", "fpr95")]
            lines.append(" ".join([f"{name:<18}", *cells]))
        if not all(map(self.varies, self.table)):
            lines.append("-: the same for all data, so it cannot tell them apart (AUROC 0.5)")
        return "\n".join(lines)

    def _check_name(self, score: str) -> None:
        """Refuse the name of a score that there is not."""
        if score not in self.table:
            raise DataError(f"there is no score {score!r}; there are {', '.join(self.table)}.")


@checked_arrays
def scores(
    model: UncertainAutoencoder,
    data: Data,
    samples: int = 100,
    *,
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> Scores:
    """Compute outlier scores of each sample (docs/method/tasks.md). Cost: `samples` passes of the network.

    - `error`: `(1/S) Σ_s ‖x - x_s‖²`, the "-log p" of the paper, without ½ and constants
    - `nll`: `-log (1/S) Σ_s p(x | network s)`, normalised
    - `output_variance`, `output_std`: sum over the entries of σ² (or of σ), σ² the variance over the networks
    - `total_variance`: with the decoder's noise variance; for models whose decoder predicts a variance, this is
      the paper's "output variance"
    - `latent_variance`, `latent_std`: sum over the code of σ² (or of σ)

    Entries of `x` that are NaN are left out of `error` and `nll`, which are sums, so that samples with more
    of them get lower scores: compare samples with about as many. Not every model accepts NaN.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        data: A tensor or array `[n, ...]`, or a loader.
        samples: S, number of sampled networks, the same ones for all data.
        generator: Source of the sampled networks.
        batch_size: Number of samples at a time, for a tensor.
        progress: Show a bar on a terminal.
    """
    return _scores(model, data, samples, SameSeed(model, generator), batch_size, progress, "scores")[0]


@checked_arrays
def typicality(score: Tensor, train: Tensor) -> Tensor:
    """Return `|mean_train(score) - score|`: too likely counts as much as too unlikely (typicality test).

    Args:
        score: A likelihood score of the data `[n]`.
        train: The same score of training data `[N]`.
    """
    score, train = (
        t if t.is_floating_point() else t.float() for t in (as_tensor(score, "score"), as_tensor(train, "train"))
    )
    if train.dim() != 1 or len(train) == 0:
        raise DataError(f"typicality needs the scores [N] of training data, got shape {list(train.shape)}.")
    distance = (train.mean() - score).abs()
    if not bool(distance.isfinite().all()):
        raise DataError("typicality: scores of the data or of training data are NaN, infinite or too large.")
    return distance


@checked_arrays
def combined(parts: Scores, train: Scores, of: Sequence[str] = COMBINED_OF) -> Tensor:
    """Combine several scores: the mean of `-log p_k`, with `p_k` the share of training data with a larger score k.

    That is Fisher's combination of p-values: one decisive score outweighs undecided ones, and units do not matter. Up
    to the training scores' 90 % quantile q, `p = (1 + #{train >= score}) / (1 + N)`. Beyond it that would saturate, and
    a network is so much better on its training data that it would saturate for test data, too: so the tail goes on as
    an exponential, `p = p_q exp(-(score - q) / mean excess over q)`. A part that does not vary over the training data
    (the variances of a model without uncertainty) is left out. The parts are not independent: this ranks, it is no
    p-value. Cost O(n log N).

    Args:
        parts: Scores of the data.
        train: Scores of training data.
        of: Which scores to join.
    """
    missing = [name for name in of if name not in parts or name not in train]
    if missing or not of:
        raise DataError(f"the combined score needs scores that are there, got {list(of)} of {list(parts)}.")
    rarities = []
    for name in of:
        score, ordered = as_tensor(parts[name], name).double(), as_tensor(train[name], name).double().sort().values
        if len(ordered) == 0 or bool(ordered.isnan().any()) or bool(score.isnan().any()):
            raise DataError(f"the score {name!r} is empty or NaN: it has no place among the training scores.")
        if bool(ordered[0] != ordered[-1]):
            rarities.append(_rarity(score, ordered))
    return torch.stack(rarities).mean(0) if rarities else torch.zeros(len(parts[of[0]]), dtype=torch.float64)


def _rarity(score: Tensor, ordered: Tensor) -> Tensor:
    """Return `-log p` of scores among ordered training scores, not all of them equal."""
    below_top = ordered[ordered < ordered[-1]]  # the quantile must leave something above it
    threshold = torch.minimum(ordered[int(TAIL_FROM * (len(ordered) - 1))], below_top[-1])
    above = ordered[ordered > threshold]
    at_least = len(ordered) - torch.searchsorted(ordered, score.contiguous())
    bulk = -((1 + at_least).double() / (1 + len(ordered))).log()
    tail = -math.log((1 + len(above)) / (1 + len(ordered))) + (score - threshold) / (above - threshold).mean()
    return torch.where(score > threshold, tail, bulk)


@renamed_arguments(inside="in_distribution", outside="out_of_distribution")
@checked_arrays
def evaluate(
    model: UncertainAutoencoder,
    in_distribution: Data,
    out_of_distribution: Data,
    train: Data,
    samples: int = 100,
    *,
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> OodResult:
    """Compare all scores, typicality and their combination on in-distribution and OOD data (LAE Figures 9 and 10).

    `typicality` is that of `error` (the paper's), `typicality_nll` that of the model's likelihood. Take as many
    in-distribution as OOD data: AUPR depends on their ratio. Cost: `samples` passes over all three sets; a few thousand
    training data are enough.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        in_distribution: Held-out data from the training distribution.
        out_of_distribution: Other data, of the same shape.
        train: Training data (a part will do).
        samples: As in `scores`.
        generator: As in `scores`.
        batch_size: As in `scores`.
        progress: Show bars on a terminal.
    """
    same, options = SameSeed(model, generator), (batch_size, progress)
    reference, shape, networks = _scores(model, train, samples, same, *options, "scores of training data")
    complete = {"train": _with_derived(reference, reference)}
    for name, data in (("in_distribution", in_distribution), ("out_of_distribution", out_of_distribution)):
        label = name.replace("_", "-")
        parts, other, _ = _scores(model, data, samples, same, *options, f"scores of {label} data")
        if other != shape:
            raise DataError(f"the {label} data have shape {list(other)} each, the training data {list(shape)}.")
        complete[name] = _with_derived(parts, reference)
    return _compared(complete, networks)


@checked_arrays
def ensemble(results: Sequence[OodResult]) -> OodResult:
    """Join several trainings to one model, an ensemble: a mixture of their posteriors with equal weights.

    Errors and variances are averaged over the trainings, the likelihood is that of the mixture, `log (1/K) Σ_k p_k(x)`;
    typicality and the combined score are computed from these. Each training has its own latent space, so the variance
    *between* trainings means nothing for a code; it is left out of the output variance too.

    Args:
        results: Results of `evaluate` for each training, with the same data in the same order.

    Raises:
        DataError: There are none, or their data differ in number.
    """
    if not results:
        raise DataError("there are no results to join.")
    complete: dict[str, Scores] = {}
    for name in ("train", "in_distribution", "out_of_distribution"):
        parts: list[Scores] = [getattr(result, name) for result in results]
        counts = {len(part["nll"]) for part in parts}
        if len(counts) > 1:
            raise DataError(
                f"the results are of {', '.join(map(str, sorted(counts)))} samples ({name}): not of the same data."
            )
        joined = {key: torch.stack([part[key] for part in parts]).mean(0) for key in parts[0] if key not in DERIVED}
        nll = torch.stack([part["nll"] for part in parts])
        joined["nll"] = math.log(len(parts)) - (-nll).logsumexp(0)
        complete[name] = _with_derived(joined, complete.get("train", joined))
    return _compared(complete, sum(result.samples for result in results))


@checked
def together(results: Sequence[OodResult]) -> OodResult:
    """Call `ensemble`, by its deprecated name."""
    warn_renamed("ood.together", "ood.ensemble")
    return ensemble(results)


def _compared(complete: dict[str, Scores], samples: int) -> OodResult:
    """Return the result with a table of AUROC, AUPR and FPR for every score."""
    in_scores, out_scores = complete["in_distribution"], complete["out_of_distribution"]
    table = {}
    for name, score in in_scores.items():
        pair = score, out_scores[name]
        table[name] = {"auroc": auroc(*pair), "aupr": average_precision(*pair), "fpr95": fpr_at_tpr(*pair, FPR_AT)}
    return OodResult(in_scores, out_scores, complete["train"], table, samples)


def _with_derived(parts: Scores, reference: Scores) -> Scores:
    """Return the scores together with typicality and the combined score."""
    return {
        **parts,
        "typicality": typicality(parts["error"], reference["error"]),
        "typicality_nll": typicality(parts["nll"], reference["nll"]),
        "combined": combined(parts, reference),
    }


@torch.no_grad()
def _scores(
    model: UncertainAutoencoder,
    data: Data,
    samples: int,
    same: SameSeed,
    batch_size: int,
    progress: bool,
    what: str,
) -> tuple[Scores, torch.Size, int]:
    """Return the scores, the shape of a sample, and the number of networks that the model really sampled."""
    require_method(model, "reconstruct")
    parts: list[Scores] = []
    shape, networks = torch.Size(), 0
    for x in batches(model, data, batch_size, what, progress):
        with naming_shape(model, x, what):
            result = model.reconstruct(x, samples, generator=same.generator())
        if result.mean.shape != x.shape:
            raise DataError(f"{what}: the model reconstructs {list(x.shape)} as {list(result.mean.shape)}.")
        parts.append({name: score.detach().cpu() for name, score in _of_batch(result, x).items()})
        shape, networks = x.shape[1:], result.draws
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return _finite(joined, what), shape, networks


def _finite(scores: Scores, what: str) -> Scores:
    """Return the scores, if all are finite: large values may overflow when they are squared."""
    for name, score in scores.items():
        if not bool(score.isfinite().all()):
            raise DataError(
                f"{what}: {int((~score.isfinite()).sum())} of {len(score)} values of {name!r} are not finite."
            )
    return scores


@checked_arrays
def of_reconstruction(result: Reconstruction, x: Tensor) -> Scores:
    """Return the scores `[B]` of a batch from its reconstruction, as `scores` does."""
    return _finite(_of_batch(result, x), "of_reconstruction")


def _of_batch(result: Reconstruction, x: Tensor) -> Scores:
    """Return the scores of a batch, finite or not."""
    x, latent = as_tensor(x, "x"), getattr(result, "latent", None)
    x = x if x.is_floating_point() else x.to(result.mean.dtype)
    if latent is None or result.mean.shape != x.shape:
        raise DataError(f"result is {describe_value(result)}; the reconstruction of x {list(x.shape)} is needed.")
    sums = {name: entries.flatten(1).sum(1) for name, entries in entries_of(result, x).items()}
    return {
        "error": sums["error"],
        "nll": -result.log_prob,
        **{name: sums[name] for name in ("output_variance", "output_std", "total_variance")},
        "latent_variance": latent.variance.flatten(1).sum(1),
        "latent_std": latent.std.flatten(1).sum(1),
    }
