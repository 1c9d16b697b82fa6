"""A training and all that belongs to it in one folder: configuration, logs, checkpoints, the finished model."""

from __future__ import annotations

from marquis.run.directory import Run
from marquis.run.rows import Rows
from marquis.run.scaling import Scaling
from marquis.run.settings import Settings

__all__ = ["Rows", "Run", "Scaling", "Settings"]
