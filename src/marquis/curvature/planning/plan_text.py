"""Write a plan as text, 100 characters wide."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from marquis.curvature.planning.coverage import LayerPlan
from marquis.curvature.planning.memory import gigabytes

if TYPE_CHECKING:
    from marquis.curvature.planning.plan import Plan

WIDTH = 100
"""Characters of a printed line."""


def render(made: Plan) -> str:
    """Return the text: output and bottlenecks, memory, one line per parameter, notes."""
    return "\n".join([*_head(made), "", *_table(made.layers), *_footnotes(made.notes)])


def _head(made: Plan) -> list[str]:
    """Return the lines about structure, columns and memory."""
    lines = [f"{made.structure} curvature, {made.estimator}, {made.likelihood}, batch of {made.batch}"]
    tail = "the diagonal of M only" if made.columns == 1 and not made.segments else f"{made.columns} columns"
    lines.append(f"output {list(made.outputs)}: {tail}")
    for number, segment in enumerate(made.segments):
        tile = f", tiles of {' x '.join(map(str, segment.tile))}" if segment.tile is not None else ""
        lines.append(f"  {segment.columns} columns in {segment.chunks} chunk(s) of {segment.chunk}{tile}")
        if number < len(made.recompressions):
            bottleneck = made.recompressions[number]
            where = f"`{bottleneck.operation}` in '{bottleneck.module or '(top level)'}'"
            lines.append(f"  recompressed at {where}: {bottleneck.before} -> {bottleneck.after} columns")
    sizes = (made.forward_bytes, made.pass_bytes, made.result_bytes, made.total_bytes)
    forward, backward, result, total = map(gigabytes, sizes)
    lines.append(
        f"memory: forward values {forward}, backward pass {backward}, result {result}; at most {total} at once"
    )
    verdict = "fits into" if made.fits else "does NOT fit into"
    lines.append(f"        {verdict} {gigabytes(made.available_bytes)}")
    return lines


def _table(layers: tuple[LayerPlan, ...]) -> list[str]:
    """Return the table of layers."""
    widths = (24, 14, 24, 14, 9, 5)  # with a space between each and the last column: at most 100
    titles = ("parameter", "shape", "treated by", "module", "kept as", "cols", "uses")
    rows: list[tuple[str, ...]] = [titles]
    for layer in layers:
        shape = " x ".join(map(str, layer.shape)) or "scalar"
        place = layer.module or "-"
        rows.append((layer.name, shape, layer.treatment, place, layer.kept, str(layer.columns), str(layer.uses)))
    made = []
    for row in rows:
        cells = [_fit(cell, width) for cell, width in zip(row, widths, strict=False)]
        made.append(" ".join([*cells, row[-1]])[:WIDTH].rstrip())
    return [made[0], "-" * WIDTH, *made[1:]]


def _fit(text: str, width: int) -> str:
    """Return text of exactly this width, cut on the left."""
    return text.ljust(width) if len(text) <= width else "~" + text[len(text) - width + 1 :]


def _footnotes(notes: tuple[str, ...]) -> list[str]:
    wrapped = [textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in notes]
    return ["", *wrapped] if wrapped else []
