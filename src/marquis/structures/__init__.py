"""Symmetric positive semi-definite matrices over named parameters, with one interface."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from marquis.arguments import checked
from marquis.errors import DataError, MarquisError
from marquis.lazy import lazy_names
from marquis.structures.base import Structure
from marquis.structures.block import Block
from marquis.structures.diagonal import Diagonal
from marquis.structures.full import Full
from marquis.structures.kronecker import Kronecker
from marquis.structures.layout import Layout
from marquis.structures.linalg import NumericalWarning
from marquis.structures.lowrank import LowRank
from marquis.structures.state import unpack

STRUCTURES: dict[str, type[Structure]] = {cls.kind: cls for cls in (Diagonal, Kronecker, Block, Full, LowRank)}
"""Structure by the name that users write."""


@checked
def from_state_dict(state: Mapping[str, Tensor]) -> Structure:
    """Return the structure that `Structure.state_dict` described.

    Raises:
        DataError: When the state is not that of a structure, or incomplete.
    """
    kind, layout, meta, tensors = unpack(state)
    if kind not in STRUCTURES:
        raise DataError(f"unknown structure {kind!r}; known are {sorted(STRUCTURES)}")
    try:
        return STRUCTURES[kind]._from_state(layout, meta, tensors)
    except MarquisError:
        raise
    except KeyError as error:
        raise DataError(f"the state of the {kind} structure lacks {error}: corrupt file?") from error
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise DataError(f"the state of the {kind} structure is broken ({type(error).__name__}: {error}).") from error


__all__ = [
    "STRUCTURES",
    "Block",
    "Diagonal",
    "Full",
    "Kronecker",
    "Layout",
    "LowRank",
    "NumericalWarning",
    "Structure",
    "from_state_dict",
]

# Internals, which were public once.
_INTERNALS = {"DiagonalLike": "layout", "Scalar": "layout"} | dict.fromkeys(
    ("DensePiece", "DiagonalPiece", "KroneckerFactors", "KroneckerPiece", "Piece"), "pieces"
)
__getattr__ = lazy_names(__name__, _INTERNALS)
