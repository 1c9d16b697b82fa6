"""Share between classifier and regressor: scaling, training, tuning, and batches of predictions."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from marquis.arguments import checked_methods
from marquis.choices import choose
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.selection import parameters_of, select
from marquis.laplace import CheckReport, Laplace
from marquis.likelihoods import Likelihood
from marquis.options import renamed_arguments
from marquis.predictive import Prediction
from marquis.priors import BoundPrior, Prior
from marquis.progress import ProgressBar
from marquis.randomness import seeded
from marquis.sklearn.columns import fitted_scaler, labels_of
from marquis.sklearn.input_tables import plain_table
from marquis.sklearn.map_training import SMALL, Objective, Training
from marquis.sklearn.network import ModuleLike, build, output_size
from marquis.sklearn.parameter_checks import positive, whole
from marquis.sklearn.refits import FOLDS, choose_by_refits, laplace_like
from marquis.structures import Layout

ROWS = 512
"""Rows at a time in the curvature pass and in predictions."""

WORTHWHILE = 1.0
"""Difference of two log evidences, in nats, below which they are as good as equal: a Bayes factor of e."""

PER_ROW = 5e-4
"""Gain of the log evidence per row of the data, in nats, below which another round is not worth its time."""

LARGE_ROUNDS = 3
"""Rounds above 2,000 rows at most: later ones change little there, and each costs a training."""

STARTS = (1.0, 0.01)
"""Where the default prior starts, in units of a layer's number of inputs. From the first, the evidence finds simple
functions, but small data may look like noise to it; from the second it finds intricate ones, but may overfit before
the first tuning and take many rounds to get away from that. Held-out rows say which was right: the evidence, which says
it where there are no refits, prefers a straight line to a fast sine by up to sixty nats (docs/experiments/notes.md)."""

FLOATS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Round:
    """Hold a network with its posterior: the result of one round of training and tuning.

    Attributes:
        log_evidence: after tuning.
        laplace: with the tuned prior and noise.
        state: of the network.
        trained: prior and noise that the network was trained with.
        tuned: prior and noise that tuning gave, to train on with.
    """

    log_evidence: float
    laplace: Laplace
    state: dict[str, Tensor]
    trained: Objective
    tuned: Objective


class Batches:
    """Yield training data in batches, until `release`: a fitted estimator keeps none of them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._parts: list[tuple[Tensor, Tensor]] | None = list(zip(x.split(ROWS), y.split(ROWS), strict=True))

    def release(self) -> None:
        """Drop the references to the data."""
        self._parts = None

    def _training_parts(self) -> list[tuple[Tensor, Tensor]]:
        """Return the training data; refuse after they were dropped."""
        if self._parts is None:
            raise DataError(
                "a fitted estimator does not keep its training data: call estimator.check(X, y), or pass a loader."
            )
        return self._parts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._training_parts())

    def __len__(self) -> int:
        return len(self._training_parts())


NEW_NAMES = {"hidden_sizes": "hidden_layer_sizes", "epochs": "max_iter", "lr": "learning_rate_init"}
"""Present names of parameters that were called otherwise."""


@checked_methods
class LaplaceEstimator(BaseEstimator):
    """Implement what `LaplaceClassifier` and `LaplaceRegressor` share; the parameters are described there."""

    @renamed_arguments(**NEW_NAMES)
    def __init__(
        self,
        module: ModuleLike = None,
        *,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str = "tanh",
        solver: str = "auto",
        max_iter: int = 200,
        learning_rate_init: float = 1e-2,
        batch_size: int = 64,
        tol: float = 1e-5,
        structure: str = "kronecker",
        estimator: str | None = None,
        parameters: Any = "all",
        prior: float | Prior | None = None,
        tune: bool | str = True,
        rounds: int = 5,
        scale: bool = True,
        dtype: str = "float64",
        device: str = "cpu",
        posterior_temperature: float | str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.module = module
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.max_iter = max_iter
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.tol = tol
        self.structure = structure
        self.estimator = estimator
        self.parameters = parameters
        self.prior = prior
        self.tune = tune
        self.rounds = rounds
        self.scale = scale
        self.dtype = dtype
        self.device = device
        self.posterior_temperature = posterior_temperature
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting -----------------------------------------------------------------------------------------

    @abstractmethod
    def _likelihood(self, outputs: int) -> Likelihood:
        """Return the likelihood for a network with so many outputs; raise if it does not fit."""

    @abstractmethod
    def _encode(self, y: np.ndarray, outputs: int) -> Tensor:
        """Return labels as the likelihood takes them."""

    def _fit(self, X: np.ndarray, y: np.ndarray, outputs: int) -> None:
        """Scale, train, tune; `X` and `y` are checked already and `outputs` is what a network should have."""
        dtype, device, rounds = self._checked_options()
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        generator = torch.Generator().manual_seed(seed)
        self.x_scaler_ = self._scaler(X, labels_of(self))
        x = self._inputs(X)
        with seeded(seed, device), self._progress(len(X), rounds) as bar:
            network = build(self.module, X.shape[1], outputs, self.hidden_layer_sizes, self.activation, dtype, device)
            likelihood = self._likelihood(output_size(network, x[:2]))
            labels = self._encode(y, output_size(network, x[:2])).to(device)
            self._train(network, x, labels, likelihood, rounds, generator, bar)
        self.module_ = network

    def _progress(self, rows: int, rounds: int) -> ProgressBar:
        """Return a bar over all trainings of `fit`: those of each start and round, and refits on folds."""
        trainings = (rounds + 2 * FOLDS) * len(STARTS) if rows <= SMALL else min(rounds, LARGE_ROUNDS) + 2
        return ProgressBar("training, tuning and refits (up to the maximum of epochs)", trainings * int(self.max_iter))

    def _scaler(self, values: np.ndarray, labels: np.ndarray) -> StandardScaler:
        """Return what standardises columns, or leaves them as they are with `scale=False`."""
        if self.scale:
            return fitted_scaler(values, labels)[0]
        return StandardScaler(with_mean=False, with_std=False).fit(values)

    def _train(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        likelihood: Likelihood,
        rounds: int,
        generator: torch.Generator,
        bar: ProgressBar,
    ) -> None:
        """Train from every start, from strict to loose, and keep the best by held-out rows or by the evidence."""
        epochs, batch_size = whole("max_iter", self.max_iter, 0), whole("batch_size", self.batch_size)
        report = print if self.verbose else None
        training = Training(self.solver, epochs, self.learning_rate_init, batch_size, self.tol, report, bar.advance)
        prior = self._prior()
        bound = prior.bind(Layout.of(select(parameters_of(network))), network.eval(), x[:2])
        data = Batches(x, y)
        rounds = rounds if len(x) <= SMALL else min(rounds, LARGE_ROUNDS)
        starts = STARTS if self.prior is None and rounds > 1 and len(x) <= SMALL else STARTS[:1]
        initial, candidates = copy.deepcopy(network.state_dict()), list[Round]()
        self.n_iter_ = 0
        for factor in starts:
            network.load_state_dict(initial)
            objective = Objective(network, x, y, likelihood, self._start(bound, factor))
            rival = max((candidate.log_evidence for candidate in candidates), default=-math.inf)
            candidates.append(self._alternate(objective, training, data, prior, factor, rounds, generator, rival))
        if len(candidates) > 1 and candidates[1].log_evidence > candidates[0].log_evidence - WORTHWHILE:
            # Where the evidence cannot tell, the later start, whose looser prior lets it fit the data better.
            candidates.reverse()
        self._temper(candidates, training, initial, data, generator)
        data.release()

    def _temper(
        self,
        candidates: list[Round],
        training: Training,
        initial: dict[str, Tensor],
        data: Batches,
        generator: torch.Generator,
    ) -> None:
        """Choose by refits the start, whether to train on at the tuned prior, and the posterior temperature.

        See `refits`; the first candidate is that of the evidence.
        """
        best, chosen = candidates[0], None
        if self.posterior_temperature != "auto":
            best.laplace.posterior_temperature = positive("posterior_temperature", self.posterior_temperature)
        elif training.epochs and len(best.trained.x) > 1:
            for candidate in candidates:
                refits = choose_by_refits(
                    candidate.trained, candidate.tuned, candidate.laplace, training, initial, generator
                )
                if refits is not None and (chosen is None or refits.score > chosen.score):
                    best, chosen = candidate, refits
        network, laplace = best.trained.network, best.laplace
        network.load_state_dict(best.state)
        if chosen is not None and chosen.train_on:
            self.n_iter_ += training.run(best.tuned, generator)
            laplace = laplace_like(laplace, best.tuned.network, data, generator)
        if chosen is not None:
            laplace.posterior_temperature = chosen.posterior_temperature
            if self.verbose:
                print(chosen)
        self.laplace_, self.held_out_ = laplace, chosen
        self.posterior_temperature_ = laplace.posterior_temperature
        self.log_evidence_ = float(laplace.log_evidence())

    def _alternate(
        self,
        objective: Objective,
        training: Training,
        data: Batches,
        prior: Prior,
        factor: float,
        rounds: int,
        generator: torch.Generator,
        rival: float,
    ) -> Round:
        """Train at the present prior and noise, then tune both, while the evidence grows (MacKay 1992).

        Stops early, too, where the remaining rounds at the present pace would not reach the evidence of a `rival`.
        """
        method = "evidence" if self.tune is True else self.tune
        network, best = objective.network, None
        worthwhile = max(WORTHWHILE, PER_ROW * len(objective.x))
        for number in range(1, rounds + 1):
            self.n_iter_ += training.run(objective, generator)
            laplace = Laplace(
                network, objective.likelihood, self.structure, self.estimator, parameters=self.parameters, prior=prior
            )
            laplace.fit(data, generator=generator, progress=self.verbose > 1)
            covers_all = laplace.fitted.index is None and laplace.fitted.layout.names == objective.prior.layout.names
            assert isinstance(laplace.prior, BoundPrior)
            laplace.update(prior=objective.prior if covers_all else self._start(laplace.prior, factor))
            trained = objective
            if method:
                tuned = laplace.tune(str(method))
                present = tuned.prior if covers_all and isinstance(tuned.prior, BoundPrior) else objective.prior
                objective = replace(objective, likelihood=laplace.likelihood, prior=present)
                if self.verbose:
                    print(f"round {number}: {tuned}")
            evidence = float(laplace.log_evidence())
            gain = math.inf if best is None else evidence - best.log_evidence
            if best is None or gain > 0:
                best = Round(evidence, laplace, copy.deepcopy(network.state_dict()), trained, objective)
            if gain < worthwhile or best.log_evidence + gain * (rounds - number) < rival:
                break
        assert best is not None
        return best

    def _prior(self) -> Prior:
        """Return the prior, by default one precision per layer."""
        if isinstance(self.prior, Prior):
            return self.prior
        return Prior(1.0 if self.prior is None else float(self.prior), groups="layer")

    def _start(self, bound: BoundPrior, factor: float) -> BoundPrior:
        """Return the initial prior; by default as precise as a layer has inputs, so that outputs keep their size."""
        if self.prior is not None:
            return bound
        precision, offset = bound.precision.clone(), 0
        for name, shape in bound.layout.items:
            if len(shape) > 1:
                precision[bound.index[offset]] = factor * math.prod(shape[1:])
            offset += bound.layout.sizes[name]
        return bound.with_precision(precision)

    def _checked_options(self) -> tuple[torch.dtype, torch.device, int]:
        """Return dtype, device and number of rounds, checked."""
        dtype = FLOATS[choose("dtype", self.dtype, FLOATS)]
        if not (isinstance(self.tune, bool) or self.tune in ("evidence", "gradient")):
            raise UnsupportedOperationError(f"tune={self.tune!r}: choose True ('evidence'), 'gradient', or False.")
        if self.prior is not None and not isinstance(self.prior, Prior):
            positive("prior", self.prior)
        least = int(self.module is None)  # without epochs a network of ours would be a random one
        rounds, epochs = whole("rounds", self.rounds), whole("max_iter", self.max_iter, least)
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise DataError(f"device={self.device!r} is not one of torch, such as 'cpu' or 'cuda:0'.") from error
        # Without tuning, or with the network as it was given, another round would only repeat the first.
        return dtype, device, rounds if self.tune and epochs else 1

    # --- predicting --------------------------------------------------------------------------------------

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Return scaled features as a tensor."""
        scaled = self.x_scaler_.transform(X)
        dtype = FLOATS[choose("dtype", self.dtype, FLOATS)]
        return torch.as_tensor(np.ascontiguousarray(scaled), dtype=dtype, device=self.device)

    def _checked(self, X: Any) -> Tensor:
        """Return features of new data, checked against those of `fit`."""
        check_is_fitted(self, "laplace_")
        checked: Any = validate_data(self, plain_table(X), reset=False, dtype=np.float64)
        return self._inputs(checked)

    def _predict(self, X: Any, *, keep_inputs: bool = False, **options: Any) -> Prediction:
        """Predict by the linearised network in its own units, a few rows at a time."""
        x = self._checked(X)
        generator = torch.Generator().manual_seed(0)  # for networks whose outputs are too many for closed form
        return self.laplace_.predict_loader(
            x.split(ROWS), generator=generator, keep_inputs=keep_inputs, progress=False, **options
        )

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        """Return the network's outputs at the mean weights."""
        return torch.cat([self.module_(part) for part in self._checked(X).split(ROWS)])

    @abstractmethod
    def _checked_labels(self, y: Any, outputs: int) -> Tensor:
        """Return labels of new data, encoded as in `fit`."""

    def check(self, X: Any, y: Any) -> CheckReport:
        """Check mode, linearisation and noise, and return a table; see `marquis.Laplace.check`.

        Args:
            X: training features.
            y: training labels.
        """
        x = self._checked(X)
        labels = self._checked_labels(y, output_size(self.module_, x[:2])).to(x.device)
        return self.laplace_.check(Batches(x, labels), generator=torch.Generator().manual_seed(0))


def generator_from(random_state: int | np.random.RandomState | None) -> torch.Generator:
    """Return a torch generator from scikit-learn's random state."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(np.iinfo(np.int32).max)))
