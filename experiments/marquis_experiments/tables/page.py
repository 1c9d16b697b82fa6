"""Tables and pictures of the page of `tabular`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import p_value, standard_error
from marquis_experiments.common.page import table, verdict, with_error
from marquis_experiments.tables.data import PATTERNS
from marquis_experiments.tables.methods import IMPUTER, ITERATIVE, MEAN, OURS, OURS_HALF

Row = dict[str, Any]
SURE = 2.0
"""A mean paired difference counts if it is more than this many of its standard errors from zero."""
COLOURS = {
    OURS: BLUE,
    OURS_HALF: "#7fb2dd",
    IMPUTER: BLUE,
    "IsolationForest": GREEN,
    "LocalOutlierFactor": ORANGE,
    "PCA": GREY,
    ITERATIVE: ORANGE,
    "KNNImputer": GREEN,
    MEAN: GREY,
}
MARKERS = dict(zip(COLOURS, "ooosD^sD^", strict=True))
SCORES = {
    "auroc": ("outliers, AUROC", True),
    "rmse": ("missing values, RMSE", False),
    "interval_score": ("90 % intervals, interval score", False),
}
"""Score to its name, and whether larger is better."""


def short(name: str) -> str:
    """Return the name of a table: UCI's wine has other columns than scikit-learn's."""
    return {"uci/wine": "red wine"}.get(name, name.removeprefix("uci/"))


def named(method: str) -> str:
    """Return the name of a method as pages write it; cells have the longer code under a name without its model."""
    return f"{OURS}, longer code" if method == OURS_HALF else method


def task(row: Row) -> str:
    """Return a table and what its outliers are."""
    named = "malignant" if row["table"] == "breast cancer" else f"class {row['strange']}"
    return f"{short(row['table'])}, {'columns permuted' if row['strange'] == 'permuted' else named}"


def numbers(rows: list[Row], score: str, **where: Any) -> list[float]:
    """Return a score of the rows that have these values, by split."""
    chosen = [row for row in rows if all(row[key] == value for key, value in where.items()) and score in row]
    return [row[score] for row in sorted(chosen, key=lambda row: row["repetition"])]


def unique(rows: list[Row], *keys: str) -> list[Any]:
    """Return the different values of a key in their order, or of several keys as dictionaries."""
    if len(keys) == 1:
        return list(dict.fromkeys(row[keys[0]] for row in rows))
    return [
        dict(zip(keys, combination, strict=True))
        for combination in dict.fromkeys(tuple(row[k] for k in keys) for row in rows)
    ]


def compared(ours: list[float], theirs: list[float], larger_is_better: bool) -> int:
    """Return 1 if ours is better, -1 if it is worse, 0 if the paired difference is within `SURE` standard errors."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    value = mean(differences)
    if len(differences) < 2 or abs(value) <= SURE * standard_error(differences):
        return 0
    return 1 if (value > 0) == larger_is_better else -1


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    outliers, missing = results["outliers"], results["imputation"]
    splits = len(unique(outliers, "repetition"))
    means = {
        "auroc": {method: mean(numbers(outliers, "auroc", method=method)) for method in unique(outliers, "method")}
    }
    for score in ("rmse", "interval_score"):
        methods = unique([row for row in missing if score in row], "method")
        means[score] = {method: mean(numbers(missing, score, method=method)) for method in methods}
    best = {
        score: (max if SCORES[score][1] else min)(by_method, key=by_method.__getitem__)
        for score, by_method in means.items()
    }
    ours = {"auroc": OURS, "rmse": IMPUTER, "interval_score": IMPUTER}
    body = []
    for score, by_method in means.items():
        rows, keys = (outliers, ("table", "strange")) if score == "auroc" else (missing, ("table", "pattern"))
        places = unique(rows, *keys)
        for method in sorted(by_method, key=by_method.__getitem__, reverse=SCORES[score][1]):
            tally = "–" if method == ours[score] else counts(rows, score, ours[score], method, places)
            body.append([SCORES[score][0], named(method), f"{by_method[method]:.3f}", tally])
    intervals = [row for row in missing if "coverage" in row]
    distances = {
        m: mean(abs(x - 0.9) for x in numbers(intervals, "coverage", method=m)) for m in means["interval_score"]
    }
    return {
        "splits": splits,
        "tasks": len(unique(outliers, "table", "strange")),
        "cases": len(unique(missing, "table", "pattern")),
        "chance": p_value(SURE, splits) if splits > 1 else 1.0,
        "verdict": verdict(*(best[score] == ours[score] for score in SCORES)),
        "best": {score: {"method": name, "mean": means[score][name]} for score, name in best.items()},
        "ours": {score: means[score][ours[score]] for score in SCORES},
        "longer": means["auroc"][OURS_HALF],
        "table": table(["task and score", "method", "mean", "ours better / worse / undecided"], body),
        "outliers_table": outlier_table(outliers),
        "missing_table": missing_table(missing),
        "away": distances,
        "patterns": "; ".join(f"*{name}*: {PATTERNS[name]}" for name in unique(missing, "pattern")),
    }


def counts(rows: list[Row], score: str, ours: str, other: str, places: list[dict[str, Any]]) -> str:
    """Return in how many places ours is better, worse, or the difference is not decided."""
    signs = []
    for place in places:
        mine, theirs = (numbers(rows, score, method=method, **place) for method in (ours, other))
        signs.append(compared(mine, theirs, SCORES[score][1]))
    return " / ".join(str(signs.count(sign)) for sign in (1, -1, 0))


def outlier_table(rows: list[Row]) -> str:
    """Return the AUROC of every task, mean ± standard error over splits."""
    methods = unique(rows, "method")
    body = []
    for place in unique(rows, "table", "strange"):
        first = next(row for row in rows if all(row[key] == value for key, value in place.items()))
        cells = [with_error(numbers(rows, "auroc", method=method, **place)) for method in methods]
        body.append([task(first), f"{first['rows'][0]} x {first['columns']}", *cells])
    return table(["outliers", "training", *map(named, methods)], body)


def missing_table(rows: list[Row]) -> str:
    """Return RMSE, coverage and interval score by table (over patterns) and by pattern (over tables)."""
    methods = unique(rows, "method")
    columns = [("rmse", method) for method in methods]
    columns += [(score, method) for score in ("coverage", "interval_score") for method in (IMPUTER, ITERATIVE)]
    body = []
    for key in ("table", "pattern"):
        for value in unique(rows, key):
            cells = [f"{mean(numbers(rows, score, method=m, **{key: value})):.2f}" for score, m in columns]
            body.append([short(value), *cells])
    return table(["table or pattern", *(f"{score.replace('_', ' ')}, {method}" for score, method in columns)], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw AUROCs and errors."""
    draw_outliers(folder / "tabular-outliers.png", results["outliers"])
    draw_errors(folder / "tabular-rmse.png", results["imputation"])


def draw_outliers(path: Path, rows: list[Row]) -> None:
    """Draw a line of points per task, one per method, with standard errors."""
    places, methods = unique(rows, "table", "strange"), unique(rows, "method")
    figure = Figure(1, 1, width=8.0, height=1.3 + 0.55 * len(places))
    (axis,) = figure.axes
    for i, method in enumerate(methods):
        areas = [numbers(rows, "auroc", method=method, **place) for place in places]
        y = [-k + 0.13 * ((len(methods) - 1) / 2 - i) for k in range(len(places))]
        style = {"fmt": MARKERS[method], "color": COLOURS[method], "label": named(method), "ms": 5, "lw": 1.2}
        axis.errorbar([mean(v) for v in areas], y, xerr=[standard_error(v) for v in areas], **style)
    labels = [task(next(r for r in rows if all(r[k] == v for k, v in place.items()))) for place in places]
    axis.set_yticks([-k for k in range(len(places))], labels)
    axis.set_xlabel("AUROC")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.save(path)


def draw_errors(path: Path, rows: list[Row]) -> None:
    """Draw a panel per table: RMSE over that of the column mean, pattern by pattern."""
    tables, methods = unique(rows, "table"), [method for method in unique(rows, "method") if method != MEAN]
    figure = Figure(len(tables), min(3, len(tables)), width=3.2, height=3.0, share=True)
    for axis, name in zip(figure.axes, tables, strict=True):
        patterns = unique([row for row in rows if row["table"] == name], "pattern")
        for i, method in enumerate(methods):
            ratios = []
            for pattern in patterns:
                pair = [numbers(rows, "rmse", table=name, pattern=pattern, method=m) for m in (method, MEAN)]
                ratios.append([a / b for a, b in zip(*pair, strict=True)])
            x = [k + 0.18 * (i - (len(methods) - 1) / 2) for k in range(len(patterns))]
            style = {"fmt": MARKERS[method], "color": COLOURS[method], "label": method, "ms": 5, "lw": 1.2}
            axis.errorbar(x, [mean(r) for r in ratios], yerr=[standard_error(r) for r in ratios], **style)
        axis.axhline(1.0, color=COLOURS[MEAN], lw=1, ls="--")
        axis.set_xticks(range(len(patterns)), patterns)
        axis.set_title(short(name), fontsize=10)
        axis.set_xlabel("missing values")
        axis.grid(axis="y", alpha=0.3)
    for axis in figure.axes[::3]:
        axis.set_ylabel("RMSE / that of the column mean")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    figure.save(path)
