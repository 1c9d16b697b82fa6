"""What a training was asked to do, as it is kept in `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from marquis.autoencoders.kinds import find_kind
from marquis.errors import DataError

ARCHITECTURES = {"mnist": "mnist-dense", "kmnist": "mnist-dense", "celeba": "celeba-conv"}
"""The paper's networks for data sets that it has some for; others get networks derived from the shape."""
LATENT = {"celeba": 64}
CHANGEABLE = ("epochs",)
"""What may differ when a run is resumed: more epochs continue the same training."""
SEEDS = 2**32
"""So many there are: NumPy takes no more."""
CURVATURE = ("structure", "temperature")
LATER = (*CURVATURE, "header")
"""Came after the first runs were written, which have the defaults."""
LEAST = {"epochs": 1, "patience": 1, "batch_size": 1, "seed": 0, "latent": 1, "size": 1}
LARGEST_BATCH, SMALLEST_BATCH = 128, 16
EVERY = 20
"""Steps between two curvatures that have to be decomposed (Kronecker, block, full), at most."""
AN_EPOCH = 10
"""And at least so many of them in an epoch, twice what was enough on the digits; see `steps_between`."""


def steps_between(rows: int, batch_size: int) -> int:
    """Steps from one curvature to the next: many where an epoch is long, one where it is short.

    The running curvature remembers about an epoch. Kronecker factors that rest on few batches, each taken at one drawn
    network, are nearly singular: in what they leave open only the prior holds the weights, and other rows and other
    draws meet that noise. A diagonal is never singular, and does not mind. On the 8 x 8 digits, 11 steps an epoch,
    `every=20` raises the held-out error from 3.0 to 3.9.
    """
    return min(EVERY, max(1, rows // (batch_size * AN_EPOCH)))


def rows_per_batch(rows: int) -> int:
    """128, but fewer of few rows, so that an epoch has ten steps where it can.

    Patience and the learning rate's schedule count epochs: with two steps in each, training on 178 wines ended before
    it had learnt anything.
    """
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, rows // AN_EPOCH))


@dataclass(frozen=True)
class Settings:
    """All options of a training, with their defaults.

    Attributes:
        model: Kind of model, one of `marquis.autoencoders.KINDS`.
        data: Name of a data set, or an absolute path.
        latent: Size of the code.
        likelihood: "gaussian" or "bernoulli".
        architecture: See `ModelSpec`.
        width: Factor on hidden units and channels.
        epochs: At most so many.
        patience: Epochs without improvement before training stops.
        batch_size: Rows per batch; None until the data are known, see `rows_per_batch`.
        lr: Learning rate.
        seed: Of weights, order of the data and random draws.
        preset: Published settings of the Laplacian autoencoder, "paper" or "paper-code".
        structure: Of a Laplacian autoencoder's curvature, "diagonal" by default.
        temperature: Of a Laplacian autoencoder's posterior.
        limit: Only the first so many training rows.
        data_dir: Folder to look for data in.
        target: Columns of a table that are not part of the data.
        size: Edge to which images of a folder are resized.
        header: Whether a .csv file begins with names; None: it is found out.
    """

    model: str
    data: str
    latent: int = 2
    likelihood: str = "gaussian"
    architecture: str = "auto"
    width: float = 1.0
    epochs: int = 100
    patience: int = 8
    batch_size: int | None = None
    lr: float = 1e-3
    seed: int = 0
    preset: str | None = None
    limit: int | None = None
    data_dir: str | None = None
    target: tuple[str, ...] = ()
    size: int | None = None
    structure: str | None = None
    temperature: float | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; what concerns networks and data is refused where they are made."""
        find_kind(self.model)
        if self.preset is not None and self.model != "lae":
            raise DataError(f"--preset belongs to the model lae, not to {self.model}")
        for name in CURVATURE:
            if getattr(self, name) is not None and self.model not in ("lae", "lae-posthoc"):
                raise DataError(f"--{name} belongs to the models lae and lae-posthoc, not to {self.model}")
        if self.likelihood not in ("gaussian", "bernoulli"):
            raise DataError(f"likelihood {self.likelihood!r} is not known; use gaussian or bernoulli")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name.replace('_', '-')} must be at least {least}, not {value}")
        if self.seed >= SEEDS:
            raise DataError(f"seed must be less than {SEEDS}, not {self.seed}")

    @property
    def has_csv(self) -> bool:
        """Whether the data are a .csv file, to which `header` applies."""
        return self.data.lower().endswith(".csv")

    def options(self, rows: int) -> dict[str, Any]:
        """Those of `ModelSpec` that belong to this kind of model, for so many training data."""
        named: dict[str, Any] = {"preset": self.preset, "structure": self.structure, "temperature": self.temperature}
        if self.model == "lae" and self.structure not in (None, "diagonal"):
            named["every"] = steps_between(rows, self.batch_size or rows_per_batch(rows))
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """With defaults for what is None or absent, some of which depend on the data."""
        told = {name: value for name, value in given.items() if value is not None}
        if "data" not in told:
            raise DataError("say what to train on: --data NAME or --data PATH (`marquis data list` shows the names)")
        told.setdefault("architecture", ARCHITECTURES.get(told["data"], "auto"))
        told.setdefault("latent", LATENT.get(told["data"], 2))
        return cls(**told)

    def resumed(self, given: Mapping[str, Any]) -> Settings:
        """These settings, if what is given now does not contradict them.

        Raises:
            DataError: It does; the message names the option.
        """
        kept = asdict(self)
        for name, value in given.items():
            if value is None or value == kept[name] or name in CHANGEABLE:
                continue
            raise DataError(
                f"--{name.replace('_', '-')} {value} contradicts the run to be resumed, which has {kept[name]}; "
                "leave it out, or train anew in another folder"
            )
        return Settings(**{**kept, **{name: given[name] for name in CHANGEABLE if given.get(name) is not None}})

    def as_json(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {**asdict(self), "target": list(self.target)}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Settings:
        """The inverse of `as_json`.

        Raises:
            DataError: Entries are missing or unknown.
        """
        names = {entry.name for entry in fields(cls)}
        if not names - set(LATER) <= set(held) <= names:
            wrong = sorted((names - set(LATER) - set(held)) | (set(held) - names))
            raise DataError(f"the configuration of the run lacks or has too much: {', '.join(wrong)}")
        return cls(**{**held, "target": tuple(held["target"])})
