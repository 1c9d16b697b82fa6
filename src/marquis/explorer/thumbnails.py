"""Write sheets of small images as PNG."""

from __future__ import annotations

import io

import numpy as np

SHEET, ACROSS, EDGE = 1024, 32, 32
"""Images on a sheet, images in one of its rows, and the largest edge of a thumbnail."""


def is_image(rows: np.ndarray) -> bool:
    """Return whether rows `[n, ...]` are images of one or three channels, `[n, C, H, W]`."""
    return rows.ndim == 4 and rows.shape[1] in (1, 3)


def sheet_png(images: np.ndarray, low: float, high: float, edge: int = EDGE) -> bytes:
    """Return up to `SHEET` images `[n, C, H, W]` as one PNG, `ACROSS` in a row; missing pixels are black.

    Args:
        images: The images.
        low: Value that is shown black.
        high: Value that is shown white.
        edge: Largest edge; larger images are averaged down by whole steps.
    """
    step = -(-max(images.shape[2:]) // edge)
    if step > 1:
        height, width = (size // step * step for size in images.shape[2:])
        cut = images[:, :, :height, :width]
        images = cut.reshape(*cut.shape[:2], height // step, step, width // step, step).mean((3, 5))
    span = max(high - low, 1e-12)
    pixels = np.nan_to_num((images - low) / span).clip(0, 1) * 255
    count, channels, height, width = pixels.shape
    down = -(-count // ACROSS)
    sheet = np.zeros((down * ACROSS, channels, height, width), np.uint8)
    sheet[:count] = pixels.round()
    tiled = sheet.reshape(down, ACROSS, channels, height, width).transpose(0, 3, 1, 4, 2)
    return png(tiled.reshape(down * height, ACROSS * width, channels))


def png(pixels: np.ndarray) -> bytes:
    """Return bytes `[H, W, 1 or 3]` as PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
