"""Odd files, folders and numbers given to the commands: what can be used is used exactly, the rest is one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from helpers.commands import ONE_EPOCH, exit_code, one_line, write_config
from marquis.run import Run, TrainingSettings, directory

NAMES = list("abcdef")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two finished runs, which are only read: on digits, and on a table with holes."""
    folder = tmp_path_factory.mktemp("kept")
    wine = load_wine(as_frame=True).frame.drop(columns="target").iloc[:, :6]  # type: ignore[union-attr]
    wine.columns = NAMES
    wine.mask(np.random.RandomState(0).rand(*wine.shape) < 0.05).to_csv(folder / "wine.csv", index=False)
    for name, data in (("digits", "digits"), ("wine", folder / "wine.csv")):
        with contextlib.redirect_stdout(io.StringIO()):
            assert exit_code("train", "lae", "--data", data, "--out", folder / name, *ONE_EPOCH) == 0
    return folder


@pytest.fixture
def table(kept) -> pd.DataFrame:
    return pd.read_csv(kept / "wine.csv", nrows=30)


def refused(said: tuple[int, str, str], *texts: str, out: str = "out.csv") -> None:
    """One line, and nothing is left behind: neither the result nor a part of it."""
    one_line(said, *texts)
    assert not Path(out).exists() and not list(Path().rglob(".part-*"))


# ---- what comes in


def test_columns_far_from_zero_are_learnt_from_and_read_in_their_own_precision(marquis):
    """Times in seconds differ by less than 32 bits can tell at 1.6e9."""
    x = np.random.RandomState(0).randn(200)
    passed = pd.DataFrame({"time": 1.6e9 + 100 * x, "other": x, "constant": 1.6e9 + 0.1})
    passed.to_csv("times.csv", index=False)
    assert marquis("train", "ae", "--data", "times.csv", "--out", "times", *ONE_EPOCH)[0] == 0
    run = Run.open("times")
    assert run.scaling is not None
    np.testing.assert_allclose(run.scaling.scale, [100 * x.std(), x.std(), 1.0], rtol=0.2)  # of the training rows
    assert float(run.scaling.scale[2]) == 1.0
    run.data_module.setup()
    for rows in (run.data_module.train.x, run.read("times.csv").x):
        assert rows.dtype == torch.float32
        np.testing.assert_allclose(rows[:, 0], rows[:, 1], atol=1e-5)  # the same numbers in other units


def test_images_in_other_units_are_refused(marquis, kept):
    """Bytes as floats; a bright image is no reason, and runs from before the check are read as ever."""
    images = np.random.RandomState(0).rand(3, 1, 8, 8)
    np.save("bytes.npy", 255 * images)
    np.save("bright.npy", 3 * images)
    for command in ("score", "embed"):
        refused(marquis(command, kept / "digits", "bytes.npy", "--out", "out.csv"), "255", "up to 1;", "same units")
    assert marquis("score", kept / "digits", "bright.npy", "--out", "bright.csv")[0] == 0
    shutil.copytree(kept / "digits", "old")
    config = json.loads(Path("old/config.json").read_text())
    assert config.pop("brightest") == 1.0
    write_config("old", config)
    assert marquis("score", "old", "bytes.npy", "--out", "old.csv")[0] == 0


def test_images_from_0_to_255_in_training_and_to_1_afterwards_are_refused_too(marquis):
    images = np.random.RandomState(0).rand(30, 1, 8, 8)
    for name, held in (("bytes", 255 * images), ("given", images), ("black", 0 * images), ("dim", 5 * images)):
        np.save(f"{name}.npy", held)
    np.save("uint8.npy", (255 * images).astype(np.uint8))  # which are read as 0 to 1
    assert marquis("train", "ae", "--data", "bytes.npy", "--out", "run", "--architecture", "dense", *ONE_EPOCH)[0] == 0
    for name in ("given.npy", "uint8.npy"):
        refused(marquis("score", "run", name, "--out", "out.csv"), "up to 0.99", "up to 25", "multiplying by 255")
    for name in ("black", "dim"):
        assert marquis("score", "run", f"{name}.npy", "--out", f"{name}.csv")[0] == 0


def test_images_stay_bytes_when_a_run_is_made(marquis, monkeypatch):
    """As floats they take four times the memory."""
    np.save("uint8.npy", np.random.RandomState(0).randint(0, 200, (30, 1, 8, 8)).astype(np.uint8))
    seen = []
    load = directory.load_rows
    monkeypatch.setattr(directory, "load_rows", lambda *args: seen.append(load(*args)) or seen[-1])
    run = Run.create("run", TrainingSettings("ae", "uint8.npy", architecture="dense", width=0.125))
    assert run.brightest == pytest.approx(199 / 255) and {data.stored.dtype for data in seen} == {torch.uint8}
    assert not any("x" in vars(data) for data in seen)  # a cached property, which was not asked for
    assert seen[0].x is vars(seen[0])["x"]  # and where it would have been seen


def test_filled_table_has_the_columns_of_the_file(marquis):
    """In their order, and with the target, which the model never saw."""
    x = np.random.RandomState(0).randn(80, 3)
    table = pd.DataFrame({"a": x[:, 0], "group": np.arange(80) % 3, "b": x[:, 1], "c": x[:, 2]})
    table.to_csv("table.csv", index=False)
    assert marquis("train", "ae", "--data", "table.csv", "--target", "group", "--out", "run", *ONE_EPOCH)[0] == 0
    requested = table[["c", "group", "b", "a"]].copy()
    requested.loc[4, "b"] = requested.loc[7, "c"] = np.nan
    requested.to_csv("asked.csv", index=False)
    assert marquis("impute", "run", "asked.csv", "--out", "filled.csv")[0] == 0
    filled = pd.read_csv("filled.csv")
    assert list(filled) == ["c", "group", "b", "a", "b_std", "c_std"]
    assert filled.notna().all(axis=None) and filled["b_std"][4] > 0
    pd.testing.assert_frame_equal(
        filled[requested.notna()][list(requested)], requested, check_dtype=False, check_exact=True
    )
    for name in ("table", "asked"):  # the target is called what the error bars would be: one of the two would be lost
        pd.read_csv(f"{name}.csv").rename(columns={"group": "b_std"}).to_csv(f"{name}.csv", index=False)
    text = ("--target", "b_std", "--out", "run", "--force", *ONE_EPOCH)
    assert marquis("train", "ae", "--data", "table.csv", *text)[0] == 0
    refused(marquis("impute", "run", "asked.csv", "--out", "out.csv"), "has a column b_std", "error bars of b")


def test_observed_numbers_come_out_as_they_went_in(marquis, kept, table):
    """Also those that 32 bits cannot hold: people find their rows again by them."""
    passed = table.assign(e=16_777_217.0 + np.arange(30), f=0.1)
    passed.loc[3, "a"] = np.nan
    passed.to_csv("given.csv", index=False)
    passed.to_parquet("given.parquet")
    for name in ("given.csv", "given.parquet"):
        assert marquis("impute", kept / "wine", name, "--out", "out.csv", "--samples", "2", "--force")[0] == 0
        filled = pd.read_csv("out.csv")
        for column in NAMES:
            seen = passed[column].notna()
            assert np.array_equal(filled[column][seen], passed[column][seen])
        assert not filled[NAMES].isna().to_numpy().any()
    assert ",0.1," in Path("out.csv").read_text().splitlines()[1]
    passed.assign(c=1e39).to_csv("large.csv", index=False)
    Path("out.csv").unlink()
    refused(marquis("impute", kept / "wine", "large.csv", "--out", "out.csv"), "large.csv", "row 0", "too large")


def write_odd_files(table: pd.DataFrame) -> None:
    """Of every kind, into the folder we are in."""
    for name, text in {
        "empty.csv": "",
        "header.csv": "a,b,c,d,e,f\n",
        "short.csv": "a,b,c,d,e,f\n1,2,3,4,5\n",
        "twice.csv": "a,a,c,d,e,f\n1,2,3,4,5,6\n",
        "comma.csv": "a;b;c;d;e;f\n1,5;2;3;4;5;6\n",
        "inf.csv": "a,b,c,d,e,f\n1,2,3,4,5,6\n1,2,inf,4,5,6\n",
        "notes.txt": "no table",
        "one.png": "no image",
    }.items():
        Path(name).write_text(text)
    Path("latin.csv").write_bytes("größe,b,c,d,e,f\n1,2,3,4,5,6\n".encode("latin-1"))
    table.to_csv("index.csv")
    table[table.a > 13].to_parquet("index.parquet")
    table.drop(columns="c").to_csv("less.csv", index=False)
    table.assign(more=1.0).to_csv("more.csv", index=False)
    table.assign(c="red").to_csv("words.csv", index=False)
    table.assign(c="red").to_parquet("words.parquet")
    table[:0].to_parquet("no-rows.parquet")
    Path("damaged.parquet").write_bytes(b"PAR1")
    x = table.to_numpy()
    np.save("flat.npy", x[:, 0])
    np.savez("several.npz", left=x, right=x)
    np.savez("single-target.npz", x=x, y=np.array(3))
    np.savez("words-target.npz", x=x, y=np.array(["red"] * len(x)))
    np.savez("words.npz", x=x.astype(str))
    np.savez("objects.npz", x=np.array([RunsCode()] * 3, dtype=object))
    np.save("objects.npy", np.array([RunsCode()] * 3, dtype=object))
    with zipfile.ZipFile("zip.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with open("claims.npy", "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**13, 6)}
        np.lib.format.write_array_header_1_0(file, header)


class RunsCode:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("code-was-run"),)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("empty.csv", ("no rows",)),
        ("header.csv", ("no rows",)),
        ("short.csv", ("line 2", "5 fields", "6")),
        ("twice.csv", ("two columns named 'a'",)),
        ("comma.csv", ("line 2", "column 'a'", "'1,5'")),
        ("inf.csv", ("row 1", "column 'c'", "infinite")),
        ("latin.csv", ("not text in UTF-8", "save it as UTF-8")),
        ("index.csv", ("column number 1 has no name", "index=False")),
        ("index.parquet", ("column number 7 has no name", "index=False")),
        ("less.csv", ("lacks c",)),
        ("more.csv", ("has more", "not there in training")),
        ("words.csv", ("line 2", "column 'c'", "not numeric")),
        ("words.parquet", ("column 'c'", "not numeric")),
        ("no-rows.parquet", ("no rows",)),
        ("damaged.parquet", ("truncated or corrupt",)),
        ("notes.txt", ("'.txt'", ".csv", "a folder of images")),
        ("one.png", ("'.png'", "give the folder it is in")),
        ("flat.npy", ("1 columns", "6 columns")),
        ("several.npz", ("left, right", "call the data x")),
        ("single-target.npz", ("30 rows", "a single number")),
        ("words-target.npz", ("the targets are <U3", "leave them out")),
        ("words.npz", ("only numbers",)),
        ("objects.npz", ("pickled Python objects, which are refused",)),
        ("objects.npy", ("pickled Python objects, which are refused",)),
        ("zip.npz", ("readme.txt", "no array")),
        ("claims.npy", ("claims.npy", "more than", "max_bytes")),
        ("digits", ("8x8", "6 columns")),
        ("nowhere.csv", ("does not exist",)),
        ("nowhere", ("data set 'nowhere' is not known",)),
    ],
)
def test_files_that_are_refused(marquis, kept, table, name, texts):
    write_odd_files(table)
    calls: list[tuple[tuple[object, ...], str]]
    calls = [((command, kept / "wine", name), "out.csv") for command in ("impute", "score", "embed")]
    calls.append((("evaluate", kept / "wine", "--ood", name), "."))
    there = set(Path().iterdir())
    for text, out in calls:
        refused(marquis(*text, "--out", out), "" if name == "digits" else name, *texts)
    assert set(Path().iterdir()) == there  # no results, and nothing that code in a file would have left


def test_paths_that_cannot_be_looked_at(marquis, kept):
    """The system refuses to look there: no traceback. (Too long a name stands for a folder of somebody else's.)"""
    long = "long" * 100
    for name in (f"{long}.csv", f"{long}/x.csv"):
        refused(marquis("embed", kept / "wine", name, "--out", "out.csv"), name, "does not exist")
    refused(marquis("embed", long, kept / "wine.csv", "--out", "out.csv"), long, "not a run")


def test_row_numbers_are_not_learnt(marquis, table):
    table.to_csv("index.csv")
    one_line(marquis("train", "ae", "--data", "index.csv", "--out", "run"), "column number 1 has no name")
    assert not Path("run").exists()


def test_a_parquet_column_without_values_is_missing(marquis, kept, table):
    table.assign(c=None).to_parquet("given.parquet")
    assert marquis("impute", kept / "wine", "given.parquet", "--out", "out.parquet", "--samples", "2")[0] == 0
    filled = pd.read_parquet("out.parquet")
    assert np.isfinite(filled["c"]).all() and (filled["c_std"] > 0).all()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_odd_names_of_columns(marquis, kept, table, separator):
    odd = ["x,y", "line\nbreak", 'say "hi"', "u;v", "tab\tbed", "größe"]
    run = Path(shutil.copytree(kept / "wine", "run"))
    held = json.loads((run / "config.json").read_text())
    write_config(run, {**held, "columns": odd})
    table.columns = odd
    table.loc[0, "x,y"] = np.nan
    table.to_csv("given.csv", index=False, sep=separator)
    assert marquis("impute", run, "given.csv", "--out", "out.csv", "--samples", "2")[0] == 0
    filled = pd.read_csv("out.csv")
    assert list(filled)[:6] == odd and "x,y_std" in filled
    pd.testing.assert_frame_equal(filled[odd].mask(table.isna()), table, check_exact=True)
    table.drop(columns="line\nbreak").to_csv("less.csv", index=False, sep=separator)
    refused(marquis("impute", run, "less.csv", "--out", "no.csv"), "less.csv lacks line break", out="no.csv")


@pytest.mark.parametrize("command", ["impute", "score", "embed"])
def test_rows_that_say_little(marquis, kept, command):
    """A row or a column may miss everything: only a row without any value has no score and code."""
    for rows in ("1,2,,4,5,6\n", ",,,,,\n", "1,2,,4,5,6\n,3,,4,5,6\n"):
        Path("given.csv").write_text("a,b,c,d,e,f\n" + rows)
        assert marquis(command, kept / "wine", "given.csv", "--out", "out.csv", "--samples", "2", "--force")[0] == 0
        written = pd.read_csv("out.csv").to_numpy()
        unknown = rows == ",,,,,\n" and command != "impute"
        assert np.isnan(written).all() if unknown else np.isfinite(written).all()


# ---- what goes out


def test_a_column_of_ones_own_called_std_is_not_overwritten(marquis, kept, table):
    """`a_std` of the user's would be replaced by the error bars of `a`."""
    run = Path(shutil.copytree(kept / "wine", "run"))
    held = json.loads((run / "config.json").read_text())
    held["columns"] = ["a", "a_std", *NAMES[2:]]
    write_config(run, held)
    table = table.rename(columns={"b": "a_std"}).assign(a=[np.nan, *[13.0] * 29], a_std=2.0)
    table.to_csv("given.csv", index=False)
    text = ("impute", run, "given.csv", "--samples", "2", "--out")
    for out in ("out.csv", "out.parquet"):
        refused(marquis(*text, out), "given.csv", "a column a_std", ".npz", out=out)
    assert marquis(*text, "out.npz")[0] == 0  # has no such names
    table.assign(a=13.0).to_csv("given.csv", index=False)  # no holes in a: no error bars of it
    assert marquis(*text, "out.csv")[0] == 0
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
    text = (command, kept / "wine", *(() if command == "sample" else (kept / "wine.csv",)), "--out")
    refused(marquis(*text, "nowhere/out.csv"), "the folder nowhere does not exist", "make it")
    refused(marquis(*text, "out.txt"), "out.txt", ".csv or .parquet or .npz", out="out.txt")
    Path("folder.csv").mkdir()
    one_line(marquis(*text, "folder.csv"), "folder.csv is a folder")
    one_line(marquis(*text, f"{'long' * 100}.csv"), "longlong", "File name too long")
    Path("sealed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sealed")  # root may write anywhere
    refused(marquis(*text, "sealed/out.csv"), "sealed is read-only", "choose another", out="sealed/out.csv")


@pytest.mark.parametrize("out", ["out.csv", "out.parquet", "out.npz"])
def test_a_disk_that_is_full(marquis, kept, monkeypatch, out):
    """Noticed only while writing: still one line, and what was there before is there still."""
    Path(out).write_text("mine")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = marquis("sample", kept / "wine", "-n", "2", "--out", out, "--force")
    one_line(message, f"{out} cannot be written", "No space left", exit_code=1)
    assert Path(out).read_text() == "mine" and [path.name for path in Path().iterdir()] == [out]


def test_a_disk_that_is_full_when_evaluating(marquis, kept, monkeypatch):
    Path("results").mkdir()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    text = ("evaluate", kept / "wine", "--samples", "2", "--out", "results")
    one_line(marquis(*text), "results/evaluation.json cannot be written", "No space left", exit_code=1)
    assert not list(Path("results").iterdir())


# ---- counts, images and runs


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("sample", "RUN", "-n", "0"), ("-n 0", "at least 1")),
        (("sample", "RUN", "-n", "-3"), ("-n -3", "at least 1")),
        (("sample", "RUN", "--method", "two-stage", "--rounds", "0"), ("rounds is 0", "from 1")),
        (("sample", "RUN", "--seed", "-1"), ("--seed -1", "from 0 to 4294967295")),
        (("sample", "RUN", "--seed", 10**30), ("from 0 to 4294967295",)),
        (("embed", "RUN", "FILE", "--limit", "0"), ("limit is 0", "from 1")),
        (("embed", "RUN", "FILE", "--limit", "-2"), ("limit is -2", "from 1")),
        (("embed", "RUN", "FILE", "--samples", "0"), ("samples is 0", "from 1")),
        (("embed", "RUN", "FILE", "--split", "half"), ("split 'half'", "'train', 'test', 'all'")),
        (("score", "RUN", "FILE", "--samples", "-1"), ("samples is -1",)),
        (("score", "RUN", "FILE", "--reference", "-1"), ("--reference -1",)),
        (("impute", "RUN", "FILE", "--rounds", "-1"), ("rounds is -1", "from 0")),
        (("evaluate", "RUN", "--limit", "0"), ("--limit 0", "at least 1")),
        (("evaluate", "RUN", "--limit", "-5"), ("--limit -5", "at least 1")),
        (("evaluate", "RUN", "--samples", "0"), ("samples is 0", "from 1")),
        (("train", "ae", "--data", "FILE", "--seed", 2**32), ("seed", "less than 4294967296")),
    ],
)
def test_numbers_that_cannot_be_meant(marquis, kept, words, texts):
    names = {"RUN": kept / "wine", "FILE": kept / "wine.csv"}
    out = {"evaluate": ".", "train": "run"}.get(str(words[0]), "out.csv")
    refused(marquis(*(names.get(word, word) for word in words), "--out", out), *texts)
    assert not list(Path().iterdir())


def test_numbers_that_mark_missing_values(marquis, kept, table):
    """Such as 9.97e36, which NetCDF writes where there is nothing."""
    table.assign(c=[1.0] * 7 + [9.96921e36] * 23).to_csv("given.csv", index=False)
    for command in ("impute", "score", "embed"):
        refused(marquis(command, kept / "wine", "given.csv", "--out", "out.csv"), "row 7", "too large", "NaN")


def test_the_row_of_an_infinity_is_that_of_the_file(marquis, table):
    table["c"] = 1.0
    table.loc[25, "c"] = np.inf
    table.to_csv("given.csv", index=False)
    one_line(marquis("train", "ae", "--data", "given.csv", "--out", "run"), "row 25, column 'c'")


def test_a_few_held_out_rows_still_tell_outliers(marquis, kept, table):
    """With 35 of them no p-value is below 0.01, however strange a row is: the sentence must not go by that."""
    ordinary = table.mean()
    pd.DataFrame([ordinary, ordinary]).assign(a=[1e6, ordinary["a"]]).to_csv("given.csv", index=False)
    code, message, _ = marquis("score", kept / "wine", "given.csv", "--out", "out.csv", "--samples", "2")
    assert code == 0 and "2 rows, 1 with a higher score than 99 % of 35 held-out rows" in message
    assert pd.read_csv("out.csv")["p_value"][0] == pytest.approx(1 / 36)


def test_scores_say_how_much_is_missing(marquis, kept, table):
    """A row counts by what was observed of it, so that holes hide a strange one; without any holes nothing is said."""
    strange = pd.DataFrame([table.mean(), table.mean()]).assign(b=1e3)
    strange.iloc[1, 1] = np.nan
    strange.to_csv("given.csv", index=False)
    code, message, _ = marquis("score", kept / "wine", "given.csv", "--out", "out.csv", "--samples", "2")
    usual = Run.open(kept / "wine").data_module
    usual.setup()
    share = float(usual.train.x.isnan().double().mean())
    assert code == 0 and f"8.3% of the entries are missing, {share:.1%} in the training rows" in message
    assert share > 0.01 and pd.read_csv("out.csv")["nll"].diff()[1] < -1
    code, message, _ = marquis("score", kept / "digits", "digits", "--limit", "5", "--out", "d.csv", "--samples", "2")
    assert code == 0 and "missing" not in message


def test_images_that_are_refused(marquis, kept):
    grey = [Image.fromarray(np.full((8, 8), shade, np.uint8)) for shade in (0, 100, 200)]
    folders = {
        "large": [image.resize((9, 9)) for image in grey],
        "colour": [image.convert("RGB") for image in grey],
        "deep": [Image.fromarray(np.full((8, 8), 5000, np.uint16))],
        "mixed": [grey[0], grey[1].resize((9, 9))],
        "none": [],
        "parts/train": grey,
        "parts/test": grey,
    }
    for name, images in folders.items():
        Path(name).mkdir(parents=True)
        for number, image in enumerate(images):
            image.save(f"{name}/{number}.png")
    np.savez("holes.npz", x=np.full((2, 1, 8, 8), np.nan, np.float32))
    np.savez("flat.npz", x=np.zeros((2, 64), np.float32))
    for name, texts in {
        "large": ("9x9", "8x8"),
        "colour": ("3 channels", "1 channel"),
        "deep": ("deep/0.png", "8 bits"),
        "mixed": ("mixed/1.png", "9x9", "8x8"),
        "none": ("no images",),
        "parts": ("train and test", "give its path"),
        "holes.npz": ("missing entries", "marquis impute", "--out FILE"),
        "flat.npz": ("64 columns", "8x8"),
        "parts/test/0.png": ("'.png'", "the folder it is in"),
    }.items():
        for command in ("score", "embed"):
            refused(marquis(command, kept / "digits", name, "--out", "out.csv"), name, *texts)
        refused(marquis("evaluate", kept / "digits", "--ood", name, "--out", "."), name, *texts)
    assert not list(Path().glob("ood-*"))
    # what the advice says is possible
    assert marquis("impute", kept / "digits", "holes.npz", "--out", "full.npz", "--samples", "2")[0] == 0
    assert marquis("embed", kept / "digits", "full.npz", "--out", "out.csv", "--samples", "2")[0] == 0
    assert marquis("embed", kept / "digits", "parts/test", "--out", "parts.csv", "--samples", "2")[0] == 0


def test_runs_that_are_damaged(marquis, kept):
    def refuse(change: Callable[[Path], object], *texts: str) -> None:
        run = Path(shutil.copytree(kept / "wine", "run"))
        change(run)
        for text in (("impute", run, kept / "wine.csv"), ("embed", run, kept / "wine.csv"), ("sample", run)):
            refused(marquis(*text, "--out", "out.csv"), *texts)
        refused(marquis("evaluate", run, "--out", "."), *texts)
        shutil.rmtree(run)

    def edited(**changes: object) -> Callable[[Path], object]:
        held = json.loads((kept / "wine/config.json").read_text())
        return lambda run: write_config(run, {**held, **changes})

    refuse(lambda run: (run / "config.json").unlink(), "not a run", "marquis train")
    refuse(lambda run: (run / "config.json").write_text("{"), "config.json is damaged")
    refuse(lambda run: (run / "model.safetensors").unlink(), "no finished model", "--resume")
    refuse(lambda run: (run / "model.safetensors").write_bytes(b"half"), "model.safetensors", "truncated")
    refuse(lambda run: shutil.copy(kept / "digits/model.safetensors", run), "not the model that", "config.json")
    refuse(edited(scaling={"mean": [0.0], "scale": [1.0]}), "config.json is damaged", "scales")
    refuse(edited(columns=["a"]), "config.json is damaged", "1 columns")


def test_training_data_that_are_gone_or_changed(marquis, kept, table):
    run = Path(shutil.copytree(kept / "wine", "run"))
    held = json.loads((run / "config.json").read_text())
    held["settings"]["data"] = str(Path("moved.csv").absolute())
    del held["trained_on"]  # a run of before it was kept, to which columns alone tell
    write_config(run, held)
    text = [("score", run, kept / "wine.csv", "--out", "out.csv"), ("evaluate", run, "--out", ".")]
    for call in text:
        refused(marquis(*call), "the training data of run", "moved.csv does not exist")
    table.rename(columns={"b": "other"}).to_csv("moved.csv", index=False)  # as wide, but not the same
    for call in text:
        refused(marquis(*call), "the training data of run", "lacks b and has other")
    table[table.columns[::-1]].to_csv("moved.csv", index=False)  # the same, in another order
    opened = Run.open(run).data_module
    opened.setup()
    table.to_csv("moved.csv", index=False)
    straight = Run.open(run).data_module
    straight.setup()
    assert np.array_equal(opened.train.x, straight.train.x, equal_nan=True)
    assert opened.train.feature_names == straight.train.feature_names == tuple(NAMES)


def test_results_without_a_name_go_to_the_runs_folder(marquis, kept, table):
    """Nothing there is overwritten either."""
    for name in ("wine", "digits"):
        shutil.copytree(kept / name, name)
    table.to_csv("new rows.csv", index=False)
    calls = (
        ("scores-new rows.csv", 30, ("score", "wine", "new rows.csv", "--samples", "2")),
        ("codes-new rows.csv", 30, ("embed", "wine", "new rows.csv", "--samples", "2")),
        ("samples.csv", 4, ("sample", "wine", "-n", "4")),
        ("codes-digits.csv", 5, ("embed", "digits", "digits", "--limit", "5", "--samples", "2")),
        ("samples.png", None, ("sample", "digits", "-n", "4")),
    )
    for name, rows, call in calls:
        code, message, _ = marquis(*call)
        place = Path(call[1]) / name
        assert code == 0 and f"written: {place}" in message
        if rows is not None:
            assert len(pd.read_csv(place)) == rows
        one_line(marquis(*call), name, "--force")
        assert marquis(*call, "--force")[0] == 0
    one_line(marquis("score", "no-such-run", "new rows.csv"), "no-such-run")
