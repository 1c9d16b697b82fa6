"""Folders of images and CelebA, with pictures made on the spot."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from marquis.data import load
from marquis.data.registry import SETS
from marquis.errors import DataError


def picture(seed: int, height: int = 5, width: int = 4, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, array: np.ndarray):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def test_a_flat_folder(tmp_path):
    folder = tmp_path / "images"
    for i in (2, 0, 1):
        save(folder / f"{i}.png", picture(i))
    (folder / "notes.txt").write_text("not an image")
    (folder / ".hidden.png").write_text("not an image either")
    data = load(folder)
    assert data.y is None and data.target_names is None and data.split == "all"
    for i in range(3):  # by name, and bit by bit
        np.testing.assert_array_equal(data.stored[i].numpy(), picture(i).transpose(2, 0, 1))
    assert data.x.shape == (3, 3, 5, 4) and data.x.max() <= 1
    assert len(load(folder, limit=2)) == 2


def test_class_folders(tmp_path):
    save(tmp_path / "dogs" / "1.PNG", picture(0, channels=1))
    save(tmp_path / "cats" / "1.png", picture(1, channels=1))
    save(tmp_path / "cats" / "2.png", picture(2, channels=1))
    (tmp_path / "empty").mkdir()
    data = load(tmp_path)
    assert data.target_names == ("cats", "dogs") and data.y.tolist() == [0, 0, 1]
    assert data.shape == (3, 1, 5, 4)
    np.testing.assert_array_equal(data.stored[2, 0].numpy(), picture(0, channels=1))


def test_folders_for_splits(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for i in range(count):
            save(tmp_path / split / "a" / f"{i}.png", picture(i))
    assert len(load(tmp_path, "train")) == 3 and len(load(tmp_path, "test")) == 2
    with pytest.raises(DataError, match="ask for one of these splits"):
        load(tmp_path, "all")


def test_held_out_images(tmp_path):
    for i in range(6):
        save(tmp_path / f"{i}.png", picture(i))
    train, test = load(tmp_path, "train"), load(tmp_path, "test")
    assert (len(train), len(test)) == (5, 1)
    everything = torch.cat([train.x, test.x]).flatten(1).sum(1).sort().values
    assert torch.equal(everything, load(tmp_path).x.flatten(1).sum(1).sort().values)


def test_one_colour_image_makes_all_colour(tmp_path):
    save(tmp_path / "0.png", picture(0, channels=1))
    save(tmp_path / "1.png", picture(1))
    data = load(tmp_path)
    assert data.shape == (2, 3, 5, 4)
    assert torch.equal(data.stored[0, 0], data.stored[0, 2])


def test_sizes_must_agree_or_be_given(tmp_path):
    save(tmp_path / "0.png", picture(0))
    save(tmp_path / "1.png", picture(1, height=9, width=6))
    with pytest.raises(DataError, match=r"1.png has 6x9 pixels, but .*0.png has 4x5; give `size`"):
        load(tmp_path)
    assert load(tmp_path, size=8).shape == (2, 3, 8, 8)
    # the largest centred square, exactly: rows 1..6 of 9, at a size that needs no resampling
    np.testing.assert_array_equal(load(tmp_path, size=6).stored[1].numpy(), picture(1, 9, 6)[1:7].transpose(2, 0, 1))


def test_photographs_are_turned_upright(tmp_path):
    array = np.zeros((4, 8, 3), np.uint8)
    array[:, :4] = 255  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees clockwise to view"
    Image.fromarray(array).save(tmp_path / "0.png", exif=exif)
    data = load(tmp_path)
    assert data.shape == (1, 3, 8, 4)
    assert data.x[0, :, :4].min() == 1 and data.x[0, :, 4:].max() == 0  # white on top


def test_damaged_images_are_named(tmp_path):
    for i in range(2):
        save(tmp_path / f"{i}.png", picture(i, 40, 40))
    whole = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1.png is truncated or corrupt"):
        load(tmp_path)
    (tmp_path / "1.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"1.png is not an image"):
        load(tmp_path)


def test_sixteen_bits_are_refused_rather_than_cut(tmp_path):
    save(tmp_path / "0.png", np.full((4, 4), 40000, np.uint16))
    with pytest.raises(DataError, match=r"0.png has pixels of kind 'I.*only images of 8 bits"):
        load(tmp_path)


def test_folders_that_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no images"):
        load(tmp_path / "empty")
    save(tmp_path / "both" / "0.png", picture(0))
    save(tmp_path / "both" / "sub" / "1.png", picture(1))
    with pytest.raises(DataError, match="keep one or the other"):
        load(tmp_path / "both")
    save(tmp_path / "few" / "0.png", picture(0))
    with pytest.raises(DataError, match="at least five"):
        load(tmp_path / "few", "test")


def test_deep_folders_are_not_left_out_in_silence(tmp_path):
    for i in range(6):
        save(tmp_path / "nested" / "a" / "b" / f"{i}.png", picture(i))
        save(tmp_path / "nested" / "c" / f"{i}.png", picture(i))
        save(tmp_path / "flat" / f"{i}.png", picture(i))
    message = r"nested/a/b has images, but only those in .*nested and in its sub-folders .* the path .*nested/a$"
    with pytest.raises(DataError, match=message):
        load(tmp_path / "nested")
    assert len(load(tmp_path / "nested" / "a")) == 6
    save(tmp_path / "flat" / "x" / "y" / "z" / "0.png", picture(0))
    with pytest.raises(DataError, match=r"flat/x/y/z has images"):
        load(tmp_path / "flat")
    save(tmp_path / "only" / "x" / "y" / "0.png", picture(0))
    with pytest.raises(DataError, match=r"only/x/y has images"):
        load(tmp_path / "only")
    for split in ("train", "test"):
        save(tmp_path / "splits" / split / "a" / "0.png", picture(0))
    save(tmp_path / "splits" / "test" / "a" / "b" / "0.png", picture(0))
    assert len(load(tmp_path / "splits", "train")) == 1
    with pytest.raises(DataError, match=r"splits/test/a/b has images"):
        load(tmp_path / "splits", "test")


def test_deep_folders_without_images_do_no_harm(tmp_path):
    save(tmp_path / "a" / "0.png", picture(0))
    (tmp_path / "a" / "notes").mkdir()
    (tmp_path / "a" / "notes" / "read.txt").write_text("nothing to see")
    save(tmp_path / "a" / ".thumbnails" / "0.png", picture(1))
    save(tmp_path / ".trash" / "0.png", picture(2))
    (tmp_path / "a" / "circle").symlink_to(tmp_path / "a" / "notes", target_is_directory=True)
    (tmp_path / "a" / "notes" / "up").symlink_to(tmp_path, target_is_directory=True)
    data = load(tmp_path)
    assert data.target_names == ("a",) and data.files == ("a/0.png",)


def test_links_to_deep_folders_are_not_left_out_in_silence(tmp_path):
    save(tmp_path / "elsewhere" / "0.png", picture(0))
    save(tmp_path / "here" / "a" / "0.png", picture(0))
    (tmp_path / "here" / "a" / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(DataError, match=r"here/a/link has images"):
        load(tmp_path / "here")


def test_names_of_files_go_with_the_rows(tmp_path):
    for i in range(6):
        save(tmp_path / ("cats" if i % 2 else "dogs") / f"{i}.png", picture(i))
    data = load(tmp_path)
    assert data.files == ("cats/1.png", "cats/3.png", "cats/5.png", "dogs/0.png", "dogs/2.png", "dogs/4.png")
    for part in (data, load(tmp_path, "train"), load(tmp_path, "test"), load(tmp_path, limit=2), data[data.y == 1]):
        assert len(part.files) == len(part)
        for name, image in zip(part.files, part.stored, strict=True):
            np.testing.assert_array_equal(image.numpy(), picture(int(name[5])).transpose(2, 0, 1))
    save(tmp_path / "parts" / "train" / "b.png", picture(0))
    save(tmp_path / "parts" / "test" / "a.png", picture(1))
    assert load(tmp_path / "parts", "test").files == ("test/a.png",)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_of_nothing(tmp_path, size):
    save(tmp_path / "0.png", picture(0))
    with pytest.raises(DataError, match=f"size is {size}"):
        load(tmp_path, size=size)
    assert load(tmp_path, size=1).shape == (1, 3, 1, 1)


def jpeg(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


@pytest.fixture
def celeba_npz(tmp_path, monkeypatch):
    """Five noise images in the layout of the npz file: returns the folder, the encoded images and attributes."""
    encoded = [jpeg(picture(i, 64, 64)) for i in range(5)]
    attributes = np.random.default_rng(1).integers(0, 2, (5, 40), dtype=np.uint8)
    names = np.array([f"attribute_{i}" for i in range(40)])

    def write(**changes) -> None:
        arrays = {
            "jpeg": np.frombuffer(b"".join(encoded), np.uint8),
            "offsets": np.cumsum([0, *map(len, encoded)]),
            "attr": np.packbits(attributes, axis=1),
            "attr_names": names,
            "partition": np.array([0, 1, 0, 2, 0], np.uint8),
            **changes,
        }
        path = tmp_path / "celeba64" / "celeba64_20k_jpeg.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
        known = replace(SETS["celeba"].files[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        monkeypatch.setitem(SETS, "celeba", replace(SETS["celeba"], files=(known,)))

    write()
    return tmp_path, encoded, attributes, write


def test_celeba_from_npz(celeba_npz):
    folder, encoded, attributes, _ = celeba_npz
    for split, rows in (("train", [0, 2, 4]), ("validation", [1]), ("test", [3]), ("all", [0, 1, 2, 3, 4])):
        data = load("celeba", split, folder)
        expected = np.stack([np.asarray(Image.open(io.BytesIO(encoded[i]))).transpose(2, 0, 1) for i in rows])
        np.testing.assert_array_equal(data.stored.numpy(), expected)
        np.testing.assert_array_equal(data.y.numpy(), attributes[rows])
        assert data.y.dtype == torch.float32 and data.target_names[7] == "attribute_7"
    assert len(load("celeba", "train", folder, limit=2)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": None}, "lacks partition"),
        ({"offsets": np.arange(6)}, "contradict each other"),
        ({"attr": np.zeros((4, 5), np.uint8)}, "contradict each other"),
    ],
)
def test_celeba_npz_that_is_refused(celeba_npz, changes, message):
    folder, _, _, write = celeba_npz
    write(**changes)
    with pytest.raises(DataError, match=f"celeba64_20k_jpeg.npz .*{message}"):
        load("celeba", "train", folder)


def test_celeba_with_one_damaged_image(celeba_npz):
    folder, encoded, _, write = celeba_npz
    encoded[2] = encoded[2][:300]
    write()
    with pytest.raises(DataError, match=r"image 2 of .*celeba64_20k_jpeg.npz is truncated or corrupt"):
        load("celeba", "train", folder)
    assert len(load("celeba", "test", folder)) == 1


@pytest.fixture
def celeba_folder(tmp_path):
    """Four images in the official layout, 178x218."""
    folder = tmp_path / "celeba"
    signs = [(1, -1), (-1, -1), (-1, 1), (1, 1)]
    for i in range(4):
        save(folder / "img_align_celeba" / f"00000{i + 1}.png", picture(i, 218, 178))
    lines = ["4", "Bald Young ", *(f"00000{i + 1}.png {a:2d} {b:2d}" for i, (a, b) in enumerate(signs))]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("000001.png 0\n000002.png 0\n000003.png 1\n000004.png 2\n")
    return tmp_path


def test_celeba_from_the_official_folder(celeba_folder):
    train = load("celeba", "train", celeba_folder)
    assert train.shape == (2, 3, 64, 64) and train.target_names == ("Bald", "Young")
    assert train.y.tolist() == [[1, 0], [0, 0]]
    middle = Image.fromarray(picture(1, 218, 178)[35:183, 15:163]).resize((64, 64), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(train.stored[1].numpy(), np.asarray(middle).transpose(2, 0, 1))
    assert load("celeba", "validation", celeba_folder).y.tolist() == [[0, 1]]
    assert load("celeba", "test", celeba_folder / "celeba").y.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("list_eval_partition.txt", "000001.png 3\n", "every line should be a file name and 0, 1 or 2"),
        ("list_attr_celeba.txt", "1\nBald Young\n000001.png 1\n", "no 2 values of -1 or 1 for 000001.png"),
        ("list_attr_celeba.txt", "", "no 40 values"),
    ],
)
def test_celeba_lists_that_are_refused(celeba_folder, file, text, message):
    (celeba_folder / "celeba" / file).write_text(text)
    with pytest.raises(DataError, match=f"{file} is corrupt: {message}"):
        load("celeba", "train", celeba_folder)


def test_celeba_files_that_are_missing(celeba_folder):
    (celeba_folder / "celeba" / "img_align_celeba" / "000002.png").unlink()
    with pytest.raises(DataError, match=r"000002.png .*No such file"):
        load("celeba", "train", celeba_folder)
    (celeba_folder / "celeba" / "list_attr_celeba.txt").unlink()
    with pytest.raises(DataError, match=r"list_attr_celeba.txt cannot be read"):
        load("celeba", "train", celeba_folder)
