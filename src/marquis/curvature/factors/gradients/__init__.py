"""Per-sample gradients of one parameter, in the form in which their rule found them.

Pulling the factor back to a parameter gives `G[c, n] = Jwᵀ S`, one gradient per column and sample. Every structure is
made of them: the diagonal is the sum of their squares, a block the sum of their outer products. Writing them out costs
columns x samples x parameters, so each form knows cheaper ways where there are any.

Index letters: `c` columns, `n` samples (`m` of them at a time), `q` groups, `t` positions, `o` outputs, `i` inputs.
"""

from __future__ import annotations

from torch import Tensor

from marquis.curvature.factors.gradients.base import CHUNK_BYTES, Form, Lazy
from marquis.curvature.factors.gradients.layers import Outer, RankOne, concatenate
from marquis.curvature.factors.gradients.small import Entrywise, Explicit, Lookup

__all__ = ["CHUNK_BYTES", "Entrywise", "Explicit", "Form", "Lazy", "Lookup", "Outer", "RankOne", "combine"]


def combine(forms: list[Form]) -> Form:
    """The gradient of a parameter that is used several times: the sum over its uses, cross terms included."""
    if len(forms) == 1:
        return forms[0]
    outers = [form.as_outer() if isinstance(form, RankOne) else form for form in forms]
    alike = [form for form in outers if isinstance(form, Outer)]
    joined = concatenate(alike) if len(alike) == len(forms) else None
    if joined is not None:
        return joined
    first = forms[0]

    def total(start: int, stop: int) -> Tensor:
        result = first.explicit(start, stop).clone()
        for form in forms[1:]:
            result += form.explicit(start, stop)
        return result

    return Lazy(total, first.columns, first.samples, first.shape, first.item)
