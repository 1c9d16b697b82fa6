"""The study `tabular`: outliers and missing values of real tables, against scikit-learn's estimators.

All methods are fitted to the same rows with default settings, so that differences are paired.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from marquis_experiments.common.study import Run, Study
from marquis_experiments.tables.data import CONSTRUCTED, MEANS, hidden_table, outlier_table
from marquis_experiments.tables.methods import DETECTORS, IMPUTER, IMPUTERS, imputation_scores, outlier_scores
from marquis_experiments.tables.page import ROUND, draw, values

CLASSES = (("breast cancer", 0), ("wine", 0), ("wine", 1), ("wine", 2))
"""Tables with the class whose rows are the outliers."""


def permuted(*tables: str) -> tuple[tuple[str, str], ...]:
    """Return tables whose outliers are test rows with every column permuted."""
    return tuple((name, "permuted") for name in tables)


def measure(run: Run) -> dict[str, Any]:
    """Score all methods, split by split over all tables of each group."""
    settings = run.settings
    results: dict[str, Any] = {"settings": settings.plain(), "outliers": [], "imputation": []}
    for group, part in settings.groups.items():
        # Two groups hold the same tables at other sizes: their cells have a folder each.
        cells = run.cells / group if group in ("small", "large") else run.cells
        here = replace(run, settings=settings.replace(**part), cells=cells)
        for repetition in range(settings.repetitions):
            for name, outliers in part["outliers"]:
                rows = detected(here, name, outliers, repetition)
                results["outliers"] += [{**row, "group": group} for row in rows]
                run.say(f"{group}, split {repetition}: outliers of {name} ({outliers})")
            for name in part["imputed"]:
                for pattern in part["patterns"]:
                    rows = filled(here, name, pattern, repetition)
                    results["imputation"] += [{**row, "group": group} for row in rows]
                    run.say(f"{group}, split {repetition}: missing values of {name} ({pattern})")
    return results


def detected(run: Run, name: str, outliers: int | str, repetition: int) -> list[dict[str, Any]]:
    """Return a row for each detector on one split of one table."""
    caps = run.settings.only("max_train", "max_test")
    where = {"table": name, "strange": outliers, "repetition": repetition, **caps}
    table = outlier_table(name, outliers, repetition, **caps, data_dir=run.data_dir)
    size = {"rows": [len(table.train), len(table.inside), len(table.outside)], "columns": table.train.shape[1]}
    return [
        run.cell(
            _file(f"outliers-{name}-{outliers}-{method}-r{repetition}"),
            {**where, "method": method, **_defaults(method)},
            lambda method=method: {**outlier_scores(method, table, repetition), **size},
            "outliers",
        )
        for method in DETECTORS
    ]


def filled(run: Run, name: str, pattern: str, repetition: int) -> list[dict[str, Any]]:
    """Return a row for each imputer on one choice of rows of one table with one pattern of missing values."""
    cap = run.settings.only("max_rows")
    where = {"table": name, "pattern": pattern, "repetition": repetition, **cap}
    table = hidden_table(name, pattern, repetition, **cap, data_dir=run.data_dir)
    size = {"rows": len(table.truth), "columns": table.truth.shape[1]}
    return [
        run.cell(
            _file(f"holes-{name}-{pattern}-{method}-r{repetition}"),
            {**where, "method": method, **_defaults(method)},
            lambda method=method: {**imputation_scores(method, table, repetition), **size},
            "imputation",
        )
        for method in IMPUTERS
    ]


def _defaults(method: str) -> dict[str, Any]:
    """Return the default settings of our estimators, so that cells with other defaults are computed again."""
    if method == "KNNImputer":
        return {"intervals": "90 % of hidden entries"}
    if "Laplacian" not in method and "longer" not in method:
        return {}
    from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer

    estimators = [LaplacianAutoencoder(), LaplacianImputer()]
    defaults = [{key: repr(value) for key, value in made.get_params().items()} for made in estimators]
    return {
        "defaults": defaults,
        "round": ROUND,
        **({"intervals": "90 % of hidden entries"} if method == IMPUTER else {}),
    }


def _file(key: str) -> str:
    """Return a file name in which only letters and digits are left as they are."""
    return "".join(letter if letter.isalnum() else "-" for letter in key)


CONFIRMATION = (
    "penguins", "auto", "college", "hitters", "carseats", "smarket", "segment", "phishing", "trump approval", "star98",
    "fair", "macrodata", "iris", "digits", "uci/naval",
)  # fmt: skip
"""Tables that no choice was made on; see PROTOCOL.md."""
SMALL = tuple(name for name in CONFIRMATION if name != "digits")
"""Tables of which 100 rows can be drawn without a constant column."""
LARGE = ("shuttle", "randhie", "uci/naval")
FRESH = (
    "credit", "bikeshare", "oj", "publication", "weekly", "sp500", "chick weights", "grunfeld", "elnino",
    "interest and inflation", "affairs",
)  # fmt: skip
"""Tables that nobody had used when the intervals were calibrated anew."""
DEVELOPMENT = {
    "outliers": (*CLASSES, *permuted("uci/concrete", "uci/wine", "diabetes", "uci/protein")),
    "imputed": ("diabetes", MEANS, "uci/concrete", "wine", "uci/wine", "uci/protein"),
    "patterns": ("10 %", "30 %", "50 %", "large"),
    "max_train": 250,
    "max_test": 150,
    "max_rows": 150,
}

STUDY = Study(
    "tabular",
    Path(__file__).with_name("page.md"),
    measure,
    values,
    draw,
    default={
        "repetitions": 5,
        "groups": {
            "development": DEVELOPMENT,
            "confirmation": {
                "outliers": permuted(*CONFIRMATION),
                "imputed": CONFIRMATION,
                "patterns": ("20 %",),
                "max_train": 400,
                "max_test": 200,
                "max_rows": 400,
            },
            "small": {
                "outliers": permuted(*SMALL),
                "imputed": SMALL,
                "patterns": ("20 %",),
                "max_train": 100,
                "max_test": 100,
                "max_rows": 100,
            },
            "large": {
                "outliers": permuted(*LARGE),
                "imputed": LARGE,
                "patterns": ("20 %",),
                "max_train": 7000,
                "max_test": 1000,
                "max_rows": 10000,
            },
            "constructed": {
                "outliers": permuted(*CONSTRUCTED),
                "imputed": CONSTRUCTED,
                "patterns": ("20 %",),
                "max_train": 400,
                "max_test": 200,
                "max_rows": 400,
            },
            "fresh": {
                "outliers": permuted(*FRESH),
                "imputed": FRESH,
                "patterns": ("20 %",),
                "max_train": 400,
                "max_test": 200,
                "max_rows": 400,
            },
        },
    },
    quick={
        "repetitions": 1,
        "groups": {
            name: {
                "outliers": (("wine", 1),),
                "imputed": ("wine",),
                "patterns": ("30 %",),
                "max_train": 60,
                "max_test": 40,
                "max_rows": 80,
            }
            for name in ("development", "confirmation")
        },
    },
)
