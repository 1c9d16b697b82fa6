"""Use a Laplace approximation as a model of BoTorch, for Bayesian optimisation with a network (`marquis[botorch]`).

The posterior over outputs is the Gaussian of the linearised network, with gradients to the inputs, so every acquisition
function of BoTorch works with it: `LogExpectedImprovement(LaplaceModel(la), best_f)`. `fit_network(X, Y)` trains a
network that suits a few dozen evaluations, and returns its model.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy
import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from marquis.arguments import AtLeastOne, checked, checked_methods
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import naming_inputs
from marquis.functional.jacobian import values_and_jacobian
from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian
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
        if X.ndim < 2:
            raise DataError(f"X is [*batch, q, d], got {list(X.shape)}.")
        *batch, points, _ = X.shape
        flat = X.flatten(0, -2)
        with naming_inputs(self.laplace.model, flat, lambda: self._function.at_point(flat), "X"):
            values, jacobian = values_and_jacobian(self._function, flat, differentiable=True)
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
            if not output_indices or not all(0 <= index < self.num_outputs for index in output_indices):
                raise DataError(
                    f"output_indices={output_indices}: numbers from 0 to {self.num_outputs - 1}, at least one."
                )
            columns = torch.arange(points, device=X.device)[:, None] * self.num_outputs
            columns = (columns + torch.tensor(output_indices, device=X.device)).flatten()
            mean, covariance = mean[..., output_indices], covariance[..., columns, :][..., columns]
        # As an operator it is decomposed when samples are drawn, with jitter where many points make it singular.
        if mean.shape[-1] == 1:
            distribution = MultivariateNormal(mean.squeeze(-1), to_linear_operator(covariance))
        else:
            distribution = MultitaskMultivariateNormal(mean, to_linear_operator(covariance))
        posterior: Posterior = GPyTorchPosterior(distribution)
        if hasattr(self, "outcome_transform"):
            posterior = self.outcome_transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior)


class _Scale(nn.Module):
    """Multiply the inputs of a layer by a constant, so that weights of prior variance 1 give outputs of order 1."""

    def __init__(self, factor: float, offset: float = 0.0) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.offset) * self.factor


@checked
def default_network(inputs: AtLeastOne, outputs: AtLeastOne = 1, hidden: AtLeastOne = 32) -> nn.Module:
    """Return a network of two hidden tanh layers for inputs between 0 and 1, with standard normal weights.

    Inputs of every layer are divided by the root of their number (the parametrisation of the tangent kernel), so one
    prior precision suits all layers, and `tune` has a single number to find besides the noise.
    """
    network = nn.Sequential(
        _Scale(4 / math.sqrt(inputs), 0.5),
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        _Scale(1 / math.sqrt(hidden)),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        _Scale(1 / math.sqrt(hidden)),
        nn.Linear(hidden, outputs),
    ).double()
    for weight in network.parameters():
        nn.init.normal_(weight)
    return network.eval()


@checked
def fit_network(X: Tensor, Y: Tensor, restarts: AtLeastOne = 3, rounds: AtLeastOne = 4) -> LaplaceModel:
    """Train networks on a few dozen evaluations, and return the model of the one with the largest evidence.

    Each network starts from new weights. L-BFGS finds the mode at the present prior and noise, and the evidence then
    chooses both, `rounds` times. Targets are standardised, and `posterior` undoes it. Cost: some four seconds
    for 50 points on one core.

    Args:
        X: Inputs `[N, d]`, between 0 and 1.
        Y: Targets `[N, m]`, in any units.
        restarts: Number of networks.
        rounds: Number of updates of prior and noise.

    Raises:
        DataError: Fewer than two points, or shapes that do not match.
    """
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or len(X) < 2:
        raise DataError(f"X is [N, d] and Y [N, m] with at least two points; got {tuple(X.shape)}, {tuple(Y.shape)}.")
    transform = Standardize(Y.shape[1])
    x, y = X.detach().double(), transform(Y.detach().double())[0].detach()
    network = default_network(x.shape[1], y.shape[1]).to(x.device)
    best: tuple[float, dict[str, Tensor], Laplace] | None = None
    for _ in range(restarts):
        for weight in network.parameters():  # one module for all, whose graph is captured once
            nn.init.normal_(weight)
        laplace = _fitted(network, x, y, rounds)
        evidence = float(laplace.log_evidence())
        if best is None or evidence > best[0]:
            best = evidence, copy.deepcopy(network.state_dict()), laplace
    assert best is not None
    network.load_state_dict(best[1])
    return LaplaceModel(best[2], Y.shape[1], transform)


PRECISIONS, NOISE_PRECISIONS = (1e-3, 1e3), (1.0, 1e4)
"""Ranges of prior and noise precision; standardised targets need no others."""


def _fitted(network: nn.Module, x: Tensor, y: Tensor, rounds: int) -> Laplace:
    """Return the Laplace approximation of a network after training, with prior and noise by the evidence."""

    def fit() -> Laplace:
        laplace = Laplace(network, Gaussian(noise), "lowrank", "exact", prior=precision)
        return laplace.fit([(x, y)], progress=False)

    precision, noise = 1.0, 1e3
    for _ in range(rounds):
        _descend(network, x, y, precision, noise)
        step = fit().tune().history[-1]
        assert step.precision is not None and step.noise_precision is not None
        precision = min(max(float(step.precision[0]), PRECISIONS[0]), PRECISIONS[1])
        noise = min(max(step.noise_precision, NOISE_PRECISIONS[0]), NOISE_PRECISIONS[1])
    _descend(network, x, y, precision, noise)
    return fit()


def _descend(network: nn.Module, x: Tensor, y: Tensor, precision: float, noise: float) -> None:
    """Move the weights to a mode of the posterior, by SciPy's L-BFGS on all data (torch's takes four times as long)."""
    weights = list(network.train().parameters())

    def value_and_gradient(flat: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        vector = torch.from_numpy(flat)
        vector_to_parameters(vector.to(x.device), weights)
        misfit = 0.5 * noise * (network(x) - y).square().sum()
        gradient = parameters_to_vector(torch.autograd.grad(misfit, weights)).cpu()
        value = float(misfit.detach()) + 0.5 * precision * float(vector @ vector)
        return value, (gradient + precision * vector).numpy()

    with torch.enable_grad():
        start = parameters_to_vector(weights).detach().cpu().numpy()
        options = {"maxiter": 60, "maxcor": 50}
        best = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    vector_to_parameters(torch.from_numpy(best.x).to(x.device), weights)
    network.eval()
