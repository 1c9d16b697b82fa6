"""Choose the prior's variances and the noise by the evidence, with or without the TV-PredCP prior.

Two evidences (docs/method/tomography.md). "network" keeps the network's weights `θ̂`:
`-½ [|y - A x̂|² / σ² + Σ_d |θ̂_d|² / v_d + log|K_yy| + dy log 2π]`. "tangent" is the exact evidence of the linear model,
`log N(y - A (x̂ - J θ̂); 0, K_yy)`; it prunes blocks and trusts features of under-trained networks, so it is offered
for one common variance only, and never by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from marquis.choices import choose
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.tomography.analytic import differences
from marquis.tomography.complexity import log_prior_of_lengthscale, log_prior_of_variance
from marquis.tomography.gram import Grams, tap_classes
from marquis.tomography.tangent import LinearisedImage

Evidence = Literal["network", "tangent"]
Groups = Literal["block", "scalar"]
Predcp = Literal["variance", "lengthscale"]

LOG_VARIANCE = -12.0, 8.0
LOG_LENGTHSCALE = math.log(0.02), math.log(50.0)
LOG_NOISE = -8.0, 8.0
"""Limits of log σ² relative to the mean squared residual."""


class DataModel(Protocol):
    """Describe the Gaussian over data that a prior implies: `N(0, K_yy)`."""

    def logdet_and_quadratic(
        self, variance: Tensor, lengthscale: Tensor | None, noise_variance: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return `log|K_yy|` and `rᵀ K_yy⁻¹ r` (0 without a residual `[dy]`), differentiable."""
        ...


@dataclass(frozen=True, eq=False)
class ExactData:
    """Compute with `K_yy` as a dense matrix, by Cholesky."""

    grams: Grams

    def logdet_and_quadratic(
        self, variance: Tensor, lengthscale: Tensor | None, noise_variance: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return `log|K_yy|` and `rᵀ K_yy⁻¹ r`; costs `dy³`."""
        covariance = self.grams.data_covariance(self.grams.coefficients(variance, lengthscale), noise_variance)
        factor, failed = torch.linalg.cholesky_ex(covariance.detach())
        if int(failed):
            level = float(noise_variance.detach())
            raise NumericalError(
                f"the data's covariance is not positive definite at noise variance {level:.3g}: too small for float64."
            )
        # Terms that are zero carry the gradients tr(K⁻¹ dK) and -wᵀ dK w, at a third of the cost of autograd's.
        change = covariance - covariance.detach()
        logdet = 2 * factor.diagonal().log().sum()
        if change.requires_grad:
            logdet = logdet + (torch.cholesky_inverse(factor) * change).sum()
        if residual is None:
            return logdet, noise_variance.new_zeros(())
        solved = torch.cholesky_solve(residual[:, None], factor)[:, 0]
        return logdet, residual @ solved - solved @ change @ solved


@dataclass(frozen=True, eq=False)
class TunedPrior:
    """Hold variances and noise, and how they were chosen. `print` it for a table.

    Attributes:
        blocks: names of the U-Net's blocks.
        variance: prior variance of each block's weights `[blocks]`.
        noise_variance: variance of the noise of one reading.
        lengthscale: lengthscale of the process over filter taps `[blocks]`, or None for independent weights.
        log_evidence: without the hyper-prior.
        objective: with it.
        residual: mean squared residual of the data at the trained image.
        evaluations: number of evaluations of the objective.
        converged: whether the optimiser's stopping rule was met.
        method: what was maximised.
        notes: what a user should know.
    """

    blocks: tuple[str, ...]
    variance: Tensor
    noise_variance: float
    lengthscale: Tensor | None
    log_evidence: float | None
    objective: float | None
    residual: float
    evaluations: int
    converged: bool
    method: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the table."""
        ending = "" if self.converged else ", not converged"
        lines = [f"tuned by {self.method}: {self.evaluations} evaluations{ending}"]
        if self.log_evidence is not None:
            lines.append(f"log evidence       {self.log_evidence:.4g}")
        lines.append(f"noise variance     {self.noise_variance:.4g}   (mean squared residual {self.residual:.4g})")
        for index, name in enumerate(self.blocks):
            text = f"variance {name:<10}{float(self.variance[index]):.4g}"
            if self.lengthscale is not None:
                text += f"   lengthscale {float(self.lengthscale[index]):.3g}"
            lines.append(text)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, eq=False)
class _Problem:
    """Hold everything that the objective needs and that stays the same during tuning."""

    model: DataModel | None
    blocks: tuple[str, ...]
    squared_norms: Tensor
    tap_moments: Tensor | None
    filters: Tensor
    misfit: float
    tangent_residual: Tensor
    count: int
    jumps: Tensor
    roughness: Tensor
    term_block: Tensor
    term_distance: Tensor


def consistent_rate(tv_weight: float, count: int, residual: float) -> float:
    """Return `λ = γ dy / (2 σ̂²)`, the rate for which the loss and `exp(-λ TV)` are one posterior."""
    return tv_weight * count / (2 * residual)


def build_problem(
    linearised: LinearisedImage,
    model: DataModel | None,
    roughness: Tensor,
    terms: tuple[Tensor, Tensor],
    data: Tensor,
    projected: Callable[[Tensor], Tensor],
) -> _Problem:
    """Collect what does not change during tuning; `roughness` are prior variances of differences, a row per term."""
    image = linearised.image
    shift = linearised.jvp(linearised.weights[None])[0].reshape(image.shape)
    fitted, shifted = projected(torch.stack([image, shift]).double())
    residual = data.flatten() - fitted.flatten()
    moments = None
    if float(terms[1].max()) > 0:
        rows = []
        for part, is_filter in zip(linearised.slices, linearised.filter_blocks(), strict=True):
            taps = linearised.weights[part].reshape(-1, 9) if is_filter else None
            rows.append(torch.zeros(9, 9).double() if taps is None else taps.T @ taps)
        moments = torch.stack(rows)
    return _Problem(
        model,
        tuple(linearised.blocks),
        linearised.squared_norms().double(),
        moments,
        torch.tensor(linearised.filter_blocks()),
        float(residual.square().sum()),
        residual + shifted.flatten(),
        residual.numel(),
        differences(image).double(),
        roughness.double(),
        *terms,
    )


def tune_problem(
    problem: _Problem,
    *,
    evidence: Evidence = "network",
    predcp: Predcp | None = None,
    groups: Groups = "block",
    rate: float | None = None,
    tempered: bool = False,
    max_evaluations: int = 200,
) -> TunedPrior:
    """Maximise evidence plus log hyper-prior over log variances and log noise by L-BFGS-B.

    Args:
        problem: from `build_problem`.
        evidence: "network" or "tangent".
        predcp: hyper-prior on each variance, on each lengthscale (needs a process over taps), or None.
        groups: one variance per block, or one for all.
        rate: λ of the hyper-prior; constant during tuning.
        tempered: raise the Jacobian of `predcp="lengthscale"` to the power of the rate, as the published code does.
        max_evaluations: maximum number of evaluations.

    Raises:
        UnsupportedOperationError: "tangent" with one variance per block, or lengthscales without a process over taps.
    """
    from scipy.optimize import minimize

    taps = problem.tap_moments is not None
    check_options(evidence, predcp, groups, rate, taps)
    count = len(problem.blocks)
    sizes = (1 if groups == "scalar" else count, count if taps else 0, 1)
    level = math.log(problem.misfit / problem.count)
    limits = [LOG_VARIANCE] * sizes[0] + [LOG_LENGTHSCALE] * sizes[1] + [(level + LOG_NOISE[0], level + LOG_NOISE[1])]

    def unpack(logs: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        first, second, third = logs.exp().split(sizes)
        return first.expand(count), second if taps else None, third[0]

    def objective(logs: Tensor) -> tuple[Tensor, Tensor]:
        variance, lengthscale, noise = unpack(logs)
        value = log_evidence(problem, variance, lengthscale, noise, evidence)
        prior = value.new_zeros(())
        if predcp is not None:
            prior = _log_hyper_prior(problem, variance, lengthscale, predcp, groups, rate or 1.0, tempered)
        return value, value + prior

    def negative(values: object) -> tuple[float, object]:
        logs = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        total = -objective(logs)[1]
        (gradient,) = torch.autograd.grad(total, logs)
        return float(total.detach()), gradient.numpy()

    start_variance = 0.0 if groups == "scalar" or taps else -1.0
    start = [start_variance] * sizes[0] + [math.log(0.1)] * sizes[1] + [level]
    outcome = minimize(
        negative, start, jac=True, method="L-BFGS-B", bounds=limits,
        options={"maxfun": max_evaluations, "maxiter": max_evaluations, "ftol": 1e-10, "gtol": 1e-4},
    )  # fmt: skip
    logs = torch.from_numpy(outcome.x)
    with torch.no_grad():
        value, total = objective(logs)
    variance, lengthscale, noise = unpack(logs)
    return TunedPrior(
        problem.blocks,
        variance.clone(),
        float(noise),
        lengthscale,
        float(value),
        float(total),
        problem.misfit / problem.count,
        int(outcome.nfev),
        bool(outcome.success),
        _describe(evidence, predcp, groups),
        _limit_notes(problem.blocks, variance.log(), groups),
    )


def log_evidence(
    problem: _Problem, variance: Tensor, lengthscale: Tensor | None, noise: Tensor, evidence: Evidence
) -> Tensor:
    """Return the log evidence at given variances `[blocks]` and noise variance; differentiable."""
    residual = problem.tangent_residual if evidence == "tangent" else None
    assert problem.model is not None
    logdet, quadratic = problem.model.logdet_and_quadratic(variance, lengthscale, noise, residual)
    if evidence == "network":
        quadratic = problem.misfit / noise + _weight_penalty(problem, variance, lengthscale)
    return -0.5 * (quadratic + logdet + problem.count * math.log(2 * math.pi))


def _weight_penalty(problem: _Problem, variance: Tensor, lengthscale: Tensor | None) -> Tensor:
    """Return `Σ_d θ̂_dᵀ Σ_d⁻¹ θ̂_d`."""
    penalty = problem.squared_norms / variance
    if lengthscale is None or problem.tap_moments is None:
        return penalty.sum()
    distance = torch.stack([value * pairs for value, pairs in tap_classes()]).sum(0)
    correlation = torch.exp(-distance / lengthscale[problem.filters][:, None, None])
    solved = torch.linalg.solve(correlation, problem.tap_moments[problem.filters])
    filters = solved.diagonal(dim1=-2, dim2=-1).sum(-1) / variance[problem.filters]
    return penalty[~problem.filters].sum() + filters.sum()


def _log_hyper_prior(
    problem: _Problem,
    variance: Tensor,
    lengthscale: Tensor | None,
    predcp: Predcp,
    groups: Groups,
    rate: float,
    tempered: bool,
) -> Tensor:
    """Return the log density of the hyper-prior at variances and lengthscales."""
    if predcp == "lengthscale":
        assert lengthscale is not None
        total = variance.new_zeros(())
        for index in problem.filters.nonzero().flatten().tolist():
            terms = problem.term_block == index
            roughness, distance = problem.roughness[terms], problem.term_distance[terms]
            block, power = (variance[index], lengthscale[index]), rate if tempered else 1.0
            total = total + log_prior_of_lengthscale(problem.jumps, roughness, distance, *block, rate, power)
        return total
    if groups == "scalar":  # one variance has one density, of the whole network's total variation
        return log_prior_of_variance(problem.jumps, problem.roughness.sum(0, keepdim=True), variance[:1], rate).sum()
    filters = problem.filters
    return log_prior_of_variance(problem.jumps, problem.roughness[filters], variance[filters], rate).sum()


def check_options(evidence: str, predcp: str | None, groups: str, rate: float | None, taps: bool) -> None:
    """Refuse names that are not known and options that exclude each other."""
    choose("evidence", evidence, ("network", "tangent"), error=DataError)
    choose("groups", groups, ("block", "scalar"), error=DataError)
    if predcp is not None:
        choose("predcp", predcp, ("variance", "lengthscale"), error=DataError)
    if evidence == "tangent" and groups != "scalar":
        raise UnsupportedOperationError(
            "evidence='tangent' with one variance per block drives variances to zero and is badly overconfident; use "
            "groups='scalar' with it, or evidence='network'."
        )
    if predcp == "lengthscale" and not taps:
        raise UnsupportedOperationError(
            "predcp='lengthscale' needs a Gaussian process over filter taps (preset='paper'); with independent weights "
            "use predcp='variance'."
        )
    if predcp == "variance" and taps:
        raise UnsupportedOperationError("predcp='variance' is for independent weights; drop preset='paper'.")
    if predcp is not None and (rate is None or not 0 < rate < math.inf):
        raise DataError(f"rate is {rate}; the rate of the TV-PredCP prior has to be positive.")


def _describe(evidence: str, predcp: str | None, groups: str) -> str:
    """Describe what was maximised."""
    prior = "" if predcp is None else f", TV-PredCP on the {predcp}"
    return f"{evidence} evidence, {'one variance' if groups == 'scalar' else 'one variance per block'}{prior}"


def _limit_notes(blocks: tuple[str, ...], logs: Tensor, groups: str) -> tuple[str, ...]:
    """Return notes on variances that stopped at a limit."""
    names = ("the common variance",) if groups == "scalar" else tuple(f"the variance of {name}" for name in blocks)
    notes = []
    for name, value in zip(names, logs.tolist(), strict=False):
        if value <= LOG_VARIANCE[0] + 1e-6 or value >= LOG_VARIANCE[1] - 1e-6:
            notes.append(f"{name} is at its limit, {math.exp(value):.3g}.")
    return tuple(notes)
