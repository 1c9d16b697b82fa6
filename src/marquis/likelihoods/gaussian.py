"""Define Gaussian noise around the outputs: one precision, one per output, or a full precision matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked, checked_on_any_device
from marquis.choices import choose
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.likelihoods.base import Predictive
from marquis.likelihoods.pointwise import PointwiseLikelihood
from marquis.likelihoods.tools import describe, flatten_outputs
from marquis.randomness import normal


class Gaussian(PointwiseLikelihood):
    """Model `y ~ N(f, noise)` with fixed noise: `l = 1/2 (y-f)^T B (y-f) - 1/2 log det(B / 2 pi)`, `L = B`.

    Source: docs/method/likelihoods.md#table-of-likelihoods; MacKay (1992) for the noise precision as a quantity to
    learn. Immutable: `with_noise` returns a new object. Cost: one pass over the outputs, or `B * O * O` with a full
    matrix.

    Warning:
        With a full matrix, masks are refused: the likelihood of the observed entries alone has the inverse of a
        sub-block of `B^-1` as its precision, not a sub-block of `B`.

    Args:
        noise_precision: `1 / variance`: a number, a tensor that broadcasts to `f.shape[1:]` (one per output), or
            "learnt", which starts at 1 and is replaced in fitting by `with_noise`.
        precision_matrix: Full `O x O` matrix over the flattened outputs, symmetric positive definite.
    """

    kind = "gaussian"
    constant_hessian = True
    label_independent = True

    @partial(checked, nan=True)  # refused below, with what is needed instead
    def __init__(
        self,
        noise_precision: float | Tensor | str = 1.0,
        *,
        precision_matrix: Tensor | None = None,
    ) -> None:
        self._learnt = isinstance(noise_precision, str)
        if precision_matrix is not None:
            if isinstance(noise_precision, (str, Tensor)) or noise_precision != 1.0:
                raise UnsupportedOperationError(
                    "Gaussian takes a noise_precision or a precision_matrix, not both. Scale the matrix instead."
                )
            self._noise: _EntrywiseNoise | _MatrixNoise = _MatrixNoise(precision_matrix)
            self.coupling = "all"
        else:
            if isinstance(noise_precision, str):
                choose("noise_precision", noise_precision, ("learnt",), hint="Or give a number or a tensor per output.")
                noise_precision = 1.0
            self._noise = _EntrywiseNoise(noise_precision)
            self.coupling = None

    @property
    def noise_precision(self) -> Tensor | None:
        """Return a number (as a tensor without dimensions) or one per output; None with a full matrix."""
        return self._noise.precision if isinstance(self._noise, _EntrywiseNoise) else None

    @property
    def scalar_noise_precision(self) -> Tensor | None:  # noqa: D102
        precision = self.noise_precision
        return precision if precision is not None and precision.ndim == 0 else None

    def at_unit_noise(self) -> Gaussian:  # noqa: D102
        return self if self.scalar_noise_precision is None else self.with_noise(1.0)

    @property
    def precision_matrix(self) -> Tensor | None:
        """Return the full matrix; None without one."""
        return self._noise.matrix if isinstance(self._noise, _MatrixNoise) else None

    @property
    def learnt(self) -> bool:
        """Return whether fitting may replace the noise precision."""
        return self._learnt

    @checked
    def with_noise(self, noise_precision: float | Tensor) -> Gaussian:
        """Return the same likelihood with another noise precision, number or per output.

        Gradients flow back to a tensor that requires them.
        """
        if isinstance(self._noise, _MatrixNoise):
            raise UnsupportedOperationError(
                "with_noise replaces a noise precision, but this Gaussian has a full matrix. "
                "Build Gaussian(precision_matrix=...) anew."
            )
        new = Gaussian(noise_precision)
        new._learnt = self._learnt
        return new

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        return f.detach() + self._noise.inverse_root_transposed(normal(f.shape, f, generator)).detach()

    def fisher_column(  # noqa: D102
        self, f: Tensor, generator: torch.Generator | None = None, mask: Tensor | None = None
    ) -> Tensor:
        # B (f - y) at y = f + S^-T eps is -S eps; written directly, no digits are lost in the difference.
        self._check_outputs(f)
        return -self._masked(self._noise.root(normal(f.shape, f, generator)), f, mask)

    @checked_on_any_device
    def log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        precision = self.noise_precision
        if mask is not None or precision is None or precision.ndim:
            return super().log_prob(f, y, mask)
        # One precision and no gaps: the sum of squares and a constant, in two passes over the outputs.
        self._check_target_shape(f, y)
        error = flatten_outputs(y.to(f.dtype) - f)
        precision = self._noise.diagonal(f)
        constant = 0.5 * error.shape[1] * (precision.log() - math.log(2 * math.pi))
        return self._require_number(constant - 0.5 * precision * torch.linalg.vecdot(error, error))

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        """Return mean and variance unchanged, and the noise variance (exact)."""
        self._check_moments(mean, variance)
        return Predictive(mean, variance, noise_variance=self._noise.variance(mean).expand_as(mean))

    def hessian(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        if isinstance(self._noise, _MatrixNoise):
            self._check_outputs(f)
            if mask is not None:
                self._spread_mask(f, mask)
            matrix = self._noise.matrix_like(f)
            return matrix.expand(f.shape[0], *matrix.shape)
        return super().hessian(f, mask)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        # With a full matrix the summands mean nothing one by one; their sum over outputs is the log density.
        error = y.to(f.dtype) - f
        return 0.5 * (self._noise.log_det_share(f) - math.log(2 * math.pi) - error * self._noise.multiply(error))

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return self._noise.multiply(f - y.to(f.dtype))

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        return self._noise.diagonal(f).expand_as(f)

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        del f
        return self._noise.root(v, leading=2)

    def _spread_mask(self, f: Tensor, seen: Tensor) -> Tensor:
        if isinstance(self._noise, _MatrixNoise):
            raise UnsupportedOperationError(
                "Gaussian(precision_matrix=...) has no mask: the observed entries alone follow another matrix. "
                "Use a noise precision per output, or leave out incomplete data."
            )
        return super()._spread_mask(f, seen)

    def _check_outputs(self, f: Tensor) -> None:
        super()._check_outputs(f)
        self._noise.check(f)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        if isinstance(self._noise, _MatrixNoise):
            return {"kind": self.kind, "precision_matrix": self._noise.matrix.detach().clone()}
        return {
            "kind": self.kind,
            "noise_precision": self._noise.precision.detach().clone(),
            "learnt": self._learnt,
        }

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Gaussian:
        if "precision_matrix" in state:
            return cls(precision_matrix=state["precision_matrix"])
        new = cls(state["noise_precision"])
        new._learnt = bool(state["learnt"])
        return new

    def __repr__(self) -> str:
        """Show the noise as a number, else its shape."""
        if isinstance(self._noise, _MatrixNoise):
            return f"Gaussian(precision_matrix={list(self._noise.matrix.shape)})"
        precision = self._noise.precision
        shown = f"{precision.item():.6g}" if precision.ndim == 0 else f"<per output {list(precision.shape)}>"
        return f"Gaussian({shown}{', learnt' if self._learnt else ''})"


class _EntrywiseNoise:
    """Hold a diagonal precision: a number or a tensor that broadcasts to one sample's outputs."""

    def __init__(self, precision: float | Tensor) -> None:
        # float64 for numbers: a float32 copy would already be wrong in the eighth digit for float64 networks.
        values = precision.clone() if isinstance(precision, Tensor) else torch.tensor(precision, dtype=torch.float64)
        self.precision = values if values.is_floating_point() else values.double()
        if self.precision.is_meta:
            raise DataError("noise precision is a tensor without entries (meta); pass its value.")
        if not bool((self.precision.isfinite() & (self.precision > 0)).all()):
            raise DataError(f"noise precision must be positive and finite (1 / variance), got {precision}.")

    def check(self, f: Tensor) -> None:
        try:
            self.precision.expand(f.shape[1:])
        except RuntimeError:
            raise DataError(
                f"Gaussian: a noise precision of shape {list(self.precision.shape)} does not broadcast to the outputs "
                f"of one sample, {list(f.shape[1:])}. Pass a full matrix as precision_matrix=."
            ) from None

    def diagonal(self, f: Tensor) -> Tensor:
        return self.precision.to(dtype=f.dtype, device=f.device)

    def multiply(self, t: Tensor) -> Tensor:
        return t * self.diagonal(t)

    def root(self, v: Tensor, leading: int = 1) -> Tensor:
        del leading
        return v * self.diagonal(v).sqrt()

    def inverse_root_transposed(self, t: Tensor) -> Tensor:
        return t * self.diagonal(t).rsqrt()

    def log_det_share(self, f: Tensor) -> Tensor:
        """Return each entry's summand of `log det`."""
        return self.diagonal(f).log()

    def variance(self, f: Tensor) -> Tensor:
        return self.diagonal(f).reciprocal()


class _MatrixNoise:
    """Hold a full precision `B = R R^T` over the flattened outputs of one sample."""

    def __init__(self, matrix: Tensor) -> None:
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
            raise DataError(f"precision_matrix must be a floating-point O x O matrix, got {describe(matrix)}.")
        rounding = 100 * torch.finfo(matrix.dtype).eps * float(matrix.detach().abs().max())
        if not bool(((matrix - matrix.T).abs() <= rounding).all()):
            raise DataError("precision_matrix is not symmetric. Pass (B + B.T) / 2 if that is what you mean.")
        self.matrix = (matrix + matrix.T) / 2
        self.factor, failed = torch.linalg.cholesky_ex(self.matrix)
        if bool(failed):
            raise NumericalError(
                "precision_matrix is not positive definite. Pass the inverse of the noise covariance, "
                "and add a little to its diagonal if that is singular."
            )

    def check(self, f: Tensor) -> None:
        if math.prod(f.shape[1:]) != self.matrix.shape[0]:
            raise DataError(
                f"Gaussian: a precision matrix of shape {list(self.matrix.shape)} needs {self.matrix.shape[0]} outputs "
                f"per sample, got outputs of shape {list(f.shape)}."
            )

    def matrix_like(self, f: Tensor) -> Tensor:
        return self.matrix.to(dtype=f.dtype, device=f.device)

    def _factor_like(self, f: Tensor) -> Tensor:
        return self.factor.to(dtype=f.dtype, device=f.device)

    def diagonal(self, f: Tensor) -> Tensor:
        return self.matrix_like(f).diagonal().reshape(f.shape[1:])

    def multiply(self, t: Tensor) -> Tensor:
        return (flatten_outputs(t) @ self.matrix_like(t)).reshape(t.shape)

    def root(self, v: Tensor, leading: int = 1) -> Tensor:
        """Return `R v`, with `leading` dimensions before the outputs."""
        flat = v.reshape(*v.shape[:leading], self.matrix.shape[0])
        return (flat @ self._factor_like(v).T).reshape(v.shape)

    def inverse_root_transposed(self, t: Tensor) -> Tensor:
        """Return `R^-T t`, of covariance `B^-1` for white `t`."""
        solved = torch.linalg.solve_triangular(self._factor_like(t).T, flatten_outputs(t).T, upper=True)
        return solved.T.reshape(t.shape)

    def log_det_share(self, f: Tensor) -> Tensor:
        return 2 * self._factor_like(f).diagonal().log().mean()

    def variance(self, f: Tensor) -> Tensor:
        return torch.cholesky_inverse(self._factor_like(f)).diagonal().reshape(f.shape[1:])
