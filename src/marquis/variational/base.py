"""Share among Variational Laplace, mean-field VI and MAP: a copy of the network, prior, prediction, posterior."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, FromZero, NotNegative, checked
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model, buffers_of, call, describe, run
from marquis.functional.checks import check_inputs, naming_inputs, require_derivative
from marquis.functional.replica import refuse_torchscript
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import independent_copy, named_parameters
from marquis.likelihoods import Likelihood, Predictive, as_likelihood
from marquis.loaders import split_batch
from marquis.variational.objective import Terms
from marquis.variational.prior_scale import PriorScale, prior_scales

Function = TypeVar("Function", bound=Callable[..., Any])


class _FunctionNetwork(nn.Module):
    """Wrap a function `(params, x) -> outputs` as a module."""

    def __init__(self, function: Callable[..., Tensor], params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.function, self.keys = function, list(params)
        self.values = nn.ParameterList(
            [nn.Parameter(p.detach().clone(), p.is_floating_point()) for p in params.values()]
        )

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = kwargs or (args[0] if len(args) == 1 else args)
        return self.function(dict(zip(self.keys, self.values, strict=True)), x)


def names_inputs(method: Function) -> Function:
    """Say which inputs the network does not take, where a method that is called with them fails because of that."""

    @functools.wraps(method)
    def wrapper(self: Method, x: Any, *arguments: Any, **named: Any) -> Any:
        with naming_inputs(self.network, x, lambda: run(self.network, x)):
            return method(self, x, *arguments, **named)

    return cast(Function, wrapper)


class Method(nn.Module):
    """Train a posterior over weights: the base of all methods, a `torch.nn.Module` whose parameters are trained.

    The model is copied: `network` is the copy, its parameters are the means μ, and it can be used as an ordinary
    network. The user's model stays as it was. Frozen parameters (`requires_grad=False`) keep their values and have no
    uncertainty.

    Args:
        model: A module, or a function `(params, x) -> outputs`.
        likelihood: Name or object.
        num_data: N, the number of training data.
        tempering: β, the weight of the KL.
        prior_scale: Standard deviations of the prior; by default `1/sqrt(fan_in)`.
        params: The start values of a function's parameters.
        generator: Source of every random draw; by default torch's global generator.
    """

    last_terms: Terms | None = None
    """The terms of the last step's objective."""

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        num_data: AtLeastOne,
        tempering: NotNegative = 1.0,
        prior_scale: PriorScale = None,
        params: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        start = parameters_of(model, params)
        self.network = _independent_copy(model, start, params)
        parameters = named_parameters(self.network)
        pairs = [(name, inner) for name, inner in zip(start, parameters, strict=True)]
        pairs = [pair for pair in pairs if parameters[pair[1]].requires_grad]
        if not pairs:
            raise UnsupportedOperationError(
                f"{describe(model)} has no parameter that requires a gradient: nothing to train"
            )
        self.names = [name for name, _ in pairs]
        """Names of the trained parameters, as the model spells them."""
        self._inner = [inner for _, inner in pairs]
        dtypes = {parameters[inner].dtype for inner in self._inner}
        if len(dtypes) > 1:
            raise UnsupportedOperationError(
                f"parameters of several dtypes ({dtypes}): convert the model to one of them"
            )
        self.likelihood = as_likelihood(likelihood)
        self.num_data, self.tempering, self.generator = num_data, float(tempering), generator
        scales = prior_scales(self.network, {name: parameters[inner] for name, inner in pairs}, prior_scale)
        for number, scale in enumerate(scales):
            self.register_buffer(f"prior_scale_{number}", scale)
        self.training = self.network.training

    # What is trained

    @property
    def means(self) -> list[nn.Parameter]:
        """Return μ, one tensor per trained parameter."""
        parameters = named_parameters(self.network)
        return [cast(nn.Parameter, parameters[inner]) for inner in self._inner]

    @property
    def prior_scales(self) -> list[Tensor]:
        """Return s, broadcasting to the means."""
        return [getattr(self, f"prior_scale_{number}") for number in range(len(self.names))]

    @checked
    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return what to pass to an optimiser instead of `parameters()`: groups with their learning rates."""
        return [{"params": self.means, "lr": lr}]

    # What each method says

    def step(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Tensor:
        """Return the loss of one minibatch, per sample; its `backward` fills the gradients of `parameters()`.

        Args:
            x: Inputs; a tensor, a tuple of positional or a mapping of named inputs.
            y: Labels; by default the inputs themselves (an autoencoder).
            mask: Which labels were observed, as in `Likelihood.log_prob`.
        """
        raise NotImplementedError

    def posterior(self) -> Any:
        """Return the trained weights as a Gaussian posterior."""
        raise NotImplementedError

    def draw(self) -> dict[str, Tensor]:
        """Sample all of the network's parameters from the posterior, under the names of the copied network."""
        raise NotImplementedError

    # Prediction

    @names_inputs
    def forward(self, x: Any) -> Tensor:
        """Return outputs of the mean network."""
        return run(self.network, x)

    @checked
    @names_inputs
    @torch.no_grad()
    def predict(self, x: Any, samples: FromZero = 0) -> Predictive:
        """Predict in evaluation mode: by the mean network, or averaged over sampled weights.

        Args:
            x: Inputs.
            samples: 0 for the mean network (the paper's evaluation of VL); else the number of sampled networks.

        Returns:
            Mean and variance of the outputs over the samples (variance 0 for the mean network), class probabilities and
            noise variance averaged over the samples where the likelihood has them.
        """
        with evaluation_mode(self.network):
            if samples == 0:
                outputs = run(self.network, x)
                return self.likelihood.predictive_at(outputs)
            buffers = buffers_of(self.network)
            outputs = [call(self.network, self.draw(), buffers, x) for _ in range(samples)]
        single = [self.likelihood.predictive_at(f) for f in outputs]
        return Predictive(
            mean=torch.stack([p.mean for p in single]).mean(0),
            variance=torch.stack([p.mean for p in single]).var(0, correction=0),
            noise_variance=_average([p.noise_variance for p in single]),
            probs=_average([p.probs for p in single]),
        )

    @checked
    @torch.no_grad()
    def log_likelihood(self, loader: Iterable[Any], samples: FromZero = 0) -> float:
        """Return the log-likelihood of a loader's data in evaluation mode: at the mean, or averaged over samples.

        The average of log-likelihoods (as in the ELBO), not the log of the average likelihood (as in a test score).
        """
        total = 0.0
        with evaluation_mode(self.network):
            for x, y in batches(loader):
                for _ in range(max(samples, 1)):
                    params = self.draw() if samples else named_parameters(self.network)
                    with naming_inputs(self.network, x, lambda x=x: run(self.network, x)):
                        outputs = call(self.network, params, buffers_of(self.network), x)
                    total += float(self.likelihood.log_prob(outputs, y).sum()) / max(samples, 1)
        return total

    # Passes

    def _all_parameters(self, trained: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the network's parameters with these in the place of the trained ones."""
        return {**named_parameters(self.network), **dict(zip(self._inner, trained, strict=True))}

    def _penalised(self, outputs: Tensor, y: Any, mask: Tensor | None, penalty: Tensor) -> Tensor:
        """Return the loss of these outputs: `-(1/S) Σ log p(y_i|f_i) + (β/N) penalty`, and note its terms."""
        self.likelihood.validate(require_derivative(self.network, outputs).detach(), y, mask)
        fit, penalty = self.likelihood.log_prob(outputs, y, mask).mean(), self.tempering / self.num_data * penalty
        self.last_terms = Terms(float(fit.detach()), 0.0, float(penalty.detach()))
        return penalty - fit


_EVALUATING = threading.RLock()  # re-entrant: a generator that is collected leaves its context wherever that happens
_evaluated: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = weakref.WeakKeyDictionary()
"""Modules within `evaluation_mode`: how many contexts, and the flag before the first."""


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode within the context; every submodule's flag is restored.

    Threads may share a network: the first that enters switches a module, the last that leaves switches it back.
    """
    modules = list(network.modules())
    with _EVALUATING:
        for module in modules:
            users, flag = _evaluated.get(module, (0, module.training))
            _evaluated[module] = users + 1, flag
            module.training = False
    try:
        yield
    finally:
        with _EVALUATING:
            for module in modules:
                users, flag = _evaluated.pop(module)
                if users == 1:
                    module.training = flag
                else:
                    _evaluated[module] = users - 1, flag


def batches(loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and labels; labels are the inputs where a batch has none."""
    if isinstance(loader, Tensor):
        raise DataError("loader is a tensor; give a DataLoader or a list of batches.")
    for batch in loader:
        x, y = inputs_and_labels(batch)
        check_inputs(x)
        yield x, x if y is None else y


def inputs_and_labels(batch: Any) -> tuple[Any, Any]:
    """Split a batch as `split_batch` does; a tuple or list of one, as `TensorDataset(x)` yields, has no labels."""
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return batch[0], None
    return split_batch(batch)


def _independent_copy(model: Model, start: Mapping[str, Tensor], params: Mapping[str, Tensor] | None) -> nn.Module:
    """Return a copy that shares nothing with the user's model."""
    if not isinstance(model, nn.Module):
        return _FunctionNetwork(model, start)
    refuse_torchscript(model)
    network = independent_copy(model)
    network.zero_grad(set_to_none=True)
    if params is not None:
        with torch.no_grad():
            for name, parameter in named_parameters(network).items():
                parameter.copy_(start[name])
    return network


def _average(values: Sequence[Tensor | None]) -> Tensor | None:
    """Return the mean of tensors; None if there are none."""
    present = [value for value in values if value is not None]
    return torch.stack(present).mean(0) if present else None
