"""Define the rules of transposed convolutions, in one to three dimensions.

Index letters: `c` columns of the factor S, `n` samples, `q` groups, `t` positions, `O` and `I` channels, `k` offsets
within the kernel; g is a column of S.

* Vector-Jacobian product: the convolution with the same kernel, per column.
* Parameter gradients: `dW[c, n] = sum_t g_t (patch of x at t)ᵀ` over output positions, where the patches are those of
  the input with zeros between its entries; the same sum over input positions, with the cotangent unfolded instead of
  the input, is cheaper. `db = sum_t g_t`.
* Squared rule: that of `convolution`, with m and x in each other's place.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import CHUNK_BYTES, ExplicitGradients, ParameterGradients
from marquis.curvature.factors.outer_products import OuterProducts
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context
from marquis.curvature.ops.convolution import CONVOLUTIONS, PLAIN, batched_geometry, row_major
from marquis.curvature.ops.patches import ConvolutionGeometry, patch_products, unfold
from marquis.curvature.ops.registry import register
from marquis.functional.matmul import by_sample


def transposed_convolution_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Apply the convolution with the same kernel, the adjoint of the transposed one."""
    read = batched_geometry(context, step, factor)
    if read is None:
        return None
    number, geometry = read
    if not context.is_target(number):
        return {}
    columns = factor.unwindowed().product()
    c, n = columns.shape[:2]
    result = CONVOLUTIONS[geometry.dims - 1](
        columns.reshape(c * n, *columns.shape[2:]),
        geometry.weight,
        None,
        geometry.stride,
        [before for before, _ in geometry.padding],
        geometry.dilation,
        geometry.groups,
    )
    for axis, size in enumerate(context.shapes[number][2:]):  # output padding adds positions that no input produced
        result = result.narrow(2 + axis, 0, size)
    return {number: Factor(result.reshape(c, n, *result.shape[1:]), (factor.shape[0], *result.shape[1:]))}


def transposed_convolution_gradient(
    context: Context, step: Step, factor: Factor, number: int
) -> ParameterGradients | None:
    """Return the gradients of a kernel [I, O/q, *k] or of the bias.

    Kronecker factors are over output positions, where patches overlap: exact for a last layer under Gaussian noise, and
    mostly nearer below it. Without overlap, or with one input position, those over input positions are as exact for a
    last layer and nearer below it (docs/method/kronecker.md#convolutions).
    """
    read = batched_geometry(context, step, factor)
    if read is None:
        return None
    source, geometry = read
    columns = factor.dense()
    if step.reference("bias") == number:
        return ExplicitGradients(columns.flatten(3).sum(-1), columns.shape[1], as_block=True)
    image: Tensor = context.values[source]
    reach = [d * (k - 1) + 1 for d, k in zip(geometry.dilation, geometry.kernel, strict=True)]
    apart = all(r <= s for r, s in zip(reach, geometry.stride, strict=True))
    if prod(image.shape[2:]) == 1 or (apart and not any(any(pad) for pad in geometry.padding)):
        return _over_input_positions(columns, image, geometry)
    return _over_output_positions(columns, image, geometry)


def _unfolded_cotangent(columns: Tensor, image: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    """Return what every input position reaches in the cotangent: [c, n, q, t, k * O/q], channels fastest."""
    c, n = columns.shape[:2]
    boxes, pads = tuple((0, size) for size in image.shape[2:]), []
    for axis, (size, out) in enumerate(zip(image.shape[2:], columns.shape[3:], strict=True)):
        reach = (size - 1) * geometry.stride[axis] + geometry.dilation[axis] * (geometry.kernel[axis] - 1) + 1
        before = geometry.padding[axis][0]
        pads.append((before, max(0, reach - before - out)))
    folded = columns.reshape(c * n, *columns.shape[2:])
    unfolded = unfold(folded, replace(geometry, padding=pads), boxes)
    return unfolded.reshape(c, n, *unfolded.shape[1:])


def _over_input_positions(columns: Tensor, image: Tensor, geometry: ConvolutionGeometry) -> OuterProducts:
    """Return sum_t x_t (patch of the cotangent at t)ᵀ."""
    weight, kernel, groups, dims = geometry.weight, geometry.kernel, geometry.groups, geometry.dims
    g = _unfolded_cotangent(columns, image, geometry)
    n, channels = g.shape[1], weight.shape[1]
    inputs = image.reshape(n, groups, -1, g.shape[3]).transpose(-1, -2)  # [n, q, t, I/q]

    def arrange(G: Tensor) -> Tensor:  # [..., q, k * O/q, I/q] -> [..., I, O/q, *k]
        split = G.transpose(-1, -2)
        split = split.reshape(*split.shape[:-1], *kernel, channels).movedim(-1, -1 - dims)
        return split.flatten(-3 - dims, -2 - dims)

    sizes, order = (groups, inputs.shape[2], inputs.shape[3]), row_major(weight)
    return OuterProducts(
        lambda start, stop: inputs[start:stop], g, n, sizes, tuple(weight.shape), arrange, swapped=True, order=order
    )


def _over_output_positions(columns: Tensor, image: Tensor, geometry: ConvolutionGeometry) -> OuterProducts:
    """Return sum_t g_t (patch of the input at t)ᵀ; written out, the same numbers are summed over input positions."""
    weight, kernel, groups, dims = geometry.weight, geometry.kernel, geometry.groups, geometry.dims
    (c, n), channels, outputs = columns.shape[:2], weight.shape[0] // groups, weight.shape[1]
    g = columns.reshape(c, n, groups, outputs, -1).transpose(-1, -2)  # [c, n, q, t, O/q]
    boxes = tuple((0, size) for size in columns.shape[3:])
    pads = []
    for axis, (size, out) in enumerate(zip(image.shape[2:], columns.shape[3:], strict=True)):
        cropped, wide = geometry.padding[axis][0], geometry.stride[axis] * (size - 1) + 1
        pads.append((geometry.dilation[axis] * (kernel[axis] - 1) - cropped, out - wide + cropped))
    plain = replace(geometry, padding=pads, stride=[1] * dims, transposed=False)

    def spread(start: int, stop: int) -> Tensor:
        """Return the input with zeros between its entries."""
        x = image[start:stop]
        size = [s * (old - 1) + 1 for s, old in zip(geometry.stride, x.shape[2:], strict=True)]
        wide = x.new_zeros(*x.shape[:2], *size)
        wide[(..., *(slice(None, None, s) for s in geometry.stride))] = x
        return wide

    def patches(start: int, stop: int) -> Tensor:  # [m, q, t, k * I/q]
        reversed_offsets = unfold(spread(start, stop), plain, boxes)
        m, _, t, i = reversed_offsets.shape
        return reversed_offsets.view(m, groups, t, -1, channels).flip(3).reshape(m, groups, t, i)

    def input_products(sharing: str) -> tuple[Tensor, float]:
        total, count = patch_products(spread(0, n), plain, boxes, sharing)
        i = total.shape[-1]
        return total.view(groups, -1, channels, i // channels, channels).flip(1, 3).reshape(groups, i, i), count

    width = max(1, CHUNK_BYTES // (c * prod(kernel) * outputs * groups * prod(image.shape[2:]) * image.element_size()))

    def direct(start: int, stop: int) -> Tensor:
        result = image.new_empty(stop - start, groups, c, outputs, prod(kernel), channels)
        for first in range(start, stop, width):
            x = image[first : min(stop, first + width)]
            reached = _unfolded_cotangent(columns[:, first : first + len(x)], x, geometry)
            rows = reached.permute(1, 2, 0, 4, 3).flatten(2, 3)  # [m, q, c * k * O/q, t]
            products = by_sample(rows, x.reshape(len(x), groups, channels, -1).transpose(-1, -2))
            products = products.view(len(x), groups, c, -1, outputs, channels)
            result[first - start : first - start + len(x)] = products.transpose(3, 4)
        return result.view(len(result), groups, c * outputs, -1)

    def arrange(G: Tensor) -> Tensor:  # [..., q, O/q, k * I/q] -> [..., I, O/q, *k]
        split = G.reshape(*G.shape[:-1], *kernel, channels).movedim(-1, -2 - dims)
        return split.flatten(-3 - dims, -2 - dims)

    sizes = (groups, g.shape[3], prod(kernel) * channels)
    return OuterProducts(
        patches, g, n, sizes, tuple(weight.shape), arrange, False, input_products, direct,
        order=row_major(weight, channels), channels=channels,
    )  # fmt: skip


ADJOINT = replace(PLAIN, note="x: convolution of m with W²; W: weight gradient of m with x²; b: sum of m")

register(
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    kind="transposed convolution", vjp=transposed_convolution_vjp, vjp_reads="factors",
    gradient=transposed_convolution_gradient, kronecker=True, layer="ConvTranspose1d, 2d, 3d (all options)",
    squared=ADJOINT,
)  # fmt: skip
