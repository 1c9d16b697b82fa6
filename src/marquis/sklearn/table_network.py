"""Build the network of a table: an autoencoder that starts as principal components, trained beside the linear model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marquis.arguments import LARGEST_COUNT
from marquis.autoencoders import BaseAutoencoder, LaplacianAutoencoder, PosteriorAutoencoder, fit_in_memory
from marquis.errors import DataError
from marquis.progress import ProgressBar
from marquis.randomness import seeded
from marquis.sklearn.linear_gaussian import LinearGaussian
from marquis.sklearn.network import perceptron
from marquis.sklearn.parameter_checks import fraction, is_number, layer_sizes, positive, whole

if TYPE_CHECKING:
    from marquis.sklearn.autoencoder import LaplacianAutoencoder as Estimator

SMALLEST_HELD_OUT = 5
"""Smallest number of held-out rows; if there would be fewer, none are held out."""
TOLERANCE = 1e-3
"""Improvement of the validation loss, in nats per column, that does not count as one."""
EXACT_COLUMNS = 64
"""Largest number of columns for which curvature is computed exactly; above, by random columns of its root."""
EPOCH_ROWS = 10_000
"""Largest number of rows that the network is trained on."""
LARGEST_BATCH, SMALLEST_BATCH, STEPS = 512, 16, 50
"""Bounds of the default batch size, and the number of steps per epoch between them."""
START = 0.1
"""Factor on the last layers' first weights: training starts near principal components."""


class SkipPerceptron(nn.Module):
    """Compute a perceptron with a linear path beside it, which starts at `weight [outputs, inputs]`."""

    def __init__(self, weight: Tensor, hidden: list[int], activation: str) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.direct, self.bent = nn.Linear(inputs, outputs), perceptron(inputs, outputs, hidden, activation)
        with torch.no_grad():
            self.direct.weight.copy_(weight)
            self.direct.bias.zero_()
            for parameter in self.bent[-1].parameters():
                parameter.mul_(START)
        self.to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths."""
        return self.direct(x) + self.bent(x)


class _Filling(BaseAutoencoder):
    """Wrap an autoencoder whose encoder sees the linear model's conditional means at missing entries."""

    linear: LinearGaussian

    def inputs(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return completed rows, and beside them the mask if the encoder takes it."""
        if seen is not None:
            x = self.linear.filled(torch.where(seen.bool(), x, torch.nan))
        return super().inputs(x, seen)


class FillingTrainer(_Filling, LaplacianAutoencoder):
    """Train the autoencoder of a table."""


class FillingAutoencoder(_Filling, PosteriorAutoencoder):
    """Predict by the trained autoencoder of a table."""

    @classmethod
    def of(cls, trained: FillingTrainer, linear: LinearGaussian) -> FillingAutoencoder:
        """Return a trained autoencoder with its posterior, which fills missing entries by `linear`."""
        posterior, likelihood = trained.posterior(), trained.likelihood
        made = cls(trained.encoder, trained.decoder, posterior, likelihood, missing=trained.missing)
        made.linear = linear
        return made

    def filling_by(self, linear: LinearGaussian) -> FillingAutoencoder:
        """Return the same network, which fills missing entries by another linear model; weights are shared."""
        other = copy.copy(self)
        other.linear = linear
        return other


def train_network(
    estimator: Estimator, x: Tensor, held_out: Tensor, linear: LinearGaussian, components: Tensor, seed: int
) -> tuple[FillingTrainer, int]:
    """Train a Laplacian autoencoder on standardised rows; returns it with its best weights, and the number of epochs.

    Encoder and decoder have a linear path each, which starts at the principal components, so that training can only
    add to them. Missing entries enter as `linear` predicts them.

    Args:
        estimator: Has the parameters, checked.
        x: Training rows `[N, columns]`, with NaN where values are missing; at most `EPOCH_ROWS` of them are used.
        held_out: Rows whose loss stops the training; there may be none.
        linear: Fitted to the training rows.
        components: Principal components, `[columns, K]`.
        seed: Of all random numbers.

    Raises:
        NumericalError: Training diverged.
    """
    generator = torch.Generator().manual_seed(seed)
    if len(x) > EPOCH_ROWS:
        x = x[torch.randperm(len(x), generator=generator)[:EPOCH_ROWS]]
    masked = sees_mask(estimator, bool(x.isnan().any()))
    hidden, columns = layer_sizes("hidden_layer_sizes", estimator.hidden_layer_sizes), x.shape[1]
    into = torch.cat([components.T, torch.zeros_like(components.T)], 1) if masked else components.T
    with seeded(seed):
        encoder = SkipPerceptron(into, hidden, estimator.activation)
        decoder = SkipPerceptron(components, hidden[::-1], estimator.activation)
    model = FillingTrainer(
        encoder,
        decoder,
        num_data=len(x),
        estimator="exact" if columns <= EXACT_COLUMNS else "sketched",
        prior_precision=float(estimator.prior),
        posterior_temperature=float(estimator.posterior_temperature),
        lr=float(estimator.learning_rate_init),
        missing="mask" if masked else True,
        generator=generator,
    )
    model.linear = linear
    size = estimator.batch_size
    epochs = int(estimator.max_iter)
    with ProgressBar("training the network (up to the maximum of epochs)", epochs) as bar:

        def report(line: str) -> None:
            bar.advance()
            if estimator.verbose:
                print(line)

        trained = fit_in_memory(
            model,
            x,
            held_out if len(held_out) else None,
            max_epochs=epochs,
            batch_size=min(LARGEST_BATCH, max(SMALLEST_BATCH, len(x) // STEPS)) if size == "auto" else int(size),
            patience=int(estimator.n_iter_no_change),
            tolerance=TOLERANCE * columns,
            plateau=max(int(estimator.n_iter_no_change) // 2 - 1, 0),  # as often as it can help before training stops
            mask_fraction=float(estimator.mask_fraction),
            generator=generator,
            report=report,
        )
    return model, trained.epochs


def sees_mask(estimator: Estimator, missing: bool) -> bool:
    """Return whether the encoder sees which entries were observed."""
    choice = estimator.mask_input
    return (missing or float(estimator.mask_fraction) > 0) if choice == "auto" else bool(choice)


def check_parameters(estimator: Any) -> None:
    """Refuse parameters that cannot be meant.

    Raises:
        DataError: A parameter has such a value; the message names it.
    """
    for name in ("samples", "max_iter", "n_iter_no_change"):
        whole(name, getattr(estimator, name))
    for name, other in (("n_components", None), ("batch_size", "auto")):
        if getattr(estimator, name) is not other and getattr(estimator, name) != other:
            whole(name, getattr(estimator, name))
    if estimator.n_components is not None and estimator.n_components > LARGEST_COUNT:
        raise DataError(f"n_components={estimator.n_components}: at most {LARGEST_COUNT}.")
    for name in ("prior", "posterior_temperature", "learning_rate_init"):
        positive(name, getattr(estimator, name))
    for name in ("validation_fraction", "mask_fraction"):
        fraction(name, getattr(estimator, name))
    contamination, mask_input = estimator.contamination, estimator.mask_input
    if not (is_number(contamination) and 0 < contamination <= 0.5):
        raise DataError(f"contamination={contamination!r}: the fraction of outliers, above 0 and at most 0.5.")
    if mask_input not in (True, False, "auto"):
        raise DataError(f"mask_input={mask_input!r}: True, False, or 'auto'.")
    layer_sizes("hidden_layer_sizes", estimator.hidden_layer_sizes)


def split_rows(x: Tensor, held_out: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return training rows and held-out rows; of few rows none are held out."""
    count = round(held_out * len(x))
    if count < SMALLEST_HELD_OUT:
        return x, x[:0]
    if count == len(x):
        raise DataError(f"validation_fraction={held_out!r} leaves none of {len(x)} rows to learn from.")
    order = torch.randperm(len(x), generator=generator)
    return x[order[count:]], x[order[:count]]
