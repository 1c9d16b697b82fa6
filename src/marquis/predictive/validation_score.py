"""Score how well a posterior predicts held-out data: the objective of a grid over priors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.distributed import sum_of_shares
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.functional.jacobian import jacobian
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.linearised import COVARIANCE_OUTPUTS
from marquis.predictive.links import linked
from marquis.predictive.predict import predict
from marquis.predictive.prediction import Prediction

STORED_BYTES = 2**29
"""Bytes of Jacobians that are kept between calls; beyond, they are computed anew each time."""


@dataclass(frozen=True, eq=False)
class _Batch:
    x: Any
    y: Tensor
    mean: Tensor | None
    jacobian: Tensor | None


class ValidationScore:
    """Compute the mean log predictive density of labelled data under a posterior, linearised.

    The Jacobians do not depend on prior and noise, so they are computed once and kept while they fit.
    """

    def __init__(self, model: Model, posterior: Posterior, loader: Iterable[Any], shared: bool = False) -> None:
        self._model, self._shared = model, shared
        function = PosteriorFunction(model, posterior)
        left = STORED_BYTES
        device = next(iter(posterior.mean.values())).device
        self._batches: list[_Batch] = []
        for x, y, _ in read_batches(loader, device, labels_for="the validation score"):
            mean = function.at_point(x)
            size = mean.numel() * posterior.layout.total * mean.element_size()
            if mean[0].numel() <= COVARIANCE_OUTPUTS and size <= left:
                left -= size
                self._batches.append(_Batch(x, y, mean, jacobian(function, x)))
            else:
                self._batches.append(_Batch(x, y, None, None))
        if not self._batches and not shared:
            raise DataError("the loader of validation data is empty.")

    def __call__(self, posterior: Posterior, likelihood: Likelihood) -> float:
        """Return the mean log predictive density; larger is better."""

        def share() -> list[Tensor]:
            values = [self._prediction(batch, posterior, likelihood).log_prob(batch.y) for batch in self._batches]
            sums = (sum(float(v.double().sum()) for v in values), sum(map(len, values)))
            return [torch.tensor(sums, dtype=torch.float64)]

        total, count = sum_of_shares(share, self._shared)[0].tolist()
        if not count:
            raise DataError("the loader of validation data is empty.")
        return total / count

    def _prediction(self, batch: _Batch, posterior: Posterior, likelihood: Likelihood) -> Prediction:
        """Return the prediction of a batch, from its Jacobian where that was kept."""
        if batch.jacobian is None or batch.mean is None:
            same = torch.Generator().manual_seed(0)  # the same samples for every prior, if there are any
            return predict(posterior, self._model, batch.x, likelihood, diagonal=None, generator=same)
        covariance = posterior.precision.quadratic(batch.jacobian)
        variance = covariance.diagonal(dim1=-2, dim2=-1).reshape(batch.mean.shape).to(batch.mean.dtype)
        predictive = linked(likelihood, batch.mean, variance, covariance, None)
        return Prediction(*predictive, likelihood=likelihood)
