"""Make masks of missing entries, and their initial values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from marquis.arguments import checked, describe_value
from marquis.choices import choose
from marquis.errors import DataError
from marquis.randomness import normal
from marquis.tasks.batches import as_tensor

FILLS = ("noise", "missing")
"""What missing entries may start from, besides numbers."""


@checked
def top_half(shape: Sequence[int]) -> Tensor:
    """Return the paper's mask for images `[..., H, W]`: the upper half is missing, the lower half is observed."""
    if len(shape) < 2 or not all(isinstance(size, int) and size > 0 for size in shape) or math.prod(shape) > 2**40:
        raise DataError(f"an image has height and width, got shape {shape if len(shape) < 9 else len(shape)}.")
    missing = torch.zeros(*shape, dtype=torch.bool)
    missing[..., : shape[-2] // 2, :] = True
    return missing


@checked
def minmax_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return normal numbers, scaled to fill [0, 1] for each sample: the paper's initial fill."""
    if not like.is_floating_point() or like.dim() == 0 or not len(like):
        raise DataError(f"like is {describe_value(like)}; a batch [B, ...] of floating-point numbers is needed.")
    if like[0].numel() < 2:
        raise DataError("noise scaled to [0, 1] needs at least two entries per sample; give `fill` a number instead.")
    noise = normal(like.shape, like, generator).flatten(1)
    low, high = noise.min(1, keepdim=True).values, noise.max(1, keepdim=True).values
    return ((noise - low) / (high - low)).view_as(like)


def as_mask(x: Tensor, missing: Tensor | None) -> Tensor:
    """Return the mask in the shape of `x`; raise if entries that it marks as observed are not finite."""
    if not isinstance(x, Tensor):
        raise DataError(f"imputation takes a tensor [B, ...], got {type(x).__name__}: torch.as_tensor(x) makes one.")
    if x.dim() < 2 or not x.is_floating_point() or x.numel() == 0:
        raise DataError(f"imputation takes floating-point data [B, ...], got {x.dtype} of shape {list(x.shape)}.")
    missing = x.isnan() if missing is None else as_tensor(missing, "the mask")
    if missing.dtype != torch.bool:
        raise DataError(f"the mask must be boolean, True where an entry is missing; got {missing.dtype}.")
    if missing.shape not in (x.shape, x.shape[1:]):
        raise DataError(
            f"the mask has shape {list(missing.shape)}, the data {list(x.shape)}: give one for all or each."
        )
    missing = missing.to(x.device).expand_as(x)
    if not bool((missing | x.isfinite()).all()):
        raise DataError("entries that the mask calls observed are NaN or infinite: mark them as missing, too.")
    return missing


def initial_fill(x: Tensor, missing: Tensor, fill: str | float | Tensor, generator: torch.Generator | None) -> Tensor:
    """Return initial values of missing entries, in the shape of `x`; zeros where they are left to the model."""
    if isinstance(fill, str):
        if choose("fill", fill, FILLS, error=DataError, hint="Or give a number or a tensor.") == "missing":
            return torch.zeros_like(x)
        return minmax_noise(x, generator)
    value = as_tensor(fill, "fill").to(x)
    try:
        value = value.expand_as(x)
    except RuntimeError as error:
        raise DataError(f"fill has shape {list(value.shape)}, which does not fit data {list(x.shape)}.") from error
    if not bool((~missing | value.isfinite()).all()):
        raise DataError("the fill itself is NaN or infinite at missing entries.")
    return value
