"""Pictures of the experiment `tabular`: areas, errors, and coverage against width."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from marquis.experiments.pages import Picture
from marquis.experiments.tabular_methods import IMPUTER, ITERATIVE, MEAN, OURS, OURS_HALF
from marquis.experiments.tabular_numbers import Row, error, numbers, outlier_places, short, task, unique

COLOURS = {
    OURS: "#2f6fab",
    OURS_HALF: "#7fb2dd",
    IMPUTER: "#2f6fab",
    "IsolationForest": "#3b8f5a",
    "LocalOutlierFactor": "#d1602b",
    "PCA": "#555555",
    ITERATIVE: "#d1602b",
    "KNNImputer": "#3b8f5a",
    MEAN: "#555555",
}
MARKERS = dict(zip(COLOURS, "ooosD^sD^", strict=True))


def draw_outliers(path: Path, outliers: list[Row]) -> None:
    """A line of points per task, one per method, with standard errors."""
    places, methods = outlier_places(outliers), unique(outliers, "method")
    picture = Picture(1, 1, width=8.0, height=1.3 + 0.55 * len(places))
    axis = picture.axes[0]
    for i, method in enumerate(methods):
        values = [numbers(outliers, "auroc", method=method, **place) for place in places]
        y = [-k + 0.13 * ((len(methods) - 1) / 2 - i) for k in range(len(places))]
        axis.errorbar(
            [mean(v) for v in values], y, xerr=[error(v) for v in values], fmt=MARKERS[method],
            color=COLOURS[method], label=method, ms=5, lw=1.2,
        )  # fmt: skip
    labels = [task(next(r for r in outliers if all(r[k] == v for k, v in place.items()))) for place in places]
    axis.set_yticks([-k for k in range(len(places))], labels)
    axis.set_xlabel("AUROC")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    picture.save(path)


def draw_errors(path: Path, holes: list[Row]) -> None:
    """A panel per table: RMSE over that of the column mean, pattern by pattern."""
    tables, methods = unique(holes, "table"), [m for m in unique(holes, "method") if m != MEAN]
    picture = Picture(len(tables), min(2, len(tables)), width=4.0, height=2.8, share=True)
    for axis, name in zip(picture.axes, tables, strict=True):
        patterns = unique([row for row in holes if row["table"] == name], "pattern")
        for i, method in enumerate(methods):
            ratios = []
            for pattern in patterns:
                pair = [numbers(holes, "rmse", table=name, pattern=pattern, method=m) for m in (method, MEAN)]
                ratios.append([a / b for a, b in zip(*pair, strict=True)])
            x = [k + 0.14 * (i - (len(methods) - 1) / 2) for k in range(len(patterns))]
            axis.errorbar(
                x, [mean(r) for r in ratios], yerr=[error(r) for r in ratios], fmt=MARKERS[method],
                color=COLOURS[method], label=method, ms=5, lw=1.2,
            )  # fmt: skip
        axis.axhline(1.0, color=COLOURS[MEAN], lw=1, ls="--")
        axis.set_xticks(range(len(patterns)), patterns)
        axis.set_title(short(name), fontsize=10)
        axis.grid(axis="y", alpha=0.3)
    for axis in picture.axes[:: min(2, len(tables))]:
        axis.set_ylabel("RMSE / that of the mean")
    picture.axes[0].legend(fontsize=8)
    picture.save(path)


def draw_intervals(path: Path, holes: list[Row]) -> None:
    """A panel per table: coverage against mean width, a point per pattern and method."""
    rows = [row for row in holes if "coverage" in row]
    tables, methods = unique(rows, "table"), unique(rows, "method")
    picture = Picture(len(tables), min(2, len(tables)), width=4.0, height=2.8, share=True)
    for axis, name in zip(picture.axes, tables, strict=True):
        patterns = unique([row for row in rows if row["table"] == name], "pattern")
        for method in methods:
            pairs = [
                [mean(numbers(rows, score, table=name, pattern=p, method=method)) for score in ("width", "coverage")]
                for p in patterns
            ]
            x, y = zip(*pairs, strict=True)
            axis.plot(x, y, MARKERS[method], color=COLOURS[method], label=method, ms=5)
            for pattern, (a, b) in zip(patterns, pairs, strict=True):
                axis.annotate(pattern, (a, b), xytext=(3, 3), textcoords="offset points", fontsize=7)
        axis.axhline(0.9, color="black", lw=1, ls="--")
        axis.margins(x=0.2, y=0.1)
        axis.set_title(short(name), fontsize=10)
        axis.set_xlabel("mean width, column's deviations")
        axis.grid(alpha=0.3)
    for axis in picture.axes[:: min(2, len(tables))]:
        axis.set_ylabel("coverage (90 % promised)")
    picture.axes[0].legend(fontsize=8, loc="lower right")
    picture.save(path)
