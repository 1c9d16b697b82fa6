"""Use a Laplace approximation as a model of BoTorch, for Bayesian optimisation with a network (`marquis[botorch]`).

The posterior over outputs is the Gaussian of the linearised network, with gradients to the inputs, so every acquisition
function of BoTorch works with it: `LogExpectedImprovement(LaplaceModel(la), best_f)`.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.jacobian import values_and_jacobian
from marquis.laplace import Laplace
from marquis.predictive.function import PosteriorFunction


@checked_methods
class LaplaceModel(Model):
    """Serve a fitted `Laplace` of a regression network to BoTorch, with `posterior(X)`.

    Args:
        laplace: Fitted, with a Gaussian likelihood of one noise precision. The network maps `[N, d]` to `[N, m]`.
        num_outputs: m, the number of outputs.
        outcome_transform: How the training targets were transformed (`Standardize`); undone in `posterior`.
    """

    def __init__(
        self, laplace: Laplace, num_outputs: int = 1, outcome_transform: OutcomeTransform | None = None
    ) -> None:
        super().__init__()
        if laplace.likelihood.scalar_noise_precision is None:
            raise UnsupportedOperationError(
                f"LaplaceModel is for regression with one noise precision, not {laplace.likelihood}; use "
                "Laplace(model, 'gaussian')."
            )
        self.laplace, self._outputs = laplace, num_outputs
        self._function = PosteriorFunction(laplace.model, laplace.posterior)
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform.eval()

    @property
    def num_outputs(self) -> int:
        """Return m, the number of outputs."""
        return self._outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Return that there is one model, not a batch of them."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the joint Gaussian of the outputs at `X`, `[*batch, q, d]`; `rsample` has gradients to `X`.

        Cost: q m backward passes per batch; memory `batch q m P` while gradients are wanted.

        Args:
            X: Inputs.
            output_indices: Which outputs; all of them by default.
            observation_noise: Whether of new observations, with the likelihood's noise, instead of the function.
            posterior_transform: Applied to the result, as in BoTorch.
        """
        if isinstance(observation_noise, Tensor):
            raise UnsupportedOperationError("observation_noise is True or False; the noise is the likelihood's.")
        *batch, points, _ = X.shape
        values, jacobian = values_and_jacobian(self._function, X.flatten(0, -2), differentiable=True)
        if values.shape[1] != self.num_outputs:
            raise DataError(f"the network has {values.shape[1]} outputs, not num_outputs={self.num_outputs} of them.")
        precision = self.laplace.posterior.precision
        rows = jacobian.reshape(*batch, points * self.num_outputs, -1)
        covariance = precision.quadratic(rows.to(precision.dtype)).to(values.dtype)
        mean = values.reshape(*batch, points, self.num_outputs)
        if observation_noise:
            noise = self.laplace.likelihood.scalar_noise_precision
            assert noise is not None
            covariance = covariance + torch.eye(rows.shape[-2], dtype=values.dtype, device=values.device) / noise
        if output_indices is not None:
            kept = torch.arange(points, device=X.device)[:, None] * self.num_outputs
            kept = (kept + torch.tensor(output_indices, device=X.device)).flatten()
            mean, covariance = mean[..., output_indices], covariance[..., kept, :][..., kept]
        if mean.shape[-1] == 1:
            distribution = MultivariateNormal(mean.squeeze(-1), covariance)
        else:
            distribution = MultitaskMultivariateNormal(mean, covariance)
        posterior: Posterior = GPyTorchPosterior(distribution)
        if hasattr(self, "outcome_transform"):
            posterior = self.outcome_transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior)
