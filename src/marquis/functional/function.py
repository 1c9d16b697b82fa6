"""Treat a network as a function of some of its parameters, all others held fixed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.functional.call import (
    Model,
    buffers_of,
    call,
    copied_buffers,
    describe,
    plain_attention,
    without_inference,
)
from marquis.functional.checks import (
    all_finite,
    batch_size,
    does_not_take,
    is_close,
    refuse_training_mode,
    require_derivative,
    samples_influence_each_other,
)
from marquis.functional.selection import Selection, parameters_of, select
from marquis.functional.unwrap import computing_dtype, entries, named_modules


@dataclass(frozen=True, eq=False)
class NetworkFunction:
    """Compute the outputs of a network as a function of some of its parameters.

    Attributes:
        model: A module in evaluation mode, or a function `(params, x) -> outputs`.
        point: The parameters that it is a function of, by name, in the model's order.
        fixed: All other parameters.
        buffers: The module's buffers; None takes those that it has when it is called.
        at: Path of the module whose output is wanted instead of the network's (`"encoder.4"`).
    """

    model: Model
    point: Mapping[str, Tensor]
    fixed: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] | None = None
    at: str | None = None

    @classmethod
    def copy_of(
        cls,
        model: Model,
        *,
        params: Mapping[str, Tensor] | None = None,
        parameters: Selection = None,
        dtype: torch.dtype | None = None,
    ) -> NetworkFunction:
        """Return the function at a copy of the present parameters and buffers, so that training on does not change it.

        Args:
            model: As above.
            params: The parameters of a function, or other values for a module's.
            parameters: Which of them it is a function of, as in `select`.
            dtype: Converts all floating tensors.
        """
        values = parameters_of(model, params)
        # Which parameters are frozen is the module's say, also where other values are put in their place.
        names = select(parameters_of(model) if isinstance(model, nn.Module) else values, parameters)

        def copy(tensor: Tensor) -> Tensor:
            return tensor.detach().to(dtype=dtype if tensor.is_floating_point() else None, copy=True)

        with torch.inference_mode(False):  # a copy made in inference mode could never be differentiated
            copies = {name: copy(tensor) for name, tensor in values.items()}
            buffers = {name: copy(tensor) for name, tensor in buffers_of(model).items()}
        point = {name: copies.pop(name) for name in names}
        return cls(model, point, copies, buffers)

    def __post_init__(self) -> None:
        """Refuse a model whose output is random or coupled, and a module path that it does not have."""
        refuse_training_mode(self.model)
        if self.at is not None:
            if not isinstance(self.model, nn.Module):
                raise UnsupportedOperationError("at= names a module, but the model is a function; it has no modules.")
            known = dict(named_modules(self.model))
            if self.at not in known:
                raise UnsupportedOperationError(
                    f"at={self.at!r} names no module of {describe(self.model)}; it has {[n for n in known if n][:12]}."
                )

    def __call__(self, params: Mapping[str, Tensor], x: Any) -> Tensor:
        """Return the outputs `[B, *rest]` at these values of the parameters, with differentiable attention."""
        everything = {**self.fixed, **params}
        buffers = (
            copied_buffers(self.model) if self.buffers is None else {n: b.clone() for n, b in self.buffers.items()}
        )
        with plain_attention():
            if self.at is None:
                return self._one_tensor(call(self.model, everything, buffers, x))
            assert isinstance(self.model, nn.Module)
            outputs: list[Any] = []
            module = dict(named_modules(self.model))[self.at]
            call(self.model, everything, buffers, x, {module: lambda _, output: outputs.append(output)})
        if len(outputs) != 1:
            raise UnsupportedOperationError(
                f"module {self.at!r} runs {len(outputs)} times in one forward pass; at= needs a module that runs once."
            )
        return self._one_tensor(outputs[0])

    def _one_tensor(self, output: Any) -> Tensor:
        """Return the output in the type that is computed in, if it is a single tensor."""
        if not isinstance(output, Tensor):
            raise UnsupportedOperationError(
                f"{self.where} returns a {type(output).__name__}{entries(output)}; one tensor of outputs "
                "is needed. Pass a function (params, x) -> tensor that picks the output."
            )
        return output.to(computing_dtype(output.dtype))

    @property
    def where(self) -> str:
        """Return what is computed, for messages."""
        return describe(self.model) if self.at is None else f"module {self.at!r}"

    @torch.no_grad()
    def at_point(self, x: Any) -> Tensor:
        """Return the outputs at the point, after checking that they are finite and have the batch first."""
        try:
            output = self(self.point, x)
        except (MarquisError, MemoryError):
            raise
        except Exception as error:
            raise DataError(does_not_take(self.model, x, "x", error)) from error
        return self.checked(output, x)

    def checked(self, output: Tensor, x: Any) -> Tensor:
        """Return the output if it is finite and has the batch as dimension 0."""
        if output.dim() == 0 or output.shape[0] != batch_size(x):
            raise DataError(
                f"{self.where} gives shape {list(output.shape)} for a batch of {batch_size(x)}; dimension 0 has to be "
                "the batch; of one sample it is x.unsqueeze(0)."
            )
        if not all_finite(output):
            raise DataError(f"{self.where} gives NaN or infinite outputs; check its weights and the inputs.")
        return output

    def flatten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return one row `[..., P]` from tensors `[..., *shape]` by parameter name."""
        rows = [
            gradients[name].flatten(-t.dim()) if t.dim() else gradients[name][..., None]
            for name, t in self.point.items()
        ]
        flat = torch.cat(rows, dim=-1)
        return flat.to(computing_dtype(flat.dtype))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters that it is a function of."""
        return tuple(self.point)

    @property
    def size(self) -> int:
        """Return the number of weights that it is a function of."""
        return sum(tensor.numel() for tensor in self.point.values())

    @property
    def device(self) -> torch.device:
        """Return the device of the first parameter."""
        return next(iter(self.point.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """Return the widest type among the parameters."""
        dtype = next(iter(self.point.values())).dtype
        for tensor in self.point.values():
            dtype = torch.promote_types(dtype, tensor.dtype)
        return dtype

    def prepare(self, data: Any, dtype: torch.dtype | None = None) -> Any:
        """Return a pytree of data on the network's device, floating tensors in `dtype` if one is named."""

        def move(leaf: Tensor) -> Tensor:
            return leaf.to(device=self.device, dtype=dtype if leaf.is_floating_point() else None)

        return without_inference(pytree.tree_map_only(Tensor, move, data))

    def leaves(self) -> list[Tensor]:
        """Return fresh differentiable handles on the parameters (no copy)."""
        return [tensor.detach().requires_grad_() for tensor in self.point.values()]

    def outputs(self, leaves: Sequence[Tensor], x: Any) -> Tensor:
        """Return the outputs with the parameters replaced by `leaves`, in the order of `names`."""
        outputs = self(dict(zip(self.point, leaves, strict=True)), x)
        # Some of the parameters may be unused; that all of them are is a mistake.
        everything = not self.fixed and torch.is_grad_enabled()
        return require_derivative(self.model, outputs) if everything else outputs

    def inspect(self, x: Any) -> None:
        """Refuse a network that is random, couples the samples of a batch, or has no derivative; looks once.

        Raises:
            UnsupportedOperationError: There is no Jacobian per sample.
            DataError: As `at_point`.
        """
        if self in _INSPECTED:
            return
        outputs = self.at_point(x)
        if not is_close(self.at_point(x), outputs):
            raise UnsupportedOperationError(f"{self.where} is random: two passes give other outputs. Fix its noise.")
        with torch.enable_grad():
            self.outputs(self.leaves(), x)
        self.refuse_coupled_samples(x)
        _INSPECTED.add(self)

    def refuse_coupled_samples(self, x: Any) -> None:
        """Refuse a network whose outputs for a sample depend on the rest of its batch."""
        if samples_influence_each_other(lambda inputs: self(self.point, inputs), x):
            raise UnsupportedOperationError(
                "the outputs for a sample depend on the rest of its batch, so there is no sum over the data; look for "
                "batch statistics in the model."
            )


_INSPECTED: weakref.WeakSet[NetworkFunction] = weakref.WeakSet()
"""Functions that `inspect` found to be in order."""
