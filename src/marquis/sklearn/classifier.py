"""Classify with calibrated probabilities, as scikit-learn has them: `LaplaceClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.choices import choose, match_choice
from marquis.conformal import ConformalSets
from marquis.errors import DataError
from marquis.likelihoods import Bernoulli, Categorical, Likelihood
from marquis.options import inherits_options, renamed_arguments
from marquis.predictive.links import LINKS
from marquis.sklearn.base import NEW_NAMES, ROWS, LaplaceEstimator, generator_from
from marquis.sklearn.input_tables import plain_labels, plain_table
from marquis.sklearn.network import ModuleLike
from marquis.sklearn.parameter_checks import whole

DRAWS, SEED = 100, 0
"""Networks whose probabilities link="mc" averages: the same ones for all rows, every time."""


@inherits_options
@checked_methods
class LaplaceClassifier(ClassifierMixin, LaplaceEstimator):
    """Classify by a neural network whose probabilities account for the uncertainty of its weights.

    Trains to the mode of the posterior, fits a Laplace approximation there, and lets the evidence choose weight decay
    (MacKay 1992; docs/method/evidence.md); `predict_proba` averages over the linearised posterior
    (docs/method/predictive.md). The temperature of the posterior is chosen by refits on folds, so that held-out rows
    are predicted no worse than by the network alone (docs/experiments/tuning.md), and up to 2,000 rows they choose
    between two starts of the prior, too. Cost: training, a curvature pass per round, and the refits.

    Args:
        module: None for a perceptron; a `torch.nn.Module` to start from (copied); or a class or function
            `(number of features, number of outputs) -> module`. Outputs are logits `[B, outputs]`: one for two
            classes (two are fine, too), else one per class.
        hidden_layer_sizes: of the perceptron.
        activation: of the perceptron: "tanh", "silu", "relu", "gelu" or "identity".
        solver: "lbfgs" (all data in every step), "adam" (mini-batches), or "auto": L-BFGS for perceptrons, and for
            up to 2000 data and networks without dropout or batch statistics.
        max_iter: maximum number of epochs per round; training stops when it no longer improves. 0 takes the module as
            it is (a trained one; usually with `scale=False`).
        learning_rate_init: initial learning rate of Adam.
        batch_size: of Adam.
        tol: relative gain of the objective below which training stops.
        structure: "kronecker", "diagonal", "block", "full" or "lowrank".
        estimator: how curvature is computed; None: exact up to 64 outputs, else sketched.
        parameters: which weights are uncertain: "all", "last-layer", a `marquis.Subnetwork`, a name pattern.
        prior: precision of the weights to start from, one per layer: by default a layer's number of inputs; or a
            `marquis.Prior`.
        tune: True ("evidence", by fixed points), "gradient" (by Adam), or False to keep the prior.
        rounds: how often training and tuning take turns at most (3 times above 2,000 rows); the
            round of the largest evidence is kept.
        scale: whether features are standardised first.
        dtype: "float64", or "float32" for large networks.
        device: for training and predicting.
        link: how probabilities are averaged: "quadrature" (fixed nodes), "mc" (over 100 networks, the same for all
            rows), or the published "probit" and "bridge", which are far off for three or more classes.
        posterior_temperature: factor of the posterior covariance; "auto" chooses it out of .01, .03, .1, .3 and 1 by
            the log density of held-out rows, in five refits at the tuned prior (one above 2,000 rows). A number
            saves the refits, and leaves the start of the prior to the evidence.
        random_state: of initial weights and mini-batches. Global generators are left alone.
        verbose: 1 prints training and tuning, 2 also shows progress bars.

    Attributes:
        classes_: the labels, sorted.
        module_: the trained network.
        laplace_: the `marquis.Laplace` around it, for everything else that it can do.
        posterior_temperature_: the factor of the covariance.
        held_out_: log density of held-out rows at every temperature and of the network alone, where there were refits.
        log_evidence_: log marginal likelihood, to compare models without validation data.
        n_iter_: epochs over all rounds.
        x_scaler_: what standardises the features.
        n_features_in_: number of features.
        feature_names_in_: their names, if `fit` was given a table with names.
    """

    @renamed_arguments(**NEW_NAMES)
    def __init__(self, module: ModuleLike = None, *, link: str = "quadrature", **options: Any) -> None:
        super().__init__(module, **options)
        self.link = link

    def fit(self, X: Any, y: Any) -> LaplaceClassifier:
        """Train on features `X [N, features]` and labels `y [N]` of any type; returns itself."""
        choose("link", self.link, LINKS, error=DataError)
        X, y = validate_data(self, plain_table(X), plain_labels(y), dtype=np.float64)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise DataError(
                f"the labels hold one class only ({self.classes_[0]!r}); a classifier needs at least two classes."
            )
        self._fit(X, y, 1 if len(self.classes_) == 2 else len(self.classes_))
        self._conformal = None
        return self

    def _likelihood(self, outputs: int) -> Likelihood:
        classes = len(self.classes_)
        if outputs == 1 and classes == 2:
            return Bernoulli()
        if outputs == classes:
            return Categorical()
        expected = "1 or 2 outputs" if classes == 2 else f"{classes} outputs"
        raise DataError(f"the module has {outputs} outputs; for {classes} classes it needs {expected} (logits).")

    def _encode(self, y: np.ndarray, outputs: int) -> Tensor:
        numbers = torch.from_numpy(np.searchsorted(self.classes_, y).astype(np.int64))
        return numbers.unsqueeze(1).to(torch.get_default_dtype()) if outputs == 1 else numbers

    def _checked_labels(self, y: Any, outputs: int) -> Tensor:
        y = column_or_1d(plain_labels(y))
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise DataError(
                f"labels {unknown[:5].tolist()} were not among those of fit, {self.classes_[:10].tolist()}."
            )
        return self._encode(y, outputs)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities `[N, classes]`, in the order of `classes_`, averaged over the linearised posterior."""
        if match_choice(self.link, LINKS) == "mc":
            parts = self._checked(X).split(ROWS)
            probabilities = torch.cat([self._samples(part, DRAWS, SEED).mean(0) for part in parts])
        else:
            probabilities = self._predict(X, link=self.link).probs
        assert probabilities is not None
        return _two_columns(probabilities.double().cpu().numpy())

    def _samples(self, x: Tensor, count: int, seed: int) -> Tensor:
        """Sample probabilities `[count, N, outputs]` of linearised networks, the same ones for all rows."""
        logits = self.laplace_.predict(x, diagonal=True).sample(count, torch.Generator().manual_seed(seed))
        return _probabilities(logits)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba`; minus infinity where a probability is 0 to machine precision."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of every row."""
        numbers = self.predict_proba(X).argmax(1)
        return self.classes_[numbers]

    def conformalize(self, X: Any, y: Any, random_state: int = 0) -> LaplaceClassifier:
        """Calibrate `predict_set` on rows that were not trained on (`mq.conformal`); returns itself."""
        probs = self.predict_proba(X)
        numbers = self._checked_labels(y, len(self.classes_)).numpy()
        self._conformal = ConformalSets.calibrate(probs, numbers, random_state)
        return self

    def predict_set(self, X: Any, alpha: float = 0.1, random_state: int = 1) -> np.ndarray:
        """Return which classes belong to a set that holds the label with probability `1 - alpha`, `[N, classes]`.

        After `conformalize` by calibration (a set can then be empty); before, the likeliest classes whose probabilities
        sum to `1 - alpha`.
        """
        probs = self.predict_proba(X)
        if self._conformal is not None:
            return self._conformal.sets(probs, alpha, random_state)
        if not 0 < alpha < 1:
            raise DataError(f"alpha={alpha!r}: a share between 0 and 1, for instance 0.1 for 90 % sets.")
        order = np.argsort(-probs, 1, kind="stable")
        ranked = np.take_along_axis(probs, order, 1)
        sets = np.empty(probs.shape, dtype=bool)
        np.put_along_axis(sets, order, np.cumsum(ranked, 1) - ranked < 1 - alpha, 1)
        return sets

    def sample_proba(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Return probabilities under weights sampled from the posterior, `[N, classes, n_samples]`.

        The weights of a draw are the same for every row. How much the draws differ is what more data could settle.
        """
        count = whole("n_samples", n_samples)
        samples = self._predict(X, keep_inputs=True, diagonal=True).sample(count, generator_from(random_state))
        return np.moveaxis(_two_columns(_probabilities(samples).double().cpu().numpy()), 0, -1)


def _probabilities(logits: Tensor) -> Tensor:
    """Return class probabilities from logits."""
    return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)


def _two_columns(probs: np.ndarray) -> np.ndarray:
    """Return Bernoulli's one probability as two; rows of several sum to one to the last digit of float64."""
    if probs.shape[-1] == 1:
        return np.concatenate([1 - probs, probs], -1)
    return probs / probs.sum(-1, keepdims=True)
