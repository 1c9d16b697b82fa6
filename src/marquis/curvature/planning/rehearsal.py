"""Rehearse the engine's passes with tensors that have shapes but no entries.

The real passes run, on PyTorch's fake tensors, with an observer: what a rule does, which bottlenecks are used and how
large every temporary is comes from the code that will do the work. Nothing is allocated, and one chunk of columns
stands for all, since they are alike. Cost: milliseconds per operation, whatever the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from typing_extensions import override

from marquis.curvature.backward.accumulators import Accumulator, DiagonalAccumulator, KroneckerAccumulator
from marquis.curvature.backward.accumulators.base import Receiver
from marquis.curvature.backward.bottlenecks import Bottleneck
from marquis.curvature.backward.output_roots import ExplicitRoot, PixelwiseRoot, SquareRoot, exact_root
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.backward.tiles import image_shape
from marquis.curvature.backward.walk import BackwardWalk, Observer
from marquis.curvature.factors.gradients import LazyGradients, ParameterGradients
from marquis.curvature.factors.outer_products import OuterProducts, RankOne
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context
from marquis.curvature.planning.memory import AllocationMeter, tensors_in
from marquis.curvature.squared.mixed import mixed_pass
from marquis.curvature.squared.squared import squared_forward, squared_pass
from marquis.errors import MarquisError
from marquis.likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class Use:
    """Describe one use of a parameter on the backward pass.

    Attributes:
        step: the operation.
        value: number of the batch-free value that enters it: the parameter, or something derived from it.
        gradients: the class of gradients that the rule returns.
        columns: columns of one chunk.
    """

    step: Step
    value: int
    gradients: type[ParameterGradients]
    columns: int


@dataclass(frozen=True)
class Segment:
    """Describe the part of the backward pass between two bottlenecks.

    Attributes:
        columns: columns that pass through it.
        chunk: how many of them at a time.
        chunks: in how many pieces.
        tile: shape (channels, *space) of the part of the image output that a chunk covers, or None.
        bottleneck: the bottleneck at its end, or None for the last segment.
    """

    columns: int
    chunk: int
    chunks: int
    tile: tuple[int, ...] | None
    bottleneck: Bottleneck | None


@dataclass(eq=False)
class Rehearsal(Observer):
    """Describe what a pass will do and take.

    Attributes:
        shapes: shape of every value.
        outputs: shape of the network's output.
        forward_bytes: forward values that the pass keeps.
        forward_peak: the most that is alive during the forward pass.
        pass_peak: the most that the backward pass takes on top of what is kept.
        segments: of the factor pass.
        visited: steps that receive columns.
        uses: parameter name -> its uses that receive gradients.
        kronecker_forms: parameter name -> how a Kronecker structure would keep it, in how many numbers.
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
    kronecker_forms: dict[str, tuple[str, int]] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)

    @override
    def choose_chunks(self, root: SquareRoot, chunks: list[object], bottleneck: Bottleneck | None) -> list[object]:
        local = isinstance(root, PixelwiseRoot) and root.local
        # In the middle of an image receptive fields are whole; the first columns of a triangle are the longest.
        chunk = chunks[len(chunks) // 2 if local else 0]
        factor = root.make(chunk)
        tile = factor.window.shape if local and factor.window is not None else None
        self.segments.append(Segment(root.count, factor.count, len(chunks), tile, bottleneck))
        return [chunk]

    @override
    def choose_blocks(self, starts: list[int]) -> list[int]:
        return starts[:1]

    @override
    def on_step(self, step: Step) -> None:
        self.visited.add(step.value)

    @override
    def on_gradients(self, step: Step, number: int, name: str, gradients: ParameterGradients) -> None:
        self.uses.setdefault(name, []).append(Use(step, number, type(gradients), gradients.columns))
        self.columns[name] = self.segments[-1].columns

    @override
    def square_root(self, gram: Tensor, where: str) -> Tensor:
        return torch.empty_like(gram)


@dataclass(eq=False)
class _Rehearsed(Receiver):
    """Take gradients as another accumulator would, for the temporaries that this takes, and add nothing up.

    Attributes:
        real: the other one.
        kronecker_forms: receives how a Kronecker structure would keep each parameter.
        held: gradients that the other one keeps for a while.
    """

    real: Accumulator = field(kw_only=True)
    kronecker_forms: dict[str, tuple[str, int]] = field(kw_only=True)
    held: list[ParameterGradients] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recompresses, self.takes_blocks = self.real.recompresses, self.real.takes_blocks

    @override
    def groups(self) -> list[tuple[str, ...]]:
        return self.real.groups()

    @override
    def refuse_shared(self, name: str, uses: int) -> None:
        self.real.refuse_shared(name, uses)

    @override
    def add(self, name: str, gradients: ParameterGradients) -> None:
        self.kronecker_forms[name] = gradients.kronecker_form
        kronecker, diagonal = (isinstance(self.real, kind) for kind in (KroneckerAccumulator, DiagonalAccumulator))
        if isinstance(gradients, RankOne) if diagonal else not kronecker:
            self.held.append(gradients)
        with suppress(RuntimeError):  # what cannot be rehearsed is left out of the estimate
            if kronecker and gradients.kronecker_form[0] != "diagonal":
                self.real.add(name, gradients)
            elif isinstance(gradients, (OuterProducts, LazyGradients)):  # one range of samples stands for all
                gradients.explicit(*next(iter(gradients.sample_ranges())))

    @override
    def end_chunk(self) -> None:
        self.held.clear()


@dataclass(frozen=True, eq=False)
class Rehearsals:
    """Run the passes of one call with tensors that have shapes but no entries.

    Attributes:
        backward: the steps to visit.
        params: all parameters.
        x: the inputs.
        samples: their number.
        likelihood: p(y|f).
        make_accumulator: returns a new accumulator of the structure.
    """

    backward: BackwardSteps
    params: Mapping[str, Tensor]
    x: Any
    samples: int
    likelihood: Likelihood
    make_accumulator: Callable[[], Accumulator]

    def factored(self, chunk_bytes: int, probes: int | None, keep_everything: bool = False) -> Rehearsal:
        """Rehearse the factor pass; `probes` is None for the exact root."""
        network, result = self.backward.network, Rehearsal()
        with self._without_entries() as values:
            keep = None if keep_everything else self.backward.needed
            forward = partial(network.forward, values, keep, result.shapes, self.backward.with_extra)
            outputs = _forward(values, result, forward)
            accumulator = self._accumulator(result.kronecker_forms)
            with AllocationMeter() as meter:
                if probes is None:
                    image = image_shape(network, result.shapes)
                    root = exact_root(self.likelihood.resolve(outputs), outputs, None, image)
                else:
                    root = ExplicitRoot(outputs.new_empty(probes, *outputs.shape), tuple(outputs.shape))
                context = Context(network, values, result.shapes, self.backward.active, self.samples)
                BackwardWalk(self.backward, context, accumulator, chunk_bytes, result).run(root)
                result.pass_peak = meter.peak
        return result

    def mixed(self, width_limit: float) -> int:
        """Rehearse the mixed pass for the bytes that it takes on top of the forward values."""
        network, shapes = self.backward.network, dict[int, tuple[int, ...]]()
        with self._without_entries() as values:
            likelihood = self.likelihood.resolve(network.forward(values, None, shapes, self.backward.with_extra))
            accumulator = self._accumulator({})
            context = Context(network, values, shapes, self.backward.active, self.samples)
            with AllocationMeter() as meter:
                mixed_pass(self.backward, context, likelihood, None, accumulator, width_limit, rehearsing=True)
            return meter.peak

    def squared(self, names: Sequence[str]) -> Rehearsal:
        """Rehearse the squared pass: memory only, since every parameter is treated alike."""
        network, result = self.backward.network, Rehearsal()
        with self._without_entries() as values:
            outputs = _forward(values, result, lambda: squared_forward(network, values, names))
            with AllocationMeter() as meter:
                start = self.likelihood.resolve(outputs).hessian_diagonal(outputs, None)
                try:
                    squared_pass(network, values, start, names)
                except MarquisError:
                    raise
                except RuntimeError:  # a rule looks at entries; m has the shapes of the forward values, a few at a time
                    result.pass_peak = result.forward_peak
                result.pass_peak = max(meter.peak, result.pass_peak)
        return result

    def _accumulator(self, kronecker_forms: dict[str, tuple[str, int]]) -> _Rehearsed:
        """Return what stands in for a new accumulator."""
        real = self.make_accumulator()
        return _Rehearsed(real.like, real=real, kronecker_forms=kronecker_forms)

    @contextmanager
    def _without_entries(self) -> Iterator[dict[int, Any]]:
        """Yield parameters, constants and inputs as fake tensors, within a context that makes no others."""
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():

            def fake(value: Any) -> Any:
                is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
                return mode.from_tensor(value.detach()) if is_real else value

            yield {number: fake(v) for number, v in self.backward.network.bind(self.params, self.x).items()}


def _forward(values: dict[int, Any], result: Rehearsal, run: Callable[[], Tensor]) -> Tensor:
    """Run the forward pass, and record what it takes and what it leaves in `values`."""
    before = {leaf.untyped_storage()._cdata for leaf in tensors_in(list(values.values()))}
    with AllocationMeter() as meter:
        outputs = run()
    retained = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes() for leaf in tensors_in(list(values.values()))
    }
    result.forward_bytes = sum(size for key, size in retained.items() if key not in before)
    result.forward_peak = max(meter.peak, result.forward_bytes)
    result.outputs = tuple(outputs.shape)
    return outputs
