"""`tabular`: outliers and missing values of real tables, against scikit-learn's own estimators.

Everybody is fitted to the same fresh split of the rows with default settings, so that differences are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marquis.experiments.cells import cell, write_json
from marquis.experiments.tabular_data import MEANS, TRAINED_ON, hidden_table, outlier_table
from marquis.experiments.tabular_methods import DETECTORS, IMPUTERS, imputation_scores, outlier_scores
from marquis.experiments.tabular_report import write_report

PERMUTED = "permuted"


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        outliers: Tables with what is strange in them: a class, or "permuted".
        imputed: Tables whose holes are filled.
        trained_on: Patterns of holes of the training rows; see `tabular_data.TRAINED_ON`.
        repetitions: Fresh splits of each.
        max_train: Training rows at most.
        max_test: Test rows at most, ordinary and strange ones each.
    """

    outliers: tuple[tuple[str, int | str], ...]
    imputed: tuple[str, ...]
    trained_on: tuple[str, ...] = tuple(TRAINED_ON)
    repetitions: int = 5
    max_train: int = 250
    max_test: int = 150


BREAST_CANCER = (("breast cancer", 0),)
WINE = (("wine", 0), ("wine", 1), ("wine", 2))
SETTINGS = {
    "quick": Settings((("wine", 1),), ("wine",), ("30 %",), repetitions=1, max_train=60, max_test=40),
    "default": Settings(
        (*BREAST_CANCER, *WINE, ("uci/concrete", PERMUTED), ("uci/wine", PERMUTED)),
        ("wine", "diabetes", MEANS, "uci/concrete"),
    ),
    "full": Settings(
        (*BREAST_CANCER, *WINE, *((f"uci/{name}", PERMUTED) for name in ("concrete", "energy", "protein", "wine"))),
        ("wine", "diabetes", "breast cancer", "uci/concrete", "uci/energy", "uci/protein", "uci/wine"),
        repetitions=20,
        max_train=5000,
        max_test=1000,
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
            for pattern in settings.trained_on:
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
    folder: Path, settings: Settings, name: str, trained_on: str, repetition: int, data_dir: str | Path | None
) -> list[dict[str, Any]]:
    """One split of one table with one pattern of holes to learn from: a row for each method."""
    where: dict[str, Any] = {"table": name, "trained_on": trained_on, "repetition": repetition}
    where |= {"max_train": settings.max_train, "max_test": settings.max_test}
    table = hidden_table(name, trained_on, repetition, settings.max_train, settings.max_test, data_dir)
    rows = []
    for method in IMPUTERS:
        key = f"holes-{name}-{trained_on}-{method}-r{repetition}"
        row = cell(folder / "cells", _file(key), where | {"method": method} | _ours(method), lambda m=method: {
            "scores": imputation_scores(m, table, repetition),
            "rows": [len(table.train), len(table.truth)],
            "columns": table.train.shape[1],
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
