"""A fitted Laplace approximation as one safetensors file, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marquis.curvature.call import Model, buffers_of, parameters_of
from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.evidence.problem import Statistics
from marquis.laplace.fitting import Fitted
from marquis.likelihoods import Likelihood
from marquis.persistence import split_prefix
from marquis.priors import BoundPrior, StructuredPrior
from marquis.structures import Layout, from_state_dict

State = tuple[dict[str, Any], dict[str, Tensor]]
"""What JSON can hold, and tensors."""


def pack_fitted(fitted: Fitted) -> State:
    """Everything of a fit, prior included."""
    seen = fitted.statistics
    header: dict[str, Any] = {
        "layout": [[name, list(shape)] for name, shape in fitted.layout.items],
        "structure": fitted.structure,
        "estimator": fitted.estimator,
        "statistics": None if seen is None else {"n": seen.n, "observed": seen.observed},
    }
    tensors = {f"mean.{name}": tensor for name, tensor in fitted.mean.items()}
    tensors |= {f"curvature.{key}": tensor for key, tensor in fitted.curvature.state_dict().items()}
    if fitted.index is not None:
        tensors["index"] = fitted.index
    if seen is not None:
        tensors["sse" if seen.sse is not None else "log_likelihood"] = (
            seen.sse if seen.sse is not None else torch.as_tensor(seen.log_likelihood)
        )
    prior = fitted.prior
    tensors["prior.mean"] = prior.mean
    if isinstance(prior, StructuredPrior):
        tensors |= {f"prior.structure.{key}": tensor for key, tensor in prior.structure.state_dict().items()}
    else:
        header["groups"] = None if prior.group_names is None else list(prior.group_names)
        tensors["prior.precision"] = prior.precision
        if prior.group_names is not None:
            tensors["prior.index"] = prior.index
    return header, tensors


def unpack_fitted(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
    """Inverse of `pack_fitted`.

    Raises:
        DataError: something is missing or does not fit together.
    """
    try:
        layout = Layout({name: shape for name, shape in header["layout"]})
        means = split_prefix(tensors, "mean.")
        curvature = from_state_dict(split_prefix(tensors, "curvature."))
        inside = curvature.layout
        structured = split_prefix(tensors, "prior.structure.")
        if structured:
            prior: BoundPrior | StructuredPrior = StructuredPrior(
                inside, from_state_dict(structured), tensors["prior.mean"]
            )
        else:
            names = None if header["groups"] is None else tuple(header["groups"])
            index = torch.arange(inside.total) if names is None else tensors["prior.index"]
            prior = BoundPrior(inside, index, tensors["prior.precision"], tensors["prior.mean"], names)
        return Fitted(
            layout,
            {name: means[name] for name in layout.names},
            tensors.get("index"),
            curvature,
            prior,
            _statistics(header["statistics"], tensors),
            str(header["structure"]),
            str(header["estimator"]),
        )
    except MarquisError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise DataError(f"the file is not a complete Laplace approximation ({error!r}): corrupt?") from error


def _statistics(header: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> Statistics | None:
    if header is None:
        return None
    return Statistics(int(header["n"]), int(header["observed"]), tensors.get("sse"), tensors.get("log_likelihood"))


def pack_likelihood(likelihood: Likelihood) -> State:
    """A likelihood's state; empty for an object that cannot be saved, which then has to be passed again."""
    try:
        state = likelihood.state_dict()
    except ModelMismatchError:
        return {}, {}
    plain = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
    return plain, {f"likelihood.{key}": value for key, value in state.items() if isinstance(value, Tensor)}


def unpack_likelihood(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    """Inverse of `pack_likelihood`.

    Raises:
        ModelMismatchError: the file does not know its likelihood.
    """
    if not header:
        raise ModelMismatchError(
            "this file was saved with a likelihood of the user's own; pass load(..., likelihood=)."
        )
    try:
        return Likelihood.from_state_dict({**header, **split_prefix(tensors, "likelihood.")})
    except MarquisError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the likelihood in the file cannot be read ({error!r}): corrupt?") from error


def describe_model(model: Model, fitted_mean: Mapping[str, Tensor]) -> dict[str, Any]:
    """Names and shapes of all parameters, and a fingerprint of what the file does not hold."""
    own = parameters_of(model, None if isinstance(model, nn.Module) else fitted_mean)
    others = {name: p for name, p in own.items() if name not in fitted_mean} | buffers_of(model)
    return {
        "parameters": [[name, list(tensor.shape)] for name, tensor in own.items()],
        "others": _fingerprint(others),
    }


def require_model(model: Model, saved: Mapping[str, Any], mean: Mapping[str, Tensor]) -> None:
    """Refuse a model whose parameters differ in name or shape, or whose other weights have other values.

    Raises:
        ModelMismatchError: names what differs.
    """
    found = describe_model(model, mean)
    theirs = {name: shape for name, shape in saved["parameters"]}
    mine = {name: shape for name, shape in found["parameters"]}
    missing, extra = [n for n in theirs if n not in mine], [n for n in mine if n not in theirs]
    if missing or extra:
        raise ModelMismatchError(f"the model has other parameters than the file: missing {missing}, unknown {extra}.")
    for name, shape in theirs.items():
        if list(mine[name]) != list(shape):
            raise ModelMismatchError(f"parameter {name!r} has shape {mine[name]} in the model and {shape} in the file.")
    if found["others"] != saved["others"]:
        raise ModelMismatchError(
            "the model's weights or buffers outside of the posterior have other values than when it was saved: load "
            "the same checkpoint into the model first."
        )


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu()
        # In float32, so that the same network in another precision is the same network.
        value = value.float() if value.is_floating_point() else value
        digest.update(json.dumps([name, list(value.shape)]).encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
