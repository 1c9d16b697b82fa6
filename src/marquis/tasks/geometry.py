"""Measure the latent space: the expected pull-back metric of a decoder, lengths, geodesics and distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked_arrays
from marquis.errors import DataError, NumericalError
from marquis.tasks.batches import as_tensor
from marquis.tasks.sampled_decoders import SampledDecoders

NEIGHBOURS, CODES_AT_MOST = 10, 500
"""Of the graph of codes along which a geodesic may start: edges per code, and number of codes."""
SUBDIVISIONS = 4
"""Of each segment when finished curves are measured and compared."""
DAMPING, DAMPING_LIMIT = 1e-3, 1e10
"""Of the first Gauss-Newton step, relative to the mean curvature; beyond the limit no step decreases the energy."""

__all__ = ["Geodesic", "SampledDecoders", "distances", "energy", "geodesic", "length", "metric", "volume"]


@dataclass(frozen=True, eq=False)
class Geodesic:
    """Hold shortest curves between codes under the expected metric, for several pairs of ends.

    Attributes:
        points: Codes along each curve at constant speed, ends included, `[n, points, K]`.
        length: Length of each curve, `[n]`, measured on four times as many points.
        straight_length: Length of the straight line between the same ends, `[n]`.
        energy: Energy of each curve, `[n]`.
        converged: Whether the last step changed the energy by less than the tolerance, `[n]`.
    """

    points: Tensor
    length: Tensor
    straight_length: Tensor
    energy: Tensor
    converged: Tensor


@checked_arrays
def metric(model: Any, z: Tensor, samples: int = 20, *, generator: torch.Generator | None = None) -> Tensor:
    """Compute the expected metric `E[JᵀJ]` of the decoder at codes (docs/method/tasks.md, equation 7).

    J is the Jacobian of the decoded mean in the code and the expectation is over sampled networks, so that the metric
    is large where they disagree about the slope. Cost: about `2 K` decoder passes per network and code.

    Args:
        model: Anything with `decode`, or `SampledDecoders` of it, for the same networks in several calls.
        z: Codes `[n, K]`.
        samples: Number of networks S.
        generator: Source of the sampled networks.

    Returns:
        Symmetric matrices `[n, K, K]`.
    """
    decoders = _decoders(model, samples, generator)
    z = _codes(decoders, z)
    total = z.new_zeros(len(z), z.shape[1], z.shape[1])
    for _, jacobian in decoders.jacobians(z):
        total += torch.einsum("ndk,ndl->nkl", jacobian, jacobian)
    return total / decoders.count


@checked_arrays
def volume(model: Any, z: Tensor, samples: int = 20, *, generator: torch.Generator | None = None) -> Tensor:
    """Compute the volume measure `sqrt(det M(z))` of the expected metric, `[n]`; arguments as for `metric`."""
    return torch.linalg.det(metric(model, z, samples, generator=generator)).clamp_min(0).sqrt()


@checked_arrays
def energy(model: Any, curve: Tensor, samples: int = 20, *, generator: torch.Generator | None = None) -> Tensor:
    """Compute the energy `½ ∫ ċᵀ M(c) ċ dt` of curves given by codes at equal times.

    Discretised as `(m/2) Σ_i E‖f(c_{i+1}) - f(c_i)‖²` over the m segments (docs/method/tasks.md).

    Args:
        model: As for `metric`.
        curve: Codes `[points, K]`, or several curves `[n, points, K]`.
        samples: Number of networks.
        generator: Source of the sampled networks.

    Returns:
        A number, or `[n]`.
    """
    squares = _squared_lengths(model, curve, samples, generator)
    return squares.sum(-1) * (squares.shape[-1] / 2)


@checked_arrays
def length(model: Any, curve: Tensor, samples: int = 20, *, generator: torch.Generator | None = None) -> Tensor:
    """Compute the length `∫ sqrt(ċᵀ M(c) ċ) dt` of curves, as `Σ_i sqrt(E‖f(c_{i+1}) - f(c_i)‖²)`.

    Chords are shorter than arcs: the relative error falls with the square of the number of points. Arguments and
    result as for `energy`; never above `sqrt(2 energy)`, and equal to it at constant speed.
    """
    return _squared_lengths(model, curve, samples, generator).sqrt().sum(-1)


@checked_arrays
def geodesic(
    model: Any,
    start: Tensor,
    end: Tensor,
    samples: int = 20,
    *,
    points: int = 33,
    through: Tensor | None = None,
    steps: AtLeastOne = 100,
    tolerance: float = 1e-7,
    generator: torch.Generator | None = None,
) -> Geodesic:
    """Find curves of least energy between codes under the expected metric (docs/method/tasks.md).

    Gauss-Newton with damping on the discrete energy, a sum of squares whose curvature is block tridiagonal. It starts
    from the straight line; with `through`, also from the shortest path along a graph of these codes, and the better
    result is kept, because the straight start may end in a local minimum that crosses an empty region. Cost: per step
    about `2 K` passes of each network over all points, and a solve of `(points K)³` per curve.

    Args:
        model: As for `metric`.
        start: A code `[K]`, or `[n, K]` for several curves at once.
        end: Of the same shape.
        samples: Number of networks.
        points: Number of codes along a curve, ends included.
        through: Codes of data `[N, K]`, near which a first curve is laid; at most 500 of them are used, evenly spaced.
        steps: Maximum number of steps.
        tolerance: Relative change of the energy at which the search ends.
        generator: Source of the sampled networks.

    Raises:
        DataError: Ends of different shapes, or codes that are not finite.
    """
    if points < 3:
        raise DataError(f"points={points}: a curve has two ends and at least one point between them.")
    decoders = _decoders(model, samples, generator)
    start, end = _codes(decoders, start, "start"), _codes(decoders, end, "end")
    if start.shape != end.shape:
        raise DataError(f"start has shape {list(start.shape)}, end {list(end.shape)}: curves have one end each.")
    if through is not None:
        through = _codes(decoders, through, "through")
        if through.shape[1] != start.shape[1]:
            raise DataError(f"through has codes of {through.shape[1]} numbers, start of {start.shape[1]}.")
    t = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)[:, None]
    straight = start[:, None] * (1 - t) + end[:, None] * t
    curve, converged = _minimised(decoders, straight, steps, tolerance)
    if through is not None:
        along = _along_codes(decoders, straight, through)
        other, other_converged = _minimised(decoders, along, steps, tolerance)
        better = energy(decoders, _subdivided(other)) < energy(decoders, _subdivided(curve))
        curve = torch.where(better[:, None, None], other, curve)
        converged = torch.where(better, other_converged, converged)
    fine = _subdivided(curve)
    lengths = length(decoders, fine), length(decoders, _subdivided(straight))
    return Geodesic(curve, *lengths, energy(decoders, fine), converged)


@checked_arrays
def distances(
    model: Any,
    z: Tensor,
    others: Tensor,
    samples: int = 20,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    """Compute the geodesic distances `[n]` from one code `z [K]` to others `[n, K]`; `options` as for `geodesic`."""
    decoders = _decoders(model, samples, generator)
    others, z = _codes(decoders, others, "others"), _codes(decoders, z)
    if len(z) not in (1, len(others)) or z.shape[1] != others.shape[1]:
        raise DataError(
            f"z has shape {list(z.shape)}, others {list(others.shape)}: pass one code z and several others."
        )
    return geodesic(decoders, z.expand_as(others), others, **{"points": 9, **options}).length


# --- how ---------------------------------------------------------------------------------------------------


def _decoders(model: Any, samples: int, generator: torch.Generator | None) -> SampledDecoders:
    """Return the sampled decoders of a model, or those that were passed."""
    return model if isinstance(model, SampledDecoders) else SampledDecoders(model, samples, generator=generator)


def _codes(decoders: SampledDecoders, z: Any, what: str = "codes") -> Tensor:
    """Return codes as `[n, K]`, checked, in the precision and on the device of the model."""
    z = as_tensor(z, what)
    if z.dim() not in (1, 2) or z.numel() == 0 or not bool(z.isfinite().all()):
        raise DataError(f"{what} must be finite codes [K] or [n, K], got shape {list(z.shape)}.")
    return decoders.like_codes(z if z.dim() == 2 else z[None])


def _squared_lengths(model: Any, curve: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return the expected squared lengths of the segments of curves, `[points - 1]` or `[n, points - 1]`."""
    curve = as_tensor(curve, "curve")
    if curve.dim() not in (2, 3) or curve.shape[-2] < 2:
        raise DataError(f"a curve is [points, K] or [n, points, K] with two points or more, got {list(curve.shape)}.")
    decoders = _decoders(model, samples, generator)
    z = _codes(decoders, curve.reshape(-1, curve.shape[-1]), "curve")
    total = z.new_zeros(*curve.shape[:-2], curve.shape[-2] - 1)
    for outputs in decoders.outputs(z):
        total += outputs.unflatten(0, curve.shape[:-1]).diff(dim=-2).square().sum(-1)
    return total / decoders.count


def _minimised(decoders: SampledDecoders, curve: Tensor, steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return curves of least energy, and which of them converged, by damped Gauss-Newton."""
    n, points, width = curve.shape
    least = energy(decoders, curve)
    damping, converged = torch.full_like(least, DAMPING), least == 0
    for _ in range(steps):
        gradient, hessian = _linearised(decoders, curve)
        scale = hessian.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(curve.dtype).tiny)
        eye = torch.eye(hessian.shape[1], dtype=curve.dtype, device=curve.device)
        damped = hessian + (damping * scale)[:, None, None] * eye
        step = torch.linalg.solve_ex(damped, gradient[..., None])[0][..., 0]
        step = torch.where(step.isfinite().all(1, keepdim=True), step, torch.zeros_like(step))
        trial = curve.clone()
        trial[:, 1:-1] -= step.view(n, points - 2, width)
        reached = energy(decoders, trial)
        better = (reached < least) & ~converged
        small = better & (least - reached <= tolerance * least)
        curve = torch.where(better[:, None, None], trial, curve)
        least = torch.where(better, reached, least)
        damping = torch.where(better, damping / 3, damping * 4).clamp_min(1e-12)
        # where no step however small decreases the energy, rounding does not allow a better one
        converged = converged | small | (damping > DAMPING_LIMIT)
        if bool(converged.all()):
            break
    if not bool(least.isfinite().all()):
        raise NumericalError("the energy of a curve is not finite: the decoder gives NaN or infinity along it.")
    return curve, converged


def _subdivided(curve: Tensor) -> Tensor:
    """Return curves with `SUBDIVISIONS` times as many segments: a chord may cut through what lies between its ends."""
    t = torch.arange(SUBDIVISIONS, dtype=curve.dtype, device=curve.device)[:, None] / SUBDIVISIONS
    fine = curve[:, :-1, None] * (1 - t) + curve[:, 1:, None] * t
    return torch.cat([fine.flatten(1, 2), curve[:, -1:]], 1)


def _linearised(decoders: SampledDecoders, curve: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient `[n, P K]` and Gauss-Newton matrix `[n, P K, P K]` of the energy in the P interior points.

    With `r_i = f(c_{i+1}) - f(c_i)`, up to the factor m/S: gradient `J_iᵀ (r_{i-1} - r_i)`, blocks `2 J_iᵀ J_i` and
    `-J_iᵀ J_{i+1}`.
    """
    n, points, width = curve.shape
    inner = points - 2
    gradient = curve.new_zeros(n, inner, width)
    blocks, beside = curve.new_zeros(n, inner, width, width), curve.new_zeros(n, inner - 1, width, width)
    for outputs, jacobian in decoders.jacobians(curve.reshape(-1, width)):
        f, jacobian = outputs.unflatten(0, (n, points)), jacobian.unflatten(0, (n, points))[:, 1:-1]
        turn = 2 * f[:, 1:-1] - f[:, :-2] - f[:, 2:]
        gradient += torch.einsum("npdk,npd->npk", jacobian, turn)
        blocks += 2 * torch.einsum("npdk,npdl->npkl", jacobian, jacobian)
        beside -= torch.einsum("npdk,npdl->npkl", jacobian[:, :-1], jacobian[:, 1:])
    matrix = curve.new_zeros(n, inner, width, inner, width)
    rows = torch.arange(inner, device=curve.device)
    matrix[:, rows, :, rows] = blocks.transpose(0, 1)
    matrix[:, rows[:-1], :, rows[1:]] = beside.transpose(0, 1)
    matrix[:, rows[1:], :, rows[:-1]] = beside.transpose(0, 1).mT
    return gradient.flatten(1), matrix.flatten(3, 4).flatten(1, 2)


def _along_codes(decoders: SampledDecoders, straight: Tensor, codes: Tensor) -> Tensor:
    """Return curves along the shortest paths of a graph of codes, with as many points as the straight ones.

    Edges join each code to its nearest ones; their lengths are those of the expected metric between their ends.
    """
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra
    from sklearn.neighbors import NearestNeighbors

    chosen = torch.linspace(0, len(codes) - 1, min(len(codes), CODES_AT_MOST)).round().long()
    nodes = torch.cat([straight[:, 0], straight[:, -1], codes[chosen]])
    count, curves = min(NEIGHBOURS + 1, len(nodes)), len(straight)
    search = NearestNeighbors(n_neighbors=count).fit(nodes.double().cpu().numpy())
    near = torch.from_numpy(search.kneighbors(return_distance=False, n_neighbors=count - 1)).to(nodes.device)
    here = torch.arange(len(nodes), device=nodes.device)[:, None].expand_as(near)
    squares = nodes.new_zeros(near.numel())
    for outputs in decoders.outputs(nodes):  # each node is decoded once, however many edges it has
        squares += (outputs[here.flatten()] - outputs[near.flatten()]).square().sum(-1)
    lengths = (squares / decoders.count).sqrt().double().cpu().numpy().clip(1e-12)
    edges = here.flatten().cpu().numpy(), near.flatten().cpu().numpy()
    graph = csr_matrix((lengths, edges), shape=(len(nodes), len(nodes)))
    _, before = dijkstra(graph, directed=False, indices=np.arange(curves), return_predecessors=True)
    paths = []
    for number in range(curves):
        path, at = [], curves + number
        while at >= 0:  # -9999 at the start, or where the graph does not join the ends
            path.append(at)
            at = int(before[number, at])
        joined = path[-1] == number
        paths.append(_resampled(nodes[path[::-1]], straight.shape[1]) if joined else straight[number])
    return torch.stack(paths)


def _resampled(path: Tensor, points: int) -> Tensor:
    """Return points at equal steps along a polygon `[p, K]`, ends included."""
    steps = path.diff(dim=0).norm(dim=1)
    at = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    arc = torch.linspace(0, 1, points, dtype=path.dtype, device=path.device) * at[-1]
    right = torch.searchsorted(at, arc).clamp(1, len(path) - 1)
    share = ((arc - at[right - 1]) / steps[right - 1].clamp_min(torch.finfo(path.dtype).tiny)).clamp(0, 1)[:, None]
    return path[right - 1] * (1 - share) + path[right] * share
