"""Offer estimators that behave as scikit-learn's own, with uncertainty: fit, predict, pipelines, grid search."""

from __future__ import annotations

from marquis.sklearn.autoencoder import LaplacianAutoencoder
from marquis.sklearn.classifier import LaplaceClassifier
from marquis.sklearn.imputer import LaplacianImputer
from marquis.sklearn.regressor import LaplaceRegressor

__all__ = ["LaplaceClassifier", "LaplaceRegressor", "LaplacianAutoencoder", "LaplacianImputer"]
