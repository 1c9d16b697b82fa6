"""Which weights make a variance separate in- from out-of-distribution: posterior samples that perturb one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder
from marquis.autoencoders.predictions import Moments
from marquis.tasks.ranking import auroc

SCALES = (0.1, 10.0)
"""Factors on the standard deviations of all weights; 0.1 is close to the linearised variance."""


@torch.no_grad()
def by_layer(
    autoencoder: LaplacianAutoencoder, inside: Tensor, outside: Tensor, samples: int, generator: torch.Generator
) -> list[dict[str, Any]]:
    """Compute AUROC and mean of the code's and the output's variance, for all weights and for one layer at a time.

    For small standard deviations the variances of single layers add up to that of all, so that their sizes say which
    layer a score comes from. Cost: `samples` passes over both sets for every layer.

    Args:
        autoencoder: A trained Laplacian autoencoder.
        inside: In-distribution data.
        outside: Out-of-distribution data.
        samples: Number of posterior samples; the same for all layers.
        generator: Random generator of the samples.
    """
    assert autoencoder.online is not None
    means = {
        name: value.detach()
        for name, value in autoencoder.named_parameters()
        if name.startswith(("encoder.", "decoder."))
    }
    drawn = [autoencoder.online.draw(generator) for _ in range(samples)]
    offsets = [{name: one[name] - means[name] for name in means} for one in drawn]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in means))
    x, split = torch.cat([inside, outside]), len(inside)

    def perturbed(what: str, weights: int, scale: float, moved: Callable[[str], bool]) -> dict[str, Any]:
        chosen = [{n: scale * d for n, d in one.items() if moved(n)} for one in offsets]
        code, output = _variances(autoencoder, x, means, chosen)
        row: dict[str, Any] = {"what": what, "weights": weights, "scale": scale}
        for name, variance in (("latent", code), ("output", output)):
            row[f"{name}_auroc"] = auroc(variance[:split], variance[split:])
            row[f"{name}_inside"] = float(variance[:split].mean())
            row[f"{name}_outside"] = float(variance[split:].mean())
        return row

    everything = sum(value.numel() for value in means.values())
    rows = [perturbed("all", everything, scale, lambda name: True) for scale in (1.0, *SCALES)]
    for layer in layers:
        size = sum(value.numel() for name, value in means.items() if name.rpartition(".")[0] == layer)
        rows.append(perturbed(layer, size, 1.0, lambda name, layer=layer: name.rpartition(".")[0] == layer))
    return rows


def _variances(
    autoencoder: LaplacianAutoencoder, x: Tensor, means: Mapping[str, Tensor], offsets: list[dict[str, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Compute the variance over posterior samples of code and output, each summed over its entries."""
    codes, outputs = Moments(), Moments()
    for one in offsets:
        draw = autoencoder.draw_at({name: value + one[name] if name in one else value for name, value in means.items()})
        code = draw.encode(x)
        codes.add(code)
        outputs.add(draw.decode(code).mean)
    return codes.variance.flatten(1).sum(1), outputs.variance.flatten(1).sum(1)
