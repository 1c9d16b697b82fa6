"""Odd files, folders and numbers given to the commands: what can be used is used exactly, the rest is one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
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


# ---- what goes out


def test_a_column_of_ones_own_called_std_is_not_overwritten(marquis, kept, table):
    """`a_std` of the user's would be replaced by the error bars of `a`."""
    run = Path(shutil.copytree(kept / "wine", "run"))
    held = json.loads((run / "config.json").read_text())
    held["columns"] = ["a", "a_std", *NAMES[2:]]
    (run / "config.json").write_text(json.dumps(held))
    table = table.rename(columns={"b": "a_std"}).assign(a=[np.nan, *[13.0] * 29], a_std=2.0)
    table.to_csv("given.csv", index=False)
    words = ("impute", run, "given.csv", "--samples", "2", "--out")
    for out in ("out.csv", "out.parquet"):
        refused(marquis(*words, out), "given.csv", "a column a_std", ".npz", out=out)
    assert marquis(*words, "out.npz")[0] == 0  # has no such names
    table.assign(a=13.0).to_csv("given.csv", index=False)  # no holes in a: no error bars of it
    assert marquis(*words, "out.csv")[0] == 0
    assert (pd.read_csv("out.csv")["a_std"] == 2.0).all()


@pytest.mark.parametrize("command", ["impute", "embed", "score"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_what_is_read_is_never_overwritten(marquis, kept, table, command, force):
    table.to_csv("mine.csv", index=False)
    before = Path("mine.csv").read_bytes()
    Path("link.csv").symlink_to("mine.csv")
    for out in ("mine.csv", "./mine.csv", "link.csv"):
        one_line(marquis(command, kept / "wine", "mine.csv", "--out", out, *force), "the file that is read", "another")
    assert Path("mine.csv").read_bytes() == before and Path("link.csv").is_symlink()


@pytest.mark.parametrize("command", ["impute", "embed", "score", "sample"])
def test_places_that_cannot_be_written(marquis, kept, command, monkeypatch):
    words = (command, kept / "wine", *(() if command == "sample" else (kept / "wine.csv",)), "--out")
    refused(marquis(*words, "nowhere/out.csv"), "the folder nowhere does not exist", "make it")
    refused(marquis(*words, "out.txt"), "out.txt", ".csv or .parquet or .npz", out="out.txt")
    Path("folder.csv").mkdir()
    one_line(marquis(*words, "folder.csv"), "folder.csv is a folder")
    one_line(marquis(*words, f"{'long' * 100}.csv"), "longlong", "File name too long")
    Path("sealed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sealed")  # root may write anywhere
    refused(marquis(*words, "sealed/out.csv"), "sealed is read-only", "choose another", out="sealed/out.csv")


@pytest.mark.parametrize("out", ["out.csv", "out.parquet", "out.npz"])
def test_a_disk_that_is_full(marquis, kept, monkeypatch, out):
    """Noticed only while writing: still one line, and what was there before is there still."""
    Path(out).write_text("mine")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = marquis("sample", kept / "wine", "-n", "2", "--out", out, "--force")
    one_line(said, f"{out} cannot be written", "No space left")
    assert Path(out).read_text() == "mine" and [path.name for path in Path().iterdir()] == [out]


def test_a_disk_that_is_full_when_evaluating(marquis, kept, monkeypatch):
    Path("results").mkdir()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    words = ("evaluate", kept / "wine", "--samples", "2", "--out", "results")
    one_line(marquis(*words), "results/evaluation.json cannot be written", "No space left")
    assert not list(Path("results").iterdir())
