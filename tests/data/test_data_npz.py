"""Npz files: which array is what, and masks of what is missing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marquis.data import load
from marquis.errors import DataError

NAN = float("nan")


def test_npz(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array([2, 0, 1], dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(tmp_path / "a.npz")
    assert data.x.tolist() == x.tolist() and data.y.tolist() == [2, 0, 1] and data.y.dtype == torch.int64
    np.savez(tmp_path / "a.npz", anything=x)
    assert load(tmp_path / "a.npz").y is None
    np.savez(tmp_path / "a.npz", X=x, target=np.array([0.5, NAN, 1]))
    assert load(tmp_path / "a.npz").y.shape == (3, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(2), "b": np.zeros(2)}, "holds the arrays a, b; call the data x"),
        ({"x": np.zeros(2), "X": np.zeros(2)}, "holds the arrays x, X"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(3)}, "2 rows but 3 targets"),
        ({"x": np.zeros((0, 2))}, "no rows"),
        ({"x": np.array(["red"])}, "only numbers"),
        ({"x": np.array([[1.0, np.inf]])}, "row 0, column .1. is infinite"),
        ({}, r"holds the arrays \(none\)"),
    ],
)
def test_npz_that_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"a.npz.*{message}"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("called", ["missing", "mask"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_a_mask_makes_holes(tmp_path, called, dtype):
    x, y = np.arange(24).reshape(12, 2).astype(dtype), np.arange(12)
    missing = np.array([[i in (1, 4), i == 2] for i in range(12)])
    np.savez(tmp_path / "a.npz", x=x, y=y, **{called: missing})
    data = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.x.numpy(), np.where(missing, NAN, x))
    assert data.y.tolist() == y.tolist()
    for split in ("train", "test"):
        part = load(tmp_path / "a.npz", split)
        np.testing.assert_array_equal(part.x.numpy(), np.where(missing, NAN, x)[part.y.numpy()])


def test_what_was_missing_already_stays_so(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([1.0, NAN, 3.0]), missing=np.array([True, False, False]))
    np.testing.assert_array_equal(load(tmp_path / "a.npz").x.numpy(), [[NAN], [NAN], [3]])


def test_what_is_marked_as_missing_may_be_anything(tmp_path):
    missing = np.array([[True, False]])
    np.savez(tmp_path / "a.npz", x=np.array([[np.inf, 1.0]]), missing=missing)
    np.testing.assert_array_equal(load(tmp_path / "a.npz").x.numpy(), [[NAN, 1]])
    np.savez(tmp_path / "a.npz", x=np.array([[2**53 + 1, 1]]), missing=missing)
    np.testing.assert_array_equal(load(tmp_path / "a.npz").x.numpy(), [[NAN, 1]])
    with pytest.raises(DataError, match=r"row 0, column \[1\] is infinite"):
        np.savez(tmp_path / "a.npz", x=np.array([[1.0, np.inf]]), missing=missing)
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 1, 5, 4), (3, 5, 4, 3)])
def test_images_with_a_mask_keep_their_units(tmp_path, shape, dtype):
    random = np.random.default_rng(0)
    x, missing = random.integers(0, 256, shape, dtype=np.uint8), random.random(shape) < 0.3
    np.savez(tmp_path / "whole.npz", x=x)
    np.savez(tmp_path / "holes.npz", x=x, missing=missing)
    whole, incomplete = load(tmp_path / "whole.npz", dtype=dtype), load(tmp_path / "holes.npz", dtype=dtype)
    where = missing[:, None] if missing.ndim == 3 else missing
    where = torch.from_numpy(np.moveaxis(where, -1, 1).copy() if shape[-1] == 3 else where)
    assert incomplete.stored.dtype == dtype and incomplete.shape == whole.shape
    assert torch.equal(incomplete.x.isnan(), where)
    assert torch.equal(incomplete.x[~where], whole.x[~where])
    (batch,) = incomplete.tensor_dataset()[1]
    assert torch.equal(batch.isnan(), where[1])


def test_a_mask_of_nothing_changes_nothing(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (3, 5, 4), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, missing=np.zeros(x.shape, bool))
    data = load(tmp_path / "a.npz")
    assert data.stored.dtype == torch.uint8 and np.array_equal(data.stored[:, 0].numpy(), x)


def test_what_impute_wrote_is_complete(tmp_path):
    """`missing` then says what was filled in; `marquis embed RUN full.npz` goes on with it."""
    x = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "full.npz", x=x, std=0 * x, missing=x > 3, samples=np.stack([x, x]))
    data = load(tmp_path / "full.npz")
    assert data.x.tolist() == x.tolist() and data.y is None


X = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "missing": np.zeros((3, 2), int)}, "missing holds int64; a mask must be boolean"),
        ({"x": X, "mask": np.zeros((3, 2))}, "mask holds float64; a mask must be boolean"),
        ({"x": X, "missing": np.zeros((2, 3), bool)}, r"missing has shape \(2, 3\), but the data \(3, 2\)"),
        ({"x": X, "mask": np.zeros(3, bool)}, r"mask has shape \(3,\), but the data \(3, 2\)"),
        ({"x": X, "missing": X == 0, "mask": X == 0}, "holds the arrays x, missing, mask"),
        ({"X": X, "weights": np.ones(3), "names": np.ones(3)}, "holds weights, names beside X, which would be ignored"),
        ({"x": X, "std": X}, "holds std beside x"),
        ({"x": X, "missing": X == 0, "std": X}, "holds std beside x"),
        ({"anything": X, "missing": X == 0}, "holds the arrays anything, missing; call the data x"),
    ],
)
def test_masks_and_others_that_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"^[^\n]*a.npz.*{message}[^\n]*$"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_whole_numbers_that_would_be_changed(tmp_path, value):
    for name, array in {
        "a": np.array([[1, 2], [3, value]]),
        "b": np.array([[1, 2], [3, abs(value)]], np.uint64),
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(
            DataError, match=rf"{name}.npy: row 1, column \[1\] has -?\d+, which 64-bit floats cannot hold"
        ):
            load(tmp_path / f"{name}.npy")


def test_whole_numbers_that_fit(tmp_path):
    held = [[2**53], [-(2**62)], [2**53 + 2]]
    np.save(tmp_path / "a.npy", np.array(held))
    assert load(tmp_path / "a.npy", dtype=torch.float64).x.long().tolist() == held
