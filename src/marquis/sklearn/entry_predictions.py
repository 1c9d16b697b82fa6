"""Predict single entries of a table by the linear model, and by the network as far as hidden entries support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from marquis.sklearn.base import ROWS
from marquis.sklearn.gaussian_fit import HIDDEN, FittedGaussian, Model, hide
from marquis.sklearn.gaussian_mixture import GaussianMixture

if TYPE_CHECKING:
    from marquis.autoencoders import PosteriorAutoencoder

NORMAL_QUANTILE = 1.6448536269514722
"""Half the width of a central 90 % interval of the normal distribution, in standard deviations."""
COMMON_ENTRIES = 30
"""Number of entries with the common value that count for every column besides its own, which may be few."""
CHECK_ROWS = 2000
"""Largest number of held-out rows on which network and linear model are compared."""
CHECKS = 3
"""Number of times entries of the held-out rows are hidden for that."""
BLOCKS = 5
"""Number of parts of the columns that are hidden one after the other for leave-one-out predictions by the network."""
LEAST_VARIANCE = 1e-8
"""Lower bound of variances of standardised entries."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Say how the predictions of both models are combined.

    Attributes:
        weight: Share of the network's correction, from 0 to 1, `[d]`.
        scale: Factor on the linear model's variance, `[d]`.
    """

    weight: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class Predicted:
    """Hold mean and variance of entries, `[N, d]`.

    Attributes:
        mean: Of both models.
        variance: Of an entry around the mean: noise, and not knowing the network.
        samples: The sampled networks' means, `[S, N, d]`, if they were kept.
        log_prob: Log density of the entries, if it is not that of a normal distribution.
    """

    mean: Tensor
    variance: Tensor
    samples: Tensor | None = None
    log_prob: Tensor | None = None


@dataclass(frozen=True, eq=False)
class EntryModel:
    """Predict any entry given others of its row (docs/method/tasks.md#tables).

    The mean is `linear + weight * (network - linear)`, the variance `scale * linear variance + weight² * variance over
    sampled networks`. Cost of `missing`: `samples` passes of the network; of `alone`: `samples * BLOCKS` passes, not
    `samples * columns`, because the leave-one-out predictions of the linear model have a closed form and the network
    corrects a fifth of the columns at a time. Where no column has a weight, the network is not called.

    Attributes:
        linear: Of standardised rows: the Gaussian, or the mixture of Gaussians that takes its place.
        network: Of the same rows.
        for_missing: Mixture for missing entries.
        for_alone: Mixture for entries that are left out one at a time.
        groups: Columns that are missing together, such as the levels of a category.
        samples: Number of sampled networks.
        seed: Their seed: the same networks for all rows.
        linear_alone: The Gaussian or mixture for entries that are left out one at a time; None: `linear`.
    """

    linear: Model
    network: PosteriorAutoencoder
    for_missing: Mixture
    for_alone: Mixture
    samples: int
    seed: int
    groups: Sequence[Tensor] = field(default_factory=tuple)
    linear_alone: Model | None = None

    def missing(self, x: Tensor, *, samples: int | None = None, keep: bool = False) -> Predicted:
        """Return the distribution of missing entries given the observed ones; observed entries have no meaning here.

        Args:
            x: `[N, d]`, standardised; NaN where entries are missing.
            samples: Number of sampled networks; None for the usual number.
            keep: Whether to keep the means of all sampled networks.
        """
        mean, variance = self.linear.entries(x, self.groups)
        count = self.samples if samples is None else samples
        if not bool(self.for_missing.weight.any()):
            copies = mean.expand(count, *x.shape) if keep else None
            return Predicted(mean, self._variance(self.for_missing, variance), copies)
        parts = [self._reconstructed(part, count, keep) for part in x.split(ROWS)]
        correction, spread = (torch.cat([part[i] for part in parts]) for i in range(2))
        mixed = mean + self.for_missing.weight * (correction - mean)
        total = self._variance(self.for_missing, variance, spread)
        if not keep:
            return Predicted(mixed, total)
        reconstructed = torch.cat([part[2] for part in parts], 1)
        return Predicted(mixed, total, mean + self.for_missing.weight * (reconstructed - mean))

    def alone(self, x: Tensor) -> Predicted:
        """Return the distribution of every entry given the other observed entries of its row."""
        model, weight, scale = self.model_alone, self.for_alone.weight, self.for_alone.scale
        mean, variance = model.entries(x, self.groups)
        shift, extra = torch.zeros_like(x), torch.zeros_like(x)
        if bool(weight.any()):
            correction, spread = self.corrections(x)
            shift, extra = weight * correction, weight.square() * spread
        log_prob = model.log_entries(x, x, shift, scale, extra) if isinstance(model, GaussianMixture) else None
        total = (scale * variance + extra).clamp_min(LEAST_VARIANCE)
        return Predicted(mean + shift, total, log_prob=log_prob)

    @property
    def model_alone(self) -> Model:
        """Return the Gaussian or mixture for entries that are left out one at a time."""
        return self.linear if self.linear_alone is None else self.linear_alone

    def log_prob(self, x: Tensor, predicted: Predicted) -> Tensor:
        """Return the log density of entries, `[N, d]`; 0 where they are missing."""
        if predicted.log_prob is not None:
            return torch.where(x.isnan(), 0.0, predicted.log_prob)
        normal = torch.distributions.Normal(predicted.mean, predicted.variance.sqrt())
        return torch.where(x.isnan(), 0.0, normal.log_prob(x.nan_to_num(0.0)))

    def corrections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return by how much the network differs from the linear model with a block of columns hidden, `[N, d]`.

        The second tensor is the variance over sampled networks.
        """
        correction, spread = torch.zeros_like(x), torch.zeros_like(x)
        blocks = self.blocks
        for rows in torch.arange(len(x)).split(ROWS):
            hidden = x[rows].repeat(len(blocks), 1, 1)
            for part, block in zip(hidden, blocks, strict=True):
                part[:, block] = torch.nan
            stacked = hidden.flatten(0, 1)  # all blocks at once, so that networks are sampled once for all of them
            reconstructed, variance, _ = self._reconstructed(stacked, self.samples, False)
            difference = reconstructed - self.model_alone.filled(stacked)
            for part, at, block in zip(difference.split(len(rows)), variance.split(len(rows)), blocks, strict=True):
                correction[rows[:, None], block], spread[rows[:, None], block] = part[:, block], at[:, block]
        return correction, spread

    @property
    def blocks(self) -> list[Tensor]:
        """Return the columns in `BLOCKS` parts, every group in one part."""
        d = len(self.linear.mean)
        grouped = {int(column) for group in self.groups for column in group}
        units = [torch.tensor([column]) for column in range(d) if column not in grouped] + list(self.groups)
        order = torch.randperm(len(units), generator=torch.Generator().manual_seed(self.seed)).tolist()
        count = min(BLOCKS, len(units))
        return [torch.cat([units[place] for place in order[part::count]]) for part in range(count)]

    def _reconstructed(self, x: Tensor, samples: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance and samples of the network's reconstructions."""
        networks = torch.Generator().manual_seed(self.seed)
        result = self.network.reconstruct(x, samples, generator=networks, keep=keep)
        return result.mean, result.variance, result.mean if result.samples is None else result.samples

    @staticmethod
    def _variance(mixture: Mixture, variance: Tensor, spread: Tensor | float = 0.0) -> Tensor:
        """Return the variance of a mixture of both models."""
        return (mixture.scale * variance + mixture.weight.square() * spread).clamp_min(LEAST_VARIANCE)


def combined(
    fitted: FittedGaussian,
    network: PosteriorAutoencoder,
    apart: tuple[Model, Model],
    held_out: Tensor,
    samples: int,
    seed: int,
    groups: Sequence[Tensor],
) -> EntryModel:
    """Return the two models combined, by what hidden entries of held-out rows support.

    The variance of missing entries is the linear model's, corrected by its errors at entries that were hidden from EM
    and by how much smaller errors are with the network. Without held-out rows the network has no weight.

    Args:
        fitted: The linear model of all rows.
        network: Trained without the held-out rows.
        apart: The Gaussians or mixtures for missing and left-out entries, which have not seen the held-out rows.
        held_out: `[M, d]`, standardised; there may be none.
        samples: Number of sampled networks.
        seed: Their seed, and that of hidden entries.
        groups: Columns that are missing together.
    """
    none, one = torch.zeros_like(fitted.gaussian.mean), torch.ones_like(fitted.gaussian.mean)
    linear_scale = interval_scale(fitted.standardised)
    plain = Mixture(none, linear_scale)
    model = EntryModel(fitted.for_missing, network, plain, Mixture(none, one), samples, seed, groups, fitted.for_alone)
    if not len(held_out):
        return model
    generator = torch.Generator().manual_seed(seed)
    for_missing, for_alone = apart
    checked = replace(model, linear=for_missing, linear_alone=for_alone, for_missing=Mixture(one, one))
    errors, corrections, variances = [], [], []
    for _ in range(CHECKS if len(held_out) < CHECK_ROWS else 1):
        hidden = hide(held_out[:CHECK_ROWS], HIDDEN, groups, generator)
        chosen = hidden.isnan() & ~held_out[:CHECK_ROWS].isnan()
        mean, variance = for_missing.entries(hidden, groups)
        errors.append(torch.where(chosen, held_out[:CHECK_ROWS] - mean, torch.nan))
        corrections.append(checked.missing(hidden).mean - mean)
        variances.append(variance)
    weight, ratio = _weight(torch.cat(errors), torch.cat(corrections), torch.cat(variances))
    rows = held_out[:CHECK_ROWS]
    mean, variance = for_alone.entries(rows, groups)
    alone, _ = _weight(rows - mean, (correction := checked.corrections(rows)[0]), variance)
    squared = (rows - mean - alone * correction).square() / variance
    return replace(
        model,
        for_missing=Mixture(weight, linear_scale * ratio),
        for_alone=Mixture(alone, _shrunk(squared.nansum(0), (~squared.isnan()).sum(0))),
    )


def _weight(error: Tensor, correction: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of corrections, `[d]`, and by what factor they change the squared errors of each column.

    The weight is that of least squares, pooled over columns and less one standard error, so that noise alone gives 0;
    each column departs from it as far as its own entries say.

    Args:
        error: Of the linear model, `[M, d]`; NaN for entries that do not count.
        correction: The network's minus the linear prediction, `[M, d]`.
        variance: The linear model's, `[M, d]`, in units of which the squares are.
    """
    observed = ~error.isnan()
    product = torch.where(observed, error * correction / variance, 0.0)
    square = torch.where(observed, correction.square() / variance, 0.0)
    by_row = product.sum(1)
    sure = float(by_row.sum() - by_row.square().sum().sqrt())
    total, count = float(square.sum()), observed.sum(0).clamp_min(1)
    if sure <= 0 or total == 0:
        return torch.zeros_like(error[0]), torch.ones_like(error[0])
    common = min(1.0, sure / total)
    typical = COMMON_ENTRIES * total / float(observed.sum())
    deviation = product.square().sum(0).sqrt()
    weight = ((product.sum(0) - deviation + typical * common) / (square.sum(0) + typical)).clamp(0.0, 1.0)
    before = torch.where(observed, error.square() / variance, 0.0).sum(0)
    after = torch.where(observed, (error - weight * correction).square() / variance, 0.0).sum(0)
    change = float(after.sum() / before.sum())
    ratio = (after / count + COMMON_ENTRIES / count * change) / (before / count + COMMON_ENTRIES / count)
    return weight, ratio.clamp_min(1e-3)


def interval_scale(standardised: Tensor) -> Tensor:
    """Return the factors on variances, `[d]`, with which central 90 % intervals hold 90 % of hidden entries.

    The mean of squares, which rare large errors dominate, would make intervals of columns with heavy tails too wide.
    Every column has `COMMON_ENTRIES` entries of the distribution over all columns besides its own.

    Args:
        standardised: Errors of hidden entries over their standard deviation, `[M, d]`; NaN for entries that were not.
    """
    sizes = standardised.abs().numpy()
    finite = sizes[~np.isnan(sizes)]
    if not finite.size:
        return torch.ones_like(standardised[0])
    common = np.quantile(finite, (np.arange(COMMON_ENTRIES) + 0.5) / COMMON_ENTRIES)
    pooled = np.concatenate([sizes, np.repeat(common[:, None], sizes.shape[1], 1)])
    return torch.as_tensor((np.nanquantile(pooled, 0.9, axis=0) / NORMAL_QUANTILE) ** 2).clamp_min(1e-6)


def _shrunk(squares: Tensor, counts: Tensor) -> Tensor:
    """Return means by column, with `COMMON_ENTRIES` entries of the common mean besides."""
    common = squares.sum() / counts.sum().clamp_min(1)
    return ((squares + COMMON_ENTRIES * common) / (counts + COMMON_ENTRIES)).clamp_min(1e-6)
