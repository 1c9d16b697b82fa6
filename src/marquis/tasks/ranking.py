"""How well a score ranks what is outside above what is inside: ROC curve, AUROC, AUPR, false positives at a rate.

Everywhere the data outside the distribution are the positives and a larger score means "more likely outside". Nothing
is flipped: a score that points the wrong way gets an AUROC below one half, and that is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.errors import DataError


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Points of a ROC curve, from (0, 0) to (1, 1), one for each different score.

    Attributes:
        false_positive_rate: Share of the inside that is flagged.
        true_positive_rate: Share of the outside that is flagged.
        threshold: A datum is flagged if its score is at least this; infinity at the first point.
    """

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    threshold: Tensor


def roc_curve(inside: Tensor, outside: Tensor) -> RocCurve:
    """False against true positive rate for every threshold that matters. Cost O(n log n).

    Args:
        inside: Scores of in-distribution data `[n]`.
        outside: Scores of out-of-distribution data `[m]`.
    """
    threshold, false, true = _flagged(inside, outside)
    nothing = true.new_zeros(1)
    return RocCurve(
        torch.cat([nothing, false / false[-1]]),
        torch.cat([nothing, true / true[-1]]),
        torch.cat([nothing + torch.inf, threshold]),
    )


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve: the probability that an outside score exceeds an inside one (methods.md 8.1).

    Mann-Whitney with mid-ranks, so ties count one half. Cost O(n log n).

    Args:
        inside: Scores of in-distribution data `[n]`.
        outside: Scores of out-of-distribution data `[m]`.
    """
    inside, outside = _scores(inside, outside)
    _, place, counts = torch.unique(torch.cat([inside, outside]), return_inverse=True, return_counts=True)
    middle = counts.cumsum(0).double() - (counts - 1).double() / 2  # mean of the ranks that equal scores share
    n, m = len(inside), len(outside)
    return float((middle[place[n:]].sum() - m * (m + 1) / 2) / (n * m))


def average_precision(inside: Tensor, outside: Tensor) -> float:
    """Area under the precision-recall curve as average precision: `Σ_k (R_k - R_{k-1}) P_k` over the thresholds.

    No interpolation between the points, which would be optimistic. It depends on the share of outside data: compare
    only at equal shares, best with sets of equal size. Cost O(n log n).

    Args:
        inside: Scores of in-distribution data `[n]`.
        outside: Scores of out-of-distribution data `[m]`.
    """
    _, false, true = _flagged(inside, outside)
    gained = torch.diff(true, prepend=true.new_zeros(1))
    return float((gained * (true / (true + false))).sum() / true[-1])


def fpr_at_tpr(inside: Tensor, outside: Tensor, tpr: float = 0.95) -> float:
    """The smallest false positive rate at which at least `tpr` of the outside is flagged (methods.md 8.1).

    Args:
        inside: Scores of in-distribution data `[n]`.
        outside: Scores of out-of-distribution data `[m]`.
        tpr: The true positive rate asked for, in (0, 1].
    """
    if not 0 < tpr <= 1:
        raise DataError(f"tpr={tpr}: a true positive rate to reach lies in (0, 1].")
    curve = roc_curve(inside, outside)
    return float(curve.false_positive_rate[curve.true_positive_rate >= tpr].min())


def _flagged(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Different scores, falling, and how many of the inside and of the outside are at least that large."""
    inside, outside = _scores(inside, outside)
    values, place = torch.unique(torch.cat([inside, outside]), return_inverse=True)
    false, true = (
        torch.bincount(where, minlength=len(values)).flip(0).cumsum(0).double()
        for where in (place[: len(inside)], place[len(inside) :])
    )
    return values.flip(0), false, true


def _scores(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    for name, scores in (("inside", inside), ("outside", outside)):
        if not isinstance(scores, Tensor) or scores.dim() != 1 or len(scores) == 0:
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise DataError(f"the {name} scores must be a tensor [n] with n at least 1, got {got}.")
        if bool(scores.isnan().any()):
            raise DataError(f"{int(scores.isnan().sum())} of {len(scores)} {name} scores are NaN: they have no rank.")
    return inside.detach().double(), outside.detach().double()
