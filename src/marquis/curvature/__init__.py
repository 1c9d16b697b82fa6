"""Compute curvature: from a network and a batch, or a data set, to a structure.

`ggn` is the front door for one batch, `accumulate` for a data set, `operator` for products without a matrix, `plan` for
what a call will cost before it is made. `hessian`, `fisher` and `empirical_fisher` are the related matrices.
"""

from __future__ import annotations

from marquis.curvature.accumulate import accumulate
from marquis.curvature.ggn import empirical_fisher, fisher, ggn
from marquis.curvature.hessian import hessian
from marquis.curvature.linop.operator import operator
from marquis.curvature.planning.plan import Plan, plan

__all__ = ["Plan", "accumulate", "empirical_fisher", "fisher", "ggn", "hessian", "operator", "plan"]
