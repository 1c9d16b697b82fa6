"""Register how every operation of PyTorch is treated: one entry per operation, in one registry.

Backwards through y = g(x, w) with Jacobians Jx and Jw the engine needs three things:

* the vector-Jacobian product: a factor S at y becomes `Jxᵀ S` at x (estimators `exact` and `sketched`);
* the per-sample gradients `Jwᵀ S` of a parameter w that enters the operation (the same two);
* the squared rule: m = diag(M) at y becomes `m_x[j] = sum_i Jx[i, j]² m[i]` at x, and the same at w (`approximate`
  and `mixed`; Miani et al., Laplacian Autoencoders, appendix E.4.1; docs/method/curvature.md, Squared
  pass). It is exact if M at y is diagonal.

The first two are optional, since local autograd serves every operation (`fallback.py`): a rule keeps what a factor
knows (shared, scaled, windowed) and is faster. An operation without a squared rule is refused by name. The support
table of the documentation is generated from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.graph.network import Forward, Step
from marquis.curvature.ops.context import Context, Cotangent, SquaredCall

VectorJacobian = Callable[[Context, Step, Factor], "Mapping[int, Cotangent] | None"]
"""Returns the factors of active inputs, or None to decline; then local autograd is used."""

GradientRule = Callable[[Context, Step, Factor, int], "ParameterGradients | None"]
"""Returns the gradients of the batch-free input with this number, or None to decline; then the fall-back is used."""

Reads = Callable[[Step, frozenset[int]], set[int]]
"""(step, live values) -> the values whose entries a squared rule reads; of others it sees the shape only."""

Kind = Literal[
    "matrix product", "convolution", "transposed convolution", "reshape", "elementwise", "sum", "shape only",
    "constant", "normalisation", "other",
]  # fmt: skip
"""What the backward pass has to know about an operation besides its rules.

`elementwise` operations are those that PyTorch does not tag as pointwise; a `sum` is one in two tensors whose
derivative in the one does not scale with the other; the result of `shape only` does not depend on the entries of the
input; a `constant` has no derivative, or zero.
"""


@dataclass(frozen=True)
class SquaredRule:
    """Define how m = diag(M) passes one operation.

    Attributes:
        apply: reads `call.m` and hands out contributions.
        reads: which forward values it needs.
        note: for the support table.
        parameters: whether parameters may enter this operation directly.
        between: whether it may stand between a parameter and its use (it never mixes entries).
        refuse: (step, live values, values that depend on the input) -> a reason to refuse this use, or None.
        apart: (step, live values) -> whether an elementwise step must not be differentiated with its neighbours.
    """

    apply: Callable[[SquaredCall], None]
    reads: Reads
    note: str
    parameters: bool = False
    between: bool = False
    refuse: Callable[[Step, frozenset[int], frozenset[int]], str | None] | None = None
    apart: Callable[[Step, frozenset[int]], bool] | None = None


@dataclass(frozen=True)
class Operation:
    """Describe everything that the engine knows about one operation.

    Attributes:
        vjp: the vector-Jacobian product of a factor.
        vjp_reads: what it reads of the values that depend on the data: "nothing", "output", "inputs", or "factors",
            the inputs of a product where more than one of them depends on the data.
        gradient: the per-sample gradients of a parameter.
        layer: which layers that serves, for the support table.
        kronecker: whether the `kronecker` structure keeps the weight as a Kronecker product.
        squared: the squared rule.
        kind: see `Kind`.
        derivative_from_output: the derivative of an activation, where its output determines it.
        absorbs_activation: whether the vector-Jacobian product multiplies in the derivative of an activation in front.
        forward_with_extra: what the forward pass runs instead: because it is faster, or because it also returns what
            the vector-Jacobian product reads besides the output.
    """

    vjp: VectorJacobian | None = None
    vjp_reads: Literal["nothing", "output", "inputs", "factors"] = "inputs"
    gradient: GradientRule | None = None
    layer: str = ""
    kronecker: bool = False
    squared: SquaredRule | None = None
    kind: Kind = "other"
    derivative_from_output: Callable[[Tensor], Tensor] | None = None
    absorbs_activation: bool = False
    forward_with_extra: Forward | None = None


OPERATIONS: dict[str, Operation] = {}
"""Operation name -> entry."""

ELEMENTWISE = "(other elementwise)"
"""The entry that completes those of all operations that PyTorch tags as pointwise."""

UNKNOWN = Operation()


def register(*names: str, **entry: Any) -> None:
    """Register one entry, with the fields of `Operation`, for the operations with these names."""
    for name in names:
        if name in OPERATIONS:
            raise ValueError(f"operation `{name}` is registered twice")
        OPERATIONS[name] = Operation(**entry)


def operation_of(step: Step) -> Operation:
    """Return the entry of a step's operation."""
    return _entry(step.op, step.name)


@lru_cache(maxsize=4096)
def _entry(op: Any, name: str) -> Operation:
    """Return the entry of an operation; elementwise ones without rules get the generic ones."""
    entry = OPERATIONS.get(name, UNKNOWN)
    if not is_tagged_pointwise(op):
        return entry
    generic = OPERATIONS[ELEMENTWISE]
    return replace(entry, vjp=entry.vjp or generic.vjp, gradient=entry.gradient or generic.gradient)


def is_tagged_pointwise(op: Any) -> bool:
    """Return whether PyTorch says that output entry i depends on entry i of each (broadcast) input only."""
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.pointwise in op.tags


def is_elementwise(step: Step) -> bool:
    """Return whether an operation is elementwise, tagged by PyTorch or not."""
    if not isinstance(step.op, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in step.op.tags or operation_of(step).kind == "elementwise"


def reading(**conditions: Iterable[str]) -> Reads:
    """Read each named argument if one of the arguments listed behind it is live (an empty list: always).

    The name `output` stands for the operation's result.
    """

    def reads(step: Step, live: frozenset[int]) -> set[int]:
        numbers: set[int] = set()
        for argument, reasons in conditions.items():
            reasons = tuple(reasons)
            if not reasons or any(step.reference(reason) in live for reason in reasons):
                number = step.value if argument == "output" else step.reference(argument)
                if number is not None:
                    numbers.add(number)
        return numbers

    return reads


def read_everything(step: Step, live: frozenset[int]) -> set[int]:
    """Read all inputs."""
    return set(step.inputs)


def read_all_but_live(step: Step, live: frozenset[int]) -> set[int]:
    """Read indices, masks and the like, not the tensors that m flows to."""
    return {number for number in step.inputs if number not in live}


def read_nothing(step: Step, live: frozenset[int]) -> set[int]:
    """Read shapes only."""
    return set()
