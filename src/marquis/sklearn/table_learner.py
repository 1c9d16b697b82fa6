"""`OnlineLaplace` for the small networks of tables, with forward pass and curvature written out.

On a table of a few hundred rows a step is all overhead: a hundred operations on little matrices, and around them the
machinery that finds out what an arbitrary network does. Here it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marquis.online import OnlineLaplace
from marquis.structures import Diagonal, Structure

SLOPES: dict[type[nn.Module], Callable[[Tensor], Tensor] | None] = {
    nn.Tanh: lambda y: 1 - y * y,
    nn.ReLU: lambda y: (y > 0).to(y.dtype),
    nn.Identity: None,
}
"""Derivative of an activation as a function of its value; None for one."""


@dataclass(frozen=True)
class _Layer:
    """`activation(x W^T + b)`.

    Attributes:
        name: Of the linear layer in the whole network.
        activation: After it; None for the last one of a perceptron.
    """

    name: str
    activation: nn.Module | None


def can_be_written_out(*networks: nn.Module) -> bool:
    """Whether these are perceptrons of `marquis.sklearn.network` whose slopes are known."""
    return all(
        isinstance(network, nn.Sequential) and all(type(part) is nn.Linear or type(part) in SLOPES for part in network)
        for network in networks
    )


class TableLearner(OnlineLaplace):
    """`OnlineLaplace` with the exact diagonal for `decoder(encoder(x))`, both perceptrons, and a Gaussian likelihood.

    The same draws, losses, gradients and curvature to rounding, for about a third of the time on small tables.
    Cost of the curvature: `columns` backward passes in one.

    Args:
        network: `marquis.autoencoders.EncoderDecoder` of two perceptrons for which `can_be_written_out`.
        **options: Of `OnlineLaplace`.
    """

    def __init__(self, network: nn.Module, **options: Any) -> None:
        self._own: dict[str, Tensor] | None = None
        super().__init__(network, "gaussian", "diagonal", "exact", **options)
        self._layers = list(_layers(network))

    def means(self) -> dict[str, Tensor]:
        """The uncertain parameters themselves, which are always the same objects."""
        if self._own is None:
            self._own = super().means()
        return self._own

    def outputs(self, theta: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network at these weights, `[B, columns]`."""
        return self._run(theta, x)[-1]

    def _run(self, theta: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        """The inputs of all layers, then the outputs."""
        found = [x]
        for layer in self._layers:
            x = nn.functional.linear(x, theta[f"{layer.name}.weight"], theta[f"{layer.name}.bias"])
            x = x if layer.activation is None else layer.activation(x)
            found.append(x)
        return found

    def _forward(
        self, x: Any, theta: dict[str, Tensor], mask: Tensor | None, with_curvature: bool
    ) -> tuple[Tensor, Any]:
        values = self._run(theta, x)
        return values[-1], (lambda: self._diagonal(theta, values, mask)) if with_curvature else None

    @torch.no_grad()
    def _diagonal(self, theta: Mapping[str, Tensor], values: list[Tensor], mask: Tensor | None) -> Structure:
        """`sum_n sum_o (∂f_no/∂θ)²` over observed outputs (methods.md 1.3 at unit noise).

        `G [B, outputs, units]` are the derivatives of the outputs by the units of a layer; the squares of weight
        `W_ij` are `sum_n (sum_o G_noi²) x_nj²`.
        """
        f = values[-1]
        root = torch.ones_like(f) if mask is None else mask.to(f.dtype)
        rows: Tensor | None = None  # G of the layer above; None stands for the diagonal matrix of `root`
        found: dict[str, Tensor] = {}
        for number in range(len(self._layers) - 1, -1, -1):
            layer, x, y = self._layers[number], values[number], values[number + 1]
            slope = None if layer.activation is None else SLOPES[type(layer.activation)]
            if rows is not None and slope is not None:
                rows = rows * slope(y)[:, None]
            squares = root * root if rows is None else rows.square().sum(1)
            found[f"{layer.name}.weight"] = squares.T @ x.square()
            found[f"{layer.name}.bias"] = squares.sum(0)
            weight = theta[f"{layer.name}.weight"]
            if number:
                rows = root[:, :, None] * weight if rows is None else rows @ weight
        return Diagonal(self.layout, self.layout.flatten(found))


def _layers(network: nn.Module) -> Iterator[_Layer]:
    for half in ("encoder", "decoder"):
        parts = list(network.get_submodule(half).named_children())
        for place, (name, part) in enumerate(parts):
            if isinstance(part, nn.Linear):
                following = parts[place + 1][1] if place + 1 < len(parts) else None
                yield _Layer(f"{half}.{name}", None if isinstance(following, nn.Linear) else following)
