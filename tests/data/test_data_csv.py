"""Csv files that would be misread in silence: numbers as names, numbers too long, other ways to write numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from marquis.data import DataModule, load
from marquis.errors import DataError


def write(path, text: str):
    path.write_text(text)
    return path


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("width", [3, 4, 40])
def test_names_that_count_above_decimals(tmp_path, first, width):
    """What `pd.DataFrame(X).to_csv(index=False)` writes."""
    x = noise(7, width)
    x[2, 1] = np.nan
    pd.DataFrame(x, columns=range(first, first + width)).to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv", dtype=torch.float64)
    assert data.feature_names == tuple(str(first + i) for i in range(width))
    np.testing.assert_array_equal(data.x.numpy(), x)


def test_names_that_count_above_many_whole_numbers(tmp_path):
    x = np.random.default_rng(0).integers(0, 17, (5, 64))
    pd.DataFrame(x).to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv", target="63")
    assert data.feature_names == tuple(map(str, range(63)))
    np.testing.assert_array_equal(data.x.numpy(), x[:, :-1])


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n4,5,6\n7,8,9\n",  # goes on
        "0,1\n1,2\n2,3\n",
        "10,20,30\n40,50,60\n",
        "2018,2019,2020\n",  # nothing below
        "2,1\n5,3\n",  # no steps upwards
        "3,3,3\n1,5,2\n",
        "1,3\n5,2\n",  # two numbers that do not follow each other
        "1,2,4\n0.5,0.5,0.5\n",
        "1.0,2.0,3.0\n0.5,0.5,0.5\n",  # written like what is below
        "0\n1\n5\n",
        "1\n0.5\n",
    ],
)
def test_first_lines_that_are_data(tmp_path, text):
    data = load(write(tmp_path / "t.csv", text))
    assert data.feature_names is None
    np.testing.assert_array_equal(data.x.numpy(), [[float(f) for f in line.split(",")] for line in text.split()])


ORDERINGS = "\n".join(",".join(map(str, order)) for order in itertools.islice(itertools.permutations(range(12)), 9))


@pytest.mark.parametrize(
    "text",
    [
        "2018,2019,2020\n5.5,6.5,7.5\n",  # years
        "2022,2021,2020\n5.5,6.5,7.5\n",
        "400,402,404,406\n0.1,0.2,0.3,0.4\n",  # wavelengths
        "2019,2020\n1,2\n",
        "0,1\n0.5,0.25\n",  # pandas; or a curve that begins with (0, 1)
        "0,1\n1,0\n1,1\n",  # pandas; or truth values
        "1,2,3,4\n2,1,3,4\n4,3,2,1\n",  # orderings
        ORDERINGS + "\n",
        "1,2,3\n4,5,6\n7,8,8\n",
        "0\n0.5\n1.5\n",  # a pandas series without a name
        ",0,1,2\n5,0.5,0.25,0.5\n9,0.5,0.5,0.5\n",  # row numbers of a selection
    ],
)
def test_first_lines_in_doubt_are_refused(tmp_path, text):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(DataError) as refused:
        load(path)
    first, *below = text.splitlines()
    shown = ",".join(first.split(",")[:4])
    for part in (f"{path}: the first line ({shown}", "header=True or header=False", "--header or --no-header"):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)
    received = load(path, header=False)
    assert received.feature_names is None and len(received) == 1 + len(below)
    if first[0] != ",":
        received = load(path, header=True)
        assert received.feature_names == tuple(first.split(",")) and len(received) == len(below)


def test_a_data_module_can_be_told(tmp_path):
    module = DataModule(write(tmp_path / "t.csv", "0,1\n" + "0.5,0.5\n" * 10), header=True)
    module.setup()
    assert len(module.train) + len(module.validation) + len(module.test) == 10


@pytest.mark.parametrize("start", [0, 1])
def test_row_numbers_above_which_there_is_no_name(tmp_path, start):
    frame = pd.DataFrame(noise(4, 3), index=range(start, start + 4))
    frame.to_csv(tmp_path / "t.csv")
    frame[[2, 0]].to_csv(tmp_path / "order.csv")  # names that do not count
    for name in ("t.csv", "order.csv"):
        with pytest.raises(DataError, match=r"column number 1 has no name; .*index=False"):
            load(tmp_path / name)


LONG = 2**53 + 1


@pytest.mark.parametrize("field", [str(LONG), f"-{LONG}", f"+{LONG}", f"{LONG}.0", f"0{LONG}", "123456789012345678901"])
def test_whole_numbers_that_would_be_changed(tmp_path, field):
    path = write(tmp_path / "t.csv", f"id,b\n1,2\n{field},4\n")
    with pytest.raises(DataError) as refused:
        load(path, dtype=torch.float64)
    assert f"{path}, line 3: column 'id' has {field}, which 64-bit floats cannot hold" in str(refused.value)
    with pytest.raises(DataError, match=r"line 1: column number 2 has .*cannot hold"):
        load(write(path, f"1,{field}\n"))


@pytest.mark.parametrize("field", [str(2**53), str(2**53 + 2), str(2**60), "0000000000000000000003", "9" * 15])
def test_long_numbers_that_fit(tmp_path, field):
    data = load(write(tmp_path / "t.csv", f"id\n{field}\n"), dtype=torch.float64)
    assert int(data.x.item()) == int(field)


def test_decimals_are_rounded_as_ever(tmp_path):
    data = load(write(tmp_path / "t.csv", "a\n0.12345678901234567890\n1234567890123456.7\n"), dtype=torch.float64)
    assert data.x.tolist() == [[0.12345678901234567890], [1234567890123456.7]]


@pytest.mark.parametrize(
    ("text", "column", "field"),
    [
        ('a,b\n1,"14,23"\n', "b", "14,23"),
        ('a,b\n1,"127,000"\n', "b", "127,000"),
        ("a;b\n1,5;2,5\n", "a", "1,5"),
        ("a;b\n1;-1.234,5\n", "b", "-1.234,5"),
        ('a,b\n1,"1,234,567.8"\n', "b", "1,234,567.8"),
        ("a,b\n1,1 234\n", "b", "1 234"),
        ("a,b\n1,1'234.5\n", "b", "1'234.5"),
    ],
)
def test_other_ways_to_write_numbers(tmp_path, text, column, field):
    with pytest.raises(DataError) as refused:
        load(write(tmp_path / "t.csv", text))
    for part in (
        f"t.csv, line 2: column {column!r}",
        repr(field),
        "looks like a decimal comma or thousands separators",
    ):
        assert part in str(refused.value)


def test_decimal_commas_between_semicolons_without_names(tmp_path):
    with pytest.raises(DataError, match="it has '5;4'; it looks like semicolons between decimal commas"):
        load(write(tmp_path / "t.csv", "1,5;2,5\n3,5;4,5\n"))


@pytest.mark.parametrize("field", ["red", "2020.01.02", "1;2;x", "12 34", "3 km"])
def test_what_is_no_number_at_all(tmp_path, field):
    with pytest.raises(DataError, match=r"column 'b' is not numeric.*; remove the column or encode it as numbers"):
        load(write(tmp_path / "t.csv", f"a,b\n1,2\n1,{field}\n"))
