"""Load folders of images, and decode images as CelebA needs it too."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from marquis.data.limits import require_fits
from marquis.data.value import Data, rows_at_random, rows_of_split
from marquis.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Result = TypeVar("Result")
_WORKERS = min(os.cpu_count() or 1, 8)
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
_GREY = frozenset({"1", "L", "LA", "La"})
_EIGHT_BITS = _GREY | {"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


def load_image_folder(
    folder: Path,
    split: str,
    *,
    size: int | None = None,
    limit: int | None = None,
    some: int | None = None,
    seed: int = 0,
) -> Data:
    """Load a folder of images: flat, or one sub-folder per class.

    With sub-folders `train` and `test` these are the splits; otherwise `"train"` and `"test"` hold out one
    image in five with seed 42, and `"all"` is everything. Files are taken in the order of their names, which are kept
    in `files`; hidden ones are not data.
    Images are grey (one channel) if all files are, else RGB; transparency is dropped. With `size` the largest centred
    square is cropped and resized; without it all images must have the same size. Of the first `limit` images of the
    split, `some` random ones are decoded.
    """
    name = str(folder)
    has_splits = (folder / "train").is_dir() and (folder / "test").is_dir()
    if has_splits and split == "all":
        raise DataError(f"{folder} has sub-folders train and test: ask for one of these splits, or give its path")
    files, labels, classes = _list_images(folder / split if has_splits else folder)
    rows = rows_of_split(len(files), "all" if has_splits else split)[:limit]
    rows = rows if some is None else rows[rows_at_random(len(rows), some, seed)]
    if len(rows) == 0:
        raise DataError(f"{folder}: split {split!r} of {len(files)} images has none; at least five are needed to split")
    pixels = decode_images([files[i] for i in rows], [str(files[i]) for i in rows], size=size)
    y = torch.tensor([labels[i] for i in rows]) if classes else None
    names = tuple(files[i].relative_to(folder).as_posix() for i in rows)
    return Data(pixels, y, name, split, target_names=classes or None, source=name, files=names)


def _list_images(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Return image files, their class indices, and the classes' names (empty for a flat folder)."""
    flat, subs = _images_and_folders(folder)
    deep = next((inner for sub in subs for inner in _folders_below(sub) if _images_and_folders(inner)[0]), None)
    if deep is not None:
        raise DataError(
            f"{deep} has images, but only those in {folder} and in its sub-folders are read, none deeper; "
            f"move them up, or give the path {deep.parent}"
        )
    per_class = [(sub, files) for sub in subs if (files := _images_and_folders(sub)[0])]
    if flat and per_class:
        raise DataError(
            f"{folder} has images and also sub-folders with images ({per_class[0][0].name}, ...); keep one or the other"
        )
    if not flat and not per_class:
        raise DataError(f"{folder} has no images ({', '.join(sorted(SUFFIXES))}), nor have its sub-folders")
    if flat:
        return flat, [], ()
    files = [file for _, group in per_class for file in group]
    labels = [index for index, (_, group) in enumerate(per_class) for _ in group]
    return files, labels, tuple(sub.name for sub, _ in per_class)


def _images_and_folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return images and folders directly in a folder, by name, without hidden ones."""
    images, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(path)
                elif path.suffix.lower() in SUFFIXES and entry.is_file():
                    images.append(path)
    except OSError as problem:
        raise DataError(f"{folder} cannot be read: {problem.strerror or problem}") from problem
    return sorted(images), sorted(folders)


def _folders_below(folder: Path) -> Iterator[Path]:
    """Return all folders below a folder; links are listed but not followed, as they may lead in a circle."""
    for sub in _images_and_folders(folder)[1]:
        yield sub
        if not sub.is_symlink():
            yield from _folders_below(sub)


def decode_images(
    sources: Sequence[Path | bytes],
    names: Sequence[str],
    *,
    size: int | None = None,
    channels: int | None = None,
    crop: int | None = None,
) -> Tensor:
    """Decode images into one uint8 tensor `[N, C, H, W]`, on all cores (pillow decodes without the GIL).

    Args:
        sources: Paths, or encoded bytes.
        names: What to call each in an error message.
        size: Edge length after a centred square crop; None keeps the images as they are.
        channels: 1 or 3; None looks at all images first.
        crop: Edge of the centred square before resizing; None takes the largest that fits.
    """
    workers = ThreadPoolExecutor(max_workers=_WORKERS)
    with workers:
        if channels is None:
            headers = list(workers.map(_header, sources, names))
            channels = 1 if all(mode in _GREY for mode, _ in headers) else 3
            _require_room([pixels for _, pixels in headers], channels, size, f"{names[0]}, ...")
        first = _decode(sources[0], names[0], size, channels, crop)
        result = np.empty((len(sources), *first.shape), np.uint8)

        def decode_into_result(index: int) -> None:
            image = _decode(sources[index], names[index], size, first.shape[0], crop)
            if image.shape != first.shape:
                raise DataError(
                    f"{names[index]} has {image.shape[2]}x{image.shape[1]} pixels, but {names[0]} has "
                    f"{first.shape[2]}x{first.shape[1]}; give `size` to bring them to one size"
                )
            result[index] = image

        for _ in workers.map(decode_into_result, range(len(sources))):
            pass
    return torch.from_numpy(result)


def _header(source: Path | bytes, name: str) -> tuple[str, int]:
    """Return mode and number of pixels of an image; reads the header only."""
    return _with_image(source, name, lambda image: (image.mode, image.width * image.height))


def _require_room(pixels: Sequence[int], channels: int, size: int | None, where: str) -> None:
    """Refuse images whose result, or whose largest ones while they are decoded, would not fit into memory."""
    result = channels * sum(pixels) if size is None else channels * size**2 * len(pixels)
    decoding = 4 * sum(sorted(pixels)[-_WORKERS:])  # at most 4 bytes for each pixel, as many images as workers
    require_fits(result + decoding, where, f"{len(pixels)} images of up to {max(pixels) / 1e6:,.1f} million pixels")


def _decode(source: Path | bytes, name: str, size: int | None, channels: int, crop: int | None) -> np.ndarray:
    """Decode one image to uint8 `[C, H, W]`, upright, cropped and resized."""

    def pixels(image: Image.Image) -> np.ndarray:
        from PIL import Image, ImageOps

        if image.mode not in _EIGHT_BITS:
            raise DataError(f"{name} has pixels of kind {image.mode!r}; only images of 8 bits per channel are read")
        image = ImageOps.exif_transpose(image)
        image = image.convert("L" if channels == 1 else "RGB")
        if size is not None:
            edge = min(image.size) if crop is None else crop
            left, top = (image.width - edge) // 2, (image.height - edge) // 2
            box = (left, top, left + edge, top + edge)
            if (image.size, box) != ((size, size), (0, 0, size, size)):
                image = image.crop(box).resize((size, size), Image.Resampling.LANCZOS)
        array = np.asarray(image)
        return array[None] if channels == 1 else array.transpose(2, 0, 1)

    return _with_image(source, name, pixels)


def _with_image(source: Path | bytes, name: str, use: Callable[[Image.Image], Result]) -> Result:
    """Open an image, use it, and name the file in whatever goes wrong."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            return use(image)
    except UnidentifiedImageError as problem:
        raise DataError(f"{name} is not an image that pillow can read") from problem
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as problem:
        raise DataError(f"{name} is truncated or corrupt: {problem}") from problem
