"""Compute the logarithm of the evidence: how probable the data are under prior and noise, all weights considered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.evidence.inputs import EvidenceProblem
from marquis.priors import BoundPrior


@dataclass(frozen=True)
class EvidenceTerms:
    """Hold the terms of `log Z = fit - 1/2 (scatter + complexity)` (docs/method/evidence.md#log-marginal-likelihood).

    Attributes:
        fit: log likelihood at the weights, divided by the temperature.
        scatter: `(theta - mu0)^T Delta (theta - mu0)`, how far the weights are from the prior mean.
        complexity: `log|A| - log|Delta|`, how much the data narrow the prior down.
    """

    fit: Tensor
    scatter: Tensor
    complexity: Tensor

    @property
    def value(self) -> Tensor:
        """Return the log evidence."""
        return self.fit - 0.5 * (self.scatter + self.complexity)


def evidence_terms(problem: EvidenceProblem) -> EvidenceTerms:
    """Return the three terms of the log evidence; gradients flow to prior precisions and to the noise precision."""
    precision = problem.precision()
    return EvidenceTerms(
        fit=log_likelihood(problem) / problem.temperature,
        scatter=problem.prior.quadratic(problem.mean).double(),
        complexity=precision.logdet().double() - problem.prior.logdet().double(),
    )


@checked
def log_evidence(problem: EvidenceProblem) -> Tensor:
    """Return the log marginal likelihood of the data, a float64 number with all constants.

    See docs/method/evidence.md#log-marginal-likelihood.

    `log Z = -sum_n l(y_n, f(x_n; theta*))/T - 1/2 [(theta*-mu0)^T Delta (theta*-mu0) + log|A| - log|Delta|]`; the
    powers of 2 pi of prior and posterior cancel, those of the likelihood stay. Exact for a Gaussian linear model at
    its optimum with a full or low-rank structure. Cost: one log-determinant of the structure.
    """
    return evidence_terms(problem).value


def log_likelihood(problem: EvidenceProblem) -> Tensor:
    """Return the sum of `log p(y|f)` over the data at the present noise."""
    statistics, noise = problem.statistics, problem.noise
    if noise is None:
        assert statistics.log_likelihood is not None
        return statistics.log_likelihood.double()
    assert statistics.sse is not None
    beta = noise.double().to(statistics.sse.device)
    return 0.5 * (statistics.observed * torch.log(beta / (2 * math.pi)) - beta * statistics.sse.double())


@checked
def effective_parameters(problem: EvidenceProblem) -> Tensor:
    """Return the effective number of parameters per prior group, `gamma_g = P_g - delta_g tr(Sigma_gg)`, `[G]`.

    See docs/method/evidence.md#mackay-updates.

    Between 0 and the size of the group: how many directions the data determine. Cost: the diagonal of the posterior
    covariance.
    """
    prior = problem.grouped_prior
    gamma = problem.scaled_curvature().effective_dimension(prior.diagonal())
    return sum_by_group(prior, gamma)


def sum_by_group(prior: BoundPrior, values: Tensor) -> Tensor:
    """Return the sums of one value per weight `[..., P]` over each group of the prior, `[..., G]`."""
    totals = values.new_zeros(*values.shape[:-1], len(prior.precision))
    return totals.index_add(-1, prior.index.to(values.device), values)
