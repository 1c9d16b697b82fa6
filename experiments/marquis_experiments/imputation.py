"""`imputation`: the upper half of a digit from the lower one, and digits from nothing (LAE Table 3, Figure 11).

Every model fills in the missing half by the published procedure (two stages: noise, 5 x 5 networks, one round), by the
best of other starts and numbers of the same two stages, and by codes of training images weighted by how well they
explain the given half. What there is to choose is chosen for each model on validation images by the likelihood of the
class. A classifier that never saw those images reads the results; its mean softmax over the versions is judged for
accuracy and calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data, load
from marquis.tasks.imputation import generate
from marquis_experiments.cells import cell, timed_from_now, write_json
from marquis_experiments.classifiers import Labelled
from marquis_experiments.imputation_judging import class_shares, classified, judged, judged_in_parts, references
from marquis_experiments.imputation_pictures import draw_generated, draw_versions
from marquis_experiments.imputation_procedures import PUBLISHED, WEIGHTED, Judge, Procedure, filled_in, readers
from marquis_experiments.imputation_report import write_report
from marquis_experiments.imputation_settings import SETTINGS, WAYS, Settings
from marquis_experiments.laplacian_autoencoder.models import Images, model, train_ahead
from marquis_experiments.trained import shared_networks


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
    if size != "quick":
        wanted = [(key, seed) for seed in range(settings.seeds) for key in settings.keys]
        load_again = partial(Images.load, settings.recipe, data_dir)
        train_ahead(shared, settings.recipe, wanted, images, load_again, timed)
    try:
        results["references"] = bench.references()
        for key in settings.keys:
            found = bench.on_validation(key)
            results["validation"].append(found)
            results["chosen"][key] = {way: chosen(found, settings.options, way) for way in WAYS}
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
    first, every = (labelled(images.test[:count]) for count in (settings.test, settings.all_test))
    return Judge(*both, images.train.x, labelled(rows), first, every)


def labelled(data: Data) -> Labelled:
    """Images in [0, 1] with their labels."""
    assert data.y is not None
    return Labelled(data.x, data.y)


def chosen(found: dict[str, Any], options: Sequence[Procedure], way: str) -> str | None:
    """The name of the procedure of this way under which the true classes of validation images are most likely."""
    scores = found.get("procedures") or {}
    names = [option.name for option in options if option.weighted == WAYS[way] and option.name in scores]
    return min(names, key=lambda name: scores[name]["put_back"]["nll"]) if names else None


def without_bins(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without reliability diagrams, which are drawn for test images only."""
    return {
        name: {k: v for k, v in one.items() if k != "bins"} if isinstance(one, dict) else one
        for name, one in scores.items()
    }


def short(row: dict[str, Any]) -> str:
    """One line of progress."""
    parts = []
    for name, what in (("published", "reconstructions"), *((way, "put_back") for way in ("published", *WAYS))):
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
            settings = self._described() | {"key": key, **how.described()}
            name = f"validation-{key}-{how.start.replace(' ', '-')}-{how.versions}-{how.averaged}-{how.rounds}"
            name += f"-{how.exponent:g}" * how.weighted
            scores = cell(self.folder / "cells", name, settings, lambda how=how: compute(how))["scores"]
            if scores is not None:
                found["procedures"][how.name] = without_bins(scores)
        said = "; ".join(str(chosen(found, self.settings.options, way)) for way in WAYS)
        self.say(f"{key}: chosen on validation images: {said}")
        return found

    def on_test(self, key: str, seed: int, procedures: dict[str, str | None]) -> dict[str, Any]:
        """The published procedure, the chosen ones, complete images, and generation, with one trained model."""
        by_name = {option.name: option for option in self.settings.options}
        stages, weighted = (by_name.get(procedures[way] or "") for way in ("own", "weighted"))
        common = self._described() | {"key": key, "seed": seed}
        made = {"generated": self.settings.generated, "rounds": self.settings.rounds}
        images = self.judge.all_test if key in self.settings.widely else self.judge.test

        def in_two_stages() -> dict[str, Any]:
            outcome = model(self.shared, key, seed, self.settings.recipe, self.images, self.say)
            if outcome.model is None or stages is None:
                return {"failed": outcome.failed or "no procedure could be chosen"}
            own, test = outcome.model, self.judge.test
            published = self._scores(own, test, PUBLISHED, seed)
            return {
                "failed": None,
                "published": published,
                "own": published if stages == PUBLISHED else self._scores(own, test, stages, seed),
                "complete": self._complete(own, test.x, seed),
                "generated": {str(rounds): self._generated(own, rounds, seed) for rounds in self.settings.rounds},
            }

        def by_weight() -> dict[str, Any]:
            own = model(self.shared, key, seed, self.settings.recipe, self.images, self.say).model
            if own is None or weighted is None:
                return {"failed": "no procedure could be chosen"}
            scores = judged_in_parts(own, images, weighted, self.judge, seed, self.settings.test)
            return {"failed": None, "scores": scores, "generated": self._generated(own, weighted, seed)}

        cells, name = self.folder / "cells", f"{key}-s{seed}"
        row = cell(cells, f"test-{name}", common | made | {"own_procedure": procedures["own"]}, in_two_stages)
        more = {"images": len(images), "generated": self.settings.generated}
        more |= {"procedure": None if weighted is None else weighted.described()}
        found = cell(cells, f"weighted-{name}", common | more, by_weight)
        failed = row["failed"] or found["failed"]
        if failed:
            return {**row, "failed": failed}
        return {
            **row,
            "weighted": found["scores"],
            "generated": row["generated"] | {WEIGHTED: found["generated"]},
        }

    def draw(self, procedures: dict[str, dict[str, str | None]]) -> None:
        """Pictures with the first model of every key: by the published procedure, and by weighted codes."""
        test, training, missing = self.judge.test, self.judge.training, self.judge.missing
        models = {
            key: found
            for key in self.settings.keys
            if (found := model(self.shared, key, 0, self.settings.recipe, self.images, self.say).model) is not None
        }
        rows = torch.tensor([int((test.y == digit).nonzero()[0]) for digit in (7, 5)])
        x = test.x[rows]
        by_name = {option.name: option for option in self.settings.options}
        weighted = {key: by_name[procedures[key]["weighted"] or PUBLISHED.name] for key in models}
        for name, put_back in (("imputation", False), ("imputation-own", True)):
            found = {}
            for key, own in models.items():
                how = weighted[key] if put_back else PUBLISHED
                found[key] = filled_in(own, x, missing, how, training, torch.Generator().manual_seed(1))
            draw_versions(self.folder / f"{name}.png", x, found, put_back=put_back)
        made = {
            key: [self._made(own, 2, how, 0) for how in (*self.settings.rounds, weighted[key])]
            for key, own in models.items()
        }
        titles = [
            *(f"{number} round{'s' * (number > 1)}" for number in self.settings.rounds),
            "codes of training images",
        ]
        draw_generated(self.folder / "imputation-generated.png", made, titles)

    def _scores(self, own: BaseAutoencoder, data: Labelled, how: Procedure, seed: int) -> dict[str, Any]:
        if how.weighted:
            return judged_in_parts(own, data, how, self.judge, seed, len(data))
        generator = torch.Generator().manual_seed(seed)
        found = filled_in(own, data.x, self.judge.missing, how, self.judge.training, generator)
        return judged(found, data.x, data.y, self.judge.classifier)

    def _complete(self, own: BaseAutoencoder, x: Tensor, seed: int) -> dict[str, Any]:
        """The ceiling: mean reconstructions of images with nothing hidden."""
        mean = own.reconstruct(x, PUBLISHED.averaged, generator=torch.Generator().manual_seed(seed)).mean
        error = float((mean - x).square().flatten(1).sum(1).mean())
        return {**classified(mean.unsqueeze(0), self.judge.test.y, self.judge.classifier), "error": error}

    def _generated(self, own: BaseAutoencoder, how: int | Procedure, seed: int) -> dict[str, Any]:
        return class_shares(self._made(own, self.settings.generated, how, seed), self.judge.classifier)

    def _made(self, own: BaseAutoencoder, n: int, how: int | Procedure, seed: int) -> Tensor:
        """Images `[S1, n, ...]` from nothing: by rounds of the two stages, or from codes that all weigh the same."""
        generator, shape = torch.Generator().manual_seed(seed), self.judge.test.x.shape[1:]
        if isinstance(how, int):
            options = {"samples": PUBLISHED.versions, "averaged": PUBLISHED.averaged, "rounds": how}
            return generate(own, n, shape, generator=generator, batch_size=n, progress=False, **options).samples
        nothing, everything = torch.zeros(n, *shape), torch.ones(shape, dtype=torch.bool)
        few = replace(how, versions=PUBLISHED.versions)
        return filled_in(own, nothing, everything, few, self.judge.training, generator).samples

    def _described(self) -> dict[str, Any]:
        """What every cell depends on."""
        chosen = self.settings
        return {
            "recipe": chosen.recipe.described(),
            "classifier": asdict(chosen.classifier),
            "validation": chosen.validation,
            "test": chosen.test,
        }
