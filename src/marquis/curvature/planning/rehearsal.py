"""A rehearsal of the engine's passes with tensors that have shapes but no entries.

The real rules run, on PyTorch's fake tensors: what a rule does, which bottlenecks are used and how large every
temporary is comes from the code that will do the work, not from a second description of it. Nothing is allocated, and
one chunk of columns stands for all, since they are alike. Cost: milliseconds per operation, whatever the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from marquis.curvature.backward.accumulators import DiagonalSink, KroneckerSink, Sink
from marquis.curvature.backward.bottlenecks import Cut
from marquis.curvature.backward.output_roots import Root, Separate, Written, exact_root
from marquis.curvature.backward.recompression import Triangular, add_gram
from marquis.curvature.backward.route import Route
from marquis.curvature.backward.tiles import picture_of
from marquis.curvature.backward.walk import FactorPass, planned_cuts
from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Entrywise, Explicit, Form, Lazy, Outer, RankOne, combine
from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.pullbacks import Context, Cotangent, add, pull
from marquis.curvature.ops.pullbacks.elementwise import is_pointwise
from marquis.curvature.ops.rules import gradients_of
from marquis.curvature.planning.memory import AllocationMeter, tensors_in
from marquis.curvature.squared.squared import squared_forward, squared_pass
from marquis.errors import MarquisError
from marquis.likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a parameter on the way back.

    Attributes:
        step: the operation.
        value: number of the batch-free value that enters it: the parameter, or something derived from it.
        form: the form of its gradients that the rule found.
        columns: columns of one chunk.
    """

    step: Step
    value: int
    form: type[Form]
    columns: int


@dataclass(frozen=True)
class Kept:
    """How a Kronecker structure will keep a parameter.

    Attributes:
        kind: "kronecker", "dense" or "diagonal".
        entries: how many numbers that takes, the count of a Kronecker pair not included.
    """

    kind: str
    entries: int

    @staticmethod
    def of(form: Form) -> Kept:
        """The choice that the Kronecker sink makes for gradients of this form."""
        size = prod(form.shape)
        if isinstance(form, RankOne):
            return Kept("kronecker", form.shape[0] ** 2 + form.shape[1] ** 2)
        if isinstance(form, Outer):
            groups, _, inputs = form.sizes
            return Kept("kronecker", groups * (form.outputs.shape[-1] ** 2 + inputs**2))
        if isinstance(form, Entrywise) or (isinstance(form, Explicit) and form.as_block):
            return Kept("dense", size**2)
        return Kept("diagonal", size)


@dataclass(frozen=True)
class Segment:
    """A stretch of the walk between two bottlenecks.

    Attributes:
        columns: columns that are pulled through it.
        chunk: how many of them at a time.
        chunks: in how many pieces.
        tile: shape of the part of the picture that a chunk covers, or None.
        cut: the bottleneck at its end, or None for the last stretch.
    """

    columns: int
    chunk: int
    chunks: int
    tile: tuple[int, ...] | None
    cut: Cut | None


@dataclass(eq=False)
class Rehearsal:
    """What a pass will do and take.

    Attributes:
        shapes: shape of every value.
        outputs: shape of the network's output.
        forward_bytes: forward values that the pass keeps.
        forward_peak: the most that is alive during the forward pass.
        pass_peak: the most that the backward pass takes on top of what is kept.
        segments: of the factor pass.
        visited: steps that receive columns.
        uses: parameter name -> its uses that receive gradients.
        kept: parameter name -> how a Kronecker structure would keep it, all uses together.
        columns: parameter name -> columns there.
    """

    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    forward_bytes: int = 0
    forward_peak: int = 0
    pass_peak: int = 0
    segments: list[Segment] = field(default_factory=list)
    visited: set[int] = field(default_factory=set)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)


def stand_ins(network: Network, params: Mapping[str, Tensor], x: Any, mode: FakeTensorMode) -> dict[int, Any]:
    """Parameters, constants and inputs as fake tensors."""

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        return mode.from_tensor(value.detach())

    values = network.bind(params, x)
    return {number: fake(value) for number, value in values.items()}


def rehearse_factored(
    route: Route,
    params: Mapping[str, Tensor],
    x: Any,
    samples: int,
    likelihood: Likelihood,
    make_sink: Callable[[], Sink],
    chunk_bytes: int,
    probes: int | None,
) -> Rehearsal:
    """Rehearse the factor pass.

    Args:
        route: the steps to visit.
        params: all parameters of the network.
        x: inputs.
        samples: batch size.
        likelihood: p(y|f), not yet resolved.
        make_sink: makes the sink; called where nothing is allocated.
        chunk_bytes: target size of a chunk of columns.
        probes: number of columns at the output, or None for one per output.
    """
    network = route.network
    result = Rehearsal()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        values = stand_ins(network, params, x, mode)
        outputs = _forward(
            network, values, result, lambda: network.forward(values, route.needed, result.shapes, route.pooled)
        )
        sink = make_sink()
        with AllocationMeter() as meter:
            root = _root(likelihood.resolve(outputs), outputs, picture_of(network, result.shapes), probes)
            context = Context(network, values, result.shapes, route.active, samples)
            walk = FactorPass(route, context, sink, chunk_bytes)
            cuts = planned_cuts(route, result.shapes, sink, root.count, root.shared, samples)
            start = 0
            for cut in [*cuts, None]:
                stop = len(route.steps) if cut is None else cut.position
                root = _segment(walk, root, start, stop, cut, result)
                start = stop
            result.pass_peak = meter.peak
    return result


def _root(likelihood: Likelihood, outputs: Tensor, picture: tuple[int, ...] | None, probes: int | None) -> Root:
    if probes is None:
        return exact_root(likelihood, outputs, None, picture)
    return Written(outputs.new_empty(probes, *outputs.shape), tuple(outputs.shape))


def _forward(network: Network, values: dict[int, Any], result: Rehearsal, run: Callable[[], Tensor]) -> Tensor:
    given = {leaf.untyped_storage()._cdata for leaf in tensors_in(list(values.values()))}
    with AllocationMeter() as meter:
        outputs = run()
    kept = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes() for leaf in tensors_in(list(values.values()))
    }
    result.forward_bytes = sum(size for key, size in kept.items() if key not in given)
    result.forward_peak = max(meter.peak, result.forward_bytes)
    result.outputs = tuple(outputs.shape)
    return outputs


def _segment(walk: FactorPass, root: Root, start: int, stop: int, cut: Cut | None, result: Rehearsal) -> Root:
    """One chunk through steps [start, stop); returns what the recompressed root looks like."""
    steps = walk.route.steps[start:stop]
    context = walk.context
    source = context.network.output if start == 0 else walk.route.steps[start].value
    chunks = root.chunks(walk._columns_per_chunk(root, steps))
    local = isinstance(root, Separate) and root.local
    # In the middle of a picture receptive fields are whole; the first columns of a triangle are the longest.
    factor = root.make(chunks[len(chunks) // 2 if local else 0])
    tile = factor.window.shape if local and factor.window is not None else None
    result.segments.append(Segment(root.count, factor.count, len(chunks), tile, cut))
    context.caching = len(chunks) > 1
    left = _walk(walk, steps, source, factor, cut, root.count, result)
    context.cache.clear()
    if cut is None:
        return root
    shape = context.shapes[cut.value]
    gram = walk.sink.like.new_empty(1, cut.width, cut.width) if left is None else add_gram(None, left, cut.width)
    return Triangular(torch.empty_like(gram), tuple(shape))


def _walk(
    walk: FactorPass,
    steps: Sequence[Step],
    source: int,
    start: Factor,
    cut: Cut | None,
    columns: int,
    result: Rehearsal,
) -> Factor | None:
    pending: dict[int, Cotangent] = {source: start}
    context = walk.context
    waiting: dict[str, list[Form]] = {}
    held: list[Form] = []  # everything else is dropped as soon as the real walk drops it, or memory is overestimated
    for step in steps:
        cotangent = pending.pop(step.value, None)
        if cotangent is None:
            continue
        result.visited.add(step.value)
        if isinstance(cotangent, Factor) and not cotangent.has_shared_columns and not is_pointwise(step):
            cotangent = cotangent.materialised()
        for number, name in walk.route.uses.get(step.value, ()):
            form = gradients_of(context, step, cotangent, number, name)
            result.uses.setdefault(name, []).append(Use(step, number, type(form), form.columns))
            result.columns[name] = columns
            waiting.setdefault(name, []).append(form)
            if _is_held(walk.sink, form):
                held.append(form)
            if len(waiting[name]) == walk.route.counts[name]:
                result.kept[name] = _meet(walk.sink, name, combine(waiting.pop(name)))
            del form
        for number, part in pull(context, step, cotangent).items():
            pending[number] = add(pending[number], part) if number in pending else part
    for name, forms in waiting.items():
        result.kept[name] = _meet(walk.sink, name, combine(forms))
    left = pending.get(cut.value) if cut is not None else None
    assert left is None or isinstance(left, Factor)
    return left


def _meet(sink: Sink, name: str, form: Form) -> Kept:
    """What the sink makes of gradients, and the temporaries that this takes.

    Sums of squares go column by column; one stretch of written-out gradients stands for them.
    """
    kept = Kept.of(form)
    with suppress(RuntimeError):  # what cannot be rehearsed is left out of the estimate
        if isinstance(sink, KroneckerSink) and kept.kind != "diagonal":
            sink.add(name, form)
        elif isinstance(form, (Outer, Lazy)):
            form.explicit(*next(iter(form.sample_ranges())))
    return kept


def _is_held(sink: Sink, form: Form) -> bool:
    """Whether the sink keeps gradients until the end of the chunk or of the segment."""
    return isinstance(form, RankOne) if isinstance(sink, DiagonalSink) else not isinstance(sink, KroneckerSink)


def rehearse_squared(
    network: Network, params: Mapping[str, Tensor], x: Any, likelihood: Likelihood, names: Sequence[str]
) -> Rehearsal:
    """Rehearse the squared pass: memory only, since every parameter is treated alike."""
    result = Rehearsal()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        values = stand_ins(network, params, x, mode)
        outputs = _forward(network, values, result, lambda: squared_forward(network, values, names))
        with AllocationMeter() as meter:
            start = likelihood.resolve(outputs).hessian_diagonal(outputs, None)
            try:
                squared_pass(network, values, start, names)
            except MarquisError:
                raise
            except RuntimeError:  # a rule looks at entries; m has the shapes of the forward values, a few at a time
                result.pass_peak = result.forward_peak
            result.pass_peak = max(meter.peak, result.pass_peak)
    return result


def rehearse_forward(route: Route, params: Mapping[str, Tensor], x: Any) -> Rehearsal:
    """Rehearse a forward pass that keeps everything."""
    network, result = route.network, Rehearsal()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        values = stand_ins(network, params, x, mode)
        _forward(network, values, result, lambda: network.forward(values, None, result.shapes, route.pooled))
    return result
