"""Tune prior, noise and posterior temperature of a `Laplace`, and compute its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.arguments import checked, checked_methods
from marquis.choices import choose
from marquis.distributed import fails_together, group_is_up
from marquis.errors import DataError, UnsupportedOperationError
from marquis.evidence.grid import Score
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.tune import METHODS, tune
from marquis.evidence.tuning_result import Tuned
from marquis.functional.call import Model
from marquis.functional.checks import check_finite
from marquis.laplace.check import mean_shift
from marquis.laplace.fitting import Fitted
from marquis.laplace.held_out import UNCHECKED, HeldOut, choose_temperature, densities, predictions
from marquis.likelihoods import Likelihood
from marquis.loaders import MaskOf
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.leave_one_out import leave_one_out, require_exact
from marquis.predictive.validation_score import ValidationScore
from marquis.priors import BoundPrior, StructuredPrior
from marquis.subnetwork.choose import function_of_chosen

DECREMENT = 0.1
"""Newton decrement `g' A^-1 g / 2`, in nats, above which the weights are not the mode of the tuned prior."""


Result = TypeVar("Result")


@checked_methods
class Hyperparameters:
    """Offer what `Laplace` does with its evidence; the state is that of `Laplace`."""

    model: Model
    likelihood: Likelihood
    temperature: float
    posterior_temperature: float
    _params: dict[str, Tensor] | None
    _loader: Iterable[Any] | None
    _mask_of: MaskOf | None
    _fitted: Fitted | None
    _posterior: Posterior | None
    noise_tuned: bool
    _changed: bool
    _distributed: bool

    if TYPE_CHECKING:

        @property
        def fitted(self) -> Fitted: ...  # noqa: D102

        @property
        def posterior(self) -> Posterior: ...  # noqa: D102

        def _posterior_with(
            self, prior: BoundPrior | StructuredPrior, likelihood: Likelihood, temperature: float | None = None
        ) -> Posterior: ...

        def _data(self, loader: Iterable[Any] | None, what: str) -> Iterable[Any]: ...

    @property
    def _shared(self) -> bool:
        """Return whether loaders hold one process's share of the data."""
        return self._distributed and group_is_up()

    def _in_shares(self, run: Callable[[], Result], *loaders: Iterable[Any] | None) -> Result:
        """Run a pass over the data; where loaders are shares, all processes stop if one fails.

        Without a loader there is no pass, and a process may run alone.
        """
        distributed = self._shared and any(loader is not None for loader in loaders)
        return fails_together(run, confirm=False)() if distributed else run()

    def problem(self, loader: Iterable[Any] | None = None) -> EvidenceProblem:
        """Return what the evidence is a function of, for `marquis.evidence`.

        Args:
            loader: Data for methods that pass over them; default that of `fit`.
        """
        fitted = self.fitted
        if fitted.statistics is None:
            raise DataError("the evidence depends on labels, but the data of fit had none; fit on (x, y).")
        model, params = self.model, self._params
        if fitted.index is not None:
            layout = fitted.curvature.layout
            model, params = function_of_chosen(model, params, fitted.mean, fitted.index, layout)
        return EvidenceProblem(
            fitted.curvature,
            fitted.vector,
            fitted.prior,
            self.likelihood,
            fitted.statistics,
            self.temperature,
            model,
            self._loader if loader is None else loader,
            params,
            self._mask_of,
            self._shared,
        )

    def log_evidence(self) -> Tensor:
        """Return the log marginal likelihood of the data under prior and noise (docs/method/evidence.md)."""
        return log_evidence(self.problem())

    @checked
    def effective_parameters(self, per_group: bool = False) -> Tensor:
        """Return how many parameters the data determine: one number, or one per prior group."""
        gamma = effective_parameters(self.problem())
        return gamma if per_group else gamma.sum()

    @checked
    def tune(
        self,
        method: str = "evidence",
        loader: Iterable[Any] | None = None,
        *,
        validation: Iterable[Any] | None = None,
        noise: bool | None = None,
        tolerance: float | None = None,
        max_iterations: int | None = None,
        learning_rate: float | None = None,
        steps: int | None = None,
        log_prior: Callable[[Tensor], Tensor] | None = None,
        values: Sequence[float] | None = None,
        relative: bool | None = None,
        score: Score | None = None,
        samples: int | None = None,
        iterations: int | None = None,
        g_prior: bool | None = None,
        at: str | None = None,
        simplified: bool | None = None,
        hessian_at: str | None = None,
        estimator: str | None = None,
        theta_tolerance: float | None = None,
        solve_tolerance: float | None = None,
        max_products: int | None = None,
        store_bytes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tuned:
        """Choose prior precisions, the noise precision of a Gaussian and, by unseen data, the posterior temperature.

        The evidence says nothing about the temperature, and can leave a posterior too wide on small or separable data.
        With `validation` or method "loo" the temperature is that of the largest log density of unseen examples, out of
        .01, .03, .1, .3 and 1, and the table shows that density before and after. Without, it stays as it is.

        Args:
            method: "evidence" (MacKay's fixed points), "gradient" (Adam on the logarithms), "adapted" (the evidence of
                the linearised network at its own optimum), "grid" (validation data) or "sampled" (without any
                factorisation); see `marquis.evidence.tune`. Other options than those of the method are refused.
                "loo": "evidence", and then the temperature by leave-one-out predictions of the training data
                (docs/method/predictive.md#leave-one-out), for structures "full", "lowrank" and "diagonal" of a network
                that is at the mode of the tuned prior.
            loader: Validation data for "grid"; training data for "adapted" and "sampled" (default: that of `fit`).
            validation: Labelled batches that were not trained on, to choose the posterior temperature by.
            noise: Whether the noise precision is tuned too (True by default; all but "grid").
            tolerance: Relative change at which to stop (all but "grid").
            max_iterations: Most updates ("evidence", "adapted").
            learning_rate: Step size of Adam ("gradient").
            steps: Number of steps of Adam ("gradient").
            log_prior: Log density of the logarithms of the prior precisions, added to the evidence ("gradient").
            values: Prior precisions to try ("grid").
            relative: Whether `values` multiply the present precisions ("grid").
            score: Function `(prior, likelihood) -> log density` to maximise; by default of `loader` ("grid").
            samples: Number of posterior samples ("sampled").
            iterations: Most expectation-maximisation steps ("sampled").
            g_prior: Whether to scale the prior by the Jacobian's columns ("sampled").
            at: Whose weights the evidence is of, "optimum" (of the linear model) or "network" ("sampled").
            simplified: Whether to leave out the linear model's offset ("adapted", "sampled").
            hessian_at: "linearisation" or "theta_star" ("adapted").
            estimator: Estimator of the curvature at theta-star ("adapted").
            theta_tolerance: Accuracy of the linear model's optimum, in nats ("adapted", "sampled").
            solve_tolerance: Relative residual of the linear solves ("sampled").
            max_products: Most matrix products per solve ("adapted", "sampled").
            store_bytes: Memory for Jacobians ("adapted").
            generator: Source of randomness ("sampled").

        Returns:
            What was tuned, from what to what; print it for a table.

        Raises:
            UnsupportedOperationError: For "loo": another structure, or weights that are no mode of the tuned prior.
        """
        options = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "method", "loader", "score", "validation")
        }
        return self._in_shares(lambda: self._tune(method, loader, validation, score, options), loader, validation)

    def _tune(
        self,
        method: str,
        loader: Iterable[Any] | None,
        validation: Iterable[Any] | None,
        score: Score | None,
        options: dict[str, Any],
    ) -> Tuned:
        """Tune as `tune` says, in this process alone or in all of a group."""
        method = choose("method", method, (*METHODS, "loo"))
        leaves_one_out = method == "loo"
        if leaves_one_out:
            if validation is not None:
                raise DataError("tune('loo') needs no validation data: choose tune('loo') or tune(validation=loader).")
            require_exact(self.fitted.curvature)
            method = "evidence"
        if method == "grid" and score is None:
            if loader is None:
                raise DataError("tune(method='grid') needs validation data: tune('grid', loader=validation_loader).")
            of_loader = ValidationScore(self.model, self.posterior, loader, shared=self._shared)
            score = lambda prior, likelihood: of_loader(self._posterior_with(prior, likelihood), likelihood)  # noqa: E731
        problem = self.problem(None if method == "grid" else loader)
        options = {name: value for name, value in options.items() if value is not None}
        tuned = tune(problem, method, **{**options, **({} if score is None else {"score": score})})
        if leaves_one_out:
            held_out = self._left_out(replace(problem, prior=tuned.prior, likelihood=tuned.likelihood))
        elif validation is not None:
            held_out = self._validated(validation, tuned)
        else:
            held_out = None
        self.update(tuned.prior, tuned.likelihood)
        self.noise_tuned = True
        if held_out is None and method == "grid":  # whose own table is about validation data
            return tuned
        if held_out is None:
            return replace(tuned, report=f"{tuned.report}\nnote: {UNCHECKED}", notes=(*tuned.notes, UNCHECKED))
        self.posterior_temperature, self._posterior = held_out.posterior_temperature, None
        return replace(tuned, report=f"{tuned.report}\n{held_out}", held_out=held_out)

    def _validated(self, validation: Iterable[Any], tuned: Tuned) -> HeldOut:
        """Return the density of validation data, before and after tuning."""
        device = self.posterior.vector.device
        old = predictions(self.posterior, self.model, self.likelihood, validation, device)
        before = densities(self.likelihood, old, (1.0,), self._shared)[1.0]
        posterior = self._posterior_with(tuned.prior, tuned.likelihood, 1.0)
        new = predictions(posterior, self.model, tuned.likelihood, validation, device)
        return choose_temperature(tuned.likelihood, new, "validation data", before, self._shared)

    def _left_out(self, problem: EvidenceProblem) -> HeldOut:
        """Return the density of training data, each example predicted without itself."""
        data = self._data(problem.loader, "tune('loo')")
        if self._mask_of is not None or self.fitted.index is not None:
            raise UnsupportedOperationError(
                "tune('loo') is for complete labels and whole parameters, not for masks and subnetworks; pass "
                "tune(validation=loader) instead."
            )
        posterior = self._posterior_with(problem.prior, problem.likelihood, 1.0)
        decrement = float(mean_shift(self.model, posterior, problem, data).gain)
        if not decrement <= DECREMENT:
            raise UnsupportedOperationError(
                f"tune('loo'): the network is not at the mode of the tuned prior (Newton decrement {decrement:.3g} "
                f"nat, at most {DECREMENT} is accepted), and leave-one-out predictions there are too good. Train on "
                "with the tuned prior as weight decay, or pass tune(validation=loader). Nothing was changed."
            )
        function = PosteriorFunction(self.model, posterior)
        parts = leave_one_out(function, posterior.precision, problem.likelihood, self.temperature, data)
        return choose_temperature(problem.likelihood, parts, "examples left out", None, self._shared)

    def log_marginal_likelihood(
        self, prior_precision: Tensor | float | None = None, sigma_noise: Tensor | float | None = None
    ) -> Tensor:
        """Return `log_evidence`, under the name that it has in laplace-torch.

        Args:
            prior_precision: Prior precision to evaluate at instead: one number, or one per group of the prior.
            sigma_noise: Standard deviation of the noise to evaluate at instead. Nothing is changed by either, and
                gradients flow to both.
        """
        problem = self.problem()
        check_finite(prior_precision, "prior_precision")
        check_finite(sigma_noise, "sigma_noise")
        if prior_precision is not None:
            present = problem.grouped_prior.precision
            prior_precision = torch.as_tensor(prior_precision).to(present)
            if prior_precision.shape not in ((), present.shape):
                raise DataError(
                    f"prior_precision has shape {list(prior_precision.shape)}; one number, or {present.shape}."
                )
            prior_precision = prior_precision.expand_as(present)
        noise = None if sigma_noise is None else torch.as_tensor(sigma_noise).to(problem.mean) ** -2
        return log_evidence(problem.with_hyper(prior_precision, noise))

    def optimize_prior_precision(self, method: str = "marglik", val_loader: Iterable[Any] | None = None) -> Tuned:
        """Tune the prior precision alone, by laplace-torch's name and methods; `tune` has more.

        Args:
            method: "marglik" for `tune("evidence", noise=False)`, "gridsearch" for `tune("grid", val_loader)`.
            val_loader: Validation data for "gridsearch".
        """
        if choose("method", method, ("marglik", "gridsearch")) == "gridsearch":
            return self.tune("grid", val_loader)
        return self.tune("evidence", noise=False)

    def update(self, prior: BoundPrior | StructuredPrior | None = None, likelihood: Likelihood | None = None) -> Self:
        """Replace prior or noise without another pass over the data, and return this object.

        Raises:
            UnsupportedOperationError: the likelihood is of another kind, so that the curvature would be another one.
        """
        if likelihood is not None:
            rescales = None not in (likelihood.scalar_noise_precision, self.likelihood.scalar_noise_precision)
            if not rescales and likelihood is not self.likelihood:
                raise UnsupportedOperationError(
                    f"from {self.likelihood} to {likelihood} the curvature is no multiple of itself; fit again."
                )
            self.likelihood = likelihood
        if prior is not None:
            self.fitted.prior.layout.require_same(prior.layout)
            self._fitted = replace(self.fitted, prior=prior)
        self._posterior, self._changed = None, True
        return self
