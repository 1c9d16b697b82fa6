"""`load`: a saved posterior and the network it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from marquis.curvature.call import Model
from marquis.errors import DataError, MarquisError
from marquis.laplace.front import Laplace
from marquis.laplace.saving import require_model, unpack_fitted, unpack_likelihood
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.persistence import load_tensors
from marquis.posterior import Posterior
from marquis.predictive.function import require_fit


def load(path: str | Path, model: Model, likelihood: str | Likelihood | Any = None) -> Any:
    """Read what `Laplace.save` or `Posterior.save` wrote; runs no code from the file.

    Args:
        path: the file.
        model: the network it belongs to; its other weights and buffers have to be the same as when saved.
        likelihood: needed only for a likelihood of the user's own.

    Returns:
        A `Laplace`, or a `Posterior` if that was saved.

    Raises:
        DataError: no such file, truncated, corrupt, or something else.
        ModelMismatchError: the model's parameters differ in name or shape, or its other weights in value.
    """
    kind, header, tensors = load_tensors(path, ("laplace", "posterior"))
    if kind == "posterior":
        posterior = Posterior.from_state_dict(tensors)
        require_fit(posterior, model)
        return posterior
    fitted = unpack_fitted(header, tensors)
    is_module = isinstance(model, torch.nn.Module)
    try:
        require_model(model, header["model"], fitted.mean)
        known = unpack_likelihood(header["likelihood"], tensors) if likelihood is None else as_likelihood(likelihood)
        options = {"temperature": float(header["temperature"]), "noise_tuned": bool(header["noise_tuned"])}
    except MarquisError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a complete Laplace approximation ({error!r}): corrupt?") from error
    if is_module:
        fitted = fitted.to(next(iter(model.parameters())).device)
    return Laplace.from_fitted(model, known, fitted, params=None if is_module else fitted.mean, **options)
