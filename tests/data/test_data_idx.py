"""The idx reader, and the sets that come as idx: every kind of damage is refused by name."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from marquis.data import load
from marquis.data.named_sets import parse_idx
from marquis.errors import DataError

CODES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}
IMAGES = "train-images-idx3-ubyte.gz"


def to_idx(array: np.ndarray, element: str) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, CODES[element], array.ndim, *array.shape) + array.tobytes()


@given(st.data(), st.sampled_from(list(CODES)))
def test_it_reads_what_was_written(draw, element):
    array = draw.draw(arrays(np.dtype(element), array_shapes(max_dims=4, min_side=1, max_side=5)))
    read = parse_idx(to_idx(array, element), "file")
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


GOOD = to_idx(np.arange(6, dtype=np.uint8).reshape(2, 3), "u1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x08", "not an idx file"),
        (b"PK\x03\x04" + GOOD, "not an idx file.*50 4b 03 04"),
        (b"\0\0\x07" + GOOD[3:], "not an idx file"),
        (GOOD[:9], "header ends too early"),
        (b"\0\0\x08\0", "no axes"),
        (GOOD[:-1], "promises shape .2, 3., 18 bytes in all, but it has 17"),
        (GOOD + b"\0", "but it has 19"),
    ],
)
def test_it_refuses_anything_else(content, message):
    with pytest.raises(DataError, match=f"file.gz .*{message}"):
        parse_idx(content, "file.gz")


@pytest.mark.parametrize("packed", [True, False])
def test_a_set_packed_or_unpacked(tiny, tmp_path, packed):
    tiny.write_to(tmp_path / "tiny", packed=packed)
    train, test = load("tiny", "train", tmp_path), load("tiny", "test", tmp_path)
    np.testing.assert_array_equal(train.stored[:, 0].numpy(), tiny.arrays[IMAGES])
    np.testing.assert_array_equal(test.y.numpy(), tiny.arrays["t10k-labels-idx1-ubyte.gz"])
    assert train.x.shape == (6, 1, 3, 2) and train.y.dtype == torch.int64
    assert train.x.min() >= 0 and train.x.max() <= 1
    assert train.source == str(tmp_path / "tiny")
    everything = load("tiny", "all", tmp_path)
    assert torch.equal(everything.x, torch.cat([train.x, test.x]))
    assert torch.equal(everything.y, torch.cat([train.y, test.y]))


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: packed[: len(packed) // 2], "truncated or corrupt"),
        (lambda packed: packed[:-4], "truncated or corrupt"),
        (lambda packed: flip(packed, -6), "truncated or corrupt.*CRC"),
        (lambda packed: b"", "not an idx file"),
        (lambda packed: b"<html>not found</html>", "not an idx file"),
        (lambda packed: gzip.compress(b"nothing of the kind"), "not an idx file"),
        (lambda packed: gzip.compress(gzip.decompress(packed)[:-3]), "promises shape"),
        (lambda packed: gzip.compress(flip(gzip.decompress(packed), 30)), "SHA-256"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tiny, tmp_path, damage, message):
    folder = tiny.write_to(tmp_path / "tiny")
    (folder / IMAGES).write_bytes(damage(tiny.packed(IMAGES)))
    with pytest.raises(DataError, match=f"{IMAGES} .*{message}"):
        load("tiny", "train", tmp_path)
    assert len(load("tiny", "test", tmp_path)) == 4  # the other split's files are whole


def test_a_damaged_file_is_not_passed_over_for_a_good_one_elsewhere(tiny, tmp_path, monkeypatch):
    tiny.write_to(tmp_path / "good" / "tiny")
    folder = tiny.write_to(tmp_path / "bad" / "tiny")
    (folder / IMAGES).write_bytes(tiny.packed(IMAGES)[:20])
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "good"))
    with pytest.raises(DataError, match=f"bad/tiny/{IMAGES}"):
        load("tiny", "train", tmp_path / "bad")


def test_right_files_of_another_set_are_refused(tiny, tmp_path):
    folder = tiny.write_to(tmp_path / "tiny")
    (folder / IMAGES).write_bytes(tiny.packed("t10k-images-idx3-ubyte.gz"))
    with pytest.raises(DataError, match="not the file it should be"):
        load("tiny", "train", tmp_path)


def test_a_wrong_shape_is_refused_even_where_no_hash_is_known(tiny, tmp_path, monkeypatch):
    from dataclasses import replace

    from marquis.data.registry import SETS

    files = tuple(replace(known, sha256=None) for known in tiny.named.files)
    monkeypatch.setitem(SETS, "tiny", replace(tiny.named, files=files))
    folder = tiny.write_to(tmp_path / "tiny")
    (folder / IMAGES).write_bytes(tiny.packed("t10k-images-idx3-ubyte.gz"))
    with pytest.raises(DataError, match=r"shape \(4, 3, 2\), but tiny has bytes of shape \(6, 3, 2\)"):
        load("tiny", "train", tmp_path)


def test_a_folder_in_the_place_of_a_file(tiny, tmp_path):
    folder = tiny.write_to(tmp_path / "tiny")
    (folder / IMAGES).unlink()
    (folder / IMAGES).mkdir()
    with pytest.raises(DataError, match=f"not found: {IMAGES}"):
        load("tiny", "train", tmp_path, download=False)
