"""The linear model tangent to a network, by Jacobian-vector and vector-Jacobian products only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.call import parameters_of
from marquis.curvature.iterative import conjugate_gradients
from marquis.curvature.products import FrozenNetwork
from marquis.evidence.problem import Collector, EvidenceProblem, Statistics, labelled_batches, unit_noise
from marquis.likelihoods import Likelihood
from marquis.structures import Layout

Rows = Callable[[Tensor], Tensor]
"""Rows `[k, P]` to rows `[k, P]`."""

STEP_LENGTHS = tuple(0.5**k for k in range(9))
"""Tried in one pass along a Newton direction."""


class TangentBatch:
    """One batch, differentiated once: outputs f `[B, ...]`, and products with J and its transpose.

    J v is the derivative of `J^T u` in u, so whatever autograd differentiates twice works.
    """

    def __init__(self, network: FrozenNetwork, layout: Layout, x: Any, y: Tensor, mask: Tensor | None) -> None:
        self.x, self.y, self.mask = x, y, mask
        self._network, self._layout = network, layout
        with torch.enable_grad():
            self._leaves = network.leaves()
            self._outputs = network.outputs(self._leaves, x)
            self._u = torch.zeros_like(self._outputs, requires_grad=True)
            self._transposed = torch.autograd.grad(
                self._outputs, self._leaves, self._u, create_graph=True, allow_unused=True
            )
        self.f = self._outputs.detach()

    def push(self, rows: Tensor) -> Tensor:
        """J v for rows `[k, P]`: `[k, *f.shape]`."""
        pushed = []
        for row in rows:
            named = self._layout.unflatten(row)
            pairs = zip(self._network.names, self._transposed, strict=True)
            used = [(t, named[name].to(t.dtype)) for name, t in pairs if t is not None and t.requires_grad]
            if not used:
                pushed.append(torch.zeros_like(self.f))
                continue
            (out,) = torch.autograd.grad(
                [t for t, _ in used], [self._u], [v for _, v in used], retain_graph=True, allow_unused=True
            )
            pushed.append(torch.zeros_like(self.f) if out is None else out.detach())
        return torch.stack(pushed)

    def pull(self, cotangents: Tensor) -> Tensor:
        """J^T u for cotangents `[k, *f.shape]`: `[k, P]`."""
        pulled = []
        for u in cotangents:
            grads = torch.autograd.grad(self._outputs, self._leaves, u, retain_graph=True, allow_unused=True)
            named = {
                name: torch.zeros_like(leaf) if g is None else g
                for name, leaf, g in zip(self._network.names, self._leaves, grads, strict=True)
            }
            pulled.append(self._layout.flatten(named).detach())
        return torch.stack(pulled)


@dataclass(frozen=True, eq=False)
class Optimum:
    """The linear model's optimum, the fit of the data there, and whether Newton's method got there."""

    theta: Tensor
    statistics: Statistics
    converged: bool


class Tangent:
    """`h(theta, x) = f(x; tilde-theta) + J(x) (theta - tilde-theta)`, or `J(x) theta` if simplified (methods.md 5.5).

    The point of linearisation is the problem's mean, whatever the module holds now. Every method below is one or more
    passes over the loader, with memory for one batch and a few vectors of length P. Data terms are at noise precision
    1 where there is one noise precision; the caller scales them.

    Args:
        problem: with model and loader.
        method: named in messages.
        simplified: leave out the offset `f - J tilde-theta`; exact where it vanishes, as for normalised networks
            with a dense output layer.
    """

    def __init__(self, problem: EvidenceProblem, method: str, *, simplified: bool = False) -> None:
        model, self._loader = problem.require_data(method)
        self.layout = problem.layout
        self.centre = problem.mean.detach()
        own = parameters_of(model, problem.params)
        placed = {n: t.to(own[n]) for n, t in self.layout.unflatten(self.centre).items()}
        self.network = FrozenNetwork.of(model, params={**own, **placed}, parameters=list(self.layout.names))
        self.likelihood = unit_noise(problem.likelihood)
        self.simplified = simplified
        self._mask_of = problem.mask_of

    def batches(self) -> Iterator[TangentBatch]:
        """Every batch, differentiated."""
        for x, y, mask in labelled_batches(self._loader, self.network.device, self._mask_of):
            batch = TangentBatch(self.network, self.layout, x, y, mask)
            self.likelihood.validate(batch.f, y, mask)
            yield batch

    def outputs(self, batch: TangentBatch, theta: Tensor) -> Tensor:
        """h(theta, x) for one batch."""
        if self.simplified:
            return batch.push(theta[None])[0]
        return batch.f + batch.push((theta - self.centre)[None])[0]

    def fit(self, theta: Tensor) -> tuple[Statistics, Tensor]:
        """Statistics of h(theta) and the gradient `sum_n J^T r` of the data term there, `[P]`."""
        seen, gradient = Collector(self.likelihood), torch.zeros_like(theta)
        for batch in self.batches():
            h = self.outputs(batch, theta)
            seen.add(h, batch.y, batch.mask)
            gradient += batch.pull(self.likelihood.gradient(h, batch.y, batch.mask)[None])[0].to(theta)
        return seen.statistics(), gradient

    def losses(self, theta: Tensor, direction: Tensor, lengths: Sequence[float]) -> Tensor:
        """The data term at `theta + t direction` for each length t, in one pass: h is linear in t."""
        total = torch.zeros(len(lengths), dtype=torch.float64, device=theta.device)
        for batch in self.batches():
            h, change = self.outputs(batch, theta), batch.push(direction[None])[0]
            for i, t in enumerate(lengths):
                total[i] -= self.likelihood.log_prob(h + t * change, batch.y, batch.mask).double().sum()
        return total

    def product(self, rows: Tensor, theta: Tensor | None = None) -> Tensor:
        """`sum_n J^T L_n J v` for rows `[k, P]`; L at h(theta), or at the network's own outputs."""
        total = torch.zeros_like(rows)
        for batch in self.batches():
            at = batch.f if theta is None else self.outputs(batch, theta)
            total += batch.pull(output_curvature(self.likelihood, at, batch.push(rows), batch.mask)).to(rows)
        return total

    def optimum(
        self,
        precision: Tensor,
        prior_mean: Tensor,
        scale: float,
        start: Tensor,
        *,
        preconditioner: Rows | None = None,
        tolerance: float = 1e-3,
        max_steps: int = 30,
        max_products: int = 200,
    ) -> Optimum:
        """`theta* = argmin scale sum_n l(y_n, h(theta, x_n)) + 1/2 |theta - mu0|^2_Delta`, by Newton's method.

        Each step solves `(scale J^T L J + Delta) d = -gradient` by conjugate gradients through products with J and
        J^T; for a Gaussian the first step is the closed form (methods.md 5.5). The problem is convex; among nine
        step lengths, 1 to 1/256, the best is taken, all judged in one pass.

        Args:
            precision: Delta, `[P]`.
            prior_mean: mu0, `[P]`.
            scale: beta/T or 1/T.
            start: where to begin.
            preconditioner: an approximate inverse of the matrix.
            tolerance: nats that the objective may still be above its minimum (half the squared Newton decrement).
            max_steps: Newton steps at most.
            max_products: products per step at most; a truncated solve still descends.
        """
        theta = start.clone()
        converged = False
        previous = float("inf")
        for _ in range(max_steps):
            _, data = self.fit(theta)
            gradient = scale * data + precision * (theta - prior_mean)
            point = theta

            def matrix(rows: Tensor, point: Tensor = point) -> Tensor:
                return scale * self.product(rows, point) + precision * rows

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
        data = self.losses(theta, direction, (*STEP_LENGTHS, 0.0))
        steps = torch.tensor([*STEP_LENGTHS, 0.0], dtype=theta.dtype, device=theta.device)
        away = theta - mean + steps[:, None] * direction
        total = scale * data + 0.5 * (precision * away.square()).sum(-1).double()
        best = int(total.argmin())
        # Within rounding of the minimum the full step is the better guess than none.
        flat = float((total.max() - total.min()).abs()) <= 1e-12 * float(total.abs().max())
        return 1.0 if flat else (*STEP_LENGTHS, 0.0)[best]


def output_curvature(likelihood: Likelihood, f: Tensor, rows: Tensor, mask: Tensor | None) -> Tensor:
    """`L u` for rows `[k, *f.shape]`: by the diagonal where L is one, else `S (S^T u)`."""
    if likelihood.coupling is None:
        return rows * likelihood.hessian_diagonal(f, mask)
    with torch.enable_grad():
        v = rows.new_zeros((rows.shape[0], f.shape[0], *likelihood.root_shape(f)), requires_grad=True)
        (transposed,) = torch.autograd.grad(likelihood.apply_sqrt(f, v, mask), v, rows)
    with torch.no_grad():
        return likelihood.apply_sqrt(f, transposed, mask)
