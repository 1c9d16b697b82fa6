"""Pictures of the experiment `tabular`: areas, errors, and coverage against width."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from marquis_experiments.pages import Picture, standard_error
from marquis_experiments.tabular_methods import IMPUTER, ITERATIVE, MEAN, OURS, OURS_HALF
from marquis_experiments.tabular_numbers import Row, numbers, outlier_places, short, task, unique

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
            [mean(v) for v in values], y, xerr=[standard_error(v) for v in values], fmt=MARKERS[method],
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
    picture = Picture(len(tables), min(3, len(tables)), width=3.2, height=3.0, share=True)
    for axis, name in zip(picture.axes, tables, strict=True):
        patterns = unique([row for row in holes if row["table"] == name], "pattern")
        for i, method in enumerate(methods):
            ratios = []
            for pattern in patterns:
                pair = [numbers(holes, "rmse", table=name, pattern=pattern, method=m) for m in (method, MEAN)]
                ratios.append([a / b for a, b in zip(*pair, strict=True)])
            x = [k + 0.18 * (i - (len(methods) - 1) / 2) for k in range(len(patterns))]
            axis.errorbar(
                x, [mean(r) for r in ratios], yerr=[standard_error(r) for r in ratios], fmt=MARKERS[method],
                color=COLOURS[method], label=method, ms=5, lw=1.2,
            )  # fmt: skip
        axis.axhline(1.0, color=COLOURS[MEAN], lw=1, ls="--")
        axis.set_xticks(range(len(patterns)), patterns)
        axis.set_title(short(name), fontsize=10)
        axis.set_xlabel("hidden entries")
        axis.grid(axis="y", alpha=0.3)
    for axis in picture.axes[::3]:
        axis.set_ylabel("RMSE / that of the column mean")
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    picture.save(path)


def draw_intervals(path: Path, holes: list[Row]) -> None:
    """A panel per table: coverage against mean width; colours are methods, shapes are patterns."""
    rows = [row for row in holes if "coverage" in row]
    tables, methods, patterns = unique(rows, "table"), unique(rows, "method"), unique(rows, "pattern")
    picture = Picture(len(tables), min(3, len(tables)), width=3.2, height=3.2, share=True)
    for axis, name in zip(picture.axes, tables, strict=True):
        for method in methods:
            for pattern, shape in zip(patterns, "osD^", strict=False):
                width, coverage = (
                    numbers(rows, score, table=name, pattern=pattern, method=method) for score in ("width", "coverage")
                )
                axis.errorbar(
                    mean(width), mean(coverage), xerr=standard_error(width), yerr=standard_error(coverage), fmt=shape,
                    color=COLOURS[method], ms=5, lw=1,
                )  # fmt: skip
        axis.axhline(0.9, color="black", lw=1, ls="--")
        axis.margins(x=0.1, y=0.1)
        axis.set_title(short(name), fontsize=10)
        axis.set_xlabel("mean width, deviations of the column")
        axis.grid(alpha=0.3)
    for axis in picture.axes[::3]:
        axis.set_ylabel("coverage (90 % promised)")
    axis = picture.axes[0]
    keys = [axis.plot([], [], "o", color=COLOURS[method], label=method)[0] for method in methods]
    for pattern, shape in zip(patterns, "osD^", strict=False):
        said = "more of the large values hidden" if pattern == "large" else f"{pattern} hidden"
        keys.append(axis.plot([], [], shape, color="black", mfc="none", label=said)[0])
    columns = len(methods) if len(tables) > 2 else 2
    picture.figure.legend(handles=keys, loc="outside upper center", ncols=columns, fontsize=9, frameon=False)
    picture.save(path)
