"""Hold results of imputation, and compute their errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.arguments import checked_arrays
from marquis.errors import DataError
from marquis.tasks.batches import as_tensor


@dataclass(frozen=True, eq=False)
class Imputation:
    """Hold several complete versions of each sample, their mean and their variance.

    Attributes:
        samples: `[S1, B, ...]`, different imputations with the observed entries unchanged. Their *average* need
            not be a likely one (half a 3 and half an 8): look at them one by one.
        reconstructions: `[S1, B, ...]`, the same before the observed entries were put back; what the paper measures.
        missing: True where an entry was to be filled, `[B, ...]`.
        filled: What the procedure started from: the data with the initial fill, `[B, ...]`.
        within_variance: Variance over the S2 networks that each sample averages, averaged over the samples; 0 where
            observed.
        noise_variance: Variance of the data around the reconstructions, where the model has one; 0 where observed.
        averaged: S2, number of networks that each sample averages; infinite where their mean is exact.
    """

    samples: Tensor
    reconstructions: Tensor
    missing: Tensor
    filled: Tensor
    within_variance: Tensor
    noise_variance: Tensor
    averaged: float

    @property
    def mean(self) -> Tensor:
        """Return the mean of the samples `[B, ...]`, with the observed entries unchanged."""
        return torch.where(self.missing, self.samples.mean(0), self.filled)

    @property
    def variance(self) -> Tensor:
        """Return the unbiased variance between the samples; 0 where observed, and everywhere for a single sample."""
        if len(self.samples) == 1:
            return torch.zeros_like(self.filled)
        return torch.where(self.missing, self.samples.var(0), 0)  # rounding gives equal numbers some variance

    @property
    def std(self) -> Tensor:
        """Return the standard deviation between the samples."""
        return self.variance.sqrt()

    @property
    def total_variance(self) -> Tensor:
        """Return the variance of the missing value itself: between samples, within them, and the noise.

        Each sample is a mean over S2 networks, whose variance holds `within/S2` already (nested random effects).
        """
        return self.variance + self.within_variance * (1 - 1 / self.averaged) + self.noise_variance


@dataclass(frozen=True, eq=False)
class WeightedImputation(Imputation):
    """Hold an imputation by weighted candidates (`impute_weighted`); its samples were resampled by weight.

    `mean`, `variance` and `total_variance` use *all* candidates with their weights, not only the samples.

    Attributes:
        expected: Weighted mean of the candidates `[B, ...]`.
        between: Weighted variance of the candidates `[B, ...]`.
        effective: Effective number of candidates, `1 / Σ_j w_j²`, per sample `[B]`: from 1 (one has all the weight, and
            mean and variance mean little) to their number (nothing was observed).
        candidates: Number of candidates.
    """

    expected: Tensor
    between: Tensor
    effective: Tensor
    candidates: int

    @property
    def mean(self) -> Tensor:
        """Return the weighted mean of the candidates, with the observed entries unchanged."""
        return torch.where(self.missing, self.expected, self.filled)

    @property
    def variance(self) -> Tensor:
        """Return the weighted variance of the candidates; 0 where observed."""
        return torch.where(self.missing, self.between, 0)


@dataclass(frozen=True, eq=False)
class ImputationErrors:
    """Hold squared errors per sample `[B]`, summed over entries, by three definitions (docs/method/tasks.md).

    Those named `..._of_mean` are of the mean reconstruction ("MSE" in the paper); the others average the error over the
    S1 reconstructions ("-log p" in the paper).

    Attributes:
        all: (a) all entries against the original.
        missing: (b) the entries that were missing against the original.
        published: (c) all entries against the *masked, noise-filled* input, as the paper's tables have it. Mostly the
            energy of the noise; for comparison with the paper only.
        all_of_mean: (a) of the mean.
        missing_of_mean: (b) of the mean.
        published_of_mean: (c) of the mean.
    """

    all: Tensor
    missing: Tensor
    published: Tensor
    all_of_mean: Tensor
    missing_of_mean: Tensor
    published_of_mean: Tensor

    def summary(self) -> dict[str, float]:
        """Return the mean over the data of each error."""
        return {name: float(value.double().mean()) for name, value in vars(self).items()}


@checked_arrays
def errors(imputation: Imputation, original: Tensor) -> ImputationErrors:
    """Compute squared errors by three definitions, of the reconstructions before observed entries are put back.

    Args:
        imputation: An imputation.
        original: The data before entries were removed `[B, ...]`, without NaN.
    """
    original = as_tensor(original, "original")
    if not original.is_floating_point():
        original = original.to(imputation.filled.dtype)
    if original.shape != imputation.filled.shape:
        raise DataError(
            f"the original has shape {list(original.shape)}, the imputation {list(imputation.filled.shape)}."
        )
    if not bool(original.isfinite().all()):
        raise DataError(
            "the original must be complete: errors are measured against it, not against what was filled in."
        )
    both = []
    for reconstructions in (imputation.reconstructions, imputation.reconstructions.mean(0, keepdim=True)):
        error = (reconstructions - original).square()
        published = (reconstructions - imputation.filled).square()
        for squares in (error, error * imputation.missing, published):
            both.append(squares.flatten(2).sum(2).mean(0))
    return ImputationErrors(*both)
