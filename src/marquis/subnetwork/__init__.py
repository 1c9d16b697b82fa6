"""Which weights get a posterior: the last layer, or single weights that matter most."""

from __future__ import annotations

from marquis.subnetwork.choose import Chosen, Subnetwork
from marquis.subnetwork.curvature import subcurvature
from marquis.subnetwork.function import function_of_chosen
from marquis.subnetwork.last_layer import last_layer
from marquis.subnetwork.swag import swag_moments, swag_variance

__all__ = ["Chosen", "Subnetwork", "function_of_chosen", "last_layer", "subcurvature", "swag_moments", "swag_variance"]
