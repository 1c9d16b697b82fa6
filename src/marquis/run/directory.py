"""Create, open and read the folder of a run."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from marquis.arguments import checked_methods
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.epoch_table import Row, read_rows
from marquis.autoencoders.kinds import ModelSpec
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.linearised import linearised
from marquis.autoencoders.posthoc import PosteriorAutoencoder
from marquis.autoencoders.saving import load as load_model
from marquis.autoencoders.training import CHECKPOINTS, METRICS, TENSORBOARD
from marquis.data import Data, load
from marquis.data.module import DataModule
from marquis.errors import DataError, StorageError, UnsupportedOperationError
from marquis.io.atomic import LEFTOVER, remove_leftovers, storage_errors
from marquis.io.checksum import read_json, write_json
from marquis.io.lock import SUFFIX, exclusive
from marquis.options import renamed_arguments
from marquis.run.rows import Rows, rows_of
from marquis.run.scaling import Scaling
from marquis.run.settings import TrainingSettings, rows_per_batch
from marquis.run.training_data import fingerprint, has_text, largest_of, load_rows, missing_in

VERSION = 2
UNSEALED = (1,)
"""Version of configurations that carry no checksum."""
CONFIG, MODEL, SUMMARY = "config.json", "model.safetensors", "summary.json"
SUMMARY_VERSION = 2
"""Summaries of 0.1.0 have no version and no checksum."""
OTHER_UNITS = 10
"""Images this many times brighter than all training images are in other units, and so are images of at most 1 where
training images were brighter than this."""


@checked_methods
@dataclass(frozen=True, eq=False)
class Run:
    """Hold a run's folder and configuration.

    Attributes:
        path: The folder, which holds `config.json`, `metrics.csv`, `checkpoints/`, `tensorboard/`, and, when training
            is over, `model.safetensors` and `summary.json`.
        settings: What was asked for.
        spec: How the model is built.
        scaling: Of the columns of a table; None for images.
        columns: Names of a table's columns, where it has them.
        brightest: Largest value of the training images; None for tables, and in runs of before it was kept.
        trained_on: `fingerprint` of the training data, if they are the user's own; None in runs of before it was kept.
        loaded: Training rows as they were read, of a run that has just been created.
        categories: Levels of a table's text columns; `columns` names their indicators.
    """

    path: Path
    settings: TrainingSettings
    spec: ModelSpec
    scaling: Scaling | None = None
    columns: tuple[str, ...] | None = None
    brightest: float | None = None
    trained_on: str | None = None
    loaded: Data | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    # Making and opening

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: TrainingSettings, *, force: bool = False) -> Run:
        """Look at the training data and write `config.json` into a folder that is new, empty, or an old run's.

        Raises:
            DataError: The folder has something in it (without `force`), or something that is not a run.
            StorageError: The system cannot write there, or a training is under way there.
        """
        path = Path(path)
        with storage_errors(path):
            _require_free(path, force)
            run = cls._new_run(path, settings)
            _ = run.new_model  # refuses what cannot be built before anything is removed or written
            run.data_module.setup()  # refuses too few rows
            path.mkdir(parents=True, exist_ok=True)
            with exclusive(path, "a training"):
                _require_free(path, force)  # again: another training may have begun meanwhile
                _remove_run(path)
                run.save_config()
        return run

    @classmethod
    def _new_run(cls, path: Path, settings: TrainingSettings) -> Run:
        """Look at the training data, and return the run that they and the settings describe."""
        train = load_rows(settings, "train")
        if settings.batch_size is None:
            settings = replace(settings, batch_size=rows_per_batch(len(train)))
        if settings.header is None and settings.has_csv:
            settings = replace(settings, header=train.feature_names is not None)  # and so it stays
        shape = train.shape[1:]
        scaling = None
        if len(shape) == 1 and settings.likelihood in ("gaussian", "heteroscedastic"):
            scaling = Scaling.of(train.x, train.feature_names)
        spec = ModelSpec(
            settings.model,
            tuple(shape),
            settings.latent,
            settings.architecture,
            settings.width,
            settings.likelihood,
            missing=missing_in(train),
            lr=settings.lr,
            options=settings.model_options(len(train)),
        )
        brightest = None if len(shape) == 1 else largest_of(train)
        trained_on = fingerprint(settings.data)
        names, categories = train.feature_names, train.categories
        return cls(path, settings, spec, scaling, names, brightest, trained_on, train, categories)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """Open a run that is there already.

        Raises:
            DataError: There is none, or its configuration is damaged.
        """
        path = Path(path)
        if not os.path.isfile(path / CONFIG):  # unlike Path.is_file, False where we may not look
            raise DataError(f"{path} is not a run: there is no {CONFIG} in it; make one with `marquis train`")
        try:
            config = read_json(path / CONFIG, unsealed=UNSEALED)
            if config["version"] not in (VERSION, *UNSEALED):
                raise DataError(f"{path / CONFIG} is of version {config['version']}, this Marquis reads {VERSION}")
            settings = TrainingSettings.from_json(config["settings"])
            spec = ModelSpec.from_json(config["model"])
            scaling = None if config["scaling"] is None else Scaling.from_json(config["scaling"])
            columns = None if config["columns"] is None else tuple(str(name) for name in config["columns"])
            if "header" not in config["settings"] and settings.has_csv:
                settings = replace(settings, header=columns is not None)  # as it was read then: the rule has changed
            widths = [len(part) for part in (columns, scaling and scaling.mean) if part is not None]
            if any((width,) != spec.shape for width in widths):
                raise ValueError(f"{widths[0]} columns or scales, but data of shape {list(spec.shape)}")
            brightest = None if config.get("brightest") is None else float(config["brightest"])
            trained_on = None if config.get("trained_on") is None else str(config["trained_on"])
            categories = {str(name): tuple(map(str, levels)) for name, levels in config.get("categories", {}).items()}
            if not {f"{name}={level}" for name, levels in categories.items() for level in levels} <= set(columns or ()):
                raise ValueError("categories that are not among the columns")
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path / CONFIG} is damaged ({error})") from error
        return cls(path, settings, spec, scaling, columns, brightest, trained_on, categories=categories)

    def resumed(self, options: dict[str, Any]) -> Run:
        """Return the same run, if these options do not contradict its settings."""
        run = replace(self, settings=self.settings.resumed(options))
        with exclusive(self.path, "a training"):
            run.save_config()
        return run

    def save_config(self) -> None:
        """Write `config.json`, with a checksum."""
        write_json(self.path / CONFIG, self._config())

    def check_config(self) -> bool:
        """Return whether `config.json` is still this run's; one that was removed is written again.

        Raises:
            StorageError: It is another run's by now.
        """
        if not (self.path / CONFIG).exists():
            self.save_config()
            return False
        if read_json(self.path / CONFIG) != json.loads(json.dumps(self._config())):
            raise StorageError(f"{self.path / CONFIG} was replaced during training; the checkpoints are kept.")
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the only right to write to the folder while the run is trained.

        Raises:
            StorageError: Another training has it, or has written its configuration meanwhile.
        """
        with exclusive(self.path, "a training"):
            self.check_config()
            yield

    def _config(self) -> dict[str, Any]:
        """Return the contents of `config.json`."""
        return {
            "version": VERSION,
            "settings": self.settings.as_json(),
            "model": self.spec.as_json(),
            "scaling": None if self.scaling is None else self.scaling.as_json(),
            "columns": None if self.columns is None else list(self.columns),
            "brightest": self.brightest,
            "trained_on": self.trained_on,
            **(
                {"categories": {name: list(levels) for name, levels in self.categories.items()}}
                if self.categories
                else {}
            ),
        }

    # What belongs to it

    @property
    def is_table(self) -> bool:
        """Return whether the data are rows of columns, not images or other arrays."""
        return len(self.spec.shape) == 1

    @property
    def model_path(self) -> Path:
        """Return the path of the finished model, whether it is there or not."""
        return self.path / MODEL

    def model(self, *, linear: bool = False) -> BaseAutoencoder:
        """Return the finished model, in evaluation mode.

        Args:
            linear: Its posterior read through the linearised network, see `autoencoders.linearised`: the Laplace
                posterior if it trained with one, whatever the temperature of training, else as it was made.

        Raises:
            DataError: Training is not over, or the file is damaged or another model's.
            UnsupportedOperationError: `linear`, and the model has no Laplace posterior.
        """
        if not self.model_path.is_file():
            raise DataError(
                f"{self.path} has no finished model yet; go on with "
                f"`marquis train {self.settings.model} --out {self.path} --resume`"
            )
        model, spec = load_model(self.model_path)
        if (spec.kind, spec.shape, spec.latent) != (self.spec.kind, self.spec.shape, self.spec.latent):
            raise DataError(f"{self.model_path} is not the model that {self.path / CONFIG} describes; train it again")
        if not linear:
            return model
        if not isinstance(model, (LaplacianAutoencoder, PosteriorAutoencoder)):
            raise UnsupportedOperationError(
                f"{self.path} is of kind {spec.kind!r}, which has no Laplace posterior to linearise; train lae or "
                "lae-posthoc"
            )
        return linearised(model, "laplace" if isinstance(model, LaplacianAutoencoder) else None)

    def rows_of_training(self) -> list[Row]:
        """Return the rows of `metrics.csv`, one per epoch."""
        return read_rows(self.path / METRICS)

    @functools.cached_property
    def data_module(self) -> DataModule:
        """Return training, validation and test rows, scaled.

        Raises:
            DataError: They cannot be read, or are not what the run was trained on.
        """
        settings = self.settings
        assert settings.batch_size is not None, "known since the run was made"
        fresh = self.loaded is not None or self.trained_on is None
        if not fresh and fingerprint(settings.data) not in (None, self.trained_on):
            raise DataError(
                f"the training data of {self.path}: {settings.data} is not as it was in training, so that rows which "
                "were trained on would be held out; bring it back, or train anew"
            )
        try:
            read = load_rows(settings, "train") if self.loaded is None else self.loaded
            train, test = self._scaled(read), self._scaled(load_rows(settings, "test"))
            validation = load_rows(settings, "validation") if settings.data == "celeba" else None  # its official rows
        except DataError as problem:
            raise DataError(f"the training data of {self.path}: {problem}") from problem
        batch_size, seed = settings.batch_size, settings.seed
        return DataModule(train, batch_size=batch_size, validation=validation, seed=seed, test=test)

    @functools.cached_property
    def new_model(self) -> BaseAutoencoder:
        """Return the model as it is before training; built once, and trained in place."""
        return self.spec.build(self.settings.seed)

    def _scaled(self, data: Data) -> Data:
        """Return data scaled as the model takes them."""
        if not self.is_table:
            return data
        rows = rows_of(data, self.spec.shape, scaling=self.scaling, columns=self.columns)
        return replace(data, stored=rows.x, feature_names=rows.names, dtype=rows.x.dtype)

    @renamed_arguments(holes="allow_missing")
    def read(
        self,
        name: str | os.PathLike[str],
        *,
        split: str | None = None,
        limit: int | None = None,
        some: int | None = None,
        seed: int = 0,
        header: bool | None = None,
        allow_missing: bool = False,
    ) -> Rows:
        """Read rows of another file, folder or data set, as the model takes them.

        Args:
            name: As in `mq.data.load`; by default the test rows of a named set and all rows of a file.
            split: "train", "test" or "all".
            limit: Maximum number of rows, from the first on.
            some: Maximum number of random rows.
            seed: Seed of that choice.
            header: For `.csv`: whether the first line has names; auto-detected by default.
            allow_missing: Whether entries may be missing although the model was trained on complete data.

        Raises:
            DataError: They cannot be read, are of another shape, or have missing entries that the model cannot take.
        """
        from marquis.data.registry import set_name

        split = split or ("test" if set_name(name) else None)
        options: dict[str, Any] = {"header": header}
        if self.settings.size is not None and os.path.isdir(name):
            options["size"] = self.settings.size
        if self.categories and has_text(name):
            options["categories"] = self.categories
        dtype = torch.float64 if self.is_table else torch.float32
        options |= {"limit": limit, "some": some, "seed": seed, "dtype": dtype}
        data = load(name, split, self.settings.data_dir, **options)
        described = {"scaling": self.scaling, "columns": self.columns, "targets": self.settings.target}
        rows = rows_of(data, self.spec.shape, **described, categories=self.categories)
        self._check_units(data)
        if not allow_missing and not self.spec.missing and bool(rows.x.isnan().any()):
            raise DataError(
                f"{rows.source} has missing entries, but the model was trained on complete data; fill them in first: "
                f"`marquis impute {self.path} {name} --out FILE`"
            )
        return rows

    def _check_units(self, data: Data) -> None:
        """Refuse images from 0 to 255 where those of training went to 1, and the other way round."""
        if self.brightest is None:
            return
        largest = largest_of(data)
        brighter = largest > OTHER_UNITS * max(self.brightest, 1e-6)
        if brighter or (0 < largest <= 1 and self.brightest > OTHER_UNITS):
            raise DataError(
                f"{data.source} has values up to {largest:.4g}, the training images up to {self.brightest:.4g}; "
                f"bring them to the same units, for instance by {'dividing' if brighter else 'multiplying'} by 255"
            )


def _require_free(path: Path, force: bool) -> None:
    """Refuse a path where no new run can be; left-overs of a process that was killed at its start are no hindrance."""
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file; --out must be a folder")
    if (path / CONFIG).is_file():
        if not force:
            raise DataError(f"{path} holds a run already: go on with it by --resume, or replace it by --force")
    elif path.is_dir() and any(not (p.name.startswith(LEFTOVER) or p.name == SUFFIX) for p in path.iterdir()):
        raise DataError(f"{path} is not empty and not a run of ours; choose another folder")


def _remove_run(path: Path) -> None:
    """Remove the files of a run, and nothing else that may be in its folder."""
    remove_leftovers(path)
    for name in (CHECKPOINTS, TENSORBOARD, "report"):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (MODEL, SUMMARY, METRICS, "report.html"):
        (path / name).unlink(missing_ok=True)
    # results of commands that were written to the default place
    for pattern in ("evaluation.*", "evaluation-linearised.*", "ood-*.*", "scores-*.csv", "codes-*.csv", "samples.*"):
        for stale in path.glob(pattern):
            stale.unlink(missing_ok=True)
