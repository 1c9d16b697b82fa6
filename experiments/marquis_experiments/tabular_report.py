"""The page of the experiment `tabular`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.pages import by_chance, command, table, with_error, write_page
from marquis_experiments.tabular_data import PATTERNS
from marquis_experiments.tabular_history import CHOSEN
from marquis_experiments.tabular_methods import DRAWS, EXPLAINED, IMPUTER, ITERATIVE, MEAN, OURS, OURS_HALF
from marquis_experiments.tabular_numbers import (
    SURE,
    Row,
    compared,
    hole_places,
    numbers,
    outlier_places,
    short,
    task,
    unique,
)
from marquis_experiments.tabular_pictures import draw_errors, draw_intervals, draw_outliers


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `tabular.md` and its pictures next to the results."""
    outliers, holes = results["outliers"], results["imputation"]
    settings, splits = results["settings"], len(unique(outliers, "repetition"))
    draw_outliers(folder / "tabular-outliers.png", outliers)
    draw_errors(folder / "tabular-rmse.png", holes)
    draw_intervals(folder / "tabular-intervals.png", holes)
    pieces = [
        "# Tables: outliers and missing values, against scikit-learn",
        f"Written by {command('tabular', results['size'])} from its results. `marquis.sklearn.LaplacianAutoencoder` "
        "and `LaplacianImputer` against what scikit-learn users have already, **everybody with default settings**, "
        f"fitted to the same rows: {splits} fresh random splits of each table for outliers (at most "
        f"{settings['max_train']} training rows), as many draws of rows and holes for missing values (at most "
        f"{settings['max_rows']} rows); ± is the standard error over these.",
        "## In short",
        in_short(outliers, holes),
        *outlier_section(outliers),
        *error_section(holes),
        *interval_section(holes),
        "## How it was measured",
        protocol(results),
        "## What was chosen, and how",
        CHOSEN,
    ]
    return write_page(folder / "tabular.md", pieces)


# --- words -----------------------------------------------------------------------------------------------


def tally(rows: list[Row], ours: str, score: str, larger: bool, places: list[dict[str, Any]]) -> str:
    """Against each of the others: in how many places we are better, worse, or the difference is not sure."""
    said = []
    for other in unique([row for row in rows if score in row], "method"):
        if other in (OURS, OURS_HALF, IMPUTER):
            continue
        verdicts = [
            compared(numbers(rows, score, method=ours, **p), numbers(rows, score, method=other, **p), larger)[0]
            for p in places
        ]
        counts = [verdicts.count(sign) for sign in (1, -1, 0)]
        said.append(f"{other} {counts[0]} / {counts[1]} / {counts[2]}")
    return "; ".join(said)


def in_short(outliers: list[Row], holes: list[Row]) -> str:
    """Who wins how often, and who is best on average."""
    where, gaps = outlier_places(outliers), hole_places(holes)
    repetitions = len(unique(outliers, "repetition"))
    chance = f", which chance alone would do in {by_chance(SURE, repetitions)}" if repetitions > 1 else ""
    lines = [
        f"Counts are tables (for holes: tables times patterns) on which ours is *better / worse / not surely either*; "
        f"sure means that the mean paired difference is more than {SURE:g} of its standard errors from zero"
        f"{chance}.",
        f"- **Outliers** (AUROC, {len(where)} tasks), {OURS}: {tally(outliers, OURS, 'auroc', True, where)}. "
        f"With a longer code: {tally(outliers, OURS_HALF, 'auroc', True, where)}.",
        f"- **Missing values** (RMSE, {len(gaps)} cases), {IMPUTER}: {tally(holes, IMPUTER, 'rmse', False, gaps)}.",
        f"- **90 % intervals** (interval score), {IMPUTER}: {tally(holes, IMPUTER, 'interval_score', False, gaps)}.",
        "\n" + advice(outliers, holes),
    ]
    return "\n".join([lines[0] + "\n", *lines[1:]])


def advice(outliers: list[Row], holes: list[Row]) -> str:
    """The best on average; plainly, if that is not ours."""
    areas = {m: mean(numbers(outliers, "auroc", method=m)) for m in unique(outliers, "method")}
    errors = {m: mean(numbers(holes, "rmse", method=m)) for m in unique(holes, "method")}
    finder, filler = max(areas, key=areas.__getitem__), min(errors, key=errors.__getitem__)
    said = f"Averaged over all outlier tasks the best is *{finder}* ({areas[finder]:.3f}; "
    said += ", ".join(f"{m} {v:.3f}" for m, v in areas.items() if m != finder) + "). "
    said += f"Averaged over all holes the best is *{filler}* (RMSE {errors[filler]:.3f}; "
    said += ", ".join(f"{m} {v:.3f}" for m, v in errors.items() if m != filler) + "). "
    if filler != IMPUTER:
        said += f"For filling holes of tables like these, **take {filler}**, unless the draws or deviations of a "
        said += "network are wanted for their own sake. "
    if finder not in (OURS, OURS_HALF):
        said += f"For outliers of tables like these, **take {finder}** first."
    return said.strip()


def outlier_section(outliers: list[Row]) -> list[str]:
    """Table and picture of the areas."""
    methods = unique(outliers, "method")
    body = []
    for place in outlier_places(outliers):
        values = {m: numbers(outliers, "auroc", method=m, **place) for m in methods}
        best = max(methods, key=lambda m: mean(values[m]))
        row = next(r for r in outliers if all(r[k] == v for k, v in place.items()))
        cells = [f"**{with_error(values[m], 3)}**" if m == best else with_error(values[m], 3) for m in methods]
        body.append([task(row), f"{row['rows'][0]} x {row['columns']}", *cells])
    return [
        "## Outliers",
        "AUROC: how often a strange row gets a stranger score than an ordinary one, both not trained on; the largest "
        "mean of each line is bold.",
        table(["strange rows", "training", *methods], body),
        "![AUROC of each method on each table](tabular-outliers.png)",
    ]


def error_section(holes: list[Row]) -> list[str]:
    """Table and picture of the errors of imputed values."""
    methods = unique(holes, "method")
    others = [m for m in methods if m not in (IMPUTER, MEAN)]
    body = []
    for place in hole_places(holes):
        values = {m: numbers(holes, "rmse", method=m, **place) for m in methods}
        best = min(methods, key=lambda m: mean(values[m]))
        cells = [f"**{with_error(values[m], 2)}**" if m == best else with_error(values[m], 2) for m in methods]
        paired = [compared(values[IMPUTER], values[m], False)[1:] for m in others]
        body.append(
            [f"{short(place['table'])}, {place['pattern']}", *cells, *(f"{v:+.3f} ± {e:.3f}" for v, e in paired)]
        )
    return [
        "## Missing values: errors",
        "Root mean squared error of the filled-in values, in units of the columns' standard deviations; least is best, "
        "and bold. The last columns are ours minus theirs on the same splits: negative is better for us.",
        table(["table, holes", *methods, *(f"ours - {m}" for m in others)], body),
        "![RMSE divided by that of the column mean](tabular-rmse.png)",
    ]


def interval_section(holes: list[Row]) -> list[str]:
    """Table and picture of coverage and width."""
    rows = [row for row in holes if "coverage" in row]
    methods = unique(rows, "method")
    body = []
    for place in hole_places(rows):
        line: list[str] = [f"{short(place['table'])}, {place['pattern']}"]
        for method in methods:
            values = [mean(numbers(rows, score, method=method, **place)) for score in ("coverage", "width")]
            line.append(f"{values[0]:.2f}, {values[1]:.2f}")
        line += [with_error(numbers(rows, "interval_score", method=m, **place), 2) for m in methods]
        body.append(line)
    away = {m: mean(abs(row["coverage"] - 0.9) for row in rows if row["method"] == m) for m in methods}
    distances = ", ".join(f"{m} {value:.3f}" for m, value in sorted(away.items(), key=lambda pair: pair[1]))
    return [
        "## Missing values: 90 % intervals",
        "Share of the hidden values inside their interval (0.90 is promised) and mean width, in standard deviations of "
        "the column; then the interval score, which is the width and a fine for what is missed (least is best).",
        table(
            ["table, holes", *(f"{m}: coverage, width" for m in methods), *(f"{m}: score" for m in methods)],
            body,
        ),
        f"Mean distance of the coverage from 0.90: {distances}.",
        "![Coverage against width](tabular-intervals.png)",
    ]


def protocol(results: dict[str, Any]) -> str:
    """What was done, and what was cut."""
    settings = results["settings"]
    patterns = [f"*{name}*: {PATTERNS[name]}" for name in unique(results["imputation"], "pattern")]
    lines = [
        "Outliers: 70 % of the rows, shuffled, are for training, the rest for testing, up to the caps. What is strange "
        "is a class that the training rows do not have; or, *permuted*, test rows of which every column is shuffled on "
        "its own: each value is ordinary, their combination is not.",
        f"Missing values: everybody fills the table that it is fitted to (`fit_transform`), and is asked only about "
        f"entries that were hidden: {'; '.join(patterns)}.",
        "Constant columns are removed; columns are in units of their deviation over the rows before anything was "
        "hidden. UCI tables: the features, without the target.",
        f"Intervals are mean ± 1.645 deviations: ours `impute(...).std`; {ITERATIVE}'s over {DRAWS} draws of one with "
        "`sample_posterior=True` (its default regressor, `BayesianRidge`); the column's own deviation for the mean. "
        "`KNNImputer` has none.",
        f"*PCA* is the squared distance to the components that explain {EXPLAINED:.0%} of the variance; the code of "
        f"*{OURS_HALF}* has half as many numbers as there are columns (at least 2, at most 10), as "
        "`LaplacianImputer` does by default, instead of 2. `LocalOutlierFactor` with `novelty=True`.",
        f"Size *{results['size']}*: {len(unique(results['outliers'], 'repetition'))} repetitions, at most "
        f"{settings['max_train']} training rows for outliers and {settings['max_rows']} rows with holes. "
        "`--full` has 20 repetitions of up to 5,000 rows, all columns of breast cancer, and energy efficiency, which "
        "was looked at in choosing (see below); it has not been run here.",
    ]
    return "\n".join(f"- {line}" for line in lines)
