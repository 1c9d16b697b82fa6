"""Tables of the page of `claims`: a line for every model, means over seeds, paired differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from marquis_experiments.pages import table

Row = dict[str, Any]
Score = Callable[[Row], float]

DEFAULT = "noise learnt, prior 1, T = 0.01"
FIT: dict[str, tuple[Score, str]] = {
    "error": (lambda row: row["error"], ".2f"),
    "log p, own noise": (lambda row: row["log_prob"], ".1f"),
    "log p, noise refitted": (lambda row: row["refitted_log_prob"], ".1f"),
    "90 % intervals hold": (lambda row: row["coverage"], ".3f"),
}
LEARNT: dict[str, tuple[Score, str]] = {
    "noise precision": (lambda row: row.get("noise", float("nan")), ".3g"),
    "prior precision": (lambda row: row.get("prior", float("nan")), ".3g"),
    "size of a weight": (lambda row: row["weight_size"], ".3f"),
}


def of(rows: list[Row], label: str) -> list[Row]:
    """The cells of one line that did not fail."""
    return [row for row in rows if row["label"] == label and "failed" not in row]


def average(rows: list[Row], label: str, score: Score) -> float:
    """Mean over the seeds; NaN where every cell failed."""
    own = [score(row) for row in of(rows, label)]
    return mean(own) if own else float("nan")


def shown(values: Sequence[float], form: str) -> str:
    """Mean and, of several seeds, standard deviation."""
    if not values or values[0] != values[0]:
        return "–"
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{spread}"


def lines(rows: list[Row], columns: dict[str, tuple[Score, str]]) -> str:
    """A table with a line for every label, in the order of the cells."""
    body = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = of(rows, label)
        name = f"**{label}**" if label == DEFAULT else label
        body.append([name, *(shown([score(row) for row in own], form) for score, form in columns.values())])
    return table(["model", *columns], body)


def outliers(rows: list[Row]) -> dict[str, tuple[Score, str]]:
    """Columns of the AUROCs that the cells have."""
    columns: dict[str, tuple[Score, str]] = {}
    first = next(row for row in rows if "failed" not in row)
    for name in first["auroc"]:
        for score in ("output", "latent", "nll"):
            words = {"output": "output", "latent": "latent", "nll": "-log p"}[score]
            columns[f"{name}, {words}"] = (lambda row, n=name, s=score: row["auroc"][n][s], ".2f")
    return columns


def difference(rows: list[Row], first: str, second: str, score: Score) -> tuple[float, float]:
    """Mean over the seeds of `first - second`, paired, and its standard error."""
    by_seed = {row["seed"]: score(row) for row in of(rows, second)}
    gaps = [score(row) - by_seed[row["seed"]] for row in of(rows, first) if row["seed"] in by_seed]
    if not gaps:
        return float("nan"), float("nan")
    return mean(gaps), stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")


def gap_words(gap: tuple[float, float], unit: str = "nats") -> str:
    """`+3.1 ± 0.4 nats`."""
    error = "" if gap[1] != gap[1] else f" ± {gap[1]:.1f}"
    return f"{gap[0]:+.1f}{error} {unit}"


def failures(rows: list[Row]) -> list[str]:
    """What went wrong, in the model's own words."""
    broken = {row["label"]: row["failed"] for row in rows if "failed" in row}
    return [f"Failed: *{label}*: {words}" for label, words in broken.items()]


def log_prob(row: Row) -> float:
    """With the model's own noise."""
    return row["log_prob"]


def refitted(row: Row) -> float:
    """With the noise refitted."""
    return row["refitted_log_prob"]


def error(row: Row) -> float:
    """Of the mean reconstruction."""
    return row["error"]
