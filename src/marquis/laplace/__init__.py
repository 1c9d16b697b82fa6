"""Give a trained network a posterior: `Laplace`, `load`, and what they return."""

from __future__ import annotations

from marquis.laplace.check import CheckReport, Finding, MeanShift
from marquis.laplace.fitting import Fitted
from marquis.laplace.laplace import Laplace
from marquis.laplace.load import load

__all__ = ["CheckReport", "Finding", "Fitted", "Laplace", "MeanShift", "load"]
