"""One pass over the data: which weights, their curvature, their prior, and how well the data are fitted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils import _pytree as pytree

from marquis.curvature.accumulate import accumulate
from marquis.curvature.call import Model, buffers_of, call, parameters_of, select, split_batch
from marquis.curvature.processes import group_is_up
from marquis.errors import DataError, UnsupportedOperationError
from marquis.evidence.problem import Collector, Statistics, unit_noise
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior
from marquis.predictive.function import plain_attention, refuse_training_mode
from marquis.priors import BoundPrior, Prior, StructuredPrior
from marquis.structures import Layout, Structure
from marquis.subnetwork import Chosen, Subnetwork, last_layer, subcurvature

FEW_OUTPUTS = 64
"""Up to this many columns at the output the curvature is exact by default; beyond, sketched."""

MaskOf = Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What one pass over the data leaves; a value that prior, noise and temperature are combined with later.

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

    @property
    def vector(self) -> Tensor:
        """The random weights as one vector `[K]`."""
        flat = self.layout.flatten(self.mean)
        return flat if self.index is None else flat[self.index]

    def to(self, device: torch.device) -> Fitted:
        """The same on another device."""
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


def fit(
    model: Model,
    loader: Iterable[Any],
    likelihood: Likelihood,
    structure: str,
    estimator: str | None,
    parameters: Any,
    prior: Prior | Posterior,
    *,
    params: Mapping[str, Tensor] | None = None,
    mask_of: MaskOf | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Fitted:
    """Curvature, prior and fit of the data at the network's present weights.

    Args:
        model: module in eval mode, or a function.
        loader: batches, `(x, y)`; without labels there is a posterior but no evidence.
        likelihood: p(y|f).
        structure: of the curvature; a `Subnetwork` brings its own.
        estimator: None decides by the number of outputs.
        parameters: "all", "last-layer", a `Subnetwork`, a pattern, a predicate, or names.
        prior: to be bound, or an earlier posterior.
        params: parameter values, for a function.
        mask_of: gives a batch's mask.
        progress: show a bar.
        generator: for sketches and random subnetworks.
        options: passed to `curvature.accumulate`.
    """
    refuse_training_mode(model)
    everything = parameters_of(model, params)
    first, loader = _peek(loader)
    x = _inputs(first, mask_of, next(iter(everything.values())).device)
    with torch.no_grad(), plain_attention():
        outputs = call(model, {n: p.detach() for n, p in everything.items()}, _copies(model), x)
    columns = likelihood.resolve(outputs).root_shape(outputs).numel()
    estimator = estimator or ("exact" if columns <= FEW_OUTPUTS else "sketched")
    curved = unit_noise(likelihood)
    watched = _Watched(loader, model, everything, likelihood, mask_of)

    if isinstance(parameters, Subnetwork):
        candidates = Layout.of(select(everything))
        if isinstance(prior, Posterior):
            chosen, bound = _as_before(prior)
        else:
            if parameters.needs_data and _is_one_shot(loader):
                raise DataError(
                    f"Subnetwork(by={parameters.by!r}) first passes over the data to rank the weights, but the loader "
                    "is a one-shot iterator; pass a list of batches or a DataLoader."
                )
            whole = prior.bind(candidates, model, x, params=params)
            ranking = {"estimator": estimator, "progress": progress, "mask_of": mask_of}
            chosen = parameters.choose(
                model,
                candidates,
                params=params,
                loader=loader,
                likelihood=likelihood,
                prior=whole,
                generator=generator,
                **(ranking if parameters.by == "variance" else {}),
            )
            bound = whole.select(chosen.inside, chosen.among.to(whole.index.device))
        structure = parameters.structure
        allowed = {key: value for key, value in options.items() if key in ("probes", "memory_limit")}
        if set(options) - set(allowed):
            raise UnsupportedOperationError(
                f"{sorted(set(options) - set(allowed))} are not supported for a subnetwork."
            )
        curvature = subcurvature(
            model,
            watched,
            curved,
            chosen,
            structure,
            estimator,
            params=params,
            generator=generator,
            progress=progress,
            mask_of=mask_of,
            **allowed,
        )
        layout, index = chosen.layout, chosen.index.to(curvature.device)
    else:
        names = last_layer(model, everything, x) if _is_last_layer(parameters) else list(select(everything, parameters))
        layout, index = Layout.of({name: everything[name] for name in names}), None
        bound = _as_prior(prior, layout, model, x, params)
        curvature = accumulate(
            model,
            watched,
            curved,
            structure,
            estimator,
            params=params,
            parameters=names,
            mask_of=mask_of,
            progress=progress,
            generator=generator,
            **options,
        )
    mean = {name: everything[name].detach().clone() for name in layout.names}
    return Fitted(layout, mean, index, curvature, bound, watched.statistics(), structure, estimator)


def _is_last_layer(parameters: Any) -> bool:
    return isinstance(parameters, str) and parameters == "last-layer"


def _as_prior(
    prior: Prior | Posterior, layout: Layout, model: Model, x: Any, params: Mapping[str, Tensor] | None
) -> BoundPrior | StructuredPrior:
    if isinstance(prior, Prior):
        return prior.bind(layout, model, x, params=params)
    if prior.index is not None:
        raise UnsupportedOperationError(
            "the prior is the posterior of a subnetwork; pass parameters=Subnetwork(...) again, and the same weights "
            "are used."
        )
    layout.require_same(prior.layout)
    return StructuredPrior(layout, prior.precision, prior.vector)


def _as_before(prior: Posterior) -> tuple[Chosen, StructuredPrior]:
    """The weights of an earlier subnetwork, and its posterior as the prior."""
    if prior.index is None:
        raise UnsupportedOperationError(
            "the prior is a posterior over whole parameters, which a subnetwork cannot continue; use the same "
            "parameters= as before."
        )
    inside = prior.precision.layout
    chosen = Chosen(prior.layout, prior.index.cpu(), inside, prior.index.cpu())
    return chosen, StructuredPrior(inside, prior.precision, prior.restrict(prior.vector))


class _Watched:
    """A loader that adds up the fit of the data as its batches pass by, so that one pass is enough."""

    def __init__(
        self,
        loader: Iterable[Any],
        model: Model,
        params: Mapping[str, Tensor],
        likelihood: Likelihood,
        mask_of: MaskOf | None,
    ) -> None:
        self._loader, self._model, self._mask_of = loader, model, mask_of
        self._params = {name: tensor.detach() for name, tensor in params.items()}
        self._collector = Collector(likelihood)
        self._labelled = True

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        device = next(iter(self._params.values())).device
        for batch in self._loader:
            mask = None if self._mask_of is None else self._mask_of(batch)
            x, y = split_batch(_without(batch, mask))
            if y is None:
                self._labelled = False
            if self._labelled:
                x, y, mask = pytree.tree_map_only(Tensor, lambda t: t.to(device), (x, y, mask))
                with torch.no_grad(), plain_attention():
                    self._collector.add(call(self._model, self._params, _copies(self._model), x), y, mask)
            yield batch

    def statistics(self) -> Statistics | None:
        """The fit of the data, over all processes; None if any batch had no labels."""
        if not self._labelled:
            return None
        own = self._collector.statistics()
        if not group_is_up():
            return own
        value = own.sse if own.sse is not None else own.log_likelihood
        assert value is not None
        numbers = torch.stack(
            [value.double(), value.new_tensor(own.n).double(), value.new_tensor(own.observed).double()]
        )
        dist.all_reduce(numbers)
        n, observed = int(numbers[1]), int(numbers[2])
        return (
            Statistics(n, observed, sse=numbers[0])
            if own.sse is not None
            else Statistics(n, observed, log_likelihood=numbers[0])
        )


def _copies(model: Model) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in buffers_of(model).items()}


def _without(batch: Any, mask: Tensor | None) -> Any:
    """The batch without the entry that is the mask."""
    if mask is None:
        return batch
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if value is not mask}
    return tuple(value for value in batch if value is not mask) if isinstance(batch, (tuple, list)) else batch


def _inputs(batch: Any, mask_of: MaskOf | None, device: torch.device) -> Any:
    x, _ = split_batch(_without(batch, None if mask_of is None else mask_of(batch)))
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), x)


def _is_one_shot(loader: Any) -> bool:
    return isinstance(loader, (Iterator, _Chained))


class _Chained:
    """A first batch and the rest of a one-shot iterator."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._first, self._rest = first, rest

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain([self._first], self._rest)


def _peek(loader: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first batch, and a loader that still yields it."""
    iterator = iter(loader)
    try:
        first = next(iterator)
    except StopIteration:
        raise DataError("the loader yields no batches; there is no curvature without data.") from None
    return first, _Chained(first, iterator) if isinstance(loader, Iterator) else loader
