"""Hamiltonian Monte Carlo with a fixed number of chains, a given mass matrix and an adapted step size (Neal, 2011).

A reference for posteriors of a few hundred weights. Positions are whitened by the mass matrix before the leapfrog, so
that one step size serves all directions; it is adapted in the warm-up by dual averaging (Hoffman and Gelman, 2014,
section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TARGET = 0.8
"""Mean acceptance that the step size is adapted to."""

Density = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function of a position `[P]` that returns its log density, up to a constant, and the gradient of that."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Hold the positions of one chain after the warm-up.

    Attributes:
        positions: Positions `[kept, P]`.
        acceptance: Mean probability of acceptance of the kept transitions.
        step: Step size of the whitened leapfrog.
    """

    positions: Tensor
    acceptance: float
    step: float


def chain(
    density: Density,
    start: Tensor,
    mass: Tensor,
    generator: torch.Generator,
    *,
    warm_up: int,
    kept: int,
    steps: tuple[int, int] = (10, 30),
) -> Chain:
    """Run one chain. Cost: `warm_up + kept` transitions of a random number of gradients and products with `[P, P]`.

    Args:
        density: Log density and its gradient.
        start: First position `[P]`.
        mass: Mass matrix `[P, P]`, positive definite; best the precision of a Gaussian approximation.
        generator: Source of random numbers.
        warm_up: Transitions in which the step size is adapted, which are not kept.
        kept: Transitions whose positions are kept.
        steps: Least and largest number of leapfrog steps of a transition.
    """
    factor = torch.linalg.cholesky(mass)
    whiten = torch.linalg.solve_triangular(factor, torch.eye(len(mass), dtype=mass.dtype), upper=False)

    def at(position: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = density(position)
        return value, whiten @ gradient  # θ = θ₀ + C⁻ᵀ z with the mass matrix C Cᵀ

    rate = _DualAveraging(0.1)
    here, (value, slope) = start.clone(), at(start)
    positions, accepted = [], []
    for number in range(warm_up + kept):
        size = rate.step if number < warm_up else rate.settled
        count = int(torch.randint(steps[0], steps[1] + 1, (), generator=generator))
        speed = torch.randn(len(start), dtype=start.dtype, generator=generator)
        place, pace, (new_value, new_slope) = here, speed, (value, slope)
        for _ in range(count):
            pace = pace + 0.5 * size * new_slope
            place = place + size * (whiten.T @ pace)
            new_value, new_slope = at(place)
            pace = pace + 0.5 * size * new_slope
        gain = float(new_value - value + 0.5 * (speed.square().sum() - pace.square().sum()))
        chance = math.exp(min(0.0, gain)) if math.isfinite(gain) else 0.0
        if float(torch.rand((), dtype=start.dtype, generator=generator)) < chance:
            here, value, slope = place, new_value, new_slope
        if number < warm_up:
            rate.update(chance)
        else:
            positions.append(here)
            accepted.append(chance)
    return Chain(torch.stack(positions), sum(accepted) / len(accepted), rate.settled)


class _DualAveraging:
    """Adapt the step size so that the mean acceptance approaches `TARGET`; constants of Hoffman and Gelman."""

    def __init__(self, step: float) -> None:
        self.step = self.settled = step
        self._centre, self._error, self._count = math.log(10 * step), 0.0, 0

    def update(self, chance: float) -> None:
        """Take the acceptance probability of one transition into account."""
        self._count += 1
        weight = 1 / (self._count + 10)
        self._error = (1 - weight) * self._error + weight * (TARGET - chance)
        log_step = self._centre - self._error * math.sqrt(self._count) / 0.05
        share = self._count**-0.75
        self.step = math.exp(log_step)
        self.settled = math.exp(share * log_step + (1 - share) * math.log(self.settled))


def split_r_hat(values: Tensor) -> Tensor:
    """Compute R-hat of quantities `[chains, positions, n]`, each chain cut in halves (Gelman et al., 2013)."""
    half = values.shape[1] // 2
    parts = torch.cat([values[:, :half], values[:, half : 2 * half]])
    within = parts.var(1).mean(0)
    between = parts.mean(1).var(0)
    return ((half - 1) / half + between / within).sqrt()
