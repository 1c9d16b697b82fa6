"""Compute the curvature of one batch as a structure: `ggn`, `fisher`, `empirical_fisher`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked
from marquis.choices import choose
from marquis.curvature.backward.accumulators import Running, make_accumulator
from marquis.curvature.backward.accumulators.corrected import CorrectedAccumulator
from marquis.curvature.backward.output_roots import (
    SquareRoot,
    empirical_root,
    exact_root,
    fisher_root,
    sketched_root,
)
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.backward.tiles import image_shape
from marquis.curvature.backward.walk import BackwardWalk
from marquis.curvature.graph.cache import network_of
from marquis.curvature.graph.network import Network, warn_of_probabilities
from marquis.curvature.ops.context import Context
from marquis.curvature.planning.choices import check_choices
from marquis.curvature.planning.memory import check_memory, chunk_bytes
from marquis.curvature.planning.plan import require_fit
from marquis.curvature.squared.mixed import mixed_pass
from marquis.curvature.squared.squared import squared_forward, squared_pass
from marquis.errors import DataError
from marquis.functional.call import Model, describe, without_inference
from marquis.functional.checks import all_finite, batch_size, check_finite
from marquis.functional.selection import Selection, parameters_of, select
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.structures import STRUCTURES, Diagonal, Layout, Structure
from marquis.structures.corrected import CorrectedPiece

MakeRoot = Callable[[Likelihood, Tensor, "tuple[int, ...] | None"], SquareRoot]
"""Makes the square root at the output from the likelihood, the outputs, and the shape of the image that they are."""


@checked
@torch.inference_mode(False)
def ggn(
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
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    weight_sharing: str = "expand",
    memory_limit: int | None = None,
    observer: Callable[[Tensor], None] | None = None,
) -> Structure:
    """Compute the generalised Gauss-Newton matrix of one batch, `sum_n J_nᵀ L_n J_n` (a sum, never a mean).

    | estimator | what flows backwards | cost (x one backward) | error |
    | --- | --- | --- | --- |
    | `exact` | a square root of the output Hessian, recompressed at bottlenecks | columns | none |
    | `sketched` | `probes` random combinations of its columns | probes | unbiased, shrinks as batches accumulate |
    | `approximate` | diag(M) only, by squared Jacobians (Miani et al., E.4.1) | 1 | biased |
    | `mixed` | all of M where a tensor has at most `width_limit` entries, diag(M) elsewhere | between | between |

    `exact` and `sketched` serve every structure; `approximate` and `mixed` only the diagonal. Memory: the forward
    values, one chunk of columns, and the result (P numbers for `diagonal`, P² for `full`, P x N x O for `lowrank`).

    Args:
        model: a module in eval mode, or a function `(params, x) -> outputs`. Never changed.
        x: inputs with the batch as dimension 0: a tensor (`model(x)`), a tuple (`model(*x)`), a dict (`model(**x)`).
        likelihood: "gaussian", "bernoulli", "categorical", "heteroscedastic", or an object with that interface.
        structure: "diagonal", "kronecker", "block" (one dense block per module), "full" or "lowrank".
        estimator: see the table.
        params: parameter values by name; required for a function, optional for a module.
        parameters: which parameters: None or "all" (those that require a gradient), a name pattern, names, a predicate.
            Chosen before differentiating, so a subset costs less.
        probes: number of random columns of `sketched`.
        width_limit: of `mixed`.
        generator: source of the random signs of `sketched`.
        mask: 1 where a target entry was observed; the others leave the likelihood.
        weight_sharing: for `kronecker`, "expand" (sum over positions after the products) or "reduce" (before).
        memory_limit: bytes that the call may take beyond the model and the batch; refused where `plan` says that it
            takes more. By default only a result that does not fit into the free memory is refused.
        observer: receives the outputs of the batch, so that whoever needs them as well runs no second forward pass.

    Raises:
        UnsupportedOperationError: the combination or the network has no right answer here; names the place.
        MemoryBudgetError: it would not fit; names alternatives.
        DataError: NaN or infinity in `x`, an empty batch, a mask or output of the wrong shape.
    """
    call = _Call(model, x, as_likelihood(likelihood), structure, params, parameters, mask, weight_sharing, memory_limit)
    call.observer = observer
    structure, estimator = check_choices(structure, estimator, probes)
    if memory_limit is not None:
        options = {"params": params, "parameters": parameters, "probes": probes, "width_limit": width_limit}
        require_fit(model, call.x, call.likelihood, structure, estimator, memory_limit=memory_limit, **options)
    if estimator == "approximate":
        return call.squared()
    if estimator == "mixed":
        return call.mixed(width_limit)
    return call.factored(*call.output_root(estimator, probes, generator))


@torch.inference_mode(False)
def curvature_along(
    bases: Mapping[str, CorrectedPiece],
    model: Model,
    x: Any,
    likelihood: Likelihood,
    estimator: str = "exact",
    *,
    params: Mapping[str, Tensor] | None = None,
    probes: int = 1,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    memory_limit: int | None = None,
) -> Structure:
    """Return the curvature of one batch along Kronecker eigenvectors (EKFAC), of the parameters that `bases` names.

    Cost: that of `ggn(structure="diagonal")`, with two small matrix products more per layer.
    """
    call = _Call(model, x, likelihood, "kronecker", params, list(bases), mask, memory_limit=memory_limit, bases=bases)
    return call.factored(*call.output_root(estimator, probes, generator))


@torch.inference_mode(False)
def outputs_and_ggn(
    model: Model,
    x: Any,
    likelihood: Likelihood,
    structure: str,
    estimator: str,
    *,
    params: Mapping[str, Tensor],
    layout: Layout,
    probes: int = 1,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
) -> SharedForward:
    """Run the network once at `params`, for its outputs and for `ggn` at the same point.

    For training loops: one forward pass serves the loss and the curvature, which saves a third of a step. Arguments as
    in `ggn`, with all parameters and the layout of those that count; `params` may be results of earlier operations, and
    gradients flow through the outputs to them. Only for the estimators `exact` and `sketched`: the other two run the
    network with other operations. Inputs and outputs are not checked: whoever has the loss checks that it is finite.
    """
    call = _Call(model, x, likelihood, structure, params, None, mask, known_layout=layout)
    return call.outputs_and_factored(*call.output_root(estimator, probes, generator), call.all_params)


@checked
@torch.inference_mode(False)
def fisher(
    model: Model,
    x: Any,
    likelihood: str | Likelihood | Any,
    structure: str = "diagonal",
    *,
    samples: AtLeastOne = 1,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    weight_sharing: str = "expand",
    memory_limit: int | None = None,
) -> Structure:
    """Compute the Monte-Carlo Fisher of one batch: gradients at labels sampled from the model.

    Unbiased for the GGN where the output Hessian does not depend on the label, and for the Fisher always
    (docs/method/curvature.md, Hessian and Fisher). Cost: `samples` backward passes. Arguments as in `ggn`; `samples`
    labels are sampled for each example.
    """
    call = _Call(model, x, as_likelihood(likelihood), structure, params, parameters, mask, weight_sharing, memory_limit)
    return call.factored(lambda p, f, _: fisher_root(p, f, mask, samples, generator), samples)


@checked
@torch.inference_mode(False)
def empirical_fisher(
    model: Model,
    x: Any,
    y: Tensor,
    likelihood: str | Likelihood | Any,
    structure: str = "diagonal",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    mask: Tensor | None = None,
    weight_sharing: str = "expand",
    memory_limit: int | None = None,
) -> Structure:
    """Compute the empirical Fisher of one batch: gradients at the labels of the data.

    Warning:
        Neither the Fisher nor the GGN; it is here under its own name for comparison. Cost: one backward pass.
    """
    call = _Call(model, x, as_likelihood(likelihood), structure, params, parameters, mask, weight_sharing, memory_limit)

    def root(likelihood: Likelihood, f: Tensor, _: tuple[int, ...] | None) -> SquareRoot:
        likelihood.validate(f, y, mask)
        return empirical_root(likelihood, f, mask, y)

    return call.factored(root, 1)


class SharedForward(NamedTuple):
    """Hold one forward pass that serves a loss and a curvature.

    Attributes:
        outputs: with their graph.
        curvature: computes the structure; with a `Running` (diagonals only) the batch is added to that in place.
        network: the captured network.
    """

    outputs: Tensor
    curvature: Callable[..., Structure]
    network: Network


@dataclass(eq=False)
class _Call:
    """Hold everything that is checked and prepared before a pass runs.

    Attributes:
        all_params: all parameters by name, as they were passed, with their graph.
        detached: the same without a graph.
        layout: the selected parameters.
        like: one of them, for dtype and device.
        size: number of samples.
    """

    model: Model
    x: Any
    likelihood: Likelihood
    structure: str
    params: Mapping[str, Tensor] | None
    parameters: Selection
    mask: Tensor | None
    weight_sharing: str = "expand"
    memory_limit: int | None = None
    observer: Callable[[Tensor], None] | None = None
    bases: Mapping[str, CorrectedPiece] | None = None
    known_layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.known_layout is not None and self.params is not None:  # a training loop, which has checked all of it
            self.x, self.size, self.layout = without_inference(self.x), batch_size(self.x), self.known_layout
            self.all_params = dict(self.params)
            self.detached = {name: p.detach() for name, p in self.params.items()}
            first = self.detached[self.layout.names[0]]
            self.like = first.to(computing_dtype(first.dtype))
            return
        self.structure = choose("structure", self.structure, STRUCTURES)
        self.weight_sharing = choose("weight_sharing", self.weight_sharing, ("expand", "reduce"))
        self.x = without_inference(self.x)
        check_finite(self.x)
        self.size = batch_size(self.x)
        self.all_params = parameters_of(self.model, self.params)
        self.detached = {n: p.detach().clone() if p.is_inference() else p.detach() for n, p in self.all_params.items()}
        self.layout = Layout.of(select(self.all_params, self.parameters))
        first = self.detached[self.layout.names[0]]
        self.like = first.to(computing_dtype(first.dtype))

    def output_root(
        self, estimator: str, probes: int, generator: torch.Generator | None
    ) -> tuple[MakeRoot, int | None]:
        """Return what makes the square root at the output, and its columns where they are known beforehand."""
        if estimator == "sketched":
            return lambda p, f, _: sketched_root(p, f, self.mask, probes, generator), probes
        return lambda p, f, image: exact_root(p, f, self.mask, image), None

    def start(self, params: Mapping[str, Tensor]) -> tuple[Network, dict[int, Any]]:
        """Return the captured network and its values before the first step."""
        network = network_of(self.model, self.detached, self.x)
        return network, network.bind(params, self.x)

    def likelihood_at(self, outputs: Tensor, network: Network) -> Likelihood:
        """Return the likelihood that fits these outputs, which are checked."""
        warn_of_probabilities(network, self.likelihood, describe(self.model))
        if self.known_layout is not None:
            return self.likelihood.resolve(outputs)
        if not all_finite(outputs):
            raise DataError(
                f"{describe(self.model)} gives NaN or infinite outputs on this batch; check its weights and the inputs."
            )
        likelihood = self.likelihood.resolve(outputs)
        likelihood.validate(outputs, None, self.mask)
        if self.observer is not None:
            self.observer(outputs.detach())
        return likelihood

    @torch.no_grad()
    def factored(self, make_root: MakeRoot, columns: int | None) -> Structure:
        """Run the factor pass; `columns` at the output if known beforehand."""
        return self.outputs_and_factored(make_root, columns, self.detached).curvature()

    def outputs_and_factored(
        self, make_root: MakeRoot, columns: int | None, params: Mapping[str, Tensor]
    ) -> SharedForward:
        """Return the outputs at `params`, with a graph where gradients are enabled, and what runs the factor pass."""
        network, values = self.start(params)
        backward = BackwardSteps.of(network, self.layout.names)
        shapes: dict[int, tuple[int, ...]] = {}
        outputs = network.forward(values, backward.needed, shapes, backward.with_extra)
        values = _widened(values)
        detached = values[network.output]
        likelihood = self.likelihood_at(detached, network)

        @torch.no_grad()
        def curvature(running: Running | None = None) -> Structure:
            count = self.size * (likelihood.root_shape(detached).numel() if columns is None else columns)
            limit, without_kronecker = self.memory_limit, backward.without_kronecker
            if running is None:
                check_memory(self.structure, self.layout, self.like, count, limit, without_kronecker)
            reduce = self.weight_sharing == "reduce"
            accumulator = (
                make_accumulator(self.structure, self.layout, self.like, self.size, reduce, running)
                if self.bases is None
                else CorrectedAccumulator(self.like, self.layout, bases=self.bases)
            )
            context = Context(network, values, shapes, backward.active, self.size)
            root = make_root(likelihood, detached, image_shape(network, shapes))
            BackwardWalk(backward, context, accumulator, chunk_bytes(limit)).run(root)
            return accumulator.finish()

        return SharedForward(outputs, curvature, network)

    @torch.no_grad()
    def squared(self) -> Structure:
        """Run the squared pass."""
        network, values = self.start(self.detached)
        names = [name for name in self.layout.names if name in network.parameters]
        outputs = squared_forward(network, values, names)
        values = _widened(values)
        outputs = outputs.to(self.like.dtype)
        start = self.likelihood_at(outputs, network).hessian_diagonal(outputs, self.mask)
        vector = self.like.new_empty(self.layout.total)
        squared_pass(network, values, start, names, self.layout.unflatten(vector))
        return Diagonal(self.layout, vector)

    @torch.no_grad()
    def mixed(self, width_limit: float) -> Structure:
        """Run the mixed pass."""
        network, values = self.start(self.detached)
        shapes: dict[int, tuple[int, ...]] = {}
        backward = BackwardSteps.of(network, self.layout.names)
        network.forward(values, None, shapes, backward.with_extra)
        values = _widened(values)
        likelihood = self.likelihood_at(values[network.output], network)
        context = Context(network, values, shapes, backward.active, self.size)
        accumulator = make_accumulator("diagonal", self.layout, self.like, self.size)
        by_squares = mixed_pass(backward, context, likelihood, self.mask, accumulator, width_limit)
        zeros = {name: self.like.new_zeros(shape) for name, shape in self.layout.shapes.items()}
        vector = accumulator.finish().diagonal() + self.layout.flatten({**zeros, **by_squares})
        return Diagonal(self.layout, vector)


def _widened(values: Mapping[int, Any]) -> dict[int, Any]:
    """Return the values of a forward pass without their graph; those in half precision in float32.

    So a network runs forwards in its own precision, and everything that is summed is summed in float32.
    """
    return {number: _without_graph(v) if isinstance(v, Tensor) else v for number, v in values.items()}


def _without_graph(value: Tensor) -> Tensor:
    """Return a tensor without its graph, in the type that curvature is computed in."""
    value = value.detach() if value.requires_grad else value
    dtype = computing_dtype(value.dtype)
    return value if value.dtype is dtype else value.to(dtype)
