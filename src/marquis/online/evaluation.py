"""Evaluate one batch of the online learner: loss, curvature and squared errors at sampled weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from marquis.curvature.ggn import ggn, outputs_and_ggn
from marquis.distributed import group_is_up
from marquis.errors import DataError
from marquis.functional.call import buffers_of, call
from marquis.functional.checks import batch_size, check_finite, check_ordinary, naming_inputs
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import computing_dtype
from marquis.online.learnt_noise import squared_error
from marquis.online.weights import require_finite_weights
from marquis.structures import Diagonal, Structure

if TYPE_CHECKING:
    from marquis.online.learner import OnlineLaplace


@dataclass(eq=False)
class Evaluated:
    """Hold the loss at each sample of the weights (data and prior apart), curvatures of the batch, its size and error.

    A curvature is a function that computes it: the learner lets it write into its own memory where it can.
    """

    losses: list[Tensor] = field(default_factory=list)
    penalties: list[Tensor] = field(default_factory=list)
    curvatures: list[Callable[..., Structure]] = field(default_factory=list)
    size: int = 0
    error: float | Tensor = 0.0
    entries: float | Tensor = 0.0


def evaluate(learner: OnlineLaplace, x: Any, y: Any, mask: Tensor | None) -> Evaluated:
    """Compute loss, curvature and squared errors of one batch at sampled weights."""
    settings = learner.settings
    with_curvature = learner._state.steps % settings.every == 0
    by_gradient = settings.rule == "noisy-adam"
    everything = parameters_of(learner.model, learner._params)
    means = {name: everything[name] for name in learner.names}
    likelihood = learner.noisy_likelihood
    if getattr(x, "layout", torch.strided) != torch.strided:
        check_ordinary(x)
    nothing = group_is_up() and all(leaf.shape[:1] == (0,) for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
    result = Evaluated(size=0 if nothing else batch_size(x))
    for _ in range(settings.samples):
        theta, penalty = learner._sampled_weights(means)
        result.penalties.append(penalty)
        if nothing:  # an empty share: all samples are with the other processes
            result.losses.append(torch.zeros_like(penalty))
            continue
        at_sample = with_curvature and settings.curvature_at == "sample" and not by_gradient
        weights = {**everything, **theta}
        with naming_inputs(learner.model, x, lambda at=weights: learner.outputs(at, x)):
            outputs, curvature = _forward(learner, x, theta, weights, mask, at_sample)
        try:
            learner.likelihood.validate(outputs.detach(), y, mask)
            log_likelihood = likelihood.log_prob(outputs, y, mask).mean()
            if not bool(log_likelihood.detach().isfinite()):
                raise DataError(
                    "the log-likelihood of this batch is not finite: labels far from the outputs, or weights that "
                    "diverged; check their scale, or lower the learning rate."
                )
        except DataError:  # the one check of a step; where it fails, inputs and weights are looked at one by one
            check_finite(x)
            require_finite_weights(theta, learner.layout)
            raise
        result.losses.append(-log_likelihood)
        if curvature is not None:
            result.curvatures.append(curvature)
        if by_gradient and with_curvature:
            result.curvatures.append(partial(_squared_gradient, learner, log_likelihood, theta))
        if settings.noise_precision == "learnt":
            error, entries = squared_error(outputs.detach(), y, mask, settings.noise_groups)
            result.error = result.error + error / settings.samples
            result.entries = result.entries + entries / settings.samples
    if with_curvature and settings.curvature_at == "mean" and not by_gradient and result.size:
        at = {name: value.detach() for name, value in everything.items()}
        result.curvatures.append(partial(_curvature, learner, at, x, mask))
    return result


def _forward(
    learner: OnlineLaplace,
    x: Any,
    theta: Mapping[str, Tensor],
    everything: dict[str, Tensor],
    mask: Tensor | None,
    with_curvature: bool,
) -> tuple[Tensor, Callable[..., Structure] | None]:
    """Return the outputs at sampled weights, and a function that computes the curvature there."""
    dtype = computing_dtype(theta[learner.names[0]].dtype)
    if with_curvature and learner._shares_forward:
        shared = outputs_and_ggn(
            learner.model,
            x,
            learner.curvature_likelihood,
            learner.structure,
            learner.estimator,
            params=everything,
            layout=learner.layout,
            probes=learner.settings.probes,
            generator=learner._probes_stream,
            mask=mask,
        )
        learner._multiplied_once = shared.network.multiplied_once
        return shared.outputs.to(dtype), shared.curvature
    outputs = call(learner.model, everything, buffers_of(learner.model), x).to(dtype)
    if not with_curvature:
        return outputs, None
    at = {name: value.detach() for name, value in everything.items()}
    return outputs, partial(_curvature, learner, at, x, mask)


def _curvature(learner: OnlineLaplace, at: Mapping[str, Tensor], x: Any, mask: Tensor | None) -> Structure:
    """Return the batch's curvature in full precision, also under `torch.autocast`."""
    with torch.autocast(next(iter(at.values())).device.type, enabled=False):
        return ggn(
            learner.model,
            x,
            learner.curvature_likelihood,
            learner.structure,
            learner.estimator,
            params=at,
            parameters=learner.names,
            probes=learner.settings.probes,
            width_limit=learner.settings.width_limit,
            generator=learner._probes_stream,
            mask=mask,
        )


def _squared_gradient(learner: OnlineLaplace, log_likelihood: Tensor, theta: dict[str, Tensor]) -> Structure:
    """Return `N g∘g` with g the batch-mean gradient of the log likelihood (docs/method/online.md#update-rules)."""
    gradients = torch.autograd.grad(log_likelihood, list(theta.values()), retain_graph=True)
    flat = learner.layout.flatten(dict(zip(theta, gradients, strict=True)))
    return Diagonal(learner.layout, flat.square() * (learner.num_data / learner._state.noise_precision))
