"""Out of distribution: scores per datum from one pass of a model, and how well they tell outside from inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.tasks.batches import Data, SameDraws, as_tensor, at_least_one, batches, naming_shape, require
from marquis.tasks.ranking import RocCurve, auroc, average_precision, fpr_at_tpr, roc_curve

if TYPE_CHECKING:
    from marquis.autoencoders import Reconstruction, UncertainAutoencoder

Scores = dict[str, Tensor]
"""One tensor `[n]` per kind of score; larger means more likely outside the distribution."""

COMBINED_OF = ("nll", "output_variance", "latent_variance")
"""What the combined score looks at, where it is not told otherwise."""

DERIVED = ("typicality", "typicality_nll", "combined")
"""Scores that are made of the others, with training data beside them."""

FPR_AT, TAIL_FROM = 0.95, 0.9


@dataclass(frozen=True, eq=False)
class OodResult:
    """Scores of inside, outside and training data, and how well each tells outside from inside. `print` it for a table.

    Attributes:
        inside: Scores of the data inside the distribution, for histograms.
        outside: Scores of the data outside.
        train: Scores of the training data, against which typicality and the combined score are measured.
        table: For each score `auroc`, `aupr` and `fpr95`; the outside is the positive class, nothing is flipped.
        draws: How many draws of the model each score averages (1 for a model without uncertainty).
    """

    inside: Scores
    outside: Scores
    train: Scores
    table: dict[str, dict[str, float]]
    draws: int

    def roc(self, score: str) -> RocCurve:
        """The points of one score's ROC curve."""
        self._known(score)
        return roc_curve(self.inside[score], self.outside[score])

    def histogram(self, score: str, bins: int = 50) -> tuple[Tensor, Tensor, Tensor]:
        """Common edges `[bins + 1]`, and the counts of inside and outside between them."""
        self._known(score)
        at_least_one(bins=bins)
        both = torch.cat([self.inside[score], self.outside[score]]).double()
        low, high = float(both.min()), float(both.max())
        high = high if high > low else low + 1
        edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
        inside, outside = (
            torch.histc(part[score].double(), bins, low, high).long() for part in (self.inside, self.outside)
        )
        return edges, inside, outside

    def varies(self, score: str) -> bool:
        """Whether a score is not the same for all data, as the variances of a model without uncertainty are."""
        self._known(score)
        both = torch.cat([self.inside[score], self.outside[score]])
        return bool((both != both[0]).any())

    def __str__(self) -> str:
        n, m, drawn = len(self.inside["nll"]), len(self.outside["nll"]), f"{self.draws} draw(s)"
        lines = [f"{n} inside, {m} outside, {drawn}", f"{'score':<18} {'AUROC':>7} {'AUPR':>7} {'FPR95':>7}"]
        for name, row in self.table.items():
            cells = [f"{row[key]:7.4f}" if self.varies(name) else f"{'-':>7}" for key in ("auroc", "aupr", "fpr95")]
            lines.append(" ".join([f"{name:<18}", *cells]))
        if not all(map(self.varies, self.table)):
            lines.append("-: the same for all data, so it tells nothing (AUROC 0.5)")
        return "\n".join(lines)

    def _known(self, score: str) -> None:
        if score not in self.table:
            raise DataError(f"there is no score {score!r}; there are {', '.join(self.table)}.")


def scores(
    model: UncertainAutoencoder,
    data: Data,
    samples: int = 100,
    *,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Scores:
    """What one pass over the data says about each datum (methods.md 8.1). Cost: `samples` passes of the network.

    - `error`: `(1/S) Σ_s ‖x - x_s‖²`, the "-log p" of the paper, without ½ and constants
    - `nll`: `-log (1/S) Σ_s p(x | draw s)`, the model's own, normalised
    - `output_variance`, `output_std`: sum over the entries of σ² (or of σ), σ² the variance over the draws
    - `total_variance`: with the noise that the decoder claims; for models whose decoder predicts a variance, this is
      the paper's "output variance"
    - `latent_variance`, `latent_std`: sum over the code of σ² (or of σ)

    Entries of `x` that are NaN are left out of `error` and `nll`, which are sums, so that data with more of them look
    less strange: compare data with about as many. Whether they may occur is the model's business.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        data: A tensor or array `[n, ...]`, or a loader.
        samples: S, how many draws of the model; all data meet the same draws.
        generator: For the draws.
        batch_size: How a tensor is cut.
        progress: Show a bar on a terminal.
    """
    return _scores(model, data, samples, SameDraws(model, generator), batch_size, progress, "scores")[0]


def typicality(score: Tensor, train: Tensor) -> Tensor:
    """`|mean_train(score) - score|`: too good to be true counts as much as too bad (single-example typicality test).

    Args:
        score: A likelihood score of the data to judge `[n]`.
        train: The same score of training data `[N]`.
    """
    score, train = as_tensor(score, "score"), as_tensor(train, "train")
    if train.dim() != 1 or len(train) == 0:
        raise DataError(f"typicality needs the scores [N] of training data, got shape {list(train.shape)}.")
    return (train.mean() - score).abs()


def combined(parts: Scores, train: Scores, of: Sequence[str] = COMBINED_OF) -> Tensor:
    """One score out of several: the mean of `-log p_k`, `p_k` how rare a score of part k is among training data.

    That is Fisher's way of joining p-values: one part that is sure outweighs others that are undecided, and units do
    not matter. Up to the training scores' 90 % quantile q, `p = (1 + #{train >= score}) / (1 + N)`. Beyond it that
    would saturate, and a network is so much better on its training data that it would saturate for test data, too: so
    the tail goes on as an exponential, `p = p_q exp(-(score - q) / mean excess over q)`. A part that does not vary over
    the training data (the variances of a model without uncertainty) is left out. The parts are not independent: this
    ranks, it is no p-value. Cost O(n log N).

    Args:
        parts: Scores of the data to judge.
        train: Scores of training data.
        of: Which scores to join.
    """
    missing = [name for name in of if name not in parts or name not in train]
    if missing or not of:
        raise DataError(f"the combined score needs scores that are there, got {list(of)} of {list(parts)}.")
    found = []
    for name in of:
        score, ordered = as_tensor(parts[name], name).double(), as_tensor(train[name], name).double().sort().values
        if len(ordered) == 0 or bool(ordered.isnan().any()) or bool(score.isnan().any()):
            raise DataError(f"the score {name!r} is empty or NaN: it has no place among the training scores.")
        if bool(ordered[0] != ordered[-1]):
            found.append(_rarity(score, ordered))
    return torch.stack(found).mean(0) if found else torch.zeros(len(parts[of[0]]), dtype=torch.float64)


def _rarity(score: Tensor, ordered: Tensor) -> Tensor:
    """`-log p` of scores among ordered training scores, not all of them equal."""
    below_top = ordered[ordered < ordered[-1]]  # the quantile must leave something above it
    threshold = torch.minimum(ordered[int(TAIL_FROM * (len(ordered) - 1))], below_top[-1])
    above = ordered[ordered > threshold]
    at_least = len(ordered) - torch.searchsorted(ordered, score.contiguous())
    bulk = -((1 + at_least).double() / (1 + len(ordered))).log()
    tail = -math.log((1 + len(above)) / (1 + len(ordered))) + (score - threshold) / (above - threshold).mean()
    return torch.where(score > threshold, tail, bulk)


def evaluate(
    model: UncertainAutoencoder,
    inside: Data,
    outside: Data,
    train: Data,
    samples: int = 100,
    *,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> OodResult:
    """All scores of `scores`, typicality and their combination, compared (methods.md 8.1; Figures 9 and 10).

    `typicality` is that of `error` (the paper's), `typicality_nll` that of the model's own likelihood. Take as many
    data inside as outside: AUPR depends on their ratio. Cost: `samples` passes over all three sets; a few thousand
    training data are enough.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        inside: Data from the training distribution that were not trained on.
        outside: Data from elsewhere, of the same shape.
        train: Training data (a part will do).
        samples: How many draws of the model; all data meet the same draws.
        generator: For the draws.
        batch_size: How tensors are cut.
        progress: Show bars on a terminal.
    """
    same, options = SameDraws(model, generator), (batch_size, progress)
    reference, shape, draws = _scores(model, train, samples, same, *options, "scores of training data")
    complete = {"train": _with_derived(reference, reference)}
    for name, data in (("inside", inside), ("outside", outside)):
        found, other, _ = _scores(model, data, samples, same, *options, f"scores of data {name}")
        if other != shape:
            raise DataError(f"the data {name} have shape {list(other)} each, the training data {list(shape)}.")
        complete[name] = _with_derived(found, reference)
    return _compared(complete, draws)


def together(results: Sequence[OodResult]) -> OodResult:
    """Several trainings as one model: a mixture of their posteriors in equal parts, judged on the same data.

    A datum's errors and variances are averaged over the trainings, its likelihood is that of the mixture,
    `log (1/K) Σ_k p_k(x)`; typicality and the combined score are made anew of these. Trainings have codes of their own,
    so the variance *between* trainings means nothing for a code, and is left out of the outputs' likewise.

    Args:
        results: What `evaluate` said of each training, with the same data in the same order.

    Raises:
        DataError: There are none, or their data differ in number.
    """
    if not results:
        raise DataError("no results to put together.")
    complete: dict[str, Scores] = {}
    for name in ("train", "inside", "outside"):
        parts: list[Scores] = [getattr(result, name) for result in results]
        counts = {len(part["nll"]) for part in parts}
        if len(counts) > 1:
            raise DataError(f"the results are of {', '.join(map(str, sorted(counts)))} data {name}: not of the same.")
        joined = {key: torch.stack([part[key] for part in parts]).mean(0) for key in parts[0] if key not in DERIVED}
        nll = torch.stack([part["nll"] for part in parts])
        joined["nll"] = math.log(len(parts)) - (-nll).logsumexp(0)
        complete[name] = _with_derived(joined, complete.get("train", joined))
    return _compared(complete, sum(result.draws for result in results))


def _compared(complete: dict[str, Scores], draws: int) -> OodResult:
    table = {name: _row(score, complete["outside"][name]) for name, score in complete["inside"].items()}
    return OodResult(complete["inside"], complete["outside"], complete["train"], table, draws)


def _with_derived(found: Scores, reference: Scores) -> Scores:
    return {
        **found,
        "typicality": typicality(found["error"], reference["error"]),
        "typicality_nll": typicality(found["nll"], reference["nll"]),
        "combined": combined(found, reference),
    }


def _row(inside: Tensor, outside: Tensor) -> dict[str, float]:
    return {
        "auroc": auroc(inside, outside),
        "aupr": average_precision(inside, outside),
        "fpr95": fpr_at_tpr(inside, outside, FPR_AT),
    }


@torch.no_grad()
def _scores(
    model: UncertainAutoencoder,
    data: Data,
    samples: int,
    same: SameDraws,
    batch_size: int,
    progress: bool,
    what: str,
) -> tuple[Scores, torch.Size, int]:
    """The scores, the shape of a datum, and the number of draws that the model really made."""
    require(model, "reconstruct")
    found: list[Scores] = []
    shape, draws = torch.Size(), 0
    for x in batches(model, data, batch_size, what, progress):
        with naming_shape(model, x, what):
            said = model.reconstruct(x, samples, generator=same.again())
        if said.mean.shape != x.shape:
            raise DataError(f"{what}: the model reconstructs {list(x.shape)} as {list(said.mean.shape)}.")
        found.append({name: score.detach().cpu() for name, score in _of_batch(said, x).items()})
        shape, draws = x.shape[1:], said.draws
    joined = {name: torch.cat([part[name] for part in found]) for name in found[0]}
    for name, score in joined.items():
        if not bool(score.isfinite().all()):
            raise DataError(
                f"{what}: {int((~score.isfinite()).sum())} of {len(score)} values of {name!r} are not finite."
            )
    return joined, shape, draws


def _of_batch(said: Reconstruction, x: Tensor) -> Scores:
    error = (said.mean - x).square()
    # mean over draws of the squared error = that of the mean + biased variance (methods.md 6.5): no draw is kept.
    # Around a mean that is known (and so the expected error's) the variance is the mean square already.
    spread = said.variance if getattr(said, "mean_known", False) else said.variance * ((said.draws - 1) / said.draws)
    return {
        "error": torch.where(x.isnan(), 0, error + spread).flatten(1).sum(1),
        "nll": -said.log_prob,
        "output_variance": said.variance.flatten(1).sum(1),
        "output_std": said.std.flatten(1).sum(1),
        "total_variance": said.total_variance.flatten(1).sum(1),
        "latent_variance": said.latent.variance.flatten(1).sum(1),
        "latent_std": said.latent.std.flatten(1).sum(1),
    }
