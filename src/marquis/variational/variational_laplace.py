"""Train by Variational Laplace (Unlu and Aitchison): the ELBO by a local quadratic, without sampling weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.arguments import AtLeastOne, Share, checked
from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.functional.call import Model, buffers_of, call, run
from marquis.functional.checks import batch_size, naming_inputs, require_derivative
from marquis.functional.unwrap import named_buffers, named_parameters
from marquis.likelihoods import Likelihood
from marquis.options import inherits_options
from marquis.variational.base import batches, evaluation_mode, names_inputs
from marquis.variational.gaussian_method import GaussianMethod
from marquis.variational.hessian_form import hessian_term
from marquis.variational.objective import Terms, loss_with_gradients
from marquis.variational.regulariser import (
    GRADIENTS,
    DataTerm,
    GradientMethod,
    LabelledOutputs,
    data_term,
    trace_by_products,
)
from marquis.variational.smoothness import refuse_kinks


@inherits_options
class VariationalLaplace(GaussianMethod):
    """Train mean and width of every weight on VL's objective (VL eq. 30; docs/method/variational.md#objective).

    Cost of a step, in plain steps: 2 with the default gradient, 3 to 5 with the others; see `variational.regulariser`.
    Memory: that of plain training for the differences, plus five numbers per weight.

    A network in training mode may use batch norm: the labels are sampled for the whole minibatch, and only the first
    pass of a step updates the running statistics. Dropout keeps its mask through all passes of a step.

    Args:
        model: A module, or a function `(params, x) -> outputs`, without ReLU or kin (they are refused by name).
        likelihood: Name or object.
        gradient: How the regulariser is differentiated: `"one-sided"`, `"central"`, `"double-backward"` or
            `"forward-over-reverse"`.
        score_correction: Add what the published gradient leaves out by holding the sampled labels fixed.
        regulariser_batch: Number of samples of the minibatch on which the regulariser is computed (shuffle!): cheaper,
            unbiased for the mean Fisher, noisier. None for all. With batch statistics the sub-batch has its own.
        curvature: `"fisher"`, or `"hessian"` for VL(H) with the true Hessian (VL eq. 20), which exists to show its
            pathology and costs P passes.
        epsilon: Length of the differences' step, relative to the length of μ; by default by dtype.
        **options: Options of every Gaussian method: `num_data` (N, the number of training data), `tempering` (β, the
            weight of the KL), `prior_scale` (standard deviations s of the prior; by default `1/sqrt(fan_in)`),
            `multiplier` (learning rate of log σ over that of μ), `initial_offset` (start value of log σ, minus log s),
            `params` (start values of a function's parameters), `generator` (source of every random draw).
    """

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        gradient: GradientMethod = "one-sided",
        score_correction: bool = False,
        regulariser_batch: AtLeastOne | None = None,
        curvature: str = "fisher",
        epsilon: Share | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, likelihood, **options)
        gradient = choose("gradient", gradient, GRADIENTS)
        curvature = choose("curvature", curvature, ("fisher", "hessian"))
        if curvature == "hessian" and (score_correction or regulariser_batch is not None):
            raise UnsupportedOperationError(
                "VL(H) samples no labels: it has no score_correction and no regulariser_batch"
            )
        self.gradient, self.score_correction, self.curvature = gradient, score_correction, curvature
        self.regulariser_batch, self.epsilon = regulariser_batch, epsilon
        self._examined: set[tuple[bool, ...]] = set()

    @checked
    @names_inputs
    def step(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        y = x if y is None else y
        self._examine(x)
        data_term = self._hessian_term if self.curvature == "hessian" else self._fisher_term
        return self._loss(data_term(x, y, mask))

    @checked
    def elbo(self, loader: Iterable[Any], *, estimator: str = "products", samples: int = 1) -> float:
        """Return VL's tempered ELBO on a loader's data, in evaluation mode: `log p(y|μ) - ½ tr(ΣF) - β KL`.

        The data count as all there are, so this is the training ELBO if the loader yields the training set. F is the
        Fisher information also where VL(H) was trained.

        Args:
            loader: Yields `(x, y)`, or `x` alone for autoencoders.
            estimator: `"products"`, one Jacobian-vector product with random signs per batch and sample (low noise), or
                `"labels"`, squared gradients of sampled labels as in training.
            samples: Number of estimates of the trace per batch.
        """
        estimator = choose("estimator", estimator, ("products", "labels"))
        total = 0.0
        with evaluation_mode(self.network):
            for x, y in batches(loader):
                with torch.no_grad(), naming_inputs(self.network, x, lambda x=x: run(self.network, x)):
                    total += float(self.likelihood.log_prob(run(self.network, x), y).sum())
                for _ in range(samples):
                    total -= self._trace(x, estimator) / samples
        return self._objective_of(total)

    def _trace(self, x: Any, estimator: str) -> float:
        """Estimate `½ tr(Σ F)` summed over the batch."""
        sigmas = [s.detach() for s in self.sigmas]
        if estimator == "labels":
            with torch.enable_grad():
                outputs = run(self.network, x)
                sampled = self.likelihood.sample(outputs, self.generator)
                fit = self.likelihood.log_prob(outputs, sampled).sum()
                scores = torch.autograd.grad(fit, self.means, allow_unused=True)
            pairs = zip(sigmas, scores, strict=True)
            return 0.5 * sum(float((s * g).square().sum()) for s, g in pairs if g is not None)
        bits = [torch.randint(0, 2, s.shape, device=s.device, generator=self.generator) for s in sigmas]
        signs = [2 * bit.to(s) - 1 for bit, s in zip(bits, sigmas, strict=True)]
        buffers = buffers_of(self.network)

        def forward(trained: Any) -> Tensor:
            return call(self.network, self._all_parameters(trained), buffers, x)

        return float(trace_by_products(forward, self.means, sigmas, self.likelihood, signs))

    def _fisher_term(self, x: Any, y: Any, mask: Tensor | None) -> DataTerm:
        """Return the data term, with the regulariser of some of the samples where they are limited."""
        size = batch_size(x)
        few = self.regulariser_batch
        if few is None or few >= size:
            return self._data_term(x, y, mask)
        outputs = self._main_pass(x)
        self.likelihood.validate(outputs.detach(), y, mask)
        with torch.enable_grad():
            fit = self.likelihood.log_prob(outputs, y, mask).mean()
            gradients = torch.autograd.grad(-fit, self.means, allow_unused=True)
        some = pytree.tree_map_only(Tensor, lambda t: t[:few], x)
        rest = self._data_term(some, None, None if mask is None else mask.expand_as(y)[:few])
        gradient = [r if g is None else g + r for g, r in zip(gradients, rest.mean_gradient, strict=True)]
        return DataTerm(fit.detach(), rest.regulariser, gradient, rest.log_sigma_gradient)

    def _data_term(self, x: Any, y: Any, mask: Tensor | None) -> DataTerm:
        """Return the data term; without labels only the regulariser, and no pass then updates batch statistics."""
        replay = _replaying(self.means[0].device)
        if y is None:
            with torch.enable_grad():
                outputs = self._auxiliary_pass(self.means, x)
        else:
            outputs = self._main_pass(x)
            self.likelihood.validate(outputs.detach(), y, mask)
        sampled = self.likelihood.sample(outputs.detach(), self.generator)
        side = 1
        if self.gradient == "one-sided":
            coin = torch.randint(2, (), device=outputs.device, generator=self.generator)
            side = 2 * int(coin) - 1

        def again(trained: Any) -> Tensor:
            with replay():
                return self._auxiliary_pass(trained, x)

        return data_term(
            LabelledOutputs(self.likelihood, outputs, y, sampled, mask),
            self.means,
            self.log_sigmas,
            again,
            method=self.gradient,
            side=side,
            epsilon=self.epsilon,
            score_correction=self.score_correction,
        )

    def _hessian_term(self, x: Any, y: Any, mask: Tensor | None) -> DataTerm:
        """Return the data term with the true Hessian."""
        outputs = self._main_pass(x).detach()
        self.likelihood.validate(outputs, y, mask)

        def fit(trained: Any) -> Tensor:
            return self.likelihood.log_prob(self._auxiliary_pass(trained, x), y, mask).mean()

        return hessian_term(fit, self.means, self.log_sigmas)

    def _loss(self, term: DataTerm) -> Tensor:
        """Add the KL, whose gradient is known in closed form, and wrap value and gradients as a loss."""
        means, scales = self.means, self.prior_scales
        with torch.no_grad():
            share = self.tempering / self.num_data
            penalty = share * self.kl()
            mean_gradient = [
                g + (share / s.square()) * m for g, m, s in zip(term.mean_gradient, means, scales, strict=True)
            ]
            width_gradient = [
                g + share * ((w.exp() / s).square() - 1)
                for g, w, s in zip(term.log_sigma_gradient, self.widths, scales, strict=True)
            ]
            value = term.regulariser + penalty - term.log_likelihood
        self.last_terms = Terms(float(term.log_likelihood), float(term.regulariser), float(penalty))
        return loss_with_gradients(value, [*means, *self.widths], [*mean_gradient, *width_gradient])

    def _main_pass(self, x: Any) -> Tensor:
        """Run the one pass of a step that updates batch statistics, if there are any."""
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(x)):
            raise UnsupportedOperationError(
                "an input of VariationalLaplace requires a gradient, but gradients reach only the posterior's "
                "parameters; pass x.detach(), or make the part before it a module of the same model."
            )
        with torch.enable_grad():
            return require_derivative(self.network, run(self.network, x))

    def _auxiliary_pass(self, trained: Any, x: Any) -> Tensor:
        """Run the network at other parameters; running statistics are updated in copies that are discarded."""
        buffers = {name: buffer.detach().clone() for name, buffer in named_buffers(self.network).items()}
        return call(self.network, self._all_parameters(trained), buffers, x)

    def _examine(self, x: Any) -> None:
        """Look for kinks once for each combination of training flags that is used."""
        flags = tuple(module.training for module in self.network.modules())
        if flags in self._examined:
            return
        parameters = {name: p.detach() for name, p in named_parameters(self.network).items()}
        for inner in self._inner:
            parameters[inner].requires_grad_()
        refuse_kinks(self.network, parameters, buffers_of(self.network), x)
        self._examined.add(flags)


def _replaying(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes a context in which passes meet the present random state, so that dropout keeps its mask."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def replay() -> Iterator[None]:
        with torch.random.fork_rng(devices=[device] if cuda is not None else []):
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, device)
            yield

    return replay
