"""Compute exact and sketched curvature by one backward walk over the captured graph, the factor pass.

A square root S of the output Hessian goes backwards step by step (docs/method/curvature.md, Factor pass). Where it
meets a parameter, per-sample gradients go to the accumulator of the structure; at chosen bottlenecks its columns are
replaced by fewer. Columns are worked through in chunks (tiles where the output is an image), so memory is bounded by
the chunk, not the output.

Cost: columns x backward. Memory: the forward values that the rules need, plus one chunk of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from marquis.curvature.backward.accumulators.base import Receiver
from marquis.curvature.backward.bottlenecks import Bottleneck, choose_bottlenecks, find_bottlenecks, step_costs
from marquis.curvature.backward.output_roots import CentredRoot, PixelwiseRoot, SquareRoot
from marquis.curvature.backward.recompression import TriangularRoot, add_gram, square_root
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.backward.tiles import CONVOLUTIONS, columns_per_tile
from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import sum_over_uses
from marquis.curvature.graph.network import Step
from marquis.curvature.ops import add_cotangents, parameter_gradients, vector_jacobian
from marquis.curvature.ops.context import Context, Cotangent
from marquis.curvature.ops.registry import operation_of

BLOCK_BYTES = 2**22
"""Size of all columns of a block of samples at the widest tensor."""

FEWEST_SAMPLES = 2
"""Samples below which a block is not worth its calls."""


class Observer:
    """Observe a backward walk; this one neither records nor changes anything."""

    def choose_chunks(self, root: SquareRoot, chunks: list[object], bottleneck: Bottleneck | None) -> list[object]:
        """Return the chunks of columns to walk with, down to the next bottleneck."""
        return chunks

    def choose_blocks(self, starts: list[int]) -> list[int]:
        """Return the blocks of samples to walk with, by their first samples."""
        return starts

    def on_step(self, step: Step) -> None:
        """Take note of a step that columns arrive at."""

    def on_gradients(self, step: Step, number: int, name: str, gradients: ParameterGradients) -> None:
        """Take note of one use of a parameter."""

    def square_root(self, gram: Tensor, where: str) -> Tensor:
        """Return a triangular square root of M at a bottleneck."""
        return square_root(gram, where)


@dataclass(eq=False)
class BackwardWalk:
    """Walk backwards once, from a square root at the output to an accumulator.

    Attributes:
        backward: the steps to visit and the uses of parameters along them.
        context: the network's values on this batch.
        accumulator: receives the gradients.
        chunk_bytes: target size of a chunk of columns.
        observer: sees what happens, and may choose chunks; None for a plain run.
    """

    backward: BackwardSteps
    context: Context
    accumulator: Receiver
    chunk_bytes: int
    observer: Observer | None = None

    def run(self, root: SquareRoot) -> None:
        """Walk from the output to the first parameters, in segments between the chosen bottlenecks."""
        for name, count in self.backward.counts.items():
            if count > 1:
                self.accumulator.refuse_shared(name, count)
        width = self._samples_per_block(root)
        if width >= self.context.size:
            self._all_segments(root)
            return
        whole = replace(self.context, buffers={})
        starts = list(range(0, whole.size, width))
        for start in starts if self.observer is None else self.observer.choose_blocks(starts):
            stop = min(whole.size, start + width)
            part = root.of_samples(start, stop)
            assert part is not None
            replace(self, context=whole.of_samples(start, stop))._all_segments(part)
            self.accumulator.end_block()

    def _samples_per_block(self, root: SquareRoot) -> int:
        """Return how many samples go backwards at a time, with all columns; the whole batch where that is as fast.

        Convolutions write patches and fill pooled tensors: what stays in the cache costs a third less.
        """
        context, steps, size = self.context, self.backward.steps, self.context.size
        if not self.accumulator.takes_blocks or root.count == 1 or root.of_samples(0, 1) is None:
            return size
        if not any(operation_of(step).kind in CONVOLUTIONS for step in steps) or not context.divisible:
            return size
        widest = max(prod(context.shapes.get(step.value, (1,))[1:]) for step in steps)
        budget = min(BLOCK_BYTES, self.chunk_bytes)
        width = budget // (root.count * widest * self.accumulator.like.element_size())
        return width if width >= FEWEST_SAMPLES else size

    def _all_segments(self, root: SquareRoot) -> None:
        """Walk through all steps, in segments between the chosen bottlenecks."""
        bottlenecks = chosen_bottlenecks(self.backward, self.context.shapes, self.accumulator, root, self.context.size)
        start = 0
        for bottleneck in [*bottlenecks, None]:
            stop = len(self.backward.steps) if bottleneck is None else bottleneck.position
            root = self._segment(root, start, stop, bottleneck)
            start = stop

    def _segment(self, root: SquareRoot, start: int, stop: int, bottleneck: Bottleneck | None) -> SquareRoot:
        """Take all columns through steps [start, stop); returns the recompressed root at the bottleneck."""
        steps, observer, context = self.backward.steps[start:stop], self.observer, self.context
        source = context.network.output if start == 0 else self.backward.steps[start].value
        chunks = root.chunks(self._columns_per_chunk(root, steps))
        context.caching = len(chunks) > 1
        if observer is not None:
            chunks = observer.choose_chunks(root, chunks, bottleneck)
        gram: Tensor | None = None
        for chunk in chunks:
            factor = self._chunk(steps, source, root.make(chunk), bottleneck)
            self.accumulator.end_chunk()
            if bottleneck is not None and factor is not None:
                gram = add_gram(gram, factor, bottleneck.width)
        self.accumulator.end_segment()
        context.cache.clear()
        if bottleneck is None:
            return root
        if gram is None:  # nothing arrived: the output does not depend on what lies below
            gram = self.accumulator.like.new_zeros(1, bottleneck.width, bottleneck.width)
        where = context.network.producers[bottleneck.value].where
        lower = square_root(gram, where) if observer is None else observer.square_root(gram, where)
        return TriangularRoot(lower, tuple(context.shapes[bottleneck.value]))

    def _columns_per_chunk(self, root: SquareRoot, steps: list[Step]) -> int:
        """Return how many columns flow backwards at a time within the memory of a chunk."""
        shapes = self.context.shapes
        if isinstance(root, PixelwiseRoot) and root.local:
            return columns_per_tile(root.grid, steps, shapes, self.context.size)
        if isinstance(root, CentredRoot) and operation_of(steps[0]).kind == "matrix product":
            steps = steps[1:]  # the columns are written out behind the last dense layer only
        widest = max((prod(shapes.get(step.value, (1,))) for step in steps), default=1)
        return max(1, self.chunk_bytes // max(1, widest * self.accumulator.like.element_size()))

    def _chunk(self, steps: list[Step], source: int, start: Factor, bottleneck: Bottleneck | None) -> Factor | None:
        """Take one chunk of columns through the steps; returns what arrives at the bottleneck."""
        pending: dict[int, Cotangent] = {source: start}
        collected: dict[str, list[ParameterGradients]] = {}
        context, observer, uses, counts = self.context, self.observer, self.backward.uses, self.backward.counts
        pointwise = self.backward.pointwise
        del start  # a chunk is large: keep no second reference to it
        for step in steps:
            cotangent = pending.pop(step.value, None)
            if cotangent is None:
                continue
            if observer is not None:
                observer.on_step(step)
            if step.value not in pointwise and isinstance(cotangent, Factor) and not cotangent.has_shared_columns:
                cotangent = cotangent.materialised()  # once for the rules of this step together
            for number, name in uses.get(step.value, ()):
                gradients = parameter_gradients(context, step, cotangent, number, name)
                if observer is not None:
                    observer.on_gradients(step, number, name, gradients)
                if counts[name] == 1:
                    self.accumulator.add(name, gradients)
                else:
                    collected.setdefault(name, []).append(gradients)
                    if len(collected[name]) == counts[name]:
                        self.accumulator.add(name, sum_over_uses(collected.pop(name)))
                del gradients  # a large tensor: keep no reference for longer than needed
            for number, part in vector_jacobian(context, step, cotangent).items():
                pending[number] = add_cotangents(pending[number], part) if number in pending else part
        for name, received in collected.items():  # some uses receive no gradient, e.g. behind a detach
            self.accumulator.add(name, sum_over_uses(received))
        if bottleneck is None:
            return None
        left = pending.get(bottleneck.value)
        assert left is None or isinstance(left, Factor)
        return left


def chosen_bottlenecks(
    backward: BackwardSteps,
    shapes: Mapping[int, tuple[int, ...]],
    accumulator: Receiver,
    root: SquareRoot,
    samples: int,
) -> list[Bottleneck]:
    """Return the bottlenecks at which the factor is recompressed; none where all columns have to stay what they are."""
    if not accumulator.recompresses:
        return []
    groups = tuple(accumulator.groups())
    key = ("bottlenecks", tuple(backward.selected), groups, root.count, root.shared, samples)
    memo = backward.network.memo
    if key not in memo:
        positions: dict[str, list[int]] = {}
        for position, step in enumerate(backward.steps):
            for _, name in backward.uses.get(step.value, ()):
                positions.setdefault(name, []).append(position)
        grouped = [[p for name in names for p in positions.get(name, ())] for names in groups]
        network, steps, active = backward.network, backward.steps, backward.active
        candidates = find_bottlenecks(network, steps, active, shapes, grouped, root.shared)
        costs = step_costs(network, steps, active, shapes, samples)
        memo[key] = choose_bottlenecks(candidates, root.count, costs, samples)
    return memo[key]
