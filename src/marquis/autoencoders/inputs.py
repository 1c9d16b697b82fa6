"""Check the data of a batch and fill its missing entries with zeros, as encoders take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from marquis.errors import DataError
from marquis.likelihoods import Bernoulli

Missing = bool | Literal["mask"]
"""How a model treats NaN; see `BaseAutoencoder`."""


def inputs_of(batch: Any) -> Tensor:
    """Return the data of a batch; labels are ignored."""
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(x, Tensor):
        raise DataError(f"a batch must be a tensor or begin with one, got {type(x).__name__}.")
    return x


def num_data_of(model: LightningModule) -> int:
    """Return N, the number of rows behind the trainer's training loader.

    Raises:
        DataError: The loader has no data set with a length.
    """
    loader = model.trainer.train_dataloader
    try:
        return len(loader.dataset)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        raise DataError(
            f"{type(model).__name__} needs the number of training samples, which cannot be read from a "
            f"{type(loader).__name__}; pass num_data=."
        ) from None


class DataInputs:
    """Check data for an autoencoder and turn them into inputs of its encoder."""

    missing: Missing
    likelihood: Any
    parameters: Any
    __call__: Callable[..., Tensor]

    def inputs(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return what the encoder takes: the data, and with `missing="mask"` beside them which entries it sees.

        Args:
            x: Data, with zeros at entries that the encoder does not see.
            seen: 1 where the encoder sees an entry; None for all of them.
        """
        if self.missing != "mask":
            return x
        return torch.cat([x, torch.ones_like(x) if seen is None else seen.to(x.dtype)], 1)

    def _visible(self, x: Tensor, mask: Tensor | None, seen: Tensor | None) -> Tensor:
        """Return what the encoder takes of entries that it sees; by default those that were observed."""
        return self.inputs(x, mask) if seen is None else self.inputs(torch.where(seen, x, 0), seen)

    def _filled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return inputs with zeros at missing entries, and the mask of observed entries (None if all were)."""
        self._check(x, "data")
        if x.isfinite().all():
            return x, None
        mask = ~x.isnan()
        if not self.missing or x.isinf().any():
            raise DataError(
                f"the data contain NaN or infinity ({int((~x.isfinite()).sum())} of {x.numel()} values). If NaN marks "
                f"missing entries, build {type(self).__name__}(..., missing=True)."
            )
        return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)), mask

    def _data(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `_filled(x)`, checked for the likelihood as well."""
        x, mask = self._filled(x)
        if isinstance(self.likelihood, Bernoulli) and not bool(((x >= 0) & (x <= 1)).all()):
            raise DataError(
                f"the Bernoulli likelihood takes data from 0 to 1, got {float(x.min()):.4g} to {float(x.max()):.4g}; "
                "rescale them, or use likelihood='gaussian'."
            )
        return x, mask

    @contextmanager
    def _naming_outputs(self, x: Tensor) -> Iterator[None]:
        """Say that the decoder does not return what the likelihood needs for the data, where it failed by that."""
        try:
            yield
        except DataError as error:
            with torch.no_grad():
                f = self(x[:1])
            if f.ndim > 0 and self.likelihood.target_shape(f) != x[:1].shape:
                raise DataError(
                    f"the decoder returns {list(f.shape[1:])} for each sample, which {self.likelihood} does not take "
                    f"for data of shape {list(x.shape[1:])} each. Change the decoder's last layer, or the likelihood."
                ) from error
            raise

    def _check(self, x: Tensor, what: str) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(f"an autoencoder takes floating-point {what}, got {got}; scale it (for instance x / 255).")
        if x.ndim < 2 or len(x) == 0:
            raise DataError(f"{what} of shape {list(x.shape)}: the batch comes first, [B, ...], and is not empty.")
        dtype = next((p.dtype for p in self.parameters()), x.dtype)
        if x.dtype != dtype:
            raise DataError(f"the {what} are {x.dtype}, the network {dtype}; write x.to({dtype}).")
