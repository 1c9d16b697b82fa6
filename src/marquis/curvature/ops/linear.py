"""Define the rules of dense layers and matrix products: y = x Wᵀ + b, matmul, einsum.

Index letters: `c` columns of the factor S, `n` samples, `t` positions, `o` outputs, `i` inputs; g is a column of S.

* Vector-Jacobian product: `S_x[c, n, t, i] = sum_o S[c, n, t, o] W[o, i]`.
* Parameter gradients: `dW[c, n, o, i] = sum_t g[c, n, t, o] x[n, t, i]`, `db[c, n, o] = sum_t g[c, n, t, o]`.
* Squared rule: every entry of y is a sum of single products, so that the squared adjoint is the ordinary adjoint with
  the other factor squared: `m_x = m W²`, `m_W = sum_nt m xᵀ²`, `m_b = sum_nt m`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from marquis.curvature.factors.centred import CentredFactor
from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import BiasGradients, ExplicitGradients, ParameterGradients
from marquis.curvature.factors.outer_products import OuterProducts, RankOne
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Ref, Step
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.registry import SquaredRule, read_everything, reading, register
from marquis.functional.matmul import linear, matmul

PIECE = 2**18
"""Entries of a weight that are squared at a time: 1 MB in float32, which stays in the cache."""


FACTORS = {
    "linear": ("input", "weight"), "matmul": ("self", "other"), "mm": ("self", "mat2"), "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"), "mv": ("self", "vec"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"),
}  # fmt: skip
"""The two arguments that are multiplied."""

BIAS = {"linear": "bias", "addmm": "self"}


def _factors(context: Context, step: Step) -> tuple[int, int] | None:
    """Return the numbers of x and W; None where W is not a matrix without a batch, or the product is scaled."""
    first, second = FACTORS[step.name]
    x, weight = step.reference(first), step.reference(second)
    if x is None or weight is None or weight in context.network.batched or context.values[weight].dim() != 2:
        return None
    return None if step.name == "addmm" and step.kwargs else (x, weight)


def linear_forward(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, None]:
    """Return x Wᵀ + b by the faster of torch's libraries."""
    return linear(input, weight, bias), None


# Vector-Jacobian products


def product_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Multiply by W, for y = x Wᵀ + b; by Wᵀ, for y = x W and y = b + x W."""
    factors = _factors(context, step)
    if factors is None or not context.is_target(factors[0]):
        return None if factors is None else {}
    weight = context.values[factors[1]]
    return _times_weight(factors[0], factor, weight if step.name == "linear" else weight.t())


def _times_weight(number: int, factor: Factor, weight: Tensor) -> dict[int, Factor]:
    """Multiply by the rows of `weight` [o, i] that the factor's window touches."""
    shape = (*factor.shape[:-1], weight.shape[1])
    if isinstance(factor, CentredFactor):
        return {number: Factor(factor.times(weight), shape)}
    if not factor.batch_first:
        return {number: Factor(matmul(factor.dense(), weight), shape, batch_first=False)}
    if factor.window is not None and len(factor.shape) == 2:
        window = factor.window
        weight = weight.reshape(*window.full, -1)[window.slices].reshape(-1, weight.shape[1])
        columns = factor.product().flatten(2)
    else:
        columns = factor.unwindowed().product()
    return {number: Factor(matmul(columns, weight), shape)}


# Parameter gradients


def product_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return the gradients of W or b in y = x Wᵀ + b, y = x W or y = b + x W."""
    factors = _factors(context, step)
    if factors is None:
        return None
    if step.name in BIAS and step.reference(BIAS[step.name]) == number:
        return _bias_gradient(context, step, factor) if context.values[number].dim() == 1 else None
    if factors[1] != number or factors[0] not in context.network.batched:
        return None
    return _weight_gradient(context, step, factor, context.values[factors[0]], swapped=step.name != "linear")


def _weight_gradient(context: Context, step: Step, factor: Factor, inputs: Tensor, swapped: bool) -> ParameterGradients:
    """Return outer products over the positions; without positions, of rank one."""
    axis = require_axis(context.network, step)
    if inputs.dim() == 2 and axis.axis == 0 and axis.inner == 1:
        return RankOne(inputs, factor, swapped)
    samples_first = axis.to_front(inputs)
    n, i = samples_first.shape[0], inputs.shape[-1]
    a = samples_first.reshape(n, 1, -1, i)
    g = axis.to_front(factor.dense(), leading=1)
    g = g.reshape(factor.count, n, 1, -1, factor.shape[-1])
    shape = (i, g.shape[-1]) if swapped else (g.shape[-1], i)

    def arrange(G: Tensor) -> Tensor:
        G = G.squeeze(-3)
        return G.transpose(-1, -2) if swapped else G

    return OuterProducts(lambda start, stop: a[start:stop], g, n, (1, a.shape[2], i), shape, arrange, swapped)


def _bias_gradient(context: Context, step: Step, factor: Factor) -> ParameterGradients:
    """Return the gradients of the bias of a layer whose features are the last dimension."""
    axis = require_axis(context.network, step)
    if len(factor.shape) == 2 and axis.axis == 0 and axis.inner == 1:
        return BiasGradients(factor)
    g = axis.to_front(factor.dense(), leading=1)
    n = g.shape[1]
    return ExplicitGradients(g.reshape(factor.count, n, prod(g.shape[2:-1]), g.shape[-1]).sum(2), n, as_block=True)


# Squared rules


def linear_squared(call: SquaredCall) -> None:
    """Pass m through y = x Wᵀ + b with any leading dimensions of x."""
    m = call.m
    weight = call.value("weight")
    rows = m.reshape(-1, weight.shape[0] if weight.dim() == 2 else 1)
    if call.wants("weight"):
        x = call.value("input")
        call.give("weight", matmul(rows.T, x.square().reshape(rows.shape[0], -1)).reshape(weight.shape))
    if call.wants("bias"):
        call.give("bias", rows.sum(0).reshape(call.value("bias").shape))
    if call.wants("input"):
        x_shape = call.value("input").shape
        call.give("input", _times_square(rows, weight.reshape(rows.shape[1], -1)).reshape(x_shape))


def _times_square(rows: Tensor, weight: Tensor) -> Tensor:
    """Compute `rows @ weight²` in pieces that stay in the cache: writing out a large square would cost a third more."""
    height = max(1, PIECE // weight.shape[1])
    if weight.shape[0] <= 2 * height:
        return rows @ weight.square()
    piece = weight.new_empty(height, weight.shape[1])
    result = rows.new_zeros(rows.shape[0], weight.shape[1])
    for begin in range(0, weight.shape[0], height):
        part = weight[begin : begin + height]
        torch.mul(part, part, out=piece[: part.shape[0]])
        result.addmm_(rows[:, begin : begin + height], piece[: part.shape[0]])
    return result


def _read_factors(step: Step, live: frozenset[int]) -> set[int]:
    """Return the values that a product of two matrices reads: of each operand the other."""
    first, second = FACTORS[step.name]
    return reading(**{first: (second,), second: (first,)})(step, live)


def _refuse_factors(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    """Return the reason against a product whose two factors both depend on the input and on parameters."""
    return _refuse_two_varying([step.reference(name) for name in FACTORS[step.name]], live, data)


def _refuse_two_varying(numbers: list[int | None], live: frozenset[int], data: frozenset[int]) -> str | None:
    """Return the reason against a product of two tensors that both carry m and depend on the input."""
    if all(n in live and n in data for n in numbers):
        return (
            "it multiplies two tensors that both depend on the input and on selected parameters (as attention "
            "does), so that its Jacobian has no simple square"
        )
    if all(n in live for n in numbers) and len(set(numbers)) < len(numbers):
        return "both of its factors are the same tensor"
    return None


def matmul_squared(call: SquaredCall) -> None:
    """Pass m through y = a b with the broadcasting of `torch.matmul`, or y = beta c + alpha a b."""
    m = call.m
    if call.step.has_argument("alpha"):
        alpha, beta = call.value("alpha"), call.value("beta")
        if call.wants("self"):
            call.give("self", m.sum_to_size(call.value("self").shape) * beta**2)
        m = m * alpha**2
    first, second = FACTORS[call.step.name]
    left, right = call.value(first), call.value(second)
    # A vector is a matrix with one row (left) or one column (right).
    a = left.unsqueeze(0) if left.dim() == 1 else left
    b = right.unsqueeze(1) if right.dim() == 1 else right
    if left.dim() == 1:
        m = m.unsqueeze(-2 if right.dim() > 1 else -1)
    if right.dim() == 1:
        m = m.unsqueeze(-1)
    if call.wants(first):
        call.give(first, (m @ b.square().mT).sum_to_size(a.shape).reshape(left.shape))
    if call.wants(second):
        call.give(second, (a.square().mT @ m).sum_to_size(b.shape).reshape(right.shape))


def _einsum_terms(step: Step) -> tuple[list[str], str, list[Ref]]:
    """Return the index letters of both operands and of the result, and the operands."""
    equation, operands = step.args[0].replace(" ", ""), list(step.args[1])
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if not arrow:  # implicit form: letters that occur once, in alphabetical order
        joined = inputs.replace(",", "")
        result = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    return terms, result, operands


def _refuse_einsum(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    """Return why an einsum has no squared rule; None if it has one."""
    terms, result, operands = _einsum_terms(step)
    if len(operands) != 2 or "." in step.args[0] or (len(step.args) > 2 and step.args[2]):
        return "an einsum has a rule for two operands without an ellipsis"
    for term, other in zip(terms, reversed(terms), strict=True):
        if len(set(term)) < len(term):
            return f"an einsum that takes a diagonal ('{term}') has no rule"
        if set(term) - set(other) - set(result):
            return f"an einsum that sums over an index of one operand alone ('{term}') has no rule"
    return _refuse_two_varying([ref.value for ref in operands], live, data)


def einsum_squared(call: SquaredCall) -> None:
    """Pass m through a sum of products over the indices that both operands have and the result has not."""
    terms, result, operands = _einsum_terms(call.step)
    for i, operand in enumerate(operands):
        if operand.value in call.wanted:
            other = call.values[operands[1 - i].value].square()
            call.give_to(operand.value, torch.einsum(f"{result},{terms[1 - i]}->{terms[i]}", call.m, other))


NOTE = "each factor: m times the other factor squared; refused where both factors depend on input and parameters"
PRODUCT = SquaredRule(matmul_squared, _read_factors, NOTE, parameters=True, refuse=_refuse_factors)
SUM_OF_PRODUCT = replace(PRODUCT, note=f"{NOTE}; summand: m beta²")
LINEAR = SquaredRule(
    linear_squared,
    _read_factors,
    "x: m W² ; W: sum of m_i x_j² over samples and positions; b: sum of m",
    parameters=True,
)
EINSUM = SquaredRule(
    einsum_squared,
    read_everything,
    "two operands, no ellipsis, every summed index in both: m times the other operand squared",
    parameters=True,
    refuse=_refuse_einsum,
)

RULES = {
    "kind": "matrix product", "vjp": product_vjp, "vjp_reads": "factors", "gradient": product_gradient,
    "kronecker": True,
}  # fmt: skip
register(
    "linear", layer="Linear, also over sequences; MultiheadAttention", forward_with_extra=linear_forward,
    squared=LINEAR, **RULES,
)  # fmt: skip
register("matmul", "mm", layer="a parameter in a matrix product `x @ W`", squared=PRODUCT, **RULES)
register("addmm", layer="Linear as decompositions write it", squared=SUM_OF_PRODUCT, **RULES)
register("bmm", "mv", squared=PRODUCT)
register("baddbmm", "addmv", squared=SUM_OF_PRODUCT)
register("einsum", squared=EINSUM)
