"""Read the scales of the Gaussian prior: what a user may pass, and the default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from marquis.errors import DataError, ModelMismatchError
from marquis.functional.unwrap import named_modules

PriorScale = float | Mapping[str, float | Tensor] | Callable[[str, Tensor], float] | None
"""One number, one number or tensor per parameter name, a function of name and tensor, or None for `1/sqrt(fan_in)`."""


def prior_scales(network: nn.Module, parameters: Mapping[str, Tensor], scale: PriorScale) -> list[Tensor]:
    """Return the prior's standard deviation for each parameter, as tensors that broadcast to it.

    The default is `1/sqrt(fan_in)` for weights and for the bias next to them, and 1 for what has no fan-in, such as the
    scale and shift of a normalisation. The paper does not say what it used (docs/method/variational.md#prior-scale).

    Raises:
        DataError: A scale is not positive and finite, or does not broadcast to its parameter.
        ModelMismatchError: A mapping has other names than the parameters.
    """
    if isinstance(scale, Mapping) and set(scale) != set(parameters):
        missing, unknown = sorted(set(parameters) - set(scale)), sorted(set(scale) - set(parameters))
        raise ModelMismatchError(f"prior_scale does not fit the parameters: missing {missing}, unknown {unknown}")
    result = []
    for name, parameter in parameters.items():
        if scale is None:
            value: float | Tensor = 1 / math.sqrt(fan_in(network, name, parameter))
        elif isinstance(scale, Mapping):
            value = scale[name]
        else:
            value = scale(name, parameter) if callable(scale) else scale
        try:
            tensor = torch.as_tensor(value, dtype=parameter.dtype, device=parameter.device).detach().clone()
        except (TypeError, ValueError, RuntimeError):
            raise DataError(f"prior_scale of {name!r} has to be a number or a tensor, not {value!r}") from None
        try:
            tensor.expand_as(parameter)
        except RuntimeError:
            raise DataError(
                f"prior_scale of {name!r} has shape {list(tensor.shape)}, which does not broadcast to "
                f"{list(parameter.shape)}; give one number or a tensor of that shape"
            ) from None
        if not bool((tensor > 0).all() & tensor.isfinite().all()):
            raise DataError(f"prior_scale of {name!r} has to be positive and finite, not {value}")
        result.append(tensor)
    return result


def fan_in(network: nn.Module, name: str, parameter: Tensor) -> int:
    """Return the number of products summed into one output of the parameter's module; 1 where that is undefined."""
    path, _, _ = name.rpartition(".")
    module = dict(named_modules(network)).get(path, network)
    weight = parameter
    if parameter.dim() < 2:
        sibling = getattr(module, "weight", None)
        if not isinstance(sibling, Tensor) or sibling.dim() < 2:
            return 1
        weight = sibling
    if isinstance(module, nn.Embedding):
        return 1
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return max(1, weight.numel() // (weight.shape[1] * module.groups))  # its weight is [in, out / groups, ...]
    return max(1, weight.numel() // weight.shape[0])
