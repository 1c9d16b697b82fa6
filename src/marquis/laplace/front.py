"""`Laplace`: a posterior for any trained network, in five lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.evidence.problem import EvidenceProblem, Statistics, noise_precision
from marquis.functional.call import Model, describe
from marquis.io.tensors import save_tensors
from marquis.laplace.check import CheckReport, MeanShift, check, mean_shift
from marquis.laplace.fitting import Fitted, fit
from marquis.laplace.loading import MaskOf
from marquis.laplace.saving import describe_model, pack_fitted, pack_likelihood
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.posterior import Posterior
from marquis.predictive import Prediction, predict, predict_loader
from marquis.predictive.score import ValidationScore
from marquis.priors import BoundPrior, Prior, StructuredPrior
from marquis.structures import STRUCTURES, Structure
from marquis.subnetwork import Subnetwork, function_of_chosen


class Laplace:
    """A Gaussian posterior over the weights of a trained network (MacKay 1992; methods.md 3).

    The posterior is centred at the network's present weights, with precision `A = H/T + prior`, H the generalised
    Gauss-Newton matrix summed over the data. Nothing is ever written to the network.

    Args:
        model: a module in eval mode, or a function `(params, x) -> outputs`.
        likelihood: "gaussian", "bernoulli", "categorical", "heteroscedastic", or an object.
        structure: "kronecker", "diagonal", "block", "full" or "lowrank".
        estimator: "exact", "sketched", "approximate" or "mixed"; None: exact up to 64 outputs, else sketched.
        parameters: "all" (that require a gradient), "last-layer", a `Subnetwork` (with its own structure), a name
            pattern, a predicate `(name, tensor) -> bool`, or names.
        prior: a `Prior`, a number (scalar precision), or an earlier posterior (or `Laplace`) to continue from.
        temperature: T; above 1 widens the posterior.
        params: parameter values, required for a function.
    """

    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        structure: str = "kronecker",
        estimator: str | None = None,
        *,
        parameters: Any = "all",
        prior: Prior | Posterior | Laplace | float | None = None,
        temperature: float = 1.0,
        params: Mapping[str, Tensor] | None = None,
    ) -> None:
        if structure not in STRUCTURES:
            raise UnsupportedOperationError(
                f"structure={structure!r} is not known; choose one of {', '.join(map(repr, STRUCTURES))}."
            )
        if not 0 < temperature < float("inf"):
            raise DataError(f"temperature={temperature}: it has to be positive and finite.")
        self.model = model
        self.likelihood = as_likelihood(likelihood)
        self.structure = parameters.structure if isinstance(parameters, Subnetwork) else structure
        self.estimator = estimator
        self.parameters = parameters
        self.temperature = float(temperature)
        if isinstance(prior, Laplace):
            prior = prior.posterior
        if prior is None or isinstance(prior, (int, float)):
            prior = Prior(1.0 if prior is None else prior)
        self._given_prior: Prior | Posterior = prior
        self._params = None if params is None else dict(params)
        self._fitted: Fitted | None = None
        self._posterior: Posterior | None = None
        self._loader: Iterable[Any] | None = None
        self._mask_of: MaskOf | None = None
        self._noise_tuned = False

    # --- fitting -----------------------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        *,
        generator: torch.Generator | None = None,
        progress: bool = True,
        mask_of: MaskOf | None = None,
        **options: Any,
    ) -> Laplace:
        """Compute the curvature in one pass over the data; returns itself.

        Args:
            loader: batches `(x, y)`; without labels there is a posterior but no evidence.
            generator: for sketches and random subnetworks.
            progress: show a bar.
            mask_of: gives a batch's mask, 1 where a label was observed.
            options: `probes`, `memory_limit`, `dtype`, `checkpoint`, ... of `curvature.accumulate`.
        """
        self._fitted = fit(
            self.model,
            loader,
            self.likelihood,
            self.structure,
            self.estimator,
            self.parameters,
            self._given_prior,
            temperature=self.temperature,
            params=self._params,
            mask_of=mask_of,
            progress=progress,
            generator=generator,
            **options,
        )
        self._posterior, self._mask_of, self._noise_tuned = None, mask_of, False
        self._loader = None if hasattr(loader, "__next__") else loader
        return self

    @property
    def fitted(self) -> Fitted:
        """What one pass over the data left; raises before `fit`."""
        if self._fitted is None:
            raise MarquisError("this Laplace approximation has seen no data yet: call fit(loader) first.")
        return self._fitted

    @property
    def curvature(self) -> Structure:
        """H summed over the data; at noise precision 1 for a Gaussian with one noise precision."""
        return self.fitted.curvature

    @property
    def prior(self) -> BoundPrior | StructuredPrior:
        """The prior with its present precisions."""
        return self.fitted.prior

    @property
    def statistics(self) -> Statistics | None:
        """Number of data and their fit at the mean; None if they had no labels."""
        return self.fitted.statistics

    @property
    def posterior(self) -> Posterior:
        """`N(theta*, (H/T + prior)^-1)`; a value, also usable as the next prior."""
        if self._posterior is None:
            self._posterior = self._posterior_with(self.fitted.prior, self.likelihood)
        return self._posterior

    def _posterior_with(self, prior: BoundPrior | StructuredPrior, likelihood: Likelihood) -> Posterior:
        fitted, noise = self.fitted, noise_precision(likelihood)
        scale = (1.0 if noise is None else float(noise)) / self.temperature
        return Posterior(fitted.layout, fitted.mean, prior.add_to(fitted.curvature * scale), fitted.index)

    # --- prediction --------------------------------------------------------------------------------------

    def predict(self, x: Any, method: str = "linearised", **options: Any) -> Prediction:
        """Predict for a batch; all options of `predictive.predict`."""
        return predict(self.posterior, self.model, x, self.likelihood, method, **options)

    def predict_loader(self, loader: Iterable[Any], **options: Any) -> Prediction:
        """Predict for a data set, batch by batch; all options of `predictive.predict_loader`."""
        return predict_loader(self.posterior, self.model, loader, self.likelihood, **options)

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """`n` draws of the weights, by name `[n, *shape]`."""
        return self.posterior.sample(n, generator)

    # --- evidence ----------------------------------------------------------------------------------------

    def problem(self, loader: Iterable[Any] | None = None) -> EvidenceProblem:
        """What the evidence is a function of."""
        fitted = self.fitted
        if fitted.statistics is None:
            raise DataError("the evidence depends on labels, but the data of fit had none; fit on (x, y).")
        model, params = self.model, self._params
        if fitted.index is not None:
            inside = fitted.curvature.layout
            model, params = function_of_chosen(model, params, fitted.mean, fitted.index, inside)
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
        )

    def log_evidence(self) -> Tensor:
        """Log marginal likelihood of the data under prior and noise (methods.md 5.1)."""
        from marquis.evidence import log_evidence

        return log_evidence(self.problem())

    def effective_parameters(self, per_group: bool = False) -> Tensor:
        """How many parameters the data determine: one number, or one per prior group."""
        from marquis.evidence import effective_parameters

        found = effective_parameters(self.problem())
        return found if per_group else found.sum()

    def tune(self, method: str = "evidence", loader: Iterable[Any] | None = None, **options: Any) -> Any:
        """Choose prior precisions and noise; returns what was tuned, from what to what (`print` it).

        Args:
            method: "evidence", "gradient", "adapted", "grid" or "sampled"; see `marquis.evidence.tune`.
            loader: validation data for "grid"; training data for "adapted" and "sampled" (default: that of `fit`).
            options: passed on.
        """
        from marquis.evidence import tune

        if method == "grid" and "score" not in options:
            if loader is None:
                raise DataError("tune(method='grid') needs validation data: tune('grid', loader=validation_loader).")
            score = ValidationScore(self.model, self.posterior, loader)
            options["score"] = lambda prior, likelihood: score(self._posterior_with(prior, likelihood), likelihood)
        tuned = tune(self.problem(None if method == "grid" else loader), method, **options)
        self.update(tuned.prior, tuned.likelihood)
        self._noise_tuned = True
        return tuned

    def update(
        self, prior: BoundPrior | StructuredPrior | None = None, likelihood: Likelihood | None = None
    ) -> Laplace:
        """Replace prior or noise without another pass over the data; returns itself.

        Raises:
            UnsupportedOperationError: the likelihood is of another kind, so that the curvature would be another one.
        """
        if likelihood is not None:
            rescales = noise_precision(likelihood) is not None and noise_precision(self.likelihood) is not None
            if not rescales and likelihood is not self.likelihood:
                raise UnsupportedOperationError(
                    f"from {self.likelihood} to {likelihood} the curvature is no multiple of itself; fit again."
                )
            self.likelihood = likelihood
        if prior is not None:
            self.fitted.prior.layout.require_same(prior.layout)
            self._fitted = replace(self.fitted, prior=prior)
        self._posterior = None
        return self

    def mean_shift(self, loader: Iterable[Any] | None = None) -> MeanShift:
        """The Newton step to the mode of the quadratic approximation, for experiments; nothing uses it by default.

        Args:
            loader: training data; default that of `fit`.
        """
        return mean_shift(self.model, self.posterior, self.problem(), self._data(loader, "mean_shift"))

    def _data(self, loader: Iterable[Any] | None, what: str) -> Iterable[Any]:
        data = self._loader if loader is None else loader
        if data is None:
            raise DataError(f"{what} passes over the training data; pass {what}(loader).")
        return data

    def check(self, loader: Iterable[Any] | None = None, generator: torch.Generator | None = None) -> CheckReport:
        """Is this a mode, does the linearisation hold, which weights sit at the prior, was the noise tuned?

        Args:
            loader: training data; default that of `fit`.
            generator: for the weight samples.
        """
        data = self._data(loader, "check")
        noise = None if noise_precision(self.likelihood) is None else self._noise_tuned
        return check(self.model, self.posterior, self.problem(), data, noise, generator)

    # --- saving ------------------------------------------------------------------------------------------

    @classmethod
    def from_fitted(
        cls,
        model: Model,
        likelihood: Likelihood,
        fitted: Fitted,
        *,
        temperature: float = 1.0,
        noise_tuned: bool = False,
        params: Mapping[str, Tensor] | None = None,
    ) -> Laplace:
        """A Laplace approximation from what an earlier pass over the data left, for instance from a file."""
        made = cls(model, likelihood, fitted.structure, fitted.estimator, temperature=temperature, params=params)
        made._fitted, made._noise_tuned = fitted, noise_tuned
        return made

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, atomically; `marquis.load(path, model)` reads it."""
        header, tensors = pack_fitted(self.fitted)
        likelihood, more = pack_likelihood(self.likelihood)
        header |= {
            "likelihood": likelihood,
            "temperature": self.temperature,
            "noise_tuned": self._noise_tuned,
            "model": describe_model(self.model, self.fitted.mean),
        }
        save_tensors(path, "laplace", header, {**tensors, **more})

    def __repr__(self) -> str:
        """Model, likelihood, structure, estimator, and how many weights once fitted."""
        if self._fitted is None:
            how = self.estimator or "estimator by number of outputs"
            return f"Laplace({describe(self.model)}, {self.likelihood}, {self.structure}, {how}; not fitted)"
        seen = "" if self.statistics is None else f" on {self.statistics.n} data"
        weights = f"{self.posterior.num_random} weights"
        inside = f"{self.likelihood}, {self.fitted.structure}, {self.fitted.estimator}"
        return f"Laplace({describe(self.model)}, {inside}; {weights}{seen}, {self.prior!r})"
