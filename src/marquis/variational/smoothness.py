"""Find activations that Variational Laplace cannot train: those whose derivative jumps.

Source: VL 4.3; docs/method/variational.md#smooth-activations.

The regulariser's gradient needs second derivatives. Those of ReLU and its kin are zero almost everywhere, with spikes
that no pass ever meets, so training would run and silently ignore part of the objective. One forward pass is
watched below autograd, where every spelling (module, functional, in-place, `clamp(min=0)`, inside attention) ends as
the same few operations. Only what lies behind a trained weight counts: a frozen ReLU feature extractor is fine.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from marquis.errors import UnsupportedOperationError
from marquis.functional.call import call, describe, unfused_layers

KINKED = {
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "prelu": "PReLU",
    "_prelu_kernel": "PReLU",
    "rrelu": "RReLU",
    "rrelu_with_noise": "RReLU",
    "rrelu_with_noise_functional": "RReLU",
    "hardtanh": "Hardtanh or ReLU6",
    "relu6": "ReLU6",
    "threshold": "Threshold",
    "hardsigmoid": "Hardsigmoid",
    "hardswish": "Hardswish",
    "hardshrink": "Hardshrink",
    "softshrink": "Softshrink",
    "clamp": "clamp",
    "clamp_min": "clamp (ReLU by another name)",
    "clamp_max": "clamp",
    "abs": "abs",
}
"""Operations whose derivative jumps, by their name below autograd, and what to call them."""

SELECTING = {
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d",
    "fractional_max_pool3d", "amax", "amin", "max", "min", "maximum", "minimum", "sort", "topk", "median", "kthvalue",
}  # fmt: skip
"""Operations that pass on some of their inputs: piecewise linear, but where one wins it wins over a whole region."""

COMPARING = {"gt", "ge", "lt", "le"}
"""Comparisons of activations, from which a kink can be built by hand (`where(x > 0, x, 0)`)."""

ADVICE = "use softplus, tanh, GELU or SiLU instead"


class SmoothnessWarning(UserWarning):
    """Warn of an operation whose second derivative exists almost everywhere but jumps or leaves something out."""


def refuse_kinks(model: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Any) -> None:
    """Run the model once on `x` and refuse what has no usable second derivative.

    Nothing of the model changes: buffers are copied, the global random state is put back. Cost: one forward pass.

    Raises:
        UnsupportedOperationError: ReLU or kin behind a trained weight; the message names operation and module path.

    Warns:
        SmoothnessWarning: Max pooling and other selections, ELU and CELU, comparisons of activations.
    """
    copies = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    leaves = {name: p.detach().requires_grad_(p.requires_grad) for name, p in parameters.items()}
    watch = _Watch(model)
    devices = {p.device for p in leaves.values() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices), torch.enable_grad(), unfused_layers, watch:  # a fused layer hides its ReLU
        call(model, leaves, copies, x)
    if watch.refused:
        activations = "; ".join(watch.refused)
        raise UnsupportedOperationError(
            f"{describe(model)} has activations without a usable second derivative: {activations}. Variational Laplace "
            f"differentiates a squared gradient, which such an activation makes silently wrong: {ADVICE}."
        )
    for message in watch.doubtful:
        warnings.warn(message, SmoothnessWarning, stacklevel=3)


class _Watch(TorchDispatchMode):
    """Note operations by kind together with the module in which they ran."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.refused: list[str] = []
        self.doubtful: list[str] = []
        self._stack: list[str] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Any:
        for name, module in self.model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(lambda *_, name=name: self._stack.append(name)))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _leave(self, *_: Any) -> None:
        """Note that a module's forward pass is over."""
        self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            self._check_derivative(func._schema.name.split("::")[-1].rstrip("_"), args, kwargs)
        return func(*args, **kwargs)

    def _check_derivative(self, name: str, args: Any, kwargs: Any) -> None:
        """Note an operation whose derivative jumps, with the module it ran in."""
        where = f"in module '{self._stack[-1]}'" if self._stack and self._stack[-1] else "in the model's forward"
        module = dict(self.model.named_modules()).get(self._stack[-1]) if self._stack else None
        if module is not None and self._stack[-1]:
            where += f" ({type(module).__name__})"
        if name in KINKED:
            self._note(self.refused, f"{KINKED[name]} {where} (operation `{name}`)")
        elif name == "elu":
            slopes = _elu_slopes(*args, **kwargs)
            if abs(slopes[0] - slopes[1]) > 1e-6 * abs(slopes[1]):
                self._note(self.refused, f"SELU, or ELU with alpha other than 1, {where} (operation `elu`)")
            else:
                self._note(self.doubtful, f"ELU {where}: its second derivative jumps at 0; if in doubt, {ADVICE}.")
        elif name == "celu":
            self._note(self.doubtful, f"CELU {where}: its second derivative jumps at 0; if in doubt, {ADVICE}.")
        elif name in SELECTING:
            note = f"`{name}` {where} selects values; which one wins counts as fixed. Average pooling has no such edge."
            self._note(self.doubtful, note)
        elif name in COMPARING:
            note = (
                f"`{name}` {where} compares activations. If the result chooses between values, the derivative may "
                f"jump there, which Variational Laplace cannot see; {ADVICE}."
            )
            self._note(self.doubtful, note)

    @staticmethod
    def _note(notes: list[str], text: str) -> None:
        """Add a note, once."""
        if text not in notes:
            notes.append(text)


def _elu_slopes(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> tuple[float, float]:
    """Return the slopes of `elu` left and right of zero."""
    del x
    return float(alpha) * float(scale) * float(input_scale), float(scale)
