"""Maximise the evidence at fixed weights: by Adam on the logarithms, or MacKay's fixed points and then Adam."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.mackay import mackay, step_of
from marquis.evidence.tuning_result import HIGHEST, LOWEST, Maximum, TuningStep
from marquis.priors import BoundPrior


class LogPrecisions:
    """Hold the logarithms of the precisions as leaves of an optimiser, which outlives the problem they belong to.

    Training with evidence keeps one such object, so that Adam's moments carry over from update to update.
    """

    def __init__(
        self,
        problem: EvidenceProblem,
        *,
        noise: bool = True,
        learning_rate: float = 0.1,
        log_prior: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._log_prior = log_prior
        self._noise = noise and problem.noise is not None
        self._prior = isinstance(problem.prior, BoundPrior)
        if not self._prior and not self._noise:
            raise UnsupportedOperationError(
                "nothing to tune: the prior is an earlier posterior and there is no noise precision to learn."
            )
        self.leaves: list[Tensor] = []
        if self._prior:
            self.leaves.append(problem.grouped_prior.precision.detach().double().log().requires_grad_())
        if self._noise:
            assert problem.noise is not None
            self.leaves.append(problem.noise.detach().double().log().clone().requires_grad_())
        self._adam = torch.optim.Adam(self.leaves, lr=learning_rate)

    def apply(self, problem: EvidenceProblem) -> EvidenceProblem:
        """Return the problem at the present precisions; gradients flow to the leaves."""
        precision = self.leaves[0].exp() if self._prior else None
        return problem.with_hyper(precision, self.leaves[-1].exp() if self._noise else None)

    def value_and_gradient(self, problem: EvidenceProblem) -> float:
        """Return log evidence plus hyper-prior here; write their negative gradient to the leaves."""
        self._adam.zero_grad()
        with torch.enable_grad():
            value = log_evidence(self.apply(problem))
            if self._log_prior is not None and self._prior:
                value = value + self._log_prior(self.leaves[0])
            (-value).backward()
        return float(value.detach())

    @property
    def slope(self) -> float:
        """Return the largest entry of the last gradient, without precisions that are at a limit."""
        largest = 0.0
        for leaf in self.leaves:
            assert leaf.grad is not None
            up = (leaf >= math.log(HIGHEST) - 1e-9) & (leaf.grad < 0)
            down = (leaf <= math.log(LOWEST) + 1e-9) & (leaf.grad > 0)
            free = leaf.grad.masked_fill(up | down, 0.0)
            largest = max(largest, float(free.abs().max()) if free.numel() else 0.0)
        return largest

    def step(self) -> None:
        """Make one step of Adam, within the limits."""
        self._adam.step()
        with torch.no_grad():
            for leaf in self.leaves:
                leaf.clamp_(math.log(LOWEST), math.log(HIGHEST))

    def ascended(self, problem: EvidenceProblem, steps: int) -> EvidenceProblem:
        """Return the problem after `steps` steps of Adam."""
        for _ in range(steps):
            self.value_and_gradient(problem)
            self.step()
        with torch.no_grad():
            return self.apply(problem)


def ascend(
    problem: EvidenceProblem,
    *,
    noise: bool = True,
    learning_rate: float = 0.1,
    steps: int = 100,
    tolerance: float = 1e-3,
    log_prior: Callable[[Tensor], Tensor] | None = None,
) -> Maximum:
    """Maximise the evidence by Adam on `log delta` and `log beta`, and return the best iterate.

    The gradient in `log delta_g` is `1/2 (gamma_g - delta_g |theta_g|^2)`, in `log beta` it is
    `1/2 (N O/T - gamma - beta SSE/T)`. Cost per step: one log-determinant and its derivative.
    """
    if steps < 1 or not learning_rate > 0:
        raise DataError(f"steps={steps} and learning_rate={learning_rate} have to be positive.")
    logs = LogPrecisions(problem, noise=noise, learning_rate=learning_rate, log_prior=log_prior)
    history: list[TuningStep] = []
    best, best_value, slope = problem, -math.inf, math.inf
    for count in range(steps + 1):
        value = logs.value_and_gradient(problem)
        with torch.no_grad():
            here = logs.apply(problem)
        history.append(step_of(here, value))
        if value > best_value:
            best, best_value, slope = here, value, logs.slope
        if slope <= tolerance or count == steps:
            break
        logs.step()
    if not math.isfinite(best_value):
        raise NumericalError("the log evidence is NaN or infinite at the present precisions; check the curvature.")
    converged, notes = slope <= tolerance, []
    if not converged:
        notes = [f"Adam stopped at a slope of {slope:.2g} nats per e-fold; more steps= may gain a little."]
    return Maximum(best, best_value, converged, history, by="Adam", notes=notes)


def maximise(
    problem: EvidenceProblem, *, noise: bool = True, tolerance: float = 1e-3, max_iterations: int = 100
) -> Maximum:
    """Iterate MacKay's fixed points; if they do not converge, go on with up to 500 steps of Adam."""
    fixed = mackay(problem, noise=noise, tolerance=tolerance, max_iterations=max_iterations)
    if fixed.converged:
        return fixed
    ascent = ascend(fixed.problem, noise=noise, steps=500)
    note = f"MacKay's fixed points did not converge in {len(fixed.history) - 1} iterations; Adam continued."
    return replace(
        ascent,
        gamma=effective_parameters(ascent.problem).detach(),
        by="MacKay, then Adam",
        history=[*fixed.history, *ascent.history[1:]],
        notes=[note, *ascent.notes],
    )
