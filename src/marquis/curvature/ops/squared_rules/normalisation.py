"""Normalisation layers.

With xhat the normalised input, n the number of entries that share statistics, s the standard deviation, gamma the
scale and w = gamma² m, S_k = sum_i w_i xhat_i^k over those entries:

- mean and variance (layer, group, instance): d xhat_i / d x_j = (δ_ij - (1 + xhat_i xhat_j) / n) / s, so
  `m_x = [w (1 - 2 (1 + xhat²) / n) + (S_0 + 2 xhat S_1 + xhat² S_2) / n²] / s²`;
- root mean square: d xhat_i / d x_j = (δ_ij - xhat_i xhat_j / n) / s, so
  `m_x = [w (1 - 2 xhat² / n) + xhat² S_2 / n²] / s²`;
- fixed statistics (batch norm in evaluation mode): `m_x = w / s²`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.curvature.graph.network import Step
from marquis.curvature.ops.squared_rules.registry import Local, reading, rule

_STATISTICS = reading(input=(), weight=("input",))
_SCALE_SHIFT = "scale: sum of m xhat²; shift: sum of m"


def _give_affine(local: Local, xhat: Tensor | None, shape: list[int]) -> None:
    """The rules of scale and shift, whose entries are laid out as `shape` in the result."""
    if local.wants("weight"):
        assert xhat is not None
        local.give("weight", (local.m * xhat.square()).sum_to_size(shape).reshape(local.value("weight").shape))
    if local.wants("bias"):
        local.give("bias", local.m.sum_to_size(shape).reshape(local.value("bias").shape))


def _scaled(local: Local, shape: list[int]) -> Tensor:
    weight = local.value("weight")
    return local.m if weight is None else local.m * weight.square().reshape(shape)


def _through_standardisation(w: Tensor, xhat: Tensor, inverse: Tensor, dims: list[int]) -> Tensor:
    """M of the input for statistics over `dims`; `inverse` is 1/s."""
    n = 1
    for dim in dims:
        n *= xhat.shape[dim]
    weighted = w * xhat
    s0, s1 = w.sum(dims, keepdim=True), weighted.sum(dims, keepdim=True)
    s2 = (weighted * xhat).sum(dims, keepdim=True)
    square = xhat.square()
    own = w - w * (1 + square) * (2 / n)
    return (own + (s0 + 2 * xhat * s1 + square * s2) / n**2) * inverse.square()


def _standardised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    inverse = (variance + eps).rsqrt()
    return (x - mean) * inverse, inverse


def _layer_norm(local: Local, normalized_shape: list[int]) -> None:
    x = local.value("input")
    shape = list(normalized_shape)
    dims = list(range(x.dim() - len(shape), x.dim()))
    xhat, inverse = _standardised(x, dims, local.value("eps"))
    _give_affine(local, xhat, shape)
    if local.wants("input"):
        local.give("input", _through_standardisation(_scaled(local, shape), xhat, inverse, dims))


@rule("layer_norm", "native_layer_norm", reads=_STATISTICS, parameter_rule=True, note=_SCALE_SHIFT)
def layer_norm(local: Local) -> None:
    """Statistics over the last dimensions."""
    _layer_norm(local, local.value("normalized_shape"))


@rule("group_norm", reads=_STATISTICS, parameter_rule=True, note=_SCALE_SHIFT)
def group_norm(local: Local) -> None:
    """Statistics over groups of channels and all positions."""
    _grouped(local, local.value("num_groups"))


@rule("native_group_norm", reads=_STATISTICS, parameter_rule=True, note=_SCALE_SHIFT)
def native_group_norm(local: Local) -> None:
    """The same, as decomposed graphs have it."""
    _grouped(local, local.value("group"))


def _grouped(local: Local, groups: int) -> None:
    x = local.value("input")
    grouped = x.reshape(x.shape[0], groups, -1)
    xhat, inverse = _standardised(grouped, [2], local.value("eps"))
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    _give_affine(local, xhat.reshape(x.shape), shape)
    if local.wants("input"):
        w = _scaled(local, shape).reshape(grouped.shape)
        local.give("input", _through_standardisation(w, xhat, inverse, [2]).reshape(x.shape))


@rule("rms_norm", reads=_STATISTICS, parameter_rule=True, note="scale: sum of m xhat²")
def rms_norm(local: Local) -> None:
    """X divided by its root mean square over the last dimensions."""
    x = local.value("input")
    shape = list(local.value("normalized_shape"))
    dims = list(range(x.dim() - len(shape), x.dim()))
    eps = local.value("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    inverse = (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    xhat = x * inverse
    if local.wants("weight"):
        local.give("weight", (local.m * xhat.square()).sum_to_size(shape))
    if local.wants("input"):
        n = x[(0,) * dims[0]].numel()
        w = _scaled(local, shape)
        square = xhat.square()
        s2 = (w * square).sum(dims, keepdim=True)
        local.give("input", (w - w * square * (2 / n) + square * s2 / n**2) * inverse.square())


def _fixed_statistics(local: Local) -> None:
    """Running mean and variance: an affine map per channel."""
    x = local.value("input")
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    inverse = (local.value("running_var") + local.value("eps")).rsqrt().reshape(shape)
    xhat = (x - local.value("running_mean").reshape(shape)) * inverse if local.wants("weight") else None
    _give_affine(local, xhat, shape)
    if local.wants("input"):
        weight = local.value("weight")
        factor = inverse if weight is None else inverse * weight.reshape(shape)
        local.give("input", local.m * factor.square())


def _check_batch_norm(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    if step.argument("training", _Anything()):
        return "it uses the statistics of the batch; call model.eval()"
    return None


class _Anything(dict[int, None]):
    """Values for reading an argument that is a constant."""

    def __missing__(self, key: int) -> None:
        return None


_FIXED = reading(input=("weight",), weight=("input",), running_mean=("weight",), running_var=("input", "weight"))


@rule("batch_norm", reads=_FIXED, parameter_rule=True, check=_check_batch_norm, note=f"evaluation mode. {_SCALE_SHIFT}")
def batch_norm(local: Local) -> None:
    """Batch norm in evaluation mode."""
    _fixed_statistics(local)


@rule("_native_batch_norm_legit_no_training", reads=_FIXED, parameter_rule=True, note=_SCALE_SHIFT)
def native_batch_norm(local: Local) -> None:
    """The same, as decomposed graphs have it."""
    _fixed_statistics(local)


@rule(
    "instance_norm",
    reads=reading(input=(), weight=("input",), running_mean=(), running_var=()),
    parameter_rule=True,
    note=_SCALE_SHIFT,
)
def instance_norm(local: Local) -> None:
    """Statistics per sample and channel, or running ones in evaluation mode."""
    if local.value("use_input_stats"):
        _grouped(local, local.value("input").shape[1])
    else:
        _fixed_statistics(local)
