"""Posteriors over the dense layers of several networks, for `fashion-classification`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors
from marquis_experiments.classifiers import ImageData
from marquis_experiments.dense_prior import Parts, averaged, chosen, dense_laplace, frontier, judged, parts_of, sure
from marquis_experiments.fashion_scores import scored

_KIND = "class-variances"
GRID = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0)
"""Precisions of the dense layers' prior."""


class DenseLayers:
    """Precisions chosen with validation rows and stand-in outliers, scores with test rows and outliers.

    Args:
        folder: where logits and variances are kept.
        settings: all that they depend on.
        network: gives the network of a key.
        data: the images inside; as many validation rows are used as there are stand-ins.
        stand_in: outliers that choose.
        outside: outliers of the table.
        say: told of progress.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        network: Callable[[str], nn.Module],
        data: ImageData,
        stand_in: Tensor,
        outside: Tensor,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._settings = folder, json.loads(json.dumps({**settings, "grid": GRID}))
        self._network, self._data, self._say = network, data, say
        self._parts = cache(self._kept)
        self._sets = {
            "validation": data.validation.x[: len(stand_in)],
            "stand-in": stand_in,
            "test": data.test.x,
            "outside": outside,
        }
        self._labels = {"validation": data.validation.y[: len(stand_in)], "test": data.test.y}

    def _kept(self, key: str) -> dict[str, Parts]:
        """Logits and variances of a network by set, layer and precision, from the folder if they are there."""
        digest = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()[:12]
        path = self._folder / f"{key}-{digest}.safetensors"
        try:
            found = load_tensors(path, (_KIND,))[2]
        except DataError:
            network = self._network(key)
            assert isinstance(network, nn.Sequential)
            laplace = dense_laplace(network, self._data.train)
            parts = {name: parts_of(laplace, GRID, x) for name, x in self._sets.items()}
            found = {f"{name}-mean": part.mean for name, part in parts.items()}
            found |= {f"{name}-variances": part.variances for name, part in parts.items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(path, _KIND, self._settings, found)
            self._say(f"dense layers of {key}: posterior fitted")
        return {name: Parts(found[f"{name}-mean"], found[f"{name}-variances"]) for name in self._sets}

    def _of(self, keys: tuple[str, ...], name: str) -> list[Parts]:
        return [self._parts(key)[name] for key in keys]

    def choice(self, *keys: str) -> dict[str, Any]:
        """Precisions for one network, or for a mixture: validation NLL at most that of the (first) network itself."""
        inside, outside, labels = self._of(keys, "validation"), self._of(keys, "stand-in"), self._labels["validation"]
        own = judged(sure(inside[:1]), sure(outside[:1]), labels)
        return {**chosen(inside, outside, labels, GRID, own["nll"]), "map": own}

    def row(self, *keys: str) -> dict[str, Any]:
        """Scores on test rows and outliers, with the choice and the frontiers."""
        choice = self.choice(*keys)
        inside, outside = (averaged(self._of(keys, name), choice["combination"]) for name in ("test", "outside"))
        found = scored(inside, outside, self._labels["test"])
        return {**found, "choice": choice, "frontiers": self.frontiers(*keys)}

    def mixture_row(self, *keys: str) -> dict[str, Any]:
        """The same of all networks together, and what each scores alone with precisions of its own."""
        kept = ("accuracy", "nll", "auroc", "auroc_entropy")
        alone = [self.row(key) for key in keys]
        return {**self.row(*keys), "alone": [{name: row[name] for name in kept} for row in alone]}

    def frontiers(self, *keys: str) -> dict[str, Any]:
        """NLL against AUROC along the grid, on the rows that choose and on those of the table; MAP's beside."""
        found: dict[str, Any] = {}
        for side, inside, outside in (("chosen_on", "validation", "stand-in"), ("tested_on", "test", "outside")):
            parts, others, labels = self._of(keys, inside), self._of(keys, outside), self._labels[inside]
            found[side] = frontier(parts, others, labels, GRID)
            found[f"map_{side}"] = judged(sure(parts), sure(others), labels)
        return found
