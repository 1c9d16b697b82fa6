"""Predict numbers with error bars, as scikit-learn's Gaussian processes do: `LaplaceRegressor`."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import torch
from scipy.stats import t as student_t
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.conformal import ConformalIntervals
from marquis.errors import DataError
from marquis.likelihoods import Gaussian, Likelihood
from marquis.sklearn.base import FLOATS, LaplaceEstimator, generator_from
from marquis.sklearn.input_tables import plain_table, plain_targets, require_finite
from marquis.sklearn.parameter_checks import whole


def merge_copies(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows without copies, and the number of distinct inputs.

    Rows stay as they are where an input was observed with different targets: those are replicates.
    """
    _, first, group = np.unique(X, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(X) or not np.array_equal(y, y[first][group.ravel()]):
        return X, y, len(first)
    rows = np.sort(first)
    return X[rows], y[rows], len(first)


@checked_methods
class LaplaceRegressor(RegressorMixin, LaplaceEstimator):
    """Predict by a neural network with error bars: the uncertainty of its weights, and the noise of the data.

    Trains to the mode of the posterior, fits a Laplace approximation there, and lets the evidence choose weight decay
    and noise (MacKay 1992; docs/method/evidence.md); predictions are linearised, in closed form
    (docs/method/predictive.md). The temperature of the posterior is chosen by refits on folds, so that held-out rows
    are predicted no worse than by the network alone (docs/experiments/tuning.md), and up to 2,000 rows they choose
    between two starts of the prior, too. Cost: training, a curvature pass per round, and the refits.

    The predictive of a new observation is a Student t: from few rows the noise is not known either. Its degrees of
    freedom are the distinct rows less the effective parameters and the mean of the targets, at least 1; `std` is its
    scale. Rows that are copies of another one, with the same target, count once.

    Warning:
        With several outputs there is one noise level for all of them, relative to each output's own spread.

    Args:
        module: None for a perceptron; a `torch.nn.Module` to start from (copied); or a class or function
            `(number of features, number of outputs) -> module`.
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
        tune: True ("evidence", by fixed points), "gradient" (by Adam), or False to keep the prior and the noise
            (precision 1 in standardised units).
        rounds: how often training and tuning take turns at most (3 times above 2,000 rows); the
            round of the largest evidence is kept.
        scale: whether features and targets are standardised first; results are in the targets' own units.
        dtype: "float64", or "float32" for large networks.
        device: for training and predicting.
        posterior_temperature: factor of the posterior covariance; "auto" chooses it out of .01, .03, .1, .3 and 1 by
            the log density of held-out rows, in five refits at the tuned prior (one above 2,000 rows). A number
            saves the refits, and leaves the start of the prior to the evidence.
        random_state: of initial weights and mini-batches. Global generators are left alone.
        verbose: 1 prints training and tuning, 2 also shows progress bars.

    Attributes:
        degrees_of_freedom_: of the Student t.
        module_: the trained network (of standardised features and targets).
        laplace_: the `marquis.Laplace` around it, for everything else that it can do.
        posterior_temperature_: the factor of the covariance.
        held_out_: log density of held-out rows at every temperature and of the network alone, where there were refits.
        log_evidence_: log marginal likelihood of the standardised targets, to compare models without validation data.
        n_iter_: epochs over all rounds.
        x_scaler_: what standardises the features.
        y_scaler_: what standardises the targets.
        n_features_in_: number of features.
        feature_names_in_: their names, if `fit` was given a table with names.
    """

    _noise_factor = 1.0  # of regressors that were pickled before there was one

    def fit(self, X: Any, y: Any) -> LaplaceRegressor:
        """Train on features `X [N, features]` and targets `y [N]` or `[N, outputs]`; returns itself."""
        X, y = validate_data(
            self, plain_table(X), plain_targets(y), dtype=np.float64, multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
        self._is_flat = y.ndim == 1
        y = y.reshape(len(y), -1)
        X, y, distinct = merge_copies(X, y)
        if len(X) == 1:
            raise DataError(
                "one distinct row (n_samples=1) says nothing about how targets vary; a regressor needs at least two."
            )
        self.y_scaler_ = self._scaler(y, np.array([f"{i} of y" for i in range(y.shape[1])], dtype=object))
        self._targets = y.shape[1]
        self._fit(X, y, y.shape[1])
        self._conformal = None
        # Targets were centred by their own mean, as by a parameter without a prior: the noise that is left is
        # (n - 1)/n of the noise, and the mean has a variance of 1/n of it. Known noise (tune=False) stays what it is.
        self._noise_factor = (len(X) + 1) / (len(X) - 1) if self.scale and self.tune else 1.0
        self.degrees_of_freedom_ = self._degrees_of_freedom(X, distinct)
        return self

    def _degrees_of_freedom(self, X: np.ndarray, distinct: int) -> float:
        """Return the distinct rows less the effective parameters, of which there are no more than the data's rank."""
        rank = int(np.linalg.matrix_rank(np.asarray(self.x_scaler_.transform(X), dtype=np.float64))) + 1  # the offset
        parameters = float(self.laplace_.effective_parameters()) + bool(self.scale)  # the mean that was subtracted
        return max(1.0, distinct - min(parameters, rank))

    def _likelihood(self, outputs: int) -> Likelihood:
        if outputs != self._targets:
            raise DataError(f"the module has {outputs} outputs, the targets {self._targets}.")
        return Gaussian()

    def _encode(self, y: np.ndarray, outputs: int) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(self.y_scaler_.transform(y)), dtype=FLOATS[self.dtype])

    def _checked_labels(self, y: Any, outputs: int) -> Tensor:
        return self._encode(np.asarray(plain_targets(y), dtype=np.float64).reshape(len(y), -1), outputs)

    @property
    def _unit(self) -> np.ndarray:
        """Return what one unit of the network's outputs is in the targets' units."""
        scale: Any = self.y_scaler_.scale_
        return np.ones(self._targets) if scale is None else scale

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Return values in the shape of the targets."""
        return values[:, 0] if self._is_flat else values

    def _in_target_units(self, outputs: Tensor) -> np.ndarray:
        """Return outputs in the units of the targets."""
        return self._shaped(self.y_scaler_.inverse_transform(outputs.double().cpu().numpy()))

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of the targets; with `return_std` also the standard deviation of a new observation.

        The deviation is `sqrt(epistemic + noise)`; `predict_variance` gives the two apart.
        """
        if not return_std:
            return self._in_target_units(self._outputs(X))
        prediction = self._predict(X, diagonal=True)
        epistemic, noise = self._variances(prediction.variance, prediction.noise_variance)
        return self._in_target_units(prediction.mean), require_finite(np.sqrt(epistemic + noise), "standard deviations")

    def predict_interval(self, X: Any, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """Return limits between which a new observation lies with probability `1 - alpha`, shaped like the targets.

        From the Student t; after `conformalize`, from the calibration data, whatever the model is worth.
        """
        mean, scale = self.predict(X, return_std=True)
        if self._conformal is not None:
            return self._conformal.interval(mean, scale, alpha)
        if not 0 < alpha < 1:
            raise DataError(f"alpha={alpha!r}: a share between 0 and 1, for instance 0.05 for 95 % intervals.")
        spread = float(student_t.ppf(1 - alpha / 2, self.degrees_of_freedom_)) * scale
        return mean - spread, mean + spread

    def conformalize(self, X: Any, y: Any) -> LaplaceRegressor:
        """Calibrate `predict_interval` on rows that were not trained on (`mq.conformal`); returns itself."""
        mean, scale = self.predict(X, return_std=True)
        targets = np.asarray(plain_targets(y), dtype=np.float64).reshape(mean.shape)
        self._conformal = ConformalIntervals.calibrate(mean, scale, targets)
        return self

    def predict_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the variance from the weights, and that of the noise; each shaped like the targets.

        The latter includes what the mean of the targets, by which they are centred, is uncertain: with n rows tuned
        noise is larger by (n + 1)/(n - 1).
        """
        prediction = self._predict(X, diagonal=True)
        return self._variances(prediction.variance, prediction.noise_variance)

    def _variances(self, epistemic: Tensor, noise: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        """Return both variances in the units of the targets."""
        assert noise is not None
        squared = self._unit**2
        both = [self._shaped(part.double().cpu().numpy() * squared) for part in (epistemic, self._noise_factor * noise)]
        return both[0], both[1]

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        *,
        noise: bool = True,
    ) -> np.ndarray:
        """Sample from the posterior, `[N, n_samples]` or `[N, outputs, n_samples]`, as Gaussian processes give them.

        Args:
            X: features.
            n_samples: number of draws; the weights of a draw are the same for every row.
            random_state: of the draws.
            noise: draws of new observations, by the Student t; False for draws of the function itself, by the Gaussian
                posterior.
        """
        generator, count = generator_from(random_state), whole("n_samples", n_samples)
        prediction = self._predict(X, keep_inputs=True, diagonal=True)
        functions = prediction.sample(count, generator)
        samples = functions.double().cpu().numpy()
        if noise:
            assert prediction.noise_variance is not None
            std = (self._noise_factor * prediction.noise_variance).sqrt().expand_as(prediction.mean)
            normal = torch.randn(functions.shape, generator=generator, dtype=functions.dtype) * std.cpu()
            mean = prediction.mean.double().cpu().numpy()
            deviations = samples + normal.double().numpy() - mean
            samples = mean + self._student_factors(count, generator)[:, None, None] * deviations
        values = samples * self._unit + (0.0 if self.y_scaler_.mean_ is None else self.y_scaler_.mean_)
        values = np.moveaxis(values, 0, -1)
        return values[:, 0] if self._is_flat else values

    def _student_factors(self, count: int, generator: torch.Generator) -> np.ndarray:
        """Return factors that make normal deviations those of the Student t, one for all rows of a draw, `[count]`."""
        source = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        return np.sqrt(self.degrees_of_freedom_ / source.chisquare(self.degrees_of_freedom_, count))

    def __sklearn_tags__(self) -> Tags:
        """Declare that several outputs are accepted."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
