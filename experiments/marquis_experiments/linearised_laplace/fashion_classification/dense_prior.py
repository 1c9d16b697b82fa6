"""Prior precisions of the dense layers, chosen with proxy outliers.

A Kronecker posterior over the dense layers alone, the convolutions fixed. Layers are independent in it, so what each
adds to the variances of the logits is computed once for a grid of precisions; every combination is then a sum.
The choice: the largest AUROC for proxy outliers without a larger validation NLL than the network itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marquis.laplace import Laplace
from marquis.posterior import Posterior
from marquis.priors import Prior
from marquis.tasks.ranking import auroc
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.linearised_laplace.stack_covariance import StackCovariance


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

    If all are above the limit, the one of the smallest NLL.

    Args:
        inside: Parts of validation images, for every network of a mixture.
        outside: Parts of proxy outliers, for every network of a mixture.
        labels: Labels of the validation images.
        grid: Precisions.
        limit: Limit on the validation NLL.

    Returns:
        `combination` (places in the grid), `precision` (per layer), `nll` and `auroc`.
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
