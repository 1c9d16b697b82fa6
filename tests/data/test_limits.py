"""Files that unpack to more than the memory are refused by their headers, before anything is unpacked."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pytest

import marquis as mq
from marquis.data.files import gunzip
from marquis.data.header import checked_names
from marquis.data.limits import allowing

SMALL = 2**20


@pytest.fixture
def peak():
    """Return a function that runs something and returns the most memory that Python had at a time."""

    def measure(run):
        tracemalloc.start()
        try:
            with pytest.raises(mq.MemoryBudgetError) as caught:
                run()
            return str(caught.value), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def zip_bomb(path, entries):
    """An npz of zeros, packed a thousandfold without ever holding the array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (entries // 10, 10)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(header.getvalue())
        piece = bytes(2**20)
        for start in range(0, entries * 8, len(piece)):
            member.write(piece[: entries * 8 - start])


def test_npz_that_unpacks_a_thousandfold(tmp_path, peak):
    path = tmp_path / "bomb.npz"
    zip_bomb(path, 8 * 2**20)
    assert path.stat().st_size < SMALL / 8
    message, most = peak(lambda: mq.data.load(path, max_bytes=SMALL))
    assert "64 MB" in message and "max_bytes" in message and most < SMALL


def test_what_fits_is_read(tmp_path):
    path = tmp_path / "fine.npz"
    np.savez_compressed(path, x=np.zeros((1000, 10)))
    assert mq.data.load(path, max_bytes=SMALL).shape == (1000, 10)
    with pytest.raises(mq.MemoryBudgetError):
        mq.data.load(path, max_bytes=10_000)


def test_npy_whose_header_claims_terabytes(tmp_path):
    path = tmp_path / "claims.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 4)})
    with pytest.raises(mq.MemoryBudgetError, match="npy"):
        mq.data.load(path)


def test_images_of_many_megapixels(tmp_path, peak):
    from PIL import Image

    for number in range(5):
        Image.new("L", (3000, 3000)).save(tmp_path / f"{number}.png")
    message, most = peak(lambda: mq.data.load(tmp_path, size=8, max_bytes=10 * SMALL))
    assert "9.0 million pixels" in message and most < SMALL
    assert mq.data.load(tmp_path, size=8, max_bytes=100 * SMALL).shape == (5, 1, 8, 8)


def test_parquet_of_one_repeated_value(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": np.zeros(10**6)}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < SMALL / 8
    with pytest.raises(mq.MemoryBudgetError, match="1000000 rows"):
        mq.data.load(tmp_path / "a.parquet", max_bytes=SMALL)


def test_csv_of_short_fields(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 50_000)
    with pytest.raises(mq.MemoryBudgetError, match="fields"):
        mq.data.load(path, max_bytes=SMALL)
    assert len(mq.data.load(path, max_bytes=20 * SMALL)) == 50_000


def test_gzip_is_measured_on_the_way():
    packed = gzip.compress(bytes(8 * SMALL))
    with allowing(SMALL), pytest.raises(mq.MemoryBudgetError, match="gzip"):
        gunzip(packed, "a.gz")
    assert len(gunzip(packed, "a.gz")) == 8 * SMALL


class Counting(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counting.compared += 1
        return str.__eq__(self, other)


def test_names_are_compared_in_linear_time(tmp_path):
    """Forty thousand names took a minute when each was compared with all before it."""
    names = [Counting(f"column {number}") for number in range(2000)]
    Counting.compared = 0
    assert len(checked_names(names, tmp_path)) == 2000
    assert Counting.compared < 4 * 2000
    with pytest.raises(mq.DataError, match="two columns named 'column 7'"):
        checked_names([*names, "column 7"], tmp_path)
