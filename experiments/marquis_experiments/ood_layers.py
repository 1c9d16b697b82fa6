"""Which weights make a variance tell inside from outside: draws that move one layer and leave the others alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder
from marquis.autoencoders.estimate import Moments
from marquis.tasks.ranking import auroc

SCALES = (0.1, 10.0)
"""Factors on the standard deviations of all weights: 0.1 is close to the linearised variance."""


@torch.no_grad()
def by_layer(
    own: LaplacianAutoencoder, inside: Tensor, outside: Tensor, samples: int, generator: torch.Generator
) -> list[dict[str, Any]]:
    """AUROC and mean of the code's and the output's variance, for all weights and for one layer at a time.

    For small deviations the variances of single layers add up to that of all, so that their sizes say which layer the
    model's verdict comes from. Cost: `samples` passes over both sets for every layer.

    Args:
        own: A trained Laplacian autoencoder.
        inside: Data from the training distribution.
        outside: Data from elsewhere.
        samples: Draws; the same for all layers.
        generator: For the draws.
    """
    assert own.online is not None
    means = {
        name: value.detach() for name, value in own.named_parameters() if name.startswith(("encoder.", "decoder."))
    }
    draws = [own.online.draw(generator) for _ in range(samples)]
    away = [{name: draw[name] - means[name] for name in means} for draw in draws]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in means))
    x, split = torch.cat([inside, outside]), len(inside)

    def row(what: str, weights: int, scale: float, moved: Callable[[str], bool]) -> dict[str, Any]:
        code, output = _variances(own, x, means, [{n: scale * d for n, d in one.items() if moved(n)} for one in away])
        found: dict[str, Any] = {"what": what, "weights": weights, "scale": scale}
        for name, variance in (("latent", code), ("output", output)):
            found[f"{name}_auroc"] = auroc(variance[:split], variance[split:])
            found[f"{name}_inside"] = float(variance[:split].mean())
            found[f"{name}_outside"] = float(variance[split:].mean())
        return found

    everything = sum(value.numel() for value in means.values())
    rows = [row("all", everything, scale, lambda name: True) for scale in (1.0, *SCALES)]
    for layer in layers:
        size = sum(value.numel() for name, value in means.items() if name.rpartition(".")[0] == layer)
        rows.append(row(layer, size, 1.0, lambda name, layer=layer: name.rpartition(".")[0] == layer))
    return rows


def _variances(
    own: LaplacianAutoencoder, x: Tensor, means: Mapping[str, Tensor], away: list[dict[str, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Variance over the draws of code and output, each summed over its entries."""
    codes, outputs = Moments(), Moments()
    for one in away:
        draw = own.draw_at({name: value + one[name] if name in one else value for name, value in means.items()})
        code = draw.encode(x)
        codes.add(code)
        outputs.add(draw.decode(code).mean)
    return codes.variance.flatten(1).sum(1), outputs.variance.flatten(1).sum(1)
