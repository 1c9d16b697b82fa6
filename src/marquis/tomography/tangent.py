"""Treat the trained image as a linear function of the network's convolution weights, by Jacobian products."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn

from marquis.functional.linearise import vector_jacobian_products
from marquis.tomography.unet import weight_blocks

SMALL_IMAGE = 1024
"""Pixels up to which vector-Jacobian products are batched by `vmap`; one by one they are faster above."""
ROWS = 64
"""Rows of a Jacobian that are computed at a time."""
WHOLE_JACOBIAN = 2**29
"""Bytes up to which the Jacobian of all blocks is computed at once."""


class LinearisedImage:
    """Linearise the image in the convolution weights, `f(θ) ≈ x̂ + J (θ - θ̂)`, in float64.

    Float64 is needed: the largest eigenvalue of the data's covariance is 1e7 times the noise variance.

    Attributes:
        image: `x̂`, `[H, W]`.
        blocks: names of the weights in each block, in the order in which weight vectors are flattened.
        sizes: number of weights in each block.
        weights: `θ̂`, `[P]`.
    """

    dtype = torch.float64

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.blocks = weight_blocks(network)
        self._network = copy.deepcopy(network).to(self.dtype).requires_grad_(False)
        self._inputs = inputs.to(self.dtype)
        self._names = [name for names in self.blocks.values() for name in names]
        self._values = {name: self._network.get_parameter(name).detach() for name in self._names}
        self.shapes = {name: tuple(value.shape) for name, value in self._values.items()}
        self.sizes = [sum(self._values[name].numel() for name in names) for names in self.blocks.values()]
        self.weights = torch.cat([value.flatten() for value in self._values.values()])
        self.image = self._call(self._values).detach()

    def _call(self, values: dict[str, Tensor]) -> Tensor:
        """Return the image at these weights."""
        return torch.func.functional_call(self._network, values, (self._inputs,))[0, 0]

    @cached_property
    def slices(self) -> list[slice]:
        """Return where each block is in a weight vector."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    def squared_norms(self) -> Tensor:
        """Return `|θ̂_d|²` per block."""
        return torch.stack([self.weights[part].square().sum() for part in self.slices])

    def filter_blocks(self) -> list[bool]:
        """Return, per block, whether its weights are 3 x 3 filters."""
        return [all(self.shapes[name][-2:] == (3, 3) for name in names) for names in self.blocks.values()]

    def jvp(self, rows: Tensor) -> Tensor:
        """Return `J w` for weight vectors `[k, P]`, as flattened images `[k, dx]`; about two forward passes each."""

        def product(row: Tensor) -> Tensor:
            tangents = self._unflatten(row)
            return torch.func.jvp(self._call, (self._values,), (tangents,))[1]

        return torch.func.vmap(product)(rows.to(self.dtype)).flatten(1)

    def vjp(self, rows: Tensor) -> Tensor:
        """Return `Jᵀ x` for flattened images `[k, dx]`, as weight vectors `[k, P]`."""
        return self._vector_jacobian_product(rows, self._names)

    def block_jacobians(self) -> Iterator[Tensor]:
        """Yield each block's Jacobian `[dx, P_d]` in turn.

        Costs dx vector-Jacobian products in all where the whole Jacobian takes at most `WHOLE_JACOBIAN` bytes, else dx
        for each block.
        """
        if 8 * self.image.numel() * self.weights.numel() <= WHOLE_JACOBIAN:
            yield from self._jacobian(self._names, self.weights.numel()).split(self.sizes, dim=1)
            return
        for names, size in zip(self.blocks.values(), self.sizes, strict=True):
            yield self._jacobian(names, size)

    def _jacobian(self, names: list[str], size: int) -> Tensor:
        """Return the Jacobian of the image in some parameters, as a matrix."""
        pixels = self.image.numel()
        eye = torch.eye(pixels, dtype=self.dtype)
        jacobian = torch.empty(pixels, size, dtype=self.dtype)
        for first in range(0, pixels, ROWS):
            jacobian[first : first + ROWS] = self._vector_jacobian_product(eye[first : first + ROWS], names)
        return jacobian

    def _vector_jacobian_product(self, rows: Tensor, names: list[str]) -> Tensor:
        """Return the products of rows with the Jacobian in some parameters."""
        image, leaves = self._graph
        inputs = [leaves[name] for name in names]
        cotangents = rows.to(self.dtype).reshape(-1, *image.shape)
        batched = image.numel() <= SMALL_IMAGE
        gradients = vector_jacobian_products([image], inputs, [cotangents], batched=batched)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    @cached_property
    def _graph(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the forward pass with everything that backward passes need, kept between products."""
        leaves = {name: value.clone().requires_grad_() for name, value in self._values.items()}
        return self._call(leaves), leaves

    def _unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """Return a flat row as tensors by name."""
        pieces = row.split([value.numel() for value in self._values.values()])
        return {name: piece.reshape(self.shapes[name]) for name, piece in zip(self._names, pieces, strict=True)}
