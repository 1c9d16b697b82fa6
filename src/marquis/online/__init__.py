"""Learn a Laplace posterior while training: the mean moves by your optimiser, the curvature is a running average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marquis.lazy import lazy_names

if TYPE_CHECKING:
    from marquis.online.learner import OnlineLaplace
    from marquis.online.noisy_adam import NoisyAdam
    from marquis.online.settings import PRESETS, OnlineSettings
    from marquis.online.state import OnlineState

__all__ = ["PRESETS", "NoisyAdam", "OnlineLaplace", "OnlineSettings", "OnlineState"]

# The settings alone are all that `marquis train --help` needs; torch is loaded with the learner.
__getattr__ = lazy_names(
    __name__,
    {
        "PRESETS": "settings",
        "OnlineSettings": "settings",
        "OnlineLaplace": "learner",
        "NoisyAdam": "noisy_adam",
        "OnlineState": "state",
    },
    {"Settings": "OnlineSettings"},
)
