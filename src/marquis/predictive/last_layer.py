"""Predict from the last linear layer, whose Jacobian is `I (x) phi`, so that thousands of classes need no Jacobian.

With Kronecker factors `A = G (x) R + d I`, G = Q diag(g) Q^T and R = U diag(r) U^T, the logits of one input have
covariance `Q diag(c) Q^T` with `c_i = sum_j (U^T phi)_j^2 / (g_i r_j + d)`
(docs/method/curvature.md#last-layer-and-subnetworks).

Letters: B inputs, O outputs, s features.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from marquis.functional.call import Observer, call, copied_buffers, plain_attention
from marquis.functional.unwrap import submodule
from marquis.predictive.function import PosteriorFunction
from marquis.randomness import normal
from marquis.structures import Diagonal, Kronecker
from marquis.structures.kronecker_operator import KroneckerOperator


@dataclass(frozen=True, eq=False)
class LastLayerFactors:
    """Hold the posterior of one linear layer in factored form; made once per posterior.

    Attributes:
        inverse: `1 / (g_i r_j + d)`, or the variances themselves for a diagonal posterior, `[O, s]`.
        left: Q `[O, O]`, or None for a diagonal posterior.
        right: U `[s, s]`, or None.
        bias_variance: `[O]`, or None without a bias.
        bias_root: a root of the bias's covariance, `[O, O]`, or None where it is diagonal or there is none.
    """

    inverse: Tensor
    left: Tensor | None
    right: Tensor | None
    bias_variance: Tensor | None
    bias_root: Tensor | None


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Hold a linear output layer with its features of one batch.

    Attributes:
        outputs: the network's outputs `[B, O]`.
        features: `[B, s]`.
        factors: the posterior.
    """

    outputs: Tensor
    features: Tensor
    factors: LastLayerFactors

    @cached_property
    def _scales(self) -> Tensor:
        """Return c, the variances in the output eigenbasis, `[B, O]`."""
        right = self.factors.right
        rotated = self.features if right is None else self.features @ right
        return rotated.square() @ self.factors.inverse.mT

    def variance(self) -> Tensor:
        """Return the marginal variance of the outputs `[B, O]`: O(B s (s + O) + B O^2)."""
        left, bias = self.factors.left, self.factors.bias_variance
        variance = self._scales if left is None else self._scales @ left.square().mT
        return variance if bias is None else variance + bias

    def covariance(self) -> Tensor:
        """Return the covariance of the outputs of each input, `[B, O, O]`."""
        left, factors = self.factors.left, self.factors
        covariance = torch.diag_embed(self._scales) if left is None else (left * self._scales.unsqueeze(1)) @ left.mT
        if factors.bias_variance is None:
            return covariance
        root = factors.bias_root
        return covariance + (torch.diag(factors.bias_variance) if root is None else root @ root.mT)

    def deviations(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return `n` samples of outputs minus mean `[n, B, O]`, inputs independent: no O x O matrix per input."""
        shape = (n, *self._scales.shape)
        z = normal(shape, self._scales, generator) * self._scales.sqrt()
        outputs = z if self.factors.left is None else z @ self.factors.left.mT
        if self.factors.bias_variance is None:
            return outputs
        noise = normal(shape, self._scales, generator)
        root = self.factors.bias_root
        return outputs + (noise * self.factors.bias_variance.sqrt() if root is None else noise @ root.mT)


def find_last_layer(function: PosteriorFunction, x: Any) -> LastLayer | None:
    """Return the last layer, if the posterior is over exactly that one and nothing follows it; else None."""
    posterior, model = function.posterior, function.model
    owners = {name.rpartition(".")[0] for name in posterior.layout.names}
    leaves = {name.rpartition(".")[2] for name in posterior.layout.names}
    if function.at is not None or not isinstance(model, nn.Module) or posterior.index is not None:
        return None
    if len(owners) != 1 or leaves not in ({"weight"}, {"weight", "bias"}):
        return None
    (owner,) = owners
    layer = submodule(model, owner)
    if type(layer) is not nn.Linear or _is_shared(model, layer):
        return None
    factors = _factors(function, owner)
    if factors is None:
        return None
    calls: list[tuple[Any, Any]] = []
    observers: dict[nn.Module, Observer] = {layer: lambda args, output: calls.append((args[0], output))}
    with torch.no_grad(), plain_attention():
        outputs = call(model, {**function.fixed, **posterior.mean}, copied_buffers(model), x, observers)
    if len(calls) != 1 or calls[0][1] is not outputs or outputs.dim() != 2:
        return None  # something follows the layer, or it is applied at several positions
    return LastLayer(function.checked(outputs, x), calls[0][0].to(factors.inverse.dtype), factors)


def _is_shared(model: nn.Module, layer: nn.Linear) -> bool:
    """Return whether another module uses the same weight or bias (then the features depend on it too)."""
    ids = {id(p) for p in layer.parameters()}
    uses = [id(p) for module in model.modules() for p in module._parameters.values() if p is not None]
    return sum(use in ids for use in uses) > len(ids)


_MADE: weakref.WeakKeyDictionary[Any, LastLayerFactors | None] = weakref.WeakKeyDictionary()


def _factors(function: PosteriorFunction, owner: str) -> LastLayerFactors | None:
    """Return the layer's posterior in factored form, made once per posterior."""
    posterior = function.posterior
    if posterior not in _MADE:
        _MADE[posterior] = _make_factors(function, f"{owner}.weight" if owner else "weight")
    return _MADE[posterior]


def _make_factors(function: PosteriorFunction, weight: str) -> LastLayerFactors | None:
    """Return the layer's posterior in factored form; None for structures that have none."""
    precision = function.posterior.precision
    others = [name for name in precision.layout.names if name != weight]
    if isinstance(precision, Diagonal):
        variances = precision.layout.unflatten(precision.inverse_diagonal())
        return LastLayerFactors(variances[weight], None, None, variances[others[0]] if others else None, None)
    if not isinstance(precision, Kronecker):
        return None
    operators = {name: operator for (name,), operator in precision.parts}
    operator = operators[weight]
    if not isinstance(operator, KroneckerOperator) or operator.left.shape[0] != 1:
        return None
    inverse, (left, right) = 1 / operator.eigenvalues[0], operator.bases
    if not others:
        return LastLayerFactors(inverse, left[0], right[0], None, None)
    identity = torch.eye(len(inverse), dtype=inverse.dtype, device=inverse.device)
    root = operators[others[0]].sample_from(identity).mT
    return LastLayerFactors(inverse, left[0], right[0], root.square().sum(1), root)
