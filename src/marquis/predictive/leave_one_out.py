"""Predict every example by a posterior without it, in closed form (docs/method/predictive.md#leave-one-out)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from marquis.errors import UnsupportedOperationError
from marquis.functional.jacobian import jacobian_chunks
from marquis.likelihoods import Likelihood
from marquis.likelihoods.tools import flatten_outputs
from marquis.loaders import read_batches
from marquis.predictive.function import PosteriorFunction
from marquis.structures import Diagonal, Full, LowRank, Structure

EXACT = (Diagonal, Full, LowRank)
"""Structures from which one example can be taken away again."""


def require_exact(precision: Structure) -> None:
    """Refuse a structure from which one example cannot be taken away."""
    if not isinstance(precision, EXACT):
        raise UnsupportedOperationError(
            f"leave-one-out takes single examples away from the curvature, which is not defined for {precision!r}: fit "
            "with structure='full', 'lowrank' or 'diagonal', or pass validation data instead."
        )


def leave_one_out(
    function: PosteriorFunction, precision: Structure, likelihood: Likelihood, temperature: float, loader: Iterable[Any]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield mean and variance `[b, *rest]`, covariance `[b, O, O]` and labels, each example predicted without itself.

    `h_-n = h_n (I - L_n h_n)^-1` and `f_-n = f_n + h_-n r_n` with `h_n = J_n Sigma J_n^T`, the output Hessian L and the
    gradient r (equation 4). A diagonal posterior takes the example away from its diagonal. Exact for a Gaussian
    likelihood, first order otherwise (Rad and Maleki 2020), and only where the weights are a mode.

    Args:
        function: The network at the mode.
        precision: `H/T + prior`.
        likelihood: With its present noise.
        temperature: T.
        loader: The data of which H is the curvature, with labels.

    Cost: O backward passes per example.

    Raises:
        UnsupportedOperationError: Of blocks and Kronecker factors one example cannot be taken away.
    """
    require_exact(precision)
    device = function.posterior.vector.device
    for x, y, _ in read_batches(loader, device, labels_for="leave-one-out"):
        f = function.at_point(x)
        root = likelihood.hessian_sqrt(f).flatten(2).movedim(0, -1) / temperature**0.5  # S [B, O, C] with L = S S^T
        residual = flatten_outputs(likelihood.gradient(f, y)) / temperature
        for inputs, _, jacobian in jacobian_chunks(function, x, f[0].numel(), True, None):
            jacobian, s = jacobian.to(precision.dtype), root[inputs].to(precision.dtype)
            if isinstance(precision, Diagonal):
                curvature = torch.einsum("boc,bop->bcp", s, jacobian).square().sum(1)
                covariance = (jacobian / (precision.diagonal() - curvature).unsqueeze(1)) @ jacobian.mT
            else:
                h = precision.quadratic(jacobian)
                inner = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) - s.mT @ h @ s
                covariance = h + h @ s @ torch.linalg.solve(inner, s.mT @ h)
            shift = (covariance @ residual[inputs].to(covariance.dtype).unsqueeze(-1)).squeeze(-1)
            mean = f[inputs] + shift.reshape(f[inputs].shape).to(f.dtype)
            yield mean, covariance.diagonal(dim1=-2, dim2=-1).reshape(mean.shape).to(f.dtype), covariance, y[inputs]
