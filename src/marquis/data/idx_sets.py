"""MNIST and its relatives: two idx files per split."""

from __future__ import annotations

import os

import numpy as np
import torch

from marquis.data.download import find_or_download
from marquis.data.files import read_known
from marquis.data.idx import parse_idx
from marquis.data.registry import NamedSet
from marquis.data.value import Data
from marquis.errors import DataError


def load_idx_set(named: NamedSet, split: str, data_dir: str | os.PathLike[str] | None, *, download: bool) -> Data:
    """Read images and labels of one split (`"all"`: training rows, then test rows)."""
    paths = find_or_download(named, split, data_dir, download=download)
    arrays = []
    for path, known in zip(paths, named.files_of(split), strict=True):
        array = read_known(path, known, parse_idx)
        if array.shape != known.shape or array.dtype != np.uint8:
            raise DataError(
                f"{path} holds {array.dtype} of shape {array.shape}, but {named.name} has bytes of shape {known.shape}"
            )
        arrays.append(array)
    # Copies, because arrays over a file's bytes are read-only and torch needs to be able to write.
    images = torch.from_numpy(np.concatenate(arrays[0::2])).unsqueeze(1)
    labels = torch.from_numpy(np.concatenate(arrays[1::2])).long()
    return Data(images, labels, named.name, split, source=str(paths[0].parent))
