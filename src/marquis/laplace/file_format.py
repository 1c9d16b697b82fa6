"""Convert a fitted Laplace approximation to the contents of one safetensors file, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marquis.curvature.planning.choices import ESTIMATORS
from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.evidence.statistics import Statistics
from marquis.functional.call import Model, buffers_of
from marquis.functional.selection import parameters_of
from marquis.io.tensors import split_prefix
from marquis.laplace.fitting import Fitted
from marquis.likelihoods import Likelihood
from marquis.priors import BoundPrior, StructuredPrior
from marquis.structures import Layout, from_state_dict

State = tuple[dict[str, Any], dict[str, Tensor]]
"""What JSON can hold, and tensors."""


def pack_fitted(fitted: Fitted) -> State:
    """Return a fit, prior included, as a header and tensors."""
    statistics = fitted.statistics
    header: dict[str, Any] = {
        "layout": [[name, list(shape)] for name, shape in fitted.layout.items],
        "structure": fitted.structure,
        "estimator": fitted.estimator,
        "statistics": None if statistics is None else {"n": statistics.n, "observed": statistics.observed},
    }
    tensors = {f"mean.{name}": tensor for name, tensor in fitted.mean.items()}
    tensors |= {f"curvature.{key}": tensor for key, tensor in fitted.curvature.state_dict().items()}
    if fitted.index is not None:
        tensors["index"] = fitted.index
    if statistics is not None:
        tensors["sse" if statistics.sse is not None else "log_likelihood"] = (
            statistics.sse if statistics.sse is not None else torch.as_tensor(statistics.log_likelihood)
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


BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, ArithmeticError)
"""What reading a made-up file may raise before any check of ours has looked at it."""


def unpack_fitted(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
    """Build what `pack_fitted` described; everything is checked here, so that a made-up file is refused.

    Raises:
        DataError: something is missing, of the wrong kind, or does not fit together.
        ModelMismatchError: the pieces are about different parameters.
    """
    try:
        layout = _layout(header["layout"])
        _require_known(tensors)
        means = split_prefix(tensors, "mean.")
        _require(set(means) == set(layout.names), "means of other parameters than in the layout")
        for name, shape in layout.items:
            _require_floats(means[name], f"mean.{name}", shape)
        curvature = from_state_dict(split_prefix(tensors, "curvature."))
        if header.get("kind") != "hessian":  # which may be indefinite
            _require(bool((curvature.diagonal() >= 0).all()), "a curvature with a negative diagonal")
        _require(
            header["structure"] == curvature.kind, f"structure {header['structure']!r} of a {curvature.kind} matrix"
        )
        _require(header["estimator"] in ESTIMATORS, f"estimator {header['estimator']!r}, which is not known")
        index = tensors.get("index")
        if index is None:
            layout.require_same(curvature.layout)
        else:
            require_index(index, layout, curvature.layout)
        mean = {name: means[name] for name in layout.names}
        prior = _prior(header, tensors, curvature.layout)
        statistics = _statistics(header["statistics"], tensors)
        return Fitted(layout, mean, index, curvature, prior, statistics, curvature.kind, header["estimator"])
    except MarquisError:
        raise
    except BROKEN as error:
        raise DataError(f"the file is not a complete Laplace approximation ({error!r}): corrupt?") from error


def _require(condition: bool, what: str) -> None:
    """Refuse a file that has what no saved file has."""
    if not condition:
        raise DataError(f"the file is no Laplace approximation that was saved here; it has {what}: corrupt or made up?")


def _require_floats(tensor: Tensor, name: str, shape: Sequence[int]) -> None:
    """Refuse a tensor of another shape, of integers, or with entries that are not finite."""
    actual = tuple(tensor.shape)
    _require(actual == tuple(shape), f"{name!r} of shape {actual} instead of {tuple(shape)}")
    _require(tensor.is_floating_point(), f"{name!r} in {tensor.dtype}")
    _require(bool(torch.isfinite(tensor).all()), f"NaN or infinite entries in {name!r}")


def _require_known(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that nothing reads."""
    single = ("index", "sse", "log_likelihood", "prior.mean", "prior.precision", "prior.index")
    groups = ("mean.", "curvature.", "prior.structure.", "likelihood.")
    unknown = [name for name in tensors if name not in single and not name.startswith(groups)]
    _require(not unknown, f"tensors {unknown[:8]}, which nothing here reads")


def _is_count(value: Any, least: int = 0) -> bool:
    """Return whether a value is a whole number, at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _layout(items: Any) -> Layout:
    """Build the layout of the parameters from the header."""
    _require(isinstance(items, list) and len(items) > 0, "no list of parameters")
    for item in items:
        good = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list)
        _require(good and all(_is_count(length) for length in item[1]), f"a parameter described as {item!r}")
    shapes = {name: shape for name, shape in items}
    _require(len(shapes) == len(items), "the same parameter twice")
    return Layout(shapes)


def require_index(index: Tensor, layout: Layout, inside: Layout | None) -> None:
    """Refuse positions of single weights that are not ascending whole numbers inside the layout."""
    _require(index.dtype == torch.int64 and index.dim() == 1 and len(index) > 0, "an index that is no list of numbers")
    _require(bool((index.diff() > 0).all()), "an index that is not ascending")
    _require(int(index[0]) >= 0 and int(index[-1]) < layout.total, "an index that points outside of the weights")
    if inside is not None:
        places = {name: layout.slice(name) for name in layout.names}
        counts = {n: (int(((index >= at.start) & (index < at.stop)).sum()),) for n, at in places.items()}
        _require(Layout(counts) == inside, "an index of other weights than its curvature")


def _prior(header: Mapping[str, Any], tensors: Mapping[str, Tensor], inside: Layout) -> BoundPrior | StructuredPrior:
    """Build the prior, by groups or with an earlier posterior's precision."""
    mean = tensors["prior.mean"]
    _require_floats(mean, "prior.mean", (inside.total,))
    structured = split_prefix(tensors, "prior.structure.")
    if structured:
        _require("prior.precision" not in tensors, "two priors")
        structure = from_state_dict(structured)
        inside.require_same(structure.layout)
        _require(bool(torch.isfinite(structure.logdet())), "a prior precision that is not positive definite")
        return StructuredPrior(inside, structure, mean)
    groups, precision = header["groups"], tensors["prior.precision"]
    if groups is None:
        names, index = None, torch.arange(inside.total)
    else:
        _require(isinstance(groups, list) and all(isinstance(name, str) for name in groups), "groups without names")
        names, index = tuple(groups), tensors["prior.index"]
    count = inside.total if names is None else len(names)
    _require_floats(precision, "prior.precision", (count,))
    _require(bool((precision > 0).all()), "a prior precision that is not positive")
    _require(index.dtype == torch.int64 and tuple(index.shape) == (inside.total,), "weights without a prior group")
    _require(bool(((index >= 0) & (index < count)).all()), "weights in a prior group that there is not")
    return BoundPrior(inside, index, precision, mean, names)


def _statistics(header: Any, tensors: Mapping[str, Tensor]) -> Statistics | None:
    """Build the fit of the data; None if they had no labels."""
    values = {name: tensors[name] for name in ("sse", "log_likelihood") if name in tensors}
    if header is None:
        _require(not values, "a fit of data without their number")
        return None
    _require(_is_count(header["n"], 1) and _is_count(header["observed"]), "numbers of data that are no numbers")
    for name, value in values.items():
        _require_floats(value, name, ())
    _require(float(values.get("sse", torch.zeros(()))) >= 0, "a negative sum of squares")
    return Statistics(header["n"], header["observed"], values.get("sse"), values.get("log_likelihood"))


def pack_likelihood(likelihood: Likelihood) -> State:
    """Return a likelihood's state; empty for an object that cannot be saved, which then has to be passed again."""
    try:
        state = likelihood.state_dict()
    except ModelMismatchError:
        return {}, {}
    plain = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
    return plain, {f"likelihood.{key}": value for key, value in state.items() if isinstance(value, Tensor)}


def unpack_likelihood(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    """Build the likelihood that `pack_likelihood` described.

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
    except BROKEN as error:
        raise DataError(f"the likelihood in the file cannot be read ({error!r}): corrupt?") from error


def describe_model(model: Model, fitted_mean: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the names and shapes of all parameters, and a fingerprint of what the file does not hold."""
    params = parameters_of(model, None if isinstance(model, nn.Module) else fitted_mean)
    others = {name: p for name, p in params.items() if name not in fitted_mean} | buffers_of(model)
    return {
        "parameters": [[name, list(tensor.shape)] for name, tensor in params.items()],
        "others": _fingerprint(others),
    }


def require_model(model: Model, saved: Mapping[str, Any], mean: Mapping[str, Tensor]) -> None:
    """Refuse a model whose parameters differ in name or shape, or whose other weights have other values.

    Raises:
        ModelMismatchError: names what differs.
    """
    present = describe_model(model, mean)
    in_file = {name: shape for name, shape in saved["parameters"]}
    in_model = {name: shape for name, shape in present["parameters"]}
    missing, extra = [n for n in in_file if n not in in_model], [n for n in in_model if n not in in_file]
    if missing or extra:
        raise ModelMismatchError(f"the model has other parameters than the file: missing {missing}, unknown {extra}.")
    for name, shape in in_file.items():
        if list(in_model[name]) != list(shape):
            raise ModelMismatchError(
                f"parameter {name!r} has shape {in_model[name]} in the model and {shape} in the file."
            )
    if present["others"] != saved["others"]:
        raise ModelMismatchError(
            "the model's weights or buffers outside of the posterior have other values than when it was saved: load "
            "the same checkpoint into the model first."
        )


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu()
        # In float32, so that the same network in another precision is the same network.
        value = value.float() if value.is_floating_point() else value
        digest.update(json.dumps([name, list(value.shape)]).encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
