"""`fashion-classification`: a CNN on Fashion-MNIST, Kronecker Laplace over all weights, outliers from MNIST.

Accuracy, NLL, calibration and the detection of MNIST's digits for MAP, networks with sampled weights and the
linearised network, beside temperature scaling and a deep ensemble. Weight decay is chosen on validation rows; the
prior of the posterior by the evidence (and, for comparison, by validation). Test rows and MNIST choose nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors
from marquis.laplace import Laplace
from marquis.laplace import load as load_laplace
from marquis.predictive import predict, predict_loader
from marquis.priors import Prior
from marquis_experiments.common.images import Labelled, ensemble_probs, fitted_temperature, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.classifiers import (
    Case,
    Validated,
    cases,
    ensemble,
    validated,
    with_evidence,
)
from marquis_experiments.linearised_laplace.fashion_classification.page import draw, values
from marquis_experiments.linearised_laplace.fashion_classification.scores import (
    LINKS,
    MONTE_CARLO,
    PROBIT,
    linked,
    outliers,
    scored,
    with_multiple,
)

_KIND = "class-probabilities"


class Experiment:
    """Compute the networks, the posteriors and the probabilities of every method of one run."""

    def __init__(self, run: Run, case: Case) -> None:
        self.run, self.case, self.settings = run, case, run.settings
        quick = run.size == "quick"
        self.data = case.load(run.data_dir, or_digits=quick)
        test = self.data.test.x if quick else None
        self.outside, self.outside_name = outliers(self.data, "mnist", self.settings.outside, run.data_dir, test)

    @property
    def named(self) -> dict[str, str]:
        """Return the names of the data sets that were there."""
        return {"data": self.data.name, "outside_data": self.outside_name}

    def methods(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return a function for every row of the table, in the order of their cost."""
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
        }

    # --- networks and posteriors -------------------------------------------------------------------------

    @cached_property
    def chosen(self) -> Validated:
        """Return the network whose weight decay is best on validation rows."""
        return validated(self.run.shared, self.data, self.case, self.run.say)

    @cached_property
    def members(self) -> list[nn.Module]:
        """Return the members of the deep ensemble."""
        return ensemble(self.run.shared, self.data, self.case, self.chosen.precision, self.run.say)

    @cached_property
    def by_evidence(self) -> nn.Module:
        """Return the network trained with evidence updates."""
        return with_evidence(self.run.shared, self.data, self.case)[0]

    @cached_property
    def laplace(self) -> Laplace:
        """Return the Kronecker posterior of the validated network, one prior precision per layer by the evidence."""
        return self.fitted(self.chosen.network, "validated")

    @cached_property
    def laplace_by_evidence(self) -> Laplace:
        """Return the Kronecker posterior of the network trained with evidence."""
        return self.fitted(self.by_evidence, "evidence")

    def fitted(self, network: nn.Module, name: str) -> Laplace:
        """Fit the Kronecker curvature of all training rows and tune the prior; from a file if it is there."""
        path = self.path("posteriors", name)
        try:
            return load_laplace(path, network)
        except DataError:
            prior = Prior(self.chosen.precision, groups="layer")
            laplace = Laplace(network, "categorical", "kronecker", "exact", prior=prior)
            laplace.fit(self.data.train.batches(), progress=False)
            self.run.say(f"posterior fitted: {laplace.tune('evidence').report}")
            laplace.save(path)
            return laplace

    # --- rows --------------------------------------------------------------------------------------------

    def row(self, name: str, probs_of: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return scores of a method from its probabilities of test images and outliers."""
        probs = self.kept(name, lambda x: {"": probs_of(x)})
        return scored(probs["inside"], probs["outside"], self.data.test.y)

    def kept(self, name: str, probs_of: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return probabilities of the test rows and of the outliers, from the folder if they are there."""
        path = self.path("probabilities", name)
        try:
            return load_tensors(path, (_KIND,))[2]
        except DataError:
            in_distribution, ood = probs_of(self.data.test.x), probs_of(self.outside)
            probs = {f"inside{key}": value for key, value in in_distribution.items()}
            probs |= {f"outside{key}": value for key, value in ood.items()}
            save_tensors(path, _KIND, self.described(), probs)
            return probs

    def path(self, kind: str, name: str) -> Path:
        """Return the path of something that depends on the settings."""
        digest = hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:12]
        folder = self.run.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}-{digest}.safetensors"

    def described(self) -> dict[str, Any]:
        """Return all that the probabilities depend on."""
        case = {**asdict(self.case), "recipe": self.case.recipe.described()}
        return json.loads(json.dumps({**case, **self.settings.plain(), **self.named}))

    def temperature(self) -> dict[str, Any]:
        """Return MAP with its temperature fitted on validation rows."""
        network, held_out = self.chosen.network, self.data.validation
        fitted = fitted_temperature(logits(network, held_out.x), held_out.y)
        scaled = self.row("temperature", lambda x: (logits(network, x) / fitted).softmax(1))
        return {**scaled, "temperature": fitted}

    def linearised_row(self, which: str, link: str, multiple: float = 1.0) -> dict[str, Any]:
        """Return the linearised network with the evidence's precisions times a number.

        Both links, and the multiple that validation chose, come from one pass.
        """
        multiples = sorted({1.0, self.validated_choice[1]}) if which == "laplace" else [1.0]
        probs = self.kept(f"linearised-{which}", lambda x: self.linearised(getattr(self, which), multiples, x))
        key = f"-{link}-{multiple:g}"
        return scored(probs[f"inside{key}"], probs[f"outside{key}"], self.data.test.y)

    @cached_property
    def validated_choice(self) -> tuple[str, float, dict[str, Any]]:
        """Return link and multiple of the precisions with the smallest validation NLL, and the NLL of all."""
        rows, multiples = self.held_out(), self.settings.multiples

        def compute() -> dict[str, Any]:
            probs = self.linearised(self.laplace, multiples, rows.x)
            return {
                link: {f"{m:g}": classification_scores(probs[f"-{link}-{m:g}"], rows.y)["nll"] for m in multiples}
                for link in LINKS
            }

        scores = self.run.cell("linearised-grid", self.described(), compute)
        pairs = [(link, f"{m:g}") for link in LINKS for m in multiples]
        link, multiple = min(pairs, key=lambda pair: scores[pair[0]][pair[1]])
        return link, float(multiple), {link: scores[link] for link in LINKS}

    def validated_linearised_row(self) -> dict[str, Any]:
        """Return the row whose multiple of the evidence's precisions and link are chosen by validation."""
        link, multiple, scores = self.validated_choice
        row = self.linearised_row("laplace", link, multiple)
        return {**row, "multiple": multiple, "link": link, "validation": scores}

    def validated_sampled_row(self) -> dict[str, Any]:
        """Return sampled networks with the multiple of the evidence's precisions that suits *them* best."""
        rows = self.held_out()

        def compute() -> dict[str, Any]:
            probs = {f"{m:g}": self.sampled(m, rows.x) for m in self.settings.sampled_multiples}
            return {"validation": {m: classification_scores(p, rows.y)["nll"] for m, p in probs.items()}}

        scores = self.run.cell("sampled-grid", self.described(), compute)["validation"]
        best = float(min(scores, key=scores.__getitem__))
        name = "sampled" if best == 1.0 else "sampled-grid"
        return {**self.row(name, lambda x: self.sampled(best, x)), "multiple": best, "validation": scores}

    def held_out(self) -> Labelled:
        """Return the validation rows with which multiples of the prior are chosen."""
        count = self.settings.validation
        return Labelled(self.data.validation.x[:count], self.data.validation.y[:count])

    def sampled(self, multiple: float, x: Tensor) -> Tensor:
        """Return probabilities averaged over networks with sampled weights, the same ones for every image."""
        predicted = predict_loader(
            with_multiple(self.laplace, multiple),
            self.laplace.model,
            x.split(250),
            self.laplace.likelihood,
            generator=torch.Generator().manual_seed(0),
            progress=False,
            method="sampled",
            samples=self.settings.samples,
        )
        assert predicted.probs is not None
        return predicted.probs

    def linearised(self, laplace: Laplace, multiples: Sequence[float], x: Tensor) -> dict[str, Tensor]:
        """Return probabilities of the linearised network, by link and multiple of the prior precisions."""
        pieces: dict[str, list[Tensor]] = {}
        for multiple in multiples:
            posterior = with_multiple(laplace, multiple)
            for part in x.split(250):
                predicted = predict(posterior, laplace.model, part, laplace.likelihood)
                assert predicted.covariance is not None
                for link, probs in linked(predicted.mean, predicted.covariance, self.settings.draws).items():
                    pieces.setdefault(f"-{link}-{multiple:g}", []).append(probs)
        return {key: torch.cat(parts) for key, parts in pieces.items()}


def measure(run: Run) -> dict[str, Any]:
    """Score every method, cheap ones first."""
    case = cases(run.size)["fashion-mnist-cnn"]
    experiment = Experiment(run, case)
    rows = {}
    for name, method in experiment.methods().items():
        rows[name] = method()
        run.say(f"{name}: NLL {rows[name]['nll']:.4f}, AUROC {rows[name]['auroc']:.4f}")
    return {
        "settings": run.settings.plain(),
        "study": asdict(case),
        **experiment.named,
        "weights": sum(weight.numel() for weight in experiment.chosen.network.parameters()),
        "grid": experiment.chosen.grid,
        "precision": experiment.chosen.precision,
        "rows": rows,
    }


# `outside`: test images of MNIST; `samples`: networks with sampled weights; `validation`: rows that choose multiples of
# the evidence's precisions; `draws`: samples of the logits for the Monte-Carlo link.
# fmt: off
STUDY = Study(
    "fashion-classification", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "outside": 10_000, "samples": 20, "validation": 1_000, "multiples": (0.3, 1.0, 3.0, 10.0, 30.0),
        "sampled_multiples": (1.0, 10.0, 100.0, 1_000.0), "draws": 200,
    },
    quick={
        "outside": 64, "samples": 4, "validation": 32, "multiples": (0.3, 1.0, 3.0),
        "sampled_multiples": (1.0, 100.0),
    },
    full={"samples": 100, "validation": 5_000},
)
# fmt: on
