"""Measure how well a score ranks out-of-distribution (OOD) above in-distribution data: ROC, AUROC, AUPR, FPR.

OOD data are the positives everywhere, and a larger score means "more likely OOD". Nothing is flipped: a score that
points the wrong way gets an AUROC below one half, and that is reported. All functions take scores of in-distribution
data `in_scores [n]` and of OOD data `out_scores [m]`, and cost O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.arguments import checked_arrays
from marquis.errors import DataError
from marquis.options import renamed_arguments


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Hold the points of a ROC curve, from (0, 0) to (1, 1), one for each different score.

    Attributes:
        false_positive_rate: Share of the in-distribution data that is flagged.
        true_positive_rate: Share of the OOD data that is flagged.
        threshold: A sample is flagged if its score is at least this; infinity at the first point.
    """

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    threshold: Tensor


@renamed_arguments(inside="in_scores", outside="out_scores")
@checked_arrays
def roc_curve(in_scores: Tensor, out_scores: Tensor) -> RocCurve:
    """Compute false and true positive rates for every threshold that matters."""
    threshold, false, true = _flagged(in_scores, out_scores)
    nothing = true.new_zeros(1)
    return RocCurve(
        torch.cat([nothing, false / false[-1]]),
        torch.cat([nothing, true / true[-1]]),
        torch.cat([nothing + torch.inf, threshold]),
    )


@renamed_arguments(inside="in_scores", outside="out_scores")
@checked_arrays
def auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """Return the area under the ROC curve: the probability that an OOD score exceeds an in-distribution one.

    Mann-Whitney with mid-ranks, so ties count one half.
    """
    in_scores, out_scores = _scores(in_scores, out_scores)
    _, place, counts = torch.unique(torch.cat([in_scores, out_scores]), return_inverse=True, return_counts=True)
    middle = counts.cumsum(0).double() - (counts - 1).double() / 2  # mean of the ranks that equal scores share
    n, m = len(in_scores), len(out_scores)
    return float((middle[place[n:]].sum() - m * (m + 1) / 2) / (n * m))


@renamed_arguments(inside="in_scores", outside="out_scores")
@checked_arrays
def average_precision(in_scores: Tensor, out_scores: Tensor) -> float:
    """Return the area under the precision-recall curve as average precision, `Σ_k (R_k - R_{k-1}) P_k`.

    No interpolation between the points, which would be optimistic. It depends on the share of OOD data: compare
    only at equal shares, best with sets of equal size.
    """
    _, false, true = _flagged(in_scores, out_scores)
    gained = torch.diff(true, prepend=true.new_zeros(1))
    return float((gained * (true / (true + false))).sum() / true[-1])


@renamed_arguments(inside="in_scores", outside="out_scores")
@checked_arrays
def fpr_at_tpr(in_scores: Tensor, out_scores: Tensor, tpr: float = 0.95) -> float:
    """Return the smallest false positive rate at which at least `tpr`, in (0, 1], of the OOD data are flagged."""
    if not 0 < tpr <= 1:
        raise DataError(f"tpr={tpr}: a true positive rate to reach lies in (0, 1].")
    curve = roc_curve(in_scores, out_scores)
    return float(curve.false_positive_rate[curve.true_positive_rate >= tpr].min())


def _flagged(in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct scores, descending, and how many in-distribution and OOD scores are at least that large."""
    in_scores, out_scores = _scores(in_scores, out_scores)
    values, place = torch.unique(torch.cat([in_scores, out_scores]), return_inverse=True)
    false, true = (
        torch.bincount(where, minlength=len(values)).flip(0).cumsum(0).double()
        for where in (place[: len(in_scores)], place[len(in_scores) :])
    )
    return values.flip(0), false, true


def _scores(in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sets of scores in double precision, checked."""
    for name, scores in (("in-distribution", in_scores), ("OOD", out_scores)):
        if not isinstance(scores, Tensor) or scores.dim() != 1 or len(scores) == 0:
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise DataError(f"the {name} scores must be a tensor [n] with n at least 1, got {got}.")
        if bool(scores.isnan().any()):
            raise DataError(f"{int(scores.isnan().sum())} of {len(scores)} {name} scores are NaN: they have no rank.")
    return in_scores.detach().double(), out_scores.detach().double()
