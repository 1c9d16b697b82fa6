"""Keep a training in one folder: configuration, logs, checkpoints, the finished model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marquis.lazy import lazy_names

if TYPE_CHECKING:
    from marquis.run.directory import Run
    from marquis.run.rows import Rows
    from marquis.run.scaling import Scaling
    from marquis.run.settings import TrainingSettings

__all__ = ["Rows", "Run", "Scaling", "TrainingSettings"]

# The settings alone are all that `marquis train --help` needs.
__getattr__ = lazy_names(
    __name__,
    {"Rows": "rows", "Run": "directory", "Scaling": "scaling", "TrainingSettings": "settings"},
    {"Settings": "TrainingSettings"},
)
