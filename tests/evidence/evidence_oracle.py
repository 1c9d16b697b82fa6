"""Small problems in float64 whose evidence is known in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from marquis.curvature import accumulate
from marquis.evidence import EvidenceProblem, Statistics
from marquis.functional.selection import parameters_of, select
from marquis.likelihoods import Gaussian, Likelihood
from marquis.priors import Prior
from marquis.structures import Layout

F64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


def batches(x: Tensor, y: Tensor, size: int = 7) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def build(
    model: Any,
    loader: Sequence[Any],
    likelihood: Likelihood,
    prior: Prior | None = None,
    structure: str = "full",
    *,
    params: dict[str, Tensor] | None = None,
    temperature: float = 1.0,
    mask_of: Any = None,
) -> EvidenceProblem:
    """As `Laplace` builds it: curvature at unit noise, statistics at the weights."""
    chosen = select(parameters_of(model, params))
    layout = Layout.of(chosen)
    mean = layout.flatten(chosen).detach()
    curvature = accumulate(
        model, loader, likelihood.at_unit_noise(), structure=structure, params=params, mask_of=mask_of, progress=False
    )
    bound = (prior or Prior()).bind(layout, model, loader[0][0], params=params, like=mean)
    seen = Statistics.gather(model, loader, likelihood, params=params, mask_of=mask_of)
    return EvidenceProblem(
        curvature,
        mean,
        bound,
        likelihood,
        seen,
        temperature,
        model=model,
        loader=loader,
        params=params,
        mask_of=mask_of,
    )


class Regression:
    """Bayesian linear regression with O outputs: y = W phi + b, its design matrix, and everything in closed form.

    The outputs of datum n are flattened into rows `n O .. n O + O - 1` of the design matrix, as are the labels.
    """

    def __init__(
        self, n: int = 23, inputs: int = 4, outputs: int = 1, seed: int = 0, size: int = 7, bias: bool = True
    ) -> None:
        self.model = nn.Linear(inputs, outputs, bias=bias).double()
        self.x = randn(n, inputs, seed=seed)
        truth = randn(outputs, inputs, seed=seed + 1)
        self.y = self.x @ truth.T + 0.3 + 0.5 * randn(n, outputs, seed=seed + 2)
        self.loader = batches(self.x, self.y, size)
        eye = torch.eye(outputs, dtype=F64)
        weights = torch.einsum("ni,op->nopi", self.x, eye).reshape(n * outputs, outputs * inputs)
        self.design = torch.cat([weights, eye.repeat(n, 1)], dim=1) if bias else weights
        self.labels = self.y.reshape(-1)

    def optimum(self, precision: Tensor, beta: float | Tensor, mean: Tensor | float = 0.0) -> Tensor:
        """argmin of beta/2 |y - Phi theta|^2 + 1/2 |theta - mean|^2_Delta."""
        matrix = beta * self.design.T @ self.design + torch.diag(precision)
        return torch.linalg.solve(matrix, beta * self.design.T @ self.labels + precision * mean)

    def log_marginal(self, precision: Tensor, beta: float | Tensor, mean: Tensor | float = 0.0) -> Tensor:
        """log N(y; Phi mean, Phi Delta^-1 Phi^T + I/beta), differentiable."""
        covariance = (self.design / precision) @ self.design.T
        covariance = covariance + torch.eye(len(covariance), dtype=F64) / beta
        centre = self.design @ (torch.zeros_like(precision) + mean)
        return MultivariateNormal(centre, covariance).log_prob(self.labels)

    def place(self, theta: Tensor) -> None:
        """Put weights into the module."""
        with torch.no_grad():
            nn.utils.vector_to_parameters(theta, self.model.parameters())

    def problem(self, prior: Prior | None = None, beta: float = 1.0, structure: str = "full", **kwargs: Any):
        return build(self.model, self.loader, Gaussian(beta), prior, structure, **kwargs)

    def at_optimum(self, prior: Prior | None = None, beta: float = 1.0, structure: str = "full") -> EvidenceProblem:
        """The problem at the optimum for this prior and noise."""
        bound = self.problem(prior, beta).grouped_prior
        self.place(self.optimum(bound.vector(), beta, bound.mean))
        return self.problem(prior, beta, structure)
