"""Compute with the linear model tangent to a network, by Jacobian-vector and vector-Jacobian products only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.linop.iterative import Matvec, conjugate_gradients
from marquis.curvature.linop.products import root_times_transpose
from marquis.distributed import exchange, sum_of_shares
from marquis.errors import UnsupportedOperationError
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.statistics import Collector, Statistics
from marquis.evidence.stored_jacobians import StoredBatch, jacobian_of, jacobians_fit
from marquis.functional.function import NetworkFunction
from marquis.functional.linearise import BatchJacobian
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.structures import Layout

STEP_LENGTHS = tuple(0.5**k for k in range(9))
"""Tried in one pass along a Newton direction."""

NEWTON_STEPS = 30
FEW_OUTPUTS = 64
"""Up to this many outputs per sample L is written out, where Jacobians are kept."""

DENSE_WEIGHTS = 3000
"""Up to this many weights, and where Jacobians are kept, the whole matrix is the preconditioner."""


class TangentBatch:
    """Hold one batch, differentiated once: outputs f `[B, ...]`, and products with J and its transpose."""

    def __init__(self, network: NetworkFunction, layout: Layout, x: Any, y: Tensor, mask: Tensor | None) -> None:
        self.x, self.y, self.mask = x, y, mask
        self._layout, self._jacobian = layout, BatchJacobian(network, x)
        self.f = self._jacobian.outputs.detach()

    def times(self, rows: Tensor) -> Tensor:
        """Return J v, `[k, *f.shape]`, for rows `[k, P]`."""
        return self._jacobian.times(list(self._layout.unflatten(rows).values()), batched=False)

    def transposed_times(self, cotangents: Tensor) -> Tensor:
        """Return J^T u, `[k, P]`, for cotangents `[k, *f.shape]`."""
        products = self._jacobian.transposed_times(cotangents, batched=False)
        return self._layout.flatten(dict(zip(self._layout.names, products, strict=True)))


@dataclass(frozen=True, eq=False)
class Optimum:
    """Hold the linear model's optimum, the fit of the data there, and whether Newton's method got there."""

    theta: Tensor
    statistics: Statistics
    converged: bool


class LinearModel:
    """Compute with `h(theta, x) = f(x; tilde-theta) + J(x) (theta - tilde-theta)`, or `J(x) theta` if simplified.

    See docs/method/evidence.md#evidence-of-the-linear-model.

    The point of linearisation is the problem's mean, whatever the module holds now. Where the Jacobians of all data fit
    into `store_bytes`, the first pass over the loader keeps them and every later product is two matrix
    multiplications; else every method below is one or more passes over the loader, with memory for one batch and a few
    vectors of length P. Data terms are at noise precision 1 where there is one noise precision; the caller scales them.

    Args:
        problem: with model and loader.
        method: named in messages.
        simplified: leave out the offset `f - J tilde-theta`; exact where it vanishes, as for normalised networks
            with a dense output layer.
        store_bytes: memory for Jacobians (N O P numbers); None: 1 GiB or a quarter of what is free; 0: none.
    """

    def __init__(
        self, problem: EvidenceProblem, method: str, *, simplified: bool = False, store_bytes: int | None = None
    ) -> None:
        model, self._loader = problem.require_data(method)
        self.layout = problem.layout
        self.centre = problem.mean.detach()
        values = parameters_of(model, problem.params)
        half = next((t.dtype for t in values.values() if computing_dtype(t.dtype) != t.dtype), None)
        if half is not None:
            raise UnsupportedOperationError(
                f"tune({method!r}) moves the weights of a linear model, by steps that {half} rounds away; convert the "
                "network with .float(), or use tune('evidence') or tune(validation=...)."
            )
        placed = {n: t.to(values[n]) for n, t in self.layout.unflatten(self.centre).items()}
        self.network = NetworkFunction.copy_of(model, params={**values, **placed}, parameters=list(self.layout.names))
        self.likelihood = problem.likelihood.at_unit_noise()
        self.simplified = simplified
        self._mask_of, self._shared = problem.mask_of, problem.shared
        self._n, self._limit = problem.statistics.n, store_bytes
        self._stored: list[StoredBatch] | None = None

    @property
    def stored(self) -> bool:
        """Return whether the Jacobians are in memory."""
        return self._stored is not None

    def kept_rows(self) -> int:
        """Return the number of Jacobian rows in memory, N O; 0 if they are not kept. May pass over the data."""
        if self._stored is None and self._limit != 0:
            for _ in self.batches():
                pass
        rows = sum(batch.f.numel() for batch in self._stored or ())
        if not self._shared:
            return rows
        counts = exchange((rows, self._limit != 0))  # a share may be empty, and then keeps nothing
        return sum(count for count, _ in counts) if all(kept for _, kept in counts) else 0

    def batches(self) -> Iterator[TangentBatch | StoredBatch]:
        """Yield every batch, differentiated; they are kept for the next pass where all of them fit."""
        if self._stored is not None:
            yield from self._stored
            return
        remembered: list[StoredBatch] | None = []
        for x, y, mask in read_batches(self._loader, self.network.device, self._mask_of, labels_for="the evidence"):
            batch: TangentBatch | StoredBatch = TangentBatch(self.network, self.layout, x, y, mask)
            self.likelihood.validate(batch.f, y, mask)
            if remembered is not None:
                stored = self._kept(x, y, mask, batch.f)
                remembered = None if stored is None else [*remembered, stored]
                batch = batch if stored is None else stored
            yield batch
        if remembered is None:
            self._limit = 0  # do not try again
        elif remembered:
            self._stored = remembered

    def _kept(self, x: Any, y: Tensor, mask: Tensor | None, f: Tensor) -> StoredBatch | None:
        """Return a batch with its Jacobian, if the Jacobians of all data fit."""
        if not f.numel() or not jacobians_fit(self.network, self.layout, f, self._n, self._limit):
            return None
        jacobian = jacobian_of(self.network, x, f)
        return None if jacobian is None else StoredBatch(x, y, mask, f, jacobian)

    def outputs(self, batch: TangentBatch | StoredBatch, theta: Tensor) -> Tensor:
        """Return h(theta, x) for one batch."""
        if self.simplified:
            return batch.times(theta[None])[0]
        return batch.f + batch.times((theta - self.centre)[None])[0]

    def fit(self, theta: Tensor) -> tuple[Statistics, Tensor]:
        """Return the statistics of h(theta) and the gradient `sum_n J^T r` of the data term there, `[P]`."""
        collector = Collector(self.likelihood)

        def share() -> list[Tensor]:
            gradient = torch.zeros_like(theta)
            for batch in self.batches():
                h = self.outputs(batch, theta)
                collector.add(h, batch.y, batch.mask)
                gradient += batch.transposed_times(self.likelihood.gradient(h, batch.y, batch.mask)[None])[0].to(theta)
            return [gradient]

        (gradient,) = sum_of_shares(share, self._shared)
        statistics = collector.statistics_of_all(self._shared)
        assert statistics is not None
        return statistics, gradient

    def losses(self, theta: Tensor, direction: Tensor, lengths: Sequence[float]) -> Tensor:
        """Return the data term at `theta + t direction` for each length t, in one pass: h is linear in t."""

        def share() -> list[Tensor]:
            total = torch.zeros(len(lengths), dtype=torch.float64, device=theta.device)
            for batch in self.batches():
                h, change = self.outputs(batch, theta), batch.times(direction[None])[0]
                for i, t in enumerate(lengths):
                    total[i] -= self.likelihood.log_prob(h + t * change, batch.y, batch.mask).double().sum()
            return [total]

        return sum_of_shares(share, self._shared)[0]

    def product(self, rows: Tensor, theta: Tensor | None = None) -> Tensor:
        """Return `sum_n J^T L_n J v` for rows `[k, P]`; L at h(theta), or at the network's own outputs."""
        return self.matrix(theta)(rows)

    def matrix(self, theta: Tensor | None = None) -> Matvec:
        """Return `product` at one theta, for many vectors: where Jacobians are kept, so are the outputs and L there."""
        remembered = self._stored
        ready = None if remembered is None else [(batch, self._curvature(batch, theta)) for batch in remembered]

        def share(rows: Tensor) -> list[Tensor]:
            total = torch.zeros_like(rows)
            pairs = ((batch, self._curvature(batch, theta)) for batch in self.batches()) if ready is None else ready
            for batch, curved in pairs:
                total += batch.transposed_times(curved(batch.times(rows))).to(rows)
            return [total]

        return lambda rows: sum_of_shares(lambda: share(rows), self._shared)[0]

    def _curvature(self, batch: TangentBatch | StoredBatch, theta: Tensor | None) -> Matvec:
        """Return `u -> L u` at h(theta), or at the network's own outputs."""
        at = batch.f if theta is None else self.outputs(batch, theta)
        if isinstance(batch, StoredBatch) and self.likelihood.coupling is not None and at[0].numel() <= FEW_OUTPUTS:
            blocks = self.likelihood.hessian(at, batch.mask)
            return lambda rows: torch.einsum("nij,knj->kni", blocks, rows.flatten(2)).reshape(rows.shape)
        return lambda rows: output_curvature(self.likelihood, at, rows, batch.mask)

    def dense(self, theta: Tensor | None = None) -> Tensor | None:
        """Return `product` as a matrix `[P, P]`; None unless Jacobians are kept and P is small.

        Cost: N O P^2.
        """
        if not self.kept_rows() or self.layout.total > DENSE_WEIGHTS:
            return None
        remembered = self._stored or []
        many = any(batch.f[0].numel() > FEW_OUTPUTS for batch in remembered[:1])
        if any(exchange(many)) if self._shared else many:
            return None

        def share() -> list[Tensor]:
            total = self.centre.new_zeros(self.layout.total, self.layout.total)
            for batch in remembered:
                at = batch.f if theta is None else self.outputs(batch, theta)
                total += batch.gram(self.likelihood.hessian(at, batch.mask)).to(total)
            return [0.5 * (total + total.mT)]

        return sum_of_shares(share, self._shared)[0]

    def optimum(
        self,
        precision: Tensor,
        prior_mean: Tensor,
        scale: float,
        start: Tensor,
        *,
        preconditioner: Matvec | None = None,
        tolerance: float = 1e-3,
        max_products: int = 200,
    ) -> Optimum:
        """Return `theta* = argmin scale sum_n l(y_n, h(theta, x_n)) + 1/2 |theta - mu0|^2_Delta` by Newton's method.

        Each step solves `(scale J^T L J + Delta) d = -gradient` by conjugate gradients through products with J and
        J^T; for a Gaussian the first step is the closed form. The problem is convex; among nine step lengths, 1 to
        1/256, the best is taken, all evaluated in one pass.

        Args:
            precision: Delta, `[P]`.
            prior_mean: mu0, `[P]`.
            scale: beta/T or 1/T.
            start: where to begin.
            preconditioner: an approximate inverse of the matrix.
            tolerance: nats that the objective may still be above its minimum (half the squared Newton decrement).
            max_products: maximum number of products per step; a truncated solve still descends.
        """
        theta = start.clone()
        converged = False
        previous = float("inf")
        for _ in range(NEWTON_STEPS):
            _, data = self.fit(theta)
            gradient = scale * data + precision * (theta - prior_mean)
            curvature = self.matrix(theta)

            def matrix(rows: Tensor, curvature: Matvec = curvature) -> Tensor:
                return scale * curvature(rows) + precision * rows

            # Far from the optimum an accurate Newton direction is wasted; a parabola's is the answer itself.
            residual = 1e-3 if self.likelihood.constant_hessian else min(3e-2, max(1e-8, previous**0.5))
            solved = conjugate_gradients(
                matrix, -gradient[None], tol=residual, preconditioner=preconditioner, max_iterations=max_products
            )
            direction = solved.x[0]
            left = -0.5 * float(gradient @ direction)
            if self.likelihood.constant_hessian:  # a parabola: the full step is right
                theta = theta + direction
            else:
                theta = theta + self._length(theta, direction, precision, prior_mean, scale) * direction
            if left <= tolerance or left >= previous < 1e-8:  # done, or rounding is all that is left
                converged = True
                break
            previous = left
        return Optimum(theta, self.fit(theta)[0], converged)

    def _length(self, theta: Tensor, direction: Tensor, precision: Tensor, mean: Tensor, scale: float) -> float:
        """Return the step length with the smallest objective along a direction."""
        data = self.losses(theta, direction, (*STEP_LENGTHS, 0.0))
        steps = torch.tensor([*STEP_LENGTHS, 0.0], dtype=theta.dtype, device=theta.device)
        distance = theta - mean + steps[:, None] * direction
        total = scale * data + 0.5 * (precision * distance.square()).sum(-1).double()
        best = int(total.argmin())
        # Within rounding of the minimum the full step is the better guess than none.
        flat = float((total.max() - total.min()).abs()) <= 1e-12 * float(total.abs().max())
        return 1.0 if flat else (*STEP_LENGTHS, 0.0)[best]


def output_curvature(likelihood: Likelihood, f: Tensor, rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return `L u` for rows `[k, *f.shape]`: by the diagonal where L is one, else `S (S^T u)`."""
    if likelihood.coupling is None:
        return rows * likelihood.hessian_diagonal(f, mask)
    return root_times_transpose(likelihood, f, rows, mask)
