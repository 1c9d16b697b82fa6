"""Save a finished autoencoder as one safetensors file that loads without running code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.kinds import KINDS, OWN, ModelSpec
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.mean_field import MeanFieldAutoencoder
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.posthoc import PosteriorAutoencoder, from_posterior
from marquis.errors import DataError, MarquisError, MemoryBudgetError, ModelMismatchError, UnsupportedOperationError
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.laplace import Laplace
from marquis.laplace.file_format import State, pack_fitted, pack_likelihood, unpack_fitted, unpack_likelihood

FILE_KIND = "autoencoder"


@checked
def save(path: str | os.PathLike[str], model: BaseAutoencoder, spec: ModelSpec) -> None:
    """Write a trained model to a safetensors file, atomically.

    Args:
        path: The file; its folder has to exist.
        model: Trained.
        spec: What it was built from; architecture "own" for networks of one's own, which `load` then needs again.

    Raises:
        ModelMismatchError: The model is not of the kind that the description names.
    """
    kind = KINDS[spec.kind]
    expected = PosteriorAutoencoder if kind.posthoc else kind.model
    if type(model) is not expected:
        raise ModelMismatchError(
            f"a {spec.kind!r} is a {expected.__name__}, this is a {type(model).__name__}; describe it by its own kind, "
            "or save the model that it was made of."
        )
    described, tensors = _pack_spec(spec)
    extra, more = _pack_extra(model)
    tensors |= more | {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_tensors(Path(path), FILE_KIND, {"spec": described, "extra": extra}, tensors)


@checked
def load(
    path: str | os.PathLike[str], networks: tuple[nn.Module, nn.Module] | None = None
) -> tuple[BaseAutoencoder, ModelSpec]:
    """Read what `save` wrote; nothing in the file is executed.

    Args:
        path: The file.
        networks: Encoder and decoder, for a model with networks of the user's own. Their weights are replaced.

    Returns:
        The model, in evaluation mode on the CPU, and its description.

    Raises:
        DataError: There is no such file, it is truncated or damaged, or not an autoencoder.
        ModelMismatchError: Its weights do not fit the networks.
    """
    _, header, tensors = load_tensors(Path(path), (FILE_KIND,))
    try:
        try:
            spec = _unpack_spec(header["spec"], tensors)
        except DataError as error:
            raise DataError(f"{path} does not describe an autoencoder ({error}): corrupt?") from error
        weights = split_prefix(tensors, "model.")
        if networks is None and spec.architecture != OWN:
            _require_size(spec, weights, path)
        model = spec.build(0, networks)
        model.to(next(weight.dtype for weight in weights.values() if weight.is_floating_point()))
        _put_weights(model, weights, path)
        return _restore_extra(model, spec, header["extra"], tensors).eval(), spec
    except MarquisError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, RuntimeError, OverflowError) as error:
        raise DataError(f"{path} is not a complete autoencoder ({error!r}): corrupt?") from error


def _pack_spec(spec: ModelSpec) -> State:
    """Return a model's description as JSON values, and the tensors of a likelihood that is an object."""
    described = spec.as_json()
    if isinstance(spec.likelihood, str):
        return described, {}
    plain, tensors = pack_likelihood(spec.likelihood)
    if not plain:
        raise UnsupportedOperationError(
            f"{spec.likelihood} is a likelihood of your own, which a file cannot hold; describe the model with "
            "'gaussian' or 'bernoulli', or keep the weights with torch.save(model.state_dict(), ...)."
        )
    return described | {"likelihood": plain}, {f"spec.{name}": tensor for name, tensor in tensors.items()}


def _unpack_spec(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ModelSpec:
    """Build the description that `_pack_spec` returned."""
    likelihood = described["likelihood"]
    if not isinstance(likelihood, str):
        likelihood = unpack_likelihood(likelihood, split_prefix(tensors, "spec."))
    return ModelSpec.from_json({**described, "likelihood": likelihood})


def _pack_extra(model: BaseAutoencoder) -> State:
    """Return the state of a model besides its weights."""
    if isinstance(model, LaplacianAutoencoder):
        checkpoint: dict[str, Any] = {}
        model.on_save_checkpoint(checkpoint)
        if not checkpoint:
            raise DataError("this Laplacian autoencoder is not trained yet: there is no posterior to save.")
        online = checkpoint["online_laplace"]
        state = online["state"]
        tensors = {
            f"online.{part}.{name}": tensor for part in ("streams", "noise") for name, tensor in state[part].items()
        }
        for name, structure in state["structures"].items():
            tensors |= {f"online.structures.{name}.{key}": tensor for key, tensor in structure.items()}
        return {"num_data": online["num_data"], "numbers": state["numbers"], "shapes": state["shapes"]}, tensors
    if isinstance(model, PosteriorAutoencoder):
        if model.laplace is None:
            raise UnsupportedOperationError(
                "this autoencoder has a posterior but not the Laplace approximation it came from; save the networks "
                "and `model.posterior.save(path)` apart."
            )
        header, tensors = pack_fitted(model.laplace.fitted)
        likelihood, more = pack_likelihood(model.laplace.likelihood)
        header |= {"likelihood": likelihood, "noise_tuned": model.laplace.noise_tuned}
        header |= {name: getattr(model.laplace, name) for name in ("temperature", "posterior_temperature")}
        return header, {f"laplace.{name}": tensor for name, tensor in {**tensors, **more}.items()}
    if isinstance(model, MeanFieldAutoencoder):
        return {"num_data": model.num_data}, {}
    return {}, {}


def _restore_extra(
    model: BaseAutoencoder, spec: ModelSpec, extra: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> BaseAutoencoder:
    """Restore what `_pack_extra` returned."""
    if KINDS[spec.kind].posthoc:
        of_laplace = split_prefix(tensors, "laplace.")
        network = EncoderDecoder(model.encoder, model.decoder).eval()
        likelihood = unpack_likelihood(extra["likelihood"], of_laplace)
        laplace = Laplace.from_fitted(
            network,
            likelihood,
            unpack_fitted(extra, of_laplace),
            temperature=float(extra["temperature"]),
            posterior_temperature=float(extra.get("posterior_temperature", 1.0)),  # files of 0.1.0 have none
            noise_tuned=bool(extra["noise_tuned"]),
        )
        return from_posterior(network.encoder, network.decoder, laplace, missing=spec.missing)
    if isinstance(model, LaplacianAutoencoder):
        structures = split_prefix(tensors, "online.structures.")
        names = {key.partition(".")[0] for key in structures}
        state = {
            "numbers": extra["numbers"],
            "shapes": extra["shapes"],
            "structures": {name: split_prefix(structures, f"{name}.") for name in names},
            "streams": split_prefix(tensors, "online.streams."),
            "noise": split_prefix(tensors, "online.noise."),
        }
        model.on_load_checkpoint({"online_laplace": {"num_data": extra["num_data"], "state": state}})
        _ = model.online  # what does not fit is refused now, not when it is first wanted
    if isinstance(model, MeanFieldAutoencoder):
        model.num_data = extra["num_data"]
    return model


def _require_size(spec: ModelSpec, weights: Mapping[str, Tensor], path: Any) -> None:
    """Refuse a description of networks larger than the file before they are allocated."""
    numbers = sum(weight.numel() for weight in weights.values())
    members = int(spec.options.get("members", 1))
    try:
        size = spec.size() * members
    except MemoryBudgetError as error:
        raise ModelMismatchError(f"{path} holds {numbers} numbers, but its description is corrupt: {error}") from error
    if size > numbers:
        raise ModelMismatchError(
            f"{path} describes networks of {size} weights, but holds {numbers} numbers: damaged, or "
            "not written by this version."
        )


def _put_weights(model: BaseAutoencoder, weights: Mapping[str, Tensor], path: Any) -> None:
    """Load weights into a model; refuse those that do not fit, by name."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
    if wrong:
        first = wrong[0]
        raise ModelMismatchError(
            f"{path} does not fit the model it describes: {first!r} is {shapes.get(first, 'absent')} in the file and "
            f"{expected.get(first, 'absent')} in the model ({len(wrong)} such)."
        )
    with torch.no_grad():
        model.load_state_dict(weights)
