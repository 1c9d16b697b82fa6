"""Represent a matrix whose parts lie in different processes of a `torch.distributed` group; none has all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from typing_extensions import Self

from marquis.arguments import checked
from marquis.distributed import fails_together, from_first_process, group_is_up, sum_tensor
from marquis.errors import UnsupportedOperationError
from marquis.structures.base import Part, Structure
from marquis.structures.diagonal import Diagonal
from marquis.structures.layout import DiagonalLike, Layout, Scalar
from marquis.structures.state import pack


@dataclass(frozen=True, eq=False, repr=False)
class Spread(Structure):
    """Keep a direct sum over parameters of which this process holds the summands of neighbouring parameters.

    Vectors `[P]` are whole in every process and the same in all of them; the matrix never is, but for `to_dense`. All
    processes have to call every method that computes something, in the same order. One that raises, raises in all.

    Args:
        layout: All parameters.
        local: The matrix over this process's run of parameters; where it has none, an empty diagonal.
        kind: That of the parts.
    """

    layout: Layout
    local: Structure
    kind: str  # pyright: ignore[reportIncompatibleVariableOverride]

    @cached_property
    def _place(self) -> slice:
        """Return where this process's parameters are in the flat vector."""
        start = self.layout.offsets[self.local.layout.names[0]] if self.local.layout.names else 0
        return slice(start, start + self.local.layout.total)

    # --- between processes ---------------------------------------------------------------------------

    def over_processes(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the sum over all processes of what each computes; gradients stay where they came from."""
        if not group_is_up():
            raise UnsupportedOperationError("this matrix is spread over processes, but their group is closed.")
        return _SumOverProcesses.apply(fails_together(compute)())  # type: ignore[return-value]

    def _gathered(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return `[..., P]` of which each process computes its own entries."""

        def padded() -> Tensor:
            after = self.layout.total - self._place.stop
            return torch.nn.functional.pad(compute(), (self._place.start, after))

        return self.over_processes(padded)

    def _own_entries(self, v: Tensor) -> Tensor:
        """Return this process's entries of a vector that all processes have; its gradient is that of all of them."""
        return (_SummedGradient.apply(v) if v.requires_grad else v)[..., self._place]  # type: ignore[index]

    # --- the matrix ----------------------------------------------------------------------------------

    def _make_parts(self) -> Sequence[Part]:
        return self.local.parts

    def tensors(self) -> list[Tensor]:
        """Return the accumulators of this process."""
        return self.local.tensors()

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same kind of value with other accumulators of this process."""
        return replace(self, local=self.local.with_tensors(tensors))

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same matrix in another dtype or on another device."""
        return replace(self, local=self.local.to(dtype, device))

    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return A + diag(d)."""
        # One vector for all parameters: every process takes part in the sum of its gradients, also one without any.
        local = self._own_entries(self.layout.vector(diagonal, self.like))
        if isinstance(self.local, Diagonal):
            return replace(self, local=replace(self.local, values=self.local.values + local))
        return replace(self, local=self.local.add_diagonal(local))

    def by_parameter(self) -> dict[str, Any]:
        """Return the part of the matrix that belongs to each parameter of this process."""
        return self.local.by_parameter()

    def to_dense(self) -> Tensor:
        """Return the matrix `[P, P]`, written out in every process."""

        def padded() -> Tensor:
            after = self.layout.total - self._place.stop
            return torch.nn.functional.pad(self.local.to_dense(), (self._place.start, after) * 2)

        return self.over_processes(padded)

    def diagonal(self) -> Tensor:
        """Return the diagonal `[P]` of A."""
        return self._gathered(self.local.diagonal)

    @checked
    def matvec(self, v: Tensor) -> Tensor:
        """Return A v for `v [..., P]`; also written `structure @ v`."""
        v = self._prepared(v, "vector")
        return self._gathered(lambda: self.local.matvec(self._own_entries(v)))

    def logdet(self) -> Tensor:
        """Return the logarithm of det A."""
        return self.over_processes(self.local.logdet)

    @checked
    def solve(self, v: Tensor) -> Tensor:
        """Return A^-1 v for `v [..., P]`."""
        v = self._prepared(v, "vector")
        return self._gathered(lambda: self.local.solve(self._own_entries(v)))

    @property
    def noise_dim(self) -> int:
        """Return K, the number of standard normal numbers per sample: one per weight."""
        return self.layout.total

    def sample_from(self, z: Tensor) -> Tensor:
        """Map `z [..., K]` to `[..., P]` linearly; the first process's noise counts."""
        z = from_first_process(self._prepared(z, "noise"))
        return self._gathered(lambda: self.local.sample_from(z[..., self._place]))

    @checked
    def quadratic(self, jacobian: Tensor, diagonal_only: bool = False) -> Tensor:
        """Return J A^-1 J^T `[..., O, O]` for `J [..., O, P]`; only its diagonal `[..., O]` on request."""
        jacobian = self._prepared(jacobian, "jacobian")
        return self.over_processes(lambda: self.local.quadratic(self._own_entries(jacobian), diagonal_only))

    def inverse_diagonal(self) -> Tensor:
        """Return diag(A^-1) `[P]`: the marginal variances."""
        return self._gathered(self.local.inverse_diagonal)

    def effective_dimension(self, diagonal: DiagonalLike) -> Tensor:
        """Return diag(A (A + D)^-1), a vector `[P]`."""
        d = self.layout.vector(diagonal, self.like)
        return self._gathered(lambda: self.local.effective_dimension(self._own_entries(d)))

    # --- arithmetic ----------------------------------------------------------------------------------

    def decay(self, factor: Scalar) -> Self:
        """Return the same matrix, weighted by `factor` against what is added later (forgetting)."""
        return replace(self, local=self.local.decay(factor))

    def _plus(self, other: Any) -> Self:
        return replace(self, local=self.local + other.local)

    def _times(self, factor: Scalar) -> Self:
        entered = _SummedGradient.apply(factor) if isinstance(factor, Tensor) and factor.requires_grad else factor
        return replace(self, local=self.local * entered)

    # --- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return this process's part; it can be read again by the same process of as many."""
        meta, tensors = self._state()
        return pack("spread", self.layout, meta, tensors)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        local = {f"local.{key}": tensor for key, tensor in self.local.state_dict().items()}
        return {"process": [dist.get_rank(), dist.get_world_size()], "kind": self.kind}, local

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        raise NotImplementedError  # `from_state_dict` knows the kinds of parts

    def _summary(self) -> str:
        return f"{self.kind}, of which {self.local.layout.total} here"


class _SumOverProcesses(torch.autograd.Function):
    """Add up a tensor over processes; each gets the gradient of its own summand."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_tensor(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _SummedGradient(torch.autograd.Function):
    """Return a tensor of all processes unchanged; its gradient is the sum over processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return sum_tensor(gradients[0])
