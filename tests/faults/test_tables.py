"""Tables that would harm whoever opens them, and data that would not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from helpers.commands import one_line
from marquis.cli.outputs import as_text, write_columns
from marquis.data import load
from marquis.data.limits import budget


def test_formulas_in_names_are_text_for_a_spreadsheet_and_names_for_us(tmp_path):
    names = ["=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "-x", "plain", "-1.5"]
    write_columns(tmp_path / "t.csv", {name: np.arange(3.0) + i for i, name in enumerate(names)})
    header = (tmp_path / "t.csv").read_text().splitlines()[0]
    assert header.split(",")[:5] == ["'=cmd|' /C calc'!A0", "'+1+1", "'@SUM(A1)", "'-x", "plain"]
    assert as_text("-1.5") == "-1.5"  # a number is no formula
    assert load(tmp_path / "t.csv").feature_names == tuple(names)


def test_the_command_line_allows_more_bytes(marquis, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((60, 5)))
    text = ("train", "ae", "--data", tmp_path / "x.npz", "--out", "run", "--epochs", "1", "--no-report")
    one_line(marquis("--max-bytes", "100", *text), "--max-bytes", "x.npz")
    assert not Path("run").exists()
    assert marquis("--max-bytes", "1000000", *text)[0] == 0
    assert budget() > 1_000_000  # the option ends with its command


def test_rows_without_any_value_have_no_scores_and_no_codes(marquis, tmp_path):
    """Nothing observed was the most ordinary row of all (p-value 1), with a code of its own."""
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,c", comments="")
    (tmp_path / "some.csv").write_text("a,b,c\n0.5,,1\n,,\n1,2,3\n")
    text = ("--data", tmp_path / "t.csv", "--out", "run", "--epochs", "1", "--no-report")
    assert marquis("train", "ae", *text)[0] == 0
    for command, what in (("score", "scores"), ("embed", "codes")):
        code, out, _ = marquis(command, "run", tmp_path / "some.csv", "--out", f"{command}.csv")
        assert code == 0 and f"1 rows have no values at all: their {what} are left empty" in out
        table = np.genfromtxt(f"{command}.csv", delimiter=",", skip_header=1)
        assert np.isnan(table[1]).all() and np.isfinite(table[[0, 2]]).all()
    message = marquis("evaluate", "run", "--ood", tmp_path / "some.csv")
    one_line(message, "1 rows of", "have no values at all; remove them")
