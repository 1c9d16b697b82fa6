"""Models that the tasks accept because they have the three methods, not because of what they inherit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marquis.autoencoders import Estimate, Reconstruction


def estimate(draws: Tensor, keep: bool, noise: Tensor | None = None) -> Estimate:
    """From draws [S, B, ...], by the textbook formulas."""
    variance = draws.var(0) if len(draws) > 1 else torch.zeros_like(draws[0])
    return Estimate(
        mean=draws.mean(0),
        variance=variance,
        draws=len(draws),
        noise_variance=noise,
        samples=draws if keep else None,
    )


class LinearModel:
    """Encoder and decoder matrices with normal noise on both; `calls` says what it was asked.

    The draws come from the generator; `scale=0` makes all of them the same network.
    """

    def __init__(self, encoder: Tensor, decoder: Tensor, scale: float = 0.0, noise_variance: float = 1.0) -> None:
        self.encoder, self.decoder, self.scale, self.noise_variance = encoder, decoder, scale, noise_variance
        self.calls: list[tuple[str, int, Tensor]] = []

    def networks(self, samples: int, generator: torch.Generator | None) -> list[tuple[Tensor, Tensor]]:
        def near(weights: Tensor) -> Tensor:
            noise = torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
            return weights + self.scale * noise

        return [(near(self.encoder), near(self.decoder)) for _ in range(samples)]

    def encode(self, x, samples=100, *, generator=None, keep=False):
        self.calls.append(("encode", samples, x))
        return estimate(torch.stack([x.flatten(1) @ e.T for e, _ in self.networks(samples, generator)]), keep)

    def decode(self, z, samples=100, *, generator=None, keep=False):
        return estimate(torch.stack([z @ d.T for _, d in self.networks(samples, generator)]), keep)

    def reconstruct(self, x, samples=100, *, generator=None, keep=False):
        self.calls.append(("reconstruct", samples, x))
        networks = self.networks(samples, generator)
        codes = torch.stack([x.flatten(1) @ e.T for e, _ in networks])
        outputs = torch.stack([(z @ d.T).view_as(x) for z, (_, d) in zip(codes, networks, strict=True)])
        precision = 1 / self.noise_variance
        density = -0.5 * precision * (outputs - x).square().flatten(2).sum(2)
        density = density + 0.5 * x[0].numel() * math.log(precision / (2 * math.pi))
        noise = torch.full_like(x, self.noise_variance)
        return Reconstruction(
            **vars(estimate(outputs, keep, noise)),
            latent=estimate(codes, keep),
            log_prob=density.logsumexp(0) - math.log(samples),
            expected_log_prob=density.mean(0),
        )


def projector(rank: int = 3, width: int = 8, scale: float = 0.0, seed: int = 0) -> tuple[LinearModel, Tensor]:
    """f(x) = P x with an orthogonal projection P of float64; the model and P."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(width, rank, generator=generator, dtype=torch.float64)).Q
    return LinearModel(basis.T.contiguous(), basis, scale), basis @ basis.T
