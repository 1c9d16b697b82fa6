"""Check whether a posterior can be trusted: four questions, each with a number, a verdict and advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.distributed import sum_of_shares, this_or_first
from marquis.errors import DataError
from marquis.evidence.inputs import EvidenceProblem
from marquis.functional.call import Model
from marquis.functional.checks import batch_size, samples_of
from marquis.loaders import read_batches
from marquis.notebook import ShownAsText
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.sampling import WeightSamples
from marquis.priors import StructuredPrior

AT_PRIOR = 0.05
"""A weight is at the prior when the data determine less than this share of it."""

INPUTS, SAMPLES = 64, 10
"""How much data and how many weights the linearisation is tried with."""


@dataclass(frozen=True)
class Finding:
    """Hold one finding of `check`: a quantity with its value, verdict and advice.

    Attributes:
        what: the question.
        value: the number, as text.
        good: whether it is as it should be.
        advice: what to do otherwise.
    """

    what: str
    value: str
    good: bool
    advice: str


@dataclass(frozen=True)
class CheckReport(ShownAsText):
    """Hold the answers; `print` it for a table.

    Attributes:
        relative_gradient: `|g_data + g_prior| / (|g_data| + |g_prior|)`: 0 at a mode.
        distance_to_mode: length of the Newton step in posterior standard deviations, per weight.
        linearisation_error: of functions sampled from the posterior, relative to how far they move.
        share_at_prior: share of weights that the data determine by less than 5 %.
        noise_is_tuned: None where there is no noise to tune.
        findings: the same with verdicts.
    """

    relative_gradient: float
    distance_to_mode: float
    linearisation_error: float
    share_at_prior: float
    noise_is_tuned: bool | None
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Return whether nothing needs attention."""
        return all(finding.good for finding in self.findings)

    def __str__(self) -> str:
        """Return the table."""
        width = max(len(finding.what) for finding in self.findings)
        values = max(len(finding.value) for finding in self.findings)
        lines = []
        for finding in self.findings:
            verdict = "ok  " if finding.good else "look"
            line = f"{verdict}  {finding.what.ljust(width)}  {finding.value.rjust(values)}"
            lines.append(line if finding.good else f"{line}  {finding.advice}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class MeanShift:
    """Hold the Newton step from the weights to the mode of the quadratic approximation.

    See docs/method/posterior.md#newton-step.

    Attributes:
        mean: `theta* - A^-1 g`, by parameter name.
        gain: `1/2 g^T A^-1 g`, what the log evidence would gain.
    """

    mean: dict[str, Tensor]
    gain: Tensor


def mean_shift(model: Model, posterior: Posterior, problem: EvidenceProblem, loader: Iterable[Any]) -> MeanShift:
    """Return the mode of the quadratic approximation. Cost: one gradient over the data.

    For experiments: far from a mode small eigenvalues make the step huge, and the expansion is good where it was made.
    """
    data, _ = _gradient(PosteriorFunction(model, posterior), problem, loader)
    precision = problem.precision()
    gradient = (data + problem.prior.gradient(problem.mean)).to(precision.dtype)
    step = precision.solve(gradient)
    mean = posterior.layout.unflatten(posterior.vector - posterior.embed(step).to(posterior.vector))
    return MeanShift(mean, 0.5 * step @ gradient)


def check(
    model: Model,
    posterior: Posterior,
    problem: EvidenceProblem,
    loader: Iterable[Any],
    noise_is_tuned: bool | None,
    generator: torch.Generator | None = None,
) -> CheckReport:
    """Check the four questions. Cost: one gradient over the data, ten weight samples on one batch."""
    function = PosteriorFunction(model, posterior)
    data, first = _gradient(function, problem, loader)
    prior = problem.prior.gradient(problem.mean)
    total = data + prior
    scale = float(data.norm() + prior.norm())
    relative = float(total.norm()) / scale if scale else 0.0
    precision = problem.precision()
    step = precision.solve(total.to(precision.dtype))
    distance = float((step @ total.to(step.dtype)).clamp(min=0) / max(1, len(total))) ** 0.5
    error = _linearisation_error(function, first, generator)
    share = float((_determined(problem) < AT_PRIOR).double().mean())
    findings = [
        Finding(
            "at a mode: relative gradient",
            f"{relative:.2g}",
            relative < 0.1 or distance < 0.1,
            "train on with weight decay that matches the prior, or tune(method='adapted')",
        ),
        Finding(
            "distance to the mode, in standard deviations",
            f"{distance:.2g}",
            distance < 0.5,
            "the mean is off its own posterior: train on, or tune(method='adapted')",
        ),
        Finding(
            "linearisation error of posterior samples",
            f"{error:.2g}",
            error < 0.5,
            "predict linearised (the default), not sampled; a larger prior precision narrows the posterior",
        ),
        Finding(
            "share of weights at the prior",
            f"{share:.0%}",
            share < 0.9,
            "tune the prior: these weights' uncertainty is whatever the prior says",
        ),
    ]
    if noise_is_tuned is not None:
        statistics, noise = problem.statistics, problem.noise
        value = "" if noise is None else f"{float(noise):.3g}"
        if statistics.sse is not None and float(statistics.sse) > 0:
            value += f" (residuals: {statistics.observed / float(statistics.sse):.3g})"
        findings.append(Finding("noise precision tuned", value, noise_is_tuned, "call tune() before predicting"))
    return CheckReport(relative, distance, error, share, noise_is_tuned, tuple(findings))


def _determined(problem: EvidenceProblem) -> Tensor:
    """Return the share of each weight that the data determine, `[K]`: 1 - posterior variance / prior variance."""
    prior = problem.prior
    if isinstance(prior, StructuredPrior):
        return 1 - problem.precision().inverse_diagonal() / prior.structure.inverse_diagonal()
    return problem.scaled_curvature().effective_dimension(prior.diagonal())


def _gradient(function: PosteriorFunction, problem: EvidenceProblem, loader: Iterable[Any]) -> tuple[Tensor, Any]:
    """Return the gradient of `sum_n l / T` in the random weights, and the first inputs."""
    posterior = function.posterior
    first: Any = None

    def share() -> list[Tensor]:
        nonlocal first
        total = torch.zeros_like(posterior.vector)
        for x, y, _ in read_batches(loader, posterior.vector.device, labels_for="the gradient"):
            first = samples_of(x, 0, min(INPUTS, batch_size(x))) if first is None else first

            # torch.func.grad refuses networks that checkpoint their activations.
            leaves = {name: value.detach().requires_grad_() for name, value in posterior.mean.items()}
            with torch.enable_grad():
                loss = -problem.likelihood.log_prob(function(leaves, x), y).sum()
            gradient = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True, allow_unused=True)
            total = total + posterior.layout.flatten(dict(zip(leaves, gradient, strict=True)))
        return [total]

    (total,) = sum_of_shares(share, problem.shared)
    first = this_or_first(first) if problem.shared else first
    if first is None:
        raise DataError("the loader yields no batches; there is nothing to check with.")
    return posterior.restrict(total) / problem.temperature, first


def _linearisation_error(function: PosteriorFunction, x: Any, generator: torch.Generator | None) -> float:
    """Return the median over posterior samples of `|f(theta_s) - f_lin(theta_s)| / |J (theta_s - theta*)|`."""
    posterior = function.posterior
    mean = function.at_point(x)
    deviations = posterior.deviations_from(posterior.noise(SAMPLES, generator))
    errors = []
    for s in range(SAMPLES):
        one = {name: value[s : s + 1] for name, value in deviations.items()}
        moved = WeightSamples(function, x, True).evaluate(one, x)[0]
        there = WeightSamples(function, x, False).evaluate(one, x)[0]
        size = float(moved.norm())
        errors.append(float((there - mean - moved).norm()) / size if size else 0.0)
    return sorted(errors)[SAMPLES // 2]
