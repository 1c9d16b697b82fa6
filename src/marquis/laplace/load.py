"""Load a saved posterior together with the network it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.choices import choose
from marquis.curvature.linop.products import KINDS
from marquis.distributed import group_is_up, path_of_process
from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.functional.call import Model
from marquis.functional.unwrap import named_parameters
from marquis.io.atomic import storage_errors
from marquis.io.tensors import load_tensors
from marquis.laplace.file_format import BROKEN, require_index, require_model, unpack_fitted, unpack_likelihood
from marquis.laplace.laplace import Laplace
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.posterior import Posterior
from marquis.predictive.function import require_fit


@checked
def load(path: str | Path, model: Model, likelihood: str | Likelihood | Any = None) -> Any:
    """Read what `Laplace.save` or `Posterior.save` wrote; runs no code from the file.

    Everything in the file is checked, so that a made-up one is refused here and not found out by a prediction. Cost:
    one factorisation of the precision, which the first prediction would need anyway and finds done.

    Args:
        path: the file.
        model: the network it belongs to; its other weights and buffers have to be the same as when saved.
        likelihood: needed only for a likelihood of the user's own.

    Returns:
        A `Laplace`, or a `Posterior` if that was saved.

    Raises:
        DataError: no such file, truncated, corrupt, or something else.
        ModelMismatchError: the model's parameters differ in name or shape, or its other weights in value.
        NumericalError: the precision is not positive definite.
    """
    with storage_errors(path, "read"):
        if group_is_up() and path_of_process(path).exists():
            path = path_of_process(path)
    kind, header, tensors = load_tensors(path, ("laplace", "posterior"))
    try:
        loaded = _posterior(tensors, model) if kind == "posterior" else _laplace(header, tensors, model, likelihood)
        posterior = loaded if isinstance(loaded, Posterior) else loaded.posterior
        if not bool(torch.isfinite(posterior.precision.logdet())):
            raise DataError(f"the precision in {path} has no finite determinant: corrupt or made up?")
    except MarquisError:
        raise
    except BROKEN as error:
        raise DataError(f"{path} does not hold a complete {kind} ({error!r}): corrupt or made up?") from error
    return loaded


def _posterior(tensors: Mapping[str, Tensor], model: Model) -> Posterior:
    """Build a saved posterior, and check that it fits the model."""
    posterior = Posterior.from_state_dict(tensors)
    require_fit(posterior, model)
    _require_same_dtypes(posterior.mean, model)
    if posterior.index is not None:
        require_index(posterior.index, posterior.layout, None)
    return posterior


def _require_same_dtypes(mean: Mapping[str, Tensor], model: Model) -> None:
    """Refuse a file in another precision than the model, in which its weights could not run."""
    if not isinstance(model, torch.nn.Module):
        return
    for name, parameter in named_parameters(model).items():
        if name in mean and mean[name].dtype != parameter.dtype:
            raise ModelMismatchError(
                f"parameter {name!r} is {parameter.dtype} in the model and {mean[name].dtype} in the file; convert "
                "the model first (model.float(), model.double())."
            )


def _laplace(header: Mapping[str, Any], tensors: Mapping[str, Tensor], model: Model, likelihood: Any) -> Laplace:
    """Build a saved Laplace approximation, and check that it fits the model."""
    fitted = unpack_fitted(header, tensors)
    require_model(model, header["model"], fitted.mean)
    _require_same_dtypes(fitted.mean, model)
    likelihood = unpack_likelihood(header["likelihood"], tensors) if likelihood is None else as_likelihood(likelihood)
    tuned = header["noise_tuned"]
    # Files of version 0.1.0 have no posterior_temperature and no kind.
    kind = choose("kind", header.get("kind", "ggn"), KINDS, error=DataError)
    temperatures = {
        "temperature": header["temperature"],
        "posterior_temperature": header.get("posterior_temperature", 1.0),
    }
    for name, value in temperatures.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise DataError(f"{name} {value!r} in the file is not a number.")
    if not isinstance(tuned, bool):
        raise DataError(f"noise_tuned {tuned!r} in the file is neither true nor false.")
    statistics = fitted.statistics
    if statistics is not None and (statistics.sse is None) != (likelihood.scalar_noise_precision is None):
        raise ModelMismatchError(
            f"the file's fit of the data was computed with another kind of likelihood than {likelihood}: a sum of "
            "squares belongs to a Gaussian with one noise precision, a log likelihood to all others."
        )
    is_module = isinstance(model, torch.nn.Module)
    if is_module:
        fitted = fitted.to(next(iter(model.parameters())).device)
    params = None if is_module else fitted.mean
    return Laplace.from_fitted(model, likelihood, fitted, params=params, noise_tuned=tuned, kind=kind, **temperatures)
