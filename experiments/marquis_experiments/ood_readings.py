"""Rows of `ood` that train nothing of their own: other ways to read a posterior, and several trainings as one model."""

from __future__ import annotations

from typing import NamedTuple

from marquis.autoencoders import LaplacianAutoencoder, PosteriorAutoencoder, from_posterior, linearised
from marquis.autoencoders.base import BaseAutoencoder

FACTORED = "online-kronecker-temperature-0.1"
READ_WARMER, TANGENT = f"{FACTORED}-read-at-1", f"{FACTORED}-linearised"
JOINED, JOINED_TANGENTS = f"{FACTORED}-together", f"{TANGENT}-together"
BOTH, BOTH_TANGENTS = f"{FACTORED}-both", f"{TANGENT}-both"
DEFAULT_TANGENT, POSTHOC_TANGENT = "online-sketched-linearised", "posthoc-kronecker-linearised"


class Reading(NamedTuple):
    """A model's posterior at temperature 1, the Laplace posterior, whatever the temperature of its training.

    Attributes:
        of: The model's key.
        linear: By the linearised network, instead of by networks drawn.
    """

    of: str
    linear: bool


READINGS = {
    READ_WARMER: Reading(FACTORED, False),
    TANGENT: Reading(FACTORED, True),
    DEFAULT_TANGENT: Reading("online-sketched", True),
    POSTHOC_TANGENT: Reading("posthoc-kronecker", True),
}
TOGETHER = {JOINED: (FACTORED, 3), JOINED_TANGENTS: (TANGENT, 3), BOTH: (FACTORED, 2), BOTH_TANGENTS: (TANGENT, 2)}
"""Key to that of the single row and how many trainings, with the first seeds."""


def trained_as(key: str) -> str:
    """The key of the model that has to be trained for a row."""
    single = TOGETHER.get(key, (key,))[0]
    return READINGS[single].of if single in READINGS else single


def read_as(trained: BaseAutoencoder, key: str) -> BaseAutoencoder:
    """The model of a row from the one that was trained for it."""
    single = TOGETHER.get(key, (key,))[0]
    if single not in READINGS:
        return trained
    if isinstance(trained, PosteriorAutoencoder):  # fitted at temperature 1
        return linearised(trained)
    assert isinstance(trained, LaplacianAutoencoder)
    if READINGS[single].linear:
        return linearised(trained, 1.0)
    return from_posterior(trained.encoder, trained.decoder, trained.posterior(temperature=1.0), trained.likelihood)
