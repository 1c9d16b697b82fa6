"""Tables and arrays of one's own: missing values stay missing, anything doubtful is refused with its place."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from marquis.data import load
from marquis.errors import DataError

NAN = float("nan")


def write(path, text: str):
    path.write_text(text)
    return path


def rows_of(data) -> list[list[float]]:
    return data.x.tolist()


def assert_rows(data, expected) -> None:
    np.testing.assert_array_equal(data.x.numpy(), np.array(expected, dtype=np.float32))


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", None, [[1, 2], [3, 4]]),
        ("a;b\n1;2\n", ("a", "b"), [[1, 2]]),
        ("a\tb\n1\t-2e3\n", ("a", "b"), [[1, -2000]]),
        ('\ufeff"a b",c\r\n 1 , 2 \r\n\r\n', ("a b", "c"), [[1, 2]]),  # byte-order mark, quotes, spaces, empty line
        ("a,b\n,2\nNA,?\nnan,null\n", ("a", "b"), [[NAN, 2], [NAN, NAN], [NAN, NAN]]),
        (",1\n2,\n", None, [[NAN, 1], [2, NAN]]),
        ("only\n5\n6", ("only",), [[5], [6]]),
    ],
)
def test_csv(tmp_path, text, names, rows):
    data = load(write(tmp_path / "t.csv", text))
    assert data.feature_names == names
    assert data.split == "all" and data.y is None and data.x.dtype == torch.float32
    assert_rows(data, rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("\n\n", "no rows"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "line 3: 1 fields, but the first line has 2"),
        ("a,b\n1,2,3\n", "line 2: 3 fields, but the first line has 2"),
        ("a,colour\n1,2\n1,red\n", "line 3: column 'colour' is not numeric: it has 'red'"),
        ("a,b\n1,1_000\n", "column 'b' is not numeric: it has '1_000'"),
        ("a,a\n1,2\n", "two columns named 'a'"),
        ("a,b\n1,inf\n", "row 0, column 'b' is infinite"),
        ("a,b\n1,1e39\n", "row 0, column 'b' is infinite or too large for torch.float32"),
        ('a,b\n1,"2\n', "line 2"),
    ],
)
def test_csv_that_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=f"t.csv.*{message}"):
        load(write(tmp_path / "t.csv", text))


def test_a_column_without_a_name_is_counted(tmp_path):
    with pytest.raises(DataError, match="column number 2 is not numeric"):
        load(write(tmp_path / "t.csv", "1,2\n1,red\n"), header=False)


def test_csv_in_another_encoding(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(DataError, match="not text in UTF-8"):
        load(tmp_path / "t.csv")


def test_large_numbers_fit_when_asked(tmp_path):
    path = write(tmp_path / "t.csv", "a\n1e39\n16777217\n")
    data = load(path, dtype=torch.float64)
    assert data.x.dtype == torch.float64 and data.x.tolist() == [[1e39], [16777217.0]]


def test_targets_are_columns(tmp_path):
    path = write(tmp_path / "t.csv", "a,price,b,size\n1,2,3,4\n5,,7,8\n")
    one = load(path, target="price")
    assert one.feature_names == ("a", "b", "size") and one.target_names == ("price",)
    assert one.y.shape == (2, 1) and one.y[0, 0] == 2 and math.isnan(one.y[1, 0])
    assert_rows(one, [[1, 3, 4], [5, 7, 8]])
    two = load(path, target=["size", "a"])
    assert two.y.tolist() == [[4, 1], [8, 5]]
    with pytest.raises(DataError, match="no column 'cost'; it has a, price, b, size"):
        load(path, target="cost")
    with pytest.raises(DataError, match="nothing is left"):
        load(path, target=["a", "price", "b", "size"])
    with pytest.raises(DataError, match="`target` names a column"):
        load(write(tmp_path / "bare.csv", "1,2\n"), target="a")


def test_splits_of_ones_own_file(tmp_path):
    path = write(tmp_path / "t.csv", "a\n" + "\n".join(map(str, range(11))))
    train, test = load(path, "train"), load(path, "test")
    assert (len(train), len(test)) == (9, 2)
    assert sorted(row[0] for row in rows_of(train) + rows_of(test)) == list(range(11))
    assert torch.equal(load(path, "test").x, test.x)
    assert load(path, "train", limit=3).x.tolist() == train.x[:3].tolist()
    with pytest.raises(DataError, match=r"split 'validation' is not known. Choose one of 'train', 'test', 'all'"):
        load(path, "validation")
    with pytest.raises(DataError, match="at least five rows"):
        load(write(tmp_path / "short.csv", "1\n2\n"), "test")


def test_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"i": pa.array([1, None, 3]), "f": [0.5, NAN, None], "b": [True, False, None]})
    pq.write_table(table, tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet")
    assert data.feature_names == ("i", "f", "b")
    assert_rows(data, [[1, 0.5, 1], [NAN, NAN, 0], [3, NAN, NAN]])
    assert load(tmp_path / "t.parquet", target="i").y.shape == (3, 1)


def test_parquet_that_is_refused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0], "colour": ["red"]}), path)
    with pytest.raises(DataError, match="column 'colour' is not numeric: it is of type string"):
        load(path)
    pq.write_table(pa.table({"big": [2**60 + 1]}), path)
    with pytest.raises(DataError, match="column 'big' does not fit"):
        load(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"t.parquet cannot be read as parquet"):
        load(path)
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), path)
    with pytest.raises(DataError, match="no rows"):
        load(path)


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1.0, NAN], [3.0, 4.0]]))
    assert_rows(load(tmp_path / "a.npy"), [[1, NAN], [3, 4]])
    np.save(tmp_path / "a.npy", np.array([1, 2, 3]))
    assert load(str(tmp_path / "a.npy")).x.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 1, 5, 4), (2, 3, 5, 4), (2, 5, 4, 3), (2, 5, 4, 1)])
def test_arrays_of_bytes_are_images(tmp_path, shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    data = load(tmp_path / "a.npy")
    assert data.stored.dtype == torch.uint8
    channels_first = array[:, None] if array.ndim == 3 else array
    if shape[-1] in (1, 3):
        channels_first = np.moveaxis(array, -1, 1)
    np.testing.assert_array_equal(data.x.numpy(), channels_first.astype(np.float32) / np.float32(255))


class Trap:
    """Something that runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a.npy .*pickled Python objects, which are refused"):
        load(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x=np.array([Trap()], dtype=object))
    with pytest.raises(DataError, match=r"a.npz .*pickled"):
        load(tmp_path / "a.npz")
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"a.npy .*pickled"):
        load(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_arrays(tmp_path, suffix, keep):
    path = tmp_path / f"a{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, np.arange(100.0))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=f"a{suffix} cannot be read"):
        load(path)


def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(100.0))
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.npz .*corrupt"):
        load(path)


def test_the_wrong_suffix(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"call it .npz"):
        load(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.zeros(2))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(DataError, match=r"call it .npy"):
        load(tmp_path / "b.npz")


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(DataError, match=r"missing.csv does not exist"):
        load(tmp_path / "missing.csv")
    with pytest.raises(DataError, match="missing does not exist"):
        load(tmp_path / "missing")
    with pytest.raises(DataError, match=r"files ending in '.txt' are not read; use .csv, .npy, .npz, .parquet"):
        load(write(tmp_path / "a.txt", "1"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"fold": 0}, "fold does not apply"),
        ("digits", {"target": "a", "size": 3}, "size, target does not apply"),
        ("uci/boston", {"size": 3}, "size does not apply.*takes fold, kind"),
        ("t.csv", {"fold": 1}, "fold does not apply.*takes categories, header, target"),
        ("t.npy", {"target": "a"}, "target does not apply"),
        (".", {"target": "a"}, "target does not apply.*takes size"),
        ("digits", {"limit": 0}, "limit is 0"),
        ("digits", {"dtype": torch.int64}, "dtype must be a floating type"),
    ],
)
def test_options_are_never_ignored(name, options, message):
    with pytest.raises(DataError, match=message):
        load(name, **options)
