"""Tables, comparisons and pictures that the sections of the page of `vl` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Row = dict[str, Any]

VARIANTS = {
    "VL": ("vl", "mean"),
    "VI (mean)": ("vi", "mean"),
    "VI (10 samples)": ("vi", "sampled"),
    "MAP": ("map", "mean"),
}
COLOURS = {"VL": "#d1602b", "VI (mean)": "#2f6fab", "VI (10 samples)": "#7fb2dd", "MAP": "#555555"}
MARKERS = {"VL": "o", "VI (mean)": "s", "VI (10 samples)": "D", "MAP": "^"}


def of_variant(rows: list[Row], variant: str, tempering: float | None = None) -> list[Row]:
    """The rows of one line of the table that did not diverge."""
    method, _ = VARIANTS[variant]
    return [
        row for row in rows if row["method"] == method and not row["diverged"] and tempering in (None, row["tempering"])
    ]


def scores(rows: list[Row], variant: str, metric: str) -> list[float]:
    """One number per row of a variant."""
    return [row[VARIANTS[variant][1]][metric] for row in rows]


def chosen_tempering(rows: list[Row], variant: str) -> float | None:
    """The tempering with the least validation NLL of the mean network."""
    found: dict[float, list[float]] = {}
    for row in of_variant(rows, variant):
        found.setdefault(row["tempering"], []).append(row["validation"]["nll"])
    return min(found, key=lambda t: mean(found[t])) if found else None


def spread(values: list[float], form: str) -> str:
    """Mean, and standard deviation where there are several."""
    text = format(mean(values), form)
    return f"{text} ± {format(stdev(values), form)}" if len(values) > 1 else text


def table(header: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def score_cells(rows: list[Row], variant: str, among: list[Row]) -> list[str]:
    """Test NLL, accuracy and ECE of one line of a table."""
    if not rows:  # nothing usable: either it was never run, or every run of it diverged
        tried = any(row["method"] == VARIANTS[variant][0] for row in among)
        return ["diverged" if tried else "not run"] * 3
    percent = [100 * value for value in scores(rows, variant, "accuracy")]
    return [
        spread(scores(rows, variant, "nll"), ".3f"),
        spread(percent, ".1f"),
        spread(scores(rows, variant, "ece"), ".3f"),
    ]


@dataclass(frozen=True)
class Comparison:
    """VL against another method in one score, less being better.

    Attributes:
        score: "NLL" or "ECE".
        other: The other line of the table.
        gap: The other's mean over the seeds minus VL's.
        spread: The larger of the two ranges over the seeds.
    """

    score: str
    other: str
    gap: float
    spread: float

    @property
    def won(self) -> bool:
        """VL is better by more than the seeds differ."""
        return self.gap > self.spread

    @property
    def lost(self) -> bool:
        """VL is not better."""
        return self.gap <= 0

    @property
    def clearly_lost(self) -> bool:
        """VL is worse by more than the seeds differ."""
        return -self.gap > self.spread


def comparisons(rows: list[Row], tempering: float | None = None) -> list[Comparison]:
    """VL against every other method, each at this tempering, or at its own that validation chose; empty without VL."""
    found = {}
    for variant in VARIANTS:
        chosen = chosen_tempering(rows, variant) if tempering is None else tempering
        usable = of_variant(rows, variant, chosen)
        if usable:
            found[variant] = {name: scores(usable, variant, name.lower()) for name in ("NLL", "ECE")}
    if "VL" not in found:
        return []
    result = []
    for score in ("NLL", "ECE"):
        ours = found["VL"][score]
        for other in found:
            if other != "VL":
                theirs = found[other][score]
                ranges = max(max(values) - min(values) for values in (ours, theirs))
                result.append(Comparison(score, other, mean(theirs) - mean(ours), ranges))
    return result


def order_table(compared: list[Comparison]) -> str:
    """One line per comparison, with a verdict."""
    lines = []
    for c in compared:
        if c.lost:
            verdict = "**not as in the paper**"
        else:
            verdict = "as in the paper" if c.won else "as in the paper, but within the range of the seeds: undecided"
        lines.append([c.score, f"VL < {c.other}", f"{c.gap:+.4f}", f"{c.spread:.4f}", verdict])
    return table(["score", "paper's order", "difference", "range over seeds", "verdict"], lines)


def draw_scores(axes: Any, rows: list[Row]) -> None:
    """Test NLL and ECE of every method against the tempering, in two panels: means, and the single seeds faintly."""
    for axis, metric, name in ((axes[0], "nll", "test NLL"), (axes[1], "ece", "test ECE")):
        for variant in VARIANTS:
            points = []
            for tempering in sorted({row["tempering"] for row in rows}):
                values = scores(of_variant(rows, variant, tempering), variant, metric)
                axis.plot([tempering] * len(values), values, MARKERS[variant], ms=3, alpha=0.35, color=COLOURS[variant])
                if values:
                    points.append((tempering, mean(values)))
            style = {"marker": MARKERS[variant], "color": COLOURS[variant], "label": variant}
            axis.plot(*zip(*points, strict=True), **style) if points else None
        axis.set(xscale="log", xlabel="tempering β (weight of the KL)", ylabel=name)
        axis.grid(alpha=0.3)


def picture(path: Path, columns: int, draw: Callable[[Any], None]) -> None:
    """Draw without touching the global state of pyplot, so that it works from any thread and without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns)
    draw(axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)
