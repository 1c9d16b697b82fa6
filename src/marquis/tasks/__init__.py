"""Use uncertain autoencoders: outliers, missing data, generation, few labels, calibration, geometry.

`ood`, `imputation`, `generation`, `geometry`, `semi_supervised`, `calibration` and `ranking` are modules of functions
on anything with `encode`, `decode` and `reconstruct` (`marquis.autoencoders`), so that every model is compared by the
same code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marquis.tasks import calibration, generation, geometry, imputation, ood, ranking, semi_supervised

__all__ = ["calibration", "generation", "geometry", "imputation", "ood", "ranking", "semi_supervised"]


def __getattr__(name: str) -> Any:
    """Import a module on first use: calibration metrics need no scikit-learn."""
    if name in __all__:
        return import_module(f"marquis.tasks.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers: {', '.join(__all__)}")
