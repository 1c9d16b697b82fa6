"""Pictures of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the page's pictures."""
