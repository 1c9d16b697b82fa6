"""Digits, UCI, and the real files where they are at hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from marquis.data import load
from marquis.data.registry import SETS
from marquis.errors import DataError


def test_digits():
    train, test, everything = (load("digits", split) for split in ("train", "test", "all"))
    assert train.shape == (1438, 1, 8, 8) and test.shape == (359, 1, 8, 8) and len(everything) == 1797
    assert torch.equal(everything.x[:, 0] * 16, torch.from_numpy(load_digits().images).float())
    assert torch.equal(everything.y, torch.from_numpy(load_digits().target))
    assert everything.x.min() == 0 and everything.x.max() == 1
    rows = {image.numpy().tobytes() for image in train.x}
    assert sum(image.numpy().tobytes() in rows for image in test.x) == 0  # no digit is in both
    assert test.y.bincount().min() > 20  # every class is in the test set
    assert load("digits").split == "train"
    # frozen: results on this split are published
    assert hashlib.sha256(test.y.numpy().tobytes()).hexdigest()[:16] == TEST_LABELS


TEST_LABELS = "5e16b38c1047ccb1"


@pytest.fixture
def uci(tmp_path, monkeypatch):
    """A UCI set of ten rows: returns its folder, its arrays, and a way to write them anew."""
    random = np.random.default_rng(0)
    arrays = {
        "X": random.normal(size=(10, 2)) * 100,
        "y": random.normal(size=10),
        "std_test_mask": np.eye(10, dtype=bool)[:4],
        "gap_test_mask": np.arange(20).reshape(2, 10) % 3 == 0,
    }

    def write(**changes) -> None:
        path = tmp_path / "uci" / "boston.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
        known = replace(
            SETS["uci/boston"].files[0], shape=(10, 2), sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        monkeypatch.setitem(SETS, "uci/boston", replace(SETS["uci/boston"], files=(known,)))

    write()
    return tmp_path, arrays, write


@pytest.mark.parametrize(("kind", "key", "folds"), [("standard", "std_test_mask", 4), ("gap", "gap_test_mask", 2)])
def test_uci_splits(uci, kind, key, folds):
    folder, arrays, _ = uci
    for fold in range(folds):
        mask = arrays[key][fold]
        for split, rows in (("test", mask), ("train", ~mask), ("all", mask | ~mask)):
            data = load("uci/boston", split, folder, kind=kind, fold=fold, dtype=torch.float64)
            np.testing.assert_array_equal(data.x.numpy(), arrays["X"][rows])  # not normalised
            np.testing.assert_array_equal(data.y.numpy(), arrays["y"][rows][:, None])
    for fold in (-1, folds):
        with pytest.raises(DataError, match=f"fold {fold} of kind '{kind}' does not exist; there are 0 to {folds - 1}"):
            load("uci/boston", "train", folder, kind=kind, fold=fold)


def test_uci_defaults(uci):
    folder, arrays, _ = uci
    data = load("uci/boston", data_dir=folder)
    assert data.split == "train" and data.x.dtype == data.y.dtype == torch.float32
    np.testing.assert_array_equal(data.x.numpy(), arrays["X"][~arrays["std_test_mask"][0]].astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "lacks y; it has X, std_test_mask, gap_test_mask"),
        ({"X": np.zeros((9, 2))}, "does not hold uci/boston"),
        ({"y": np.zeros(9)}, "does not hold uci/boston"),
        ({"gap_test_mask": np.zeros((2, 9), bool)}, "does not hold uci/boston"),
        ({"std_test_mask": np.zeros((2, 10), int)}, "does not hold uci/boston"),
    ],
)
def test_uci_files_that_are_refused(uci, changes, message):
    folder, _, write = uci
    write(**changes)
    with pytest.raises(DataError, match=f"boston.npz .*{message}"):
        load("uci/boston", "train", folder)


def test_uci_other_refusals(uci):
    folder, arrays, _ = uci
    with pytest.raises(DataError, match=r"kind 'random' is not known.*'standard', 'gap'"):
        load("uci/boston", "train", folder, kind="random")
    with pytest.raises(DataError, match="split 'validation' is not known"):
        load("uci/boston", "validation", folder)
    np.savez(folder / "uci" / "boston.npz", **{**arrays, "y": arrays["y"] + 1})
    with pytest.raises(DataError, match=r"boston.npz is not the file it should be"):
        load("uci/boston", "train", folder)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_real_test_sets(shared, name):
    data = load(name, "test", shared, download=False)
    assert data.shape == (10000, 1, 28, 28)
    assert (
        data.y.bincount().tolist()
        == {
            "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
            "fashion-mnist": [1000] * 10,
            "kmnist": [1000] * 10,
        }[name]
    )


def test_real_training_set(shared):
    data = load("mnist", "train", shared, download=False)
    assert data.shape == (60000, 1, 28, 28)
    mean = data.stored.double().mean().item() / 255
    assert abs(mean - 0.1307) < 1e-4  # the constant that everyone normalises MNIST with


def test_real_uci_sets(shared):
    for name, rows, columns, folds in (("boston", 506, 13, 20), ("wine", 1599, 11, 20), ("protein", 45730, 9, 5)):
        train, test = (load(f"uci/{name}", s, shared, fold=folds - 1) for s in ("train", "test"))
        assert len(train) + len(test) == rows and train.shape[1] == columns
        gap = load(f"uci/{name}", "test", shared, kind="gap", fold=columns - 1)
        column = load(f"uci/{name}", "all", shared).x[:, columns - 1]
        inside = gap.x[:, columns - 1]
        # the gap is the middle third of that feature
        assert (column < inside.min()).sum() <= rows / 3 + 1 and (column > inside.max()).sum() <= rows / 3 + 1


def test_real_celeba(shared):
    if not (shared / "celeba64").is_dir():
        pytest.skip("CelebA may not be passed on, so it is in few places")
    data = load("celeba", "test", shared, limit=50)
    assert data.shape == (50, 3, 64, 64) and data.y.shape == (50, 40)
    assert data.target_names[20] == "Male" and data.stored.dtype == torch.uint8
