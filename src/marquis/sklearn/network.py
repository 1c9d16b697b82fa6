"""Build the network of an estimator: a multi-layer perceptron, or a copy of the user's module."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from marquis.choices import choose
from marquis.curvature.planning.memory import made_within_memory
from marquis.errors import DataError
from marquis.sklearn.parameter_checks import layer_sizes

ModuleLike = nn.Module | Callable[[int, int], nn.Module] | None

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}
"""Activations of the default network by name."""


def perceptron(inputs: int, outputs: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Build linear layers with an activation between them; no hidden sizes give a linear model."""
    activation = choose("activation", activation, ACTIVATIONS, hint="Or pass your own network as module=.")
    sizes = [inputs, *hidden]

    def make() -> nn.Sequential:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

    return made_within_memory(make, f"hidden_layer_sizes={tuple(hidden)}", copies=4)


def build(
    module: ModuleLike,
    inputs: int,
    outputs: int,
    hidden: int | Sequence[int],
    activation: str,
    dtype: torch.dtype,
    device: torch.device,
) -> nn.Module:
    """Build the estimator's network; a user's module is copied, never changed.

    Args:
        module: None for a perceptron, an instance to start from, or a class or function `(inputs, outputs) -> module`.
        inputs: number of features.
        outputs: number of outputs that are wanted.
        hidden: hidden sizes of the perceptron; one number for one layer.
        activation: of the perceptron.
        dtype: of its weights.
        device: of its weights.
    """
    if module is None:
        built: nn.Module = perceptron(inputs, outputs, layer_sizes("hidden_layer_sizes", hidden), activation)
    elif isinstance(module, nn.Module):
        built = copy.deepcopy(module)
    elif callable(module):
        built = module(inputs, outputs)
        if not isinstance(built, nn.Module):
            raise DataError(
                f"module= was called with ({inputs}, {outputs}) and gave a {type(built).__name__}; it has to give a "
                "torch.nn.Module."
            )
    else:
        raise DataError(
            f"module= is a {type(module).__name__}; give a torch.nn.Module, a class or function of "
            "(number of inputs, number of outputs), or None for a perceptron."
        )
    if not any(p.requires_grad for p in built.parameters()):
        raise DataError("module= has no parameter that requires a gradient: there is nothing to be uncertain about.")
    return built.to(device=device, dtype=dtype)


@torch.no_grad()
def output_size(network: nn.Module, x: Tensor) -> int:
    """Return the number of outputs of the network, which has to give `[B, outputs]` for `[B, features]`."""
    was_training = network.training
    outputs = network.eval()(x)
    network.train(was_training)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(x):
        shape = f"shape {list(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise DataError(f"the module gives {shape} for inputs {list(x.shape)}; expected [{len(x)}, outputs].")
    return outputs.shape[1]


def is_deterministic(network: nn.Module) -> bool:
    """Return whether training mode makes no difference: no dropout and no batch statistics."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.MultiheadAttention, nn.RNNBase)
    return not any(isinstance(m, kinds) for m in network.modules())


def perceptron_width(network: nn.Module) -> float:
    """Return the number of units of a perceptron, infinity for any other network."""
    kinds = (nn.Sequential, nn.Linear, *ACTIVATIONS.values())
    if not all(type(module) in kinds for module in network.modules()):
        return math.inf
    return sum(module.out_features for module in network.modules() if isinstance(module, nn.Linear))
