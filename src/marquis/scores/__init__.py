"""Score the uncertainty of large networks without a posterior matrix: sketched Lanczos and null-space samples."""

from __future__ import annotations

from marquis.scores.null_space import NullSpacePosterior, null_space
from marquis.scores.sketched_lanczos import SketchedLanczos, sketched_lanczos

__all__ = ["NullSpacePosterior", "SketchedLanczos", "null_space", "sketched_lanczos"]
