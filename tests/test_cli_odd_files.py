"""Odd files, folders and numbers given to the commands: what can be used is used exactly, the rest is one line."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from cli_commands import SMALL, exit_code, one_line

NAMES = list("abcdef")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two finished runs, which are only read: on digits, and on a table with holes."""
    folder = tmp_path_factory.mktemp("kept")
    wine = load_wine(as_frame=True).frame.drop(columns="target").iloc[:, :6]  # type: ignore[union-attr]
    wine.columns = NAMES
    wine.mask(np.random.RandomState(0).rand(*wine.shape) < 0.05).to_csv(folder / "wine.csv", index=False)
    quick = ["1" if word == "2" else word for word in SMALL]
    for name, data in (("digits", "digits"), ("wine", folder / "wine.csv")):
        with contextlib.redirect_stdout(io.StringIO()):
            assert exit_code("train", "lae", "--data", data, "--out", folder / name, *quick) == 0
    return folder


@pytest.fixture
def table(kept) -> pd.DataFrame:
    return pd.read_csv(kept / "wine.csv")[:30]


def refused(said: tuple[int, str, str], *texts: str, out: str = "out.csv") -> None:
    """One line, and nothing is left behind: neither the result nor a part of it."""
    one_line(said, *texts)
    assert not Path(out).exists() and not list(Path().rglob(".part-*"))


# ---- what comes in


def test_observed_numbers_come_out_as_they_went_in(marquis, kept, table):
    """Also those that 32 bits cannot hold: people find their rows again by them."""
    given = table.assign(e=16_777_217.0 + np.arange(30), f=0.1)
    given.loc[3, "a"] = np.nan
    given.to_csv("given.csv", index=False)
    given.to_parquet("given.parquet")
    for name in ("given.csv", "given.parquet"):
        assert marquis("impute", kept / "wine", name, "--out", "out.csv", "--samples", "2", "--force")[0] == 0
        filled = pd.read_csv("out.csv")
        for column in NAMES:
            seen = given[column].notna()
            assert np.array_equal(filled[column][seen], given[column][seen])
        assert filled[NAMES].notna().all().all()
    assert ",0.1," in Path("out.csv").read_text().splitlines()[1]
    given.assign(c=1e39).to_csv("large.csv", index=False)
    Path("out.csv").unlink()
    refused(marquis("impute", kept / "wine", "large.csv", "--out", "out.csv"), "large.csv", "row 0", "too large")
