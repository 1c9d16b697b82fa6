"""Load CelebA at 64x64: the official folder, or the npz file of 20000 encoded images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from marquis.data.files import read_bytes, read_known, read_npz
from marquis.data.images import decode_images
from marquis.data.registry import NamedSet
from marquis.data.search import data_roots, find_file, missing_files_error
from marquis.data.value import Data
from marquis.errors import DataError

SIZE = 64
# The centred square of the 178x218 originals that is the face with little background; the npz file has the same.
CROP = 148
_PARTITIONS = {"train": 0, "validation": 1, "test": 2}
_IMAGES, _ATTRIBUTES, _SPLITS = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"


def load_celeba(
    named: NamedSet, split: str, data_dir: str | os.PathLike[str] | None, *, limit: int | None = None
) -> Data:
    """Load images 3x64x64 and 40 attributes (0 or 1, as floats, so that a Bernoulli likelihood takes them).

    The official folder is taken where both are present. All of it is 162770 training images: 2 GB as bytes and
    some minutes to decode; `limit` reads only the first images of the split.
    """
    folder = find_official(data_dir)
    if folder is not None:
        return _from_folder(folder, split, limit)
    path = find_file(named, named.files[0], data_dir)
    if path is None:
        raise missing_files_error(named, list(named.files), data_dir)
    return _from_npz(path, named, split, limit)


def find_official(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the first data folder that has the official layout, itself or in a sub-folder `celeba`."""
    for root in data_roots(data_dir):
        for folder in (root / "celeba", root):
            if (folder / _IMAGES).is_dir():
                return folder
    return None


def _from_npz(path: Path, named: NamedSet, split: str, limit: int | None) -> Data:
    """Decode only the images of the split."""
    arrays = read_known(path, named.files[0], read_npz)
    absent = [k for k in ("jpeg", "offsets", "attr", "attr_names", "partition") if k not in arrays]
    if absent:
        raise DataError(f"{path} lacks {', '.join(absent)}")
    jpeg, offsets, partition = arrays["jpeg"], arrays["offsets"], arrays["partition"]
    if len(offsets) != len(partition) + 1 or offsets[-1] != len(jpeg) or len(arrays["attr"]) != len(partition):
        raise DataError(f"{path} is corrupt: its offsets, attributes and partition contradict each other")
    rows = _rows(partition, split)[:limit]
    encoded = [jpeg[offsets[i] : offsets[i + 1]].tobytes() for i in rows]
    images = decode_images(encoded, [f"image {i} of {path}" for i in rows], size=SIZE, channels=3)
    names = tuple(str(n) for n in arrays["attr_names"])
    attributes = np.unpackbits(arrays["attr"][rows], axis=1)[:, : len(names)]
    return Data(images, torch.from_numpy(attributes).float(), named.name, split, target_names=names, source=str(path))


def _from_folder(folder: Path, split: str, limit: int | None) -> Data:
    """Read the two lists and decode the images of the split."""
    partition_path, attribute_path = folder / _SPLITS, folder / _ATTRIBUTES
    partition = [line.split() for line in read_bytes(partition_path).decode().splitlines() if line.strip()]
    if not all(len(line) == 2 and line[1] in ("0", "1", "2") for line in partition):
        raise DataError(f"{partition_path} is corrupt: every line should be a file name and 0, 1 or 2")
    lines = read_bytes(attribute_path).decode().splitlines()
    names = tuple(lines[1].split()) if len(lines) > 1 else ()
    signs = {fields[0]: fields[1:] for fields in (line.split() for line in lines[2:]) if fields}

    rows = _rows(np.array([int(line[1]) for line in partition]), split)[:limit]
    files = [partition[i][0] for i in rows]
    attributes = np.zeros((len(files), len(names)), np.float32)
    for row, file in enumerate(files):
        values = signs.get(file, [])
        if not names or len(values) != len(names) or not set(values) <= {"-1", "1"}:
            raise DataError(f"{attribute_path} is corrupt: no {len(names) or 40} values of -1 or 1 for {file}")
        attributes[row] = [value == "1" for value in values]
    paths = [folder / _IMAGES / file for file in files]
    images = decode_images(paths, [str(p) for p in paths], size=SIZE, channels=3, crop=CROP)
    return Data(images, torch.from_numpy(attributes), "celeba", split, target_names=names, source=str(folder))


def _rows(partition: np.ndarray, split: str) -> np.ndarray:
    """Return the rows of a split in the official partition."""
    return np.arange(len(partition)) if split == "all" else np.flatnonzero(partition == _PARTITIONS[split])
