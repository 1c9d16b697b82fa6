"""Evaluation of posteriors on images: one set of weight samples serves several temperatures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from marquis.autoencoders import Autoencoder
from marquis.functional.linearise import Linearisation, Weights
from marquis.io.tensors import split_prefix
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Hold what a posterior predicts for some images.

    Attributes:
        mean: Mean output `[n, ...]`.
        variance: Variance of the output over samples.
        noise_variance: Noise variance, averaged over samples.
        latent_variance: Variance of the code over samples, summed over the code `[n]`.
        error: Squared error of sampled networks, averaged over samples `[n]`.
        squares: Squared error of every output, averaged over samples and images.
        log_prob: Log-density of each image under the mixture of samples with their noise `[n]`.
        log_prob_equal: The same with the noise that was passed to `evaluate_posterior`; None without one.
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor
    latent_variance: Tensor
    error: Tensor
    squares: Tensor
    log_prob: Tensor
    log_prob_equal: Tensor | None

    def scores(self) -> dict[str, Tensor]:
        """Return the outlier scores of criterion 2, `[n]` each."""
        scores = {
            "error": self.error,
            "nll": -self.log_prob,
            "output_variance": self.variance.flatten(1).sum(1),
            "latent_variance": self.latent_variance,
        }
        ranks = [score.argsort().argsort().double() for score in scores.values()]
        return {**scores, "mean_rank": torch.stack(ranks).mean(0)}


class _Sums:
    """Sum over samples, around the outputs of the mean weights."""

    def __init__(self, x: Tensor, likelihood: Likelihood, centre: tuple[Tensor, Tensor], noise: Tensor | None) -> None:
        self.x, self.likelihood, self.count = x, likelihood, 0
        self.noise = None if noise is None else noise.to(x)  # learnt online in float64
        self.code, self.output = centre[0], likelihood.predictive_at(centre[1]).mean
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.code_first, self.code_second = torch.zeros_like(self.code), torch.zeros_like(self.code)
        self.noise_variance, self.squares = torch.zeros_like(x), torch.zeros_like(x)
        self.log_prob = self.equal = torch.full((len(x),), -math.inf)

    def add(self, code: Tensor, f: Tensor) -> None:
        self.count += 1
        at = self.likelihood.predictive_at(f)
        assert at.noise_variance is not None
        change, code_change = at.mean - self.output, code - self.code
        self.first += change
        self.second.addcmul_(change, change)
        self.code_first += code_change
        self.code_second.addcmul_(code_change, code_change)
        self.noise_variance += at.noise_variance
        squares = (self.x - at.mean).square_()
        self.squares += squares
        self.log_prob = torch.logaddexp(self.log_prob, self.likelihood.log_prob(f, self.x))
        if self.noise is not None:
            constant = 0.5 * float((self.noise / (2 * math.pi)).log().sum())
            self.equal = torch.logaddexp(self.equal, constant - 0.5 * squares.flatten(1) @ self.noise.flatten())

    def evaluation(self, linear: bool) -> Evaluation:
        """Return the moments; those of a linear function are taken around its known mean."""
        n = self.count
        around = 0.0 if linear else 1.0
        left = n if linear else n - 1

        def variance(first: Tensor, second: Tensor) -> Tensor:
            return ((second - around * first.square() / n) / left).clamp_min(0)

        return Evaluation(
            mean=self.output if linear else self.output + self.first / n,
            variance=variance(self.first, self.second),
            noise_variance=self.noise_variance / n,
            latent_variance=variance(self.code_first, self.code_second).flatten(1).sum(1),
            error=self.squares.flatten(1).sum(1) / n,
            squares=self.squares.mean(0) / n,
            log_prob=self.log_prob - math.log(n),
            log_prob_equal=None if self.noise is None else self.equal - math.log(n),
        )


@torch.no_grad()
def evaluate_posterior(
    model: Autoencoder,
    posterior: Posterior,
    likelihood: Likelihood,
    x: Tensor,
    temperatures: Sequence[float],
    linear: bool,
    samples: int,
    noises: Sequence[Tensor | None] | None = None,
) -> list[Evaluation]:
    """Evaluate a posterior at several temperatures with the same standard normal numbers.

    A posterior at temperature T has `T` times the covariance, so a sample at T is `sqrt(T)` times as far from the mean;
    a linearised output then changes `sqrt(T)` times as much, and one product serves all temperatures.

    Args:
        model: The networks at their mean weights.
        posterior: Posterior at temperature 1, over `encoder.*` and `decoder.*`.
        likelihood: Likelihood with its noise.
        x: Images `[n, ...]`.
        temperatures: Posterior temperatures.
        linear: Whether the network is linearised at the mean weights.
        samples: Number of weight samples.
        noises: For each temperature a noise precision per output for `log_prob_equal`, or None.
    """
    generator = torch.Generator().manual_seed(0)
    tangent = Linearisation(dict(posterior.mean), samples * len(x) // 500)
    centre = _code_and_output(model, posterior.mean, x)
    noises = [None] * len(temperatures) if noises is None else noises
    sums = [_Sums(x, likelihood, centre, noise) for noise in noises]

    def function(weights: Weights, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return _code_and_output(model, weights, inputs)

    for _ in range(samples):
        moved = posterior.deviations_from(posterior.noise(1, generator))
        step = {name: value[0] for name, value in moved.items()}
        along = tangent.along(function, x, step) if linear else centre
        for temperature, total in zip(temperatures, sums, strict=True):
            scale = math.sqrt(temperature)
            if linear:
                code, f = (start + scale * (end - start) for start, end in zip(centre, along, strict=True))
            else:
                weights = {name: posterior.mean[name] + scale * value for name, value in step.items()}
                code, f = _code_and_output(model, weights, x)
            total.add(code, f)
    return [total.evaluation(linear) for total in sums]


def _code_and_output(model: Autoencoder, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return code and decoder output at these weights."""
    encoder, decoder = (split_prefix(weights, part) for part in ("encoder.", "decoder."))
    code = functional_call(model.encoder, encoder, (x,))
    return code, functional_call(model.decoder, decoder, (code,))
