"""One batch of data times vectors: GGN, Hessian and Fisher products by automatic differentiation.

The network runs once per batch; every further vector costs two backward passes through the recorded graph. A
Jacobian-vector product is taken as the derivative of `Jᵀu` in `u`, so whatever autograd differentiates twice
works: no rules, no forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import (
    Model,
    Selection,
    batch_size,
    buffers_of,
    call,
    describe,
    parameters_of,
    select,
    without_inference,
)

if TYPE_CHECKING:
    from marquis.likelihoods import Likelihood

KINDS = ("ggn", "hessian", "fisher", "empirical-fisher")
NEEDS_LABELS = ("hessian", "empirical-fisher")

RowProduct = Callable[[Sequence[Tensor]], list[Tensor]]
"""Rows `[k, *shape]` per parameter to rows `[k, *shape]` per parameter."""


@dataclass(frozen=True)
class FrozenNetwork:
    """A model held at one point: a copy of its parameters, so that training on does not change the matrix."""

    model: Model
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    names: tuple[str, ...]  # those differentiated, in the model's order

    @staticmethod
    def of(
        model: Model,
        *,
        params: Mapping[str, Tensor] | None = None,
        parameters: Selection = None,
        dtype: torch.dtype | None = None,
    ) -> FrozenNetwork:
        """Copy what is needed of the model, after refusing modes in which its output is not a fixed function."""
        refuse_training_mode(model)
        own = parameters_of(model, params)
        # Which parameters are frozen is the module's say, also where other values are put in their place.
        names = tuple(select(parameters_of(model) if isinstance(model, nn.Module) else own, parameters))

        def copy(tensor: Tensor) -> Tensor:
            return tensor.detach().to(dtype=dtype if tensor.is_floating_point() else None, copy=True)

        with torch.inference_mode(False):  # a copy made in inference mode could never be differentiated
            frozen = {name: copy(tensor) for name, tensor in own.items()}
            buffers = {name: copy(tensor) for name, tensor in buffers_of(model).items()}
        return FrozenNetwork(model, frozen, buffers, names)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the differentiated parameters by name."""
        return {name: self.params[name].shape for name in self.names}

    @property
    def device(self) -> torch.device:
        """Where the first differentiated parameter lives."""
        return self.params[self.names[0]].device

    @property
    def dtype(self) -> torch.dtype:
        """The widest type among the differentiated parameters."""
        dtype = self.params[self.names[0]].dtype
        for name in self.names:
            dtype = torch.promote_types(dtype, self.params[name].dtype)
        return dtype

    def prepare(self, data: Any, dtype: torch.dtype | None) -> Any:
        """Move a pytree of data to the network's device, floating tensors to `dtype` if one is given."""

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.to(device=self.device, dtype=dtype if leaf.is_floating_point() else None)

        return without_inference(pytree.tree_map(move, data))

    def leaves(self) -> list[Tensor]:
        """Fresh differentiable handles on the selected parameters (no copy)."""
        return [self.params[name].detach().requires_grad_() for name in self.names]

    def outputs(self, leaves: Sequence[Tensor], x: Any) -> Tensor:
        """The network's outputs on `x` with the selected parameters replaced by `leaves`."""
        params = {**self.params, **dict(zip(self.names, leaves, strict=True))}
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        # The fused attention kernels cannot be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH):
            f = call(self.model, params, buffers, x)
        if not isinstance(f, Tensor):
            raise UnsupportedOperationError(
                f"{describe(self.model)} returns {type(f).__name__}; curvature needs one tensor of outputs "
                "(wrap the model so that it returns the logits or the mean)."
            )
        return f


def refuse_training_mode(model: Model) -> None:
    """Raise if batch statistics or dropout are active, naming the module: outputs would not be per datum."""
    if not isinstance(model, nn.Module):
        return
    for path, module in model.named_modules():
        where = f"{path or 'the model itself'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise UnsupportedOperationError(
                f"{where} uses the statistics of the batch, so one datum's output depends on the others; "
                "call model.eval() (and keep track_running_stats=True)."
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise UnsupportedOperationError(f"{where} drops units at random; call model.eval() first.")


def refuse_coupled_data(network: FrozenNetwork, x: Any) -> None:
    """Raise if half of a batch has other outputs alone than in company: its curvature is no sum over the data."""
    half = batch_size(x) // 2
    if half == 0:
        return
    with torch.no_grad():
        together = network.outputs(network.leaves(), x)
        try:
            part = pytree.tree_map(lambda leaf: leaf[:half] if isinstance(leaf, Tensor) else leaf, x)
            alone = network.outputs(network.leaves(), part)
        except Exception:  # a model written for one batch size; nothing can be said, and nothing is wrong yet
            return
    if alone.shape != (half, *together.shape[1:]):
        return  # the batch is not in front, which is refused elsewhere
    difference = float((together[:half] - alone).abs().max()) if alone.numel() else 0.0
    if difference > torch.finfo(alone.dtype).eps ** 0.5 * float(together.abs().max()):
        raise UnsupportedOperationError(
            f"the outputs for a datum depend on the rest of its batch (they differ by {difference:.2g} when half of it "
            "is left out), so there is no sum over the data; look for batch statistics in the model."
        )


def batch_product(
    network: FrozenNetwork,
    likelihood: Likelihood,
    kind: str,
    x: Any,
    y: Any,
    generator: torch.Generator | None = None,
) -> RowProduct:
    """Differentiate one batch and return the product with its curvature, a sum over the batch.

    `ggn`: `Σ Jᵀ S Sᵀ J v` with S the likelihood's root (methods 2.1); `hessian`: of `Σ -log p`; `fisher`:
    `Σ g̃ g̃ᵀ v` with one sampled label per datum (methods 1.3); `empirical-fisher`: the same with the true labels.
    Cost: one forward, one (differentiable) backward, then two backward passes per vector.
    """
    if kind in NEEDS_LABELS and y is None:
        raise DataError(f"the loader gives no labels, but kind={kind!r} depends on them; yield (x, y).")
    with torch.enable_grad():
        leaves = network.leaves()
        f = network.outputs(leaves, x)
        if f.shape[:1] != (batch_size(x),):
            raise DataError(
                f"outputs of shape {list(f.shape)} do not have the batch of {batch_size(x)} data as dimension 0; "
                "move it to the front in the model."
            )
        likelihood.validate(f.detach(), y if kind in NEEDS_LABELS else None)
        if kind == "hessian":
            gradient = torch.autograd.grad(
                -likelihood.log_prob(f, y).sum(), leaves, create_graph=True, allow_unused=True
            )
            return lambda rows: _push_back(gradient, leaves, rows)
        # Jᵀu as a graph that is linear in u; its derivative in u, applied to v, is J v.
        u = torch.zeros_like(f, requires_grad=True)
        transposed = torch.autograd.grad(f, leaves, u, create_graph=True, allow_unused=True)
    curve = _output_curvature(likelihood, kind, f.detach(), y, generator)

    def product(rows: Sequence[Tensor]) -> list[Tensor]:
        (pushed,) = _push_back(transposed, [u], rows)
        return _push_back([f], leaves, [curve(pushed)])

    return product


def _output_curvature(
    likelihood: Likelihood, kind: str, f: Tensor, y: Any, generator: torch.Generator | None
) -> Callable[[Tensor], Tensor]:
    """The output-space matrix of the kind, as a map of rows `[k, *f.shape]`."""
    if kind == "ggn":
        return lambda pushed: root_times_transpose(likelihood, f, pushed)
    with torch.no_grad():
        column = likelihood.fisher_column(f, generator) if kind == "fisher" else likelihood.gradient(f, y)

    def outer(pushed: Tensor) -> Tensor:
        per_datum = (pushed * column).flatten(start_dim=2).sum(dim=2) if f.ndim > 1 else pushed * column
        return per_datum.reshape(per_datum.shape + (1,) * (f.ndim - 1)) * column

    return outer


def root_times_transpose(likelihood: Likelihood, f: Tensor, rows: Tensor) -> Tensor:
    """`S Sᵀ u` for rows `[k, *f.shape]`, S the likelihood's root; `Sᵀ` is the transpose of the linear `S v`."""
    with torch.enable_grad():
        v = rows.new_zeros((rows.shape[0], f.shape[0], *likelihood.root_shape(f)), requires_grad=True)
        (transposed,) = torch.autograd.grad(likelihood.apply_sqrt(f, v), v, rows)
    with torch.no_grad():
        return likelihood.apply_sqrt(f, transposed)


def _push_back(outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
    """Vector-Jacobian products for each of k rows; an input that does not matter gets zeros."""
    count = rows[0].shape[0]
    used = [(o, r.to(o.dtype)) for o, r in zip(outputs, rows, strict=True) if o is not None and o.requires_grad]
    if not used:
        return [i.new_zeros((count, *i.shape)) for i in inputs]
    tensors = [o for o, _ in used]
    if count == 1:  # without vmap: faster, and any operation will do
        single = torch.autograd.grad(tensors, inputs, [r[0] for _, r in used], retain_graph=True, allow_unused=True)
        grads = [None if g is None else g[None] for g in single]
    else:
        grads = torch.autograd.grad(
            tensors, inputs, [r for _, r in used], retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    return [i.new_zeros((count, *i.shape)) if g is None else g.detach() for i, g in zip(inputs, grads, strict=True)]
