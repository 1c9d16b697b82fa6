"""Read batches of data onto the model's device, with the same sampled networks for every batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import check_ordinary
from marquis.functional.checks import naming_shape as naming_shape
from marquis.progress import ProgressBar
from marquis.randomness import new_seed

Data = Tensor | Iterable[Any]
"""A tensor or array `[n, ...]`, or a loader of batches `x` or `(x, ...)`; labels are ignored."""


class SameSeed:
    """Make a new generator with the same seed for each batch, so that the sampled networks are the same for all data.

    Then scores of two samples are comparable, and do not depend on the batch that a sample came in.
    """

    def __init__(self, model: Any, generator: torch.Generator | None) -> None:
        """Take the seed from `generator`, or from torch's global one; generators are on the model's device."""
        self.device = device_of(model) or torch.device("cpu")
        self.seed = new_seed(generator)

    def generator(self) -> torch.Generator:
        """Return a generator at the beginning of the sequence."""
        return torch.Generator(device=self.device).manual_seed(self.seed)


def batches(model: Any, data: Data, batch_size: int, what: str, progress: bool) -> Iterator[Tensor]:
    """Yield the inputs of `data` in batches on the model's device; raise if there are none or shapes differ."""
    from marquis.autoencoders.inputs import inputs_of  # here, because it loads Lightning

    if hasattr(data, "__array__"):
        data = data_tensor(model, data, what)
    elif not isinstance(data, Iterable):
        raise DataError(f"{what}: data are a tensor, an array or a loader of batches, got {type(data).__name__}.")
    if isinstance(data, Tensor) and data.dim() < 2:
        raise DataError(f"{what}: data are [n, ...] with at least one entry per sample, got shape {list(data.shape)}.")
    parts: Iterable[Any] = data.split(batch_size) if isinstance(data, Tensor) else data
    total = len(parts) if hasattr(parts, "__len__") else None  # pyright: ignore[reportArgumentType]
    device, shape, start = device_of(model), None, 0
    with ProgressBar(what, total, progress) as bar:
        for part in parts:
            x = inputs_of(part)
            shape = x.shape[1:] if shape is None else shape
            if x.shape[1:] != shape:
                raise DataError(f"{what}: a batch has shape {list(x.shape)}, the ones before [n, {str([*shape])[1:]}.")
            if len(x):
                start += len(x)
                yield x if device is None else x.to(device)
            bar.advance()
    if not start:
        raise DataError(f"{what}: there are no data.")


def as_tensor(value: Any, what: str) -> Tensor:
    """Return a tensor unchanged, and numbers in an array, a pandas table or column, or a list as a tensor.

    Raises:
        DataError: It is of another kind, or has masked entries.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise DataError(f"{what} is complex; real numbers are needed.")
        check_ordinary(value, what)
        return value
    if np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise DataError(f"{what}: {masked} entries are masked; write x.filled(np.nan), or leave them out.")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        of = f" of {array.dtype}" if isinstance(value, np.ndarray) else ""
        raise DataError(f"{what}: a tensor or an array of numbers is needed, got {type(value).__name__}{of}.")
    unsigned = array.dtype.kind == "u" and array.dtype.itemsize > 1  # of which torch can do little
    dtype = np.dtype(np.int64) if unsigned else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def data_tensor(model: Any, data: Any, what: str) -> Tensor:
    """Return `as_tensor` of data for a model: an array in the model's precision, a tensor unchanged."""
    tensor, weight = as_tensor(data, what), _first_tensor(model)
    if tensor.dim() == 0:
        raise DataError(f"{what}: data are [n, ...], got a single number.")
    if isinstance(data, Tensor) or weight is None or not (weight.is_floating_point() and tensor.is_floating_point()):
        return tensor
    return tensor.to(weight.dtype)


def require_method(model: Any, method: str) -> None:
    """Refuse a model without one of the protocol's methods before anything is computed."""
    if not callable(getattr(model, method, None)) or isinstance(model, (str, bytes, type)):  # of texts, too
        raise UnsupportedOperationError(
            f"{type(model).__name__} has no method `{method}(x, samples, generator=, keep=)`. Models of "
            "marquis.autoencoders have it; Autoencoder(encoder, decoder) makes one out of two networks."
        )


def device_of(model: Any) -> torch.device | None:
    """Return the device of the model's parameters; None if it has none."""
    first = _first_tensor(model)
    return None if first is None else first.device


def dtype_of(model: Any) -> torch.dtype:
    """Return the floating-point type of the model's parameters; torch's default if it has none."""
    first = _first_tensor(model)
    return torch.get_default_dtype() if first is None or not first.is_floating_point() else first.dtype


def _first_tensor(model: Any) -> Tensor | None:
    """Return the first parameter or buffer of a module; None for other models."""
    if not isinstance(model, nn.Module):
        return None
    return next(chain(model.parameters(), model.buffers()), None)
