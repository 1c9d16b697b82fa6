"""The factor pass: exact and sketched curvature through one backward walk over the captured graph.

A square root S of the output Hessian is pulled back step by step. Where it meets a parameter, per-sample gradients go
to the sink of the structure; at chosen bottlenecks the columns are replaced by fewer (`cuts.py`). Columns are worked
through in chunks (tiles of the picture where the output is one), so memory is bounded by the chunk, not the output.

Cost: columns x backward. Memory: the forward values that the rules need, plus one chunk of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators import Sink
from marquis.curvature.backward.bottlenecks import Cut, choose_cuts, find_cuts, step_costs
from marquis.curvature.backward.output_roots import Root, Separate
from marquis.curvature.backward.recompression import Triangular, add_gram, square_root
from marquis.curvature.backward.route import Route
from marquis.curvature.backward.tiles import columns_per_tile
from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Form, combine
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks import Context, Cotangent, add, pull
from marquis.curvature.ops.pullbacks.elementwise import is_pointwise
from marquis.curvature.ops.rules import gradients_of


@dataclass(eq=False)
class FactorPass:
    """One backward walk with a given root and sink.

    Attributes:
        route: the steps to visit and the uses of parameters along them.
        context: the network's values on this batch.
        sink: receives the gradients.
        chunk_bytes: target size of a chunk of columns.
    """

    route: Route
    context: Context
    sink: Sink
    chunk_bytes: int

    def run(self, root: Root) -> None:
        """Walk from the output to the first parameters, in segments between the chosen cuts."""
        for name, count in self.route.counts.items():
            if count > 1:
                self.sink.refuse_shared(name, count)
        cuts = planned_cuts(self.route, self.context.shapes, self.sink, root.count, root.shared, self.context.size)
        start = 0
        for cut in [*cuts, None]:
            stop = len(self.route.steps) if cut is None else cut.position
            root = self._segment(root, start, stop, cut)
            start = stop

    def _segment(self, root: Root, start: int, stop: int, cut: Cut | None) -> Root:
        """Pull all columns through steps [start, stop); returns the recompressed root at the cut."""
        steps = self.route.steps[start:stop]
        source = self.context.network.output if start == 0 else self.route.steps[start].value
        chunks = root.chunks(self._columns_per_chunk(root, steps))
        gram: Tensor | None = None
        self.context.caching = len(chunks) > 1
        for chunk in chunks:
            factor = self._walk(steps, source, root.make(chunk), cut)
            self.sink.end_chunk()
            if cut is not None and factor is not None:
                gram = add_gram(gram, factor, cut.width)
        self.sink.end_segment()
        self.context.cache.clear()
        if cut is None:
            return root
        shape = self.context.shapes[cut.value]
        if gram is None:  # nothing arrived: the output does not depend on what lies below
            gram = torch.zeros(1, cut.width, cut.width, dtype=self.sink.like.dtype, device=self.sink.like.device)
        return Triangular(square_root(gram, self.context.network.producers[cut.value].where), tuple(shape))

    def _columns_per_chunk(self, root: Root, steps: list[Step]) -> int:
        item = self.sink.like.element_size()
        shapes = self.context.shapes
        if isinstance(root, Separate) and root.local:
            return columns_per_tile(root.grid, steps, shapes, self.context.size)
        widest = max((prod(shapes.get(step.value, (1,))) for step in steps), default=1)
        return max(1, self.chunk_bytes // max(1, widest * item))

    def _walk(self, steps: list[Step], source: int, start: Factor, cut: Cut | None) -> Factor | None:
        pending: dict[int, Cotangent] = {source: start}
        collected: dict[str, list[Form]] = {}
        for step in steps:
            cotangent = pending.pop(step.value, None)
            if cotangent is None:
                continue
            if isinstance(cotangent, Factor) and not cotangent.has_shared_columns and not is_pointwise(step):
                cotangent = cotangent.materialised()  # once for the rules of this step together
            for number, name in self.route.uses.get(step.value, ()):
                forms = collected.setdefault(name, [])
                forms.append(gradients_of(self.context, step, cotangent, number, name))
                if len(forms) == self.route.counts[name]:
                    self.sink.add(name, combine(collected.pop(name)))
            for number, part in pull(self.context, step, cotangent).items():
                pending[number] = add(pending[number], part) if number in pending else part
        for name, forms in collected.items():  # some uses receive no gradient, e.g. behind a detach
            self.sink.add(name, combine(forms))
        if cut is None:
            return None
        left = pending.get(cut.value)
        assert left is None or isinstance(left, Factor)
        return left


def planned_cuts(
    route: Route, shapes: Mapping[int, tuple[int, ...]], sink: Sink, columns: int, shared: bool, samples: int
) -> list[Cut]:
    """The bottlenecks at which the factor is recompressed; none where all columns have to stay what they are."""
    if not sink.recompresses:
        return []
    groups = tuple(sink.groups())
    key = ("cuts", tuple(route.selected), groups, columns, shared, samples)
    memo = route.network.memo
    if key not in memo:
        positions: dict[str, list[int]] = {}
        for position, step in enumerate(route.steps):
            for _, name in route.uses.get(step.value, ()):
                positions.setdefault(name, []).append(position)
        together = [[p for name in names for p in positions.get(name, ())] for names in groups]
        found = find_cuts(route.network, route.steps, route.active, shapes, together, shared)
        costs = step_costs(route.network, route.steps, route.active, shapes, samples)
        memo[key] = choose_cuts(found, columns, costs, samples)
    return memo[key]
