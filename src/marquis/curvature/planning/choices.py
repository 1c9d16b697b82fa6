"""List the combinations of structure and estimator that make sense."""

from __future__ import annotations

from marquis.choices import choose
from marquis.errors import DataError, UnsupportedOperationError
from marquis.structures import STRUCTURES

ESTIMATORS = ("exact", "sketched", "approximate", "mixed")
"""How the network is differentiated; see `marquis.curvature.ggn`."""

SHARING_ESTIMATORS = ("exact", "sketched")
"""Those that can share a forward pass with the loss."""


def check_choices(structure: str, estimator: str, probes: int) -> tuple[str, str]:
    """Return structure and estimator as the package writes them; refuse combinations that make no sense."""
    structure, estimator = choose("structure", structure, STRUCTURES), choose("estimator", estimator, ESTIMATORS)
    if estimator in ("approximate", "mixed") and structure != "diagonal":
        raise UnsupportedOperationError(
            f"estimator='{estimator}' carries only the diagonal of the curvature between layers, so it has nothing "
            f"to put into structure='{structure}'; use estimator='exact' or 'sketched', or structure='diagonal'."
        )
    if estimator == "sketched" and probes < 1:
        raise DataError(f"probes={probes}: a sketch needs at least one random column.")
    return structure, estimator
