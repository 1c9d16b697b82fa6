"""Scale the columns of a table to mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.errors import DataError


@checked_methods
@dataclass(frozen=True, eq=False)
class Scaling:
    """Scale each column by `(x - mean) / scale`.

    Attributes:
        mean: `[d]`, float64.
        scale: `[d]`, float64, positive; 1 for a constant column, which has no unit.
        constant: `[d]`, which columns are: there, whatever a model says, the answer is the constant.
    """

    mean: Tensor
    scale: Tensor
    constant: Tensor

    @classmethod
    def of(cls, x: Tensor, names: Sequence[str] | None = None) -> Scaling:
        """Compute the scaling of training rows `[N, d]`; missing entries are left out.

        Raises:
            DataError: These are no rows, or a column has no values, or values whose deviation no double can hold.
        """
        if x.dim() != 2:
            raise DataError(f"training rows have the shape [rows, columns], got {list(x.shape)}")
        present = ~x.isnan()
        count = present.sum(0)
        if not bool((count > 0).all()):
            raise DataError(f"{_name_of_first(count == 0, names)} has no values in the training rows; remove it")
        if len(x) > 1 and not bool((count > 1).all()):
            raise DataError(f"{_name_of_first(count == 1, names)} has a single value in the training rows; remove it")
        values = torch.where(present, x, 0).double()
        mean = values.sum(0) / count
        difference = torch.where(present, x.double() - mean, 0)
        deviation = (difference.square().sum(0) / count).sqrt()
        # a mean of equal numbers may be off by a bit
        constant = (difference.abs().amax(0) <= 1e-12 * mean.abs()) & mean.isfinite()
        wrong = ~constant & ~((deviation > torch.finfo(torch.float64).tiny) & deviation.isfinite() & mean.isfinite())
        if bool(wrong.any()):
            raise DataError(
                f"{_name_of_first(wrong, names)} has numbers too large or too small to be scaled; use other units"
            )
        centre = torch.where(constant, first_values(x, present), mean)
        return cls(centre, torch.where(constant, 1.0, deviation), constant)

    def scaled(self, x: Tensor) -> Tensor:
        """Return rows scaled to mean 0 and standard deviation 1."""
        return ((self._columns(x) - self.mean) / self.scale).to(x.dtype)

    def unscaled(self, x: Tensor) -> Tensor:
        """Return rows in the units of the data, in float64."""
        return torch.where(self.constant, self.mean, self._columns(x) * self.scale + self.mean)

    def deviations(self, std: Tensor) -> Tensor:
        """Return standard deviations in the units of the data, in float64; 0 for constant columns.

        A single number is the standard deviation of every column.
        """
        std = std if std.dim() else std.expand(len(self.mean))
        return torch.where(self.constant, 0.0, self._columns(std) * self.scale)

    def _columns(self, x: Tensor) -> Tensor:
        """Return rows in double precision, or say that they have other columns."""
        if not x.dim() or x.shape[-1] != len(self.mean) or x.is_complex() or x.device.type == "meta":
            raise DataError(
                f"a table of shape {list(x.shape)} ({x.dtype}) was given; {len(self.mean)} columns are needed."
            )
        if bool(x.isinf().any()):
            raise DataError(f"a table of shape {list(x.shape)} has infinite entries; NaN marks missing ones.")
        return x.double()

    def as_json(self) -> dict[str, list[Any]]:
        """Return the scaling as JSON can hold it, exactly."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist(), "constant": self.constant.tolist()}

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Scaling:
        """Build the scaling that `as_json` described; runs of earlier versions have no constant columns."""
        if not {"mean", "scale"} <= entries.keys():
            raise DataError("a scaling has a mean and a scale for every column.")
        mean, scale = (torch.tensor(entries[name], dtype=torch.float64) for name in ("mean", "scale"))
        constant = torch.tensor(entries.get("constant", [False] * len(mean)), dtype=torch.bool)
        if (
            not mean.shape == scale.shape == constant.shape
            or mean.ndim != 1
            or not bool((scale > 0).all() & mean.isfinite().all())
        ):
            raise DataError("the scaling of the run is damaged: means and positive scales of all columns are needed")
        return cls(mean, scale, constant)


def first_values(x: Tensor, present: Tensor) -> Tensor:
    """Return the first value of each column that is not missing, `[d]`."""
    return x.double().gather(0, present.int().argmax(0, keepdim=True))[0]


def _name_of_first(wrong: Tensor, names: Sequence[str] | None) -> str:
    """Return the name of the first of the columns that are wrong."""
    number = int(wrong.nonzero()[0])
    return f"column {names[number]!r}" if names else f"column number {number + 1}"
