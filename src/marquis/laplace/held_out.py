"""Choose the posterior temperature by held-out data, and measure how well they are predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.distributed import sum_of_shares
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.notebook import ShownAsText
from marquis.posterior import Posterior
from marquis.predictive import predict
from marquis.predictive.links import linked, point
from marquis.predictive.prediction import Prediction

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Posterior temperatures to choose from: none above 1, as what is to be mended is a posterior that is too wide."""

UNCHECKED = (
    "the predictive density was not checked on unseen data, and by the evidence alone a posterior can be too wide on "
    "small or separable data; pass tune(validation=loader), or tune('loo')."
)


@dataclass(frozen=True)
class HeldOut(ShownAsText):
    """Hold the mean log predictive density of unseen examples, in nats.

    Attributes:
        network: of the network alone, without uncertainty of its weights.
        before: of the posterior before tuning.
        after: of the posterior after tuning.
        scores: of the tuned posterior at every temperature.
        by: which examples, for instance "validation data".
    """

    network: float
    before: float
    after: float
    scores: dict[float, float]
    by: str

    @property
    def posterior_temperature(self) -> float:
        """Return the temperature of the largest density; the warmest of equal ones."""
        return max(self.scores, key=lambda t: (self.scores[t], t))

    def __str__(self) -> str:
        """Return one line for the table of `tune`."""
        return (
            f"log density of {self.by}, per example: {self.before:.4f} before, {self.after:.4f} after at posterior "
            f"temperature {self.posterior_temperature:g}, network alone {self.network:.4f}"
        )


PredictedBatch = tuple[Tensor, Tensor, "Tensor | None", Tensor]
"""Mean, variance, covariance (if known) and labels of some examples."""


def predictions(
    posterior: Posterior, model: Model, likelihood: Likelihood, loader: Iterable[Any], device: torch.device
) -> Iterator[PredictedBatch]:
    """Yield linearised predictions of labelled batches."""
    for x, y, _ in read_batches(loader, device, labels_for="the held-out density"):
        prediction = predict(posterior, model, x, likelihood, generator=torch.Generator().manual_seed(0))
        yield prediction.mean, prediction.variance, prediction.covariance, y


def densities(
    likelihood: Likelihood, batches: Iterable[PredictedBatch], temperatures: Sequence[float], shared: bool = False
) -> dict[float, float]:
    """Return the mean log predictive density at every factor of the covariance; 0 is the network alone.

    With `shared`, the batches are one process's share and the mean is over all processes.

    Raises:
        DataError: there are no examples.
    """

    def share() -> list[Tensor]:
        sums = torch.zeros(len(temperatures) + 1, dtype=torch.float64)
        for mean, variance, covariance, y in batches:
            sums[-1] += len(y)
            for i, t in enumerate(temperatures):
                tempered = None if covariance is None else (t * covariance).to(mean.dtype)
                predictive = linked(likelihood, mean, t * variance, tempered, None) if t else point(likelihood, mean)
                sums[i] += float(Prediction(*predictive, likelihood=likelihood).log_prob(y).double().sum())
        return [sums]

    *totals, count = sum_of_shares(share, shared)[0].tolist()
    if count == 0:
        raise DataError("there are no held-out examples to choose the posterior temperature by.")
    return {t: total / count for t, total in zip(temperatures, totals, strict=True)}


def choose_temperature(
    likelihood: Likelihood, batches: Iterable[PredictedBatch], by: str, before: float | None, shared: bool = False
) -> HeldOut:
    """Return the density of unseen examples at every temperature; `before` is that before tuning, if it is known."""
    scores = densities(likelihood, batches, (0.0, *TEMPERATURES), shared)
    network = scores.pop(0.0)
    return HeldOut(network, scores[1.0] if before is None else before, max(scores.values()), scores, by)
