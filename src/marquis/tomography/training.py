"""Train a deep image prior: a network with a fixed input, fitted to the data of one image."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, Positive, checked
from marquis.errors import DataError, ModelMismatchError, NumericalError
from marquis.io.lock import exclusive
from marquis.io.previous import any_generation, read_newest
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.progress import ProgressBar
from marquis.tomography.analytic import fbp, total_variation
from marquis.tomography.operators import Measurement, as_layer, check_data, check_image, noise_std
from marquis.tomography.unet import SMALL_EDGE, default_network

STEPS, LONG_STEPS = 2500, 7500
"""Steps up to `SMALL_EDGE` pixels and above; at 128 pixels 2500 steps end far above the noise."""
LEARNING_RATE = 2e-3
FINAL_RATE = 0.01
ATTEMPTS = 5
"""Initial weights that are tried where the output saturates and the image becomes constant."""
CHECK_EVERY = 50
SATURATED = 0.01
"""Share of the range within which a pixel is at its end."""
SAVE_EVERY = 20.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True, eq=False)
class TrainedImage:
    """Hold a deep image prior after training.

    Attributes:
        network: in evaluation mode, float32.
        inputs: the network's fixed input `[1, 1, H, W]`.
        image: its output `[H, W]`, float64.
        tv_weight: weight of the total variation in the loss.
        residual: mean squared residual of the data.
        losses: one per step.
        stopped: why training ended: "steps" or "residual".
    """

    network: nn.Module
    inputs: Tensor
    image: Tensor
    tv_weight: float
    residual: float
    losses: tuple[float, ...]
    stopped: str


def tv_weight_for(noise_variance: float, count: int, rate: float = 1.0) -> float:
    """Return the weight for which the loss is a posterior with prior `exp(-rate TV)`: `2 rate σ² / dy`."""
    return 2 * rate * noise_variance / count


def resolve_tv_weight(data: Tensor, noise: float | None, tv: float | None) -> float:
    """Return the weight of the total variation, from `tv` itself or from the noise level.

    Raises:
        DataError: neither is there (noise cannot be estimated from a sinogram), or noise is 0.
    """
    if tv is not None:
        return tv
    if noise is None:
        raise DataError(
            "neither noise nor tv is set: pass noise= (standard deviation as a share of the mean |reading|, such as "
            "0.05) or tv= (weight of the total variation); the data alone do not tell noise from structure."
        )
    if noise == 0:
        raise DataError("noise is 0: pass tv= (a small weight of the total variation) for data without noise.")
    return tv_weight_for(noise_std(data, noise) ** 2, data.numel())


def default_steps(measurement: Measurement) -> int:
    """Return the number of training steps for images of this size."""
    return STEPS if max(measurement.image_shape) <= SMALL_EDGE else LONG_STEPS


@checked
def deep_image_prior(
    data: Tensor,
    measurement: Measurement,
    *,
    tv: Positive,
    range: tuple[float, float] | None = None,
    noise_variance: float | None = None,
    stop_at: Positive | None = None,
    steps: AtLeastOne | None = None,
    learning_rate: Positive = LEARNING_RATE,
    network: nn.Module | None = None,
    start: Tensor | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
    watch: Callable[[int, Tensor, float], None] | None = None,
) -> TrainedImage:
    """Fit a network's image to data: minimise `|y - A f(θ)|² / dy + tv TV(f(θ))` by Adam.

    The rate falls by a cosine to 1 % and the gradient's norm is clipped at 1. The weights of least loss in the second
    half are kept; with `stop_at`, training ends as soon as the mean squared residual is `stop_at noise_variance`.

    Args:
        data: what was measured.
        measurement: the operator A.
        tv: weight of the total variation.
        range: least and largest value of a pixel; None for non-negative values.
        noise_variance: variance of the noise of one reading; needed for `stop_at`.
        stop_at: multiple of the noise variance at which to stop; None to use all steps.
        steps: maximum number of steps; by default 2500, for images of more than 32 pixels along an edge 7500.
        learning_rate: initial learning rate.
        network: a module from `[1, 1, H, W]` to `[1, 1, H, W]`, which is copied; a U-Net by default, whose weights are
            initialised again where the output saturates in training.
        start: the network's fixed input `[H, W]`; the filtered back-projection by default.
        dropout: probability of dropping channels, for the default network.
        generator: source of the initial weights (and of dropout's masks).
        checkpoint: a file in which an interrupted training resumes.
        progress: whether to show a progress bar.
        watch: called after every step with its number, the image and the mean squared residual.

    Raises:
        NumericalError: the loss is not finite, or the image becomes constant from all initial weights tried.
    """
    data = check_data(data, measurement)
    steps = default_steps(measurement) if steps is None else steps
    if stop_at is not None and noise_variance is None:
        raise DataError(f"stop_at is {stop_at}; it needs noise_variance.")
    start = fbp(data, measurement) if start is None else check_image(start, measurement, "start")
    size = float(start.abs().quantile(0.99)) or 1.0
    near = SATURATED * (size if range is None else range[1] - range[0])
    ends = (near, math.inf) if range is None else (range[0] + near, range[1] - near)
    inputs = (start / size).float()[None, None]
    # initialisation and dropout use the global generator
    with exclusive(checkpoint, "a reconstruction"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.randint(2**31, (), generator=generator).item() if generator is not None else 0)
        target = None if stop_at is None or noise_variance is None else stop_at * noise_variance

        def start_training() -> _Training:
            module = None if network is None else copy.deepcopy(network).float()
            module = module or default_network(measurement.image_shape, range, size, dropout)
            return _Training(module.train(), steps, learning_rate)

        state, attempts = start_training(), 1
        if checkpoint is not None and any_generation(checkpoint):
            read_newest(checkpoint, state.load)
        while True:
            stopped = _run(state, data.float(), measurement, inputs, tv, target, ends, checkpoint, progress, watch)
            if stopped != "collapsed":
                break
            if attempts == (ATTEMPTS if network is None else 1):
                raise NumericalError(
                    "training made the image constant, with an output that is saturated; lower learning_rate, or check "
                    "that range fits the data."
                )
            state, attempts = start_training(), attempts + 1
    trained = state.network
    trained.load_state_dict(state.best)
    trained.eval()
    image = trained(inputs)[0, 0].detach().double()
    residual = float((data - measurement.forward(image)).square().mean())
    return TrainedImage(trained, inputs, image, tv, residual, tuple(state.losses), stopped)


def _run(
    state: _Training,
    data: Tensor,
    measurement: Measurement,
    inputs: Tensor,
    tv: float,
    target: float | None,
    ends: tuple[float, float],
    checkpoint: Path | None,
    progress: bool,
    watch: Callable[[int, Tensor, float], None] | None,
) -> str:
    """Train until the steps are over or the target is reached, and return why training ended."""
    project = as_layer(measurement)
    saved = time.monotonic()
    with ProgressBar("deep image prior", state.steps - len(state.losses), progress) as bar:
        while len(state.losses) < state.steps:
            image = state.network(inputs)[0, 0]
            residual = (project(image) - data).square().mean()
            loss = residual + tv * total_variation(image)
            if target is not None and float(residual.detach()) <= target:
                state.best = _values(state.network)
                if checkpoint is not None:
                    state.save(checkpoint)
                return "residual"
            if not bool(torch.isfinite(loss)):
                raise NumericalError(f"the loss is not finite at step {len(state.losses)}; lower learning_rate.")
            check = len(state.losses) % CHECK_EVERY == CHECK_EVERY - 1
            if check and _collapsed(image, ends, float(residual.detach()), data):
                return "collapsed"
            state.step(loss)
            if watch is not None:
                watch(len(state.losses), image.detach(), float(residual.detach()))
            bar.advance()
            if checkpoint is not None and time.monotonic() - saved > SAVE_EVERY:
                state.save(checkpoint)
                saved = time.monotonic()
    if checkpoint is not None:
        state.save(checkpoint)
    return "steps"


class _Training:
    """Hold network, optimiser and the best weights so far; can be saved and resumed."""

    def __init__(self, network: nn.Module, steps: int, learning_rate: float) -> None:
        self.network, self.steps = network, steps
        self.optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
        self.learning_rate = learning_rate
        self.losses: list[float] = []
        self.best, self.best_loss = _values(network), math.inf

    def step(self, loss: Tensor) -> None:
        """Take one step, and keep the weights at which the loss was taken if it is the least of the second half."""
        value = float(loss.detach())
        count = len(self.losses)
        if count >= self.steps // 2 and value < self.best_loss:
            self.best, self.best_loss = _values(self.network), value
        share = 0.5 * (1 + math.cos(math.pi * count / self.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * share)
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()
        self.losses.append(value)

    def save(self, path: Path) -> None:
        tensors = {f"network.{name}": value for name, value in _values(self.network).items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for index, entry in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": torch.as_tensor(value) for name, value in entry.items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors["random"] = torch.get_rng_state()
        header = {"steps": self.steps, "best_loss": self.best_loss, "learning_rate": self.learning_rate}
        save_tensors(path, "deep-image-prior", header, tensors, keep_previous=True)

    def load(self, path: Path) -> None:
        _, header, tensors = load_tensors(path, ("deep-image-prior",))
        if (header["steps"], header["learning_rate"]) != (self.steps, self.learning_rate):
            raise ModelMismatchError(
                f"{path} is a training of {header['steps']} steps at rate {header['learning_rate']:g}, not of "
                f"{self.steps} at {self.learning_rate:g}; remove it to start anew."
            )
        try:
            self.network.load_state_dict(split_prefix(tensors, "network."))
        except RuntimeError as error:
            raise ModelMismatchError(f"{path} is of another network; remove it to start anew.") from error
        self.best, self.best_loss = split_prefix(tensors, "best."), header["best_loss"]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in split_prefix(tensors, "adam.").items():
            index, name = key.split(".")
            state.setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.losses = tensors["losses"].tolist()
        torch.set_rng_state(tensors["random"])


def _collapsed(image: Tensor, ends: tuple[float, float], residual: float, data: Tensor) -> bool:
    """Return whether all pixels are at the same end of the range and explain less than half of the data."""
    values = image.detach()
    saturated = float(values.max()) < ends[0] or float(values.min()) > ends[1]
    return saturated and residual > 0.5 * float(data.square().mean())


def _values(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of a network's weights and buffers."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
