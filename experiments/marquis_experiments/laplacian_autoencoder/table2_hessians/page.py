"""Tables of the page of `hessians`, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from marquis_experiments.common.page import Row, verdict, yes
from marquis_experiments.laplacian_autoencoder.describe import failures, label, training

PAPER = {
    "posthoc-kronecker": (9683.9, 121.6),
    "posthoc-exact": (283.3, 27.1),
    "posthoc-approximate": (232.0, 26.6),
    "online-exact": (25.8, 25.7),
    "online-approximate": (25.9, 25.8),
}
"""LAE Table 2: "-log p" and MSE. Its last "-log p" is misprinted ("256.9+04")."""
MAIN = (
    *("ae", "posthoc-kronecker-unit-noise", "posthoc-exact-unit-noise", "posthoc-approximate-unit-noise"),
    *("posthoc-kronecker", "posthoc-exact", "online-exact", "online-approximate", "online-sketched"),
    *("online-exact-paper-code", "online-exact-paper"),
)
"""Rows of the first table; the others are below "Details"."""
CLOSE = 0.02
"""The online claim holds if sampled networks are at most this share worse than their mean."""


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    order, settings = [tuple(job) for job in results["planned"]], results["settings"]
    rows = sorted(results["rows"], key=lambda row: order.index((row["name"], row["seed"])))
    names = list(dict.fromkeys(row["name"] for row in rows if not row["failed"]))
    paper = PAPER if settings["recipe"]["data"] == "mnist" else {}  # other data do not compare
    posthoc, factored, online, sketched, plain = (
        averages(rows, name)
        for name in (
            *("posthoc-exact-unit-noise", "posthoc-kronecker-unit-noise"),
            *("online-exact", "online-sketched", "ae"),
        )
    )
    gap = posthoc["nlp"] > 2 * posthoc["mse"]
    closed = online["nlp"] < (1 + CLOSE) * online["mse"]
    level = bool(paper) and online["nlp"] <= PAPER["online-exact"][0] + 0.2
    planned = {tuple(job) for job in results["planned"]} - {(row["name"], row["seed"]) for row in rows}
    return {
        "training": training(settings["recipe"]),
        "posthoc": posthoc,
        "factored": factored,
        "learnt": averages(rows, "posthoc-exact") if "posthoc-exact" in names else None,
        "linear": averages(rows, "posthoc-kronecker-linearised") if "posthoc-kronecker-linearised" in names else None,
        "stopped": settings["recipe"]["validation"] > 0,
        "seeds": seeds_of(rows, results["planned"]),
        "online": online,
        "sketched": sketched,
        "plain": plain,
        "verdict": verdict(gap, closed, level),
        "holds": {
            "gap": yes(gap),
            "factored": yes(factored["nlp"] > posthoc["nlp"]),
            "closed": yes(closed),
            "level": yes(level),
        },
        "main": {row_label(name): line(rows, name, paper) for name in MAIN if name in names},
        "densities": {row_label(name): line(rows, name, paper) for name in names},
        "image_error": next(row for row in rows if row["name"] == "online-sketched" and not row["failed"]),
        "failed": failures(rows, "name"),
        "missing": missing(planned),
        "minutes": (sum(row["train_seconds"] + row.get("evaluation_seconds", 0) for row in rows)) / 60,
    }


def seeds_of(rows: list[Row], planned: list[list[Any]]) -> str:
    """Return how many seeds the rows have."""
    counts = sorted({sum(row["name"] == name for row in rows) for name in {name for name, _ in planned}} - {0})
    if len(counts) == 1:
        return f"{counts[0]} seed(s)"
    return f"{counts[-1]} seed(s) of the main rows and {counts[0]} of the others"


def missing(planned: set[tuple[str, int]]) -> str:
    """Return what has not been run, the first seed row by row, the others by their number; empty if there is none."""
    first = sorted(row_label(name) for name, seed in planned if seed == 0)
    others = sum(seed > 0 for _, seed in planned)
    parts = [f"of the first seed {'; '.join(first)}"] if first else []
    parts += [f"{others} rows of further seeds"] if others else []
    return ", and ".join(parts) + "." if parts else ""


def averages(rows: list[Row], name: str) -> dict[str, float]:
    """Return the means over seeds of a row's numbers."""
    chosen = [row for row in rows if row["name"] == name and not row["failed"]]
    return {key: mean(row[key] for row in chosen) for key in ("nlp", "mse", "variance", "log_p_refitted")}


def shown(rows: list[Row], name: str, key: str, digits: int = 1) -> str:
    """Return mean ± standard deviation over seeds."""
    numbers = [row[key] for row in rows if row["name"] == name and not row["failed"]]
    digits = 0 if abs(mean(numbers)) >= 1000 else digits
    return f"{mean(numbers):,.{digits}f}" + (f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else "")


def row_label(name: str) -> str:
    """Return the label of a row; that of a post-hoc row says which noise it has."""
    noise = ", noise learnt" if name.startswith("posthoc") and not name.endswith("-unit-noise") else ""
    if name.endswith("-linearised"):
        return f"{label(name.removesuffix('-linearised'))}{noise}, linearised"
    return label(name) + noise


def line(rows: list[Row], name: str, paper: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Return a row's numbers as texts: mean ± standard deviation over seeds, the paper's, and the first seed's β, T."""
    base = name.removesuffix("-unit-noise").removesuffix("-code").removesuffix("-rate").removesuffix("-1e-4")
    base = base.removesuffix("-paper")
    first = next(row for row in rows if row["name"] == name and not row["failed"])
    single = {key: first[key] for key in ("noise_precision", "temperature", "prior_precision", "train_seconds")}
    return {
        **{key: shown(rows, name, key) for key in ("nlp", "mse", "log_p", "log_p_refitted")},
        **{key: "" if number is None else f"{number:.3g}" for key, number in single.items()},
        "seeds": sum(row["name"] == name for row in rows),
        "variance": f"{averages(rows, name)['variance']:,.3g}",
        "theirs": "{:,g} / {:,g}".format(*paper[base]) if base in paper else "",
    }
