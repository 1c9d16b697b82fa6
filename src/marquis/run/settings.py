"""Declare the options of a training, as `marquis train` takes them and as `config.json` holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from marquis.arguments import Positive, checked_methods
from marquis.choices import choose
from marquis.errors import DataError
from marquis.online.settings import NEW_NAMES
from marquis.options import option, options_of

ARCHITECTURES = {"mnist": "mnist-dense", "kmnist": "mnist-dense", "celeba": "celeba-conv"}
"""The paper's networks for its data sets; other data sets get networks derived from the shape."""
LATENT = {"celeba": 64}
CHANGEABLE = ("epochs",)
"""Options that may differ when a run is resumed: more epochs continue the same training."""
SEEDS = 2**32
"""Number of seeds that NumPy accepts."""
ADDED = ("header", "options")
"""Entries that the first versions did not write."""
MOVED = ("preset", "structure", "temperature")
"""Entries that are in `options` now."""
LEAST = {"epochs": 1, "patience": 1, "batch_size": 1, "seed": 0, "latent": 1, "size": 1}
LARGEST_BATCH, SMALLEST_BATCH = 128, 16
EVERY = 20
"""Largest number of steps between two curvatures that have to be decomposed (Kronecker, block, full)."""
AN_EPOCH = 10
"""Smallest number of curvature updates per epoch, twice what was enough on the digits; see `steps_between`."""


def steps_between(rows: int, batch_size: int) -> int:
    """Return the number of steps from one curvature update to the next: more in long epochs, one in short ones.

    The running curvature averages over about an epoch. Kronecker factors from few batches, each at one sampled network,
    are nearly singular: in the directions they miss only the prior restricts the weights, and other rows and other
    samples are evaluated with that noise. A diagonal is never singular. On the 8 x 8 digits, 11 steps per epoch,
    `every=20` raises the held-out error from 3.0 to 3.9.
    """
    return min(EVERY, max(1, rows // (batch_size * AN_EPOCH)))


def rows_per_batch(rows: int) -> int:
    """Return the default batch size: 128, but smaller for few rows, so that an epoch has ten steps if possible.

    Patience and the learning rate's schedule count epochs: with two steps in each, training on 178 wines ended before
    the network had learnt anything.
    """
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, rows // AN_EPOCH))


@checked_methods
@dataclass(frozen=True)
class TrainingSettings:
    """Hold all options of a training.

    Attributes:
        options: Options of the kind of model (`marquis.autoencoders.KINDS`) that differ from their defaults; for `lae`
            fields of `marquis.online.OnlineSettings` and `preset`.
    """

    model: str = option(help="Kind of model: lae, lae-posthoc, ae, ae-variance, vae, dropout, ensemble or bbb.")
    data: str = option(help="Name of a data set (`marquis data list`), table (.csv, .parquet, .npy, .npz) or folder.")
    latent: int = option(2, "Number of latent dimensions.", shown="2; celeba 64")
    likelihood: str = option(
        "gaussian", "Likelihood: gaussian, bernoulli, or for lae heteroscedastic (the noise is predicted)."
    )
    architecture: str = option(
        "auto",
        "Architecture: auto, dense, convolutional, mnist-dense, fashion-conv or celeba-conv.",
        shown="auto; mnist, kmnist and celeba the paper's",
    )
    width: float = option(1.0, "Factor on the numbers of hidden units and channels.")
    epochs: int = option(100, "Maximum number of epochs.")
    patience: int = option(8, "Number of epochs without improvement after which training stops.")
    batch_size: int | None = option(None, "Batch size.", shown="128; smaller for fewer than 1280 rows")
    lr: Positive = option(1e-3, "Learning rate.")  # noqa: RUF009 (a number)
    seed: int = option(0, "Random seed.")
    limit: int | None = option(None, "Maximum number of training rows: the first ones.")
    data_dir: str | None = option(None, "Directory to search for data first.", shown="$MARQUIS_DATA")
    target: tuple[str, ...] = option((), "Column of a table to leave out; may be repeated.")
    size: int | None = option(None, "Resize the images of a folder to this edge length.")
    header: bool | None = option(
        None, "Whether the first line of a .csv file holds column names.", shown="auto-detected"
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant; networks and data refuse theirs when they are made."""
        from marquis.autoencoders.kinds import KINDS  # here, because it loads torch

        object.__setattr__(self, "model", choose("kind of autoencoder", self.model, KINDS))
        takes = KINDS[self.model].options
        for name in self.options:
            if name not in takes:
                owners = [kind for kind, kind_settings in KINDS.items() if name in kind_settings.options]
                raise DataError(f"{_flag(name)} belongs to the model {' and '.join(owners)}, not to {self.model}")
        likelihood = choose(
            "likelihood", self.likelihood, ("gaussian", "bernoulli", "heteroscedastic"), error=DataError
        )
        object.__setattr__(self, "likelihood", likelihood)
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name.replace('_', '-')} must be at least {least}, not {value}")
        if self.seed >= SEEDS:
            raise DataError(f"seed must be less than {SEEDS}, not {self.seed}")

    @property
    def has_csv(self) -> bool:
        """Return whether the data are a .csv file, to which `header` applies."""
        return self.data.lower().endswith(".csv")

    def model_options(self, rows: int) -> dict[str, Any]:
        """Return the options of `ModelSpec` for a number of training rows."""
        options = dict(self.options)
        if self.model == "lae" and options.get("structure", "diagonal") not in ("diagonal", "diag"):
            options.setdefault("every", steps_between(rows, self.batch_size or rows_per_batch(rows)))
        return options

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> TrainingSettings:
        """Return settings from options by name; None stands for the default, which may depend on the data."""
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if "data" not in chosen:
            raise DataError("say what to train on: --data NAME or --data PATH (`marquis data list` shows the names)")
        chosen.setdefault("architecture", ARCHITECTURES.get(chosen["data"], "auto"))
        chosen.setdefault("latent", LATENT.get(chosen["data"], 2))
        known = options_of(cls)
        options = {name: value for name, value in chosen.items() if name not in known}
        return cls(**{name: value for name, value in chosen.items() if name in known}, options=options)

    def resumed(self, chosen: Mapping[str, Any]) -> TrainingSettings:
        """Return these settings with more epochs, if the options that are chosen now do not contradict them.

        Raises:
            DataError: They do; the message names the option.
        """
        values = asdict(self)
        present = {**values, **self.options}
        for name, value in chosen.items():
            if value is None or value == present.get(name) or name in CHANGEABLE:
                continue
            raise DataError(
                f"{_flag(name)} {value} contradicts the run to be resumed, which has "
                f"{present.get(name, 'the default')}; leave it out, or train anew in another folder"
            )
        return TrainingSettings(**values | {name: chosen[name] for name in CHANGEABLE if chosen.get(name) is not None})

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return {**asdict(self), "target": list(self.target)}

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> TrainingSettings:
        """Return what `as_json` described; also what earlier versions wrote.

        Raises:
            DataError: Entries are missing or unknown.
        """
        moved = {name: entries[name] for name in MOVED if entries.get(name) is not None}
        if entries.get("model") == "lae":
            moved = {NEW_NAMES.get(name, name): value for name, value in moved.items()}
        entries = {name: value for name, value in entries.items() if name not in MOVED}
        names = {entry.name for entry in fields(cls)}
        wrong = sorted((names - set(ADDED) - set(entries)) | (set(entries) - names))
        if wrong:
            raise DataError(f"the configuration of the run lacks or has too much: {', '.join(wrong)}")
        return cls(
            **{**entries, "target": tuple(entries["target"]), "options": {**moved, **entries.get("options", {})}}
        )


def _flag(name: str) -> str:
    """Return the option's name on the command line."""
    return f"--{name.replace('_', '-')}"
