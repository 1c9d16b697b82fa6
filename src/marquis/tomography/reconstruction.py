"""Reconstruct an image with error bars from data: the front door."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, NotNegative, Positive, checked_arrays
from marquis.choices import choose
from marquis.errors import DataError
from marquis.io.atomic import make_folder
from marquis.tomography.evidence import Evidence, Groups, check_options
from marquis.tomography.gram import BUDGET
from marquis.tomography.krylov import RANK
from marquis.tomography.operators import Measurement, check_data, check_measurement, noise_std
from marquis.tomography.posterior import SAMPLES, IterativePrior, Mode, choose_mode, linearise
from marquis.tomography.result import UncertainImage
from marquis.tomography.tangent import LinearisedImage
from marquis.tomography.training import deep_image_prior, default_steps, resolve_tv_weight
from marquis.tomography.unet import default_network

STOP_AT = 0.8
"""Training stops where the mean squared residual is this share of the noise variance: measured on KMNIST."""
UNFINISHED = 1.2
"""Multiple of the noise variance above which a residual after all steps is said."""

Preset = Literal["paper"]


@checked_arrays
def reconstruct(
    data: Tensor,
    measurement: Measurement,
    *,
    noise: NotNegative | None = None,
    tv: Positive | None = None,
    range: tuple[float, float] | None = None,
    posterior: Mode = "auto",
    preset: Preset | None = None,
    evidence: Evidence = "network",
    groups: Groups | None = None,
    predcp: bool = False,
    samples: AtLeastOne = SAMPLES,
    steps: AtLeastOne | None = None,
    stop_at: float | None = STOP_AT,
    network: nn.Module | None = None,
    memory: int = BUDGET,
    rank: int = RANK,
    checkpoint: Path | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> UncertainImage:
    """Reconstruct an image from linear measurements, with a standard deviation for every pixel.

    A U-Net is fitted to the data (deep image prior), linearised in its convolution weights, and the Gaussian posterior
    of the image is computed; variances and noise are tuned by the evidence (docs/method/tomography.md).

    Args:
        data: what was measured, of shape `measurement.data_shape` (a sinogram: angles x detectors).
        measurement: `ParallelBeam`, `FanBeam` or any other linear operator with `forward` and `adjoint`.
        noise: standard deviation of the noise as a share of the mean absolute reading, such as 0.05.
        tv: weight of the total variation in the training loss; from `noise` by default. One of the two is needed.
        range: least and largest value of a pixel, if known (better images); otherwise values are non-negative.
        posterior: "exact" (dense matrices), "iterative" (products only) or "auto" (exact up to 2500 readings).
        preset: "paper" for the published variant: a Gaussian process over filter taps, TV-PredCP on its lengthscales.
        evidence: "network" or "tangent" (one variance only).
        groups: one variance per "block" of the U-Net or "scalar"; by default blocks in exact mode with "network".
        predcp: whether to use the TV-PredCP prior on the variances. It sharpens error bars where the data say much, and
            makes them too narrow where they leave much open (docs/experiments/tomography.md). "paper" always has it.
        samples: posterior samples of the iterative mode; a standard deviation is known within `1 / sqrt(2 samples)`.
        steps: maximum number of training steps; by default 2500, for more than 32 pixels along an edge 7500.
        stop_at: with `noise`, training stops where the residual is this multiple of the noise variance; None to go on.
        network: from `[1, 1, H, W]` to `[1, 1, H, W]`; copied, never changed. A U-Net by default.
        memory: bytes that the exact mode may take.
        rank: rank of the iterative mode's Nyström approximation.
        checkpoint: a folder in which an interrupted reconstruction of the same data resumes.
        generator: source of all random numbers; seed 0 by default.
        progress: whether to show progress bars.

    Raises:
        DataError: shapes that do not fit, NaN, negative noise, neither noise nor tv, an adjoint that is not one.
        MemoryBudgetError: `posterior="exact"` does not fit.
        NumericalError: training or conjugate gradients did not converge.
        UnsupportedOperationError: active batch norm or dropout in `network`, or options that exclude each other.
    """
    if preset is not None:
        preset = choose("preset", preset, ("paper",), error=DataError)
    if evidence == "tangent":
        groups = groups or "scalar"
    check_options(evidence, None, groups or "scalar", None, preset == "paper")
    if range is not None and not range[0] < range[1]:
        raise DataError(f"range is {range}; its first value has to be the smaller one.")
    steps = default_steps(measurement) if steps is None else steps
    values = check_data(data, measurement)
    level = None if noise is None else noise_std(values, noise) ** 2  # refuses negative noise even where tv is set
    variance = level or None
    weight = resolve_tv_weight(values, noise, tv)
    check_measurement(measurement)
    with torch.random.fork_rng(devices=[]):  # what does not fit is refused before training, not after it
        untrained = copy.deepcopy(network) or default_network(measurement.image_shape, range)
    inputs = torch.zeros(1, 1, *measurement.image_shape)
    choose_mode(LinearisedImage(untrained.eval(), inputs), measurement, posterior, preset == "paper", memory, rank)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    folder = None
    if checkpoint is not None:
        options = [noise, tv, range, posterior, preset, evidence, groups, predcp, samples, steps, stop_at, rank]
        folder = make_folder(checkpoint / _digest(values, measurement, network, options, generator))
    trained = deep_image_prior(
        values,
        measurement,
        tv=weight,
        range=range,
        noise_variance=variance,
        stop_at=stop_at if variance else None,
        steps=steps,
        network=network,
        generator=generator,
        checkpoint=None if folder is None else folder / "training.safetensors",
        progress=progress,
    )
    prior = linearise(
        trained,
        measurement,
        posterior=posterior,
        taps=preset == "paper",
        memory=memory,
        rank=rank,
        generator=generator,
        checkpoint=folder,
        progress=progress,
    )
    notes: tuple[str, ...] = ()
    if trained.stopped == "residual":
        notes = (f"training stopped after {len(trained.losses)} of {steps} steps: the residual is at the noise.",)
    elif variance and trained.residual > UNFINISHED * variance:
        ratio = trained.residual / variance
        notes = (f"the residual is {ratio:.1f} times the noise variance after {steps} steps: raise steps=.",)
    hyper_prior: Any = "variance" if predcp else None
    if isinstance(prior, IterativePrior):
        tuned = prior.tune(values, evidence=evidence, predcp=hyper_prior, groups=groups or "scalar")
        file = None if folder is None else folder / "samples.safetensors"
        result = prior.posterior(tuned, samples=samples, checkpoint=file)
        if posterior == "auto":
            notes += ("the exact posterior does not fit or would take too long: the iterative one was used.",)
    else:
        published: dict[str, Any] = {}
        if preset == "paper":  # the published rate is γ dy, to whose power the Jacobian is raised as well
            published = {"rate": prior.tv_weight * values.numel(), "tempered": True}
            hyper_prior = "lengthscale"
        tuned = prior.tune(values, evidence=evidence, predcp=hyper_prior, groups=groups or "block", **published)
        result = prior.posterior(tuned)
    return replace(result, notes=(*result.notes, *notes))


def _digest(
    data: Tensor, measurement: Measurement, network: nn.Module | None, options: list[object], generator: torch.Generator
) -> str:
    """Return a name for this reconstruction: what it depends on resumes, anything else starts anew."""
    total = hashlib.sha256(data.contiguous().numpy().tobytes())
    image = measurement.adjoint(data)  # tells one operator from another; rounded, since threads may change last digits
    total.update((image / image.abs().max().clamp_min(1e-300) * 2**14).round().to(torch.int16).numpy().tobytes())
    for name, value in {} if network is None else network.state_dict().items():
        total.update(name.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    total.update(json.dumps(options, default=str).encode())
    total.update(generator.get_state().numpy().tobytes())
    return total.hexdigest()[:16]
