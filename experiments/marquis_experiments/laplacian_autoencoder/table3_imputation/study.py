"""The study `imputation`: the upper half of a digit from the lower half, and generation (LAE Table 3, Figure 11).

Every model fills in the missing half by the published procedure (two stages: noise, 5 x 5 networks, one round) and by
importance weights: codes of training images weighted by how well they explain the observed half, with an exponent that
is chosen for each model on validation images by the likelihood of the class. A classifier that never saw those images
scores the results: its mean softmax over the imputations, for accuracy and calibration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data, load
from marquis.tasks.imputation import generate
from marquis_experiments.common.figure import Panel, image_rows
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.describe import label
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, model, train_in_parallel
from marquis_experiments.laplacian_autoencoder.table3_imputation import procedures
from marquis_experiments.laplacian_autoencoder.table3_imputation.page import draw, values
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import PUBLISHED, WEIGHTED, Procedure
from marquis_experiments.laplacian_autoencoder.table3_imputation.scores import (
    class_shares,
    classified,
    references,
    scores,
)

KEYS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code", "online-sketched-paper"),
)
EXPONENTS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
"""The noise of some models is learnt and small, that of others is one: suitable exponents differ by as much."""
OPTIONS = tuple(Procedure(WEIGHTED, 30, exponent=exponent, donors=2000, networks=2) for exponent in EXPONENTS)
VERSIONS, SHOWN = 5, (7, 5)
"""Imputations of one image in a picture, and the digits that are shown."""


def measure(run: Run) -> dict[str, Any]:
    """Compute every row and draw the pictures that need models; models are kept and shared with other studies."""
    settings = run.settings
    images = Images.load(settings.recipe, run.data_dir)
    if run.size != "quick":
        trainings = [(key, seed) for seed in range(settings.seeds) for key in settings["keys"]]
        load_again = partial(Images.load, settings.recipe, run.data_dir)
        train_in_parallel(run.shared, settings.recipe, trainings, images, load_again, run.say)
    bench = Bench(run, images, task_of(run, images))
    results: dict[str, Any] = {
        "settings": {**settings.plain(), "options": [asdict(option) for option in settings.options]},
        "references": bench.references(),
        "chosen": {key: {"weighted": bench.chosen(key)} for key in settings["keys"]},
        "rows": [],
    }
    for seed in range(settings.seeds):
        for key in settings["keys"]:
            row = bench.on_test(key, seed, results["chosen"][key]["weighted"])
            results["rows"].append(row)
            run.say(f"{key}, seed {seed}: {row['failed'] or short(row)}")
    bench.draw({key: one["weighted"] for key, one in results["chosen"].items()})
    return results


def task_of(run: Run, images: Images) -> procedures.ImputationTask:
    """Return the classifiers and the images that they score."""
    settings = run.settings
    first = settings.classifier.train
    rows = load(settings.recipe.data, "train", run.data_dir)[first : first + settings.validation]
    both = procedures.readers(run.shared, settings.recipe.data, settings.classifier, run.data_dir)
    return procedures.ImputationTask(*both, images.train.x, labelled(rows), labelled(images.test[: settings.test]))


def labelled(data: Data) -> Labelled:
    """Return images in [0, 1] with their labels."""
    assert data.y is not None
    return Labelled(data.x, data.y)


def most_likely(tried: dict[str, dict[str, Any]]) -> str | None:
    """Return the name of the procedure under which the true classes of validation images are most likely."""
    return min(tried, key=lambda name: tried[name]["put_back"]["nll"]) if tried else None


def short(row: dict[str, Any]) -> str:
    """Return a line of progress."""
    each = {"published": row["published"]["reconstructions"], "weighted": row["weighted"]["first"]}
    return "; ".join(
        f"{name} " + " ".join(f"{one[k]:.3f}" for k in ("accuracy", "ece", "mce")) for name, one in each.items()
    )


@dataclass(frozen=True, eq=False)
class Bench:
    """Hold the run, its images and its classifiers, which all cells share."""

    run: Run
    images: Images
    task: procedures.ImputationTask

    def references(self) -> dict[str, Any]:
        """Return scores of methods without an autoencoder."""
        count = self.run.settings.neighbours
        described = self._described() | {"neighbours": count}
        return self.run.cell("references", described, lambda: {"rows": references(self.task, count)})["rows"]

    def chosen(self, key: str) -> str | None:
        """Score every exponent with the first trained model on validation images, and return the best by name."""
        tried: dict[str, Any] = {}
        for how in self.run.settings.options:
            name = f"validation-{key}-weighted-codes-{how.versions}-{how.averaged}-{how.rounds}-{how.exponent:g}"
            described = self._described() | {"key": key, **asdict(how)}
            scored = self.run.cell(name, described, lambda how=how: {"scores": self._on_validation(key, how)})["scores"]
            if scored is not None:
                tried[how.name] = scored
        self.run.say(f"{key}: chosen on validation images: {most_likely(tried)}")
        return most_likely(tried)

    def _on_validation(self, key: str, how: Procedure) -> dict[str, Any] | None:
        trained = self._model(key, 0)
        return None if trained is None else self._scores(trained, self.task.validation, how, 0)

    def on_test(self, key: str, seed: int, name: str | None) -> dict[str, Any]:
        """Score the published procedure, the weighted one, complete images and generation, with one trained model."""
        settings, test = self.run.settings, self.task.test
        weighted = next((option for option in settings.options if option.name == name), None)
        common = self._described() | {"key": key, "seed": seed, "generated": settings.generated}

        def in_two_stages() -> dict[str, Any]:
            outcome = model(self.run.shared, key, seed, settings.recipe, self.images, self.run.say)
            if outcome.model is None:
                return {"failed": outcome.failed}
            made = {str(rounds): self._generated(outcome.model, rounds, seed) for rounds in settings.rounds}
            published = self._scores(outcome.model, test, PUBLISHED, seed)
            return {
                "failed": None,
                "published": published,
                "complete": self._complete(outcome.model, seed),
                "generated": made,
            }

        def by_weight() -> dict[str, Any]:
            trained = self._model(key, seed)
            if trained is None or weighted is None:
                return {"failed": "no procedure could be chosen"}
            scored = self._scores(trained, test, weighted, seed)
            scored["first"] = scored["put_back"]  # earlier cells have more images than other rows in `put_back`
            return {"failed": None, "scores": scored, "generated": self._generated(trained, weighted, seed)}

        row = self.run.cell(f"test-{key}-s{seed}", common | {"rounds": settings.rounds}, in_two_stages)
        more = {"images": len(test), "procedure": None if weighted is None else asdict(weighted)}
        weighted_row = self.run.cell(f"weighted-{key}-s{seed}", common | more, by_weight)
        failed = row["failed"] or weighted_row["failed"]
        if failed:
            return {**row, "failed": failed}
        generated = row["generated"] | {WEIGHTED: weighted_row["generated"]}
        return {**row, "weighted": weighted_row["scores"], "generated": generated}

    def draw(self, chosen: dict[str, str | None]) -> None:
        """Draw imputations and generated images of the first model of every key."""
        settings, test = self.run.settings, self.task.test
        models = {key: trained for key in settings["keys"] if (trained := self._model(key, 0)) is not None}
        x = test.x[torch.tensor([int((test.y == digit).nonzero()[0]) for digit in SHOWN])]
        by_name = {option.name: option for option in settings.options}
        weighted = {key: by_name.get(chosen[key] or "", PUBLISHED) for key in models}
        titles = ["original", "observed", "mean", "std", *["imputed"] * VERSIONS]
        for name, put_back in (("imputation", False), ("imputation-own", True)):
            rows = {}
            for key, trained in models.items():
                imputed = self.task.fill_in(trained, x, weighted[key] if put_back else PUBLISHED, 1)
                versions = imputed.samples if put_back else imputed.reconstructions
                each = [panels(one, versions[:, place], self.task.missing) for place, one in enumerate(x)]
                rows[label(key)] = [panel for one in each for panel in one]
            image_rows(self.run.folder / f"{name}.png", rows, titles * len(x))
        ways = [*(f"round {number}" for number in settings.rounds), "codes"]
        made: dict[str, list[Panel | None]] = {}
        for key, trained in models.items():
            made[label(key)] = []
            for how in (*settings.rounds, weighted[key]):
                for start in self._made(trained, 2, how, 0)[:3].clamp(0, 1).transpose(0, 1):
                    empty = [None] * (3 - len(start))  # a plain autoencoder makes one image of a start
                    made[label(key)] += [*((image[0].numpy(), None, "") for image in start), *empty]
        image_rows(self.run.folder / "imputation-generated.png", made, [way for way in ways for _ in range(6)])

    def _model(self, key: str, seed: int) -> BaseAutoencoder | None:
        return model(self.run.shared, key, seed, self.run.settings.recipe, self.images, self.run.say).model

    def _scores(self, autoencoder: BaseAutoencoder, data: Labelled, how: Procedure, seed: int) -> dict[str, Any]:
        return scores(self.task.fill_in(autoencoder, data.x, how, seed), data.x, data.y, self.task.classifier)

    def _complete(self, autoencoder: BaseAutoencoder, seed: int) -> dict[str, Any]:
        """Score mean reconstructions of complete images: the ceiling."""
        x, generator = self.task.test.x, torch.Generator().manual_seed(seed)
        mean = autoencoder.reconstruct(x, PUBLISHED.averaged, generator=generator).mean
        error = float((mean - x).square().flatten(1).sum(1).mean())
        return {**classified(mean.unsqueeze(0), self.task.test.y, self.task.classifier), "error": error}

    def _generated(self, autoencoder: BaseAutoencoder, how: int | Procedure, seed: int) -> dict[str, Any]:
        return class_shares(self._made(autoencoder, self.run.settings.generated, how, seed), self.task.classifier)

    def _made(self, autoencoder: BaseAutoencoder, n: int, how: int | Procedure, seed: int) -> Tensor:
        """Generate images `[S1, n, ...]` by rounds of the two stages, or from codes with equal weights."""
        shape = self.task.test.x.shape[1:]
        if isinstance(how, int):
            options: dict[str, Any] = {"samples": PUBLISHED.versions, "averaged": PUBLISHED.averaged, "rounds": how}
            options |= {"generator": torch.Generator().manual_seed(seed), "batch_size": n, "progress": False}
            return generate(autoencoder, n, shape, **options).samples
        few, everything = replace(how, versions=PUBLISHED.versions), torch.ones(shape, dtype=torch.bool)
        return self.task.fill_in(autoencoder, torch.zeros(n, *shape), few, seed, everything).samples

    def _described(self) -> dict[str, Any]:
        """Return what every cell depends on."""
        settings = self.run.settings
        return {"recipe": settings.recipe.described(), **settings.only("classifier", "validation", "test")}


def panels(original: Tensor, versions: Tensor, missing: Tensor) -> list[Panel | None]:
    """Return panels of one image: original, observed half, mean, standard deviation, and some imputations."""
    std = versions.std(0) if len(versions) > 1 else torch.zeros_like(original)
    top = max(float(std.max()), 1e-12)
    shown = [original, original.masked_fill(missing, 0.5), versions.mean(0), *versions[:VERSIONS]]
    panels: list[Panel | None] = [(image[0].clamp(0, 1).numpy(), None, "") for image in shown]
    panels.insert(3, (std[0].numpy(), top, f"≤ {top:.2g}"))
    return panels + [None] * (4 + VERSIONS - len(panels))  # a plain autoencoder has one version


# fmt: off
STUDY = Study(
    "imputation", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "recipe": TASK_RECIPES["default"], "classifier": procedures.ClassifierSettings(), "keys": KEYS,
        "options": OPTIONS, "seeds": 3, "validation": 400, "test": 2000, "generated": 100, "rounds": (1, 10),
        "neighbours": 10,
    },
    quick={
        "recipe": TASK_RECIPES["quick"], "keys": ("ae", "vae", "online-sketched"), "seeds": 1, "validation": 60,
        "classifier": procedures.ClassifierSettings(800, 8, (8, 8, 16), (32, 32), 200, 2, batch=32), "test": 80,
        "options": tuple(Procedure(WEIGHTED, 4, exponent=e, donors=100, networks=2) for e in (0.1, 1.0)),
        "generated": 8, "rounds": (1, 2), "neighbours": 4,
    },
    full={"recipe": TASK_RECIPES["full"], "seeds": 5, "validation": 5000, "test": 10_000, "generated": 1000},
)
# fmt: on
