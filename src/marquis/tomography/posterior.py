"""Compute the linearised posterior over images, exact or iterative, in two steps: tune, then posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked, checked_arrays, checked_methods
from marquis.choices import choose
from marquis.curvature.linop.nystrom import Nystrom
from marquis.errors import DataError, MemoryBudgetError, UnsupportedOperationError
from marquis.io.lock import exclusive
from marquis.io.previous import any_generation, read_newest
from marquis.io.tensors import load_tensors, save_tensors
from marquis.progress import ProgressBar
from marquis.tomography.evidence import (
    Evidence,
    ExactData,
    Groups,
    Predcp,
    TunedPrior,
    build_problem,
    check_options,
    consistent_rate,
    tune_problem,
)
from marquis.tomography.gram import BUDGET, Grams, compute_grams, exact_bytes, sampled_roughness
from marquis.tomography.krylov import (
    RANK,
    ROWS,
    TOLERANCE,
    DataOperator,
    SpectralData,
    approximate,
    tune_blocks,
)
from marquis.tomography.operators import Measurement, check_data, forward_rows, pixels, readings
from marquis.tomography.result import UncertainImage, noise_floor
from marquis.tomography.tangent import LinearisedImage
from marquis.tomography.training import TrainedImage

Mode = Literal["auto", "exact", "iterative"]

EXACT_READINGS = 2500
SAMPLES = 16
PROBES = 8


@checked_methods
@dataclass(frozen=True, eq=False)
class ExactPrior:
    """Hold the prior over images and data as dense matrices, one term per block (or per block and tap distance).

    Attributes:
        linearised: the image as a function of weights.
        measurement: the operator A.
        grams: the terms of the covariances.
        tv_weight: with which the network was trained.
        taps: whether there is a Gaussian process over filter taps.
    """

    linearised: LinearisedImage
    measurement: Measurement
    grams: Grams
    tv_weight: float
    taps: bool

    def tune(self, data: Tensor, *, rate: float | None = None, **options: Any) -> TunedPrior:
        """Choose variances and noise; `options` are those of `marquis.tomography.evidence.tune_problem`."""
        data = check_data(data, self.measurement)
        terms = self.grams.block, self.grams.distance
        problem = build_problem(
            self.linearised, ExactData(self.grams), self.grams.roughness, terms, data, self.measurement.forward
        )
        if rate is None:
            rate = consistent_rate(self.tv_weight, problem.count, problem.misfit / problem.count)
        return tune_problem(problem, rate=rate, **options)

    def posterior(self, tuned: TunedPrior, *, floor: float | None = None) -> UncertainImage:
        """Return `N(x̂, K_xx - K_xy K_yy⁻¹ K_yx)`; costs `dy³ / 3 + dx dy² + dx² dy`."""
        coefficients = self.grams.coefficients(tuned.variance, tuned.lengthscale)
        prior = self.grams.image_covariance(coefficients)
        cross = forward_rows(self.measurement, prior)  # K_xy, rows are pixels
        factor = torch.linalg.cholesky(self.grams.data_covariance(coefficients, tuned.noise_variance))
        explained = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        covariance = prior - explained.T @ explained
        covariance = (covariance + covariance.T) / 2
        shape = self.measurement.image_shape
        if floor is None:
            floor = tuned.noise_variance * noise_floor(self.measurement)
        return UncertainImage(
            self.linearised.image,
            covariance.diagonal().clamp_min(0.0).reshape(shape),
            floor,
            tuned.noise_variance,
            self.measurement,
            "linearised deep image prior, exact",
            posterior_covariance=covariance,
            tuned=tuned,
        )


@checked_methods
@dataclass(frozen=True, eq=False)
class IterativePrior:
    """Compute with the prior over images and data by products with the Jacobian.

    Attributes:
        linearised: the image as a function of weights.
        measurement: the operator A.
        tv_weight: with which the network was trained.
        rank: rank of the Nyström approximation.
        generator: source of probes and samples.
        progress: whether to show progress bars.
        checkpoint: a folder in which the eigenpairs are kept.
    """

    linearised: LinearisedImage
    measurement: Measurement
    tv_weight: float
    rank: int = RANK
    generator: torch.Generator | None = None
    progress: bool = False
    checkpoint: Path | None = None

    def operator(self, variance: Tensor, noise_variance: float) -> DataOperator:
        """Return the products for given variances `[blocks]`."""
        return DataOperator(self.linearised, self.measurement, variance, noise_variance)

    @cached_property
    def unit_approximation(self) -> Nystrom:
        """Return the Nyström approximation of `A J Jᵀ Aᵀ`: with one variance it serves every value."""
        file = None if self.checkpoint is None else self.checkpoint / "eigenpairs.safetensors"
        if file is not None and any_generation(file):
            tensors = read_newest(file, lambda path: load_tensors(path, ("eigenpairs",))[2])
            if self.generator is not None:
                self.generator.set_state(tensors["random"])
            return Nystrom(tensors["values"], tensors["vectors"])
        ones = torch.ones(len(self.linearised.blocks), dtype=torch.float64)
        pairs = approximate(self.operator(ones, 1.0), self.rank, self.generator, self.progress)
        if file is not None:  # with the generator's state after it, so that a resumed run has the same samples
            state = torch.get_rng_state() if self.generator is None else self.generator.get_state()
            tensors = {"values": pairs.values, "vectors": pairs.vectors, "random": state}
            save_tensors(file, "eigenpairs", {}, tensors, keep_previous=True)
        return pairs

    def tune(
        self,
        data: Tensor,
        *,
        evidence: Evidence = "network",
        predcp: Predcp | None = None,
        groups: Groups = "scalar",
        rate: float | None = None,
    ) -> TunedPrior:
        """Choose variances and noise; see `marquis.tomography.tune`."""
        check_options(evidence, predcp, groups, rate=1.0, taps=False)
        data = check_data(data, self.measurement)
        by_block = groups == "block"
        rows = len(self.linearised.blocks) if by_block else 1
        roughness = torch.ones(rows, 1, dtype=torch.float64)
        if predcp is not None:
            roughness = sampled_roughness(self.linearised, PROBES, self.generator, by_block)
        terms = torch.arange(rows), torch.zeros(rows, dtype=torch.float64)
        # One variance per block is tuned by fixed points, which need no model of the data.
        model = None if by_block else SpectralData(self.unit_approximation, readings(self.measurement))
        problem = build_problem(self.linearised, model, roughness, terms, data, self.measurement.forward)
        residual = problem.misfit / problem.count
        if rate is None and predcp is not None:
            rate = consistent_rate(self.tv_weight, problem.count, residual)
        if not by_block:
            return tune_problem(problem, evidence=evidence, predcp=predcp, groups=groups, rate=rate)
        start = problem.squared_norms / torch.tensor(self.linearised.sizes, dtype=torch.float64)
        operator, used = self.operator(start, residual), None if predcp is None else rate
        return tune_blocks(operator, problem, rate=used, generator=self.generator, progress=self.progress)[0]

    def approximation_for(self, tuned: TunedPrior) -> Nystrom:
        """Return the preconditioner's approximation of the signal part at the tuned variances."""
        if float(tuned.variance.max()) == float(tuned.variance.min()):
            return self.unit_approximation.scaled(float(tuned.variance[0]))
        operator = self.operator(tuned.variance, tuned.noise_variance)
        return approximate(operator, self.rank, self.generator, self.progress)

    def posterior(
        self,
        tuned: TunedPrior,
        *,
        samples: AtLeastOne = SAMPLES,
        tol: float = TOLERANCE,
        floor: float | None = None,
        checkpoint: Path | None = None,
    ) -> UncertainImage:
        """Return variances as the mean square of Matheron samples, each of which costs one preconditioned solve.

        Args:
            tuned: variances and noise.
            samples: number of samples; a standard deviation is known within `1 / sqrt(2 samples)`.
            tol: relative residual of the solves.
            floor: variance that every pixel has; by default from noise and operator.
            checkpoint: a file to which finished samples go, and from which they are taken.
        """
        operator = self.operator(tuned.variance, tuned.noise_variance)
        approximation = self.approximation_for(tuned)

        def sampler(count: int, generator: torch.Generator | None) -> Tensor:
            return operator.sample(count, lambda rows: operator.solve(rows, approximation, tol=tol), generator)

        batches = math.ceil(samples / ROWS)
        seeds = torch.randint(2**31, (batches,), generator=self.generator).tolist()
        rows = _load_samples(checkpoint, pixels(self.measurement))
        with exclusive(checkpoint, "a reconstruction"), ProgressBar("samples", batches, self.progress) as bar:
            for index, seed in enumerate(seeds):
                if rows.shape[0] < min((index + 1) * ROWS, samples):
                    count = min((index + 1) * ROWS, samples) - index * ROWS
                    batch = sampler(count, torch.Generator().manual_seed(seed))
                    rows = torch.cat([rows[: index * ROWS], batch])
                    if checkpoint is not None:
                        save_tensors(checkpoint, "posterior-samples", {}, {"rows": rows}, keep_previous=True)
                bar.advance()
        shape = self.measurement.image_shape
        if floor is None:
            floor = tuned.noise_variance * noise_floor(self.measurement)
        return UncertainImage(
            self.linearised.image.double(),
            rows.double().square().mean(dim=0).reshape(shape),  # not centred: the mean is known to be zero
            floor,
            tuned.noise_variance,
            self.measurement,
            "linearised deep image prior, iterative",
            deviations=rows.double(),
            sampler=sampler,
            tuned=tuned,
        )


@checked
def linearise(
    trained: TrainedImage,
    measurement: Measurement,
    *,
    posterior: Mode = "auto",
    taps: bool = False,
    memory: int = BUDGET,
    rank: int = RANK,
    generator: torch.Generator | None = None,
    checkpoint: Path | None = None,
    progress: bool = False,
) -> ExactPrior | IterativePrior:
    """Linearise a trained deep image prior and prepare its posterior.

    Args:
        trained: from `deep_image_prior`.
        measurement: the operator A.
        posterior: "exact" keeps dense matrices over pixels and readings, "iterative" only products; "auto" takes the
            exact one up to 2500 readings and the memory budget.
        taps: a Gaussian process over the taps of 3 x 3 filters (exact mode only).
        memory: bytes that the exact mode may take.
        rank: rank of the iterative mode's Nyström approximation.
        generator: source of the iterative mode's probes and samples.
        checkpoint: a folder in which the iterative mode keeps its eigenpairs, for a run that is resumed.
        progress: whether to show progress bars.

    Raises:
        MemoryBudgetError: "exact" does not fit; the message has the iterative mode's estimated time.
        UnsupportedOperationError: batch statistics or dropout are active.
    """
    linearised = LinearisedImage(trained.network, trained.inputs)
    if choose_mode(linearised, measurement, posterior, taps, memory, rank) == "iterative":
        return IterativePrior(linearised, measurement, trained.tv_weight, rank, generator, progress, checkpoint)
    grams = compute_grams(linearised, measurement, taps=taps, progress=progress)
    return ExactPrior(linearised, measurement, grams, trained.tv_weight, taps)


def choose_mode(
    linearised: LinearisedImage, measurement: Measurement, posterior: Mode, taps: bool, memory: int, rank: int
) -> Mode:
    """Return "exact" or "iterative", or refuse what does not fit or is not offered; weights do not matter.

    Raises:
        MemoryBudgetError: "exact" does not fit; the message has the iterative mode's estimated time.
        UnsupportedOperationError: a process over filter taps in iterative mode.
    """
    posterior = choose("posterior", posterior, ("auto", "exact", "iterative"), error=DataError)
    required = exact_bytes(linearised, measurement, taps)
    if posterior == "auto":
        posterior = "exact" if required <= memory and readings(measurement) <= EXACT_READINGS else "iterative"
    if posterior == "iterative" and taps:
        raise UnsupportedOperationError("a process over filter taps (preset='paper') needs posterior='exact'.")
    if posterior == "exact" and required > memory:
        ones = torch.ones(len(linearised.blocks), dtype=torch.float64)
        seconds = DataOperator(linearised, measurement, ones, 1.0).seconds_per_product()
        expected = seconds * (rank + 25 * SAMPLES)  # about 25 iterations a sample
        raise MemoryBudgetError(
            f"the exact posterior of {pixels(measurement)} pixels and {readings(measurement)} readings takes "
            f"{required / 2**30:.1f} GiB, more than the budget of {memory / 2**30:.1f} GiB; use posterior='iterative' "
            f"(about {expected / 60:.0f} minutes for {SAMPLES} samples here), or raise memory=."
        )
    return posterior


@checked_arrays
def tune(
    prior: ExactPrior | IterativePrior,
    data: Tensor,
    *,
    evidence: Evidence = "network",
    predcp: Predcp | None = None,
    groups: Groups | None = None,
    rate: float | None = None,
) -> TunedPrior:
    """Choose the prior's variances and the noise variance by the evidence.

    Args:
        prior: from `linearise`.
        data: what was measured.
        evidence: "network" at the network's weights, "tangent" of the linear model (one variance only).
        predcp: the TV-PredCP prior on each variance, on each lengthscale (with a process over taps), or
            None for the evidence alone.
        groups: one variance per "block" of the U-Net, or "scalar"; by default blocks in exact mode, one otherwise.
        rate: rate of the TV-PredCP prior; by default the one that is consistent with the training loss.
    """
    if groups is None:
        groups = "block" if isinstance(prior, ExactPrior) else "scalar"
    return prior.tune(data, evidence=evidence, predcp=predcp, groups=groups, rate=rate)


def _load_samples(checkpoint: Path | None, size: int) -> Tensor:
    """Return the samples of an interrupted computation; none without one."""
    if checkpoint is None or not any_generation(checkpoint):
        return torch.zeros(0, size, dtype=torch.float64)
    return read_newest(checkpoint, lambda file: load_tensors(file, ("posterior-samples",))[2]["rows"])
