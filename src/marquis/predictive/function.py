"""Treat the network as a function of the parameters that have a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from marquis.errors import ModelMismatchError
from marquis.functional.call import Model, describe
from marquis.functional.function import NetworkFunction
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import named_parameters
from marquis.posterior import Posterior


@dataclass(frozen=True, eq=False, init=False)
class PosteriorFunction(NetworkFunction):
    """Compute the outputs as a function of the posterior's parameters, differentiated at its mean.

    Args:
        model: A module in evaluation mode, or a function `(params, x) -> outputs`.
        posterior: Names the parameters; all others are the model's own, as they are now.
        at: Path of the module whose output is wanted instead of the network's (`"encoder.4"`).

    Raises:
        ModelMismatchError: The model has other parameters than the posterior.
    """

    posterior: Posterior

    def __init__(self, model: Model, posterior: Posterior, at: str | None = None) -> None:
        require_fit(posterior, model)
        params = parameters_of(model, None if isinstance(model, nn.Module) else posterior.mean)
        fixed = {name: tensor.detach() for name, tensor in params.items() if name not in posterior.mean}
        object.__setattr__(self, "posterior", posterior)
        super().__init__(model, posterior.mean, fixed, None, at)

    def flatten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return rows `[..., K]` over the random weights from tensors `[..., *shape]` by parameter name."""
        return self.posterior.restrict(super().flatten(gradients))


def require_fit(posterior: Posterior, model: Model) -> None:
    """Raise unless the model has the posterior's parameters, name by name and shape by shape."""
    if not isinstance(model, nn.Module):
        return
    params = named_parameters(model)
    missing = [name for name in posterior.layout.names if name not in params]
    if missing:
        raise ModelMismatchError(f"{describe(model)} has no parameter {missing[:8]}, which this posterior is about.")
    for name, shape in posterior.layout.items:
        if tuple(params[name].shape) != shape:
            raise ModelMismatchError(
                f"parameter {name!r} of {describe(model)} has shape {tuple(params[name].shape)}, in the posterior "
                f"{shape}."
            )
