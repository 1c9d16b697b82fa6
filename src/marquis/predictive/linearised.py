"""Predict with the linearised network in closed form: `f_lin(x) ~ N(f(x; theta*), J A^-1 J^T)`."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.factors.quadratic_forms import Forms, quadratic_forms
from marquis.curvature.output_covariance import output_covariance
from marquis.curvature.planning.memory import allowed_bytes, gigabytes
from marquis.errors import MemoryBudgetError, UnsupportedOperationError
from marquis.functional.jacobian import BUDGET, COPIES, jacobian_chunks, values_and_jacobian
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.last_layer import LastLayer, find_last_layer
from marquis.predictive.links import point
from marquis.predictive.prediction import Sampler
from marquis.predictive.sampling import Averages
from marquis.randomness import normal

COVARIANCE_OUTPUTS = 128
"""Up to this many outputs the covariance of each input is kept unless it is not wanted."""

CLOSED_FORM_OUTPUTS = 1024
"""Up to this many outputs one backward pass for each is taken to be cheaper than what samples would lose."""


@dataclass(frozen=True, eq=False)
class OutputMoments:
    """Hold the Gaussian outputs of the linearised network.

    Attributes:
        mean: `[B, *rest]`.
        variance: `[B, *rest]`.
        covariance: `[B, O, O]`, `[B O, B O]` if joint, or None.
        last_layer: the last layer in factored form, where that is what the posterior is about.
    """

    mean: Tensor
    variance: Tensor
    covariance: Tensor | None
    last_layer: LastLayer | None = None

    @property
    def can_draw(self) -> bool:
        """Return whether more than variances is known."""
        return self.last_layer is not None or self.covariance is not None

    @cached_property
    def _root(self) -> Tensor:
        """Return a root of the covariance by eigenvalues: it may be singular, which no Cholesky factor survives."""
        assert self.covariance is not None
        values, vectors = torch.linalg.eigh(self.covariance)
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return `n` samples of the outputs, as `deviations`."""
        return self.mean + self.deviations(n, generator)

    def deviations(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return `n` samples of outputs minus mean, inputs independent unless joint."""
        if self.last_layer is not None:
            return self.last_layer.deviations(n, generator).to(self.mean.dtype)
        root = self._root
        z = normal((n, *root.shape[:-1]), root, generator)
        return (root @ z.unsqueeze(-1)).reshape(n, *self.mean.shape).to(self.mean.dtype)


def average_probabilities(
    moments: OutputMoments,
    likelihood: Likelihood,
    samples: int,
    generator: torch.Generator | None,
    limit: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Return probabilities averaged over samples of the outputs, and the average entropy, in bounded memory."""
    one = max(1, COPIES * moments.mean.numel() * moments.mean.element_size())
    at_once = max(1, (BUDGET if limit is None else limit) // one)
    sums = Averages()
    for start in range(0, samples, at_once):
        outputs = moments.draw(min(at_once, samples - start), generator)
        sums.add(point(likelihood, outputs.flatten(0, 1)), likelihood, outputs.shape[:2])
    if sums.probs is None:
        raise UnsupportedOperationError(f"link='mc' averages probabilities, but {likelihood} gives none.")
    return sums.probs / samples, None if sums.entropy is None else sums.entropy / samples


def closed_form(
    function: PosteriorFunction, x: Any, *, joint: bool, diagonal: bool | None, limit: int | None
) -> OutputMoments | None:
    """Return the moments of the outputs, or None where they are too many for a backward pass each."""
    last_layer = None if joint else find_last_layer(function, x)
    if last_layer is not None:
        outputs = last_layer.outputs
        small = outputs.shape[1] <= COVARIANCE_OUTPUTS
        covariance = last_layer.covariance() if (small if diagonal is None else not diagonal) else None
        return OutputMoments(outputs, last_layer.variance().to(outputs.dtype), covariance, last_layer)
    mean = function.at_point(x)
    outputs = mean[0].numel()
    if joint:
        return _joint(function, x, mean, limit)
    if diagonal is None and outputs > CLOSED_FORM_OUTPUTS:
        return None
    forms = _forms(function)
    needed = _bytes(mean, outputs, function, forms is None)
    if diagonal is None:
        whole = outputs <= COVARIANCE_OUTPUTS and needed <= allowed_bytes(mean.device, limit) // 4
    else:
        whole = not diagonal
        if whole:
            check_covariance_fits(mean, outputs, limit, function, forms is None)
    if forms is not None:
        with suppress(UnsupportedOperationError):  # a network that cannot be captured still has Jacobians
            params = {**function.fixed, **function.point}
            compute = lambda: output_covariance(function.model, params, x, forms, whole=whole, limit=limit)[1]  # noqa: E731
            return _moments(mean, function.posterior.precision.over_processes(compute), whole)
    posterior = function.posterior
    like = posterior.precision.like
    moments = torch.zeros(len(mean), outputs, *((outputs,) if whole else ()), dtype=like.dtype, device=like.device)
    for inputs, rows, jacobian in jacobian_chunks(function, x, outputs, whole, limit):
        if whole:
            moments[inputs] = posterior.precision.quadratic(jacobian)
        else:
            moments[inputs, rows] = posterior.precision.quadratic(jacobian, diagonal_only=True)
    return _moments(mean, moments, whole)


def _moments(mean: Tensor, moments: Tensor, whole: bool) -> OutputMoments:
    """Return mean, variance and, where they are whole, covariances."""
    variance = moments.diagonal(dim1=-2, dim2=-1) if whole else moments
    return OutputMoments(mean, variance.reshape(mean.shape).to(mean.dtype), moments if whole else None)


def differentiable_moments(
    function: PosteriorFunction, x: Any, *, joint: bool, limit: int | None
) -> tuple[OutputMoments, Sampler]:
    """Return mean, variance and covariance of the outputs, and a function that samples them, all with gradients to `x`.

    Equal to `closed_form`. Samples are `f(x) + J(x) (theta_s - theta*)`, so the same weights serve all inputs and no
    root of a covariance is differentiated. Cost: that of `closed_form`, and O more backward passes per gradient; memory
    `B O P`, as the graph keeps the Jacobian.
    """
    outputs, posterior = function.at_point(x), function.posterior
    shape = outputs.shape
    check_covariance_fits(outputs, outputs.numel(), limit, function, True)
    with torch.enable_grad():
        values, jacobian = values_and_jacobian(function, x, differentiable=True)
        mean = values.reshape(shape)
        rows = jacobian.to(posterior.precision.dtype)
        covariance = posterior.precision.quadratic(rows.flatten(0, 1) if joint else rows)
        moments = _moments(mean, covariance, True)

    def draw(n: int, generator: torch.Generator | None) -> Tensor:
        weights = posterior.precision.sample_from(posterior.noise(n, generator))
        with torch.enable_grad():
            return mean + torch.einsum("bok,nk->nbo", rows, weights).reshape(n, *shape).to(mean.dtype)

    return moments, draw


_FORMS: weakref.WeakKeyDictionary[Posterior, Forms | None] = weakref.WeakKeyDictionary()


def _forms(function: PosteriorFunction) -> Forms | None:
    """Return what makes covariances without Jacobians, once per posterior; None where only Jacobians do."""
    posterior = function.posterior
    if function.at is not None or posterior.index is not None:
        return None
    if posterior not in _FORMS:
        _FORMS[posterior] = quadratic_forms(posterior.precision)
    return _FORMS[posterior]


def _joint(function: PosteriorFunction, x: Any, mean: Tensor, limit: int | None) -> OutputMoments:
    """Return the moments with the covariance over all inputs together."""
    check_covariance_fits(mean, mean.numel(), limit, function, True)
    outputs = mean[0].numel()
    pieces = [jacobian for _, _, jacobian in jacobian_chunks(function, x, outputs, True, limit)]
    stacked = torch.cat(pieces).flatten(0, 1)
    return _moments(mean, function.posterior.precision.quadratic(stacked), True)


def _bytes(mean: Tensor, rows: int, function: PosteriorFunction, with_jacobian: bool) -> int:
    """Return the bytes of a covariance of this many outputs, with its Jacobian where there is one."""
    return rows * (rows + with_jacobian * COPIES * function.posterior.layout.total) * mean.element_size()


def check_covariance_fits(
    mean: Tensor, rows: int, limit: int | None, function: PosteriorFunction, with_jacobian: bool
) -> None:
    """Refuse a covariance that cannot fit, before it is tried."""
    needed, allowed = _bytes(mean, rows, function, with_jacobian), allowed_bytes(mean.device, limit)
    if needed > max(allowed, 2**24):
        raise MemoryBudgetError(
            f"the covariance of {rows:,} outputs over {function.posterior.layout.total:,} weights takes about "
            f"{gigabytes(needed)}, but {gigabytes(allowed)} may be used. Ask for diagonal=True, or "
            "method='linearised-samples'."
        )
