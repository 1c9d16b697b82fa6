"""From a posterior over weights to predictions: closed form, JVP samples, sampled networks.

`predict` is the front door for a batch, `predict_loader` for a data set; both return a `Prediction`. They need a
`Posterior` and a network only, whoever made the posterior.
"""

from __future__ import annotations

from marquis.predictive.dispatch import METHODS, predict, predict_loader
from marquis.predictive.function import NetworkFunction
from marquis.predictive.jacobian import jacobian
from marquis.predictive.links import LINKS
from marquis.predictive.prediction import Prediction
from marquis.predictive.sampling import WeightSamples

__all__ = [
    "LINKS",
    "METHODS",
    "NetworkFunction",
    "Prediction",
    "WeightSamples",
    "jacobian",
    "predict",
    "predict_loader",
]
