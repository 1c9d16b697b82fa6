"""Define `Laplace`, a posterior for any trained network in five lines."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import Positive, checked, checked_methods
from marquis.choices import choose
from marquis.curvature.accumulate import accumulate
from marquis.curvature.linop.products import KINDS
from marquis.curvature.planning.choices import ESTIMATORS
from marquis.distributed import fails_together, group_is_up, path_of_process
from marquis.errors import DataError, MarquisError
from marquis.evidence.statistics import Statistics
from marquis.evidence.tuning_result import TuningWarning
from marquis.functional.call import Model, describe
from marquis.io.tensors import save_tensors
from marquis.laplace.check import CheckReport, MeanShift, check, mean_shift
from marquis.laplace.file_format import describe_model, pack_fitted, pack_likelihood
from marquis.laplace.fitting import Fitted, fit, joined, require_positive_definite, require_same_likelihood
from marquis.laplace.hyperparameters import Hyperparameters
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import MaskOf, is_one_shot
from marquis.posterior import Posterior
from marquis.predictive import Prediction, predict, predict_loader
from marquis.priors import BoundPrior, Prior, StructuredPrior
from marquis.structures import STRUCTURES, Spread, Structure
from marquis.subnetwork import Subnetwork


@checked_methods
class Laplace(Hyperparameters):
    """Fit a Gaussian posterior over the weights of a trained network (MacKay 1992).

    The posterior is centred at the network's present weights, with precision `(H/T + prior) / T_p`, H the generalised
    Gauss-Newton matrix summed over the data (docs/method/posterior.md#posterior-precision). Nothing is ever written to
    the network, and any number of threads may predict with one `Laplace`.

    Args:
        model: A module in evaluation mode, or a function `(params, x) -> outputs`.
        likelihood: "gaussian", "bernoulli", "categorical", "heteroscedastic", or an object.
        structure: "kronecker", "diagonal", "block", "full" or "lowrank".
        estimator: "exact", "sketched", "approximate" or "mixed"; None: exact up to 64 outputs, else sketched.
        parameters: "all" (that require a gradient), "last-layer", a `Subnetwork` (with its own structure), a name
            pattern, a predicate `(name, tensor) -> bool`, or names.
        prior: A `Prior`, a number (scalar precision), or an earlier posterior (or `Laplace`) to continue from.
        temperature: T, tempers the likelihood: precision `H/T + prior`. Above 1 the data count less.
        posterior_temperature: T_p, tempers the whole posterior, prior included: it multiplies the covariance. Below 1
            the posterior is cold (Wenzel et al. 2020). The evidence does not depend on it.
        params: Parameter values, required for a function.
        kind: Which curvature: "ggn"; "fisher", at labels drawn from the model; "empirical-fisher" or "hessian", at the
            labels of the data (the Hessian for the structures "diagonal" and "full").
    """

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        structure: str = "kronecker",
        estimator: str | None = None,
        *,
        parameters: Any = "all",
        prior: Prior | Posterior | Laplace | float | None = None,
        temperature: Positive = 1.0,
        posterior_temperature: Positive = 1.0,
        params: Mapping[str, Tensor] | None = None,
        kind: str = "ggn",
    ) -> None:
        self.kind = choose("kind", kind, KINDS)
        structure = choose("structure", structure, STRUCTURES)
        estimator = None if estimator is None else choose("estimator", estimator, ESTIMATORS)
        self.model = model
        self.likelihood = as_likelihood(likelihood)
        self.structure = parameters.structure if isinstance(parameters, Subnetwork) else structure
        self.estimator = estimator
        self.parameters = parameters
        self.temperature = float(temperature)
        self.posterior_temperature = float(posterior_temperature)
        if isinstance(prior, Laplace):
            prior = prior.posterior
        if prior is None or isinstance(prior, (int, float)):
            prior = Prior(1.0 if prior is None else prior)
        self._prior: Prior | Posterior = prior
        self._params = None if params is None else dict(params)
        self._fitted: Fitted | None = None
        self._posterior: Posterior | None = None
        self._loader: Iterable[Any] | None = None
        self._mask_of: MaskOf | None = None
        self.noise_tuned = self._changed = False
        self._distributed = True
        self._initial = self.likelihood, self.posterior_temperature

    # --- fitting -----------------------------------------------------------------------------------------

    @fails_together
    @checked
    def fit(
        self,
        loader: Iterable[Any],
        *,
        mask_of: MaskOf | None = None,
        probes: int = 1,
        width_limit: float = 512,
        weight_sharing: str = "expand",
        corrected: bool = False,
        memory_limit: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        checkpoint: str | Path | None = None,
        distributed: bool = True,
        generator: torch.Generator | None = None,
        progress: bool = True,
        continue_from: Laplace | None = None,
    ) -> Laplace:
        """Compute the curvature in one pass over the data, and return this object.

        Every batch is read once and runs forward once, also where the loader is a one-shot iterator. The options are
        those of `curvature.accumulate`; a `Subnetwork` takes `probes`, `memory_limit`, `generator` and `progress`.

        Args:
            loader: Batches `(x, y)`; without labels there is a posterior but no evidence.
            mask_of: Returns a batch's mask, 1 where a label was observed.
            probes: Number of random columns of the estimator "sketched".
            width_limit: Widest tensor that the estimator "mixed" treats exactly.
            weight_sharing: For "kronecker", "expand" or "reduce".
            corrected: For "kronecker", another pass that corrects its eigenvalues (EKFAC).
            memory_limit: Bytes beyond the model and the batch; batches that do not fit are split.
            dtype: Type of the sum.
            device: Device of the sum.
            checkpoint: File from which an interrupted pass is resumed.
            distributed: Sum over the processes of a `torch.distributed` group, if one is up.
            generator: Source of randomness for sketches and random subnetworks.
            progress: Show a bar.
            continue_from: An earlier fit of the same network on other data, to which these are added: the result is
                that of one fit on all of them, with its prior and noise. Refused where weights or likelihood differ.
        """
        if self._changed:  # the prior is bound anew, so the noise must not stay behind
            warnings.warn(
                "fit starts anew, from the prior, noise and temperature that this Laplace was made with; what tune() "
                "or update() changed is gone. Tune again, or pass the tuned values to a new Laplace.",
                TuningWarning,
                stacklevel=2,
            )
            self.likelihood, self.posterior_temperature = self._initial
        if continue_from is not None:
            require_same_likelihood(continue_from.likelihood, self.likelihood)
        fixed = ("self", "loader", "mask_of", "generator", "progress", "continue_from")
        options = {name: value for name, value in locals().items() if name not in (*fixed, "fixed")}
        defaults = inspect.signature(accumulate).parameters
        # Only what the user changed: a subnetwork refuses options that it does not have.
        changed = {name: value for name, value in options.items() if value != defaults[name].default}
        changed |= {} if self.kind == "ggn" else {"kind": self.kind}
        self._fitted = fit(
            self.model,
            loader,
            self.likelihood,
            self.structure,
            self.estimator,
            self.parameters,
            self._prior,
            temperature=self.temperature,
            params=self._params,
            mask_of=mask_of,
            progress=progress,
            generator=generator,
            **changed,
        )
        self._posterior, self._mask_of, self.noise_tuned, self._changed = None, mask_of, False, False
        # A process of a group holds only a part of the data, and a pass over it is one of all processes: never implied.
        self._distributed, a_share = distributed, distributed and group_is_up()
        self._loader = None if a_share or is_one_shot(loader) else loader
        if continue_from is not None:
            self._fitted = joined(continue_from.fitted, self._fitted)
            self.likelihood, self.noise_tuned = continue_from.likelihood, continue_from.noise_tuned
            self._loader = None  # holds only a part of the data
        return self

    @property
    def fitted(self) -> Fitted:
        """Return the result of the pass over the data; raises before `fit`."""
        if self._fitted is None:
            raise MarquisError("this Laplace approximation has seen no data yet: call fit(loader) first.")
        return self._fitted

    @property
    def curvature(self) -> Structure:
        """Return H summed over the data; at noise precision 1 for a Gaussian with one noise precision."""
        return self.fitted.curvature

    @property
    def prior(self) -> BoundPrior | StructuredPrior:
        """Return the prior with its present precisions."""
        return self.fitted.prior

    @property
    def statistics(self) -> Statistics | None:
        """Return the number of samples and their fit at the mean; None if they had no labels."""
        return self.fitted.statistics

    @property
    def posterior(self) -> Posterior:
        """Return `N(theta*, T_p (H/T + prior)^-1)`; a value, also usable as the next prior."""
        if self._posterior is None:
            self._posterior = self._posterior_with(self.fitted.prior, self.likelihood)
        return self._posterior

    def _posterior_with(
        self, prior: BoundPrior | StructuredPrior, likelihood: Likelihood, temperature: float | None = None
    ) -> Posterior:
        """Return the posterior under another prior, likelihood or temperature."""
        fitted, noise = self.fitted, likelihood.scalar_noise_precision
        scale = (1.0 if noise is None else float(noise)) / self.temperature
        precision = prior.add_to(fitted.curvature * scale)
        if self.kind == "hessian":
            require_positive_definite(precision)
        temperature = self.posterior_temperature if temperature is None else temperature
        if temperature != 1:
            precision = precision * (1 / temperature)
        return Posterior(fitted.layout, fitted.mean, precision, fitted.index)

    # --- prediction --------------------------------------------------------------------------------------

    @checked
    def predict(
        self,
        x: Any,
        method: str = "linearised",
        samples: int = 100,
        link: str | None = None,
        at: str | None = None,
        joint: bool = False,
        diagonal: bool | None = None,
        generator: torch.Generator | None = None,
        memory_limit: int | None = None,
        differentiable: bool = False,
    ) -> Prediction:
        """Predict with uncertainty for a batch (docs/method/predictive.md).

        Args:
            x: Inputs with the batch as dimension 0.
            method: "linearised" (closed form), "linearised-samples" (for many outputs), or "sampled" (networks at
                sampled weights).
            samples: Number of weight samples, or of logit samples for link="mc".
            link: How Gaussian logits become probabilities: "quadrature" (default), "mc", "probit" or "bridge".
            at: Path of a module whose output is predicted instead.
            joint: Whether to return the covariance over all inputs together.
            diagonal: True for variances only, False for covariances of any size; None decides by the outputs' number.
            generator: Source of randomness.
            memory_limit: Bytes for temporaries.
            differentiable: Keep the graph to `x`: mean, variance, covariance and samples have gradients.

        Errors are those of `predictive.predict`.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "x")}
        return predict(self.posterior, self.model, x, self.likelihood, **options)

    @checked
    def predict_loader(
        self,
        loader: Iterable[Any],
        method: str = "linearised",
        *,
        samples: int = 100,
        link: str | None = None,
        at: str | None = None,
        diagonal: bool | None = None,
        generator: torch.Generator | None = None,
        memory_limit: int | None = None,
        keep_inputs: bool = False,
        device: torch.device | str | None = None,
        progress: bool = True,
        distributed: bool = True,
    ) -> Prediction:
        """Predict for a data set, batch by batch, with the same weight samples for every batch.

        Batches are inputs, or `(x, y)`, whose labels are ignored; with `keep_inputs` they are kept, so that `sample`
        works on the result, and with `device` they are moved there first. `progress` shows a bar. If a process group is
        up, each process's loader is its share of the data, and all return the predictions of all shares, in the order
        of the ranks; `distributed=False` returns those of its own. The other arguments are those of `predict`.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "loader")}
        return predict_loader(self.posterior, self.model, loader, self.likelihood, **options)

    @checked
    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return `n` samples of the weights, by name `[n, *shape]`."""
        return self.posterior.sample(n, generator)

    def mean_shift(self, loader: Iterable[Any] | None = None) -> MeanShift:
        """Return the Newton step to the mode of the quadratic approximation; nothing uses it by default.

        Args:
            loader: Training data; default that of `fit`.
        """
        data = self._data(loader, "mean_shift")
        return self._in_shares(lambda: mean_shift(self.model, self.posterior, self.problem(), data), loader)

    def _data(self, loader: Iterable[Any] | None, what: str) -> Iterable[Any]:
        """Return the loader that was passed, or that of `fit`."""
        data = self._loader if loader is None else loader
        if data is None:
            raise DataError(f"{what} passes over the training data; pass {what}(loader).")
        return data

    @checked
    def check(self, loader: Iterable[Any] | None = None, generator: torch.Generator | None = None) -> CheckReport:
        """Check whether the posterior can be trusted: mode, linearisation, weights at the prior, noise.

        Args:
            loader: Training data; default that of `fit`.
            generator: Source of randomness for the weight samples.
        """
        data = self._data(loader, "check")
        noise = None if self.likelihood.scalar_noise_precision is None else self.noise_tuned
        run = lambda: check(self.model, self.posterior, self.problem(), data, noise, generator)  # noqa: E731
        return self._in_shares(run, loader)

    # --- saving ------------------------------------------------------------------------------------------

    @classmethod
    def from_fitted(
        cls,
        model: Model,
        likelihood: Likelihood,
        fitted: Fitted,
        *,
        temperature: Positive = 1.0,
        posterior_temperature: Positive = 1.0,
        noise_tuned: bool = False,
        params: Mapping[str, Tensor] | None = None,
        kind: str = "ggn",
    ) -> Laplace:
        """Return a Laplace approximation from what an earlier pass over the data left, for instance from a file."""
        made = cls(
            model,
            likelihood,
            fitted.structure,
            fitted.estimator,
            temperature=temperature,
            posterior_temperature=posterior_temperature,
            params=params,
            kind=kind,
        )
        made._fitted, made.noise_tuned = fitted, noise_tuned
        return made

    @checked
    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, atomically; `marquis.load(path, model)` reads it.

        A posterior that is spread over processes is written in parts, `path.0`, `path.1`, ..., and read by as many.
        """
        header, tensors = pack_fitted(self.fitted)
        likelihood, more = pack_likelihood(self.likelihood)
        header |= {
            "likelihood": likelihood,
            "temperature": self.temperature,
            "posterior_temperature": self.posterior_temperature,
            "noise_tuned": self.noise_tuned,
            "kind": self.kind,
            "model": describe_model(self.model, self.fitted.mean),
        }
        place = path_of_process(path) if isinstance(self.curvature, Spread) else path
        save_tensors(place, "laplace", header, {**tensors, **more})

    def __repr__(self) -> str:
        """Show model, likelihood, structure, estimator, and how many weights once fitted."""
        if self._fitted is None:
            how = self.estimator or "estimator by number of outputs"
            return f"Laplace({describe(self.model)}, {self.likelihood}, {self.structure}, {how}; not fitted)"
        number = "" if self.statistics is None else f" on {self.statistics.n} data"
        weights = f"{self.posterior.num_random} weights"
        settings = f"{self.likelihood}, {self.fitted.structure}, {self.fitted.estimator}"
        return f"Laplace({describe(self.model)}, {settings}; {weights}{number}, {self.prior!r})"
