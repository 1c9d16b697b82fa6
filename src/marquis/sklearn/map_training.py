"""Train to the mode of the posterior: by L-BFGS on all data at once, or by Adam on mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from marquis.choices import choose
from marquis.errors import DataError, NumericalError
from marquis.likelihoods import Likelihood
from marquis.priors import BoundPrior
from marquis.sklearn.network import is_deterministic, perceptron_width
from marquis.sklearn.parameter_checks import is_number, positive, whole

SOLVERS = ("auto", "lbfgs", "adam")

SMALL = 2000
"""Up to so many data, `solver="auto"` takes all of them in every step."""

ACTIVATIONS = 2**25
"""So does it for perceptrons that have no more activations than this over all data. Per pass over the data that is
several times faster than mini-batches, and on tables it reaches a lower objective in as many passes."""

PATIENCE, SHRINK, SMALLEST = 10, 0.3, 1e-2
"""Adam's rate shrinks after so many epochs without gain; training stops once it is this fraction of the first."""


@dataclass(frozen=True, eq=False)
class Objective:
    """Compute the negative log joint per sample: `1/N [sum_n -log p(y_n|f(x_n)) + 1/2 (theta-mu)^T Delta (theta-mu)]`.

    Attributes:
        network: trained in place.
        x: inputs.
        y: labels.
        likelihood: with its present noise.
        prior: over the network's trainable parameters.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    prior: BoundPrior

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters, in the prior's order."""
        parameters = dict(self.network.named_parameters())
        return {name: parameters[name] for name in self.prior.layout.names}

    def __call__(self, rows: Tensor | None = None) -> Tensor:
        """Return the objective, from these rows of the data or from all."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        outputs = self.network(x)
        if not bool(outputs.isfinite().all()):
            raise _diverged("outputs of the network are NaN or infinite")
        data = -self.likelihood.log_prob(outputs, y).mean()
        return data + 0.5 * self.prior.quadratic(self.prior.layout.flatten(self.parameters)) / len(self.x)


@dataclass(frozen=True)
class Training:
    """Hold the options of training.

    Attributes:
        solver: "lbfgs", "adam", or "auto": L-BFGS for perceptrons, and for up to 2000 data and networks without dropout
            or batch statistics.
        epochs: passes over the data (iterations of L-BFGS) at most.
        learning_rate: of Adam, at the start.
        batch_size: of Adam.
        tolerance: relative gain of the objective below which there is none.
        report: called with a line of text now and then; None is silent.
        advance: called after every epoch, to show progress.
    """

    solver: str
    epochs: int
    learning_rate: float
    batch_size: int
    tolerance: float
    report: Callable[[str], None] | None = None
    advance: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        object.__setattr__(self, "solver", choose("solver", self.solver, SOLVERS))
        whole("max_iter", self.epochs, 0)
        whole("batch_size", self.batch_size)
        positive("learning_rate_init", self.learning_rate)
        if not (is_number(self.tolerance) and self.tolerance >= 0):
            raise DataError(f"tol={self.tolerance!r}: a number from 0 on.")

    def run(self, objective: Objective, generator: torch.Generator) -> int:
        """Train in place; returns the number of epochs. The network is left in eval mode."""
        if self.epochs == 0:
            objective.network.eval()
            return 0
        network, n = objective.network, len(objective.x)
        small = (n <= SMALL and is_deterministic(network)) or n * perceptron_width(network) <= ACTIVATIONS
        by_lbfgs = self.solver == "lbfgs" or (self.solver == "auto" and small)
        objective.network.train()
        try:
            return self._lbfgs(objective) if by_lbfgs else self._adam(objective, generator)
        finally:
            objective.network.eval()

    def _lbfgs(self, objective: Objective) -> int:
        """Minimise the objective by SciPy's L-BFGS; returns the number of iterations."""
        parameters = list(objective.parameters.values())
        layout = objective.prior.layout

        @torch.no_grad()
        def write(flat: np.ndarray) -> None:
            values = layout.unflatten(torch.from_numpy(flat))
            for name, parameter in objective.parameters.items():
                parameter.copy_(values[name])

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            write(flat)
            value = objective()
            gradients = torch.autograd.grad(value, parameters)
            gradient = torch.cat([g.flatten() for g in gradients]).double().cpu().numpy()
            return _finite(float(value.detach())), gradient

        start = layout.flatten(objective.parameters).detach().double().cpu().numpy().copy()
        options = {"maxiter": self.epochs, "maxfun": 4 * self.epochs, "ftol": self.tolerance, "gtol": 1e-8}
        each = {"callback": lambda _: self.advance()}
        outcome = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options, **each)
        write(outcome.x)
        self._report(f"L-BFGS: {outcome.nit} iterations, objective {outcome.fun:.5f}")
        return int(outcome.nit)

    def _adam(self, objective: Objective, generator: torch.Generator) -> int:
        """Minimise the objective by Adam on mini-batches; returns the number of epochs."""
        parameters = list(objective.parameters.values())
        optimiser = torch.optim.Adam(parameters, lr=self.learning_rate)
        best, since = float("inf"), 0
        n = len(objective.x)
        for epoch in range(1, self.epochs + 1):
            order = torch.randperm(n, generator=generator).to(objective.x.device)
            total = 0.0
            for rows in self._splits(order):
                optimiser.zero_grad()
                value = objective(rows)
                value.backward()
                optimiser.step()
                total += len(rows) * _finite(float(value.detach()))
            mean = total / n
            self.advance()
            if epoch % 10 == 0:
                self._report(f"Adam: epoch {epoch}, objective {mean:.5f}")
            since = 0 if mean < best - self.tolerance * abs(best) or best == float("inf") else since + 1
            best = min(best, mean)
            if since >= PATIENCE:
                since = 0
                for group in optimiser.param_groups:
                    group["lr"] *= SHRINK
                if optimiser.param_groups[0]["lr"] < SMALLEST * self.learning_rate:
                    return epoch
        return self.epochs

    def _splits(self, order: Tensor) -> list[Tensor]:
        """Yield mini-batches; a single row left over joins the one before, as batch statistics need two."""
        parts = list(order.split(self.batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts

    def _report(self, line: str) -> None:
        """Pass a line of text to `report`, if there is one."""
        if self.report is not None:
            self.report(line)


def _finite(value: float) -> float:
    """Return the loss, if it is finite."""
    if not np.isfinite(value):
        raise _diverged(f"the loss is {value}")
    return value


def _diverged(what: str) -> NumericalError:
    """Return the error of a training that left the finite numbers."""
    return NumericalError(f"training diverged: {what}; lower learning_rate_init, or check the scale of the data.")
