"""Accelerate fixed-point iterations by Anderson's mixing in the logarithms of the precisions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marquis.evidence.tuning_result import HIGHEST, LOWEST

MEMORY = 5
"""Earlier steps that are mixed."""

LONGEST, SHARED = 10.0, 0.1
"""A logarithm jumps at most 10 times its own plain step and 0.1 times the largest one: a group that rises for ever, by
the same step each time, makes the mixture's weights large, and must not carry the others along."""

STEADY, FASTER = 0.9, 4.0
"""A step of at least 0.9 times the last one is taken fourfold where mixing would turn it round."""

NEGLIGIBLE = 1e-3
"""Effective parameters below which a group that is still being pushed up goes to its upper limit at once."""

FEW = 0.05
"""Share of a group's weights up to which the data are said to determine little of it."""


class Anderson:
    """Find fixed points of `x -> x + step(x)` from the last few steps (Anderson 1965).

    Plain steps crawl where the data hardly determine a group (there the step shrinks by a constant factor close to 1);
    the combination of earlier steps that would have cancelled them is where such sequences are heading.
    """

    def __init__(self) -> None:
        self._points: list[Tensor] = []
        self._steps: list[Tensor] = []

    def forget(self) -> None:
        """Start anew, after a jump that the earlier steps know nothing of."""
        self._points.clear()
        self._steps.clear()

    def jump(self, point: Tensor, step: Tensor) -> Tensor:
        """Return the next jump, `[G]`."""
        self._points, self._steps = [*self._points[-MEMORY:], point], [*self._steps[-MEMORY:], step]
        moved = step
        if len(self._points) > 1:
            points, steps = torch.stack(self._points, -1).diff(), torch.stack(self._steps, -1).diff()
            weights = torch.linalg.pinv(steps, rtol=1e-10) @ step
            moved = step - (points + steps) @ weights
            # Steps that do not shrink lead away from what mixing would return to, a minimum: go on, and faster.
            before = self._steps[-2]
            steady = (step * before > 0) & (step.abs() >= STEADY * before.abs())
            moved = torch.where(moved * step < 0, torch.where(steady, FASTER * step, step), moved)
        bound = longest_jumps(step)
        moved = torch.where(moved.isfinite(), moved, step).clamp(-bound, bound)
        return torch.where(step == 0, step, moved)  # held, or pushing against a limit: stays


def longest_jumps(step: Tensor) -> Tensor:
    """Return the longest jump of each logarithm for a plain step."""
    return LONGEST * step.abs() + SHARED * step.abs().max()


def bounded(logs: Tensor) -> Tensor:
    """Return the logarithms within the limits of every precision."""
    return logs.clamp(math.log(LOWEST), math.log(HIGHEST))


def pruned(step: Tensor, gamma: Tensor, share: Tensor, slope: Tensor, nats: float) -> Tensor:
    """Return which precisions to set to the upper limit: they rise, with next to nothing to gain on the way.

    Where the data determine little of a group, gamma is `tr(H_gg)/delta` and theta-star is proportional to `1/delta`.
    Then the step is a constant, `log(tr H_gg / |gradient_g|^2)`, so a group that rises now rises for ever; and the
    slope of the evidence in `log delta` is proportional to `1/delta`, so that the slope itself is what is left to gain.

    Args:
        step: plain step of every logarithm, the noise's last where there is one.
        gamma: effective parameters per group.
        share: the same, divided by the number of weights of the group.
        slope: slope of the evidence in the logarithm of each group's precision.
        nats: gains below this count as nothing.
    """
    idle = (gamma < NEGLIGIBLE) | ((slope <= nats) & (share < FEW))
    rising = torch.zeros_like(step, dtype=torch.bool)
    rising[: len(gamma)] = (step[: len(gamma)] > 0) & idle.to(step.device)
    return rising
