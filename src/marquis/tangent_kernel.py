"""Compute the tangent kernel of a network, and predict in function space instead of weight space.

Linearised at its weights, a network with prior `N(0, Delta^-1)` is a Gaussian process with kernel
`k(x, x') = J(x) Delta^-1 J(x')^T` (Jacot et al. 2018; Khan et al. 2019; docs/method/predictive.md#function-space).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.errors import DataError, NumericalError
from marquis.functional.call import Model
from marquis.functional.checks import batch_size, check_inputs, naming_inputs
from marquis.functional.jacobian import jacobian_chunks
from marquis.functional.selection import Selection, parameters_of, select
from marquis.likelihoods import Gaussian, Likelihood, as_likelihood
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.prediction import Prediction
from marquis.priors import BoundPrior, Prior
from marquis.structures import Diagonal, Layout
from marquis.structures.linalg import cholesky


@checked
def kernel(
    model: Model,
    prior: Prior | BoundPrior | float | None = None,
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    memory_limit: int | None = None,
) -> TangentKernel:
    """Return the tangent kernel `k(x, x') = J(x) Delta^-1 J(x')^T` as a callable.

    Args:
        model: a module in eval mode, or a function `(params, x) -> outputs`.
        prior: gives Delta; a number is a scalar precision; default 1.
        params: parameter values, required for a function.
        parameters: which parameters count; as in `curvature.ggn`.
        memory_limit: bytes for temporaries.
    """
    chosen = {n: t.detach().clone() for n, t in select(parameters_of(model, params), parameters).items()}
    layout = Layout.of(chosen)
    if isinstance(prior, BoundPrior):
        prior.layout.require_same(layout)
        bound = prior
    else:
        unbound = prior if isinstance(prior, Prior) else Prior(1.0 if prior is None else prior)
        bound = unbound.bind(layout, model, params=params)
    return _kernel_of(model, chosen, bound, memory_limit)


def _kernel_of(model: Model, mean: dict[str, Tensor], prior: BoundPrior, memory_limit: int | None) -> TangentKernel:
    """Return the kernel of a network at these weights under a prior."""
    posterior = Posterior(prior.layout, mean, Diagonal(prior.layout, prior.vector()))
    return TangentKernel(PosteriorFunction(model, posterior), prior, memory_limit)


@dataclass(frozen=True, eq=False)
class TangentKernel:
    """Compute `k(x, x')` of a network with a prior; made by `kernel`."""

    function: PosteriorFunction
    prior: BoundPrior
    memory_limit: int | None = None

    @checked
    def __call__(self, x: Any, other: Any = None, *, diagonal: bool = False) -> Tensor:
        """Return `[B O, B' O]`: covariance of all outputs at `x` with all outputs at `other` (default: `x` itself).

        Args:
            x: inputs.
            other: more inputs.
            diagonal: only the variances at `x`, `[B, O]`.

        Cost: O backward passes per input; memory `B O P` for the first argument, chunks of the second.
        """
        if diagonal:
            if other is not None:
                raise DataError("diagonal=True is about one set of inputs.")
            return torch.cat([half.square().sum(-1) for half in self._halves(x)])
        first = torch.cat(list(self._halves(x))).flatten(0, 1)
        if other is None:
            return first @ first.mT
        return torch.cat([first @ half.flatten(0, 1).mT for half in self._halves(other)], dim=1)

    def _halves(self, x: Any) -> Any:
        """Return `J Delta^-1/2` of consecutive inputs, `[b, O, P]`."""
        check_inputs(x)
        with naming_inputs(self.function.model, x, lambda: self.function.at_point(x)):
            self.function.inspect(x)
            outputs = self.function.at_point(x)[0].numel()
        root = self.function.posterior.precision.diagonal().rsqrt()
        for _, _, jacobian in jacobian_chunks(self.function, x, outputs, True, self.memory_limit):
            yield jacobian * root

    def condition(self, x: Any, likelihood: str | Likelihood | Any) -> DualPosterior:
        """Return the posterior of the function given data at `x`, for prediction where N O < P.

        The mean stays the network's own; the data narrow the variance down. Cost: `(N O)^2` memory, `(N O)^3` once.
        """
        return DualPosterior(self, x, as_likelihood(likelihood))


@dataclass(frozen=True, eq=False)
class DualPosterior:
    """Predict in function space: `V = k(x,x) - k(x,X) S (I + S^T k(X,X) S)^-1 S^T k(X,x)`, `L = S S^T`.

    Equal to `J A^-1 J^T` with the full posterior precision (Woodbury). The square root S of the output Hessian instead
    of the inverse of L makes it right also where L is singular, as for classes.
    """

    kernel: TangentKernel
    x: Any
    likelihood: Likelihood

    @cached_property
    def _root(self) -> Tensor:
        """Return S, block diagonal `[N O, N C]`."""
        outputs = self.kernel.function.at_point(self.x)
        columns = self.likelihood.resolve(outputs).hessian_sqrt(outputs)
        return torch.block_diag(*columns.flatten(2).permute(1, 2, 0))

    @cached_property
    def _inner(self) -> Tensor:
        """Return `S^T k S`."""
        inner = self._root.mT @ self.kernel(self.x) @ self._root
        return (inner + inner.mT) / 2

    @cached_property
    def _factor(self) -> Tensor:
        """Return the Cholesky factor of `I + S^T k S`."""
        identity = torch.eye(len(self._inner), dtype=self._inner.dtype, device=self._inner.device)
        return cholesky(identity + self._inner, "the dual matrix I + S^T k(X, X) S")

    @property
    def _penalty(self) -> Tensor:
        """Return `|theta* - mu|^2_Delta`."""
        return self.kernel.prior.quadratic(self.kernel.function.posterior.vector)

    def covariance(self, x: Any, other: Any = None) -> Tensor:
        """Return posterior covariance of the outputs, `[B O, B' O]`."""
        left = self._explained(x)
        right = left if other is None else self._explained(other)
        return self.kernel(x, other) - left.mT @ right

    def _explained(self, x: Any) -> Tensor:
        """Return `C^-1/2 S^T k(X, x)`, `[N C, B O]`."""
        return torch.linalg.solve_triangular(self._factor, self._root.mT @ self.kernel(self.x, x), upper=False)

    def predict(self, x: Any) -> Prediction:
        """Return the mean and variance at new inputs; for classes, logits count as independent in the link."""
        mean = self.kernel.function.at_point(x)
        outputs = mean[0].numel()
        variance = self.kernel(x, diagonal=True) - self._explained(x).square().sum(0).reshape(-1, outputs)
        variance = variance.clamp(min=0).reshape(mean.shape).to(mean.dtype)
        predictive = self.likelihood.predictive(mean, variance)
        return Prediction(*predictive, None, "function space", self.likelihood)

    def log_evidence(self, y: Tensor) -> Tensor:
        """Return the log marginal likelihood of the labels, `[]`, equal to that of the full posterior over weights.

        `log p(y|theta*) - 1/2 |theta* - mu|^2_Delta - 1/2 log det(I + S^T k S)` (docs/method/evidence.md): the
        determinants of P x P matrices become one of the data's size. Cost: that of `condition`, once.
        """
        outputs = self.kernel.function.at_point(self.x)
        self.likelihood.validate(outputs, y)
        fit = self.likelihood.log_prob(outputs, y).sum()
        return fit - 0.5 * self._penalty - self._factor.diagonal().log().sum()

    def tune(self, y: Tensor, *, tolerance: float = 1e-6, max_iterations: int = 1000) -> DualPosterior:
        """Return the posterior at the scale of the prior, and the noise of a Gaussian, of the largest evidence.

        MacKay's fixed points with one factor a of all prior precisions: with the eigenvalues e of `S^T k S`,
        `gamma = sum e / (e + a)`, `a = gamma / |theta* - mu|^2_Delta`, `beta = (N O - gamma) / SSE`. Cost: one
        eigen-decomposition of the data's size.

        Raises:
            NumericalError: The fixed points do not settle.
        """
        outputs, prior = self.kernel.function.at_point(self.x), self.kernel.prior
        self.likelihood.validate(outputs, y)
        values = torch.linalg.eigvalsh(self._inner).clamp(min=0)
        penalty = float(self._penalty)
        noise = self.likelihood.scalar_noise_precision
        error = None if noise is None else float((y.to(outputs.dtype) - outputs).square().sum())
        scale, gain, change = 1.0, 1.0, math.inf  # of all prior precisions, and of the noise precision
        for _ in range(max_iterations):
            gamma = float((gain * values / (gain * values + scale)).sum())
            scales = gamma / max(penalty, 1e-30), gain
            if noise is not None and error is not None:
                scales = scales[0], max(outputs.numel() - gamma, 1e-12) / max(error, 1e-30) / float(noise)
            change = max(abs(math.log(new / old)) for new, old in zip(scales, (scale, gain), strict=True))
            scale, gain = scales
            if change < tolerance:
                break
        else:
            raise NumericalError(
                f"prior and noise still change by {change:.1g} after {max_iterations} fixed-point iterations; fix the "
                "noise (Gaussian(noise_precision)), or allow more iterations."
            )
        tuned = prior.with_precision(prior.precision * scale)
        function = self.kernel.function
        made = _kernel_of(function.model, dict(function.posterior.mean), tuned, self.kernel.memory_limit)
        likelihood = self.likelihood
        if noise is not None:
            assert isinstance(likelihood, Gaussian)
            likelihood = likelihood.with_noise(noise * gain)
        return DualPosterior(made, self.x, likelihood)

    def __repr__(self) -> str:
        """Show how much data."""
        return f"DualPosterior({batch_size(self.x)} data, {self.likelihood!r})"
