"""Autoencoders of images, trained once and shared by all experiments that want the same one.

`model(folder, key, seed, recipe, images)` trains the model of that key, or reads it from the folder. The small recipes
use a plain loop of a fixed number of epochs without validation data: comparisons between rows of a table are at equal
numbers of steps, and no row is at the end of its training. Their learning rate is fixed, or falls to zero at the end.
The full recipe is the paper's protocol (55000 images, 5000 for validation, learning rate halved on a plateau, early
stopping) by `autoencoders.fit`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, ModelSpec, fit_posthoc, load, save
from marquis.autoencoders.base import BaseAutoencoder, adam
from marquis.autoencoders.network import seeded
from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError, NumericalError
from marquis_experiments.cells import stored, write_json

EVERY = 10
"""Steps between two exact curvatures of a model that trains with them; each costs about 19 plain steps."""
EVERY_KRONECKER = 20
"""Likewise for Kronecker factors, whose eigenvectors have to be found anew after each."""
ESTIMATORS = ("exact", "approximate", "sketched")
PRESETS: dict[str, str | None] = {"": None, "-paper-code": "paper-code", "-paper": "paper"}
"""Ends of the keys of online models: our default has none."""


VARIANTS: dict[str, dict[str, Any]] = {
    "-temperature-0.1": {"temperature": 0.1},
    "-temperature-1": {"temperature": 1.0},
    "-unit-noise": {"noise_precision": 1.0},
    "-learnt-prior": {"prior_precision": "learnt"},
}
"""Ends of the keys of online models with one setting of the default changed, for ablations."""


KRONECKER: dict[str, dict[str, Any]] = {"": {}, "-temperature-0.1": {"temperature": 0.1}}
"""Ends of the keys of online models with Kronecker factors instead of a diagonal."""


def _online(estimator: str, preset: str | None) -> tuple[str, dict[str, Any]]:
    options: dict[str, Any] = {"estimator": estimator}
    if preset is not None:
        options["preset"] = preset
    if estimator == "exact":
        options["every"] = EVERY
    return "lae", options


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ae": ("ae", {}),
    "ae-variance": ("ae-variance", {}),
    "vae": ("vae", {}),
    "dropout": ("dropout", {}),
    "ensemble": ("ensemble", {}),
    "posthoc-kronecker": ("lae-posthoc", {"structure": "kronecker", "estimator": "sketched"}),
    **{f"posthoc-{name}": ("lae-posthoc", {"structure": "diagonal", "estimator": name}) for name in ESTIMATORS},
    **{f"online-{name}{end}": _online(name, preset) for name in ESTIMATORS for end, preset in PRESETS.items()},
    **{f"online-sketched{end}": ("lae", {"estimator": "sketched", **changed}) for end, changed in VARIANTS.items()},
    **{
        f"online-kronecker{end}": (
            "lae",
            {"structure": "kronecker", "estimator": "sketched", "every": EVERY_KRONECKER, **changed},
        )
        for end, changed in KRONECKER.items()
    },
}
"""Key to kind of autoencoder and its options. Post-hoc models are made of the model "ae" of the same seed."""


@dataclass(frozen=True)
class Recipe:
    """All that the models have in common.

    Attributes:
        data: Name of the data set.
        images: How many training images; the first ones.
        epochs: How many, or at most how many where there is early stopping.
        architecture: As in `ModelSpec`.
        width: Factor on the hidden units.
        batch: Images per step.
        lr: Learning rate of Adam.
        validation: Images held out for early stopping, not counted in `images`; 0 for a fixed number of epochs.
        patience: Of early stopping.
        latent: Numbers in the code.
        falling: Further epochs of the finished model (which is kept, too), in which the learning rate falls to zero in
            a straight line; Adam begins anew. None for none. Not with early stopping, which has its own schedule.
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
        """Refuse what has no meaning."""
        if self.falling is not None and not (self.falling >= 1 and self.validation == 0):
            raise DataError(f"falling={self.falling}: at least one epoch, after a fixed number at a constant rate.")

    def described(self) -> dict[str, Any]:
        """What is set, for file names: a setting that is new here does not make old models strangers."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step (from 0 on) as a multiple of `lr`; of the falling ones, if there are any."""
        return 1.0 if self.falling is None else 1 - step / steps


RECIPES = {
    "quick": Recipe("digits", 200, 2, "dense", 0.25),
    "default": Recipe(),
    "full": Recipe(images=55_000, epochs=200, validation=5_000),
}
"""Of `hessians` and `latent-map`, by size."""
TASK_RECIPES = {**RECIPES, "default": Recipe(images=20_000, epochs=15)}
"""Of `imputation` and `few-labels`, by size: trained for longer, since what they measure needs good codes."""


@dataclass(frozen=True, eq=False)
class Images:
    """Rows to fit, rows to stop early by (or None), and rows to judge by."""

    train: Data
    validation: Data | None
    test: Data

    @staticmethod
    def load(recipe: Recipe, data_dir: str | Path | None = None) -> Images:
        """As many rows as the recipe wants, those for validation after those for training, and all test rows."""
        wanted = recipe.images + recipe.validation
        rows = load_data(recipe.data, "train", data_dir, limit=wanted)
        if len(rows) < wanted:
            raise DataError(f"{recipe.data} has {len(rows)} training images, the recipe wants {wanted}.")
        validation = rows[recipe.images :] if recipe.validation else None
        return Images(rows[: recipe.images], validation, load_data(recipe.data, "test", data_dir))


@dataclass(frozen=True, eq=False)
class Outcome:
    """A trained model, or why there is none.

    Attributes:
        model: In evaluation mode; None if training failed.
        cpu_seconds: What it cost; for a post-hoc model without the training of the plain autoencoder.
        steps: Of the optimiser; 0 for a post-hoc model, and for early stopping, which counts epochs itself.
        failed: The error that ended training, or None.
    """

    model: BaseAutoencoder | None
    cpu_seconds: float
    steps: int
    failed: str | None = None

    def require(self) -> BaseAutoencoder:
        """The model.

        Raises:
            NumericalError: There is none.
        """
        if self.model is None:
            raise NumericalError(f"this model could not be trained: {self.failed}")
        return self.model


def spec_of(key: str, recipe: Recipe, images: Images) -> ModelSpec:
    """The description from which the model is built and saved."""
    if key not in MODELS:
        raise DataError(f"no autoencoder of the experiments is called {key!r}; there are: {', '.join(MODELS)}.")
    kind, options = MODELS[key]
    shape = images.train.shape[1:]
    return ModelSpec(kind, shape, recipe.latent, recipe.architecture, recipe.width, lr=recipe.lr, options=options)


def _identity(key: str, seed: int, recipe: Recipe, images: Images) -> tuple[ModelSpec, dict[str, Any], str]:
    """What the model is, all that its weights depend on, and the name of its files."""
    spec = spec_of(key, recipe, images)
    settings = {"key": key, "kind": spec.kind, "options": dict(spec.options), "seed": seed, **recipe.described()}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return spec, settings, f"{recipe.data}-{key}-s{seed}-{digest}"


def is_trained(folder: Path, key: str, seed: int, recipe: Recipe, images: Images) -> bool:
    """Whether `model` would find this one in the folder."""
    _, settings, name = _identity(key, seed, recipe, images)
    return stored(folder, name, settings) is not None


def model(
    folder: Path, key: str, seed: int, recipe: Recipe, images: Images, say: Callable[[str], None] = lambda text: None
) -> Outcome:
    """The model of this key, from the folder if it was trained before with the same recipe.

    A training that ends with `NumericalError` is a result, and kept like the others.

    Args:
        folder: Where the models lie, one safetensors and one JSON file each; shared between experiments.
        key: One of `MODELS`.
        seed: Of weights, order of the images and draws.
        recipe: Everything else that the weights depend on.
        images: Loaded by that recipe.
        say: Prints progress.
    """
    spec, settings, name = _identity(key, seed, recipe, images)
    path = folder / f"{name}.safetensors"
    known = stored(folder, name, settings)
    if known is not None:
        try:
            found = None if known["failed"] else load(path)[0]
            return Outcome(found, known["cpu_seconds"], known["steps"], known["failed"])
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
    outcome = _made(spec, seed, recipe, images, base, folder / name)
    outcome = Outcome(outcome.model, time.process_time() - started, outcome.steps, outcome.failed)
    if outcome.model is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save(path, outcome.model, spec)
    result = {"cpu_seconds": outcome.cpu_seconds, "steps": outcome.steps, "failed": outcome.failed}
    write_json(folder / f"{name}.json", {"settings": settings, "result": result})
    say(f"{key}, seed {seed}: {outcome.failed or 'trained'} ({outcome.cpu_seconds:.0f} s of CPU)")
    return outcome


def _made(
    spec: ModelSpec, seed: int, recipe: Recipe, images: Images, base: BaseAutoencoder | None, logs: Path
) -> Outcome:
    x = images.train.x
    if spec.kind == "lae-posthoc":
        assert isinstance(base, Autoencoder)
        generator = torch.Generator().manual_seed(seed)
        loader = x.split(recipe.batch)
        return Outcome(fit_posthoc(base, loader, generator=generator, progress=False, **spec.options), 0.0, 0)
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
    """The untrained model; a Laplacian one is told how many data there are, since no trainer will."""
    if spec.kind != "lae":
        return spec.build(seed)
    with seeded(seed):
        return LaplacianAutoencoder(*spec.networks(), num_data=num_data, lr=spec.lr, **spec.options)


def _steps(untrained: BaseAutoencoder, x: Tensor, recipe: Recipe, seed: int) -> Iterator[Tensor]:
    """Plain training: Adam, a new order every epoch; yields the loss of every step."""
    before, epochs = (0, recipe.epochs) if recipe.falling is None else (recipe.epochs, recipe.falling)
    optimiser = adam(untrained.parameter_groups(), recipe.lr)
    order = torch.Generator().manual_seed(seed)
    for _ in range(before):
        torch.randperm(len(x), generator=order)  # further epochs have orders of their own
    untrained.train()
    steps = epochs * -(-len(x) // recipe.batch)
    schedule = LambdaLR(optimiser, lambda step: recipe.rate(step, steps))
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(recipe.batch):
            loss = untrained.loss(x[rows], None)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            yield loss.detach()


def _fit_early_stopping(untrained: BaseAutoencoder, recipe: Recipe, images: Images, seed: int, logs: Path) -> None:
    """The paper's protocol; goes on where it was stopped."""
    from marquis.autoencoders.training import fit, has_checkpoint
    from marquis.data.module import DataModule

    data = DataModule(images.train, batch_size=recipe.batch, validation=0, seed=seed)
    data.setup()
    data.validation = images.validation
    options = {"max_epochs": recipe.epochs, "patience": recipe.patience, "seed": seed, "resume": has_checkpoint(logs)}
    fit(untrained, data, logs, progress=False, accelerator="cpu", tensorboard=False, **options)
