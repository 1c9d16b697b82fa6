"""Laplace while training: the mean moves by your optimiser, the curvature is remembered."""

from __future__ import annotations

from marquis.online.learner import OnlineLaplace
from marquis.online.noisy_adam import NoisyAdam
from marquis.online.settings import PRESETS, Settings
from marquis.online.state import OnlineState

__all__ = ["PRESETS", "NoisyAdam", "OnlineLaplace", "OnlineState", "Settings"]
