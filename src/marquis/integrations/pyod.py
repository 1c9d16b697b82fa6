"""Offer the outlier scores of `marquis.sklearn.LaplacianAutoencoder` as a detector of PyOD (`marquis[pyod]`)."""

from __future__ import annotations

from typing import Any

from marquis.arguments import describe_value
from marquis.errors import DataError
from marquis.sklearn import LaplacianAutoencoder

try:
    from pyod.models.base import BaseDetector
except ImportError as missing:
    raise ImportError("marquis.integrations.pyod needs PyOD: pip install 'marquis[pyod]'") from missing


class LaplacianDetector(BaseDetector):
    """Serve `LaplacianAutoencoder` with PyOD's interface: larger scores for outliers, labels 0 and 1 (outlier).

    `fit`, `decision_function`, `decision_scores_`, `labels_`, `threshold_`, `predict`, `predict_proba` and
    `predict(return_confidence=True)` are PyOD's. Missing values are allowed. `explain(X)` says which columns made a row
    an outlier.

    Args:
        contamination: Fraction of the training rows that are outliers, which sets the threshold.
        **options: Parameters of `LaplacianAutoencoder`, such as `n_components` and `random_state`.

    Attributes:
        estimator_: The fitted `LaplacianAutoencoder`.
    """

    def __init__(self, contamination: float = 0.1, **options: Any) -> None:
        super().__init__(contamination=contamination)
        self.options = options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, those of the autoencoder among them."""
        return {"contamination": self.contamination, **self.options}

    def set_params(self, **params: Any) -> LaplacianDetector:
        """Set parameters by name; returns itself."""
        self.contamination = params.pop("contamination", self.contamination)
        self.options = {**self.options, **params}
        return self

    def fit(self, X: Any, y: Any = None) -> Any:
        """Learn from rows `[N, columns]`; `y` is ignored, as unsupervised detectors of PyOD do."""
        if not isinstance(self.contamination, (int, float)) and not hasattr(self.contamination, "fit"):
            raise DataError(
                f"contamination is {describe_value(self.contamination)}; a share, or a threshold of PyThresh."
            )
        self._set_n_classes(y.detach() if hasattr(y, "detach") else y)
        share = {"contamination": float(self.contamination)} if isinstance(self.contamination, (int, float)) else {}
        self.estimator_ = LaplacianAutoencoder(**{**self.options, **share}).fit(X)
        self.decision_scores_ = -self.estimator_.score_samples(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the outlier score of each row, `[N]`: minus its log pseudo-likelihood."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, ["decision_scores_", "threshold_", "labels_"])
        return -self.estimator_.score_samples(X)

    def explain(self, X: Any, level: float = 0.9) -> Any:
        """Return what every column adds to the scores; see `LaplacianAutoencoder.explain`."""
        return self.estimator_.explain(X, level)
