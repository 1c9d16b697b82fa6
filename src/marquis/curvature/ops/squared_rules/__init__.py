"""The rules of the squared pass, one per operation, in one registry."""

from __future__ import annotations

from marquis.curvature.ops.squared_rules import (
    convolution,
    elementwise,
    linear,
    normalisation,
    pooling,
    resizing,
    shapes,
)
from marquis.curvature.ops.squared_rules.registry import RULES, Local, Row, Rule

_MODULES = (convolution, elementwise, linear, normalisation, pooling, resizing, shapes)


def supported() -> list[Row]:
    """What the squared pass can do, for the documentation: one row per operation, by name."""
    rows = [Row(name, True, rule.parameter_rule, rule.note) for name, rule in sorted(RULES.items())]
    rows = [row._replace(input_rule=row.operation != "embedding") for row in rows]
    generic = "any operation that is elementwise in its tensors (torch.Tag.pointwise): m phi'(x)², by local autograd"
    return [*rows, Row("(other elementwise)", True, True, generic)]


__all__ = ["RULES", "Local", "Row", "Rule", "supported"]
