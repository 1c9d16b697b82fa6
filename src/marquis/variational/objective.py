"""Compute the terms of the objective, and a loss whose backward pass delivers gradients that are already known.

Per sample and minibatch, to minimise (VL eq. 30, with the prior's scale s in the KL;
docs/method/variational.md#objective):

    -(1/S) Σ_i log p(y_i|x_i, μ)  +  (S/2) Σ_p σ_p² ḡ_p²  +  (β/N) Σ_p KL_p

`S` data in the minibatch, `N` in the training set, `β` the tempering, `ḡ` the gradient at μ of the mean log-likelihood
of labels sampled from the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.errors import NumericalError


@dataclass(frozen=True)
class Terms:
    """Hold the terms of one step's objective, per sample, as plain numbers.

    Attributes:
        log_likelihood: Mean log-likelihood of the minibatch (at the mean, or at the sampled weights for VI).
        regulariser: What Variational Laplace adds for the curvature; 0 for the other methods.
        penalty: `(β/N) KL`; for MAP `(β/N) Σ μ²/(2 s²)`.
    """

    log_likelihood: float
    regulariser: float
    penalty: float

    def __post_init__(self) -> None:
        """Refuse likelihoods that overflow, of which training would make weights that are NaN."""
        if not math.isfinite(self.log_likelihood):  # a width of 0 may make the penalty infinite
            raise NumericalError(
                f"training diverged: the log-likelihood is {self.log_likelihood}. Lower the learning rate, or look for "
                "inputs and labels that are far from all others."
            )

    @property
    def objective(self) -> float:
        """Return the objective per sample, which is maximised: an estimate of the tempered ELBO divided by N."""
        return self.log_likelihood - self.regulariser - self.penalty


def kl(means: Sequence[Tensor], sigmas: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return `Σ_p KL(N(μ_p, σ_p²) ‖ N(0, s_p²))` (VL eq. 12). Cost: O(P)."""
    total = means[0].new_zeros(())
    for mean, sigma, scale in zip(means, sigmas, scales, strict=True):
        ratio = (sigma / scale).square()
        total = total + 0.5 * (ratio + (mean / scale).square() - 1 - ratio.log()).sum()
    return total


def decay(means: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return `Σ_p μ_p² / (2 s_p²)`, which the KL becomes, up to a constant, when σ no longer matters."""
    total = means[0].new_zeros(())
    for mean, scale in zip(means, scales, strict=True):
        total = total + 0.5 * (mean / scale).square().sum()
    return total


class _Precomputed(torch.autograd.Function):
    """Return a number whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (factor,) = grad_outputs
        return (None, None, *(factor * gradient for gradient in ctx.gradients))


def loss_with_gradients(value: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return a scalar loss of this value whose `backward` adds these gradients, times the loss's own factor.

    This is how a gradient that no graph produced (a finite difference) reaches `.grad` in an ordinary training loop,
    with gradient accumulation, loss scaling and distributed training all working as usual.
    """
    with torch.enable_grad():
        return _Precomputed.apply(value, tuple(gradients), *parameters)
