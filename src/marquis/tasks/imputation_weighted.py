"""Impute by importance weights: a reference set as the prior, weighted by the likelihood of observed entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, NotNegative, checked_arrays
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.randomness import uniform
from marquis.tasks.batches import SameSeed, batches, data_tensor, naming_shape, require_method
from marquis.tasks.imputation_results import WeightedImputation
from marquis.tasks.masks import as_mask

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


@torch.no_grad()
@checked_arrays
def impute_weighted(
    model: UncertainAutoencoder,
    x: Tensor,
    reference: Tensor,
    missing: Tensor | None = None,
    *,
    exponent: NotNegative = 1.0,
    networks: AtLeastOne = 10,
    samples: AtLeastOne = 10,
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> WeightedImputation:
    """Fill the missing entries by importance-weighted imputation (docs/method/tasks.md#imputation-and-generation).

    The codes of a reference set of complete data stand for the prior of the code. Each of L networks reconstructs each
    of its N samples: candidates `m_j` with noise variance `v_j`, equally likely a priori. Given the observed entries,

    `w_j ∝ exp(exponent Σ_{d observed} log N(x_d | m_jd, v_jd))`, normalised over the L N candidates:

    self-normalised importance sampling from the prior. Samples come from systematic resampling (a candidate comes
    `⌊S w⌋` or `⌈S w⌉` times). With nothing observed the weights are equal, and the samples are new data: generation.

    The Gaussian log-likelihood takes entries as independent given the code. Errors of neighbouring pixels are not, so
    that the likelihood is too sure and a few candidates get all the weight. An `exponent` below 1 compensates for that;
    choose it on data whose missing entries you know. 0 ignores what was observed.
    Cost: `L N` passes of the network, then `O(B L N D)` for the weights and the averages; memory of `L N` data.

    Args:
        model: Anything with `reconstruct`, whose result has a noise variance.
        x: Data `[B, ...]`. What stands at the missing entries does not matter; it may be NaN.
        reference: Complete data `[N, ...]` of the same kind, such as a thousand of the training data.
        missing: Boolean, True where missing; of the shape of `x` or of one sample. None: where `x` is NaN.
        exponent: On the likelihood; 1 is Bayes' rule as the model has it.
        networks: L; an ensemble or a plain autoencoder gives as many as it has.
        samples: S, number of versions of each sample.
        generator: Source of networks and resampling.
        batch_size: Number of samples at a time.
        progress: Show a bar on a terminal.
    """
    require_method(model, "reconstruct")
    x, reference = data_tensor(model, x, "imputation"), data_tensor(model, reference, "reference set")
    missing = as_mask(x, missing)
    _check_reference(reference, x)
    means, noise = _candidates(model, reference, SameSeed(model, generator), networks, batch_size, progress)
    prior = means.mean(0)
    present = ~missing.flatten(1)
    density = _Density(means, noise, present.any(0).to(means.device))
    parts: list[tuple[Tensor, ...]] = []
    start = 0
    for batch in batches(model, torch.where(missing, 0, x), batch_size, "imputation", progress):
        observed = present[start : start + len(batch)].to(batch.device)
        start += len(batch)
        weights = (exponent * density.log_prob(batch.flatten(1), observed)).softmax(1)  # by log-sum-exp
        rows, effective = systematic(weights, samples, generator), 1 / weights.square().sum(1)
        weights = weights.to(means.dtype)
        centred = means - prior  # against cancellation in the variance
        shift = weights @ centred
        between = (weights @ centred.square() - shift.square()).clamp_min(0)
        around = noise if len(noise) == 1 else weights @ noise.repeat(len(means) // len(noise), 1)
        results = (means[rows.T], prior + shift, between, around.expand_as(shift), effective)
        parts.append(tuple(t.to(x.device) for t in results))
    versions = torch.cat([part[0] for part in parts], 1).unflatten(2, x.shape[1:])
    expected, between, around = (torch.cat([part[i] for part in parts]).view_as(x) for i in (1, 2, 3))
    return WeightedImputation(
        samples=torch.where(missing, versions, x),
        reconstructions=versions,
        missing=missing,
        filled=torch.where(missing, prior.to(x.device).view(x.shape[1:]), x),
        within_variance=torch.zeros_like(x),
        noise_variance=torch.where(missing, around, 0),
        averaged=1,
        expected=expected,
        between=between,
        effective=torch.cat([part[4] for part in parts]),
        candidates=len(means),
    )


def systematic(weights: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Resample rows `[B, S]` of candidates systematically: one uniform number per row, then equal steps."""
    first = uniform((len(weights), 1), weights, generator)
    steps = (first + torch.arange(samples, dtype=weights.dtype, device=weights.device)) / samples
    ends = weights.cumsum(1)
    # rounding may leave the last end below 1, and the last step above it
    return torch.searchsorted(ends / ends[:, -1:], steps, right=True).clamp_max(weights.shape[1] - 1)


class _Density:
    """Compute log-densities of observed entries under every candidate, up to a number per sample.

    In double precision whatever the data are: squares are multiplied out, and their differences decide.
    """

    def __init__(self, means: Tensor, noise: Tensor, used: Tensor) -> None:
        """Prepare `means [M, D]` and `noise [M or a divisor, D]`, networks outermost; `used [D]`: observed anywhere."""
        self.used = used
        m, v = means[:, used].double(), noise[:, used].double()
        self.same = len(v) == 1  # then x²/v is the same for all candidates
        v = v.repeat(len(m) // len(v), 1)
        self.linear, self.constant = (m / v).T, (m.square() / v + v.log()).T
        self.square = None if self.same else v.reciprocal().T

    def log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return log-densities `[B, M]` for `x [B, D]` that is 0 where it was not observed."""
        x, observed = x[:, self.used].double(), observed[:, self.used]
        log_density = x @ self.linear - 0.5 * (observed.double() @ self.constant)
        if self.square is not None:
            log_density = log_density - 0.5 * (x.square() @ self.square)
        if not bool(log_density.isfinite().all()):
            raise NumericalError("the likelihood of some observed entries is not finite: are data and model in scale?")
        return log_density


def _candidates(
    model: Any, reference: Tensor, same: SameSeed, networks: int, batch_size: int, progress: bool
) -> tuple[Tensor, Tensor]:
    """Return reconstructions `[L N, D]`, networks outermost, and noise variances `[N, D]`, or one if all are equal."""
    means, noises = [], []
    for batch in batches(model, reference, batch_size, "reference set", progress):
        with naming_shape(model, batch, "reference set"):
            reconstruction = model.reconstruct(batch, networks, generator=same.generator(), keep=True)
        if reconstruction.samples is None or reconstruction.samples.shape[1:] != batch.shape:
            got = None if reconstruction.samples is None else list(reconstruction.samples.shape)
            raise DataError(
                f"reconstruct(x, keep=True) of x {list(batch.shape)} must give samples [S, *x.shape], got {got}."
            )
        if reconstruction.noise_variance is None:
            raise UnsupportedOperationError(
                f"{type(model).__name__} has no noise variance, so observed entries have no likelihood to weigh "
                "candidates by; use `impute`."
            )
        means.append(reconstruction.samples.flatten(2))
        noises.append(reconstruction.noise_variance.expand_as(batch).flatten(1))
    candidates, noise = torch.cat(means, 1).flatten(0, 1), torch.cat(noises)
    if not bool(((noise > 0) & noise.isfinite()).all()):
        raise NumericalError("the noise variance of the model must be positive and finite to weigh candidates by.")
    return candidates, noise[:1] if bool((noise == noise[:1]).all()) else noise


def _check_reference(reference: Tensor, x: Tensor) -> None:
    """Refuse a reference set of another shape, or with missing entries."""
    if reference.dim() != x.dim() or reference.shape[1:] != x.shape[1:] or len(reference) == 0:
        raise DataError(
            f"the reference set must be complete data [N, ...] like x {list(x.shape)}; got {list(reference.shape)}."
        )
    if not bool(reference.isfinite().all()):
        raise DataError("the reference set must be complete: leave out samples with NaN, or `impute` them first.")
