"""Estimate the eigenvalues along Kronecker eigenvectors in a second pass over the data (EKFAC)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from marquis.curvature.data_pass import DataPass, Position
from marquis.curvature.over_processes import sum_over_processes
from marquis.distributed import guarded
from marquis.errors import DataError
from marquis.loaders import Batch, refuse_one_shot
from marquis.progress import ProgressBar
from marquis.structures import Kronecker, Structure
from marquis.structures.corrected import CorrectedPiece
from marquis.structures.pieces import KroneckerPiece

Bases = dict[str, CorrectedPiece]


def corrected(
    plain: Kronecker,
    loader: Iterable[Any],
    work: DataPass,
    along: Callable[[Bases, Batch], Structure],
    bar: ProgressBar,
    in_group: bool,
    identity: str,
) -> Kronecker:
    """Return the structure with every pair of factors replaced by its eigenvectors and the curvature along them.

    With the estimator `exact` that is the diagonal of the exact block in the Kronecker eigenbasis, which no other
    eigenvalues come nearer to in Frobenius norm (docs/method/kronecker.md#eigenvalue-correction).
    """
    refuse_one_shot(loader, "corrected=True")
    bases: Bases = {n: CorrectedPiece.of(p, n) for n, p in plain.pieces.items() if isinstance(p, KroneckerPiece)}
    if not bases:
        return plain
    again = replace(
        work, each=lambda batch: along(bases, batch), skipped=None, file=None, at=Position(), done=[], skip=None
    )
    again.run(guarded(loader) if in_group else loader, bar)
    total = again.total()
    if in_group:
        total = sum_over_processes(total, identity)
    if total is None:
        raise DataError("the loader yields no batches the second time; corrected=True passes over the data twice.")
    assert isinstance(total, Kronecker)
    return Kronecker(plain.layout, {**plain.pieces, **total.pieces}, plain.scale, plain.shift)
