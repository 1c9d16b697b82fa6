"""Measure the calibration of class probabilities and of means with variances (docs/method/tasks.md#calibration)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, Share, checked_arrays, require_probabilities
from marquis.errors import DataError
from marquis.functional.checks import check_finite
from marquis.notebook import ShownAsText
from marquis.tasks.batches import as_tensor

BINS = 15
LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, eq=False)
class Reliability(ShownAsText):
    """Hold a reliability diagram: accuracy of the predictions of each confidence. `print` it for a table.

    Attributes:
        edges: Borders of the bins `[bins + 1]`; a bin is closed on the right, and 0 belongs to the first.
        count: Number of predictions in each bin.
        confidence: Their mean confidence; NaN where there are none.
        accuracy: The share of them that is right; NaN where there are none.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gap(self) -> Tensor:
        """Return `|accuracy - confidence|` of each bin; 0 where it is empty."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)

    @property
    def ece(self) -> float:
        """Return the expected calibration error, `Σ_m w_m g_m`."""
        return float((self._weight * self.gap).sum())

    @property
    def rmsce(self) -> float:
        """Return the root mean square calibration error, `sqrt(Σ_m w_m g_m²)`; never below `ece`."""
        return float((self._weight * self.gap.square()).sum().sqrt())

    @property
    def mce(self) -> float:
        """Return the maximum calibration error over the bins that are not empty; never below `rmsce`."""
        return float(self.gap.max())

    @property
    def _weight(self) -> Tensor:
        """Return the share of the predictions in each bin."""
        return self.count.double() / self.count.sum()  # integers alone would divide in single precision

    def __str__(self) -> str:
        lines = ["confidence        count   mean   right"]
        columns = self.edges[:-1], self.edges[1:], self.count, self.confidence, self.accuracy
        for low, high, count, mean, right in zip(*(column.tolist() for column in columns), strict=True):
            values = f"{mean:6.3f}  {right:6.3f}" if count else f"{'-':>6}  {'-':>6}"
            lines.append(f"{low:5.3f} to {high:5.3f}  {count:7d} {values}")
        return "\n".join([*lines, f"ECE {self.ece:.4f}   RMSCE {self.rmsce:.4f}   MCE {self.mce:.4f}"])


@checked_arrays
def reliability(probs: Tensor, labels: Tensor, bins: AtLeastOne = BINS) -> Reliability:
    """Compute confidence `max_k p_k` against accuracy in bins of equal width (docs/method/tasks.md#calibration).

    Args:
        probs: Class probabilities `[n, C]`.
        labels: True classes `[n]`, integers from 0 to C - 1.
        bins: Number of bins.
    """
    probs, labels = as_tensor(probs, "probs"), as_tensor(labels, "labels")
    if labels.is_complex() or (labels.is_floating_point() and not bool((labels == labels.round()).all())):
        raise DataError(f"labels are {labels.dtype} with values between classes; pass whole numbers from 0.")
    _check_probabilities(probs, labels)
    confidence, chosen = probs.detach().max(1)
    # Borders in the type of the probabilities: a float32 0.6 is larger than the float64 0.6 and would change bins.
    edges = (torch.arange(bins + 1, dtype=torch.float64, device=probs.device) / bins).to(probs.dtype)
    place = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(place, minlength=bins)
    total = torch.zeros(2, bins, dtype=torch.float64, device=probs.device)
    total.index_add_(1, place, torch.stack([confidence.double(), (chosen == labels).double()]))
    mean = total / count  # 0 / 0 is NaN, as promised
    return Reliability(edges.double(), count, mean[0], mean[1])


@checked_arrays
def expected_calibration_error(probs: Tensor, labels: Tensor, bins: AtLeastOne = BINS) -> float:
    """Return the ECE `Σ_m w_m |accuracy_m - confidence_m|`; arguments as for `reliability`."""
    return reliability(probs, labels, bins).ece


@checked_arrays
def root_mean_square_calibration_error(probs: Tensor, labels: Tensor, bins: AtLeastOne = BINS) -> float:
    """Return the RMSCE `sqrt(Σ_m w_m |accuracy_m - confidence_m|²)`; arguments as for `reliability`."""
    return reliability(probs, labels, bins).rmsce


@checked_arrays
def maximum_calibration_error(probs: Tensor, labels: Tensor, bins: AtLeastOne = BINS) -> float:
    """Return the MCE, the largest `|accuracy_m - confidence_m|` of a bin with data; arguments as for `reliability`."""
    return reliability(probs, labels, bins).mce


@dataclass(frozen=True, eq=False)
class ErrorCurve:
    """Hold squared error against predicted variance, in bins of equally many entries by increasing variance.

    Attributes:
        variance: Mean predicted variance of each bin. Calibrated variances lie on the diagonal against `squared_error`.
        squared_error: Mean squared error of each bin.
        count: Number of entries in each bin.
    """

    variance: Tensor
    squared_error: Tensor
    count: Tensor


@checked_arrays
def coverage(mean: Tensor, variance: Tensor, target: Tensor, levels: Sequence[float] = LEVELS) -> dict[float, float]:
    """Return how often the central Gaussian interval of each level holds the target; calibrated if both agree.

    Args:
        mean: Predictions, of any shape.
        variance: Their variances, those of a *new observation* (`total_variance`), of the same shape.
        target: What was to be predicted; entries that are NaN are left out.
        levels: Probabilities in (0, 1).

    Returns:
        The observed share for each level.
    """
    mean, variance, target = _observed(mean, variance, target)
    _check_levels(levels)
    distance, std = (target - mean).abs(), variance.sqrt()
    widths = {level: _half_width(level) for level in levels}
    return {level: float((distance <= width * std).double().mean()) for level, width in widths.items()}


@checked_arrays
def sample_coverage(samples: Tensor, target: Tensor, levels: Sequence[float] = LEVELS) -> dict[float, float]:
    """Return how often the target lies between the central quantiles of samples; no Gaussian is assumed.

    Few samples cannot reach high levels: the range of S samples covers `(S - 1)/(S + 1)` at best.

    Args:
        samples: Samples of a new observation `[S, ...]`.
        target: What was to be predicted `[...]`; entries that are NaN are left out.
        levels: Probabilities in (0, 1).
    """
    samples, target = as_tensor(samples, "samples"), as_tensor(target, "target")
    if samples.shape[1:] != target.shape or samples.dim() == target.dim() or len(samples) < 2:
        raise DataError(
            f"samples are [S, *target.shape], S at least 2; got {list(samples.shape)}, {list(target.shape)}."
        )
    _check_levels(levels)
    observed = ~target.isnan()
    if not bool(observed.any()):
        raise DataError("there is no target to compare with: all entries are missing.")
    ordered, targets = samples.detach().double()[:, observed].sort(0).values, target.detach().double()[observed]
    if bool(ordered[-1].isnan().any()):  # sorted to the end, where they would pass for the upper quantiles
        raise DataError("samples must not be NaN where there is a target.")
    return {level: _share_between_quantiles(ordered, targets, level) for level in levels}


@checked_arrays
def sharpness(variance: Tensor, level: Share = 0.9) -> float:
    """Return the mean width of central Gaussian intervals: of two models with right coverage, prefer the sharper."""
    variance = as_tensor(variance, "variance")
    if not variance.numel() or not bool(((variance >= 0) & variance.isfinite()).all()):
        raise DataError("variances must be there and none of them negative, infinite or NaN.")
    return 2 * _half_width(level) * float(variance.detach().double().sqrt().mean())


@checked_arrays
def error_against_variance(mean: Tensor, variance: Tensor, target: Tensor, bins: int = 10) -> ErrorCurve:
    """Compute the mean squared error in bins of the predicted variance; equal if calibrated. Cost O(n log n).

    Args:
        mean: Predictions, of any shape.
        variance: Their variances, of the same shape.
        target: What was to be predicted; entries that are NaN are left out.
        bins: Number of bins; their counts differ by at most one.
    """
    mean, variance, target = _observed(mean, variance, target)
    if not 1 <= bins <= len(target):
        raise DataError(f"bins={bins} must lie between 1 and the number of observed entries, {len(target)}.")
    order = variance.argsort(stable=True)
    predicted, error = variance[order].tensor_split(bins), (mean - target).square()[order].tensor_split(bins)
    variances, errors = (torch.stack([part.mean() for part in parts]) for parts in (predicted, error))
    check_finite((variances, errors), "variances and squared errors")
    return ErrorCurve(variances, errors, torch.tensor([len(part) for part in error]))


def _half_width(level: float) -> float:
    """Return half the width of the central interval of a standard normal."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))


def _share_between_quantiles(ordered: Tensor, target: Tensor, level: float) -> float:
    """Return the share of targets between the quantiles, at plotting positions i/(S+1), which have exact coverage."""
    count = len(ordered)
    below = (1 - level) / 2 * (count + 1) - 1
    low = min(max(below, 0.0), count - 1.0)
    first, part = int(low), low - int(low)
    second = min(first + 1, count - 1)
    lower = ordered[first] * (1 - part) + ordered[second] * part
    upper = ordered[count - 1 - first] * (1 - part) + ordered[count - 1 - second] * part
    return float(((target >= lower) & (target <= upper)).double().mean())


def _observed(mean: Tensor, variance: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and target where there is a target, checked."""
    mean, variance, target = as_tensor(mean, "mean"), as_tensor(variance, "variance"), as_tensor(target, "target")
    if not mean.shape == variance.shape == target.shape:
        shapes = f"{list(mean.shape)}, {list(variance.shape)}, {list(target.shape)}"
        raise DataError(f"mean, variance and target must have one shape, got {shapes}.")
    observed = ~target.isnan()
    if not bool(observed.any()):
        raise DataError("there is no target to compare with: all entries are missing, or there are none.")
    mean, variance, target = (t.detach()[observed].double() for t in (mean, variance, target))
    if not bool((variance >= 0).all()) or not bool(mean.isfinite().all()):
        raise DataError("means must be finite and variances not negative where there is a target.")
    return mean, variance, target


def _check_levels(levels: Sequence[float]) -> None:
    """Refuse levels that are no probabilities."""
    if not levels or isinstance(levels, str) or not all(0 < level < 1 for level in levels):
        raise DataError(f"levels are probabilities between 0 and 1, at least one; got {list(levels)}.")


def _check_probabilities(probs: Tensor, labels: Tensor) -> None:
    """Refuse what are no class probabilities, and labels that are no classes."""
    if probs.dim() != 2 or probs.numel() == 0 or labels.shape != probs.shape[:1]:
        shapes = f"{list(probs.shape)} and {list(labels.shape)}"
        raise DataError(f"calibration needs probabilities [n, C] and labels [n], n at least 1; got {shapes}.")
    if not probs.is_floating_point():
        raise DataError(f"probs are {probs.dtype}, not probabilities: apply softmax to logits first.")
    require_probabilities(probs.detach().double().cpu().numpy())
    if labels.is_floating_point() or bool((labels < 0).any()) or bool((labels >= probs.shape[1]).any()):
        raise DataError(f"labels must be integers from 0 to {probs.shape[1] - 1}, the number of a column of `probs`.")
