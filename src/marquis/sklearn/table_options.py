"""What a `LaplacianAutoencoder` was asked for, checked; and a root that any covariance has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.sklearn.options import is_number, layer_sizes, positive, whole
from marquis.sklearn.table_training import TableTraining

if TYPE_CHECKING:
    from marquis.sklearn.autoencoder import LaplacianAutoencoder


def checked_options(asked: LaplacianAutoencoder, holes: bool) -> tuple[TableTraining, list[int]]:
    """How to train on a table with or without holes, and the hidden sizes.

    Raises:
        DataError: An option has a value that cannot be meant.
    """
    whole("latent_dim", asked.latent_dim)
    whole("samples", asked.samples)
    hidden = layer_sizes("hidden_sizes", asked.hidden_sizes)
    positive("prior", asked.prior)
    positive("temperature", asked.temperature)
    if not (is_number(asked.contamination) and 0 < asked.contamination <= 0.5):
        raise DataError(f"contamination={asked.contamination!r}: the share of outliers, above 0 and at most 0.5.")
    if asked.mask_input not in (True, False, "auto"):
        raise DataError(f"mask_input={asked.mask_input!r}: True, False, or 'auto' for tables with missing entries.")
    training = TableTraining(
        epochs=asked.epochs,
        batch_size=asked.batch_size,
        learning_rate=asked.lr,
        patience=asked.patience,
        held_out=asked.validation_fraction,
        hide=asked.hide,
        mask_input=holes if asked.mask_input == "auto" else bool(asked.mask_input),
        report=print if asked.verbose else None,
    )
    return training, hidden


def root_of(covariance: Tensor) -> Tensor:
    """A square root, also of a covariance that is not quite of full rank."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt()
