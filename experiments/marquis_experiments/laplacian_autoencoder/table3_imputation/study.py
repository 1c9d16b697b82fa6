"""The study `imputation`: the upper half of a digit from the lower half, and generation (LAE Table 3, Figure 11).

Every model fills in the missing half by the published procedure (two stages: noise, 5 x 5 networks, one round), by the
best of other starts and numbers of the same two stages, and by importance weights: codes of training images weighted by
how well they explain the observed half. What there is to choose is chosen for each model on validation images by the
likelihood of the class. A classifier that never saw those images scores the results: its mean softmax over the
imputations is scored for accuracy and calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data, load
from marquis.tasks.imputation import generate
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, model, train_ahead
from marquis_experiments.laplacian_autoencoder.table3_imputation.page import draw, values
from marquis_experiments.laplacian_autoencoder.table3_imputation.pictures import draw_generated, draw_versions
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import (
    PUBLISHED,
    TRAINING,
    WEIGHTED,
    ClassifierSettings,
    Judge,
    Procedure,
    filled_in,
    readers,
)
from marquis_experiments.laplacian_autoencoder.table3_imputation.scores import (
    class_shares,
    classified,
    references,
    scores,
    scores_in_parts,
)

KEYS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code", "online-sketched-paper"),
)
WIDELY = ("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code")
"""Rows that are also evaluated with importance weights on more test images."""
EXPONENTS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
"""The noise of some models is learnt and small, that of others is one: suitable exponents differ by as much."""
OPTIONS = (
    PUBLISHED,
    *(Procedure(rounds=rounds) for rounds in (2, 5, 10)),
    Procedure("mean image"),
    Procedure("black"),
    Procedure("noise", 10, 1),
    *(Procedure(TRAINING, 10, 1, rounds) for rounds in (1, 2, 5)),
    *(Procedure(WEIGHTED, 30, exponent=exponent, donors=2000, networks=2) for exponent in EXPONENTS),
)
"""Procedures that are tried on validation images, for every model."""
WAYS = {"own": False, "weighted": True}
"""Groups of procedures of which one is chosen, and whether they are importance-weighted."""


def measure(run: Run) -> dict[str, Any]:
    """Compute every row and draw the pictures that need models; models are kept and shared with other studies."""
    settings = run.settings
    images = Images.load(settings.recipe, run.data_dir)
    if run.size != "quick":
        wanted = [(key, seed) for seed in range(settings.seeds) for key in settings["keys"]]
        load_again = partial(Images.load, settings.recipe, run.data_dir)
        train_ahead(run.shared, settings.recipe, wanted, images, load_again, run.say)
    bench = Bench(run, images, judge_of(run, images))
    results: dict[str, Any] = {
        "settings": {**settings.plain(), "options": [asdict(option) for option in settings.options]},
        "options": [option.name for option in settings.options],
        "references": bench.references(),
        "chosen": {},
        "validation": [],
        "rows": [],
    }
    for key in settings["keys"]:
        validation = bench.on_validation(key)
        results["validation"].append(validation)
        results["chosen"][key] = {way: chosen(validation, settings.options, way) for way in WAYS}
    for seed in range(settings.seeds):
        for key in settings["keys"]:
            row = bench.on_test(key, seed, results["chosen"][key])
            results["rows"].append(row)
            run.say(f"{key}, seed {seed}: " + (row["failed"] or short(row)))
    bench.draw(results["chosen"])
    return results


def judge_of(run: Run, images: Images) -> Judge:
    """Return the classifiers and the images that they score."""
    settings = run.settings
    first = settings.classifier.train
    rows = load(settings.recipe.data, "train", run.data_dir)[first : first + settings.validation]
    both = readers(run.shared, settings.recipe.data, settings.classifier, run.data_dir)
    first, every = (labelled(images.test[:count]) for count in (settings.test, settings.all_test))
    return Judge(*both, images.train.x, labelled(rows), first, every)


def labelled(data: Data) -> Labelled:
    """Return images in [0, 1] with their labels."""
    assert data.y is not None
    return Labelled(data.x, data.y)


def chosen(validation: dict[str, Any], options: Sequence[Procedure], way: str) -> str | None:
    """Return the name of the procedure under which the true classes of validation images are most likely."""
    tried = validation.get("procedures") or {}
    names = [option.name for option in options if option.weighted == WAYS[way] and option.name in tried]
    return min(names, key=lambda name: tried[name]["put_back"]["nll"]) if names else None


def without_bins(scored: dict[str, Any]) -> dict[str, Any]:
    """Return scores without reliability diagrams, which are drawn for test images only."""
    return {
        name: {k: v for k, v in one.items() if k != "bins"} if isinstance(one, dict) else one
        for name, one in scored.items()
    }


def short(row: dict[str, Any]) -> str:
    """Return a line of progress."""
    parts = []
    for name, what in (("published", "reconstructions"), *((way, "put_back") for way in ("published", *WAYS))):
        numbers = row[name][what]
        parts.append(f"{name} {what} " + " ".join(f"{numbers[k]:.3f}" for k in ("accuracy", "ece", "mce", "rmsce")))
    return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Bench:
    """The run, its images and its classifiers, which all cells share."""

    run: Run
    images: Images
    judge: Judge

    def references(self) -> dict[str, Any]:
        """Return scores of methods without an autoencoder."""
        neighbours = self.run.settings.neighbours
        described = self._described() | {"neighbours": neighbours}
        return self.run.cell("references", described, lambda: {"rows": references(self.judge, neighbours)})["rows"]

    def on_validation(self, key: str) -> dict[str, Any]:
        """Score every procedure with the first trained model of this key, one cell each."""
        validation: dict[str, Any] = {"key": key, "procedures": {}}
        loaded: list[BaseAutoencoder | None] = []

        def compute(how: Procedure) -> dict[str, Any]:
            if not loaded:  # not needed if all cells are in the folder
                loaded.append(self._model(key, 0))
            if loaded[0] is None:
                return {"scores": None}
            return {"scores": self._scores(loaded[0], self.judge.validation, how, 0)}

        for how in self.run.settings.options:
            described = self._described() | {"key": key, **how.described()}
            name = f"validation-{key}-{how.start.replace(' ', '-')}-{how.versions}-{how.averaged}-{how.rounds}"
            name += f"-{how.exponent:g}" * how.weighted
            scored = self.run.cell(name, described, lambda how=how: compute(how))["scores"]
            if scored is not None:
                validation["procedures"][how.name] = without_bins(scored)
        text = "; ".join(str(chosen(validation, self.run.settings.options, way)) for way in WAYS)
        self.run.say(f"{key}: chosen on validation images: {text}")
        return validation

    def on_test(self, key: str, seed: int, procedures: dict[str, str | None]) -> dict[str, Any]:
        """Score the published procedure, the chosen ones, complete images and generation, with one trained model."""
        settings = self.run.settings
        by_name = {option.name: option for option in settings.options}
        stages, weighted = (by_name.get(procedures[way] or "") for way in ("own", "weighted"))
        common = self._described() | {"key": key, "seed": seed}
        made = {"generated": settings.generated, "rounds": settings.rounds}
        images = self.judge.all_test if key in settings.widely else self.judge.test

        def in_two_stages() -> dict[str, Any]:
            outcome = model(self.run.shared, key, seed, settings.recipe, self.images, self.run.say)
            if outcome.model is None or stages is None:
                return {"failed": outcome.failed or "no procedure could be chosen"}
            trained, test = outcome.model, self.judge.test
            published = self._scores(trained, test, PUBLISHED, seed)
            return {
                "failed": None,
                "published": published,
                "own": published if stages == PUBLISHED else self._scores(trained, test, stages, seed),
                "complete": self._complete(trained, test.x, seed),
                "generated": {str(rounds): self._generated(trained, rounds, seed) for rounds in settings.rounds},
            }

        def by_weight() -> dict[str, Any]:
            trained = self._model(key, seed)
            if trained is None or weighted is None:
                return {"failed": "no procedure could be chosen"}
            scored = scores_in_parts(trained, images, weighted, self.judge, seed, settings.test)
            return {"failed": None, "scores": scored, "generated": self._generated(trained, weighted, seed)}

        name = f"{key}-s{seed}"
        row = self.run.cell(f"test-{name}", common | made | {"own_procedure": procedures["own"]}, in_two_stages)
        more = {"images": len(images), "generated": settings.generated}
        more |= {"procedure": None if weighted is None else weighted.described()}
        weighted_row = self.run.cell(f"weighted-{name}", common | more, by_weight)
        failed = row["failed"] or weighted_row["failed"]
        if failed:
            return {**row, "failed": failed}
        return {
            **row,
            "weighted": weighted_row["scores"],
            "generated": row["generated"] | {WEIGHTED: weighted_row["generated"]},
        }

    def draw(self, procedures: dict[str, dict[str, str | None]]) -> None:
        """Draw imputations of the first model of every key, by the published procedure and by importance weights."""
        test, training, missing = self.judge.test, self.judge.training, self.judge.missing
        settings = self.run.settings
        models = {key: trained for key in settings["keys"] if (trained := self._model(key, 0)) is not None}
        rows = torch.tensor([int((test.y == digit).nonzero()[0]) for digit in (7, 5)])
        x = test.x[rows]
        by_name = {option.name: option for option in settings.options}
        weighted = {key: by_name[procedures[key]["weighted"] or PUBLISHED.name] for key in models}
        for name, put_back in (("imputation", False), ("imputation-own", True)):
            imputations = {}
            for key, autoencoder in models.items():
                how = weighted[key] if put_back else PUBLISHED
                imputations[key] = filled_in(autoencoder, x, missing, how, training, torch.Generator().manual_seed(1))
            draw_versions(self.run.folder / f"{name}.png", x, imputations, put_back=put_back)
        made = {
            key: [self._made(autoencoder, 2, how, 0) for how in (*settings.rounds, weighted[key])]
            for key, autoencoder in models.items()
        }
        titles = [
            *(f"{number} round{'s' * (number > 1)}" for number in settings.rounds),
            "codes of training images",
        ]
        draw_generated(self.run.folder / "imputation-generated.png", made, titles)

    def _model(self, key: str, seed: int) -> BaseAutoencoder | None:
        return model(self.run.shared, key, seed, self.run.settings.recipe, self.images, self.run.say).model

    def _scores(self, autoencoder: BaseAutoencoder, data: Labelled, how: Procedure, seed: int) -> dict[str, Any]:
        if how.weighted:
            return scores_in_parts(autoencoder, data, how, self.judge, seed, len(data))
        generator = torch.Generator().manual_seed(seed)
        imputed = filled_in(autoencoder, data.x, self.judge.missing, how, self.judge.training, generator)
        return scores(imputed, data.x, data.y, self.judge.classifier)

    def _complete(self, autoencoder: BaseAutoencoder, x: Tensor, seed: int) -> dict[str, Any]:
        """Score mean reconstructions of complete images: the ceiling."""
        mean = autoencoder.reconstruct(x, PUBLISHED.averaged, generator=torch.Generator().manual_seed(seed)).mean
        error = float((mean - x).square().flatten(1).sum(1).mean())
        return {**classified(mean.unsqueeze(0), self.judge.test.y, self.judge.classifier), "error": error}

    def _generated(self, autoencoder: BaseAutoencoder, how: int | Procedure, seed: int) -> dict[str, Any]:
        made = self._made(autoencoder, self.run.settings.generated, how, seed)
        return class_shares(made, self.judge.classifier)

    def _made(self, autoencoder: BaseAutoencoder, n: int, how: int | Procedure, seed: int) -> Tensor:
        """Generate images `[S1, n, ...]` by rounds of the two stages, or from codes with equal weights."""
        generator, shape = torch.Generator().manual_seed(seed), self.judge.test.x.shape[1:]
        if isinstance(how, int):
            options = {"samples": PUBLISHED.versions, "averaged": PUBLISHED.averaged, "rounds": how}
            return generate(autoencoder, n, shape, generator=generator, batch_size=n, progress=False, **options).samples
        nothing, everything = torch.zeros(n, *shape), torch.ones(shape, dtype=torch.bool)
        few = replace(how, versions=PUBLISHED.versions)
        return filled_in(autoencoder, nothing, everything, few, self.judge.training, generator).samples

    def _described(self) -> dict[str, Any]:
        """Return what every cell depends on."""
        settings = self.run.settings
        return {"recipe": settings.recipe.described(), **settings.only("classifier", "validation", "test")}


STUDY = Study(
    "imputation",
    Path(__file__).with_name("page.md"),
    measure,
    values,
    draw,
    default={
        "recipe": TASK_RECIPES["default"],
        "classifier": ClassifierSettings(),
        "keys": KEYS,
        "options": OPTIONS,
        "seeds": 3,
        "validation": 400,
        "test": 2000,
        "all_test": 10_000,
        "widely": WIDELY,
        "generated": 100,
        "rounds": (1, 10),
        "neighbours": 10,
    },
    quick={
        "recipe": TASK_RECIPES["quick"],
        "classifier": ClassifierSettings(800, 8, (8, 8, 16), (32, 32), 200, 2, batch=32),
        "keys": ("ae", "vae", "online-sketched"),
        "options": (
            *(PUBLISHED, Procedure(rounds=2), Procedure(TRAINING, 4, 1, 1)),
            *(Procedure(WEIGHTED, 4, exponent=exponent, donors=100, networks=2) for exponent in (0.1, 1.0)),
        ),
        "seeds": 1,
        "validation": 60,
        "test": 80,
        "all_test": 120,
        "generated": 8,
        "rounds": (1, 2),
        "neighbours": 4,
    },
    full={"recipe": TASK_RECIPES["full"], "seeds": 5, "validation": 5000, "test": 10_000, "generated": 1000},
)
