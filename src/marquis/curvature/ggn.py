"""The front door of the engine: curvature of one batch, as a structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.cache import network_of
from marquis.curvature.call import Model, Selection, batch_size, check_finite, parameters_of, select
from marquis.curvature.factor_pass import CHUNK_BYTES, FactorPass
from marquis.curvature.graph import Network, Step
from marquis.curvature.pullbacks import Context
from marquis.curvature.route import Route
from marquis.curvature.roots import Root, empirical_root, exact_root, fisher_root, sketched_root
from marquis.curvature.sinks import BlockSink, DiagonalSink, FullSink, KroneckerSink, LowRankSink, Sink
from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.structures import Layout, Structure

LikelihoodLike = str | Likelihood | Any
MakeRoot = Callable[[Likelihood, Tensor, "tuple[int, ...] | None"], Root]


def ggn(
    model: Model,
    x: Any,
    likelihood: LikelihoodLike,
    structure: str = "diagonal",
    estimator: str = "exact",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    probes: int = 1,
    width_limit: int = 512,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
) -> Structure:
    """x."""
    likelihood = as_likelihood(likelihood)

    def root(lik: Likelihood, outputs: Tensor, picture: tuple[int, ...] | None) -> Root:
        if estimator == "sketched":
            return sketched_root(lik, outputs, mask, probes, generator)
        return exact_root(lik, outputs, mask, picture)

    return _factor(model, x, likelihood, structure, params, parameters, root)


def _factor(model, x, likelihood, structure, params, parameters, make_root):
    everything = parameters_of(model, params)
    chosen = select(everything, parameters)
    n = batch_size(x)
    network = network_of(model, everything, x)
    layout = Layout.of(chosen)
    route = Route.of(network, tuple(chosen))
    with torch.no_grad():
        values = network.bind(everything, x)
        shapes = {}
        outputs = network.forward(values, route.needed, shapes)
        likelihood = likelihood.resolve(outputs)
        like = next(iter(chosen.values())).detach()
        sink = make_sink(structure, layout, like, n)
        picture = picture_of(network, shapes)
        root = make_root(likelihood, outputs, picture)
        FactorPass(route, Context(network, values, shapes, route.active, n), sink).run(root)
        return sink.finish()


def make_sink(structure, layout, like, n):
    if structure == "diagonal":
        return DiagonalSink(layout, like)
    if structure == "kronecker":
        return KroneckerSink(layout, like, samples=n)
    if structure == "block":
        members = {}
        for name in layout.names:
            members.setdefault(name.rpartition(".")[0], []).append(name)
        return BlockSink(layout, like, members={k: tuple(v) for k, v in members.items()})
    if structure == "full":
        return FullSink(layout, like)
    return LowRankSink(layout, like)


def picture_of(network: Network, shapes):
    """Shape of picture behind the output."""
    number = network.output
    while True:
        step = network.producers.get(number)
        if step is None:
            return None
        if step.name.startswith("conv"):
            return tuple(shapes[number][1:]) if len(shapes[number]) >= 3 else None
        from marquis.curvature.pullbacks.elementwise import is_pointwise

        if step.name in {"view", "reshape", "flatten", "unflatten"} or (
            is_pointwise(step) and len([i for i in step.inputs if i in network.batched]) == 1
        ):
            number = [i for i in step.inputs if i in network.batched and i in shapes][0]
            continue
        return None
