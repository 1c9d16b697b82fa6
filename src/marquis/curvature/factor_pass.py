"""The factor pass: exact and sketched curvature through one backward walk over the captured graph.

A square root S of the output Hessian is pulled back step by step. Where it meets a parameter, per-sample gradients go
to the sink of the structure; at chosen bottlenecks the columns are replaced by fewer (`cuts.py`). Columns are worked
through in chunks, tiles of the picture where the output is one, so memory is bounded by the chunk and not by the output.

Cost: columns x backward. Memory: the forward values that the rules need, plus one chunk of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from marquis.curvature.cuts import Cut, choose_cuts, find_cuts, step_costs
from marquis.curvature.factor import Factor, Window
from marquis.curvature.gradients import Form, combine
from marquis.curvature.graph import Step
from marquis.curvature.pullbacks import Context, Cotangent, add, pull
from marquis.curvature.pullbacks.elementwise import is_pointwise
from marquis.curvature.roots import Root, Written
from marquis.curvature.route import Route
from marquis.curvature.rules import gradients_of
from marquis.curvature.sinks import Sink
from marquis.errors import NumericalError

CHUNK_BYTES = 2**24
"""Target size of one chunk of columns at the widest tensor."""


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
    chunk_bytes: int = CHUNK_BYTES

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
        chunks = root.chunks(self._columns_per_chunk(steps))
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

    def _columns_per_chunk(self, steps: list[Step]) -> int:
        item = self.sink.like.element_size()
        widest = max((prod(self.context.shapes.get(step.value, (1,))) for step in steps), default=1)
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


@dataclass(eq=False)
class Triangular(Written):
    """Columns of a lower triangular square root: column c is zero above entry c, so a chunk has a window."""

    def __init__(self, lower: Tensor, shape: tuple[int, ...]) -> None:
        """Keep the factor [n or 1, w, w] as it is; columns are cut from it."""
        self.lower = lower
        self.shape = shape
        self.shared = lower.shape[0] == 1 and shape[0] != 1

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of columns: the width of the bottleneck."""
        return self.lower.shape[-1]

    def make(self, chunk: object) -> Factor:
        """Columns [start, stop), cropped to the rows from start on."""
        start, stop = chunk  # type: ignore[misc]
        columns = self.lower[:, start:, start:stop].permute(2, 0, 1)
        if len(self.shape) == 2:
            window = Window((self.count,), ((start, self.count),))
            return Factor(columns, self.shape, None, window if start else None)
        whole = columns.new_zeros(stop - start, columns.shape[1], self.count)
        whole[:, :, start:] = columns
        return Factor(whole.view(stop - start, columns.shape[1], *self.shape[1:]), self.shape)


def add_gram(gram: Tensor | None, factor: Factor, width: int) -> Tensor:
    """Add S Sᵀ of one chunk to M, [n or 1, w, w], in the window that the chunk touches."""
    columns = factor.product()
    flat = columns.reshape(columns.shape[0], columns.shape[1], -1)
    n = flat.shape[1]
    window = factor.window
    if gram is None:
        gram = flat.new_zeros(n, width, width)
    if window is None or window.is_everything:
        by_sample = flat.transpose(0, 1)
        return gram.baddbmm_(by_sample.transpose(1, 2), by_sample)
    index = torch.arange(width, device=flat.device).view(window.full)[window.slices].flatten()
    by_sample = flat.transpose(0, 1)
    gram[:, index[:, None], index] += by_sample.transpose(1, 2) @ by_sample
    return gram


def square_root(gram: Tensor, where: str) -> Tensor:
    """Lower triangular L with L Lᵀ = M, for positive semi-definite M that may be singular.

    Rounding makes a singular M slightly indefinite; the jitter starts at the rounding error of M itself.
    """
    if not bool(torch.isfinite(gram).all()):
        raise NumericalError(
            f"the curvature at the output of {where} is not finite; check the network's outputs and data."
        )
    width = gram.shape[-1]
    level = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    tiny = torch.finfo(gram.dtype).tiny ** 0.5
    epsilon = torch.finfo(gram.dtype).eps
    jitter = 0.0
    for attempt in range(8):
        lifted = gram.clone() if attempt else gram
        if attempt:
            jitter = epsilon * 10.0 ** (attempt - 1)
            lifted.diagonal(dim1=-2, dim2=-1).add_((jitter * level + tiny)[:, None])
        lower, info = torch.linalg.cholesky_ex(lifted)
        if not bool(info.any()):
            return lower
    raise NumericalError(
        f"the curvature at the output of {where} (width {width}) is not positive semi-definite even with a relative jitter "
        f"of {jitter:.1g}; compute in float64."
    )
