"""Autoencoders of images, trained once and shared by all experiments that need the same one.

`model(folder, key, seed, recipe, images)` trains the model of that key or loads it from the folder. The small recipes
train for a fixed number of epochs without validation data, so that rows of a table compare at equal numbers of steps.
The full recipe is the paper's protocol (55,000 images, 5,000 for validation, learning rate halved on a plateau, early
stopping) by `autoencoders.fit`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from marquis.autoencoders import (
    Autoencoder,
    LaplacianAutoencoder,
    MeanFieldAutoencoder,
    ModelSpec,
    fit_posthoc,
    load,
    save,
)
from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError, NumericalError
from marquis.likelihoods import Heteroscedastic
from marquis.online.settings import NEW_NAMES
from marquis.randomness import seeded
from marquis_experiments.common.cells import keep, stored
from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.common.study import Run
from marquis_experiments.common.training import Shuffled, descend

ESTIMATORS = ("exact", "approximate", "sketched")
PRESETS: dict[str, dict[str, Any]] = {
    "": {},
    "-paper-code": {"preset": "paper-code"},
    "-paper": {"preset": "paper"},
    "-paper-rate": {"preset": "paper", "forgetting": "learning-rate"},
    "-paper-1e-4": {"preset": "paper", "forgetting": 1e-4},
}
"""Suffixes of the keys of online models; our default has none."""
VARIANTS: dict[str, dict[str, Any]] = {
    "-temperature-0.1": {"temperature": 0.1},
    "-temperature-1": {"temperature": 1.0},
    "-unit-noise": {"noise_precision": 1.0},
    "-learnt-prior": {"prior_precision": "learnt"},
}
"""Suffixes of the keys of online models that change one setting of the default, for ablations."""
LIKELIHOOD = "likelihood"
"""The option that is a field of `ModelSpec`; "heteroscedastic": a second decoder predicts the noise."""
EVERY: dict[str, dict[str, Any]] = {"exact": {"every": 10}}
"""An exact curvature costs about 19 plain steps, so it is computed every tenth step."""
KRONECKER = {"structure": "kronecker", "estimator": "sketched", "every": 20}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("ae", "ae-variance", "vae", "dropout", "ensemble", "bbb")},
    "vae-kl-0.001": ("vae", {"kl_weight": 0.001}),
    "online-variance": ("lae", {"estimator": "sketched", LIKELIHOOD: "heteroscedastic"}),
    "posthoc-kronecker": ("lae-posthoc", {"structure": "kronecker", "estimator": "sketched"}),
    **{f"posthoc-{name}": ("lae-posthoc", {"structure": "diagonal", "estimator": name}) for name in ESTIMATORS},
    **{
        f"online-{name}{suffix}": ("lae", {"estimator": name, **preset, **EVERY.get(name, {})})
        for name in ESTIMATORS
        for suffix, preset in PRESETS.items()
    },
    **{f"online-sketched{suffix}": ("lae", {"estimator": "sketched", **one}) for suffix, one in VARIANTS.items()},
    "online-kronecker": ("lae", KRONECKER),
    "online-kronecker-temperature-0.1": ("lae", {**KRONECKER, "temperature": 0.1}),
}
"""Key to kind of autoencoder and its options. Post-hoc models are made of the model "ae" of the same seed.

Names of options are those of the first cached models, since files are named by a digest of them.
"""


@dataclass(frozen=True)
class Recipe:
    """Describe the data and the training that all models of an experiment share.

    Attributes:
        data: Name of the data set.
        images: Number of training images; the first ones.
        epochs: Number of epochs, or their maximum where there is early stopping.
        architecture: Architecture name of `ModelSpec`.
        width: Factor on the hidden units.
        batch: Batch size.
        lr: Learning rate of Adam.
        validation: Images held out for early stopping, not counted in `images`; 0 for a fixed number of epochs.
        patience: Patience of early stopping.
        latent: Dimension of the code.
        falling: Further epochs of the finished model (which is kept, too), in which the learning rate falls linearly
            to zero; Adam starts again. None for none. Not with early stopping, which has its own schedule.
    """

    data: str = "mnist"
    images: int = 10_000
    epochs: int = 8
    architecture: str = "mnist-dense"
    width: float = 1.0
    batch: int = 64
    lr: float = 1e-3
    validation: int = 0
    patience: int = 8
    latent: int = 2
    falling: int | None = None

    def __post_init__(self) -> None:
        """Raise `DataError` for a falling learning rate of no epochs, or together with early stopping."""
        if self.falling is not None and not (self.falling >= 1 and self.validation == 0):
            raise DataError(f"falling={self.falling}: at least one epoch, after a fixed number at a constant rate.")

    def described(self) -> dict[str, Any]:
        """Return what is set, for file names; options that are not set leave the names of earlier models alone."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step (counted from 0) as a multiple of `lr`."""
        return 1.0 if self.falling is None else 1 - step / steps


RECIPES = {
    "quick": Recipe("digits", 200, 2, "dense", 0.25),
    "default": Recipe(),
    "full": Recipe(images=55_000, epochs=100, validation=5_000),
}
"""Recipes of `hessians` and `latent-map` by size."""
TASK_RECIPES = {**RECIPES, "default": Recipe(images=20_000, epochs=15)}
"""Recipes of `imputation` and `few-labels` by size, which need better codes."""


@dataclass(frozen=True, eq=False)
class Images:
    """Hold training images, validation images for early stopping (or None), and test images."""

    train: Data
    validation: Data | None
    test: Data

    @staticmethod
    def load(recipe: Recipe, data_dir: str | Path | None = None) -> Images:
        """Load as many images as the recipe needs, validation after training images, and all test images."""
        wanted = recipe.images + recipe.validation
        rows = load_data(recipe.data, "train", data_dir, limit=wanted)
        if len(rows) < wanted:
            raise DataError(f"{recipe.data} has {len(rows)} training images, the recipe wants {wanted}.")
        validation = rows[recipe.images :] if recipe.validation else None
        return Images(rows[: recipe.images], validation, load_data(recipe.data, "test", data_dir))


@dataclass(frozen=True)
class Place:
    """Hold the folders of cells, of shared models and of data; unlike a `Run` it can be sent to other processes."""

    folder: Path
    shared: Path
    data_dir: Path | None

    @staticmethod
    def of(run: Run) -> Place:
        """Return the folders of a run."""
        return Place(run.cells, run.shared, run.data_dir)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Hold a trained model, or the reason why there is none.

    Attributes:
        model: The model in evaluation mode; None if training failed.
        cpu_seconds: Cost of the training; of a post-hoc model without that of the plain autoencoder.
        steps: Steps of the optimiser; 0 for a post-hoc model and with early stopping, which counts epochs itself.
        failed: The error that ended training, or None.
    """

    model: BaseAutoencoder | None
    cpu_seconds: float
    steps: int
    failed: str | None = None

    def require(self) -> BaseAutoencoder:
        """Return the model, or raise `NumericalError` if there is none."""
        if self.model is None:
            raise NumericalError(f"this model could not be trained: {self.failed}")
        return self.model


def _identity(key: str, seed: int, recipe: Recipe, images: Images) -> tuple[ModelSpec, dict[str, Any], str]:
    """Return the model's specification, all that its weights depend on, and the name of its files."""
    if key not in MODELS:
        raise DataError(f"no autoencoder of the experiments is called {key!r}; there are: {', '.join(MODELS)}.")
    kind, options = MODELS[key]
    shape = images.train.shape[1:]
    renamed = {NEW_NAMES.get(name, name): value for name, value in options.items() if name != LIKELIHOOD}
    size = (shape, recipe.latent, recipe.architecture, recipe.width)
    spec = ModelSpec(kind, *size, options.get(LIKELIHOOD, "gaussian"), lr=recipe.lr, options=renamed)
    settings = {"key": key, "kind": kind, "options": options, "seed": seed, **recipe.described()}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return spec, settings, f"{recipe.data}-{key}-s{seed}-{digest}"


def is_trained(folder: Path, key: str, seed: int, recipe: Recipe, images: Images) -> bool:
    """Return whether the folder has this model."""
    _, settings, name = _identity(key, seed, recipe, images)
    return stored(folder, name, settings) is not None


def model(
    folder: Path, key: str, seed: int, recipe: Recipe, images: Images, say: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Return the model of this key, from the folder if it was trained before with the same recipe.

    A training that ends with `NumericalError` is a result, and kept like the others.

    Args:
        folder: Folder of the models, one safetensors and one JSON file each; shared between experiments.
        key: One of `MODELS`.
        seed: Random seed of weights, order of the images and posterior samples.
        recipe: Everything else that the weights depend on.
        images: Images loaded by that recipe.
        say: Called with a line of progress.
    """
    spec, settings, name = _identity(key, seed, recipe, images)
    path = folder / f"{name}.safetensors"
    known = stored(folder, name, settings)
    if known is not None:
        try:
            trained = None if known["failed"] else load(path)[0]
            return Outcome(trained, known["cpu_seconds"], known["steps"], known["failed"])
        except DataError:  # the file is lost or cut short: train again
            pass
    base = None
    if spec.kind == "lae-posthoc":
        base = model(folder, "ae", seed, recipe, images, say).require()
    elif recipe.falling is not None:
        earlier = model(folder, key, seed, replace(recipe, falling=None), images, say)
        if earlier.model is None:
            return earlier
        base = earlier.model
    started = time.process_time()
    outcome = _train(spec, seed, recipe, images, base, folder / name)
    outcome = replace(outcome, cpu_seconds=time.process_time() - started)
    if outcome.model is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save(path, outcome.model, spec)
    result = {"cpu_seconds": outcome.cpu_seconds, "steps": outcome.steps, "failed": outcome.failed}
    keep(folder, name, settings, result)
    say(f"{key}, seed {seed}: {outcome.failed or 'trained'} ({outcome.cpu_seconds:.0f} s of CPU)")
    return outcome


def _train(
    spec: ModelSpec, seed: int, recipe: Recipe, images: Images, base: BaseAutoencoder | None, logs: Path
) -> Outcome:
    x = images.train.x
    if spec.kind == "lae-posthoc":
        assert isinstance(base, Autoencoder)
        generator = torch.Generator().manual_seed(seed)
        fitted = fit_posthoc(base, x.split(recipe.batch), generator=generator, progress=False, **spec.options)
        return Outcome(fitted, 0.0, 0)
    steps = 0
    try:
        if recipe.validation:
            untrained = spec.build(seed)
            _fit_early_stopping(untrained, recipe, images, seed, logs)
            return Outcome(untrained.eval(), 0.0, 0)
        untrained = _built(spec, seed, len(x)) if base is None else base
        for loss in _steps(untrained, x, recipe, seed):
            if not bool(loss.isfinite()):
                raise NumericalError(f"the loss is {float(loss)}")
            steps += 1
    except NumericalError as error:
        return Outcome(None, 0.0, steps, f"after {steps} steps: {error}" if steps else str(error))
    return Outcome(untrained.eval(), 0.0, steps)


def _built(spec: ModelSpec, seed: int, num_data: int) -> BaseAutoencoder:
    """Return the untrained model; with uncertain weights it gets the number of images, since no trainer sets it."""
    built = spec.build(seed)
    if isinstance(built, MeanFieldAutoencoder):
        built.begin(num_data)
    if spec.kind != "lae":
        return built
    with seeded(seed):
        networks = spec.networks()
        likelihood = Heteroscedastic() if spec.likelihood == "heteroscedastic" else spec.likelihood
        return LaplacianAutoencoder(*networks, likelihood, num_data=num_data, lr=spec.lr, **spec.options)


def _steps(untrained: BaseAutoencoder, x: Tensor, recipe: Recipe, seed: int) -> Iterator[Tensor]:
    """Train with Adam and return the losses of the steps, each of which is taken when its loss is asked for."""
    before, epochs = (0, recipe.epochs) if recipe.falling is None else (recipe.epochs, recipe.falling)
    optimiser = torch.optim.Adam(untrained.parameter_groups(), recipe.lr, fused=True)
    batches = Shuffled((x,), recipe.batch, seed, skip=before)
    schedule = LambdaLR(optimiser, lambda step: recipe.rate(step, epochs * len(batches)))
    untrained.train()
    return (loss for _, loss in descend(optimiser, batches, epochs, lambda rows: untrained.loss(rows, None), schedule))


def _fit_early_stopping(untrained: BaseAutoencoder, recipe: Recipe, images: Images, seed: int, logs: Path) -> None:
    """Train by the paper's protocol; an interrupted training resumes."""
    from marquis.autoencoders.training import CHECKPOINTS, fit
    from marquis.data.module import DataModule

    data = DataModule(images.train, batch_size=recipe.batch, validation=0, seed=seed)
    data.setup()
    data.validation = images.validation
    resume = (logs / CHECKPOINTS / "last.ckpt").exists()
    options = {"max_epochs": recipe.epochs, "patience": recipe.patience, "seed": seed, "resume": resume}
    fit(untrained, data, logs, progress=False, accelerator="cpu", tensorboard=False, **options)


def train_in_parallel(
    folder: Path,
    recipe: Recipe,
    wanted: Iterable[tuple[str, int]],
    images: Images,
    load_images: Callable[[], Images],
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> None:
    """Train the models that the folder does not have yet, on all cores.

    Post-hoc models are left to whoever needs them: they take seconds, and need their plain autoencoder first.

    Args:
        folder: Folder of the shared models.
        recipe: Recipe of all of them.
        wanted: Keys and seeds.
        images: Images that they are trained on.
        load_images: Loads these images in another process: a function of a module, or a `functools.partial` of one.
        say: Called with a line about each model.
        workers: Number of processes; by default one per core.
    """
    unique = [(key, seed) for key, seed in dict.fromkeys(wanted) if MODELS[key][0] != "lae-posthoc"]
    missing = [job for job in unique if not is_trained(folder, *job, recipe, images)]
    run_in_processes(
        _train_in_process, [(folder, key, seed, recipe, load_images) for key, seed in missing], say, workers
    )


def _train_in_process(folder: Path, key: str, seed: int, recipe: Recipe, load_images: Callable[[], Images]) -> str:
    lines: list[str] = []
    model(folder, key, seed, recipe, load_images(), lines.append)
    return "; ".join(lines)
