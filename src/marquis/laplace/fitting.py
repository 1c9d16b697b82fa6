"""Fit in one pass over the data: which weights, their curvature, their prior, and how well the data are fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.choices import match_choice
from marquis.curvature.accumulate import accumulate
from marquis.curvature.graph.cache import comparing_once
from marquis.curvature.planning.plan import plan
from marquis.distributed import group_is_up
from marquis.errors import MarquisError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.evidence.statistics import Collector, Statistics
from marquis.functional.call import Model
from marquis.functional.checks import batch_size, refuse_training_mode, samples_of
from marquis.functional.function import NetworkFunction
from marquis.functional.selection import parameters_of, select
from marquis.functional.unwrap import is_sharded
from marquis.likelihoods import Likelihood
from marquis.loaders import MaskOf, OpenedLoader, read_batch, refuse_one_shot
from marquis.posterior import Posterior
from marquis.priors import BoundPrior, Prior, StructuredPrior
from marquis.structures import Layout, Structure
from marquis.subnetwork import Subnetwork
from marquis.subnetwork.choose import Chosen
from marquis.subnetwork.curvature import subcurvature
from marquis.subnetwork.last_layer import last_layer

FEW_OUTPUTS = 64
"""Up to this many columns at the output the curvature is exact by default; beyond, sketched."""


@checked_methods
@dataclass(frozen=True, eq=False)
class Fitted:
    """Hold what one pass over the data leaves; prior, noise and temperature are combined with it later.

    Attributes:
        layout: parameters that have a posterior.
        mean: their values, copied.
        index: single weights in the flat vector of `layout`; None for all of them.
        curvature: H summed over the data, at noise precision 1 for a Gaussian with one noise precision.
        prior: over the same weights.
        statistics: the fit of the data; None if they had no labels.
        structure: kind of matrix.
        estimator: how the network was differentiated.
    """

    layout: Layout
    mean: dict[str, Tensor]
    index: Tensor | None
    curvature: Structure
    prior: BoundPrior | StructuredPrior
    statistics: Statistics | None
    structure: str
    estimator: str

    @cached_property
    def vector(self) -> Tensor:
        """Return the random weights as one vector `[K]`, made once; do not write to it."""
        flat = self.layout.flatten(self.mean)
        return flat if self.index is None else flat[self.index]

    def to(self, device: torch.device) -> Fitted:
        """Return this fit on another device."""
        prior = self.prior
        if isinstance(prior, StructuredPrior):
            moved = replace(prior, structure=prior.structure.to(device=device), mean=prior.mean.to(device))
        else:
            parts = {name: getattr(prior, name).to(device) for name in ("index", "precision", "mean")}
            moved = replace(prior, **parts)
        return replace(
            self,
            mean={name: tensor.to(device) for name, tensor in self.mean.items()},
            index=None if self.index is None else self.index.to(device),
            curvature=self.curvature.to(device=device),
            prior=moved,
        )


@comparing_once()
def fit(
    model: Model,
    loader: Iterable[Any],
    likelihood: Likelihood,
    structure: str,
    estimator: str | None,
    parameters: Any,
    prior: Prior | Posterior,
    *,
    temperature: float = 1.0,
    params: Mapping[str, Tensor] | None = None,
    mask_of: MaskOf | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Fitted:
    """Compute curvature, prior and fit of the data at the network's present weights.

    Cost: one pass over the data, in which every batch is read once and runs forward once; a `Subnetwork` that ranks
    its weights by data takes another one.

    Args:
        model: Module in evaluation mode, or a function.
        loader: Batches, `(x, y)`; without labels there is a posterior but no evidence.
        likelihood: p(y|f).
        structure: Structure of the curvature; a `Subnetwork` brings its own.
        estimator: How the network is differentiated; None decides by the number of outputs.
        parameters: "all", "last-layer", a `Subnetwork`, a pattern, a predicate, or names.
        prior: A prior to be bound to these parameters, or an earlier posterior.
        temperature: T, which matters to the ranking of a subnetwork's weights only.
        params: Parameter values, for a function.
        mask_of: Returns a batch's mask.
        progress: Show a bar.
        generator: Source of randomness for sketches and random subnetworks.
        options: Passed to `curvature.accumulate`.
    """
    refuse_training_mode(model)
    in_group = options.get("distributed", True) and group_is_up()
    sharded = is_sharded(model)
    if options.get("corrected") or (sharded and in_group):
        refuse_one_shot(loader, "corrected=True" if options.get("corrected") else "the fit of a sharded network")
    everything = parameters_of(model, params)
    select(everything, list(everything))  # refuses a model without any
    params = everything if sharded else params  # gathered once
    opened = OpenedLoader(loader, shared=in_group)
    x = read_batch(opened.first, next(iter(everything.values())).device, mask_of).x
    if options.get("kind") == "empirical-fisher" and likelihood.scalar_noise_precision is not None:
        raise UnsupportedOperationError(
            f"the empirical Fisher of {likelihood} grows with the square of its noise precision, so it cannot be tuned "
            "like the others; use kind='ggn' or 'fisher'."
        )
    if options.get("kind", "ggn") != "ggn":
        estimator = estimator or "exact"
    estimator = estimator or _default_estimator(model, x, likelihood, params)
    collector = Collector(likelihood)
    unit = likelihood.at_unit_noise()
    common: dict[str, Any] = {
        "params": params,
        "generator": generator,
        "progress": progress,
        "mask_of": mask_of,
        **options,
    }
    index: Tensor | None = None
    if isinstance(parameters, Subnetwork):
        structure = parameters.structure
        if isinstance(prior, Posterior):
            chosen, bound = _of_earlier_posterior(prior)
        else:
            if parameters.needs_data:
                refuse_one_shot(loader, f"Subnetwork(by={parameters.by!r}), which first ranks the weights,")
            ranking = {"estimator": estimator, "temperature": temperature, **common}
            chosen, bound = _chosen_weights(parameters, model, everything, opened, likelihood, prior, x, ranking)
        curvature = subcurvature(
            model, opened, unit, chosen, structure, estimator, observer=collector.observe, **common
        )
        layout, index = chosen.layout, chosen.index.to(curvature.device)
    else:
        of_last_layer = match_choice(parameters, ("last-layer",)) is not None
        names = last_layer(model, everything, x) if of_last_layer else list(select(everything, parameters))
        layout = Layout.of({name: everything[name] for name in names})
        bound = _as_prior(prior, layout, model, x, params)
        curvature = accumulate(
            model, opened, unit, structure, estimator, parameters=names, observer=collector.observe, **common
        )
    mean = {name: everything[name].detach().clone() for name in layout.names}
    return Fitted(layout, mean, index, curvature, bound, collector.statistics_of_all(in_group), structure, estimator)


def joined(before: Fitted, after: Fitted) -> Fitted:
    """Return the fit of both data sets together, with the prior of the earlier one.

    Raises:
        ModelMismatchError: They are about other parameters, other values of these, or other structures.
    """
    before.layout.require_same(after.layout)
    moved = [name for name, value in before.mean.items() if not torch.equal(value, after.mean[name].to(value.device))]
    if moved or before.structure != after.structure or before.estimator != after.estimator:
        what = f"the weights changed at {moved[:4]}" if moved else "structure or estimator differ"
        raise ModelMismatchError(
            f"{what}, so the curvatures of the two data sets do not add up; fit on all data, or pass the earlier "
            "posterior as prior=."
        )
    if (before.index is None) != (after.index is None) or (before.statistics is None) != (after.statistics is None):
        raise ModelMismatchError("one of the two fits is of a subnetwork, or has no labels; fit both alike.")
    statistics = after.statistics
    if before.statistics is not None and statistics is not None:
        statistics = before.statistics + statistics
    curvature = before.curvature + after.curvature.to(device=before.curvature.device, dtype=before.curvature.dtype)
    return replace(before, curvature=curvature, statistics=statistics)


def _default_estimator(model: Model, x: Any, likelihood: Likelihood, params: Mapping[str, Tensor] | None) -> str:
    """Return "exact" for few outputs, else "sketched"; found by planning, without a forward pass over the batch."""
    try:
        shape = plan(model, x, likelihood, "diagonal", "sketched", params=params).outputs
        outputs = torch.empty(shape, device="meta")
        columns = likelihood.resolve(outputs).root_shape(outputs).numel()
    except MarquisError:  # cannot be planned, or will be refused with a better message
        batch_size(x)
        function = NetworkFunction.copy_of(model, params=params)
        outputs = function.at_point(samples_of(x, 0, 1))
        columns = likelihood.resolve(outputs).root_shape(outputs).numel()
    return "exact" if columns <= FEW_OUTPUTS else "sketched"


def _chosen_weights(
    subnetwork: Subnetwork,
    model: Model,
    everything: Mapping[str, Tensor],
    loader: Iterable[Any],
    likelihood: Likelihood,
    prior: Prior,
    x: Any,
    options: Mapping[str, Any],
) -> tuple[Chosen, BoundPrior]:
    """Return the weights of a subnetwork and their prior."""
    candidates = Layout.of(select(everything))
    whole = prior.bind(candidates, model, x, params=options["params"])
    chosen = subnetwork.choose(model, candidates, loader=loader, likelihood=likelihood, prior=whole, **options)
    return chosen, whole.select(chosen.inside, chosen.among.to(whole.index.device))


def _as_prior(
    prior: Prior | Posterior, layout: Layout, model: Model, x: Any, params: Mapping[str, Tensor] | None
) -> BoundPrior | StructuredPrior:
    """Return the prior over these parameters, also from an earlier posterior."""
    if isinstance(prior, Prior):
        return prior.bind(layout, model, x, params=params)
    if prior.index is not None:
        raise UnsupportedOperationError(
            "the prior is the posterior of a subnetwork; pass parameters=Subnetwork(...) again, and the same weights "
            "are used."
        )
    layout.require_same(prior.layout)
    return StructuredPrior(layout, prior.precision, prior.vector)


def _of_earlier_posterior(prior: Posterior) -> tuple[Chosen, StructuredPrior]:
    """Return the weights of an earlier subnetwork, and its posterior as the prior."""
    if prior.index is None:
        raise UnsupportedOperationError(
            "the prior is a posterior over whole parameters, which a subnetwork cannot continue; use the same "
            "parameters= as before."
        )
    layout = prior.precision.layout
    chosen = Chosen(prior.layout, prior.index.cpu(), layout, prior.index.cpu())
    return chosen, StructuredPrior(layout, prior.precision, prior.restrict(prior.vector))


def require_same_likelihood(before: Likelihood, after: Likelihood) -> None:
    """Raise unless two likelihoods have the same curvature, but for one noise precision."""
    states = [likelihood.at_unit_noise().state_dict() for likelihood in (before, after)]
    if not same_tensors(*states):
        raise ModelMismatchError(f"continue_from was fitted with {before}, not {after}; use the same likelihood.")


def same_tensors(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two states have the same entries."""
    if first.keys() != second.keys():
        return False
    pairs = [(torch.as_tensor(a), torch.as_tensor(second[k])) for k, a in first.items() if not isinstance(a, str)]
    plain = all(a == second[key] for key, a in first.items() if isinstance(a, str))
    return plain and all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


def require_positive_definite(precision: Structure) -> None:
    """Refuse a precision from a true Hessian that is not positive definite (docs/method/curvature.md)."""
    is_diagonal = precision.kind == "diagonal"
    values = precision.diagonal() if is_diagonal else torch.linalg.eigvalsh(precision.to_dense())
    if float(values.min()) <= 0:
        raise NumericalError(
            f"the Hessian plus the prior is not positive definite (smallest eigenvalue {float(values.min()):.3g}): the "
            "weights are no minimum. Train on, raise the prior precision, or use kind='ggn'."
        )
