"""`LaplacianAutoencoder`: codes, outliers, missing values and new rows of a table, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from marquis.errors import DataError
from marquis.options import renamed_arguments, warn_renamed
from marquis.sklearn.autoencoder_training import train_autoencoder
from marquis.sklearn.base import ROWS, generator_from
from marquis.sklearn.columns import Columns, columns_of, labels_of, like_table
from marquis.sklearn.entry_predictions import masked_predictions, missing_std
from marquis.sklearn.imputed_table import ImputedTable, code_std, impute_rows, unfilled, write_imputations
from marquis.sklearn.input_tables import plain_table
from marquis.sklearn.parameter_checks import whole

if TYPE_CHECKING:
    from marquis.autoencoders import Estimate, Reconstruction

Random = int | np.random.RandomState | None


NEW_NAMES = {
    "latent_dim": "n_components",
    "hidden_sizes": "hidden_layer_sizes",
    "epochs": "max_iter",
    "lr": "learning_rate_init",
    "patience": "n_iter_no_change",
    "hide": "mask_fraction",
    "temperature": "posterior_temperature",
}
"""Present names of parameters that were called otherwise."""


class LaplacianAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator):
    """An autoencoder for tables with a posterior over its weights.

    One estimator for four uses: a transformer (codes with standard deviations), an outlier detector, an imputer, and a
    generator of new rows. It is the Laplacian autoencoder (Miani et al. 2022; docs/method/autoencoders.md): a Gaussian
    over its weights is learnt in training. NaN marks missing values, in `fit` and everywhere else: they enter the
    encoder as their column's mean and leave the likelihood; if there are some in `fit`, the encoder also sees which
    entries were observed. Columns are standardised by their observed entries; one that is constant there is left out of
    the network, and returned as the constant with standard deviation 0.

    Cost of `fit`: about 2.5 times that of a plain autoencoder; of everything else: `samples` passes of the network.

    Args:
        n_components: Number of latent dimensions.
        hidden_layer_sizes: Of the encoder; the decoder has them in reverse.
        activation: "tanh", "silu", "relu", "gelu" or "identity".
        max_iter: Maximum number of epochs.
        learning_rate_init: Initial learning rate of Adam.
        batch_size: Number of rows per step.
        n_iter_no_change: Number of epochs without a better held-out likelihood after which training stops; the best
            weights are kept.
        validation_fraction: Fraction of the rows held out for that; with fewer than 50 rows none by default, and
            training goes on for `max_iter` epochs.
        mask_fraction: Fraction of the observed entries that is hidden from the encoder in training, but has to be
            reconstructed: teaches it to fill in missing values. 0 for an ordinary autoencoder.
        mask_input: Whether the encoder has one more input per column, which says whether the entry was observed;
            "auto": if values are missing in `fit`. Then a missing value is not the same as the column's mean.
        prior: Prior precision of the weights.
        posterior_temperature: 1 is the Laplace approximation, less is colder (see `marquis.OnlineLaplace`).
        samples: Number of sampled networks for codes, reconstructions and scores.
        contamination: Fraction of the training rows that `predict` calls outliers, above 0 and at most 0.5.
        random_state: Of initial weights, mini-batches and samples. Global generators are left alone.
        verbose: 1 prints the training.

    Attributes:
        model_: The trained `marquis.autoencoders.PosteriorAutoencoder` of standardised rows, of the columns that vary.
        scaler_: The `StandardScaler` of the columns.
        noise_std_: Standard deviation of the noise of each column, in its own units; 0 for constant columns.
        missing_std_: Standard deviation of missing values of each column around their predictions, in its own units:
            larger than `noise_std_`, the more so the less the column follows from the others.
        offset_: The score that separates outliers from the rest.
        n_iter_: Number of epochs.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if `fit` was called with a table that has names.
    """

    @renamed_arguments(**NEW_NAMES)
    def __init__(
        self,
        n_components: int = 2,
        *,
        hidden_layer_sizes: int | Sequence[int] = (64, 32),
        activation: str = "tanh",
        max_iter: int = 200,
        learning_rate_init: float = 1e-2,
        batch_size: int = 64,
        n_iter_no_change: int = 20,
        validation_fraction: float = 0.1,
        mask_fraction: float = 0.2,
        mask_input: bool | Literal["auto"] = "auto",
        prior: float = 1.0,
        posterior_temperature: float = 0.01,
        samples: int = 25,
        contamination: float = 0.1,
        random_state: Random = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.max_iter = max_iter
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.n_iter_no_change = n_iter_no_change
        self.validation_fraction = validation_fraction
        self.mask_fraction = mask_fraction
        self.mask_input = mask_input
        self.prior = prior
        self.posterior_temperature = posterior_temperature
        self.samples = samples
        self.contamination = contamination
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting -----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Train on `X [N, columns]`, with NaN where entries are missing; returns itself. `y` is ignored."""
        from marquis.autoencoders import from_posterior  # here, because it loads Lightning

        # In C order, so that sums are rounded alike: the same numbers give the same fit, in whatever form they come.
        options: dict[str, Any] = {"order": "C", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        checked: Any = validate_data(self, plain_table(X, exact=True), dtype=np.float64, **options)
        self._columns = columns_of(checked, labels_of(self))
        self.scaler_: Any = self._columns.scaler
        x = self._inputs(checked)
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        trained, self.n_iter_, held_out = train_autoencoder(self, x, self._seed)
        posterior, likelihood = trained.posterior(), trained.likelihood
        self.model_ = from_posterior(trained.encoder, trained.decoder, posterior, likelihood, missing=trained.missing)
        noise = self._describe(x)
        std = missing_std(self.model_, x, held_out, int(self.samples), self._seed, noise)
        self.missing_std_ = self._columns.deviations(std.numpy())
        return self

    def _describe(self, x: Tensor) -> float:
        """Keep statistics of the training rows, which are not kept themselves; return the noise, standardised."""
        likelihoods, codes, noise = [], [], torch.zeros(x.shape[1])
        for part in self._reconstructions(x):
            likelihoods.append(part.log_prob)
            codes.append(part.latent.mean)
            assert part.noise_variance is not None
            noise = part.noise_variance[0]
        log_prob, z = torch.cat(likelihoods), torch.cat(codes)
        self.noise_std_ = self._columns.deviations(noise.sqrt().numpy())
        self._entry_log_prob = float(log_prob.sum() / (~x.isnan()).sum())
        self._code_mean, self._code_root = z.mean(0), root_of(torch.cov(z.T).reshape(z.shape[1], z.shape[1]))
        self._n_features_out = z.shape[1]
        self.offset_ = float(np.quantile(self._scores(x, log_prob), self.contamination))
        return float(noise[0].sqrt())

    # --- rows and codes ----------------------------------------------------------------------------------

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Return the columns that vary, standardised."""
        return torch.as_tensor(self._columns.standardised(X), dtype=torch.float64)

    def _validated(self, X: Any) -> np.ndarray:
        """Return new rows, checked against those of `fit`, in their own units."""
        check_is_fitted(self, "model_")
        given = plain_table(X, exact=True)
        checked: Any = validate_data(self, given, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return checked

    def _draws(self) -> torch.Generator:
        """Return a new source of the same networks, so that a row's result does not depend on other rows."""
        return torch.Generator().manual_seed(self._seed)

    @property
    def _missing_std(self) -> Tensor:
        """Return `missing_std_` of the columns that vary, standardised."""
        return torch.from_numpy(self._columns.without_units(self.missing_std_))

    def _reconstructions(self, x: Tensor) -> list[Reconstruction]:
        return [self.model_.reconstruct(part, int(self.samples), generator=self._draws()) for part in x.split(ROWS)]

    @overload
    def transform(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def transform(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def transform(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the codes `[N, n_components]`: the posterior mean; with `return_std` also the standard deviation.

        Missing entries enter the encoder as their column's mean, marked as missing if it sees that (`mask_input`).
        Their uncertainty is part of the standard deviation.
        """
        x = self._inputs(self._validated(X))
        found = [self.model_.encode(part, int(self.samples), generator=self._draws()) for part in x.split(ROWS)]
        mean = torch.cat([part.mean for part in found]).numpy()
        if not return_std:
            return mean
        std, holes = torch.cat([part.std for part in found]), x.isnan().any(1).nonzero()[:, 0]
        for rows in holes.split(ROWS) if len(holes) else ():
            std[rows] = code_std(self.model_, x[rows], self._missing_std, int(self.samples), self._seed)
        # Of a pair, scikit-learn makes a table of the first only.
        return mean, _wrap_data_with_container("transform", std.numpy(), X, self)

    @overload
    def inverse_transform(self, Z: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def inverse_transform(self, Z: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def inverse_transform(self, Z: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the rows `[N, columns]` of codes `Z`; the standard deviation includes the noise."""
        check_is_fitted(self, "model_")
        codes: Any = check_array(Z, dtype="float64")
        if codes.shape[1] != self._n_features_out:
            raise DataError(f"the codes have {codes.shape[1]} columns, those of this estimator {self._n_features_out}.")
        found = [
            self.model_.decode(part, int(self.samples), generator=self._draws())
            for part in torch.tensor(codes).split(ROWS)
        ]
        mean = self._columns.rows(torch.cat([part.mean for part in found]).numpy())
        return (mean, self._deviation(found)) if return_std else mean

    def _deviation(self, found: Sequence[Estimate]) -> np.ndarray:
        return self._columns.deviations(torch.cat([part.total_variance.sqrt() for part in found]).numpy())

    # --- outliers ----------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-likelihood of each row, `[N]`; smaller for outliers.

        `log (1/S) sum_s p(x | network s)` of the standardised row (docs/method/autoencoders.md). A missing entry counts
        as an average entry of the training rows, so that rows with more or fewer missing values can be compared. A
        column that was constant in training adds nothing, but -50 where a row differs from the constant, by however
        much, as an entry ten standard deviations away would: a constant has no scale.
        """
        given = self._validated(X)
        x = self._inputs(given)
        likelihoods = torch.cat([part.log_prob for part in self._reconstructions(x)])
        return self._scores(x, likelihoods) + self._columns.constant_penalty(given)

    def _scores(self, x: Tensor, log_prob: Tensor) -> np.ndarray:
        return (log_prob + self._entry_log_prob * x.isnan().sum(1, dtype=x.dtype)).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Return `score_samples - offset_`, `[N]`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Return 1 for inliers and -1 for outliers, `[N]`."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log pseudo-likelihood of rows, `sum_j log p(x_j | the other entries)` (Besag 1975).

        For choosing `n_components` and the rest on held-out rows: every entry is predicted without having been seen, so
        that, unlike the likelihood of a reconstruction, it does not always prefer the longer code. Missing entries are
        left out; columns that were constant in training count as in `score_samples`. Cost: `samples` passes over
        `columns` copies of `X`. `y` is ignored.
        """
        given = self._validated(X)
        x, total = self._inputs(given), float(self._columns.constant_penalty(given).sum())
        noise = self._missing_std[:, None, None]
        for truth, said in masked_predictions(self.model_, x, int(self.samples), self._seed):
            density = torch.distributions.Normal(said, noise).log_prob(truth.nan_to_num(0.0)[:, None])
            log_prob = density.logsumexp(1) - np.log(said.shape[1])
            total += float(log_prob[~truth.isnan()].sum())
        return total / len(x)

    # --- missing values and new rows ---------------------------------------------------------------------

    def impute(self, X: Any, samples: int = 25, *, rounds: int = 0, random_state: Random = None) -> ImputedTable:
        """Fill the missing entries: a mean, a standard deviation and draws for each (LAE A.3; docs/method/tasks.md).

        Each draw is a chain of its own: a network fills the holes, then `rounds` times another one corrects them.
        Observed entries stay exactly as they were. Cost: `samples * (1 + rounds)` passes over the rows with holes.

        The encoder has learnt to do without what it does not see (`hide`), so no correction is needed: on three tables
        of 100 to 300 rows, rounds made most answers worse (docs, experiments/tabular), and the deviations are those of
        the first answer. Rounds are the paper's way, of an encoder that has always seen everything (`hide=0`, complete
        rows in `fit`); one that sees which entries were observed (`mask_input`) takes an answer for an observation.

        Args:
            X: `[N, columns]` with NaN where entries are missing.
            samples: Number of samples.
            rounds: Number of times the observed entries are put back and the rows are reconstructed again; 1 in the
                paper.
            random_state: Of the samples; None: the same every time.
        """
        given = self._validated(X)
        samples, rounds = whole("samples", samples), whole("rounds", rounds, 0)
        x, found = self._inputs(given), unfilled(given, samples)
        rows = np.flatnonzero(found.missing.any(1))
        seed = self._seed if random_state is None else generator_from(random_state).initial_seed()
        noise = None
        for part in np.array_split(rows, -(-len(rows) // ROWS) or 1):
            if len(part):
                networks = torch.Generator().manual_seed(seed)  # the same for all rows
                drawn = impute_rows(self.model_, x[part], samples, rounds, networks)
                noise = networks if noise is None else noise  # goes on: no two rows have the same
                write_imputations(found, part, drawn, self._missing_std, self._columns, noise)
        return ImputedTable(like_table(X, found.mean), like_table(X, found.std), found.samples, found.missing)

    def sample(self, n_samples: int = 1, random_state: Random = None) -> np.ndarray:
        """Return new rows `[n_samples, columns]`: codes from a Gaussian fitted to the training codes, decoded.

        Several networks take turns. An autoencoder has no distribution of codes of its own; the Gaussian, fitted after
        training, is ours, and rows that fall into several groups are drawn between the groups, too.

        Args:
            n_samples: Number of rows.
            random_state: Of the samples; None: the same every time.
        """
        check_is_fitted(self, "model_")
        count = whole("n_samples", n_samples)
        generator = self._draws() if random_state is None else generator_from(random_state)
        normal = torch.randn(count, self._n_features_out, dtype=torch.float64, generator=generator)
        codes = self._code_mean + normal @ self._code_root.T
        rows = torch.cat(
            [self.model_.decode(part, 1, generator=generator).mean for part in codes.chunk(int(self.samples))]
        )
        noise = torch.randn(rows.shape, dtype=torch.float64, generator=generator)
        return self._columns.rows(rows.numpy() + noise.numpy() * self._columns.without_units(self.noise_std_))

    @property
    def hole_std_(self) -> np.ndarray:
        """Return `missing_std_`, by its deprecated name."""
        warn_renamed("LaplacianAutoencoder.hole_std_", "missing_std_")
        return self.missing_std_

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, also one of earlier versions: other names, constant columns in the network."""
        new_names = {**NEW_NAMES, "hole_std_": "missing_std_"}
        super().__setstate__({new_names.get(name, name): value for name, value in state.items()})
        if "scaler_" in state and "_columns" not in state:
            self._columns = Columns(self.scaler_, np.ones(state["n_features_in_"], dtype=bool))

    def __sklearn_tags__(self) -> Tags:
        """Declare that missing values are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def root_of(covariance: Tensor) -> Tensor:
    """Return a square root, also of a covariance that is not quite of full rank."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt()
