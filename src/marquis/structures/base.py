"""Define what every structure can do: one symmetric positive semi-definite matrix over named parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.arguments import FromZero, checked
from marquis.errors import DataError, UnsupportedOperationError
from marquis.randomness import normal
from marquis.structures.layout import DiagonalLike, Layout, Scalar
from marquis.structures.linalg import as_number, check_factor, convert
from marquis.structures.operators import Operator
from marquis.structures.state import pack

Part = tuple[tuple[str, ...], Operator]
"""Some parameters and the matrix over them, in that order."""


class Structure(ABC):
    """Represent a symmetric positive semi-definite matrix A over a flattened parameter vector; an immutable value.

    Arithmetic returns new values and never writes into old ones; tensors are not copied, so do not write
    into those you passed in. `solve`, `logdet`, `sample`, `quadratic` and `inverse_diagonal` need A to be
    positive *definite*: add a prior with `add_diagonal` first, or they raise `NumericalError`.
    Factorisations are computed when first needed and kept. Gradients flow from results to the scalars
    of `*` and the diagonals of `add_diagonal`, for tuning by evidence.

    A new structure writes `_make_parts` (the linear algebra), arithmetic, and its accumulators.
    """

    kind: ClassVar[str]
    reduction: ClassVar[Literal["sum", "gather"]] = "sum"
    """How processes combine: "sum" all-reduces `tensors()`; "gather" concatenates values with `+`."""
    __array_ufunc__: ClassVar[None] = None  # NumPy scalars leave `scalar * structure` to us
    layout: Layout

    # --- what a structure writes -------------------------------------------------------------------

    @abstractmethod
    def _make_parts(self) -> Sequence[Part]:
        """Return the matrix as a direct sum with every parameter in exactly one part; called once per value."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the accumulators. Where `reduction` is "sum", their sum over processes is the sum `+`."""

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same kind of value with other accumulators, in the order of `tensors()`."""
        return type(self)(self.layout, *tensors)  # type: ignore[call-arg]

    @abstractmethod
    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return A + diag(d); d a scalar, a vector `[P]`, or a scalar or tensor per parameter name."""

    @abstractmethod
    def by_parameter(self) -> dict[str, Any]:
        """Return the part of the matrix that belongs to each parameter."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a description that JSON can hold, and tensors."""

    @classmethod
    @abstractmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Build the value that `_state` described."""

    def _plus(self, other: Any) -> Self:
        """Return the sum with a value of the same kind and layout, which `+` has checked."""
        return self.with_tensors([a + b for a, b in zip(self.tensors(), other.tensors(), strict=True)])

    def _times(self, factor: Scalar) -> Self:
        """Return the product with a scalar that `*` has checked."""
        return self.with_tensors([tensor * factor for tensor in self.tensors()])

    def over_processes(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the sum of what all processes compute from their parts of the matrix; here there is one part."""
        return compute()

    # --- where and how big -------------------------------------------------------------------------

    @cached_property
    def parts(self) -> Sequence[Part]:
        """Return the parts of the matrix, made once."""
        return self._make_parts()

    @cached_property
    def like(self) -> Tensor:
        """Return a tensor of this value's dtype and device."""
        tensors = self.tensors()
        return tensors[0] if tensors else torch.zeros(0)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the accumulators, float32 or float64."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of the accumulators."""
        return self.like.device

    @property
    def nbytes(self) -> int:
        """Return the bytes of the accumulators, factorisations not counted."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    @checked
    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same matrix in another dtype or on another device."""
        dtype = self.dtype if dtype is None else dtype
        device = self.device if device is None else device
        symmetric = self.reduction == "sum"  # else the accumulators are columns, not matrices
        return self.with_tensors([convert(t, dtype, device, symmetric=symmetric) for t in self.tensors()])

    # --- the matrix --------------------------------------------------------------------------------

    def to_dense(self) -> Tensor:
        """Return the matrix `[P, P]`, written out."""
        dense = self.like.new_zeros(self.layout.total, self.layout.total)
        for names, operator in self.parts:
            index = self._index(names)
            dense[index.unsqueeze(1), index] = operator.to_dense()
        return dense

    def diagonal(self) -> Tensor:
        """Return the diagonal `[P]` of A."""
        return self._assemble(lambda _, operator: operator.diagonal())

    def trace(self) -> Tensor:
        """Return the sum of the diagonal."""
        return self.diagonal().sum()

    @checked
    def matvec(self, v: Tensor) -> Tensor:
        """Return A v for `v [..., P]`; also written `structure @ v`."""
        return self._map(lambda operator, piece: operator.matvec(piece), self._prepared(v, "vector"))

    # --- its inverse -------------------------------------------------------------------------------

    def logdet(self) -> Tensor:
        """Return the logarithm of det A."""
        terms = [operator.logdet() for _, operator in self.parts]
        return torch.stack(terms).sum() if terms else self.like.new_zeros(())

    @checked
    def solve(self, v: Tensor) -> Tensor:
        """Return A^-1 v for `v [..., P]`."""
        return self._map(lambda operator, piece: operator.solve(piece), self._prepared(v, "vector"))

    @property
    def noise_dim(self) -> int:
        """Return K, the number of standard normal numbers per sample."""
        return sum(operator.noise_dim for _, operator in self.parts)

    @checked
    def sample_from(self, z: Tensor) -> Tensor:
        """Map `z [..., K]` to `[..., P]` linearly, as `sample` does: covariance A^-1 for standard normal z."""
        z = self._cast(z, "noise")
        if z.dim() == 0 or z.shape[-1] != self.noise_dim:
            raise DataError(f"noise has shape {tuple(z.shape)}; its last axis has to have noise_dim = {self.noise_dim}")
        pieces = iter(torch.split(z, [operator.noise_dim for _, operator in self.parts], dim=-1))
        return self._assemble(lambda _, operator: operator.sample_from(next(pieces)), z.shape[:-1])

    @checked
    def sample(self, n: FromZero, generator: torch.Generator | None = None) -> Tensor:
        """Return `n` samples `[n, P]` from N(0, A^-1): A is taken as a precision matrix."""
        return self.sample_from(normal((n, self.noise_dim), self.like, generator))

    @checked
    def quadratic(self, jacobian: Tensor, diagonal_only: bool = False) -> Tensor:
        """Return J A^-1 J^T `[..., O, O]` for `J [..., O, P]`; only its diagonal `[..., O]` on request.

        The diagonal is computed without the O x O matrix. Neither can be negative.
        """
        if jacobian.dim() < 2:
            raise DataError(f"jacobian has shape {tuple(jacobian.shape)}; expected [..., outputs, {self.layout.total}]")
        jacobian = self._prepared(jacobian, "jacobian")
        outputs = jacobian.shape[-2]
        total = jacobian.new_zeros(*jacobian.shape[:-1], *(() if diagonal_only else (outputs,)))
        for names, operator in self.parts:
            total = total + operator.quadratic(self._gather(jacobian, names), diagonal_only)
        return total

    def inverse_diagonal(self) -> Tensor:
        """Return diag(A^-1) `[P]`: the marginal variances."""
        return self._assemble(lambda _, operator: operator.inverse_diagonal())

    def effective_dimension(self, diagonal: DiagonalLike) -> Tensor:
        """Return diag(A (A + D)^-1) = 1 - d diag((A + D)^-1), a vector `[P]` to be summed per group.

        `self` is the curvature *without* the prior and d the prior precision (docs/method/evidence.md#mackay-updates).
        Every entry is in [0, 1]; the sum is the number of effective parameters.
        """
        spread = self._spread(diagonal)

        def gamma(names: tuple[str, ...], operator: Operator) -> Tensor:
            d = spread[names[0]] if len(names) == 1 else self.layout.join(spread, names, self.like)
            return operator.effective_dimension(d)

        return self._assemble(gamma)

    # --- arithmetic --------------------------------------------------------------------------------

    def decay(self, factor: Scalar) -> Self:
        """Return the same matrix, weighted by `factor` against what is added later (forgetting)."""
        return self._times(check_factor(factor, "decay factor", self.like))

    def __add__(self, other: object) -> Self:
        """Return the sum of two values of one kind; 0 is neutral, so that `sum()` works."""
        if isinstance(other, (int, float)) and other == 0:
            return self
        if not isinstance(other, Structure):
            return NotImplemented
        if not isinstance(other, type(self)):
            raise UnsupportedOperationError(
                f"cannot add {type(self).__name__} and {type(other).__name__}: structures of one kind only"
                " (write both out with to_dense() into Full if they are small)"
            )
        self.layout.require_same(other.layout)
        return self._plus(other)

    __radd__ = __add__

    def __mul__(self, factor: object) -> Self:
        """Return the product with a non-negative scalar."""
        if isinstance(factor, Structure):
            return NotImplemented
        return self._times(check_factor(factor, "scalar factor", self.like))

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> Self:
        """Divide by a positive scalar, such as a temperature."""
        scalar = check_factor(divisor, "divisor", self.like)
        if as_number(scalar) == 0:
            raise DataError("cannot divide a structure by 0")
        return self._times(1 / scalar)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Return A v for `v [..., P]`."""
        return self.matvec(v)

    # --- saving ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return a flat dictionary of contiguous tensors (layout and kind among them), ready for safetensors."""
        meta, tensors = self._state()
        return pack(self.kind, self.layout, meta, tensors)

    def _summary(self) -> str:
        """Return more text for `repr`, such as a rank."""
        return ""

    def __repr__(self) -> str:
        """Show kind, size, dtype and device."""
        where = f"{str(self.dtype).removeprefix('torch.')} on {self.device}"
        extra = self._summary()
        size = f"P={self.layout.total} in {len(self.layout.names)} parameters"
        return f"{type(self).__name__}({size}{', ' + extra if extra else ''}, {where})"

    # --- between the whole vector and its parts ------------------------------------------------------

    def _spread(self, diagonal: DiagonalLike) -> dict[str, Tensor]:
        """Return a diagonal as one tensor per parameter."""
        return self.layout.spread(diagonal, self.like)

    @cached_property
    def _contiguous(self) -> bool:
        """Return whether the parts, one after the other, already are the flat vector."""
        return tuple(name for names, _ in self.parts for name in names) == self.layout.names

    def _index(self, names: Sequence[str]) -> Tensor:
        """Return the positions of some parameters in the flat vector."""
        places = [torch.arange(s.start, s.stop, device=self.device) for s in map(self.layout.slice, names)]
        return torch.cat(places) if places else torch.zeros(0, dtype=torch.long, device=self.device)

    def _gather(self, v: Tensor, names: tuple[str, ...]) -> Tensor:
        """Return the entries of a vector that belong to some parameters."""
        if names == self.layout.names:
            return v
        pieces = [v[..., self.layout.slice(name)] for name in names]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)

    def _assemble(self, make: Callable[[tuple[str, ...], Operator], Tensor], batch: Sequence[int] = ()) -> Tensor:
        """Concatenate the results `[..., n]` of all parts in the order of the layout."""
        made = [make(names, operator) for names, operator in self.parts]
        if not made:
            return self.like.new_zeros(*batch, 0)
        if self._contiguous:
            return made[0] if len(made) == 1 else torch.cat(made, dim=-1)
        pieces: dict[str, Tensor] = {}
        for (names, _), whole in zip(self.parts, made, strict=True):
            split = torch.split(whole, [self.layout.sizes[name] for name in names], dim=-1)
            pieces.update(zip(names, split, strict=True))
        return torch.cat([pieces[name] for name in self.layout.names], dim=-1)

    def _map(self, function: Callable[[Operator, Tensor], Tensor], v: Tensor) -> Tensor:
        """Apply a function of operator and vector part by part."""
        return self._assemble(lambda names, operator: function(operator, self._gather(v, names)), v.shape[:-1])

    def _cast(self, tensor: Tensor, what: str) -> Tensor:
        """Return a tensor in the structure's type; refuse one that would lose digits."""
        if not self.tensors():  # nothing kept, so no dtype either
            return tensor
        if tensor.dtype != self.dtype and torch.promote_types(tensor.dtype, self.dtype) != self.dtype:
            raise DataError(
                f"{what} is {tensor.dtype}, the structure {self.dtype}: convert one of them"
                " (structure.to(dtype=...)) instead of losing digits unnoticed"
            )
        return tensor.to(self.dtype)

    def _prepared(self, tensor: Tensor, what: str) -> Tensor:
        """Return a vector in the structure's type, after checks of its length and entries."""
        tensor = self._cast(tensor, what)
        self.layout.check_length(tensor, what)
        self.layout.check_finite(tensor, what)
        return tensor
