"""Run the mixed pass: all of M at narrow tensors, only its diagonal at wide ones.

See docs/method/curvature.md, Mixed estimator.

Where a tensor has at most `width_limit` entries per sample, a factor of M is carried, which is exact for what comes
from above. At wider tensors only m = diag(M) is carried, by the squared rules. From wide to narrow,
`M = Tᵀ diag(m) T` is formed; from narrow to wide, m is the sum of the squared columns. With no limit this is the exact
diagonal, with a limit of zero the approximate one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import Receiver
from marquis.curvature.backward.output_roots import exact_root
from marquis.curvature.backward.recompression import TriangularRoot, add_gram, square_root
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.factors.factor import Factor, Window, identity_columns
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import sum_over_uses
from marquis.curvature.graph.network import Step
from marquis.curvature.ops import add_cotangents, parameter_gradients, vector_jacobian
from marquis.curvature.ops.context import Context, Cotangent, SquaredCall
from marquis.curvature.ops.elementwise import elementwise_squared
from marquis.curvature.squared.schedule import live_and_data, scheduled
from marquis.likelihoods import Likelihood

CHUNK = 64
"""Columns that pass one operation at a time where a diagonal becomes a full M."""


@dataclass(eq=False)
class _State:
    """Hold what has arrived at one value: squares by part, factors by the basis of their columns."""

    squares: dict[int, Tensor] = field(default_factory=dict)
    factors: dict[int, Cotangent] = field(default_factory=dict)


@dataclass(eq=False)
class _Mixed:
    backward: BackwardSteps
    context: Context
    accumulator: Receiver
    width_limit: float
    rehearsing: bool = False

    def __post_init__(self) -> None:
        network = self.context.network
        self.context.folding = False  # between two steps a factor may turn into squares, which know of no folding
        self.pending: dict[int, _State] = {}
        self.totals: dict[int, Tensor] = {}
        self.collected: dict[tuple[str, int], list[ParameterGradients]] = {}
        self.bases = 0
        self.live, self.data = live_and_data(network, self.backward.selected)

    def is_narrow(self, number: int) -> bool:
        """Return whether M is kept whole at a value."""
        shape = self.context.shapes.get(number)
        return shape is not None and prod(shape) // max(1, self.context.size) <= self.width_limit

    def new_basis(self) -> int:
        """Return the number of a new set of columns."""
        self.bases += 1
        return self.bases

    def receive_squares(self, number: int, part: int, m: Tensor) -> None:
        """Take m at a value: a parameter's total, a wide value's diagonal, or a narrow value's diagonal factor."""
        if number not in self.context.network.batched:
            self.totals[number] = self.totals[number] + m if number in self.totals else m
            return
        state = self.pending.setdefault(number, _State())
        if part == 0 and self.is_narrow(number) and self.context.batch_first(number):
            shape = self.context.shapes[number]
            whole = Window(shape[1:], tuple((0, size) for size in shape[1:]))
            eye = identity_columns(shape, whole, dtype=m.dtype, device=m.device)
            state.factors[self.new_basis()] = Factor(eye.columns, shape, m.expand(shape).clamp_min(0).sqrt())
            return
        state.squares[part] = state.squares[part] + m if part in state.squares else m

    def receive_factor(self, number: int, basis: int, cotangent: Cotangent) -> None:
        """Take columns at a value; a wide one keeps only their squares."""
        if isinstance(cotangent, Factor) and not self.is_narrow(number):
            self.receive_squares(number, 0, cotangent.unwindowed().shape_filled_squares())
            return
        factors = self.pending.setdefault(number, _State()).factors
        factors[basis] = add_cotangents(factors[basis], cotangent) if basis in factors else cotangent

    def start(self, likelihood: Likelihood, mask: Tensor | None) -> None:
        network = self.context.network
        outputs = self.context.values[network.output]
        if not self.is_narrow(network.output):
            self.receive_squares(network.output, 0, likelihood.hessian_diagonal(outputs, mask))
            return
        root = exact_root(likelihood, outputs, mask, None)
        for chunk in root.chunks(root.count):
            self.receive_factor(network.output, self.new_basis(), root.make(chunk))

    def visit(self, step: Step) -> None:
        """Pass what has arrived at a step's result through the step."""
        state = self.pending.pop(step.value, None)
        if state is None:
            return
        if state.squares:
            self.through_squares(step, state.squares)
        for basis, cotangent in state.factors.items():
            self.through_factor(step, basis, cotangent)

    def through_factor(self, step: Step, basis: int, cotangent: Cotangent) -> None:
        """Pass a whole M through a step, as columns of its root."""
        for number, name in self.backward.uses.get(step.value, ()):
            gradients = parameter_gradients(self.context, step, cotangent, number, name)
            self.collected.setdefault((name, basis), []).append(gradients)
        for number, part in vector_jacobian(self.context, step, cotangent).items():
            self.receive_factor(number, basis, part)

    def through_squares(self, step: Step, parts: dict[int, Tensor]) -> None:
        """Pass a diagonal of M through a step; narrow inputs get all of M."""
        action = scheduled(step, self.context.network, self.live, self.data)
        narrow = [n for n in action.receivers if self.becomes_narrow(step, n, parts)] if action.rule is not None else []
        wanted = frozenset(n for n in action.receivers if n not in narrow)
        call = SquaredCall(step, self.context.values, parts, wanted, self.receive_squares)
        if action.rule is None:
            elementwise_squared(call, action.group, action.receivers)
        elif wanted:
            action.rule.apply(call)
        for number in narrow:
            self.widen(step, number, parts[0])

    def through_derived(self, step: Step) -> None:
        """Pass the squares of a value derived from parameters (a view of one) on to the parameters."""
        if step.value in self.totals:
            self.through_squares(step, {0: self.totals.pop(step.value)})

    def becomes_narrow(self, step: Step, number: int, parts: dict[int, Tensor]) -> bool:
        """Return whether all of M is formed at this input of a step."""
        batched = number in self.context.network.batched
        return batched and set(parts) == {0} and self.is_narrow(number) and self.context.batch_first(number)

    def widen(self, step: Step, number: int, m: Tensor) -> None:
        """Form M = Tᵀ diag(m) T at a narrow input of an operation whose output is wide."""
        shape = self.context.shapes[step.value]
        size = prod(shape[1:])
        gram: Tensor | None = None
        width = prod(self.context.shapes[number][1:])
        scale = m.clamp_min(0).sqrt().reshape(shape[0], size)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            columns = m.new_zeros(stop - start, shape[0], size)
            index = torch.arange(start, stop, device=m.device)
            columns[index - start, :, index] = scale[:, index].t()
            factor = Factor(columns.view(stop - start, *shape), shape, batch_first=self.context.batch_first(step.value))
            part = vector_jacobian(self.context, step, factor).get(number)
            if isinstance(part, Factor):
                gram = add_gram(gram, part, width)
            del columns, factor, part  # large: the next chunk must not meet them
            if self.rehearsing and start > 0:  # two chunks stand for all
                break
        if gram is not None:
            lower = torch.empty_like(gram) if self.rehearsing else square_root(gram, step.where)
            root = TriangularRoot(lower, self.context.shapes[number])
            self.receive_factor(number, self.new_basis(), root.make((0, width)))


def mixed_pass(
    backward: BackwardSteps,
    context: Context,
    likelihood: Likelihood,
    mask: Tensor | None,
    accumulator: Receiver,
    width_limit: float,
    rehearsing: bool = False,
) -> dict[str, Tensor]:
    """Run the pass: exact contributions go to the accumulator, those of squared rules are returned by name."""
    walk = _Mixed(backward, context, accumulator, width_limit, rehearsing)
    walk.start(likelihood, mask)
    for step in context.network.steps[::-1]:
        if step.value in backward.active:
            walk.visit(step) if step.value in context.network.batched else walk.through_derived(step)
    for (name, _), forms in walk.collected.items():
        accumulator.add(name, sum_over_uses(forms))
        accumulator.end_segment()
    names = {number: name for name, number in backward.selected.items()}
    return {names[number]: total for number, total in walk.totals.items() if number in names}
