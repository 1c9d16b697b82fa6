"""Tables and pictures of the page of `tabular`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import p_value, standard_error
from marquis_experiments.common.page import Row, table, verdict, with_error
from marquis_experiments.tables.data import PATTERNS
from marquis_experiments.tables.methods import IMPUTER, ITERATIVE, MEAN, OURS

SURE = 2.0
"""A mean paired difference counts if it is more than this many of its standard errors from zero."""
COLOURS = {
    OURS: BLUE,
    IMPUTER: BLUE,
    "IsolationForest": GREEN,
    "LocalOutlierFactor": ORANGE,
    "PCA": GREY,
    ITERATIVE: ORANGE,
    "KNNImputer": GREEN,
    MEAN: GREY,
}
MARKERS = dict(zip(COLOURS, "oosD^sD^", strict=True))
SCORES = {
    "auroc": ("outliers, AUROC", True),
    "rmse": ("missing values, RMSE", False),
    "interval_score": ("90 % intervals, interval score", False),
}
"""Score to its name, and whether larger is better."""
ROUND = 3
"""Round of the protocol whose default settings are the present ones."""
COUNTS = "ours better / worse / undecided"


def short(name: str) -> str:
    """Return the name of a table: UCI's wine has other columns than scikit-learn's."""
    return {"uci/wine": "red wine"}.get(name, name.removeprefix("uci/"))


def task(row: Row) -> str:
    """Return a table and what its outliers are."""
    named = "malignant" if row["table"] == "breast cancer" else f"class {row['strange']}"
    return f"{short(row['table'])}, {'columns permuted' if row['strange'] == 'permuted' else named}{sized(row)}"


def sized(row: Row) -> str:
    """Return which group a table belongs to, if the same table is in another group as well."""
    return f" ({row['group']})" if row["group"] in ("small", "large") else ""


def of(rows: list[Row], **where: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def numbers(rows: list[Row], score: str, **where: Any) -> list[float]:
    """Return a score of the rows that have these values, by split."""
    chosen = [row for row in of(rows, **where) if score in row]
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
    """Return what the template needs; the verdict is that of the confirmation tables."""
    outliers, missing = results["outliers"], results["imputation"]
    splits, groups = len(unique([*outliers, *missing], "repetition")), unique([*outliers, *missing], "group")
    ours = {"auroc": OURS, "rmse": IMPUTER, "interval_score": IMPUTER}
    first, body, means = [], [], {}
    for group in groups:
        for score in SCORES:
            rows = [row for row in of(outliers if score == "auroc" else missing, group=group) if score in row]
            if not rows:
                continue
            places = unique(rows, "table", "strange" if score == "auroc" else "pattern")
            means[group, score] = {m: mean(numbers(rows, score, method=m)) for m in unique(rows, "method")}
            ranked = sorted(means[group, score], key=means[group, score].__getitem__, reverse=SCORES[score][1])
            written = {method: f"{means[group, score][method]:.3f}" for method in ranked}
            tallies = {m: counts(rows, score, ours[score], m, places) for m in ranked if m != ours[score]}
            body += [[group, SCORES[score][0], m, written[m], tallies.get(m, "–")] for m in ranked]
            other = next(iter(tallies))
            first.append([group, SCORES[score][0], written[ours[score]], f"{other} {written[other]}", tallies[other]])
    reported = [group for group in groups if group != "development"]
    best = {
        (group, score): (max if SCORES[score][1] else min)(means[group, score], key=means[group, score].__getitem__)
        for group in reported
        for score in SCORES
        if (group, score) in means
    }
    intervals = [row for row in missing if "coverage" in row]
    methods = unique(intervals, "method")
    distances = {m: mean(abs(x - 0.9) for x in numbers(intervals, "coverage", method=m)) for m in methods}
    worst = worst_ratio(missing)
    return {
        "splits": splits,
        "groups": len(groups),
        "tasks": len(unique(outliers, "group", "table", "strange")),
        "cases": len(unique(missing, "group", "table", "pattern")),
        "sizes": "; ".join(size(group, outliers, missing) for group in groups),
        "chance": p_value(SURE, splits) if splits > 1 else 1.0,
        "verdict": verdict(
            *(name == ours[score] for (_, score), name in best.items()),
            worst["ratio"] <= 1.02,
            complete(outliers, missing, splits) and len(best) == len(reported) * len(SCORES),
            not earlier(outliers, missing),
        ),
        "wins": sum(name == ours[score] for (_, score), name in best.items()),
        "comparisons": len(best),
        "beaten": "; ".join(
            f"{group}, {SCORES[score][0]}: {name}" for (group, score), name in best.items() if name != ours[score]
        ),
        "worst": worst,
        "done": splits_done(outliers, missing),
        "earlier": earlier(outliers, missing),
        "constructed": constructed_gains(missing),
        "losses": losses(outliers, missing, ours),
        "network": network_gains(missing),
        "table": table(["tables", "task and score", "ours", "best other method", COUNTS], first),
        "every_method": table(["tables", "task and score", "method", "mean", COUNTS], body),
        "outliers_table": outlier_table(outliers),
        "missing_table": missing_table(missing),
        "away": distances,
        "patterns": "; ".join(f"*{name}*: {PATTERNS[name]}" for name in unique(missing, "pattern")),
    }


def earlier(outliers: list[Row], missing: list[Row]) -> str:
    """Return the groups with numbers of ours that are still those of earlier rounds of the protocol, if any."""
    rows = [row for row in [*outliers, *missing] if row["method"] in (OURS, IMPUTER)]
    parts = []
    for group in unique(rows, "group"):
        here = [row for row in rows if row["group"] == group]
        old = sum(row.get("round") != ROUND for row in here)
        parts += [f"{group} ({old} of {len(here)})"] * bool(old)
    return ", ".join(parts)


def constructed_gains(missing: list[Row]) -> dict[str, Any]:
    """Return on how many constructed tables ours has a smaller RMSE than its Gaussian, and than all others."""
    rows = [row for row in missing if row["group"] == "constructed"]
    places = unique(rows, "table", "pattern")
    lower = best = 0
    for place in places:
        mine, gaussian = (numbers(rows, score, method=IMPUTER, **place) for score in ("rmse", "rmse_linear"))
        others = [numbers(rows, "rmse", method=m, **place) for m in unique(rows, "method") if m != IMPUTER]
        lower += len(mine) == len(gaussian) and compared(mine, gaussian, False) == 1
        best += all(len(mine) == len(other) and compared(mine, other, False) == 1 for other in others)
    return {"tables": len(places), "lower": lower, "best": best}


def size(group: str, outliers: list[Row], missing: list[Row]) -> str:
    """Return how many tasks a group has."""
    tasks = unique(of(outliers, group=group), "table", "strange")
    cases = unique(of(missing, group=group), "table", "pattern")
    return f"{group}: {len(tasks)} outlier tasks and {len(cases)} cases of missing values"


def complete(outliers: list[Row], missing: list[Row], splits: int) -> bool:
    """Return whether every method has all splits of every task, as the protocol asks for."""
    return all(
        len(numbers(rows, score, **place)) == splits
        for rows, key, score in ((outliers, "strange", "auroc"), (missing, "pattern", "rmse"))
        for place in unique(rows, "group", "table", key, "method")
    )


def splits_done(outliers: list[Row], missing: list[Row]) -> str:
    """Return from how many to how many splits the tasks of each group have."""
    parts = []
    for what, rows, key in (("outliers", outliers, "strange"), ("missing values", missing, "pattern")):
        for group in unique(rows, "group"):
            here = of(rows, group=group)
            counts = [len({row["repetition"] for row in of(here, **place)}) for place in unique(here, "table", key)]
            parts.append(f"{what}, {group} {min(counts)} to {max(counts)}")
    return "; ".join(parts)


def worst_ratio(rows: list[Row]) -> dict[str, Any]:
    """Return the case in which our RMSE is largest, divided by that of the column mean."""
    ratios = {}
    for place in unique(rows, "group", "table", "pattern"):
        mine, means = (mean(numbers(rows, "rmse", method=method, **place)) for method in (IMPUTER, MEAN))
        ratios[f"{short(place['table'])}, {place['pattern']}"] = mine / means
    name = max(ratios, key=ratios.__getitem__)
    return {"name": name, "ratio": ratios[name]}


def losses(outliers: list[Row], missing: list[Row], ours: Mapping[str, str]) -> str:
    """Return where another method is better by more than the noise, as a sentence for each score."""
    lines = []
    for score, key in (("auroc", "strange"), ("rmse", "pattern"), ("interval_score", "pattern")):
        rows = [row for row in (outliers if score == "auroc" else missing) if score in row]
        places = []
        for place in unique(rows, "group", "table", key):
            others = [m for m in unique(rows, "method") if m != ours[score] and numbers(rows, score, method=m, **place)]
            mine = numbers(rows, score, method=ours[score], **place)
            better = [
                m for m in others if compared(mine, numbers(rows, score, method=m, **place), SCORES[score][1]) < 0
            ]
            if better:
                places.append(f"{short(place['table'])} ({place['group']}, {place[key]}): {', '.join(better)}")
        lines.append(f"{SCORES[score][0]}: {'; '.join(places) if places else 'nowhere'}")
    return ". ".join(lines)


def network_gains(missing: list[Row]) -> dict[str, Any]:
    """Return in how many cases the network lowers and raises the RMSE of its Gaussian, and where it lowers it most."""
    gains, signs = {}, []
    for place in unique(missing, "group", "table", "pattern"):
        mine, linear = (numbers(missing, score, method=IMPUTER, **place) for score in ("rmse", "rmse_linear"))
        if len(mine) == len(linear) and mine:
            signs.append(compared(mine, linear, False))
            named = f"{short(place['table'])} ({place['group']}, {place['pattern']})"
            gains[named] = 1 - mean(mine) / mean(linear)
    largest = sorted(gains, key=gains.__getitem__, reverse=True)[:4]
    return {
        "cases": len(signs),
        "lower": signs.count(1),
        "higher": signs.count(-1),
        "largest": ", ".join(f"{name} by {100 * gains[name]:.0f} %" for name in largest) or "nowhere",
        "loss": f"{100 * -min(gains.values(), default=0.0):.1f}",
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
    for place in unique(rows, "group", "table", "strange"):
        first = of(rows, **place)[0]
        cells = [with_error(numbers(rows, "auroc", method=method, **place)) for method in methods]
        body.append([task(first), f"{first['rows'][0]} x {first['columns']}", *cells])
    return table(["outliers", "training", *methods], body)


def missing_table(rows: list[Row]) -> str:
    """Return RMSE, coverage and interval score by table, over patterns, and by pattern of the development tables."""
    methods = unique(rows, "method")
    columns = [("rmse", IMPUTER), ("rmse_linear", IMPUTER)] + [
        ("rmse", method) for method in methods if method != IMPUTER
    ]
    columns += [(score, m) for score in ("coverage", "interval_score") for m in (IMPUTER, ITERATIVE, "KNNImputer")]
    body = []
    places = [(place, short(place["table"])) for place in unique(rows, "group", "table")]
    first = unique(rows, "group")[0]
    places += [({"group": first, "pattern": name}, name) for name in unique(of(rows, group=first), "pattern")]
    for place, name in places:
        chosen = of(rows, **place)[0]
        scores = [numbers(rows, score, method=m, **place) for score, m in columns]
        cells = [f"{mean(values):.3f}" if values else "–" for values in scores]
        body.append(
            [place["group"], name, f"{chosen['rows']} x {chosen['columns']}" if "table" in place else "", *cells]
        )
    names = [
        f"{'its Gaussian alone' if score == 'rmse_linear' else m}, {score.split('_linear')[0].replace('_', ' ')}"
        for score, m in columns
    ]
    return table(["tables", "table or pattern", "size", *names], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw AUROCs and errors."""
    draw_outliers(folder / "tabular-outliers.png", results["outliers"])
    draw_errors(folder / "tabular-rmse.png", results["imputation"])


def draw_outliers(path: Path, rows: list[Row]) -> None:
    """Draw a line of points per task, one per method, with standard errors."""
    places = unique(rows, "group", "table", "strange")
    areas = {m: [numbers(rows, "auroc", method=m, **place) for place in places] for m in unique(rows, "method")}
    figure = draw_points([task(of(rows, **place)[0]) for place in places], areas, "AUROC", 0.4)
    figure.save(path)


def draw_errors(path: Path, rows: list[Row]) -> None:
    """Draw a line of points per case, one per method: RMSE over that of the column mean, with standard errors."""
    places = unique(rows, "group", "table", "pattern")
    means = [numbers(rows, "rmse", method=MEAN, **place) for place in places]
    ratios = {
        method: [
            [a / b for a, b in zip(numbers(rows, "rmse", method=method, **place), of_means, strict=True)]
            for place, of_means in zip(places, means, strict=True)
        ]
        for method in unique(rows, "method")
        if method != MEAN
    }
    labels = [f"{short(p['table'])}, {p['pattern']}{sized(p)}" for p in places]
    figure = draw_points(labels, ratios, "RMSE / that of the column mean", 0.3)
    figure.axes[0].axvline(1.0, color=COLOURS[MEAN], lw=1, ls="--")
    figure.save(path)


def draw_points(labels: list[str], scores: Mapping[str, list[list[float]]], title: str, height: float) -> Figure:
    """Draw a line per label with a point per method: the mean of its scores `[labels][splits]` and its standard error.

    `height` is that of a line in inches.
    """
    figure = Figure(1, 1, width=8.0, height=1.3 + height * len(labels))
    (axis,) = figure.axes
    apart = 0.65 / max(len(scores), 2)
    for i, (method, values) in enumerate(scores.items()):
        y = [-k + apart * ((len(scores) - 1) / 2 - i) for k in range(len(labels))]
        style = {"fmt": MARKERS[method], "color": COLOURS[method], "label": method, "ms": 4.5, "lw": 1.2}
        axis.errorbar([mean(v) for v in values], y, xerr=[standard_error(v) for v in values], **style)
    axis.set_yticks([-k for k in range(len(labels))], labels, fontsize=9)
    axis.set_ylim(0.7 - len(labels), 0.7)
    axis.set_xlabel(title)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure
