"""Predictive methods that `shift` compares: linearised Laplace posteriors, SWAG and MC dropout."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from marquis.evidence import tune
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.statistics import Statistics
from marquis.functional.jacobian import jacobian
from marquis.laplace import Laplace
from marquis.likelihoods import Categorical
from marquis.posterior import Posterior
from marquis.predictive import links
from marquis.predictive.function import PosteriorFunction
from marquis.priors import BoundPrior, Prior
from marquis.structures import Diagonal, Full, Layout, Structure
from marquis.subnetwork import Subnetwork, swag_moments
from marquis_experiments.common.images import Labelled, ensemble_probs, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.study import Settings
from marquis_experiments.common.training import Shuffled

STATISTICS = 2000
"""Training images from which the batch statistics of a sampled network are computed."""

INPUTS = 40
"""Number of images whose Jacobians are in memory at once."""


@dataclass(frozen=True)
class Digits:
    """Hold standardised images and labels; the test images once per angle."""

    train: Labelled
    validation: Labelled
    x_test: list[Tensor]
    y_test: Tensor


# --- linearised Laplace: many posteriors, one Jacobian ----------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Hold a set of weights and their curvature, or their posterior precision.

    Attributes:
        matrix: Curvature or precision of these weights.
        columns: Their positions in the flat vector of all weights; None for all.
    """

    matrix: Structure
    columns: Tensor | None = None

    def with_prior(self, precision: float) -> Candidate:
        """Return the posterior precision: curvature plus prior precision."""
        return Candidate(self.matrix.add_diagonal(precision), self.columns)

    def variance(self, jacobian: Tensor) -> Tensor:
        """Return marginal variances of the logits `[B, C]` for `J [B, C, P]`."""
        part = jacobian if self.columns is None else jacobian[..., self.columns]
        return self.matrix.quadratic(part, diagonal_only=True)

    def part(self, rows: Sequence[int], columns: Tensor) -> Candidate:
        """Return the block of fewer weights, which conditions on the others."""
        index = torch.tensor(rows)
        block = self.matrix.to_dense()[index][:, index]
        return Candidate(Full(Layout({"weights": (len(index),)}), block), columns)


def linearised(
    network: nn.Module, digits: Digits, settings: Settings, swag_variance: Tensor, seed: int
) -> dict[str, dict[str, Any]]:
    """Return probit probabilities of every posterior at every angle, prior precisions by evidence and by validation."""
    posteriors, statistics = candidates(network, digits, settings, swag_variance, seed)
    weights = nn.utils.parameters_to_vector(network.parameters()).detach()
    by_validation = validated(network, digits.validation, posteriors, settings.precisions)
    results: dict[str, dict[str, Any]] = {}
    chosen: dict[str, list[Candidate]] = {}
    for name, candidate in posteriors.items():
        precisions = {"evidence": by_evidence(candidate, weights, statistics), "validation": by_validation[name]}
        for how, precision in precisions.items():
            results[f"{name}, {how}"] = {"probs": [], "chosen": precision}
            chosen[f"{name}, {how}"] = [candidate.with_prior(precision)]
    for x in digits.x_test:
        mean = logits(network, x)
        for name, (variance,) in logit_variances(network, x, chosen).items():
            results[name]["probs"].append(probit(mean, variance))
    return results


def validated(
    network: nn.Module, held_out: Labelled, posteriors: Mapping[str, Candidate], grid: Sequence[float]
) -> dict[str, float]:
    """Return for each posterior the prior precision with the smallest NLL on held-out digits."""
    options = {name: [candidate.with_prior(value) for value in grid] for name, candidate in posteriors.items()}
    mean, best = logits(network, held_out.x), {}
    for name, variances in logit_variances(network, held_out.x, options).items():
        scores = [classification_scores(probit(mean, variance), held_out.y)["nll"] for variance in variances]
        best[name] = grid[scores.index(min(scores))]
    return best


def by_evidence(candidate: Candidate, weights: Tensor, statistics: Statistics) -> float:
    """Return the prior precision of the largest evidence, the other weights being fixed."""
    chosen = weights if candidate.columns is None else weights[candidate.columns]
    prior = Prior(1.0).bind(candidate.matrix.layout, like=chosen)
    problem = EvidenceProblem(candidate.matrix, chosen, prior, Categorical(), statistics)
    tuned = tune(problem).prior
    assert isinstance(tuned, BoundPrior)
    return float(tuned.precision[0])


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Return class probabilities of Gaussian logits (docs/method/predictive.md)."""
    return links.probit(Categorical(), mean, variance.to(mean.dtype))


def candidates(
    network: nn.Module, digits: Digits, settings: Settings, swag_variance: Tensor, seed: int
) -> tuple[dict[str, Candidate], Statistics]:
    """Return all curvatures over weights of one network, and its fit. Cost: three passes over the training data.

    Subnetworks share a pass: the curvature of all weights that are in any of them, of which each takes its block.
    """
    batches = digits.train.batches()

    def fitted(structure: str, parameters: Any = "all") -> Laplace:
        return Laplace(network, "categorical", structure, parameters=parameters).fit(batches, progress=False)

    diagonal, last = fitted("diagonal"), fitted("full", "last-layer")
    layout = diagonal.posterior.layout
    generator = torch.Generator().manual_seed(seed)
    sizes = {share: max(1, round(share * layout.total)) for share in (*settings.shares, settings.compared)}
    ranked = {"by SWAG": swag_variance, "by Laplace variance": -diagonal.curvature.diagonal()}
    ranked["at random"] = torch.rand(layout.total, generator=generator)
    sets: dict[str, list[int]] = {}
    for by, scores in ranked.items():
        order = torch.sort(scores, descending=True, stable=True).indices
        for share in settings.shares if by == "by SWAG" else (settings.compared,):
            sets[f"subnetwork {100 * share:g} % {by}"] = order[: sizes[share]].sort().values.tolist()
    union = sorted({weight for chosen in sets.values() for weight in chosen})
    wanted = torch.zeros(layout.total).index_fill(0, torch.tensor(union), 1.0)
    whole = Candidate(fitted("full", Subnetwork(len(union), by=wanted)).curvature)
    place = {weight: row for row, weight in enumerate(union)}
    head = torch.cat([torch.arange(layout.total)[layout.slice(name)] for name in last.posterior.layout.names])
    assert diagonal.statistics is not None
    curvatures = {
        "diagonal": Candidate(diagonal.curvature),
        "last layer": Candidate(last.curvature, head),
        **{name: whole.part([place[w] for w in chosen], torch.tensor(chosen)) for name, chosen in sets.items()},
    }
    return curvatures, diagonal.statistics


def logit_variances(
    network: nn.Module, x: Tensor, wanted: Mapping[str, Sequence[Candidate]]
) -> dict[str, list[Tensor]]:
    """Return variances of the logits `[n, C]`, by name and for each posterior; one Jacobian serves all of them."""
    mean = {name: parameter.detach() for name, parameter in network.named_parameters()}
    layout = Layout.of(mean)
    function = PosteriorFunction(network, Posterior(layout, mean, Diagonal(layout, torch.ones(layout.total))))
    pieces: dict[str, list[list[Tensor]]] = {name: [[] for _ in options] for name, options in wanted.items()}
    for part in x.split(INPUTS):
        rows = jacobian(function, part)
        for name, options in wanted.items():
            for place, candidate in enumerate(options):
                pieces[name][place].append(candidate.variance(rows))
    return {name: [torch.cat(parts) for parts in each] for name, each in pieces.items()}


# --- sampled networks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Hold mean and variance of the weights over SGD's iterates, as flat vectors in the order of the parameters."""

    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(pair: nn.ModuleDict) -> Moments:
        """Read them from two networks, whose weights are the numbers."""
        flat = {name: nn.utils.parameters_to_vector(net.parameters()).detach() for name, net in pair.items()}
        return Moments(flat["mean"], flat["variance"])


class NextBatches:
    """Yield a few batches per iteration, from where the last one stopped: snapshots more often than once per epoch."""

    def __init__(self, data: Labelled, size: int, count: int, seed: int) -> None:
        batches = Shuffled(data.tensors, size, seed)
        self._endless = (batch for _ in itertools.count() for batch in batches)
        self._count = count

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Return the next few batches."""
        return itertools.islice(self._endless, self._count)


def collect_moments(pair: nn.Module, network: nn.Module, data: Labelled, settings: Settings, seed: int) -> None:
    """Write the mean of SGD's iterates to one network of a pair and their variances to the other."""
    assert isinstance(pair, nn.ModuleDict)
    names = [name for name, _ in network.named_parameters()]
    moments = swag_moments(
        network,
        NextBatches(data, settings.batch, settings.batches_per_snapshot, 3000 + seed),
        Categorical(),
        names,
        epochs=settings.snapshots,
        lr=settings.swag_lr,
        weight_decay=settings.weight_decay,
    )
    with torch.no_grad():
        for part, values in zip(("mean", "variance"), moments, strict=True):
            for name, parameter in pair[part].named_parameters():
                parameter.copy_(values[name])


def sampled_swag(network: nn.Module, moments: Moments, digits: Digits, settings: Settings) -> list[Tensor]:
    """Return probabilities averaged over networks from N(mean, diag(variance)), with new batch statistics."""
    generator = torch.Generator().manual_seed(4000)
    totals = [torch.zeros(())] * len(digits.x_test)
    batches = digits.train.x[:STATISTICS].split(500)
    for _ in range(settings.samples):
        noise = torch.randn(len(moments.mean), generator=generator)
        nn.utils.vector_to_parameters(moments.mean + moments.variance.sqrt() * noise, network.parameters())
        update_bn(batches, network)
        network.eval()
        totals = [total + logits(network, x).softmax(1) for total, x in zip(totals, digits.x_test, strict=True)]
    return [total / settings.samples for total in totals]


def sampled_dropout(network: nn.Module, digits: Digits, settings: Settings, seed: int) -> list[Tensor]:
    """Return probabilities averaged over dropout masks; batch norm as in evaluation (Gal and Ghahramani 2016)."""
    network = copy.deepcopy(network).eval()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5000 + seed)
        return [ensemble_probs([network] * settings.samples, x) for x in digits.x_test]
