"""Which layers should be uncertain, and how much: precisions of the dense layers chosen with stand-in outliers.

A Kronecker posterior over the dense layers alone, the convolutions held. Layers are independent in it, so what each
adds to the variances of the logits is computed once for a grid of precisions; every combination is then a sum.
The choice: as many stand-in outliers detected as possible without a larger validation NLL than the network itself.
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
from marquis_experiments.classifiers import Labelled
from marquis_experiments.metrics import classification_scores
from marquis_experiments.stack_covariance import StackCovariance


@dataclass(frozen=True, eq=False)
class Parts:
    """Logits, and what every layer adds to their variances under every precision of a grid.

    Attributes:
        mean: `[n, c]`.
        variances: `[layers, precisions, n, c]`.
    """

    mean: Tensor
    variances: Tensor

    def probs(self, combination: Sequence[int]) -> Tensor:
        """Class probabilities by the probit link; the combination names each layer's place in the grid."""
        variance = torch.stack([self.variances[layer, place] for layer, place in enumerate(combination)]).sum(0)
        return (self.mean / (1 + torch.pi / 8 * variance).sqrt()).softmax(1)


def dense_names(network: nn.Sequential) -> list[str]:
    """Names of the parameters of dense layers."""
    dense = [name for name, layer in network.named_children() if isinstance(layer, nn.Linear)]
    return [name for name, _ in network.named_parameters() if name.split(".")[0] in dense]


def dense_laplace(network: nn.Sequential, data: Labelled) -> Laplace:
    """Kronecker curvature of the dense layers, exact, one prior precision per layer."""
    prior = Prior(1.0, groups="layer")
    found = Laplace(network, "categorical", "kronecker", "exact", parameters=dense_names(network), prior=prior)
    return found.fit(data.batches(), progress=False)


def parts_of(laplace: Laplace, grid: Sequence[float], x: Tensor, chunk: int = 100) -> Parts:
    """Parts for images, a few at a time. Cost: a backward pass of the dense layers per class."""
    assert isinstance(laplace.model, nn.Sequential)
    own = laplace.problem().grouped_prior
    posteriors = [
        Posterior(
            laplace.fitted.layout,
            laplace.fitted.mean,
            own.with_precision(torch.full_like(own.precision, precision)).add_to(laplace.curvature),
        )
        for precision in grid
    ]
    stack = StackCovariance(laplace.model, posteriors)
    means, variances = [], []
    for part in x.split(chunk):
        mean, found = stack.by_layer(part)
        means.append(mean)
        variances.append(torch.stack([found[name].diagonal(dim1=-2, dim2=-1) for name in stack.layers]))
    return Parts(torch.cat(means), torch.cat(variances, 2))


def averaged(members: Sequence[Parts], combination: Sequence[int]) -> Tensor:
    """Probabilities of one network, or averaged over several."""
    return torch.stack([member.probs(combination) for member in members]).mean(0)


def sure(members: Sequence[Parts]) -> Tensor:
    """The same without any variance: the networks themselves."""
    return torch.stack([member.mean.softmax(1) for member in members]).mean(0)


def judged(inside: Tensor, outside: Tensor, labels: Tensor) -> dict[str, float]:
    """NLL of the images inside, and the AUROC by the maximum probability."""
    return {
        "nll": classification_scores(inside, labels)["nll"],
        "auroc": auroc(-inside.double().max(1).values, -outside.double().max(1).values),
    }


def chosen(
    inside: Sequence[Parts], outside: Sequence[Parts], labels: Tensor, grid: Sequence[float], limit: float
) -> dict[str, Any]:
    """The combination of largest AUROC among those with an NLL of at most the limit.

    If none keeps to the limit, the one of least NLL.

    Args:
        inside: validation images, for every network of a mixture.
        outside: stand-in outliers, likewise.
        labels: of the validation images.
        grid: precisions.
        limit: on the validation NLL.

    Returns:
        `combination` (places in the grid), `precision` (per layer), `nll` and `auroc`.
    """
    best: dict[str, Any] | None = None
    layers = len(inside[0].variances)
    for combination in itertools.product(range(len(grid)), repeat=layers):
        found = judged(averaged(inside, combination), averaged(outside, combination), labels)
        key = (found["nll"] <= limit, found["auroc"] if found["nll"] <= limit else -found["nll"])
        if best is None or key > best["key"]:
            best = {"key": key, "combination": list(combination), **found}
    assert best is not None
    del best["key"]
    return {**best, "precision": [grid[place] for place in best["combination"]]}


def frontier(
    inside: Sequence[Parts], outside: Sequence[Parts], labels: Tensor, grid: Sequence[float]
) -> list[dict[str, float]]:
    """NLL and AUROC as the first dense layer goes through the grid, the others as sure as the grid allows."""
    sure = [len(grid) - 1] * (len(inside[0].variances) - 1)
    return [
        {"precision": precision, **judged(averaged(inside, [i, *sure]), averaged(outside, [i, *sure]), labels)}
        for i, precision in enumerate(grid)
    ]
