"""Train networks with batch normalisation or dropout: sampled weights see running statistics and no dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from marquis.functional.call import run

Step = TypeVar("Step", bound=Callable[..., Any])


@contextmanager
def running_statistics(model: object, x: Any) -> Iterator[None]:
    """Put a network that is in training mode into evaluation mode for a while.

    Batch normalisations that are in training mode first see the batch in a plain pass at the mean weights, which
    updates their running statistics; dropout is off there too. Those in evaluation mode keep theirs. A network without
    such layers in training mode is left alone. Cost: one forward pass, if there is a normalisation to update.

    Args:
        model: Network; anything but a module is left alone.
        x: Inputs of the batch.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    normalisations = [m for m in modules if isinstance(m, _BatchNorm) and m.training and m.running_mean is not None]
    if not normalisations and not any(isinstance(m, (_DropoutNd, nn.RReLU)) and m.training for m in modules):
        yield
        return
    assert isinstance(model, nn.Module)
    before = [(module, module.training) for module in modules]
    try:
        model.eval()
        if normalisations:
            for module in normalisations:
                module.train()
            with torch.no_grad():
                run(model, x)
            model.eval()
        yield
    finally:
        for module, training in before:
            module.training = training


def at_running_statistics(step: Step) -> Step:
    """Run a method of a learner, called with a batch, under `running_statistics` of its network."""

    @functools.wraps(step)
    def wrapped(self: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        with running_statistics(self.model, x):
            return step(self, x, *arguments, **options)

    return wrapped  # pyright: ignore[reportReturnType]
