"""The network as a function of the posterior's parameters: `(params, x) -> outputs`, or any layer's output.

Nothing is written to the user's module: parameters go in through `torch.func.functional_call`, and a layer is
watched by a hook that is gone when the call returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.functional.call import Model, batch_size, buffers_of, call, check_finite, describe, parameters_of
from marquis.posterior import Posterior


@dataclass(frozen=True, eq=False)
class NetworkFunction:
    """What is predicted, as a function of the weights that have a posterior.

    Args:
        model: a module in eval mode, or a function `(params, x) -> outputs`.
        posterior: gives the names; all other parameters are the model's own, as they are now.
        at: path of the module whose output is wanted instead of the network's (`"encoder.4"`).
    """

    model: Model
    posterior: Posterior
    at: str | None = None

    def __post_init__(self) -> None:
        """Refuse a model that the posterior does not belong to, or whose output is random."""
        require_fit(self.posterior, self.model)
        refuse_training_mode(self.model)
        if self.at is not None:
            if not isinstance(self.model, nn.Module):
                raise UnsupportedOperationError("at= names a module, but the model is a function; it has no modules.")
            known = dict(self.model.named_modules())
            if self.at not in known:
                raise UnsupportedOperationError(
                    f"at={self.at!r} names no module of {describe(self.model)}; it has {[n for n in known if n][:12]}."
                )

    @cached_property
    def _fixed(self) -> dict[str, Tensor]:
        own = parameters_of(self.model, None if isinstance(self.model, nn.Module) else self.posterior.mean)
        return {name: tensor.detach() for name, tensor in own.items() if name not in self.posterior.mean}

    def __call__(self, params: Mapping[str, Tensor], x: Any) -> Tensor:
        """Outputs `[B, *rest]` at these values of the posterior's parameters."""
        everything = {**self._fixed, **params}
        # Copies: a module that counts its calls in a buffer must not find them changed.
        buffers = {name: buffer.clone() for name, buffer in buffers_of(self.model).items()}
        if self.at is None:
            return call(self.model, everything, buffers, x)
        assert isinstance(self.model, nn.Module)
        seen: list[Any] = []
        handle = self.model.get_submodule(self.at).register_forward_hook(lambda _, __, output: seen.append(output))
        try:
            call(self.model, everything, buffers, x)
        finally:
            handle.remove()
        if len(seen) != 1 or not isinstance(seen[0], Tensor):
            what = f"{len(seen)} times" if len(seen) != 1 else f"once and returns a {type(seen[0]).__name__}"
            raise UnsupportedOperationError(
                f"module {self.at!r} runs {what} in one forward pass; at= needs a module that runs once and returns "
                "one tensor."
            )
        return seen[0]

    @torch.no_grad()
    def at_mean(self, x: Any) -> Tensor:
        """Outputs at the posterior's mean, checked."""
        with plain_attention():
            output = self(self.posterior.mean, x)
        return self.checked(output, x)

    def checked(self, output: Any, x: Any) -> Tensor:
        """The output if it is one finite tensor with the batch first."""
        where = "the network" if self.at is None else f"module {self.at!r}"
        if not isinstance(output, Tensor):
            raise UnsupportedOperationError(
                f"{where} returns a {type(output).__name__}; predictions need one tensor. Pass a function "
                "(params, x) -> tensor that picks the output."
            )
        if output.dim() == 0 or output.shape[0] != batch_size(x):
            raise DataError(
                f"{where} gives shape {list(output.shape)} for a batch of {batch_size(x)}; dimension 0 has to be "
                "the batch."
            )
        if not bool(torch.isfinite(output).all()):
            raise DataError(f"{where} gives NaN or infinite outputs at the posterior's mean.")
        return output


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention from differentiable parts: the fused kernels have no forward-mode derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def require_fit(posterior: Posterior, model: Model) -> None:
    """Raise unless the model has the posterior's parameters, name by name and shape by shape."""
    if not isinstance(model, nn.Module):
        return
    own = dict(model.named_parameters())
    missing = [name for name in posterior.layout.names if name not in own]
    if missing:
        raise ModelMismatchError(f"{describe(model)} has no parameter {missing[:8]}, which this posterior is about.")
    for name, shape in posterior.layout.items:
        if tuple(own[name].shape) != shape:
            raise ModelMismatchError(
                f"parameter {name!r} of {describe(model)} has shape {tuple(own[name].shape)}, in the posterior {shape}."
            )


def refuse_training_mode(model: Model) -> None:
    """Raise if dropout or batch statistics would make the output random or couple the inputs."""
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        if not module.training:
            continue
        dropout = getattr(module, "dropout", 0.0)
        random = isinstance(module, _DropoutNd) or (
            isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and isinstance(dropout, float) and dropout > 0
        )
        if random or isinstance(module, _BatchNorm):
            raise UnsupportedOperationError(
                f"module {name!r} ({type(module).__name__}) is in training mode, so the output is "
                f"{'random' if random else 'coupled across the batch'}; call model.eval() first."
            )


def take(x: Any, start: int, stop: int) -> Any:
    """Inputs number start to stop of a batch."""
    return pytree.tree_map_only(Tensor, lambda t: t[start:stop], x)


def check_inputs(x: Any) -> int:
    """Refuse NaN, infinity and an empty batch; returns its size."""
    check_finite(x)
    return batch_size(x)
