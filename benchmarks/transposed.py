"""Kronecker factors of transposed convolutions over input and over output positions: which is nearer to the exact block.

`python -m benchmarks.transposed` prints the table of docs/method/kronecker.md#convolutions: small decoders of
scikit-learn's digits, random and after 600 steps of Adam, curvature of 40 images in float64.
"""

# ruff: noqa: E501 (a table: one decoder per line)

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.curvature import ggn
from marquis.curvature.ops import transposed_convolution

T = nn.ConvTranspose2d
# fmt: off
DECODERS: dict[str, Callable[[], list[nn.Module]]] = {
    "4/2/1, 4/2/1": lambda: [nn.Linear(16, 16), nn.Tanh(), nn.Unflatten(1, (4, 2, 2)), T(4, 4, 4, 2, 1), nn.Tanh(), T(4, 1, 4, 2, 1)],
    "3/2/1+1, 3/2/1+1": lambda: [nn.Linear(16, 16), nn.Tanh(), nn.Unflatten(1, (4, 2, 2)), T(4, 4, 3, 2, 1, 1), nn.Tanh(), T(4, 1, 3, 2, 1, 1)],
    "2/2/0, 2/2/0": lambda: [nn.Linear(16, 16), nn.Tanh(), nn.Unflatten(1, (4, 2, 2)), T(4, 4, 2, 2), nn.Tanh(), T(4, 1, 2, 2)],
    "3/1/1, 4/2/1": lambda: [nn.Linear(16, 64), nn.Tanh(), nn.Unflatten(1, (4, 4, 4)), T(4, 4, 3, 1, 1), nn.Tanh(), T(4, 1, 4, 2, 1)],
    "4/1/0 (1x1), 3/1/1, 4/2/1": lambda: [nn.Linear(16, 8), nn.Tanh(), nn.Unflatten(1, (8, 1, 1)), T(8, 4, 4), nn.Tanh(), T(4, 3, 3, 1, 1), nn.Tanh(), T(3, 1, 4, 2, 1)],
    "4/2/1, 4/2/1, convolution": lambda: [nn.Linear(16, 16), nn.Tanh(), nn.Unflatten(1, (4, 2, 2)), T(4, 4, 4, 2, 1), nn.ReLU(), T(4, 4, 4, 2, 1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1)],
}
# fmt: on


def trained(make: Callable[[], list[nn.Module]], images: Tensor, likelihood: str, steps: int) -> nn.Module:
    """Return an autoencoder after some steps of Adam on its own likelihood."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), *make()).double()
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(steps):
        x = images[torch.randint(len(images), (64,))]
        y = network(x)
        loss = (
            (y - x).square() if likelihood == "gaussian" else F.binary_cross_entropy_with_logits(y, x, reduction="none")
        )
        optimiser.zero_grad()
        (loss.sum() / 64).backward()
        optimiser.step()
    return network.eval()


def distances(network: nn.Module, x: Tensor, likelihood: str) -> list[tuple[float, float]]:
    """Return how far both forms are from the exact block of every layer, relative in Frobenius norm."""
    weights = [f"{name}.weight" for name, layer in network.named_modules() if isinstance(layer, T)]
    found = []
    for name in weights:
        exact = ggn(network, x, likelihood, "full", parameters=[name]).to_dense()
        pair = []
        for form in (transposed_convolution._over_input_positions, transposed_convolution._over_output_positions):
            names = ("_over_input_positions", "_over_output_positions")
            with mock.patch.multiple(transposed_convolution, **dict.fromkeys(names, form)):
                near = ggn(network, x, likelihood, "kronecker", parameters=[name]).to_dense()
            pair.append(float((near - exact).norm() / exact.norm()))
        found.append((pair[0], pair[1]))
    return found


def main() -> None:
    """Print one row per layer."""
    images = torch.tensor(load_digits().images / 16.0).unsqueeze(1)
    print("| kernel/stride/padding | layer | likelihood | random: input, output | trained: input, output |")
    print("| --- | --- | --- | ---: | ---: |")
    for name, make in DECODERS.items():
        for likelihood in ("gaussian", "bernoulli"):
            columns = []
            for steps in (0, 600):
                network = trained(make, images, likelihood, steps)
                columns.append(distances(network, images[torch.randperm(len(images))[:40]], likelihood))
            for layer, (random, after) in enumerate(zip(*columns, strict=True)):
                cells = " | ".join(f"{a:.3f}, {b:.3f}" for a, b in (random, after))
                print(f"| {name} | {layer + 1} | {likelihood} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
