"""Represent curvature by Kronecker factors: two small matrices per layer instead of one large one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.arguments import checked
from marquis.errors import ModelMismatchError, UnsupportedOperationError
from marquis.structures.base import Part, Structure
from marquis.structures.corrected import CorrectedPiece
from marquis.structures.kronecker_operator import KroneckerOperator
from marquis.structures.layout import DiagonalLike, Layout, Scalar
from marquis.structures.linalg import as_number, check_factor, require_consistent
from marquis.structures.pieces import DensePiece, DiagonalPiece, KroneckerFactors, KroneckerPiece, Piece


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Kronecker(Structure):
    """Keep A = scale * direct sum of pieces + diagonal (docs/method/kronecker.md#sums-and-forgetting).

    A layer's piece means `left (x) right / count`: with the sums over a data set of output curvatures and
    of input products, the classical Kronecker factors. Sides r and s: memory r^2 + s^2,
    eigen-decompositions O(r^3 + s^3) once, products O(r s (r + s)).

    `a + b` adds left, right and count: the structure of the joint batch, which is *not* the sum of the two
    dense matrices (that is no Kronecker product). `c * a` is the dense multiple and is kept in `scale`.
    `a.decay(f)` multiplies left, right and count: the same matrix as `f * a`, with less weight in a later
    sum; `a.decay(0)` is the neutral element of `+`.

    Args:
        layout: Names and shapes of the parameters.
        pieces: One `KroneckerPiece`, `CorrectedPiece`, `DensePiece` or `DiagonalPiece` per parameter.
        scale: Non-negative scalar in front of the pieces (not of the diagonal).
        diagonal: What to add to the diagonal, as in `add_diagonal`.
    """

    kind: ClassVar[str] = "kronecker"
    layout: Layout
    pieces: Mapping[str, Piece]
    scale: Scalar
    shift: Mapping[str, Tensor] | None
    """The added diagonal by parameter: without axes where it is constant, else flat."""

    def __init__(
        self,
        layout: Layout,
        pieces: Mapping[str, Piece],
        scale: Scalar = 1.0,
        diagonal: DiagonalLike | None = None,
    ) -> None:
        """Check that there is one fitting piece per parameter."""
        missing = [name for name in layout.names if name not in pieces]
        extra = [name for name in pieces if name not in layout.shapes]
        if missing or extra:
            raise ModelMismatchError(f"one piece per parameter: missing {missing}, unknown {extra}")
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "pieces", {name: pieces[name] for name in layout.names})
        object.__setattr__(self, "shift", None)
        object.__setattr__(self, "scale", check_factor(scale, "scale", self.like))
        require_consistent(self._matrices(), "pieces")
        for name, piece in self.pieces.items():
            piece.require_fit(name, layout.sizes[name])
        if diagonal is not None:
            object.__setattr__(self, "shift", self._spread(diagonal))

    def report(self) -> dict[str, str]:
        """Return how each parameter is kept: "kronecker", "corrected", "dense" or "diagonal"."""
        return {name: piece.kind for name, piece in self.pieces.items()}

    def _make_parts(self) -> Sequence[Part]:
        none = self.like.new_zeros(())
        return tuple(
            ((name,), piece.operator(name, self.scale, none if self.shift is None else self.shift[name]))
            for name, piece in self.pieces.items()
        )

    def _matrices(self) -> list[Tensor]:
        """Return the accumulators without the counts."""
        return [tensor for piece in self.pieces.values() for tensor in piece.tensors() if tensor.dim() > 0]

    def _spread(self, diagonal: DiagonalLike) -> dict[str, Tensor]:
        spread = super()._spread(diagonal)
        return {name: piece.accept(name, spread[name]) for name, piece in self.pieces.items()}

    def tensors(self) -> list[Tensor]:
        """Return left, right and count, or the one accumulator, of every parameter; then the diagonal if any."""
        accumulators = [tensor for piece in self.pieces.values() for tensor in piece.tensors()]
        return accumulators + list((self.shift or {}).values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same pieces and scale with other accumulators."""
        remaining: Iterator[Tensor] = iter(tensors)
        pieces = {
            name: piece.with_tensors(list(islice(remaining, len(piece.tensors()))))
            for name, piece in self.pieces.items()
        }
        diagonal = None if self.shift is None else {name: next(remaining) for name in self.shift}
        return type(self)(self.layout, pieces, self.scale, diagonal)

    @checked
    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same matrix in another dtype or on another device; decompositions are computed afresh."""
        dtype = self.dtype if dtype is None else dtype
        device = self.device if device is None else device
        pieces = {name: piece.to(dtype, device) for name, piece in self.pieces.items()}
        return type(self)(self.layout, pieces, self.scale, self.shift)

    def add_diagonal(self, diagonal: DiagonalLike, *, damping: bool = False) -> Self:
        """Return A + diag(d), d constant within each Kronecker-factored parameter.

        Args:
            diagonal: Scalar, vector `[P]`, or dictionary by parameter name.
            damping: For Kronecker pieces use `(G + sqrt(d) I) (x) (A + sqrt(d) I)` instead, G and A being
                the factors with scale and 1/count shared equally; a different, larger matrix. The pieces
                are then no longer sums over data, so do not add to the result.

        Raises:
            UnsupportedOperationError: When d varies within a Kronecker-factored parameter.
        """
        spread = self._spread(diagonal)
        if damping:
            return self._damped(spread)
        if self.shift is not None:
            spread = {name: self.shift[name] + spread[name] for name in spread}
        made = copy.copy(self)  # not the constructor, which would look at all pieces again at every step of tuning
        vars(made).pop("parts", None)
        object.__setattr__(made, "shift", spread)
        return made

    def _damped(self, spread: Mapping[str, Tensor]) -> Self:
        """Return the structure with the diagonal's root added to both factors."""
        zero = self.like.new_zeros(())
        shift = {name: zero for name in spread} if self.shift is None else dict(self.shift)
        pieces: dict[str, Piece] = {}
        for name, piece in self.pieces.items():
            if isinstance(piece, CorrectedPiece):
                raise UnsupportedOperationError(f"damping splits Kronecker factors, but {name!r} is corrected.")
            if isinstance(piece, KroneckerPiece):
                pieces[name] = piece.damped(self.scale, spread[name])
            else:
                pieces[name] = piece.weighted(self.scale)
                shift[name] = shift[name] + spread[name]
        return type(self)(self.layout, pieces, 1.0, shift)

    def by_parameter(self) -> dict[str, Tensor | KroneckerFactors]:
        """Return for each name `KroneckerFactors`, a dense block or a diagonal, with scale and shift."""
        blocks: dict[str, Tensor | KroneckerFactors] = {}
        for ((name,), operator), piece in zip(self.parts, self.pieces.values(), strict=True):
            if type(operator) is KroneckerOperator:  # not the corrected one
                left = operator.left * operator.factor
                blocks[name] = KroneckerFactors(left, operator.right, operator.shift, operator.channels)
            elif isinstance(piece, DiagonalPiece):
                blocks[name] = operator.diagonal().reshape(self.layout.shapes[name])
            else:
                blocks[name] = operator.to_dense()
        return blocks

    def decay(self, factor: Scalar) -> Self:
        """Return `factor * self` with left, right and count weighted for later sums (forgetting)."""
        factor = check_factor(factor, "decay factor", self.like)
        pieces = {name: piece.weighted(factor) for name, piece in self.pieces.items()}
        return type(self)(self.layout, pieces, self.scale, self._scaled_shift(factor))

    def _scaled_shift(self, factor: Scalar) -> dict[str, Tensor] | None:
        """Return the added diagonal times a factor."""
        return None if self.shift is None else {name: d * factor for name, d in self.shift.items()}

    def _plus(self, other: Any) -> Self:
        if as_number(self.scale) != as_number(other.scale):
            raise UnsupportedOperationError(
                f"cannot add Kronecker structures with scales {as_number(self.scale)} and {as_number(other.scale)}:"
                " the sum is that of the joint batch, so multiply after adding, or use decay() to weigh data"
            )
        pieces = {name: piece.plus(other.pieces[name], name) for name, piece in self.pieces.items()}
        if self.shift is None or other.shift is None:
            diagonal = self.shift or other.shift
        else:
            diagonal = {name: self.shift[name] + other.shift[name] for name in self.shift}
        return type(self)(self.layout, pieces, self.scale, diagonal)

    def _times(self, factor: Scalar) -> Self:
        return type(self)(self.layout, self.pieces, self.scale * factor, self._scaled_shift(factor))

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        meta: dict[str, Any] = {"scale": as_number(self.scale), "pieces": self.report(), "counts": {}}
        meta["shifted"] = self.shift is not None
        meta["channels"] = {name: i for name, piece in self.pieces.items() if (i := getattr(piece, "channels", 1)) != 1}
        tensors: dict[str, Tensor] = {}
        for name, piece in self.pieces.items():
            if isinstance(piece, KroneckerPiece):
                meta["counts"][name] = piece.count
                tensors |= {f"left.{name}": piece.left, f"right.{name}": piece.right}
            elif isinstance(piece, CorrectedPiece):
                tensors |= {f"left.{name}": piece.left, f"right.{name}": piece.right, f"corrected.{name}": piece.values}
            else:
                tensors[f"{piece.kind}.{name}"] = piece.tensors()[0]
        tensors |= {f"shift.{name}": d for name, d in (self.shift or {}).items()}
        return meta, tensors

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        pieces: dict[str, Piece] = {}
        ordered = meta.get("channels", {})  # files of 0.1.0 have none
        for name, kind in meta["pieces"].items():
            channels = ordered.get(name, 1)
            if kind == "kronecker":
                left, right = tensors[f"left.{name}"], tensors[f"right.{name}"]
                pieces[name] = KroneckerPiece(left, right, meta["counts"][name], channels)
            elif kind == "corrected":
                parts = (tensors[f"{part}.{name}"] for part in ("left", "right", "corrected"))
                pieces[name] = CorrectedPiece(*parts, channels=channels)
            else:
                pieces[name] = {"dense": DensePiece, "diagonal": DiagonalPiece}[kind](tensors[f"{kind}.{name}"])
        diagonal = {name: tensors[f"shift.{name}"] for name in layout.names} if meta["shifted"] else None
        return cls(layout, pieces, meta["scale"], diagonal)

    def _summary(self) -> str:
        kinds = list(self.report().values())
        return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
