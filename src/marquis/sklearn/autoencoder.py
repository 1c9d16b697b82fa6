"""Embed, score, impute and generate rows of a table with uncertainty: `LaplacianAutoencoder`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.errors import DataError
from marquis.options import renamed_arguments, renamed_attributes
from marquis.sklearn.base import ROWS, generator_from
from marquis.sklearn.categories import EncodedColumns, categories_of, coded_table
from marquis.sklearn.columns import Columns, labels_of, like_table, without_copies
from marquis.sklearn.entry_predictions import EntryModel, Mixture, combined
from marquis.sklearn.gaussian_fit import HIDDEN, fit_gaussian, hide
from marquis.sklearn.guarantees import Guarantees
from marquis.sklearn.imputed_table import ImputedTable, code_std, unfilled, write_imputations
from marquis.sklearn.input_tables import plain_table, require_finite
from marquis.sklearn.linear_gaussian import LinearGaussian
from marquis.sklearn.outlier_scores import OutlierScores
from marquis.sklearn.parameter_checks import whole

if TYPE_CHECKING:
    from marquis.autoencoders import Estimate, Reconstruction

Random = int | np.random.RandomState | None
EXPLAINED, MOST_CODES = 0.95, 32
"""Share of the variance that principal components as many as the default code have to explain, and their most."""
APART_ROWS = 5000
"""Number of rows up to which the linear model is fitted once more without the held-out rows, to judge the network."""
DESCRIBED_ROWS = 10_000
"""Largest number of training rows that noise, codes and the threshold of scores are computed from."""

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


@renamed_attributes(hole_std_="missing_std_")
@checked_methods
class LaplacianAutoencoder(
    Guarantees, OutlierScores, ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator
):
    """Train an autoencoder for tables with a posterior over its weights.

    One estimator for four uses: a transformer (codes with standard deviations), an outlier detector, an imputer, and a
    generator of new rows. It is the Laplacian autoencoder (Miani et al. 2022; docs/method/autoencoders.md): a Gaussian
    over its weights is learnt in training. Beside it stands a Gaussian of the columns with closed-form predictions
    (docs/method/tasks.md#tables), whose shrinkage is chosen on hidden entries, or a mixture of up to 32 Gaussians where
    that predicts hidden entries better: where columns depend on each other nonlinearly or in groups. The network counts
    where it predicts hidden entries of held-out rows better than these. NaN marks missing values, in `fit` and
    everywhere else: they enter the encoder as the Gaussian predicts them, with a mask, and leave the likelihood.
    Columns are standardised by their observed entries; one that is constant there is left out of the network, and
    returned as the constant with standard deviation 0. Columns of a pandas table that hold categories (category, bool,
    string, object) go in as they are: each has probabilities of its levels; a level that was not in `fit` counts as
    missing, with the score of probability `1 / (n + 1)`.

    Cost of `fit`: about 2.5 times that of a plain autoencoder of at most 10,000 rows, and the Gaussian's; of everything
    else: `samples` passes of the network, five times as many for scores. Linear in columns.

    Args:
        n_components: Number of latent dimensions; None: as many as principal components that explain 95 % of the
            variance, at most 32.
        hidden_layer_sizes: Of the encoder; the decoder has them in reverse.
        activation: "tanh", "silu", "relu", "gelu" or "identity".
        max_iter: Maximum number of epochs.
        learning_rate_init: Initial learning rate of Adam.
        batch_size: Number of rows per step; "auto": a fiftieth of the rows, from 16 to 512.
        n_iter_no_change: Number of epochs without a better held-out likelihood after which training stops; the best
            weights are kept.
        validation_fraction: Fraction of the rows held out for that; with fewer than 50 rows none by default, and
            training goes on for `max_iter` epochs.
        mask_fraction: Fraction of the observed entries that is hidden from the encoder in training, but has to be
            reconstructed: teaches it to fill in missing values. 0 for an ordinary autoencoder.
        mask_input: Whether the encoder has one more input per column, which says whether the entry was observed;
            "auto": unless none is ever missing. Then a missing value may tell something by being missing.
        prior: Prior precision of the weights.
        posterior_temperature: 1 is the Laplace approximation, less is colder (see `marquis.OnlineLaplace`).
        samples: Number of sampled networks for codes, reconstructions and scores.
        contamination: Fraction of the training rows that `predict` calls outliers, above 0 and at most 0.5.
        random_state: Of initial weights, mini-batches and samples. Global generators are left alone.
        verbose: 1 prints the training.

    Attributes:
        model_: The trained `marquis.autoencoders.PosteriorAutoencoder` of standardised rows, of the columns that vary.
        scaler_: The `StandardScaler` of the numeric columns.
        categories_: Levels of each categorical column by name.
        noise_std_: Standard deviation of the noise of each column, in its own units; 0 for constant columns.
        missing_std_: Typical standard deviation of missing values of each column around their predictions, in its own
            units, if a fifth of a row is missing: larger the less the column follows from the others.
        n_components_: Number of latent dimensions.
        offset_: The score that separates outliers from the rest.
        n_iter_: Number of epochs.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if `fit` was called with a table that has names.
    """

    @renamed_arguments(**NEW_NAMES)
    def __init__(
        self,
        n_components: int | None = None,
        *,
        hidden_layer_sizes: int | Sequence[int] = (64, 32),
        activation: str = "silu",
        max_iter: int = 200,
        learning_rate_init: float = 1e-2,
        batch_size: int | Literal["auto"] = "auto",
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
        from marquis.sklearn import table_network  # here, because it loads Lightning

        # In C order, so that sums are rounded alike: the same numbers give the same fit, in whatever form they come.
        options: dict[str, Any] = {"order": "C", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        self._categories = categories_of(X)
        coded = coded_table(X, self._categories)
        checked: Any = validate_data(self, plain_table(coded, exact=True), dtype=np.float64, **options)
        table_network.check_parameters(self)
        self._conformal = None
        labels = labels_of(self)
        checked = checked if self._categories else without_copies(checked)
        self._columns = EncodedColumns.of(checked, labels, self._categories)
        self.scaler_: Any = self._columns.scaler
        names = getattr(self, "feature_names_in_", np.arange(checked.shape[1]))
        self.categories_ = {names[category.column]: list(category.levels) for category in self._categories}
        x = self._inputs(checked)
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        generator = torch.Generator().manual_seed(self._seed)
        groups = self._columns.groups
        fitted = fit_gaussian(x, groups, generator)
        self._columns = self._columns.calibrated(fitted.tries)
        codes = self.n_components
        self.n_components_ = min(fitted.spectrum.components(EXPLAINED), MOST_CODES) if codes is None else int(codes)
        train, held_out = table_network.split_rows(x, self.validation_fraction, generator)
        apart = fitted.gaussian
        if len(held_out) > 0 and len(x) <= APART_ROWS:
            apart = fitted.gaussian_of(train)
        components = fitted.spectrum.directions(self.n_components_)
        trained, self.n_iter_ = table_network.train_network(self, train, held_out, apart, components, self._seed)
        network = table_network.FillingAutoencoder.of(trained, apart)
        models = fitted.models_of(train, apart) if len(held_out) else (fitted.for_missing, fitted.for_alone)
        entries = combined(fitted, network, models, held_out, int(self.samples), self._seed, groups)
        self.model_ = network.filling_by(fitted.gaussian)
        self._entries = replace(entries, network=self.model_)
        self._keep_statistics(x)
        unseen = replace(entries, network=network, linear=models[0], linear_alone=models[1])
        self._keep_reference(x, held_out, unseen, fitted)
        return self

    def _keep_statistics(self, x: Tensor) -> None:
        """Keep statistics of the training rows, which are not kept themselves."""
        x = x[torch.randperm(len(x), generator=self._draws())[:DESCRIBED_ROWS]]
        reconstructions = self._reconstructions(x)
        z = torch.cat([part.latent.mean for part in reconstructions])
        self._noise = (torch.cat([part.mean for part in reconstructions]) - x).square().nanmean(0).sqrt()
        self.noise_std_ = self._columns.deviations(self._noise.numpy())
        self._code_mean, self._code_root = z.mean(0), root_of(torch.cov(z.T).reshape(z.shape[1], z.shape[1]))
        self._n_features_out = z.shape[1]
        self._entry_log_prob = 0.0
        terms, missing = self._terms(x)
        self._entry_log_prob = float(terms.sum() / (~missing).sum())
        scores = torch.where(missing, self._entry_log_prob, terms).sum(1)
        self.offset_ = float(np.quantile(scores.numpy(), self.contamination))
        hidden = self._entries.linear.entries(hide(x, HIDDEN, self._columns.groups, self._draws()))[1]
        self.missing_std_ = self._columns.deviations((self._entries.for_missing.scale * hidden).mean(0).sqrt().numpy())

    # --- rows and codes ----------------------------------------------------------------------------------

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Return the columns that vary, standardised."""
        return torch.as_tensor(self._columns.standardised(X), dtype=torch.float64)

    def _validated(self, X: Any) -> np.ndarray:
        """Return new rows, checked against those of `fit`, in their own units."""
        check_is_fitted(self, "model_")
        table = plain_table(coded_table(X, self._categories), exact=True)
        checked: Any = validate_data(self, table, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return checked

    def _draws(self) -> torch.Generator:
        """Return a new source of the same networks, so that a row's result does not depend on other rows."""
        return torch.Generator().manual_seed(self._seed)

    def _reconstructions(self, x: Tensor) -> list[Reconstruction]:
        """Reconstruct standardised rows, some at a time."""
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
        codes = [self.model_.encode(part, int(self.samples), generator=self._draws()) for part in x.split(ROWS)]
        mean = require_finite(torch.cat([part.mean for part in codes]).numpy(), "codes")
        if not return_std:
            return mean
        std, incomplete = torch.cat([part.std for part in codes]), x.isnan().any(1).nonzero()[:, 0]
        for rows in incomplete.split(ROWS) if len(incomplete) else ():
            std[rows] = code_std(self._entries, x[rows])
        # Of a pair, scikit-learn makes a table of the first only.
        return mean, _wrap_data_with_container("transform", require_finite(std.numpy(), "deviations of codes"), X, self)

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
        estimates = [
            self.model_.decode(part, int(self.samples), generator=self._draws())
            for part in torch.tensor(codes).split(ROWS)
        ]
        mean = self._decoded(self._columns.rows(torch.cat([part.mean for part in estimates]).numpy()))
        return (mean, self._deviation(estimates)) if return_std else mean

    def _deviation(self, estimates: Sequence[Estimate]) -> np.ndarray:
        """Return standard deviations in the units of the columns, noise included."""
        variance = torch.cat([part.variance for part in estimates]) + self._noise.square()
        return self._columns.deviations(variance.sqrt().numpy())

    def _decoded(self, rows: np.ndarray) -> Any:
        """Return rows as they are, or as a pandas table if there are categories."""
        if not self._columns.has_categories:
            return rows
        names: Any = getattr(self, "feature_names_in_", None)
        return self._columns.table(rows, names)

    # --- missing values and new rows ---------------------------------------------------------------------

    def impute(self, X: Any, samples: int = 25, *, rounds: int = 0, random_state: Random = None) -> ImputedTable:
        """Fill the missing entries: a mean, a standard deviation and samples for each (docs/method/tasks.md#tables).

        Means and standard deviations do not depend on `samples` or `random_state`. The samples of a row are joint:
        entries that depend on each other do so in each of them. Observed entries stay exactly as they were. Cost: see
        `EntryModel`.

        Args:
            X: `[N, columns]` with NaN where entries are missing.
            samples: Number of samples.
            rounds: Deprecated, without effect: missing entries are predicted from the observed ones at once.
            random_state: Of the samples; None: the same every time.
        """
        table = self._validated(X)
        samples = whole("samples", samples)
        if whole("rounds", rounds, 0):
            warnings.warn("rounds= is deprecated: it has no effect any more.", DeprecationWarning, stacklevel=2)
        imputed = self._imputed(table, samples, self._draws() if random_state is None else generator_from(random_state))
        if not self._columns.has_categories:
            return ImputedTable(
                like_table(X, imputed.mean), like_table(X, imputed.std), imputed.samples, imputed.missing
            )
        return imputed.as_table(X, self._columns)

    def _imputed(self, table: np.ndarray, samples: int, noise: torch.Generator) -> ImputedTable:
        """Fill the missing entries of a checked table, whose categories are numbers of levels."""
        x, imputed = self._inputs(table), unfilled(table, samples)
        rows = np.flatnonzero(imputed.missing.any(1))
        for part in np.array_split(rows, -(-len(rows) // ROWS) or 1):
            if len(part):
                write_imputations(imputed, part, self._entries, x[part], self._columns, noise)
        return imputed

    def completed(self, X: Any, sample: np.ndarray) -> Any:
        """Return one of `impute(X).samples` as a table in the types of `X`, observed entries as they were."""
        if not self._columns.has_categories:
            return like_table(X, sample)
        return ImputedTable(sample, sample, sample[None], X.isna().to_numpy()).as_table(X, self._columns).mean

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
        return self._decoded(self._columns.rows((rows + noise * self._noise).numpy()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, also one of earlier versions: other names, constant columns in the network, no `linear`."""
        new_names = {**NEW_NAMES, "hole_std_": "missing_std_"}
        super().__setstate__({new_names.get(name, name): value for name, value in state.items()})
        if "scaler_" in state:
            columns = state.get("_columns", Columns(state["scaler_"], np.ones(state["n_features_in_"], dtype=bool)))
            self._columns = EncodedColumns.of_numbers(columns) if isinstance(columns, Columns) else columns
            self.__dict__.setdefault("_categories", ())
        if "model_" in state and "_entries" not in state:
            self._entries = self._network_alone()
        if "_reference" in state:
            self.__dict__.setdefault("_unseen", self._entries)

    def _network_alone(self) -> EntryModel:
        """Return predictions by the network alone, as earlier versions had them; scores are on another scale."""
        numeric = self._columns.numeric
        assert numeric is not None
        std = torch.from_numpy(numeric.without_units(self.missing_std_))
        none, one = torch.zeros_like(std), torch.ones_like(std)
        linear, mixture = LinearGaussian(none, none[:, None], one), Mixture(one, std.square())
        self.n_components_ = int(self._n_features_out)
        self._noise = torch.from_numpy(numeric.without_units(self.noise_std_))
        warnings.warn(
            "this LaplacianAutoencoder was fitted by an earlier version: scores are on another scale now, so that "
            "`predict` and `decision_function` need a new fit.",
            FutureWarning,
            stacklevel=3,
        )
        return EntryModel(linear, self.model_, mixture, mixture, int(self.samples), self._seed)

    def __sklearn_tags__(self) -> Tags:
        """Declare that missing values are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def root_of(covariance: Tensor) -> Tensor:
    """Return a square root, also of a covariance that is not quite of full rank."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt()
