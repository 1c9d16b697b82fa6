"""Factorise matrices so that the result is right, or says that it is not, or an error is raised."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.structures.layout import Scalar

JITTER_START = 1e-8
JITTER_STEPS = 5


class NumericalWarning(UserWarning):
    """Warn that a result was obtained only after a small change of the matrix."""


def resolution(size: int, dtype: torch.dtype) -> float:
    """Return the relative size below which a pivot or eigenvalue cannot be told from rounding."""
    return 4.0 * math.sqrt(max(size, 1)) * torch.finfo(dtype).eps


def require_consistent(tensors: Sequence[Tensor], what: str) -> None:
    """Raise unless all tensors are float32 or float64 (no other can be factorised), of one dtype on one device."""
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise DataError(f"{what} is {tensor.dtype}; structures hold float32 or float64: convert it first")
        if (tensor.dtype, tensor.device) != (tensors[0].dtype, tensors[0].device):
            raise DataError(
                f"{what} mixes {tensors[0].dtype} on {tensors[0].device} with {tensor.dtype} on {tensor.device}"
            )


def require_finite(tensor: Tensor, what: str) -> None:
    """Raise `DataError` if anything is NaN or infinite."""
    if not bool(torch.isfinite(tensor.detach().sum())) and not bool(torch.isfinite(tensor.detach()).all()):
        raise DataError(f"{what} has NaN or infinite entries; look for overflow or a diverged network there")


def require_symmetric(matrix: Tensor, what: str) -> None:
    """Raise `DataError` unless `[..., n, n]` equals its transpose up to rounding."""
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise DataError(f"{what} has shape {tuple(matrix.shape)}; it has to be square")
    if matrix.numel() == 0:
        return
    matrix = matrix.detach()
    largest = float(matrix.amax().abs().maximum(matrix.amin().abs()))
    tolerance = largest * math.sqrt(torch.finfo(matrix.dtype).eps)
    rows = max(1, 2**20 // matrix.shape[-1])  # slabs, so that no second n x n matrix is needed
    for start in range(0, matrix.shape[-1], rows):
        stop = start + rows
        difference = matrix[..., start:stop, :] - matrix[..., :, start:stop].mT
        if float(difference.abs().amax()) > tolerance:
            raise DataError(f"{what} is not symmetric; pass (M + M.T) / 2 if it should be")


def convert(tensor: Tensor, dtype: torch.dtype, device: torch.device | str, *, symmetric: bool) -> Tensor:
    """Change dtype or device; a symmetric matrix is symmetrised, as old rounding is visible in a wider dtype."""
    moved = tensor.to(dtype=dtype, device=device)
    if symmetric and tensor.dim() > 1 and torch.finfo(dtype).eps < torch.finfo(tensor.dtype).eps:
        moved = (moved + moved.mT) / 2
    return moved


def check_factor(factor: object, what: str, like: Tensor | None = None) -> Scalar:
    """Return a finite, non-negative scalar; a tensor keeps its gradient and gets the dtype and device of `like`."""
    if isinstance(factor, Tensor) and factor.numel() == 1:
        # Before any arithmetic: a float32 scalar divided by a count would keep seven digits only.
        scalar: Scalar = factor.reshape(()) if like is None else factor.reshape(()).to(like)
    elif isinstance(factor, Real):
        scalar = float(factor)
    else:
        raise DataError(f"{what} has to be one number, not {type(factor).__name__}")
    if not 0 <= as_number(scalar) < math.inf:
        raise DataError(f"{what} has to be finite and not negative, got {as_number(scalar)}")
    return scalar


def as_number(scalar: Scalar) -> float:
    """Return the value of a scalar, without its gradient."""
    return float(scalar.detach()) if isinstance(scalar, Tensor) else float(scalar)


def square_root(scalar: Scalar, like: Tensor) -> Tensor:
    """Return the square root of a scalar in the dtype of `like`: a plain number must not pass through float32."""
    return torch.as_tensor(scalar, dtype=like.dtype, device=like.device).sqrt()


def cholesky(matrix: Tensor, what: str) -> Tensor:
    """Return the lower Cholesky factor, with growing jitter (docs/method/posterior.md#operations-per-structure).

    A factor is accepted when each pivot keeps at least one digit of the diagonal entry that it came from;
    otherwise 1e-8 of the mean diagonal is added, then ten times more, five times at most. O(n^3).

    Raises:
        NumericalError: When the last step of the ladder is not enough either.

    Warns:
        NumericalWarning: When jitter was needed.
    """
    factor = _factor_if_definite(matrix)
    if factor is not None:
        return factor
    diagonal = matrix.detach().diagonal()
    level = float(diagonal.mean())
    if level > 0:
        identity = torch.eye(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
        for step in range(JITTER_STEPS):
            jitter = JITTER_START * 10**step * level
            factor = _factor_if_definite(matrix + jitter * identity)
            if factor is not None:
                warnings.warn(
                    f"{what} is singular to working precision; added {jitter:.1e} to its diagonal."
                    " Add a larger diagonal (a prior), or use float64",
                    NumericalWarning,
                    stacklevel=3,
                )
                return factor
    raise NumericalError(
        f"{what} is not positive definite (mean of its diagonal {level:.3g}), also with jitter;"
        " add_diagonal (a prior precision) first"
    )


def _factor_if_definite(matrix: Tensor) -> Tensor | None:
    """Return the lower Cholesky factor, or None if a pivot cannot be told from rounding."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0:
        return None
    pivots, diagonal = factor.detach().diagonal().square(), matrix.detach().diagonal()
    # Comparing each pivot with its own diagonal entry does not depend on how the parameters are scaled.
    return factor if bool((pivots > resolution(len(diagonal), matrix.dtype) * diagonal).all()) else None


def eigh_psd(matrix: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (ascending, clamped at 0) and eigenvectors of positive semi-definite `[..., n, n]`.

    What is below rounding of the largest eigenvalue becomes exactly 0: it cannot be told from 0, and kept
    as 1e-17 it would turn a singular matrix into a wildly wrong log-determinant. float32 is retried in
    float64 when the decomposition fails or returns something clearly negative. O(n^3).
    """
    if matrix.requires_grad:
        raise UnsupportedOperationError(
            f"{what} requires a gradient, and that of an eigen-decomposition is undefined at equal"
            " eigenvalues: detach() it. Gradients do flow through scale and diagonal"
        )
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[:-1]), matrix
    try:
        values, vectors = torch.linalg.eigh(matrix)
        failed = not bool(torch.isfinite(vectors.sum())) or _indefinite(values)
    except torch.linalg.LinAlgError:
        values, vectors, failed = matrix.new_zeros(matrix.shape[:-1]), matrix, True
    if failed:
        try:
            wide = torch.linalg.eigh(matrix.to(device="cpu", dtype=torch.float64))
        except torch.linalg.LinAlgError as error:
            raise NumericalError(f"no eigen-decomposition of {what}, in float64 either: {error}") from error
        values, vectors = (part.to(device=matrix.device, dtype=matrix.dtype) for part in wide)
        if _indefinite(values):
            smallest, largest = float(values.amin()), float(values.amax())
            raise NumericalError(
                f"{what} is not positive semi-definite: eigenvalues from {smallest:.3g} to {largest:.3g}"
            )
    floor = resolution(matrix.shape[-1], matrix.dtype) * values.amax(-1, keepdim=True)
    return torch.where(values > floor, values, torch.zeros_like(values)).clamp(min=0), vectors


def _indefinite(values: Tensor) -> bool:
    """Return whether an eigenvalue is negative beyond rounding."""
    tolerance = math.sqrt(torch.finfo(values.dtype).eps)
    return bool((values.amin(-1) < -tolerance * values.abs().amax(-1)).any())
