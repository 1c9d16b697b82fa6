"""Tune by the adapted evidence: that of the linearised model, at the linearised model's own optimum.

Networks stopped early, trained by SGD or normalised are not at a mode of their posterior, so `|tilde-theta|^2` in the
evidence is the wrong number and the tuned error bars come out too wide. The tangent linear model always has a mode.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from marquis.choices import choose
from marquis.curvature import accumulate
from marquis.evidence.anderson import Anderson, bounded, pruned
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.linear_model import LinearModel
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.mackay import proposal, step_of
from marquis.evidence.tuning_result import HIGHEST, Tuned, TuningStep, finish
from marquis.structures import Full, Structure

POINTS = ("linearisation", "theta_star")
SHIFT = "marquis_shift"
"""Keyword under which a shifted network takes its shift, where inputs are passed by name."""

MOST_HALVINGS = 6
"""Times a step that lost ground is shortened before the alternation ends."""

MOST_SENT = 2
"""Times a precision is sent to its limit: one that came back twice has an optimum of its own."""

PINNED = (
    "a group at the upper limit is one that the linear model does not need: its features explain no more of the labels "
    "than chance would. That says nothing about the network, whose features still pass through these weights; "
    "do not train on with such a precision as weight decay."
)


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
    store_bytes: int | None = None,
) -> Tuned:
    """Tune by the evidence of the tangent linear model at its optimum theta-star.

    See docs/method/evidence.md#evidence-of-the-linear-model.

    Finds the joint fixed point of `theta* = argmin` of the convex objective of the linear model and of MacKay's update
    at theta*. By the envelope theorem that update points uphill on the evidence of the linear model maximised over
    theta (exactly the evidence for a Gaussian), so steps, accelerated by Anderson's mixing, are taken back where they
    lose ground. Use it with `Prior(groups="normalised")` for networks with normalisation layers: the prediction then
    does not depend on the scale of normalised weights (Proposition 3). The prior is centred at its own mean, not at
    the network's weights; predictions keep the network's own mean.

    With several groups some precisions often end at the upper limit. That is the optimum, not a failure: up to what
    biases contribute, a ReLU layer's Jacobian times its own weights is the network's output, so that one layer's
    features can stand in for all others', and the evidence keeps the cheapest. The table says which. It holds for the
    linear model only: training on with such a precision as weight decay would erase a layer that the features of the
    others pass through.

    Cost per alternation: one factorisation, and a few Newton steps, each some conjugate-gradient products. Where the
    Jacobians of all data (N O P numbers) fit into `store_bytes` they are computed once and a product is two matrix
    multiplications; else two JVP/VJP passes over the data. The preconditioner is the problem's own posterior precision,
    or the exact one where Jacobians are kept and there are up to 3000 weights.

    Args:
        problem: with curvature, model and loader.
        noise: whether the noise precision is tuned too; its residuals are those of the linear model.
        simplified: use `h = J theta`, without the offset.
        hessian_at: where the output Hessian L is taken: at the "linearisation" point (the curvature given) or at
            "theta_star" (recomputed in each alternation; the same for a Gaussian).
        tolerance: on the relative change of every precision between alternations.
        max_iterations: maximum number of alternations.
        theta_tolerance: nats that theta-star may be off.
        max_products: maximum number of conjugate-gradient products per Newton step.
        estimator: estimator of the curvature recomputed at theta-star.
        store_bytes: memory for Jacobians; None: 1 GiB, or a quarter of what is free; 0: none is kept.

    Returns:
        A `Tuned` whose `log_evidence` is that at theta-star; `theta_star` is there too.
    """
    hessian_at = choose("hessian_at", hessian_at, POINTS)
    problem.grouped_prior  # noqa: B018  (refuses a prior without precisions before any work)
    problem.scaled_curvature()
    tangent = LinearModel(problem, "adapted", simplified=simplified, store_bytes=store_bytes)
    dense = exact_curvature(tangent, problem)
    moves = hessian_at == "theta_star" and not problem.likelihood.constant_hessian
    shifted = shifted_network(problem.model) if moves else None
    here, theta = problem, problem.mean.detach()
    history: list[TuningStep] = []
    mixing = Anderson()
    tried: Trial | None = None  # the last point accepted, and the jump from it that is being tried
    accuracy = max(theta_tolerance, 0.1)  # of theta-star, in nats: it tightens as the alternation settles
    sent = torch.zeros_like(log_precisions(problem))  # how often each went straight to its limit
    stuck = False
    while True:
        optimum = tangent.optimum(
            here.grouped_prior.vector().to(theta),
            here.grouped_prior.mean.to(theta),
            float(here.scale()),
            theta,
            preconditioner=preconditioner_of(here, dense),
            tolerance=accuracy,
            max_products=max_products,
        )
        theta = optimum.theta
        curvature = problem.curvature if shifted is None else curvature_at(tangent, problem, theta, shifted, estimator)
        here = replace(here, mean=theta, statistics=optimum.statistics, curvature=curvature)
        value = float(log_evidence(here))
        # Where the Hessian moves along there is no one function to climb, hence nothing to compare with.
        if tried is not None and not moves and value < tried.value - rounding(here, value):
            mixing.forget()
            tried = tried.shorter()
            if tried.halvings <= MOST_HALVINGS:
                here = with_logs(tried.start, tried.logs + tried.jump, noise)
                continue
            # Not even a short step gains: rounding, or theta-star not accurate enough, is all that is left.
            here, theta, value, stuck = tried.start, tried.start.mean, tried.value, True
        gamma = effective_parameters(here).detach()
        if not stuck:
            history.append(step_of(here, value, gamma))
        logs = log_precisions(here)
        step = plain_step(here, gamma, noise)
        change = float(step.abs().max())
        settled = change <= tolerance
        if stuck or len(history) > max_iterations or (settled and accuracy <= theta_tolerance):
            break
        gain = abs(value - (history[-2].log_evidence or 0.0)) if len(history) > 1 else float("inf")
        accuracy = max(theta_tolerance, 0.0 if settled else min(accuracy, 0.05 * gain))
        jump = mixing.jump(logs, step)
        rising = idle_groups(here, step, gamma, theta_tolerance) & (sent < MOST_SENT)
        if bool(rising.any()):
            sent = sent + rising
            jump = torch.where(rising, math.log(HIGHEST) - logs, jump)
            mixing.forget()
        tried = Trial(here, value, logs, jump, step)
        here = with_logs(here, logs + jump, noise)
    notes: list[str] = []
    if not settled:
        why = "no step gained any more" if stuck else f"after {max_iterations} alternations"
        notes.append(f"{why}; the precisions would still change by {change:.2g}, relatively.")
    if not optimum.converged:
        notes.append("theta-star was not found to the tolerance asked for; raise max_products.")
    if bool((here.grouped_prior.precision >= 0.99 * HIGHEST).any()):
        notes.append(PINNED)
    return finish(
        problem,
        here,
        method=f"adapted evidence ({'simplified' if simplified else 'affine'} model, Hessian at {hessian_at})",
        log_evidence=history[-1].log_evidence,
        gamma=gamma,
        history=history,
        notes=notes,
        converged=settled and optimum.converged,
        theta_star=theta,
        value_name="log evidence at theta-star",
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """Hold a point that was accepted, its value, and the jump from it that is tried; `step` is the plain one."""

    start: EvidenceProblem
    value: float
    logs: Tensor
    jump: Tensor
    step: Tensor
    halvings: int = 0

    def shorter(self) -> Trial:
        """Return half of the last step; first the plain step, which increases the evidence in every coordinate."""
        return replace(self, jump=self.step * 0.5**self.halvings, halvings=self.halvings + 1)


def plain_step(problem: EvidenceProblem, gamma: Tensor, noise: bool) -> Tensor:
    """Return MacKay's update as a step in the logarithms, the noise's last; zero for what is fixed or at its limit."""
    logs = log_precisions(problem)
    precision, beta = proposal(problem, gamma)
    if problem.noise is None:
        return precision.to(logs.device).log() - logs
    kept = logs[-1:].exp() if beta is None or not noise or not bool(beta.isfinite()) else beta.reshape(1).to(logs)
    return torch.cat([precision.to(logs.device), kept]).log() - logs


def idle_groups(problem: EvidenceProblem, step: Tensor, gamma: Tensor, nats: float) -> Tensor:
    """Return which precisions rise without end and gain less than `nats` by it."""
    prior = problem.grouped_prior
    slope = 0.5 * (gamma - prior.precision * prior.scatter(problem.mean)).abs()
    return pruned(step, gamma, gamma / prior.sizes, slope, nats)


def log_precisions(problem: EvidenceProblem) -> Tensor:
    """Return the logarithms of all tuned precisions, the noise last."""
    logs = problem.grouped_prior.precision.double().log()
    return logs if problem.noise is None else torch.cat([logs, problem.noise.double().log()[None].to(logs.device)])


def with_logs(problem: EvidenceProblem, logs: Tensor, noise: bool) -> EvidenceProblem:
    """Return the problem at other precisions."""
    values = bounded(logs).exp()
    if problem.noise is None:
        return problem.with_hyper(values)
    return problem.with_hyper(values[:-1], values[-1] if noise else None)


def rounding(problem: EvidenceProblem, value: float) -> float:
    """Return the number of nats by which two evidences may differ from rounding alone."""
    assert problem.curvature is not None
    return 64 * torch.finfo(problem.curvature.dtype).eps * (abs(value) + problem.layout.total)


def preconditioner_of(problem: EvidenceProblem, dense: Structure | None) -> Any:
    """Return a function that solves with the posterior precision, with the exact curvature where it is known."""
    curvature = problem.scaled_curvature() if dense is None else dense * float(problem.scale())
    posterior = problem.prior.add_to(curvature)
    return lambda rows: posterior.solve(rows.to(posterior.dtype)).to(rows)


def exact_curvature(tangent: LinearModel, problem: EvidenceProblem) -> Structure | None:
    """Return the whole matrix as a preconditioner, where the problem's is an approximation and weights are few.

    A solve costs P^2 and a product 2 N O P: with fewer labels than that pays for, more products are the cheaper way.
    """
    if problem.curvature is None or problem.curvature.kind in ("full", "lowrank"):
        return None
    if tangent.kept_rows() < 2 * problem.layout.total:
        return None
    matrix = tangent.dense()
    # In double precision: precisions from 1e-8 to 1e8 side by side leave single precision no digits.
    return None if matrix is None else Full(problem.layout, matrix.double())


def curvature_at(
    tangent: LinearModel, problem: EvidenceProblem, theta: Tensor, shifted: Any, estimator: str = "exact"
) -> Structure:
    """Return `sum_n J^T L(h(theta, x_n)) J` with J at the point of linearisation, in the problem's structure.

    The network's outputs are shifted by constants to h(theta), which moves L and leaves J alone; `shifted` is
    `shifted_network(model)`.
    """
    assert problem.curvature is not None
    if problem.curvature.kind == "full" and estimator == "exact":
        matrix = tangent.dense(theta)
        if matrix is not None:
            return Full(problem.layout, matrix.to(problem.curvature.dtype))

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
        params={**tangent.network.fixed, **tangent.network.point},
        parameters=list(tangent.layout.names),
        dtype=problem.curvature.dtype,
        mask_of=None if problem.mask_of is None else lambda batch: batch[2],
        distributed=problem.shared,
        progress=False,
    )


def shifted_network(model: Any) -> Any:
    """Return the same network, with one more input that is added to its outputs; the user's object is left alone."""
    if not isinstance(model, nn.Module):

        def function(params: dict[str, Tensor], inputs: Any) -> Tensor:
            if isinstance(inputs, Mapping):
                return model(params, {k: v for k, v in inputs.items() if k != SHIFT}) + inputs[SHIFT]
            x = inputs[0] if len(inputs) == 2 else tuple(inputs[:-1])
            return model(params, x) + inputs[-1]

        return function
    kind: type[nn.Module] = type(model)

    class Shifted(kind):
        """Add a constant to the outputs of a network."""

        def forward(self, *inputs: Any, **named: Any) -> Tensor:
            if SHIFT in named:
                shift = named.pop(SHIFT)
                return super().forward(*inputs, **named) + shift
            return super().forward(*inputs[:-1], **named) + inputs[-1]

    twin = copy.copy(model)  # shares parameters and submodules, and their names
    twin.__class__ = Shifted
    return twin
