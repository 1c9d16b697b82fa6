"""Networks of studies: builders from a seed, and trained networks that are kept as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors
from marquis.randomness import seeded

_KIND = "trained-network"
EDGE = 28
"""Pixels along a side of the image networks' inputs."""


def trained(
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    build: Callable[[], nn.Module],
    train: Callable[[nn.Module], None],
) -> nn.Module:
    """Return a trained network in evaluation mode, from the folder if it was trained before with the same settings.

    Args:
        folder: Folder of the networks; studies that share networks use the same one.
        name: Beginning of the file's name, which also holds a digest of the settings.
        settings: All that the weights depend on (data, sizes, optimiser, seed), as JSON values.
        build: Function that returns the untrained network.
        train: Function that trains it in place.
    """
    identity = json.dumps(dict(settings), sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.safetensors"
    network = build()
    try:
        _, _, tensors = load_tensors(path, (_KIND,))
        network.load_state_dict(tensors)
    except DataError:  # missing, or cut short when the machine stopped
        train(network)
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(path, _KIND, {"settings": json.loads(identity)}, network.state_dict())
    return network.eval()


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: type[nn.Module] = nn.Tanh, seed: int = 0
) -> nn.Sequential:
    """Return an untrained multi-layer perceptron in double precision."""
    with seeded(seed):
        return nn.Sequential(*_dense(inputs, hidden, outputs, activation)).double().eval()


def image_network(kind: str, shape: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an untrained "cnn" or "mlp" of these widths for 28 x 28 images and ten classes."""
    return {"cnn": image_cnn, "mlp": image_mlp}[kind](**shape, seed=seed)


def image_mlp(hidden: Sequence[int] = (200, 200), seed: int = 0) -> nn.Sequential:
    """Return an untrained perceptron with ReLU for 28 x 28 images and ten classes."""
    with seeded(seed):
        return nn.Sequential(nn.Flatten(), *_dense(EDGE * EDGE, hidden, 10, nn.ReLU)).eval()


def image_cnn(channels: Sequence[int] = (24, 32, 64), hidden: Sequence[int] = (64, 64), seed: int = 0) -> nn.Sequential:
    """Return three untrained convolutions and three dense layers with ReLU, for 28 x 28 images and ten classes.

    The tutorial's number of layers, narrower. Convolutions are stored with the channels last, which halves the time on
    a CPU.

    Args:
        channels: Channels of the three convolutions.
        hidden: Widths of the two hidden dense layers.
        seed: Seed of the initial weights.
    """
    a, b, c = channels
    with seeded(seed):
        network = nn.Sequential(
            nn.Conv2d(1, a, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(a, b, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(b, c, 3),
            nn.ReLU(),
            nn.Flatten(),
            *_dense(9 * c, hidden, 10, nn.ReLU),
        )
    return network.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]


def _dense(inputs: int, hidden: Sequence[int], outputs: int, activation: type[nn.Module]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), activation()]
        inputs = width
    return [*layers, nn.Linear(inputs, outputs)]
