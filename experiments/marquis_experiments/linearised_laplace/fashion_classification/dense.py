"""Posteriors over the dense layers of several networks: chosen precisions, scores and frontiers."""

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
from marquis_experiments.common.images import ImageData
from marquis_experiments.linearised_laplace.fashion_classification.dense_prior import (
    Parts,
    averaged,
    chosen,
    dense_laplace,
    frontier,
    nll_and_auroc,
    parts_of,
    without_variance,
)
from marquis_experiments.linearised_laplace.fashion_classification.scores import scored

_KIND = "class-variances"
GRID = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0)
"""Precisions of the dense layers' prior."""


class DenseLayers:
    """Precisions chosen with validation rows and proxy outliers, scores with test rows and outliers.

    Args:
        folder: Folder of logits and variances.
        settings: All that they depend on.
        network: Function that returns the network of a key.
        data: In-distribution images; as many validation rows are used as there are proxy outliers.
        proxies: Proxy outliers, with which precisions are chosen.
        outside: Outliers of the table.
        say: Function that prints progress.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        network: Callable[[str], nn.Module],
        data: ImageData,
        proxies: Tensor,
        outside: Tensor,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._settings = folder, json.loads(json.dumps({**settings, "grid": GRID}))
        self._network, self._data, self._say = network, data, say
        self._parts = cache(self._kept)
        self._sets = {
            "validation": data.validation.x[: len(proxies)],
            "stand-in": proxies,
            "test": data.test.x,
            "outside": outside,
        }
        self._labels = {"validation": data.validation.y[: len(proxies)], "test": data.test.y}

    def _kept(self, key: str) -> dict[str, Parts]:
        """Return logits and variances of a network by set, layer and precision, from the folder if they are there."""
        digest = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()[:12]
        path = self._folder / f"{key}-{digest}.safetensors"
        try:
            tensors = load_tensors(path, (_KIND,))[2]
        except DataError:
            network = self._network(key)
            assert isinstance(network, nn.Sequential)
            laplace = dense_laplace(network, self._data.train)
            parts = {name: parts_of(laplace, GRID, x) for name, x in self._sets.items()}
            tensors = {f"{name}-mean": part.mean for name, part in parts.items()}
            tensors |= {f"{name}-variances": part.variances for name, part in parts.items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(path, _KIND, self._settings, tensors)
            self._say(f"dense layers of {key}: posterior fitted")
        return {name: Parts(tensors[f"{name}-mean"], tensors[f"{name}-variances"]) for name in self._sets}

    def _of(self, keys: tuple[str, ...], name: str) -> list[Parts]:
        return [self._parts(key)[name] for key in keys]

    def choice(self, *keys: str) -> dict[str, Any]:
        """Return precisions for one network or a mixture: validation NLL at most that of the (first) network itself."""
        inside, outside, labels = self._of(keys, "validation"), self._of(keys, "stand-in"), self._labels["validation"]
        point = nll_and_auroc(without_variance(inside[:1]), without_variance(outside[:1]), labels)
        return {**chosen(inside, outside, labels, GRID, point["nll"]), "map": point}

    def row(self, *keys: str) -> dict[str, Any]:
        """Return scores on test rows and outliers, with the choice and the frontiers."""
        choice = self.choice(*keys)
        inside, outside = (averaged(self._of(keys, name), choice["combination"]) for name in ("test", "outside"))
        scores = scored(inside, outside, self._labels["test"])
        return {**scores, "choice": choice, "frontiers": self.frontiers(*keys)}

    def mixture_row(self, *keys: str) -> dict[str, Any]:
        """Return the row of the ensemble, and what each network scores alone with its own precisions."""
        kept = ("accuracy", "nll", "auroc", "auroc_entropy")
        alone = [self.row(key) for key in keys]
        return {**self.row(*keys), "alone": [{name: row[name] for name in kept} for row in alone]}

    def frontiers(self, *keys: str) -> dict[str, Any]:
        """Return NLL and AUROC along the grid, on the rows that choose and on those of the table, with MAP's."""
        curves: dict[str, Any] = {}
        for side, inside, outside in (("chosen_on", "validation", "stand-in"), ("tested_on", "test", "outside")):
            parts, others, labels = self._of(keys, inside), self._of(keys, outside), self._labels[inside]
            curves[side] = frontier(parts, others, labels, GRID)
            curves[f"map_{side}"] = nll_and_auroc(without_variance(parts), without_variance(others), labels)
        return curves
