"""Predict from a posterior over weights: in closed form, by JVP samples, or by sampled networks.

`predict` is the front door for a batch, `predict_loader` for a data set; both return a `Prediction`. They need a
`Posterior` and a network only, whoever made the posterior.
"""

from __future__ import annotations

from marquis.lazy import lazy_names
from marquis.predictive.links import LINKS
from marquis.predictive.predict import METHODS, predict, predict_loader
from marquis.predictive.prediction import Prediction

__all__ = ["LINKS", "METHODS", "Prediction", "predict", "predict_loader"]

# Internals, which were public once.
__getattr__ = lazy_names(
    __name__,
    {"PosteriorFunction": "function", "WeightSamples": "sampling", "jacobian": "validation_score"},
    {"NetworkFunction": "PosteriorFunction"},
)
