"""Products with a weight: every entry of the result is a sum of single products, so squares pass through.

For y = f(x, W) linear in each, with one product x_j W_k per pair of entries, the squared adjoint is the ordinary
adjoint with the other factor squared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.curvature.graph.network import Ref, Step
from marquis.curvature.ops.squared_rules.registry import Local, everything, reading, rule

_PIECE = 2**18  # entries: 1 MB in float32

_OTHER_FACTOR = reading(input=("weight",), weight=("input",))


@rule(
    "linear", reads=_OTHER_FACTOR, parameter_rule=True,
    note="x: m W² ; W: sum of m_i x_j² over samples and positions; b: sum of m",
)  # fmt: skip
def linear(local: Local) -> None:
    """The map `y = x Wᵀ + b` with any leading dimensions of x."""
    m = local.m
    weight = local.value("weight")
    rows = m.reshape(-1, weight.shape[0] if weight.dim() == 2 else 1)
    if local.wants("weight"):
        x = local.value("input")
        local.give("weight", (rows.T @ x.square().reshape(rows.shape[0], -1)).reshape(weight.shape))
    if local.wants("bias"):
        local.give("bias", rows.sum(0).reshape(local.value("bias").shape))
    if local.wants("input"):
        x_shape = local.value("input").shape
        local.give("input", times_square(rows, weight.reshape(rows.shape[1], -1)).reshape(x_shape))


def times_square(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows @ weight²` in pieces that stay in cache: to write out a large square would cost a third more."""
    height = max(1, _PIECE // weight.shape[1])
    if weight.shape[0] <= 2 * height:
        return rows @ weight.square()
    piece = weight.new_empty(height, weight.shape[1])
    result = rows.new_zeros(rows.shape[0], weight.shape[1])
    for begin in range(0, weight.shape[0], height):
        part = weight[begin : begin + height]
        torch.mul(part, part, out=piece[: part.shape[0]])
        result.addmm_(rows[:, begin : begin + height], piece[: part.shape[0]])
    return result


def squared_matmul(
    left: Tensor, right: Tensor, m: Tensor, wants_left: bool, wants_right: bool
) -> tuple[Tensor | None, Tensor | None]:
    """M of both factors of `left @ right` with the broadcasting of `torch.matmul`."""
    # A vector is a matrix with one row (left) or one column (right).
    a = left.unsqueeze(0) if left.dim() == 1 else left
    b = right.unsqueeze(1) if right.dim() == 1 else right
    if left.dim() == 1:
        m = m.unsqueeze(-2 if right.dim() > 1 else -1)
    if right.dim() == 1:
        m = m.unsqueeze(-1)
    to_left = (m @ b.square().mT).sum_to_size(a.shape).reshape(left.shape) if wants_left else None
    to_right = (a.square().mT @ m).sum_to_size(b.shape).reshape(right.shape) if wants_right else None
    return to_left, to_right


_SECOND = {"matmul": "other", "mm": "mat2", "bmm": "mat2", "mv": "vec"}
_ADDED = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}


def refuse_two_varying(numbers: list[int | None], live: frozenset[int], data: frozenset[int]) -> str | None:
    """The reason against a product of two tensors that both carry m and depend on the input."""
    if all(n in live and n in data for n in numbers):
        return (
            "it multiplies two tensors that both depend on the input and on selected parameters (as attention "
            "does), so that its Jacobian has no simple square"
        )
    if all(n in live for n in numbers) and len(set(numbers)) < len(numbers):
        return "both of its factors are the same tensor"
    return None


def _check_factors(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    return refuse_two_varying([step.reference(name) for name in _factors(step)], live, data)


def _factors(step: Step) -> tuple[str, str]:
    return _ADDED[step.name] if step.name in _ADDED else ("self", _SECOND[step.name])


def _read_factors(step: Step, live: frozenset[int]) -> set[int]:
    first, second = _factors(step)
    return reading(**{first: (second,), second: (first,)})(step, live)


_NOTE = "each factor: m times the other factor squared; refused where both factors depend on input and parameters"


@rule(*_SECOND, reads=_read_factors, parameter_rule=True, check=_check_factors, note=_NOTE)
def matmul(local: Local) -> None:
    """The map `y = a b`."""
    _give_factors(local, local.m)


@rule(*_ADDED, reads=_read_factors, parameter_rule=True, check=_check_factors, note=f"{_NOTE}; summand: m beta²")
def addmm(local: Local) -> None:
    """The map `y = beta c + alpha a b`."""
    alpha, beta = local.value("alpha"), local.value("beta")
    if local.wants("self"):
        local.give("self", local.m.sum_to_size(local.value("self").shape) * beta**2)
    _give_factors(local, local.m * alpha**2)


def _give_factors(local: Local, m: Tensor) -> None:
    first, second = _factors(local.step)
    to_first, to_second = squared_matmul(
        local.value(first), local.value(second), m, local.wants(first), local.wants(second)
    )
    if to_first is not None:
        local.give(first, to_first)
    if to_second is not None:
        local.give(second, to_second)


def _einsum_terms(step: Step) -> tuple[list[str], str, list[Ref]]:
    """Index letters of both operands and of the result, and the operands."""
    equation, operands = step.args[0].replace(" ", ""), list(step.args[1])
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if not arrow:  # implicit form: letters that occur once, in alphabetical order
        joined = inputs.replace(",", "")
        result = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    return terms, result, operands


def _check_einsum(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    terms, result, operands = _einsum_terms(step)
    if len(operands) != 2 or "." in step.args[0] or (len(step.args) > 2 and step.args[2]):
        return "an einsum has a rule for two operands without an ellipsis"
    for term, other in zip(terms, reversed(terms), strict=True):
        if len(set(term)) < len(term):
            return f"an einsum that takes a diagonal ('{term}') has no rule"
        if set(term) - set(other) - set(result):
            return f"an einsum that sums over an index of one operand alone ('{term}') has no rule"
    return refuse_two_varying([ref.value for ref in operands], live, data)


@rule(
    "einsum", reads=everything, parameter_rule=True, check=_check_einsum,
    note="two operands, no ellipsis, every summed index in both: m times the other operand squared",
)  # fmt: skip
def einsum(local: Local) -> None:
    """Sum of products over the indices that both operands have and the result has not."""
    terms, result, operands = _einsum_terms(local.step)
    for i, operand in enumerate(operands):
        if operand.value in local.wanted:
            other = local.values[operands[1 - i].value].square()
            local.give_to(operand.value, torch.einsum(f"{result},{terms[1 - i]}->{terms[i]}", local.m, other))


@rule("embedding", reads=reading(indices=()), parameter_rule=True, between=True, note="m added up per row of the table")
def embedding(local: Local) -> None:
    """The map `y = W[indices]`; a padding row is a constant, as for the gradient."""
    rows = local.value("weight").shape[0]
    padding = local.value("padding_idx")
    indices = local.value("indices")
    local.give("weight", torch.ops.aten.embedding_dense_backward(local.m, indices, rows, padding, False))
