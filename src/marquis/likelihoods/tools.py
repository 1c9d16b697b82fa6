"""Share small tensor helpers among the likelihoods: masks and sums per sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marquis.errors import DataError


def as_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """Return the mask as booleans of the labels' shape.

    Raises:
        DataError: It does not broadcast to that shape.
    """
    try:
        return mask.to(torch.bool).expand(shape)
    except RuntimeError:
        raise DataError(
            f"a mask of shape {list(mask.shape)} does not broadcast to labels of shape {list(shape)}. "
            "It is aligned from the right: to mask whole data, give it trailing dimensions of size 1."
        ) from None


def sum_outputs(t: Tensor) -> Tensor:
    """Sum over all but the batch dimension, `[B, *rest]` to `[B]`."""
    # Asked to sum over no dimension at all, torch would sum over every one.
    return t.sum(dim=tuple(range(1, t.ndim))) if t.ndim > 1 else t


def flatten_outputs(t: Tensor) -> Tensor:
    """Reshape `[B, *rest]` to `[B, O]`, also for an empty batch and for no rest at all."""
    return t.reshape(t.shape[0], math.prod(t.shape[1:]))


def any_true(t: Tensor) -> bool:
    """Return whether an entry is true; False where entries are not known: on meta, in `vmap` and `torch.compile`."""
    if torch.compiler.is_compiling():
        return False
    try:
        return bool(t.any())
    except RuntimeError:  # torch's word for a tensor whose values cannot be read
        return False


def any_not_finite(t: Tensor) -> bool:
    """Return whether an entry is NaN or infinite; False where entries are not known. A finite sum proves it first."""
    return any_true(~t.sum().isfinite()) and any_true(~t.isfinite())


def describe(t: Tensor) -> str:
    """Return shape and dtype for messages."""
    return f"shape {list(t.shape)}, {t.dtype}"
