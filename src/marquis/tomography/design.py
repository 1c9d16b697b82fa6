"""Choose which angles to measure next: greedily, by the posterior of their measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from marquis.arguments import as_numbers, checked_arrays
from marquis.choices import choose
from marquis.errors import DataError, UnsupportedOperationError
from marquis.tomography.operators import Measurement, forward_rows
from marquis.tomography.result import UncertainImage

Criterion = Literal["variance", "information"]


class GaussianDesign:
    """Hold the covariance of an image, updated exactly by measurements whose outcome does not matter.

    `Σ = Fᵀ W F`: for a posterior with a covariance matrix F is the identity and W the matrix, for one of samples F
    has them as rows and W is `1/n`. The covariance of a linear Gaussian model does not depend on the readings.

    Args:
        result: a posterior with covariance or samples.
    """

    def __init__(self, result: UncertainImage) -> None:
        self.noise_variance = result.noise_variance
        if result.posterior_covariance is not None:
            self.rows: Tensor | None = None
            self.core = result.posterior_covariance.clone()
        elif result.deviations is not None:
            self.rows = result.deviations
            self.core = torch.eye(self.rows.shape[0], dtype=torch.float64) / self.rows.shape[0]
        else:
            raise UnsupportedOperationError(
                f"{result.method} has neither covariance nor samples: it does not say what a new angle would add."
            )

    def _projected(self, measurement: Measurement) -> Tensor:
        """Return `F Aᵀ`."""
        rows = torch.eye(self.core.shape[0], dtype=torch.float64) if self.rows is None else self.rows
        return forward_rows(measurement, rows)

    def predictive(self, measurement: Measurement) -> Tensor:
        """Return the covariance `A Σ Aᵀ` of what would be read, without noise."""
        projected = self._projected(measurement)
        return projected.T @ self.core @ projected

    def value(self, measurement: Measurement, criterion: Criterion) -> float:
        """Return the trace of the predictive covariance, or the expected information gain in nats."""
        covariance = self.predictive(measurement)
        if criterion == "variance":
            return float(covariance.trace())
        scaled = covariance / self.noise_variance + torch.eye(covariance.shape[0], dtype=torch.float64)
        return 0.5 * float(torch.linalg.slogdet(scaled)[1])

    def condition(self, measurement: Measurement) -> None:
        """Update the covariance as if the measurement had been made."""
        projected = self._projected(measurement)
        cross = self.core @ projected
        noise = self.noise_variance * torch.eye(projected.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(projected.T @ cross + noise)
        half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        self.core = self.core - half.T @ half

    def covariance(self) -> Tensor:
        """Return the covariance of the image `[dx, dx]`."""
        return self.core if self.rows is None else self.rows.T @ self.core @ self.rows


@checked_arrays
def next_angles(
    result: UncertainImage,
    candidates: Sequence[float] | Tensor,
    count: int = 1,
    criterion: Criterion = "variance",
) -> Tensor:
    """Return the angles (radians) to measure next, the most useful first.

    Greedy: the best candidate is chosen, the posterior is conditioned on it exactly, and so on. An angle is chosen at
    most once, and one that was measured already is not a candidate.

    Args:
        result: a posterior of `reconstruct` with an X-ray geometry.
        candidates: angles in radians.
        count: number of angles to choose.
        criterion: "variance" of the predicted readings, or expected "information" gain.

    Raises:
        DataError: fewer candidates than `count`, or an unknown criterion.
        UnsupportedOperationError: the result's measurement has no angles, or its method neither covariance nor samples.
    """
    geometry: Any = result.measurement
    if not hasattr(geometry, "with_angles"):
        raise UnsupportedOperationError(f"{type(geometry).__name__} has no angles to choose from.")
    criterion = choose("criterion", criterion, ("variance", "information"), error=DataError)
    angles = torch.as_tensor(as_numbers("candidates", candidates)).reshape(-1).unique()
    taken = (angles[:, None] - geometry.angles[None]).abs().min(dim=1).values < 1e-9
    remaining = angles[~taken].tolist()
    if not 1 <= count <= len(remaining):
        raise DataError(f"count is {count}, but {len(remaining)} candidates have not been measured yet.")
    design = GaussianDesign(result)
    views = {angle: geometry.with_angles([angle]) for angle in remaining}
    chosen: list[float] = []
    for _ in range(count):
        best = max(views, key=lambda angle: design.value(views[angle], criterion))
        chosen.append(best)
        design.condition(views.pop(best))
    return torch.tensor(chosen, dtype=torch.float64)
