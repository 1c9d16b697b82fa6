"""The adapted evidence: that of the linearised model, at the linearised model's own optimum.

Networks stopped early, trained by SGD or normalised are not at a mode of their posterior, so `|tilde-theta|^2` in the
evidence is the wrong number and the tuned error bars come out too wide. The tangent linear model always has a mode.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marquis.curvature import accumulate
from marquis.errors import UnsupportedOperationError
from marquis.evidence.log_evidence import log_evidence
from marquis.evidence.mackay import step_of
from marquis.evidence.maximise import maximise
from marquis.evidence.problem import EvidenceProblem
from marquis.evidence.tangent import Tangent
from marquis.evidence.tuned import Step, Tuned, finish, limited
from marquis.structures import Structure

POINTS = ("linearisation", "theta_star")
SHIFT = "marquis_shift"
"""Keyword under which a shifted network takes its shift, where inputs are passed by name."""


def adapted(
    problem: EvidenceProblem,
    *,
    noise: bool = True,
    simplified: bool = False,
    hessian_at: str = "linearisation",
    tolerance: float = 1e-3,
    max_iterations: int = 50,
    theta_tolerance: float = 1e-3,
    max_products: int = 200,
    estimator: str = "exact",
) -> Tuned:
    """Tune by the evidence of the tangent linear model at its optimum theta-star (methods.md 5.5, 5.6).

    Alternates `theta* = argmin` of the convex objective of the linear model and `Lambda = argmax M_{theta*}`, which
    climb one and the same function (every second alternation is extrapolated, and taken back if that lost ground); a
    joint fixed point is stationary for the evidence of the linear model, exactly so for a Gaussian. Use it with
    `Prior(groups="normalised")` for networks with normalisation layers: the prediction then does not depend on the
    scale of normalised weights (Proposition 3). The prior is centred at its own mean, not at the network's weights;
    predictions keep the network's own mean.

    Cost per alternation: a few Newton steps, each some conjugate-gradient products of two JVP/VJP passes over the
    data, preconditioned by the problem's own posterior precision.

    Args:
        problem: with curvature, model and loader.
        noise: whether the noise precision is tuned too; its residuals are those of the linear model.
        simplified: use `h = J theta`, without the offset.
        hessian_at: where the output Hessian L is taken: at the "linearisation" point (the curvature given) or at
            "theta_star" (recomputed in each alternation; the same for a Gaussian).
        tolerance: on the relative change of every precision between alternations.
        max_iterations: alternations at most.
        theta_tolerance: nats that theta-star may be off.
        max_products: conjugate-gradient products per Newton step at most.
        estimator: of the curvature recomputed at theta-star.

    Returns:
        A `Tuned` whose `log_evidence` is that at theta-star; `theta_star` is there too.
    """
    if hessian_at not in POINTS:
        raise UnsupportedOperationError(f"hessian_at={hessian_at!r} is not known; choose one of {', '.join(POINTS)}.")
    problem.grouped_prior  # noqa: B018  (refuses a prior without precisions before any work)
    problem.scaled_curvature()
    tangent = Tangent(problem, "adapted", simplified=simplified)
    moves = hessian_at == "theta_star" and not problem.likelihood.constant_hessian
    shifted = shifted_network(problem.model) if moves else None
    here, theta = problem, problem.mean.detach()
    history: list[Step] = []
    fallback: EvidenceProblem | None = None  # where to go back to if an extrapolation did not pay
    last: Tensor | None = None  # the previous step in the logarithms
    accuracy = max(theta_tolerance, 0.1)  # of theta-star, in nats: it tightens as the alternation settles
    while True:
        found = tangent.optimum(
            here.grouped_prior.vector().to(theta),
            here.grouped_prior.mean.to(theta),
            float(here.scale()),
            theta,
            preconditioner=preconditioner_of(here),
            tolerance=accuracy,
            max_products=max_products,
        )
        theta = found.theta
        curvature = problem.curvature if shifted is None else curvature_at(tangent, problem, theta, shifted, estimator)
        here = replace(here, mean=theta, statistics=found.statistics, curvature=curvature)
        value = float(log_evidence(here))
        if fallback is not None and value < (history[-1].log_evidence or 0.0):
            here, fallback = fallback, None
            continue
        best = maximise(here, noise=noise, tolerance=min(tolerance, 1e-3) / 10)
        history.append(step_of(here, value, best.history[0].effective_parameters))
        step = log_precisions(best.problem) - log_precisions(here)
        change = float(step.abs().max())
        if len(history) > max_iterations or (change <= tolerance and accuracy <= theta_tolerance):
            break
        gain = abs(value - (history[-2].log_evidence or 0.0)) if len(history) > 1 else float("inf")
        accuracy = max(theta_tolerance, 0.0 if change <= tolerance else min(accuracy, 0.05 * gain))
        here, fallback = best.problem, None
        if last is None:
            last = step
        else:
            # Where the Hessian moves along, the two half-steps do not climb one function: nothing to compare with.
            here, fallback, last = extrapolated(here, step, last), None if moves else here, None
    notes = list(best.notes)
    if change > tolerance:
        notes.append(f"after {max_iterations} alternations the precisions still change by {change:.2g}, relatively.")
    if not found.converged:
        notes.append("theta-star was not found to the tolerance asked for; raise max_products.")
    return finish(
        problem,
        here,
        method=f"adapted evidence ({'simplified' if simplified else 'affine'} model, Hessian at {hessian_at})",
        log_evidence=history[-1].log_evidence,
        gamma=best.history[0].effective_parameters,
        history=history,
        notes=notes,
        converged=change <= tolerance and found.converged,
        theta_star=theta,
        value_name="log evidence at theta-star",
    )


def log_precisions(problem: EvidenceProblem) -> Tensor:
    """Logarithms of all tuned precisions, the noise last."""
    logs = problem.grouped_prior.precision.double().log()
    return logs if problem.noise is None else torch.cat([logs, problem.noise.double().log()[None].to(logs.device)])


def extrapolated(problem: EvidenceProblem, step: Tensor, last: Tensor) -> EvidenceProblem:
    """Aitken's extrapolation, precision by precision: steps that shrink by s each have s/(1-s) of the last one to go.

    Alternating crawls where the data hardly determine a group; s is kept below 0.8, so no jump exceeds four steps.
    """
    shrink = torch.nan_to_num(step / last).clamp(0.0, 0.8)
    logs = log_precisions(problem) + step * shrink / (1 - shrink)
    values = limited(logs.exp())
    if problem.noise is None:
        return problem.with_hyper(values)
    return problem.with_hyper(values[:-1], values[-1])


def preconditioner_of(problem: EvidenceProblem) -> Any:
    """The posterior precision's `solve`, in the type of what it is given."""
    posterior = problem.prior.add_to(problem.scaled_curvature())
    return lambda rows: posterior.solve(rows.to(posterior.dtype)).to(rows)


def curvature_at(
    tangent: Tangent, problem: EvidenceProblem, theta: Tensor, shifted: Any, estimator: str = "exact"
) -> Structure:
    """`sum_n J^T L(h(theta, x_n)) J` with J at the point of linearisation, as the structure of the problem's kind.

    The network's outputs are shifted by constants to h(theta), which moves L and leaves J alone; `shifted` is
    `shifted_network(model)`.
    """
    assert problem.curvature is not None

    def data() -> Iterator[tuple[Any, ...]]:
        for batch in tangent.batches():
            shift = tangent.outputs(batch, theta) - batch.f
            x = batch.x
            if isinstance(x, Mapping):
                inputs: Any = {**x, SHIFT: shift}
            else:
                inputs = (*x, shift) if isinstance(x, (tuple, list)) else (x, shift)
            yield (inputs, batch.y) if batch.mask is None else (inputs, batch.y, batch.mask)

    return accumulate(
        shifted,
        data(),
        tangent.likelihood,
        structure=problem.curvature.kind,
        estimator=estimator,
        params=tangent.network.params,
        parameters=list(tangent.layout.names),
        dtype=problem.curvature.dtype,
        mask_of=None if problem.mask_of is None else lambda batch: batch[2],
        progress=False,
    )


def shifted_network(model: Any) -> Any:
    """The same network, with one more input that is added to its outputs; the user's object is left alone."""
    if not isinstance(model, nn.Module):

        def function(params: dict[str, Tensor], inputs: Any) -> Tensor:
            if isinstance(inputs, Mapping):
                return model(params, {k: v for k, v in inputs.items() if k != SHIFT}) + inputs[SHIFT]
            x = inputs[0] if len(inputs) == 2 else tuple(inputs[:-1])
            return model(params, x) + inputs[-1]

        return function
    kind: type[nn.Module] = type(model)

    class Shifted(kind):
        """A network whose outputs are shifted by constants."""

        def forward(self, *inputs: Any, **named: Any) -> Tensor:
            if SHIFT in named:
                shift = named.pop(SHIFT)
                return super().forward(*inputs, **named) + shift
            return super().forward(*inputs[:-1], **named) + inputs[-1]

    twin = copy.copy(model)  # shares parameters and submodules, and their names
    twin.__class__ = Shifted
    return twin
