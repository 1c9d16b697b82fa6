"""Posteriors over the dense layers alone, with prior precisions chosen by proxy outliers.

The convolutions are fixed. Layers are independent under a Kronecker posterior, so what each adds to the variances of
the logits is computed once for a grid of precisions; every combination is then a sum. The choice: the largest AUROC
for proxy outliers without a larger validation NLL than the network itself.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors
from marquis.laplace import Laplace
from marquis.posterior import Posterior
from marquis.priors import Prior
from marquis.tasks.ranking import auroc
from marquis_experiments.common.images import ImageData, Labelled
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.linearised_laplace.fashion_classification.scores import scored
from marquis_experiments.linearised_laplace.stack_covariance import StackCovariance

_KIND = "class-variances"
GRID = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0)
"""Precisions of the dense layers' prior."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Logits, and what every layer adds to their variances under every precision of a grid.

    Attributes:
        mean: Logits `[n, c]`.
        variances: Variances `[layers, precisions, n, c]`.
    """

    mean: Tensor
    variances: Tensor

    def probs(self, combination: Sequence[int]) -> Tensor:
        """Return class probabilities by the probit link; the combination has each layer's place in the grid."""
        variance = torch.stack([self.variances[layer, place] for layer, place in enumerate(combination)]).sum(0)
        return (self.mean / (1 + torch.pi / 8 * variance).sqrt()).softmax(1)


def dense_names(network: nn.Sequential) -> list[str]:
    """Return the names of the parameters of dense layers."""
    dense = [name for name, layer in network.named_children() if isinstance(layer, nn.Linear)]
    return [name for name, _ in network.named_parameters() if name.split(".")[0] in dense]


def dense_laplace(network: nn.Sequential, data: Labelled) -> Laplace:
    """Fit the exact Kronecker curvature of the dense layers, one prior precision per layer."""
    prior = Prior(1.0, groups="layer")
    laplace = Laplace(network, "categorical", "kronecker", "exact", parameters=dense_names(network), prior=prior)
    return laplace.fit(data.batches(), progress=False)


def parts_of(laplace: Laplace, grid: Sequence[float], x: Tensor, chunk: int = 100) -> Parts:
    """Return the parts for images, a chunk at a time. Cost: a backward pass of the dense layers per class."""
    assert isinstance(laplace.model, nn.Sequential)
    prior = laplace.problem().grouped_prior
    posteriors = [
        Posterior(
            laplace.fitted.layout,
            laplace.fitted.mean,
            prior.with_precision(torch.full_like(prior.precision, precision)).add_to(laplace.curvature),
        )
        for precision in grid
    ]
    stack = StackCovariance(laplace.model, posteriors)
    means, variances = [], []
    for part in x.split(chunk):
        mean, covariances = stack.by_layer(part)
        means.append(mean)
        variances.append(torch.stack([covariances[name].diagonal(dim1=-2, dim2=-1) for name in stack.layers]))
    return Parts(torch.cat(means), torch.cat(variances, 2))


def averaged(members: Sequence[Parts], combination: Sequence[int]) -> Tensor:
    """Return probabilities of one network, or averaged over several."""
    return torch.stack([member.probs(combination) for member in members]).mean(0)


def without_variance(members: Sequence[Parts]) -> Tensor:
    """Return probabilities of the networks themselves, averaged."""
    return torch.stack([member.mean.softmax(1) for member in members]).mean(0)


def nll_and_auroc(inside: Tensor, outside: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the in-distribution NLL and the AUROC by the maximum probability."""
    return {
        "nll": classification_scores(inside, labels)["nll"],
        "auroc": auroc(-inside.double().max(1).values, -outside.double().max(1).values),
    }


def chosen(
    inside: Sequence[Parts], outside: Sequence[Parts], labels: Tensor, grid: Sequence[float], limit: float
) -> dict[str, Any]:
    """Return the combination of largest AUROC among those with an NLL of at most the limit.

    If all are above the limit, the one of the smallest NLL. There is one element of `inside` (validation images) and of
    `outside` (proxy outliers) for every network of a mixture.
    """
    best: dict[str, Any] | None = None
    layers = len(inside[0].variances)
    for combination in itertools.product(range(len(grid)), repeat=layers):
        scores = nll_and_auroc(averaged(inside, combination), averaged(outside, combination), labels)
        key = (scores["nll"] <= limit, scores["auroc"] if scores["nll"] <= limit else -scores["nll"])
        if best is None or key > best["key"]:
            best = {"key": key, "combination": list(combination), **scores}
    assert best is not None
    del best["key"]
    return {**best, "precision": [grid[place] for place in best["combination"]]}


def frontier(
    inside: Sequence[Parts], outside: Sequence[Parts], labels: Tensor, grid: Sequence[float]
) -> list[dict[str, float]]:
    """Return NLL and AUROC along the grid of the first dense layer, the others at the largest precision."""
    others = [len(grid) - 1] * (len(inside[0].variances) - 1)
    return [
        {
            "precision": precision,
            **nll_and_auroc(averaged(inside, [i, *others]), averaged(outside, [i, *others]), labels),
        }
        for i, precision in enumerate(grid)
    ]


class DenseLayers:
    """Precisions chosen with validation rows and proxy outliers, scores with test rows and outliers."""

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
