"""`tabular`: outliers and missing values of real tables, against scikit-learn's own estimators.

Everybody is fitted to the same rows with default settings, so that differences are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marquis_experiments.cells import cell, write_json
from marquis_experiments.tabular_data import MEANS, PATTERNS, hidden_table, outlier_table
from marquis_experiments.tabular_methods import DETECTORS, IMPUTERS, imputation_scores, outlier_scores
from marquis_experiments.tabular_report import write_report

PERMUTED = "permuted"


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        outliers: Tables with what is strange in them: a class, or "permuted".
        imputed: Tables whose holes are filled.
        patterns: Of holes; see `tabular_data.PATTERNS`.
        repetitions: Fresh splits and holes of each.
        max_train: Training rows at most, for outliers.
        max_test: Test rows at most, ordinary and strange ones each.
        max_rows: Rows at most of a table with holes.
    """

    outliers: tuple[tuple[str, int | str], ...]
    imputed: tuple[str, ...]
    patterns: tuple[str, ...] = tuple(PATTERNS)
    repetitions: int = 5
    max_train: int = 250
    max_test: int = 150
    max_rows: int = 150


BREAST_CANCER = (("breast cancer", 0),)
WINE = (("wine", 0), ("wine", 1), ("wine", 2))
SETTINGS = {
    "quick": Settings((("wine", 1),), ("wine",), ("30 %",), repetitions=1, max_train=60, max_test=40, max_rows=80),
    "default": Settings(
        (
            *BREAST_CANCER,
            *WINE,
            *((name, PERMUTED) for name in ("uci/concrete", "uci/wine", "diabetes", "uci/protein")),
        ),
        ("diabetes", MEANS, "uci/concrete", "wine", "uci/wine", "uci/protein"),
    ),
    "full": Settings(
        (*BREAST_CANCER, *WINE, *((f"uci/{name}", PERMUTED) for name in ("concrete", "energy", "protein", "wine"))),
        ("wine", "diabetes", "breast cancer", "uci/concrete", "uci/energy", "uci/protein", "uci/wine"),
        repetitions=20,
        max_train=5000,
        max_test=1000,
        max_rows=5000,
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/tabular",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; split by split over all tables, so that a stopped run shows all."""
    settings = SETTINGS[size]
    folder = Path(out) / size
    results: dict[str, Any] = {"size": size, "settings": asdict(settings), "outliers": [], "imputation": []}
    started = time.time()
    for repetition in range(settings.repetitions):
        for name, strange in settings.outliers:
            results["outliers"] += detected(folder, settings, name, strange, repetition, data_dir)
            say(f"[{time.time() - started:5.0f} s] split {repetition}: outliers of {name} ({strange})")
        for name in settings.imputed:
            for pattern in settings.patterns:
                results["imputation"] += filled(folder, settings, name, pattern, repetition, data_dir)
                say(f"[{time.time() - started:5.0f} s] split {repetition}: holes of {name} ({pattern})")
        write_json(folder / "results.json", results)
        write_report(folder, results)
    return folder / "tabular.md"


def detected(
    folder: Path, settings: Settings, name: str, strange: int | str, repetition: int, data_dir: str | Path | None
) -> list[dict[str, Any]]:
    """One split of one table: a row for each method."""
    where: dict[str, Any] = {"table": name, "strange": strange, "repetition": repetition}
    where |= {"max_train": settings.max_train, "max_test": settings.max_test}
    table = outlier_table(name, strange, repetition, settings.max_train, settings.max_test, data_dir)
    rows = []
    for method in DETECTORS:
        key = f"outliers-{name}-{strange}-{method}-r{repetition}"
        row = cell(folder / "cells", _file(key), where | {"method": method} | _ours(method), lambda m=method: {
            **outlier_scores(m, table, repetition),
            "rows": [len(table.train), len(table.inside), len(table.outside)],
            "columns": table.train.shape[1],
        })  # fmt: skip
        rows.append(row)
    return rows


def filled(
    folder: Path, settings: Settings, name: str, pattern: str, repetition: int, data_dir: str | Path | None
) -> list[dict[str, Any]]:
    """One choice of rows of one table, with one pattern of holes: a row for each method."""
    where: dict[str, Any] = {"table": name, "pattern": pattern, "repetition": repetition}
    where |= {"max_rows": settings.max_rows}
    table = hidden_table(name, pattern, repetition, settings.max_rows, data_dir)
    rows = []
    for method in IMPUTERS:
        key = f"holes-{name}-{pattern}-{method}-r{repetition}"
        row = cell(folder / "cells", _file(key), where | {"method": method} | _ours(method), lambda m=method: {
            **imputation_scores(m, table, repetition),
            "rows": len(table.truth),
            "columns": table.truth.shape[1],
        })  # fmt: skip
        rows.append(row)
    return rows


def _ours(method: str) -> dict[str, Any]:
    """The default settings of our estimators, so that other defaults are computed anew."""
    if "Laplacian" not in method and "longer" not in method:
        return {}
    from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer

    estimators = [LaplacianAutoencoder(), LaplacianImputer()]
    return {"defaults": [{key: repr(value) for key, value in made.get_params().items()} for made in estimators]}


def _file(key: str) -> str:
    """A name without what a file's name should not have."""
    return "".join(letter if letter.isalnum() else "-" for letter in key)
