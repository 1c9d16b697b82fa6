"""Update the running curvature, noise and prior of the online learner, a frozen value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.structures import Diagonal, Kronecker, Structure

RELATIVE_NOISE = 1e4
"""Largest ratio of an output's noise precision to the common one, either way: a constant pixel has no noise at all."""
NOISE_MEMORY = 100
"""Steps over which squared errors are averaged for the noise precision; a batch alone has thousands of errors."""


@dataclass(frozen=True, eq=False)
class OnlineState:
    """Hold what the online learner has learnt besides the mean; immutable, so that an old state stays what it was.

    The precision of the weights is `(β (c H + w) + δ) / T`.

    Attributes:
        curvature: H at unit noise, without its start value; None before the first batch.
        initial: w, what is left of the start value H_0; forgotten at the same rate as everything else.
        noise_precision: β, the optimum for all outputs; see `relative_noise` for that of groups of outputs.
        prior_precision: δ.
        steps: Batches seen.
        seen: Data seen.
        data: n, the number of data whose curvature H holds.
        pending: Curvature since the last replacement (rule "redux").
        pending_data: Number of data whose curvature `pending` holds.
        error: Running sum of squared errors at the sampled networks; a tensor where noise is learnt in groups.
        entries: Running number of observed entries, with the same memory and shape as `error`.
    """

    curvature: Structure | None
    initial: float
    noise_precision: float
    prior_precision: float
    steps: int = 0
    seen: int = 0
    data: float = 0.0
    pending: Structure | None = None
    pending_data: float = 0.0
    error: float | Tensor = 0.0
    entries: float | Tensor = 0.0

    @property
    def relative_noise(self) -> Tensor | None:
        """Return `β_o / β` by group of outputs, within `RELATIVE_NOISE`; None where noise is one number.

        `β_o = N_o / E[SSE_o]` is the maximum-likelihood precision of group o (docs/method/evidence.md#mackay-updates).
        A group without a label so far has the common precision.
        """
        if not isinstance(self.error, Tensor) or not isinstance(self.entries, Tensor):
            return None
        relative = self.entries / (self.error * self.noise_precision)
        return torch.where(self.entries > 0, relative, 1.0).clamp(1 / RELATIVE_NOISE, RELATIVE_NOISE)

    def update(
        self, rule: str, batch: Structure, size: int, weight: float, num_data: int, alpha: float, every: int = 1
    ) -> OnlineState:
        """Return the state after one more batch's curvature (docs/method/online.md#update-rules).

        Args:
            rule: Update rule, see `OnlineSettings`.
            batch: Curvature G of the batch: a sum over its data, already scaled; at unit noise.
            size: Number of samples in the batch, B.
            weight: Number of samples that the batch stands for in G.
            num_data: Number of training samples, N.
            alpha: Forgetting rate of one step.
            every: Number of steps that this batch stands for; the stationary point does not depend on it.
        """
        if rule == "redux":
            pending = combined(self.pending, 1.0, batch, float(every))
            data = self.pending_data + every * weight
            if (self.seen + size) // num_data == self.seen // num_data:  # within an epoch
                return self._after(size, pending=pending, pending_data=data)
            return self._after(size, pending=None, pending_data=0.0, curvature=pending, data=data, initial=0.0)
        keep, gain = rates(rule, alpha, every)
        return self.with_curvature(combined(self.curvature, keep, batch, gain), keep, gain, size, weight)

    def with_curvature(self, curvature: Structure, keep: float, gain: float, size: int, weight: float) -> OnlineState:
        """Return the state after a batch that `curvature = keep * old + gain * batch` already holds."""
        data, initial = keep * self.data + gain * weight, keep * self.initial
        return self._after(size, curvature=curvature, data=data, initial=initial)

    def skip(self, size: int) -> OnlineState:
        """Return the state after a batch whose curvature was not computed."""
        return self._after(size)

    def _after(self, size: int, **changes: object) -> OnlineState:
        """Return the state after one more batch, with some fields changed."""
        return replace(self, steps=self.steps + 1, seen=self.seen + size, **changes)  # type: ignore[arg-type]

    def with_error(self, error: float | Tensor, entries: float | Tensor) -> OnlineState:
        """Return the state with the noise precision `β = N O / E[SSE]`, of errors at *sampled* weights.

        No correction for the effective parameters: the sampled error already contains it
        (docs/method/evidence.md#mackay-updates).
        """
        keep = 1 - 1 / NOISE_MEMORY
        error, entries = keep * self.error + error, keep * self.entries + entries
        total, count = (float(value.sum()) if isinstance(value, Tensor) else value for value in (error, entries))
        precision = count / total if total > 0 else self.noise_precision
        return replace(self, error=error, entries=entries, noise_precision=min(max(precision, 1e-8), 1e8))

    def with_prior(self, mean_squared: float, factor: float) -> OnlineState:
        """Return the state with MacKay's prior precision `δ = γ / |μ|²` (docs/method/evidence.md#mackay-updates).

        Args:
            mean_squared: |μ|².
            factor: Constant factor on the curvature.
        """
        if mean_squared <= 0 or self.prior_precision <= 0 or self.curvature is None:
            return self
        precision = self.precision(factor, 1.0)
        # What is left of the start value is no data: it determines weights as the prior does.
        gamma = precision.layout.total - self.constant(1.0) * float(precision.inverse_diagonal().double().sum())
        gamma = max(gamma, 0.0)  # of rounding
        return replace(self, prior_precision=min(max(gamma / mean_squared, 1e-8), 1e8))

    def precision(self, factor: float, temperature: float) -> Structure:
        """Return `(β (c H + w) + δ) / T` as a structure."""
        if self.curvature is None:
            raise DataError("there is no curvature yet: call `step` on at least one batch.")
        weight = factor * self.noise_precision / temperature
        return (self.curvature * weight).add_diagonal(self.constant(temperature))

    def laplace_precision(self, num_data: int) -> Structure:
        """Return `β N/n H + δ`: the curvature of all data as often as they are, and the prior as it is.

        Args:
            num_data: N.
        """
        if self.curvature is None or not self.data:
            raise DataError("there is no curvature yet: call `step` on at least one batch.")
        return (self.curvature * (self.noise_precision * num_data / self.data)).add_diagonal(self.prior_precision)

    def constant(self, temperature: float) -> float:
        """Return the part of the precision that is the same for all weights."""
        return (self.noise_precision * self.initial + self.prior_precision) / temperature


def rates(rule: str, alpha: float, every: int) -> tuple[float, float]:
    """Return what is kept of the curvature at one update, and the weight of the batch's; not for rule "redux"."""
    keep = 1.0 if rule == "van" else (1 - alpha) ** every
    if rule == "lae" and every == 1:
        return keep, 1.0  # without the rounding of 1 - (1 - α)
    return keep, {"van": alpha * every, "lae": (1 - keep) / alpha}.get(rule, 1 - keep)


def combined(old: Structure | None, keep: float, new: Structure, gain: float) -> Structure:
    """Return `keep * old + gain * new`; Kronecker factors are weighted, not their product (docs/method/kronecker.md).

    `new` is used up: its memory may become the result's.
    """
    new = weighted(new, gain)
    if old is None:
        return new
    if isinstance(new, Diagonal) and isinstance(old, Diagonal):
        # Into the batch's own tensor, which nobody else has: memory fresh from the system costs more than the sum.
        return Diagonal(new.layout, new.values.add_(old.values, alpha=keep))
    return weighted(old, keep) + new


def weighted(curvature: Structure, factor: float) -> Structure:
    """Return the curvature of data that count `factor` times; later sums are those of the joint data."""
    if factor == 1:
        return curvature
    return curvature.decay(factor) if isinstance(curvature, Kronecker) else curvature * factor
