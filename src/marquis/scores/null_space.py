"""Sample weights that differ only where the data say nothing (Miani, Roy and Hauberg 2025).

Samples of the prior are projected onto the null space of the training data's Jacobian, batch by batch: what is left
changes no training output to first order, and whatever it changes elsewhere is uncertain.
Letters: B samples, O outputs, P weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, Positive, checked
from marquis.choices import choose
from marquis.distributed import all_shares, from_first_process, group_is_up
from marquis.errors import NumericalError
from marquis.functional.call import Model
from marquis.functional.checks import all_finite, naming_inputs
from marquis.functional.function import NetworkFunction
from marquis.functional.jacobian import jacobian, sample_gradients
from marquis.functional.selection import Selection
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import read_batches, refuse_one_shot
from marquis.randomness import device_for
from marquis.structures import Layout

QUANTITIES = ("outputs", "losses")


@checked
def null_space(
    model: Model,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any,
    kept: str = "outputs",
    prior_precision: Positive = 1.0,
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    distributed: bool = True,
) -> NullSpacePosterior:
    """Return a posterior whose samples leave the training data as they are, to first order.

    | kept | rows per batch | cost per sweep | what stays |
    | --- | --- | --- | --- |
    | `outputs` | the Jacobian, B O | quadratic in B O | the linearised outputs of all training data |
    | `losses` | the gradient of every example's loss, B | linear | every example's loss; outputs may move |

    In a `torch.distributed` group each process's loader is its share of the data; batches are sent to all processes,
    which then have the same samples.

    Args:
        model: A module in evaluation mode, or a function `(params, x) -> outputs`.
        loader: Labelled batches (labels matter for "losses" only), iterated once per sweep.
        likelihood: p(y|f).
        kept: "outputs" or "losses".
        prior_precision: Of the isotropic Gaussian that is projected.
        params: Parameter values, required for a function.
        parameters: Which parameters, as in `curvature.ggn`.
        distributed: False keeps this process's data to itself.
    """
    kept = choose("kept", kept, QUANTITIES)
    refuse_one_shot(loader, "null_space")
    function = NetworkFunction.copy_of(model, params=params, parameters=parameters)
    shared = distributed and group_is_up()
    return NullSpacePosterior(function, loader, as_likelihood(likelihood), kept, prior_precision, shared)


@dataclass(frozen=True, eq=False)
class NullSpacePosterior:
    """Represent a Gaussian over the weights that the data do not determine; made by `null_space`."""

    function: NetworkFunction
    loader: Iterable[Any]
    likelihood: Likelihood
    kept: str
    prior_precision: float
    shared: bool = False

    @checked
    def sample(
        self,
        n: AtLeastOne,
        generator: torch.Generator | None = None,
        *,
        tolerance: float = 1e-6,
        sweeps: int = 200,
    ) -> dict[str, Tensor]:
        """Return `n` samples of the weights, by name `[n, *shape]`.

        Cost per sweep: one Jacobian (or one backward pass per example) and one small eigen-decomposition per batch. One
        sweep is enough where all data are one batch; the smaller the batches, the more sweeps.

        Args:
            n: Number of samples.
            generator: Source of randomness.
            tolerance: Of what is left to project, relative to the sample.
            sweeps: Most passes over the data.

        Raises:
            NumericalError: The sweeps did not converge.
        """
        function = self.function
        device = device_for(generator, function.device)
        noise = torch.randn(n, function.size, generator=generator, dtype=computing_dtype(function.dtype), device=device)
        noise = from_first_process(noise) if self.shared else noise
        steps = noise.to(function.device) * self.prior_precision**-0.5
        length = steps.norm(dim=1)
        moved = float("inf")
        for _ in range(sweeps):
            before = steps
            batches = 0
            for rows in self._rows():
                steps = _projected(steps, rows)
                batches += 1
            moved = float(((steps - before).norm(dim=1) / length).max())
            if moved <= tolerance or batches == 1:
                break
        else:
            raise NumericalError(
                f"after {sweeps} sweeps the projection still moves by {moved:.2g} of its length (tolerance "
                f"{tolerance:.2g}); use larger batches, or allow more sweeps."
            )
        layout = Layout.of(function.point)
        return {
            name: (function.point[name] + step).to(function.point[name].dtype)
            for name, step in layout.unflatten(steps).items()
        }

    def _rows(self) -> Iterable[Tensor]:
        """Yield the rows `[R, P]` of every batch."""
        function = self.function
        needed = "the loss" if self.kept == "losses" else None
        loader = all_shares(self.loader) if self.shared else self.loader
        for number, batch in enumerate(read_batches(loader, function.device, labels_for=needed)):
            with naming_inputs(function.model, batch.x, lambda x=batch.x: function.at_point(x)):
                function.inspect(batch.x)
                if self.kept == "losses":
                    gradient = self.likelihood.gradient(function.at_point(batch.x), batch.y, batch.mask)
                    rows = sample_gradients(function, batch.x, gradient.flatten(1))
                else:
                    rows = jacobian(function, batch.x).flatten(0, 1)
            if not all_finite(rows):
                raise NumericalError(f"batch {number}: the Jacobian of the network is NaN or infinite.")
            yield rows


def _projected(steps: Tensor, rows: Tensor) -> Tensor:
    """Project the rows v of `steps` onto the null space of J = `rows`: `v - J^T (J J^T)^+ J v`."""
    values, vectors = torch.linalg.eigh(rows @ rows.mT)
    cut = torch.finfo(values.dtype).eps * len(values) * values[-1].clamp(min=0)
    inverse = torch.where(values > cut, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), torch.zeros_like(values))
    coordinates = (steps @ rows.mT) @ vectors * inverse
    return steps - coordinates @ vectors.mT @ rows
