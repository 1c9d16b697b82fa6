"""Choose which weights get a posterior: the last layer, or single weights that matter most."""

from __future__ import annotations

from marquis.lazy import lazy_names
from marquis.subnetwork.choose import Subnetwork
from marquis.subnetwork.swag import swag_moments, swag_variance

__all__ = ["Subnetwork", "swag_moments", "swag_variance"]

# Internals, which were public once.
__getattr__ = lazy_names(
    __name__,
    {"Chosen": "choose", "function_of_chosen": "choose", "subcurvature": "curvature"},
)
