"""Images from few linear measurements, with an error bar on every pixel."""

from __future__ import annotations

from marquis.tomography.geometry import FanBeam, ParallelBeam

__all__ = ["FanBeam", "ParallelBeam"]
