"""Columns of a table brought to mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError


@dataclass(frozen=True, eq=False)
class Scaling:
    """`(x - mean) / scale` for each column.

    Attributes:
        mean: `[d]`, float64.
        scale: `[d]`, float64, positive.
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, names: Sequence[str] | None = None) -> Scaling:
        """From training rows `[N, d]`; missing entries are left out, and a constant column keeps its unit.

        Raises:
            DataError: A column has no values.
        """
        seen = ~x.isnan()
        count = seen.sum(0)
        if not bool((count > 0).all()):
            empty = int((count == 0).nonzero()[0])
            called = repr(names[empty]) if names else f"number {empty + 1}"
            raise DataError(f"column {called} has no values in the training rows; remove it")
        values = torch.where(seen, x, 0).double()
        mean = values.sum(0) / count
        deviation = (torch.where(seen, x.double() - mean, 0).square().sum(0) / count).sqrt()
        # rounding gives a constant column a deviation that is not quite zero
        constant = deviation <= 1e-12 * mean.abs()
        return cls(mean, torch.where(constant | (deviation == 0), 1.0, deviation))

    def scaled(self, x: Tensor) -> Tensor:
        """To mean 0 and standard deviation 1."""
        return ((x.double() - self.mean) / self.scale).to(x.dtype)

    def unscaled(self, x: Tensor) -> Tensor:
        """Back to the units of the data, in float64."""
        return x.double() * self.scale + self.mean

    def as_json(self) -> dict[str, list[float]]:
        """What JSON can hold, exactly."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Scaling:
        """The inverse of `as_json`."""
        mean, scale = (torch.tensor(held[name], dtype=torch.float64) for name in ("mean", "scale"))
        if mean.shape != scale.shape or mean.ndim != 1 or not bool((scale > 0).all() & mean.isfinite().all()):
            raise DataError("the scaling of the run is damaged: means and positive scales of all columns are needed")
        return cls(mean, scale)
