"""`Data`: the contract of tensors, subsets and datasets."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from marquis.data import Data
from marquis.data.value import held_out_rows
from marquis.errors import DataError


@pytest.fixture
def images() -> Data:
    stored = torch.arange(5 * 12, dtype=torch.uint8).mul(4).reshape(5, 1, 4, 3)
    return Data(stored, torch.tensor([4, 3, 2, 1, 0]), "made", "train", source="here")


def test_bytes_become_floats_between_zero_and_one(images):
    assert images.x.dtype == torch.float32
    assert torch.equal(images.x, images.stored.float() / 255)
    assert images.x is images.x  # made once
    assert images.shape == (5, 1, 4, 3) and len(images) == 5


def test_the_dtype_of_x_can_be_chosen(images):
    x = dataclasses.replace(images, dtype=torch.float64).x
    assert torch.equal(x, images.stored.double() / 255)


@pytest.mark.parametrize("rows", [slice(1, 4), [1, 2, 3], torch.tensor([1, 2, 3]), np.array([1, 2, 3])])
def test_subsets_are_data(images, rows):
    subset = images[rows]
    assert isinstance(subset, Data) and subset.name == "made"
    assert torch.equal(subset.x, images.x[1:4])
    assert torch.equal(subset.y, torch.tensor([3, 2, 1]))


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (slice(1, 4), "bcd"),
        ([3, 0], "da"),
        (-1, "e"),
        (torch.tensor([True, False, False, False, True]), "ae"),
        (np.array([4, 4]), "ee"),
    ],
)
def test_names_of_files_follow_the_rows(images, rows, names):
    named = dataclasses.replace(images, files=tuple("abcde"))
    assert named[rows].files == tuple(names) and images[rows].files is None
    assert [4 - "abcde".index(name) for name in names] == named[rows].y.tolist()


def test_a_mask_picks_rows(images):
    assert images[images.y > 2].y.tolist() == [4, 3]


@pytest.mark.parametrize(("row", "label"), [(0, 4), (4, 0), (-1, 0), (-5, 4), (np.int64(2), 2)])
def test_an_integer_keeps_the_row_axis(images, row, label):
    assert images[row].y.tolist() == [label]
    assert images[row].shape == (1, 1, 4, 3)


@pytest.mark.parametrize("row", [5, -6])
def test_rows_beyond_the_end(images, row):
    with pytest.raises(IndexError, match=f"row {row} of made"):
        images[row]


def test_iteration_ends(images):
    assert [one.y.item() for one in images] == [4, 3, 2, 1, 0]


def test_it_cannot_be_changed(images):
    with pytest.raises(dataclasses.FrozenInstanceError):
        images.y = None


def test_dataset_equals_a_tensor_dataset(images):
    ours, theirs = images.tensor_dataset(), TensorDataset(images.x, images.y)
    assert len(ours) == len(theirs)
    for mine, his in zip(DataLoader(ours, batch_size=2), DataLoader(theirs, batch_size=2), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, his, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours[-1], theirs[-1], strict=True))
    with pytest.raises(IndexError, match="row 5"):
        ours[5]


def test_dataset_does_not_make_all_floats(images):
    list(DataLoader(images.tensor_dataset(), batch_size=2))
    assert "x" not in vars(images)


def test_dataset_without_targets_gives_one_tuples(images):
    (x,) = dataclasses.replace(images, y=None).tensor_dataset()[3]
    assert torch.equal(x, images.x[3])


def test_it_survives_pickling(images):
    again = pickle.loads(pickle.dumps(images.tensor_dataset())).data
    assert torch.equal(again.x, images.x)


def test_rows_and_targets_must_agree():
    with pytest.raises(DataError, match="5 rows but 4 targets"):
        Data(torch.zeros(5, 2), torch.zeros(4), "made", "train")
    with pytest.raises(DataError, match="5 rows but 1 names of files"):
        Data(torch.zeros(5, 2), None, "made", "train", files=("a",))
    with pytest.raises(DataError, match="no rows"):
        Data(torch.zeros(0, 2), None, "made", "train")


def test_holding_out_is_a_partition_that_never_changes():
    kept, held = held_out_rows(10, 3)
    assert sorted([*kept, *held]) == list(range(10))
    assert held.tolist() == [1, 5, 8]  # frozen: a published split must not move
    assert held_out_rows(10, 0)[0].tolist() == list(range(10))
