"""Plan what a curvature call will do and cost, before anything large is allocated."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from marquis.arguments import checked
from marquis.curvature.backward.accumulators import Accumulator, make_accumulator
from marquis.curvature.backward.accumulators.base import GRADIENT_BYTES
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.factors.gradients import CHUNK_BYTES, LazyGradients
from marquis.curvature.factors.outer_products import OuterProducts, RankOne
from marquis.curvature.graph.cache import network_of
from marquis.curvature.graph.network import Network
from marquis.curvature.planning import plan_text
from marquis.curvature.planning.choices import check_choices
from marquis.curvature.planning.coverage import LayerPlan, factored_layers, mixed_layers, notes_on, squared_layers
from marquis.curvature.planning.memory import allowed_bytes, chunk_bytes, gigabytes, result_bytes
from marquis.curvature.planning.rehearsal import Rehearsal, Rehearsals, Segment
from marquis.errors import MarquisError, MemoryBudgetError, UnsupportedOperationError
from marquis.functional.call import Model, describe
from marquis.functional.checks import batch_size, check_ordinary, samples_of
from marquis.functional.selection import Selection, parameters_of, select
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.options import renamed_attributes
from marquis.structures import Layout

_FITTING: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
"""Calls that were planned and fit, by model."""
CAPTURE_SAMPLES = 3
"""Samples on which the network is captured and checked; the plan is for the whole batch."""


@dataclass(frozen=True)
class Recompression:
    """Describe a bottleneck at which the columns are replaced by fewer.

    Attributes:
        operation: the operation that makes the narrow tensor.
        module: path of its module.
        before: columns that arrive.
        after: columns that go on.
    """

    operation: str
    module: str
    before: int
    after: int


@renamed_attributes(stretches="segments")
@dataclass(frozen=True)
class Plan:
    """Describe what `ggn` would do with these arguments. `print` it for a table.

    Attributes:
        structure: kind of matrix.
        estimator: how the network is differentiated.
        likelihood: p(y|f), as text.
        batch: number of samples.
        outputs: shape of the network's output, batch included.
        columns: columns at the output; 1 where only the diagonal of M flows back.
        recompressions: the bottlenecks that are used, from the output backwards.
        segments: how the columns are cut up between the bottlenecks, from the output backwards.
        layers: one entry per selected parameter.
        notes: what deserves attention: fall-backs, approximations, parameters without curvature.
        forward_bytes: forward values that are kept for the backward pass.
        pass_bytes: the most that the backward pass takes on top, one chunk of columns with its temporaries.
        result_bytes: the finished structure (`structure.nbytes`).
        total_bytes: the most that is alive at once, the model and the inputs not counted.
        available_bytes: what may be used: `memory_limit`, or nine tenths of what is free.
        item: bytes of one number.
    """

    structure: str
    estimator: str
    likelihood: str
    batch: int
    outputs: tuple[int, ...]
    columns: int
    recompressions: tuple[Recompression, ...]
    segments: tuple[Segment, ...]
    layers: tuple[LayerPlan, ...]
    notes: tuple[str, ...]
    forward_bytes: int
    pass_bytes: int
    result_bytes: int
    total_bytes: int
    available_bytes: int
    item: int

    @property
    def fits(self) -> bool:
        """Return whether the call stays within the memory that may be used."""
        return self.total_bytes <= self.available_bytes

    def __str__(self) -> str:
        """Return a table, 100 characters wide."""
        return plan_text.render(self)


@checked
def plan(
    model: Model,
    x: Any,
    likelihood: str | Likelihood | Any,
    structure: str = "diagonal",
    estimator: str = "exact",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    probes: int = 1,
    width_limit: float = 512,
    memory_limit: int | None = None,
) -> Plan:
    """Return what `ggn` with the same arguments will do and cost: columns, bottlenecks, bytes, each parameter's rule.

    The network is captured on a few samples; then the engine's rules run on tensors without entries. So nothing
    large is allocated, whatever the batch, and what the plan says is what the engine does. Cost: the capture, which
    `ggn` needs anyway and which is remembered, and some milliseconds per operation.

    Arguments as in `ggn`; of all but the first few samples of `x` only the shape matters, and a plan that does not fit
    `memory_limit` is still returned, with `fits` False.

    Raises:
        UnsupportedOperationError: `ggn` would refuse this network or combination; the message is the same.
        DataError: as `ggn`, for a batch without samples or of the wrong form.
    """
    structure, estimator = check_choices(structure, estimator, probes)
    check_ordinary(x)
    size = batch_size(x)
    everything = {name: p.detach() for name, p in parameters_of(model, params).items()}
    layout = Layout.of(select(parameters_of(model, params), parameters))
    like = everything[layout.names[0]]
    network = network_of(model, everything, samples_of(x, 0, CAPTURE_SAMPLES))
    if network.fixed_batch not in (None, size):
        network = network_of(model, everything, x)
    resolved = as_likelihood(likelihood)
    # A rehearsal takes as long as several passes and depends on shapes only: every later call finds it.
    shapes = [(t.shape, t.dtype) if isinstance(t, Tensor) else t for t in pytree.tree_leaves(x)]
    kind = (structure, estimator, probes, width_limit, memory_limit, type(resolved), repr(resolved))
    key = ("plan", *kind, layout, like.dtype, str(like.device), repr(shapes))
    remembered = network.memo.get(key)
    if remembered is not None:
        return replace(remembered, available_bytes=allowed_bytes(like.device, memory_limit))
    planner = _Planner(network, everything, x, size, resolved, layout, structure, like, memory_limit)
    try:
        made = planner.make(estimator, probes, width_limit)
        network.memo[key] = made
        return made
    except MarquisError:
        raise
    except RuntimeError as error:  # a rule or the user's likelihood looks at entries, which are not there
        raise UnsupportedOperationError(
            f"{describe(model)} cannot be planned: {str(error).splitlines()[0]} An operation decides by the values of "
            "its tensors. `ggn` itself may work; try it on a small batch."
        ) from error


def require_fit(model: Model, x: Any, likelihood: Likelihood, structure: str, estimator: str, **options: Any) -> None:
    """Refuse a call of `ggn` that would take more than its `memory_limit`; remembered for batches of the same shape.

    Raises:
        MemoryBudgetError: Names the bytes, and what else fits.
    """
    shapes = [(t.shape, t.dtype) for t in pytree.tree_leaves(x) if isinstance(t, Tensor)]
    limit, names = options["memory_limit"], tuple(parameters_of(model, options["params"]))
    key = repr((structure, estimator, likelihood, options["probes"], options["width_limit"], limit, names, shapes))
    fitting = _FITTING.setdefault(model, set()) if isinstance(model, nn.Module) else set()
    if key in fitting and options["parameters"] is None:
        return
    try:
        made = plan(model, x, likelihood, structure, estimator, **options)
    except UnsupportedOperationError:  # `ggn` says it better, or can do what cannot be planned
        return
    if not made.fits:
        smaller = {"diagonal exact": ("diagonal", "sketched"), "kronecker exact": ("kronecker", "sketched")}
        dense = structure not in ("diagonal", "kronecker")
        otherwise = ("kronecker", "sketched") if dense else ("diagonal", "approximate")
        other = smaller.get(f"{structure} {estimator}", otherwise)
        raise MemoryBudgetError(
            f"structure='{structure}' with estimator='{estimator}' takes about {gigabytes(made.total_bytes)} for "
            f"{made.batch} samples (forward values {gigabytes(made.forward_bytes)}, backward pass "
            f"{gigabytes(made.pass_bytes)}, result {gigabytes(made.result_bytes)}), but memory_limit is "
            f"{gigabytes(limit)}. Pass fewer samples (`accumulate` splits batches by itself), structure='{other[0]}' "
            f"with estimator='{other[1]}', fewer parameters (parameters=...), or a larger memory_limit."
        )
    fitting.add(key)


@dataclass(eq=False)
class _Planner:
    network: Network
    params: dict[str, Tensor]
    x: Any
    size: int
    likelihood: Likelihood
    layout: Layout
    structure: str
    like: Tensor
    limit: int | None

    def __post_init__(self) -> None:
        self.backward = BackwardSteps.of(self.network, self.layout.names)
        self.item = self.like.element_size()

    def make(self, estimator: str, probes: int, width_limit: float) -> Plan:
        """Return the plan for an estimator, from a rehearsal of its pass."""
        passes = Rehearsals(self.backward, self.params, self.x, self.size, self.likelihood, self._accumulator)
        if estimator == "approximate":
            rehearsed = passes.squared([name for name in self.layout.names if name in self.network.parameters])
            layers = squared_layers(self.backward, self.layout)
            return self.finish(estimator, rehearsed, layers, rehearsed.pass_peak, 1)
        columns = probes if estimator == "sketched" else None
        rehearsed = passes.factored(chunk_bytes(self.limit), columns, keep_everything=estimator == "mixed")
        if estimator == "mixed":
            layers = mixed_layers(self.backward, self.layout, rehearsed, width_limit, self.size)
            rehearsed.segments = []
            columns = prod(rehearsed.outputs[1:]) if prod(rehearsed.outputs[1:]) <= width_limit else 1
            return self.finish(estimator, rehearsed, layers, passes.mixed(width_limit), columns)
        layers = factored_layers(self.backward, self.layout, rehearsed, self.structure)
        working = rehearsed.pass_peak + self._written_bytes(rehearsed)
        return self.finish(estimator, rehearsed, layers, working, rehearsed.segments[0].columns)

    def _accumulator(self) -> Accumulator:
        """Return a new accumulator of the structure."""
        return make_accumulator(self.structure, self.layout, self.like, self.size)

    def finish(
        self, estimator: str, rehearsed: Rehearsal, layers: tuple[LayerPlan, ...], working: int, columns: int
    ) -> Plan:
        """Return the plan with memory, columns and notes filled in."""
        result = self._result_bytes(rehearsed, columns)
        if self.structure == "kronecker":
            working = max(0, working - result)  # its factors are summed while it is rehearsed
        copies = 2 if self.structure in ("full", "block", "lowrank") else 1  # the sum, and one product or check of it
        used = {name for name in self.params if name not in self.layout.shapes}
        return Plan(
            structure=self.structure,
            estimator=estimator,
            likelihood=repr(self.likelihood),
            batch=self.size,
            outputs=rehearsed.outputs,
            columns=columns,
            recompressions=self._recompressions(rehearsed),
            segments=tuple(rehearsed.segments),
            layers=layers,
            notes=notes_on(self.backward, layers, estimator, sorted(used), self.size),
            forward_bytes=rehearsed.forward_bytes,
            pass_bytes=working,
            result_bytes=result,
            total_bytes=max(rehearsed.forward_peak, rehearsed.forward_bytes + working) + copies * result,
            available_bytes=allowed_bytes(self.like.device, self.limit),
            item=self.item,
        )

    def _recompressions(self, rehearsed: Rehearsal) -> tuple[Recompression, ...]:
        """Return where columns are recompressed, and from how many to how many."""
        made = []
        for segment in rehearsed.segments:
            if segment.bottleneck is not None:
                step = self.network.producers[segment.bottleneck.value]
                made.append(Recompression(step.name, step.path, segment.columns, segment.bottleneck.width))
        return tuple(made)

    def _result_bytes(self, rehearsed: Rehearsal, columns: int) -> int:
        """Return the bytes of the finished structure."""
        if self.structure != "kronecker":
            return result_bytes(self.structure, self.layout, columns * self.size, self.item)
        kept = [rehearsed.kronecker_forms.get(name, ("diagonal", size)) for name, size in self.layout.sizes.items()]
        return sum(self.item * entries + 8 * (kind == "kronecker") for kind, entries in kept)  # 8 for its count

    def _written_bytes(self, rehearsed: Rehearsal) -> int:
        """Return the bytes of gradients that are written out while they are squared, at least one sample at a time."""
        most = 0
        for name, uses in rehearsed.uses.items():
            for use in uses:
                if self.structure in ("diagonal", "kronecker") and use.gradients not in (
                    RankOne,
                    OuterProducts,
                    LazyGradients,
                ):
                    most = max(most, self._bytes_of_rows(use.columns * self.layout.sizes[name], CHUNK_BYTES))
        if self.structure in ("block", "full", "lowrank"):
            groups = self.layout.by_module().values() if self.structure == "block" else [self.layout.names]
            widest = max(sum(self.layout.sizes[name] for name in names) for names in groups)
            columns = max((use.columns for uses in rehearsed.uses.values() for use in uses), default=1)
            most += 2 * self._bytes_of_rows(columns * widest, GRADIENT_BYTES)
        return most

    def _bytes_of_rows(self, entries: int, limit: int) -> int:
        """Return the bytes of rows that are written out at a time."""
        rows = min(self.size, max(1, limit // max(1, entries * self.item)))
        return rows * entries * self.item
