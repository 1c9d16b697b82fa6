"""Represent symmetric positive semi-definite matrices over named parameters, with one interface."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch import distributed as dist

from marquis.arguments import checked
from marquis.distributed import group_is_up
from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.io.tensors import split_prefix
from marquis.lazy import lazy_names
from marquis.structures.base import Structure
from marquis.structures.block import Block
from marquis.structures.diagonal import Diagonal
from marquis.structures.full import Full
from marquis.structures.kronecker import Kronecker
from marquis.structures.layout import Layout
from marquis.structures.linalg import NumericalWarning
from marquis.structures.lowrank import LowRank
from marquis.structures.spread import Spread
from marquis.structures.state import unpack

STRUCTURES: dict[str, type[Structure]] = {cls.kind: cls for cls in (Diagonal, Kronecker, Block, Full, LowRank)}
"""Structure by the name that users write."""


@checked
def from_state_dict(state: Mapping[str, Tensor]) -> Structure:
    """Return the structure that `Structure.state_dict` described.

    Raises:
        DataError: When the state is not that of a structure, or incomplete.
        ModelMismatchError: When it is the part of another process, or of one of another number of them.
    """
    kind, layout, meta, tensors = unpack(state)
    if kind == "spread":
        here = [dist.get_rank(), dist.get_world_size()] if group_is_up() else [0, 1]
        if meta.get("process") != here:
            raise ModelMismatchError(
                f"this is a part of a matrix that was spread over processes: that of process and number of processes "
                f"{meta.get('process')}, not {here}. Load it in as many processes, each its own part."
            )
        return Spread(layout, from_state_dict(split_prefix(tensors, "local.")), str(meta["kind"]))
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
    "Spread",
    "Structure",
    "from_state_dict",
]

# Internals, which were public once.
_INTERNALS = {"DiagonalLike": "layout", "Scalar": "layout"} | dict.fromkeys(
    ("DensePiece", "DiagonalPiece", "KroneckerFactors", "KroneckerPiece", "Piece"), "pieces"
)
__getattr__ = lazy_names(__name__, _INTERNALS)
