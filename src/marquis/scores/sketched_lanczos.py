"""Measure how far the Jacobian of an input lies outside of what the data determined (Miani et al. 2024).

The score is `|J|_F^2 - |U^T J^T|_F^2` with U a basis of a Krylov space of the generalised Gauss-Newton matrix: the
linearised variance with infinite precision along U and precision 1 elsewhere. Lanczos vectors are kept as sketches of s
numbers instead of P, so memory is `s k` for k steps. Letters: P weights, k steps, s sketch size, B inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked
from marquis.curvature.linop.operator import CurvatureOperator, operator
from marquis.distributed import from_first_process
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.functional.checks import check_inputs
from marquis.functional.function import NetworkFunction
from marquis.functional.jacobian import jacobian_chunks
from marquis.functional.selection import Selection
from marquis.likelihoods import Likelihood
from marquis.randomness import device_for, permutation

DEPENDENT = 1e-4
"""Directions below this share of the longest repeat others: without orthogonalisation Lanczos comes back to them."""


@dataclass(frozen=True, eq=False)
class FourierSketch:
    """Sketch by a subsampled randomised Fourier transform: random signs, FFT, some coordinates.

    Attributes:
        signs: `[P]`, as booleans.
        kept: the coordinates that are kept, `[s / 2]`; each is complex and counts twice.
    """

    signs: Tensor
    kept: Tensor

    @staticmethod
    def draw(size: int, sketch: int, generator: torch.Generator | None, device: torch.device) -> FourierSketch:
        """Return a random sketch of vectors of this size to at most `sketch` numbers."""
        signs = torch.randint(2, (size,), generator=generator, device=device_for(generator), dtype=torch.bool)
        rows = permutation(size, generator)[: max(1, sketch // 2)]
        return FourierSketch(signs.to(device), rows.to(device))

    def __call__(self, v: Tensor) -> Tensor:
        """Return the sketches `[..., s]` of vectors `[..., P]`. Cost: P log P."""
        signed = torch.where(self.signs, v, -v)
        chosen = torch.fft.fft(signed, norm="ortho")[..., self.kept]
        scale = (len(self.signs) / len(self.kept)) ** 0.5
        return torch.view_as_real(chosen).flatten(-2) * scale


@checked
def sketched_lanczos(
    model: Model,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any,
    steps: AtLeastOne = 100,
    sketch: int | None = None,
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> SketchedLanczos:
    """Run Lanczos on the Gauss-Newton matrix of the data, and return what scores new inputs.

    Cost: one pass over the data per step. Memory: three vectors of P weights, and `steps * sketch` numbers.

    Args:
        model: A module in evaluation mode, or a function `(params, x) -> outputs`.
        loader: Batches `(x, y)` or `x`, iterated once per step.
        likelihood: p(y|f).
        steps: Lanczos steps k; fewer are made where the space is exhausted.
        sketch: s, numbers kept of every Lanczos vector; None keeps all P.
        params: Parameter values, required for a function.
        parameters: Which parameters, as in `curvature.ggn`.
        generator: Source of randomness for the first vector and the sketch.
        dtype: Compute in this type.
    """
    matrix = operator(model, loader, likelihood, params=params, parameters=parameters, dtype=dtype)
    start = matrix.probe_vectors(1, generator)  # in a group of processes, the first one's
    sketching = None
    if sketch is not None:
        if sketch < 2 * steps:
            raise DataError(f"sketch={sketch} numbers cannot hold {steps} directions; take at least {4 * steps}.")
        sketching = FourierSketch.draw(matrix.size, sketch, generator, matrix.device)
        if matrix.shared:
            sketching = FourierSketch(from_first_process(sketching.signs), from_first_process(sketching.kept))
    left, lengths, _ = torch.linalg.svd(_lanczos(matrix, start, steps, sketching).mT, full_matrices=False)
    basis = left[:, lengths > DEPENDENT * lengths[0]]
    function = NetworkFunction.copy_of(model, params=params, parameters=parameters, dtype=dtype)
    return SketchedLanczos(function, basis, sketching)


def _lanczos(matrix: CurvatureOperator, start: Tensor, steps: int, sketch: FourierSketch | None) -> Tensor:
    """Return the Lanczos vectors `[k, s]`; sketched ones are orthogonal to their neighbours only."""
    current, before, beta = start / start.norm(), torch.zeros_like(start), start.new_zeros(())
    basis: list[Tensor] = []
    scale = 0.0
    for _ in range(min(steps, matrix.size)):
        basis.append(current if sketch is None else sketch(current))
        product = matrix.matvec(current[0])[None] - beta * before
        others = current if sketch is not None else torch.cat(basis)
        for _ in range(2):  # rounding of the first time is as large as a small result
            product = product - (product @ others.mT) @ others
        scale, beta = max(scale, float(product.norm())), product.norm()
        if float(beta) <= torch.finfo(matrix.dtype).eps ** 0.5 * scale:
            break
        before, current = current, product / beta
    return torch.cat(basis)


@dataclass(frozen=True, eq=False)
class SketchedLanczos:
    """Score inputs by what the data left undetermined; made by `sketched_lanczos`.

    Attributes:
        function: The network at its weights.
        basis: Orthonormal basis of the sketched Krylov space, `[s, k]`.
        sketch: The sketch, or None where nothing is sketched.
    """

    function: NetworkFunction
    basis: Tensor
    sketch: FourierSketch | None

    @checked
    def score(self, x: Any, memory_limit: int | None = None) -> Tensor:
        """Return `|J|_F^2 - |U^T S J^T|^2` of every input, `[B]`; larger is farther from the data.

        Cost: O backward passes and sketches per input. A sketch may take off slightly too much; the score stops at 0.
        """
        check_inputs(x)
        outputs = self.function.at_point(x)
        scores = torch.zeros(len(outputs), dtype=self.basis.dtype, device=self.basis.device)
        for inputs, _, jacobian in jacobian_chunks(self.function, x, outputs[0].numel(), False, memory_limit):
            sketched = jacobian if self.sketch is None else self.sketch(jacobian)
            scores[inputs] += jacobian.square().sum((1, 2)) - (sketched @ self.basis).square().sum((1, 2))
        return scores.clamp(min=0)

    def __repr__(self) -> str:
        """Show steps and sketch."""
        size = "no sketch" if self.sketch is None else f"sketch {self.basis.shape[0]}"
        return f"SketchedLanczos({self.function.size} weights, {self.basis.shape[1]} steps, {size})"
