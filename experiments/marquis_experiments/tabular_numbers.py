"""Scores of the experiment `tabular` by table, method and split; paired differences."""

from __future__ import annotations

from statistics import mean
from typing import Any

from marquis_experiments.pages import standard_error

Row = dict[str, Any]
SURE = 2.0
"""A mean difference counts as one if it is so many of its standard errors from zero."""


def task(row: Row) -> str:
    """What is strange in which table, in words."""
    return f"{short(row['table'])}, {'columns permuted' if row['strange'] == 'permuted' else named(row)}"


def named(row: Row) -> str:
    """Name of the class that is strange."""
    return "malignant" if row["table"] == "breast cancer" else f"class {row['strange']}"


def short(name: str) -> str:
    """Name of a table: UCI's wine has other columns than scikit-learn's."""
    return {"uci/wine": "red wine"}.get(name, name.removeprefix("uci/"))


def numbers(rows: list[Row], score: str, **where: Any) -> list[float]:
    """A score of the rows that have these values, by split."""
    chosen = [row for row in rows if all(row[key] == value for key, value in where.items())]
    return [row[score] for row in sorted(chosen, key=lambda row: row["repetition"])]


def compared(ours: list[float], theirs: list[float], larger_is_better: bool) -> tuple[int, float, float]:
    """1 if we are better, -1 if we are worse, 0 if the paired difference is not sure; the difference and its error."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    value, doubt = mean(differences), standard_error(differences)
    if len(differences) < 2 or abs(value) <= SURE * doubt:
        return 0, value, doubt
    return (1 if (value > 0) == larger_is_better else -1), value, doubt


def unique(rows: list[Row], key: str) -> list[Any]:
    """Different values in their order."""
    return list(dict.fromkeys(row[key] for row in rows))


def outlier_places(outliers: list[Row]) -> list[dict[str, Any]]:
    """Tables with what is strange in them."""
    return [
        dict(place) for place in dict.fromkeys((("table", r["table"]), ("strange", r["strange"])) for r in outliers)
    ]


def hole_places(holes: list[Row]) -> list[dict[str, Any]]:
    """Tables with patterns."""
    return [dict(place) for place in dict.fromkeys((("table", r["table"]), ("pattern", r["pattern"])) for r in holes)]
