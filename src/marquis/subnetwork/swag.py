"""Estimate mean and variance of the weights along further training (diagonal SWAG, Maddox et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import Positive, checked
from marquis.errors import DataError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.functional.call import Model, run
from marquis.functional.checks import batch_size, naming_inputs, require_derivative
from marquis.functional.selection import parameters_of, select
from marquis.functional.unwrap import independent_copy, named_parameters
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.randomness import new_seed

MINIMUM = 1e-30
"""Lower limit of the variances (docs/method/curvature.md#last-layer-and-subnetworks)."""


@checked
def swag_variance(
    model: Model, loader: Iterable[Any], likelihood: Likelihood, names: Sequence[str], **options: Any
) -> dict[str, Tensor]:
    """Return the variances of `swag_moments`, which takes the same arguments: scores to rank weights by."""
    return swag_moments(model, loader, likelihood, names, **options)[1]


@checked
def swag_moments(
    model: Model,
    loader: Iterable[Any],
    likelihood: Likelihood,
    names: Sequence[str],
    *,
    epochs: int = 40,
    lr: Positive = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 3e-4,
    generator: torch.Generator | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the mean and variance of every weight over one snapshot per epoch of SGD, by parameter name.

    A copy of the network is trained, in training mode; the user's stays as it is. Cost: `epochs` epochs of training.
    Buffers (the statistics of batch norm) of the mean network are not kept: a user of the mean computes them anew.

    Args:
        model: a module.
        loader: labelled batches, iterated once per epoch.
        likelihood: the loss is its mean negative log likelihood.
        names: parameters whose moments are wanted.
        epochs: number of snapshots.
        lr: learning rate.
        momentum: of SGD.
        weight_decay: of SGD.
        generator: seeds the random numbers of the copy (dropout).
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedOperationError("SWAG trains a copy of the network, which needs a module, not a function.")
    if epochs < 2:
        raise DataError(f"epochs={epochs}: a variance needs at least two snapshots.")
    known = select(parameters_of(model))
    if unknown := sorted(set(names) - set(known)):
        raise ModelMismatchError(f"names: the model has no trained parameters {', '.join(unknown)}.")
    trained = independent_copy(model).train()
    device = next(iter(known.values())).device
    optimiser = torch.optim.SGD(
        [p for p in trained.parameters() if p.requires_grad], lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    seed = new_seed(generator)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(seed)
        for epoch in range(epochs):
            for x, y, _ in read_batches(loader, device, labels_for="training (SWAG)"):
                with naming_inputs(trained, x, lambda x=x: run(trained, x)):
                    outputs = require_derivative(trained, run(trained, x))
                likelihood.validate(outputs.detach(), y)
                loss = -likelihood.log_prob(outputs, y).sum() / batch_size(x)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            for name, parameter in named_parameters(trained).items():
                if name in names:  # Welford's rule
                    value = parameter.detach().double()
                    before = means.get(name, torch.zeros_like(value))
                    means[name] = before + (value - before) / (epoch + 1)
                    spread = (value - before) * (value - means[name])
                    squares[name] = squares.get(name, torch.zeros_like(value)) + spread
    if not means or not all(bool(torch.isfinite(value).all()) for value in squares.values()):
        raise NumericalError(f"SWAG training diverged at lr={lr}; pass Subnetwork(..., swag={{'lr': smaller}}).")
    return {name: means[name] for name in names}, {name: (squares[name] / epochs).clamp(min=MINIMUM) for name in names}
