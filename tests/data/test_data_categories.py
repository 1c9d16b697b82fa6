"""Text columns of files as indicators of their levels, and back."""

from __future__ import annotations

import pytest
import torch

from marquis.data import load
from marquis.data.categories import collapsed
from marquis.errors import DataError

TEXT = "size,colour,kind\n1.5,red,a\n2,,b\n,blue,a\n4,red,\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT)
    return path


def parquet(path, texts):
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.read_csv(path, dtype={"colour": "category"})
    frame.to_parquet(texts)
    return texts


@pytest.mark.parametrize("as_parquet", [False, True])
def test_text_becomes_indicators(table, tmp_path, as_parquet):
    path = parquet(table, tmp_path / "table.parquet") if as_parquet else table
    data = load(path, categories=True)
    nan = float("nan")
    assert data.feature_names == ("size", "colour=blue", "colour=red", "kind=a", "kind=b")
    assert data.categories == {"colour": ("blue", "red"), "kind": ("a", "b")}
    expected = [[1.5, 0, 1, 1, 0], [2, nan, nan, 0, 1], [nan, 1, 0, 1, 0], [4, 0, 1, nan, nan]]
    assert torch.equal(data.x.nan_to_num(-9), torch.tensor(expected).nan_to_num(-9))
    assert data.feature_names is not None
    back = collapsed(data.x.numpy(), data.feature_names, data.categories)
    assert list(back) == ["size", "colour", "kind"]
    assert back["colour"].tolist() == ["red", None, "blue", "red"] and back["kind"].tolist() == ["a", "b", "a", None]


def test_levels_of_training_are_kept_and_others_count_as_missing(table, tmp_path):
    levels = load(table, categories=True).categories
    other = tmp_path / "other.csv"
    other.write_text("size,colour,kind\n3,green,b\n1,blue,b\n")
    with pytest.warns(UserWarning, match="'colour' has levels that were not there in training .green."):
        data = load(other, categories=levels)
    assert data.x[:, 1:3].isnan().all(1).tolist() == [True, False] and data.x[:, 4].tolist() == [1, 1]
    assert data.categories == levels and data.new_levels == {"colour": {0: "green"}}
    assert data[1:].new_levels == {"colour": {}} and data[[1, 0]].new_levels == {"colour": {1: "green"}}


def test_text_is_refused_where_it_may_be_a_damaged_number(tmp_path, table):
    with pytest.raises(DataError, match=r"'colour' is not numeric.*categories=True"):
        load(table)
    for field, named in (("1O.5", "is not numeric"), ("14,25", "decimal comma")):
        path = tmp_path / "damaged.csv"
        path.write_text(f'a,b\n1,2\n"{field}",3\n')
        with pytest.raises(DataError, match=named):
            load(path, categories=True)
    path.write_text('a,b\n1,"14,2"\n3,"15,1"\n')  # no letters: numbers of another country
    with pytest.raises(DataError, match="decimal comma"):
        load(path, categories=True)
    path.write_text("a,b\n" + "\n".join(f"{i},name {i}" for i in range(101)))
    with pytest.raises(DataError, match="'b' has 101 different texts"):
        load(path, categories=True)
    path.write_text("a=x,a\n1,x\n2,y\n")
    with pytest.raises(DataError, match="two columns would be named 'a=x'"):
        load(path, categories=True)


def test_a_target_may_be_text(table):
    data = load(table, target="kind", categories=True)
    assert data.feature_names == ("size", "colour=blue", "colour=red") and list(data.categories) == ["colour"]
    assert data.y is not None and bool(data.y[3, 0].isnan()) and data.y[:3, 0].tolist() == [0, 1, 0]
