"""Compute the covariance of a linearised network's outputs, `J A^-1 Jᵀ` of each sample, without a Jacobian.

One backward walk carries the identity at the output, one column per output, to the parameters; there each layer adds
its quadratic form (`factors/quadratic_forms.py`; docs/method/predictive.md, Without Jacobians). Samples go through in
blocks that stay in the cache, columns in chunks where only variances are wanted.

Cost: one forward pass, O backward passes, and per sample one rotation of each layer's inputs. Memory: one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import Receiver
from marquis.curvature.backward.bottlenecks import Bottleneck
from marquis.curvature.backward.output_roots import ExplicitRoot, PixelwiseRoot, SquareRoot
from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.backward.tiles import image_shape
from marquis.curvature.backward.walk import BackwardWalk, Observer
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.quadratic_forms import Forms
from marquis.curvature.graph.cache import network_of
from marquis.curvature.ops.context import Context
from marquis.functional.call import Model, without_inference
from marquis.functional.checks import batch_size, samples_of
from marquis.likelihoods import Gaussian

BLOCK_BYTES = 8 * 2**20
"""Size of the columns of one block of samples at the widest tensor."""

MOST_COLUMNS = 64
"""Columns that a block of samples is made for; more go through in chunks."""


@torch.inference_mode(False)
@torch.no_grad()
def output_covariance(
    model: Model, params: Mapping[str, Tensor], x: Any, forms: Forms, *, whole: bool, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs `[B, *rest]`, and their covariances `[B, O, O]` or (not `whole`) variances `[B, O]`.

    Raises:
        UnsupportedOperationError: The network cannot be captured.
    """
    x = without_inference(x)
    detached = {name: p.detach().clone() if p.is_inference() else p.detach() for name, p in params.items()}
    network = network_of(model, detached, x)
    backward = BackwardSteps.of(network, tuple(forms))
    size, start = batch_size(x), 0
    outputs, results = [], []
    width = 1 if network.fixed_batch is None else size  # the first sample alone shows how many fit
    while start < size:
        stop = min(size, start + width)
        values, shapes = network.bind(detached, samples_of(x, start, stop)), dict[int, tuple[int, ...]]()
        f = network.forward(values, backward.needed, shapes, backward.with_extra)
        count = prod(f.shape[1:])
        if start == 0 and network.fixed_batch is None:
            width = _samples_per_block(shapes, count if whole else min(count, MOST_COLUMNS), f.element_size(), limit)
        context = Context(network, values, shapes, backward.active, stop - start)
        receiver = _FormSum(f.new_zeros(()), forms, stop - start, whole)
        root, columns = _identity(f, image_shape(network, shapes), whole), _Columns()
        BackwardWalk(backward, context, receiver, _chunk_bytes(limit, whole), columns).run(root)
        outputs.append(f)
        known = receiver.chunks[0] if whole else columns.in_order(receiver.chunks, root, f)
        results.append(f.new_zeros(len(f), count, count) if known is None else known)
        start = stop
    return torch.cat(outputs), torch.cat(results)


def _samples_per_block(shapes: Mapping[int, tuple[int, ...]], columns: int, item: int, limit: int | None) -> int:
    """Return how many samples are differentiated at a time."""
    widest = max((prod(shape) for shape in shapes.values() if shape and shape[0] == 1), default=1)
    budget = BLOCK_BYTES if limit is None else min(BLOCK_BYTES, limit // 8)
    return max(1, budget // max(1, columns * widest * item))


def _chunk_bytes(limit: int | None, whole: bool) -> int:
    """Return the memory of a chunk of columns."""
    if whole:  # all columns together, whatever they take
        return 2**62
    return BLOCK_BYTES if limit is None else max(2**16, min(BLOCK_BYTES, limit // 8))


def _identity(f: Tensor, image: tuple[int, ...] | None, whole: bool) -> SquareRoot:
    """Return one column per output, in tiles where the output is an image."""
    if f.dim() == 1:
        return ExplicitRoot(f.new_ones(1, 1), tuple(f.shape), shared=True)
    local = image is not None and not whole
    return PixelwiseRoot(Gaussian(1.0), f, None, image if local and image else tuple(f.shape[1:]), local)


@dataclass
class _Columns(Observer):
    """Remember which columns each chunk holds."""

    chunks: list[Any] = field(default_factory=list)

    def choose_chunks(self, root: SquareRoot, chunks: list[object], bottleneck: Bottleneck | None) -> list[object]:
        """Take note of the chunks."""
        self.chunks = chunks
        return chunks

    def in_order(self, results: list[Tensor | None], root: SquareRoot, f: Tensor) -> Tensor:
        """Return variances `[n, c]` of all chunks as `[n, O]`, in the order of the outputs."""
        numbers = torch.arange(prod(f.shape[1:]), device=f.device)
        grid = numbers.view(root.grid) if isinstance(root, PixelwiseRoot) else numbers
        like = next((known for known in results if known is not None), f)
        total = like.new_zeros(f.shape[0], len(numbers))
        for chunk, variances in zip(self.chunks, results, strict=True):
            if variances is not None:
                box = chunk[0] if isinstance(root, PixelwiseRoot) else (chunk,)  # of a box all columns
                total[:, grid[tuple(slice(*ends) for ends in box)].flatten()] = variances
        return total


@dataclass(eq=False)
class _FormSum(Receiver):
    """Add up the quadratic forms of all parameters, per chunk of columns."""

    forms: Forms
    samples: int
    whole: bool
    chunks: list[Tensor | None] = field(default_factory=list)
    total: Tensor | None = None

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Add one parameter's form."""
        form = self.forms[name].of(gradients, self.whole)
        if self.total is None:
            self.total = form.expand(self.samples, *form.shape[1:]).clone()
        else:
            self.total += form

    def end_chunk(self) -> None:
        """Keep the sum over the parameters; None where the columns reach none of them."""
        self.chunks.append(self.total)
        self.total = None
