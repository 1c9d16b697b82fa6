"""Refits on folds choose the posterior temperature, the start of the prior, and whether to train on at the tuned one.

See docs/experiments/tuning.md.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from marquis.errors import MarquisError
from marquis.laplace import Laplace
from marquis.laplace.held_out import TEMPERATURES, PredictedBatch, densities, predictions
from marquis.notebook import ShownAsText
from marquis.priors import BoundPrior
from marquis.sklearn.map_training import SMALL, Objective, Training

FOLDS = 5
"""Refits; above 2,000 rows one of them holds out enough."""

ROWS = 512
"""Rows at a time."""


@dataclass(frozen=True)
class ChosenByRefits(ShownAsText):
    """Hold what held-out rows favour, as mean log predictive densities in nats.

    Attributes:
        posterior_temperature: factor of the posterior covariance.
        train_on: whether the network is trained on at the tuned prior.
        scores: at every temperature, of the networks that were chosen.
        network: of these networks alone.
    """

    posterior_temperature: float
    train_on: bool
    scores: dict[float, float]
    network: float

    @property
    def score(self) -> float:
        """Return the density at the chosen temperature."""
        return self.scores[self.posterior_temperature]

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"held-out log density per row: {self.scores[1.0]:.4f} at temperature 1, {self.score:.4f} "
            f"at {self.posterior_temperature:g}, network alone {self.network:.4f}"
        )


def choose_by_refits(
    trained: Objective,
    tuned: Objective,
    laplace: Laplace,
    training: Training,
    initial: dict[str, Tensor],
    generator: torch.Generator,
) -> ChosenByRefits | None:
    """Refit on folds from the initial weights, and return what predicts the rows left out best.

    Every refit trains with the prior and noise that the network was trained with, then on with the tuned ones; both
    networks are judged at every temperature, with the tuned posterior.

    Args:
        trained: data, prior and noise that the network was trained with.
        tuned: the same with tuned prior and noise.
        laplace: the posterior of all data.
        training: how to train.
        initial: weights to start from.
        generator: of mini-batches.

    Returns:
        None where the posterior of a fold cannot have the tuned prior (another subnetwork) or cannot be computed.
    """
    parts: list[list[PredictedBatch]] = [[], []]
    objectives = (trained,) if tuned is trained else (trained, tuned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit of all data has said it
        for train_rows, test_rows in _folds(trained.y):
            network = copy.deepcopy(trained.network)
            network.load_state_dict(initial)
            part = {"network": network, "x": trained.x[train_rows], "y": trained.y[train_rows]}
            data = [(trained.x[rows], trained.y[rows]) for rows in train_rows.split(ROWS)]
            held_out = [(trained.x[rows], trained.y[rows]) for rows in test_rows.split(ROWS)]
            for batches, objective in zip(parts, objectives, strict=False):
                try:
                    training.run(replace(objective, **part), generator)
                    refitted = laplace_like(laplace, network, data, generator)
                    device = trained.x.device
                    batches += predictions(refitted.posterior, network, refitted.likelihood, held_out, device)
                except MarquisError:
                    return None
    temperatures = (0.0, *TEMPERATURES)
    scores = [densities(laplace.likelihood, batches, temperatures) for batches in parts if batches]
    best = max(scores, key=lambda of: max(of[t] for t in TEMPERATURES))
    network_alone = best.pop(0.0)
    temperature = max(best, key=lambda t: (best[t], t))
    return ChosenByRefits(temperature, len(scores) > 1 and best is scores[1], best, network_alone)


def laplace_like(laplace: Laplace, network: torch.nn.Module, data: object, generator: torch.Generator) -> Laplace:
    """Return a posterior of another network or other data, with the same options, tuned prior and noise.

    Raises:
        MarquisError: the prior has other groups there.
    """
    prior = laplace.prior
    assert isinstance(prior, BoundPrior)
    options = {"parameters": laplace.parameters, "prior": laplace._prior, "temperature": laplace.temperature}
    other = Laplace(network, laplace.likelihood, laplace.structure, laplace.estimator, **options)
    other.fit(data, generator=generator, progress=False)  # pyright: ignore[reportArgumentType]
    present = other.prior
    if not isinstance(present, BoundPrior) or present.precision.shape != prior.precision.shape:
        raise MarquisError("the prior has other groups than that of all data.")
    other.noise_tuned = laplace.noise_tuned
    return other.update(prior=present.with_precision(prior.precision))


def _folds(y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows to train on and rows to hold out; labels that repeat, as classes do, in proportion."""
    n = len(y)
    flat = y.cpu().numpy().reshape(n, -1)
    counts = np.unique(flat[:, 0], return_counts=True)[1]
    by_class = flat.shape[1] == 1 and counts.max() >= FOLDS and len(counts) <= n // FOLDS
    folds = (StratifiedKFold if by_class else KFold)(min(FOLDS, n), shuffle=True, random_state=0)
    for number, (train_rows, test_rows) in enumerate(folds.split(flat, np.searchsorted(np.unique(flat), flat[:, 0]))):
        if number == 0 or n <= SMALL:
            yield torch.from_numpy(train_rows).to(y.device), torch.from_numpy(test_rows).to(y.device)
