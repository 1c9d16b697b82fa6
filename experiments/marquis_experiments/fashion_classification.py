"""`fashion-classification`: a CNN on Fashion-MNIST, Kronecker Laplace over all weights, outliers from MNIST.

Accuracy, NLL, calibration and the detection of MNIST's digits for MAP, networks with sampled weights and the
linearised network, beside temperature scaling and a deep ensemble. Weight decay is chosen on validation rows; the
prior of the posterior by the evidence (and, for comparison, by validation). Test rows and MNIST choose nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors
from marquis.laplace import Laplace
from marquis.laplace import load as load_laplace
from marquis.predictive import predict_loader
from marquis.priors import Prior
from marquis_experiments.cells import cell, write_json
from marquis_experiments.classifiers import Labelled, ensemble_probs, fitted_temperature, logits
from marquis_experiments.fashion_classification_report import write_report
from marquis_experiments.fashion_dense import DenseLayers
from marquis_experiments.fashion_scores import LINKS, MONTE_CARLO, PROBIT, linked, outliers, scored, with_multiple
from marquis_experiments.metrics import classification_scores
from marquis_experiments.stack_covariance import StackCovariance
from marquis_experiments.trained import shared_networks
from marquis_experiments.weight_decay import Study, Validated, studies, validated, with_evidence
from marquis_experiments.weight_decay import ensemble as ensemble_of

_KIND = "class-probabilities"
STAND_IN = "kmnist"
"""Outliers that choose; those of the table are MNIST's."""


@dataclass(frozen=True)
class Settings:
    """What is cut from the tutorial's protocol, apart from the networks (see `weight_decay.studies`).

    Attributes:
        outside: test images of MNIST.
        samples: networks with sampled weights.
        validation: validation rows that judge multiples of the evidence's precisions.
        multiples: of them, for the linearised network.
        draws: of the logits, for the Monte-Carlo link.
        sampled_multiples: of them, for sampled networks.
        stand_in: stand-in outliers, and as many validation rows, that choose the dense layers' precisions.
    """

    outside: int = 10_000
    samples: int = 20
    validation: int = 1_000
    multiples: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    sampled_multiples: tuple[float, ...] = (1.0, 10.0, 100.0, 1_000.0)
    draws: int = 200
    stand_in: int = 2_500


SETTINGS = {
    "quick": Settings(64, 4, 32, (0.3, 1.0, 3.0), (1.0, 100.0), stand_in=32),
    "default": Settings(),
    "full": Settings(samples=100, validation=5_000),
}


def run(
    size: str = "default",
    out: str | Path = "runs/fashion-classification",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; cheap methods first, so that a stopped run shows what it has."""
    study = studies(size)["fashion-mnist-cnn"]
    experiment = Experiment(size, study, SETTINGS[size], Path(out), data_dir, say)
    results: dict[str, Any] = {
        "size": size,
        "settings": asdict(SETTINGS[size]),
        "study": asdict(study),
        **experiment.named,
        "stand_in_data": experiment.stand_in_name,
        "weights": sum(weight.numel() for weight in experiment.chosen.network.parameters()),
        "grid": experiment.chosen.grid,
        "precision": experiment.chosen.precision,
        "rows": {},
    }
    try:
        for name, method in experiment.methods().items():
            found = method()
            results["rows"][name] = found
            took = time.time() - experiment.started
            say(f"[{took:5.0f} s] {name}: NLL {found['nll']:.4f}, AUROC {found['auroc']:.4f}")
            write_json(experiment.folder / "results.json", results)
    finally:  # a run that is stopped shows what it has
        page = write_report(experiment.folder, results)
    return page


class Experiment:
    """The networks, the posteriors and the probabilities of every method, each computed when it is first needed."""

    def __init__(
        self,
        size: str,
        study: Study,
        settings: Settings,
        out: Path,
        data_dir: str | Path | None,
        say: Callable[[str], None],
    ) -> None:
        self.study, self.settings, self.say = study, settings, say
        self.folder, self.shared = out / size, shared_networks(out)
        self.data = study.load(data_dir, or_digits=size == "quick")
        test, held_back = (part.x if size == "quick" else None for part in (self.data.test, self.data.validation))
        self.outside, self.outside_name = outliers(self.data, "mnist", settings.outside, data_dir, test)
        self.stand_in, self.stand_in_name = outliers(self.data, STAND_IN, settings.stand_in, data_dir, held_back)
        self.started = time.time()

    @property
    def named(self) -> dict[str, str]:
        """The sets that were at hand."""
        return {"data": self.data.name, "outside_data": self.outside_name}

    def methods(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Every row of the table, in the order of their cost."""
        return {
            "map": lambda: self.row("map", lambda x: logits(self.chosen.network, x).softmax(1)),
            "temperature": self.temperature,
            "linearised": lambda: self.linearised_row("laplace", PROBIT),
            "linearised-mc": lambda: self.linearised_row("laplace", MONTE_CARLO),
            "linearised-grid": self.validated_linearised_row,
            "sampled": lambda: self.row("sampled", lambda x: self.sampled(1.0, x)),
            "sampled-grid": self.validated_sampled_row,
            "evidence-map": lambda: self.row("evidence-map", lambda x: logits(self.by_evidence, x).softmax(1)),
            "ensemble": lambda: self.row("ensemble", lambda x: ensemble_probs(self.members, x)),
            "evidence-linearised": lambda: self.linearised_row("laplace_by_evidence", PROBIT),
            "evidence-linearised-mc": lambda: self.linearised_row("laplace_by_evidence", MONTE_CARLO),
            "dense": lambda: self.dense.row(self.seeds[0]),
            "dense-evidence": lambda: self.dense.row("evidence"),
            "dense-ensemble": lambda: self.dense.mixture_row(*self.seeds),
        }

    # --- networks and posteriors -------------------------------------------------------------------------

    @cached_property
    def chosen(self) -> Validated:
        """The network whose weight decay was best on validation rows."""
        return validated(self.shared, self.data, self.study, self.say)

    @cached_property
    def members(self) -> list[nn.Module]:
        """The deep ensemble."""
        return ensemble_of(self.shared, self.data, self.study, self.chosen.precision, self.say)

    @cached_property
    def by_evidence(self) -> nn.Module:
        """The network trained with evidence updates."""
        return with_evidence(self.shared, self.data, self.study)[0]

    @cached_property
    def laplace(self) -> Laplace:
        """Kronecker posterior of the validated network, one prior precision per layer by the evidence."""
        return self.fitted(self.chosen.network, "validated")

    @cached_property
    def laplace_by_evidence(self) -> Laplace:
        """The same of the network trained with evidence."""
        return self.fitted(self.by_evidence, "evidence")

    def fitted(self, network: nn.Module, name: str) -> Laplace:
        """Kronecker curvature over all training rows, then MacKay's fixed points; from a file if it is there."""
        path = self.path("posteriors", name)
        try:
            return load_laplace(path, network)
        except DataError:
            prior = Prior(self.chosen.precision, groups="layer")
            found = Laplace(network, "categorical", "kronecker", "exact", prior=prior)
            found.fit(self.data.train.batches(), progress=False)
            tuned = found.tune("evidence")
            self.say(f"[{time.time() - self.started:5.0f} s] posterior fitted: {tuned.report}")
            found.save(path)
            return found

    # --- rows --------------------------------------------------------------------------------------------

    def row(self, name: str, probs_of: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Scores of a method from its probabilities inside and outside."""
        found = self.kept(name, lambda x: {"": probs_of(x)})
        return scored(found["inside"], found["outside"], self.data.test.y)

    def kept(self, name: str, probs_of: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Probabilities of the test rows and of the outliers, from the folder if they are there."""
        path = self.path("probabilities", name)
        try:
            return load_tensors(path, (_KIND,))[2]
        except DataError:
            inside, outside = probs_of(self.data.test.x), probs_of(self.outside)
            found = {f"inside{key}": value for key, value in inside.items()}
            found |= {f"outside{key}": value for key, value in outside.items()}
            save_tensors(path, _KIND, self.described(), found)
            return found

    def path(self, kind: str, name: str) -> Path:
        """Where something that depends on the settings is kept."""
        digest = hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:12]
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}-{digest}.safetensors"

    def described(self) -> dict[str, Any]:
        """All that the probabilities depend on."""
        study = {**asdict(self.study), "recipe": self.study.recipe.described()}
        settings = {key: value for key, value in asdict(self.settings).items() if key != "stand_in"}
        return json.loads(json.dumps({**study, **settings, **self.named}))

    def temperature(self) -> dict[str, Any]:
        """MAP with its logits divided by what validation rows say."""
        network, held_back = self.chosen.network, self.data.validation
        found = fitted_temperature(logits(network, held_back.x), held_back.y)
        scaled = self.row("temperature", lambda x: (logits(network, x) / found).softmax(1))
        return {**scaled, "temperature": found}

    def linearised_row(self, which: str, link: str, multiple: float = 1.0) -> dict[str, Any]:
        """The linearised network with the evidence's precisions, times a number.

        Both links, and the multiple that validation chose, come from one pass.
        """
        multiples = sorted({1.0, self.judged[1]}) if which == "laplace" else [1.0]
        found = self.kept(f"linearised-{which}", lambda x: self.linearised(getattr(self, which), multiples, x))
        key = f"-{link}-{multiple:g}"
        return scored(found[f"inside{key}"], found[f"outside{key}"], self.data.test.y)

    @cached_property
    def judged(self) -> tuple[str, float, dict[str, Any]]:
        """Link and multiple of the evidence's precisions with the least NLL of validation rows, and all of them."""
        rows, multiples = self.held_back(), self.settings.multiples

        def judge() -> dict[str, Any]:
            found = self.linearised(self.laplace, multiples, rows.x)
            return {
                link: {f"{m:g}": classification_scores(found[f"-{link}-{m:g}"], rows.y)["nll"] for m in multiples}
                for link in LINKS
            }

        scores = cell(self.folder / "cells", "linearised-grid", self.described(), judge)
        pairs = [(link, f"{m:g}") for link in LINKS for m in multiples]
        link, multiple = min(pairs, key=lambda pair: scores[pair[0]][pair[1]])
        return link, float(multiple), {link: scores[link] for link in LINKS}

    def validated_linearised_row(self) -> dict[str, Any]:
        """Multiple of the evidence's precisions and link by validation."""
        link, multiple, scores = self.judged
        row = self.linearised_row("laplace", link, multiple)
        return {**row, "multiple": multiple, "link": link, "validation": scores}

    def validated_sampled_row(self) -> dict[str, Any]:
        """Sampled networks, with the multiple of the evidence's precisions that suits *them* best."""
        rows = self.held_back()

        def judge() -> dict[str, Any]:
            found = {f"{m:g}": self.sampled(m, rows.x) for m in self.settings.sampled_multiples}
            return {"validation": {m: classification_scores(probs, rows.y)["nll"] for m, probs in found.items()}}

        scores = cell(self.folder / "cells", "sampled-grid", self.described(), judge)["validation"]
        best = float(min(scores, key=scores.__getitem__))
        name = "sampled" if best == 1.0 else "sampled-grid"
        return {**self.row(name, lambda x: self.sampled(best, x)), "multiple": best, "validation": scores}

    def held_back(self) -> Labelled:
        """Validation rows that judge the prior."""
        count = self.settings.validation
        return Labelled(self.data.validation.x[:count], self.data.validation.y[:count])

    def sampled(self, multiple: float, x: Tensor) -> Tensor:
        """Probabilities averaged over networks with sampled weights, the same ones for every image."""
        found = predict_loader(
            with_multiple(self.laplace, multiple),
            self.laplace.model,
            x.split(250),
            self.laplace.likelihood,
            generator=torch.Generator().manual_seed(0),
            progress=False,
            method="sampled",
            samples=self.settings.samples,
        )
        assert found.probs is not None
        return found.probs

    def linearised(self, laplace: Laplace, multiples: Sequence[float], x: Tensor) -> dict[str, Tensor]:
        """Probabilities of the linearised network, by link and multiple of the prior precisions."""
        assert isinstance(laplace.model, nn.Sequential)
        stack = StackCovariance(laplace.model, [with_multiple(laplace, multiple) for multiple in multiples])
        pieces: dict[str, list[Tensor]] = {}
        for part in x.split(50):
            mean, covariances = stack(part)
            for multiple, covariance in zip(multiples, covariances, strict=True):
                for link, probs in linked(mean, covariance, self.settings.draws).items():
                    pieces.setdefault(f"-{link}-{multiple:g}", []).append(probs)
        return {key: torch.cat(parts) for key, parts in pieces.items()}

    # --- dense layers alone ------------------------------------------------------------------------------

    @property
    def seeds(self) -> list[str]:
        """Keys of the validated network and of the others of its ensemble."""
        return [f"decay-s{seed}" for seed in range(self.study.members)]

    def network(self, key: str) -> nn.Module:
        """One of those whose dense layers get a posterior of their own."""
        return self.by_evidence if key == "evidence" else self.members[self.seeds.index(key)]

    @cached_property
    def dense(self) -> DenseLayers:
        """Posteriors over the dense layers of those networks."""
        settings = {**self.described(), "stand_in": self.stand_in_name}
        folder = self.folder / "parts"
        return DenseLayers(folder, settings, self.network, self.data, self.stand_in, self.outside, self.say)
