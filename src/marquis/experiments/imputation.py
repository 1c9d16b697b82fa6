"""`imputation`: the upper half of a digit from the lower one, and digits from nothing (LAE Table 3, Figure 11).

Every model fills in the missing half by the published procedure (noise, 5 x 5 networks, one round), and by the best of
a list of our own, chosen for each model on validation images by the likelihood of the class. A classifier that never
saw those images reads the results; its mean softmax over the versions is judged for accuracy and calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data, load
from marquis.experiments.cells import cell, timed_from_now, write_json
from marquis.experiments.classifiers import Labelled
from marquis.experiments.imputation_pictures import draw_generated, draw_versions
from marquis.experiments.imputation_procedures import (
    PUBLISHED,
    TRAINING,
    ClassifierSettings,
    Judge,
    Procedure,
    class_shares,
    classified,
    filled_in,
    judged,
    readers,
    references,
)
from marquis.experiments.imputation_report import write_report
from marquis.experiments.shared_autoencoders import TASK_RECIPES, Images, Recipe, model
from marquis.experiments.trained import shared_networks
from marquis.tasks.imputation import generate

KEYS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-paper-code", "online-sketched-paper"),
)
OPTIONS = (
    PUBLISHED,
    *(Procedure(rounds=rounds) for rounds in (2, 5, 10)),
    Procedure("mean image"),
    Procedure("black"),
    Procedure("noise", 10, 1),
    *(Procedure(TRAINING, 10, 1, rounds) for rounds in (1, 2, 5)),
)
"""What is tried on validation images, for every model."""


CLASSIFIER = ClassifierSettings()


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        recipe: Of the autoencoders.
        classifier: Of the classifiers.
        keys: Which autoencoders.
        options: Procedures to choose from.
        seeds: Trainings of every autoencoder.
        validation: Images that the procedure is chosen on; right after the classifier's training rows.
        test: Images that are reported.
        generated: Starts of the fully masked case.
        rounds: Of the fully masked case.
        neighbours: Of the reference without a network.
    """

    recipe: Recipe
    classifier: ClassifierSettings = CLASSIFIER
    keys: tuple[str, ...] = KEYS
    options: tuple[Procedure, ...] = OPTIONS
    seeds: int = 3
    validation: int = 400
    test: int = 2000
    generated: int = 100
    rounds: tuple[int, ...] = (1, 10)
    neighbours: int = 10


SETTINGS = {
    "quick": Settings(
        TASK_RECIPES["quick"],
        ClassifierSettings(800, 8, (8, 8, 16), (32, 32), 200, 2, batch=32),
        ("ae", "vae", "online-sketched"),
        (PUBLISHED, Procedure(rounds=2), Procedure(TRAINING, 4, 1, 1)),
        seeds=1,
        validation=60,
        test=80,
        generated=8,
        rounds=(1, 2),
        neighbours=4,
    ),
    "default": Settings(TASK_RECIPES["default"]),
    "full": Settings(TASK_RECIPES["full"], seeds=5, validation=5000, test=10_000, generated=1000),
}


def run(
    size: str = "default",
    out: str | Path = "runs/imputation",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept, and shared with other experiments."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    timed = timed_from_now(say)

    images = Images.load(settings.recipe, data_dir)
    judge = judge_of(settings, images, shared, data_dir)
    bench = Bench(folder, shared, settings, images, judge, timed)
    results: dict[str, Any] = {"size": size, "settings": asdict(settings)}
    results |= {"options": [option.name for option in settings.options]}
    results |= {"references": {}, "chosen": {}, "validation": [], "rows": []}
    try:
        results["references"] = bench.references()
        for key in settings.keys:
            found = bench.on_validation(key)
            results["validation"].append(found)
            results["chosen"][key] = chosen(found)
        for seed in range(settings.seeds):
            for key in settings.keys:
                row = bench.on_test(key, seed, results["chosen"][key])
                results["rows"].append(row)
                timed(f"{key}, seed {seed}: " + (row["failed"] or short(row)))
                write_json(folder / "results.json", results)
        bench.draw(results["chosen"])
    finally:  # a run that is stopped shows what it has
        page = write_report(folder, results)
    return page


def judge_of(settings: Settings, images: Images, shared: Path, data_dir: str | Path | None) -> Judge:
    """The classifiers and the images they judge."""
    first = settings.classifier.train
    rows = load(settings.recipe.data, "train", data_dir)[first : first + settings.validation]
    both = readers(shared, settings.recipe.data, settings.classifier, data_dir)
    return Judge(*both, images.train.x, labelled(rows), labelled(images.test[: settings.test]))


def labelled(data: Data) -> Labelled:
    """Images in [0, 1] with their labels."""
    assert data.y is not None
    return Labelled(data.x, data.y)


def chosen(found: dict[str, Any]) -> str | None:
    """The name of the procedure under which the true classes of validation images are most likely."""
    scores = found.get("procedures") or {}
    return min(scores, key=lambda name: scores[name]["put_back"]["nll"]) if scores else None


def without_bins(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without reliability diagrams, which are drawn for test images only."""
    read = {name: {k: v for k, v in scores[name].items() if k != "bins"} for name in ("reconstructions", "put_back")}
    return {**scores, **read}


def short(row: dict[str, Any]) -> str:
    """One line of progress."""
    parts = []
    for name in ("published", "own"):
        for what in ("reconstructions", "put_back"):
            numbers = row[name][what]
            parts.append(f"{name} {what} " + " ".join(f"{numbers[k]:.3f}" for k in ("accuracy", "ece", "mce", "rmsce")))
    return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Bench:
    """What all cells share."""

    folder: Path
    shared: Path
    settings: Settings
    images: Images
    judge: Judge
    say: Callable[[str], None]

    def references(self) -> dict[str, Any]:
        """Rows without an autoencoder."""
        settings = self._described() | {"neighbours": self.settings.neighbours}
        found = cell(
            self.folder / "cells",
            "references",
            settings,
            lambda: {"rows": references(self.judge, self.settings.neighbours)},
        )
        return found["rows"]

    def on_validation(self, key: str) -> dict[str, Any]:
        """Every procedure with the first trained model of this key, one cell each."""
        found: dict[str, Any] = {"key": key, "procedures": {}}
        own: list[BaseAutoencoder | None] = []

        def compute(how: Procedure) -> dict[str, Any]:
            if not own:  # not needed if all is in the folder
                own.append(model(self.shared, key, 0, self.settings.recipe, self.images, self.say).model)
            if own[0] is None:
                return {"scores": None}
            return {"scores": self._scores(own[0], self.judge.validation, how, 0)}

        for how in self.settings.options:
            settings = self._described() | {"key": key, **asdict(how)}
            name = f"validation-{key}-{how.start.replace(' ', '-')}-{how.versions}-{how.averaged}-{how.rounds}"
            scores = cell(self.folder / "cells", name, settings, lambda how=how: compute(how))["scores"]
            if scores is not None:
                found["procedures"][how.name] = without_bins(scores)
        self.say(f"{key}: chosen on validation images: {chosen(found)}")
        return found

    def on_test(self, key: str, seed: int, own_procedure: str | None) -> dict[str, Any]:
        """The published procedure, our own, complete images, and generation, with one trained model."""
        how = next((option for option in self.settings.options if option.name == own_procedure), None)
        settings = self._described() | {"key": key, "seed": seed, "own_procedure": own_procedure}
        settings |= {"generated": self.settings.generated, "rounds": self.settings.rounds}

        def compute() -> dict[str, Any]:
            outcome = model(self.shared, key, seed, self.settings.recipe, self.images, self.say)
            if outcome.model is None or how is None:
                return {"failed": outcome.failed or "no procedure could be chosen"}
            own, test = outcome.model, self.judge.test
            published = self._scores(own, test, PUBLISHED, seed)
            return {
                "failed": None,
                "published": published,
                "own": published if how == PUBLISHED else self._scores(own, test, how, seed),
                "complete": self._complete(own, test.x, seed),
                "generated": {str(rounds): self._generated(own, rounds, seed) for rounds in self.settings.rounds},
            }

        return cell(self.folder / "cells", f"test-{key}-s{seed}", settings, compute)

    def draw(self, procedures: dict[str, str | None]) -> None:
        """Pictures with the first model of every key: first by the published procedure, then by our own."""
        test, training, missing = self.judge.test, self.judge.training, self.judge.missing
        models = {
            key: found
            for key in self.settings.keys
            if (found := model(self.shared, key, 0, self.settings.recipe, self.images, self.say).model) is not None
        }
        rows = torch.tensor([int((test.y == digit).nonzero()[0]) for digit in (7, 5)])
        x = test.x[rows]
        by_name = {option.name: option for option in self.settings.options}
        for name, which in (("imputation", None), ("imputation-own", procedures)):
            found = {}
            for key, own in models.items():
                how = PUBLISHED if which is None else by_name[which[key] or PUBLISHED.name]
                found[key] = filled_in(own, x, missing, how, training, torch.Generator().manual_seed(1))
            draw_versions(self.folder / f"{name}.png", x, found, put_back=which is not None)
        made = {
            key: [generated(own, 2, x.shape[1:], rounds, 0) for rounds in self.settings.rounds]
            for key, own in models.items()
        }
        draw_generated(self.folder / "imputation-generated.png", made, self.settings.rounds)

    def _scores(self, own: BaseAutoencoder, data: Labelled, how: Procedure, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        found = filled_in(own, data.x, self.judge.missing, how, self.judge.training, generator)
        return judged(found, data.x, data.y, self.judge.classifier)

    def _complete(self, own: BaseAutoencoder, x: Tensor, seed: int) -> dict[str, Any]:
        """The ceiling: mean reconstructions of images with nothing hidden."""
        mean = own.reconstruct(x, PUBLISHED.averaged, generator=torch.Generator().manual_seed(seed)).mean
        error = float((mean - x).square().flatten(1).sum(1).mean())
        return {**classified(mean.unsqueeze(0), self.judge.test.y, self.judge.classifier), "error": error}

    def _generated(self, own: BaseAutoencoder, rounds: int, seed: int) -> dict[str, Any]:
        made = generated(own, self.settings.generated, self.judge.test.x.shape[1:], rounds, seed)
        return class_shares(made, self.judge.classifier)

    def _described(self) -> dict[str, Any]:
        """What every cell depends on."""
        chosen = self.settings
        return {
            "recipe": chosen.recipe.described(),
            "classifier": asdict(chosen.classifier),
            "validation": chosen.validation,
            "test": chosen.test,
        }


def generated(own: BaseAutoencoder, n: int, shape: torch.Size, rounds: int, seed: int) -> Tensor:
    """Images `[S1, n, ...]` from noise by the published procedure, with more rounds if wanted."""
    options = {"samples": PUBLISHED.versions, "averaged": PUBLISHED.averaged, "rounds": rounds, "progress": False}
    generator = torch.Generator().manual_seed(seed)
    return generate(own, n, shape, generator=generator, batch_size=n, **options).samples
