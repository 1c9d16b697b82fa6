"""Choose the single weights that matter most (docs/method/curvature.md#last-layer-and-subnetworks).

A subnetwork is an index set inside the parameters. Its posterior is the full one *conditioned* on the other weights
staying where they are: the sub-block of the precision, not of the covariance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.choices import choose as read_choice
from marquis.choices import match_choice
from marquis.curvature.accumulate import accumulate
from marquis.errors import DataError
from marquis.functional.call import Model, buffers_of, call
from marquis.functional.selection import parameters_of, select
from marquis.likelihoods import Likelihood
from marquis.priors import BoundPrior
from marquis.structures import Layout
from marquis.subnetwork.swag import swag_variance

SCORES = ("variance", "swag", "magnitude", "random")
"""Ways of ranking weights."""

STRUCTURES = ("full", "diagonal", "lowrank", "block")
"""Structures that an index set can have."""

AT_PRIOR, MOST = 0.05, 0.9
"""A weight is at the prior if the data narrow its variance by less than this share; from how many on to warn."""


Function = Callable[[dict[str, Tensor], Any], Tensor]


@checked_methods
@dataclass(frozen=True, eq=False)
class Subnetwork:
    """Choose the `size` weights that matter most, as an index set inside the parameters.

    With a diagonal posterior, keeping the weights of largest marginal variance minimises the squared 2-Wasserstein
    distance to it (Daxberger et al. 2021). Ties go to the lowest index.

    Warning:
        That distance is between weights, not between predictions. Under the diagonal *Laplace* posterior the variance
        `1 / (H_pp + prior)` is largest where the curvature is least, so by="variance" takes the weights that the
        outputs depend on least: units that are dead or saturated. In a trained network most weights sit at the prior,
        and the subnetwork may have next to no predictive variance; a warning says so. The iterates of SGD do the
        opposite, since such weights get no gradient: on the 2701-weight networks of the experiment `toy-regression`
        the ranks of the two variances correlate by -0.65 (tanh) and -0.74 (ReLU), and 3 % of the weights keep 95 % and
        46 % of the standard deviation between the data by="swag", 74 % and 44 % by="magnitude", 0 % by="variance".

    Args:
        size: how many weights, or a share between 0 and 1; None with names.
        by: "magnitude" (the default: in the worse of the two networks above it keeps nearly as much as "swag", and
            costs nothing), "swag" (of the iterates of further training on a copy of the network), "variance" (of the
            diagonal Laplace posterior, one more pass over the data), "random", a name pattern or names (all weights
            of these parameters), or a tensor of scores, one per weight.
        structure: of the posterior inside: "full", "diagonal", "lowrank" or "block".
        swag: for by="swag": `epochs`, `lr`, `momentum`, `weight_decay` (by default 40, 0.01, 0.9, 3e-4).
    """

    size: int | float | None = None
    by: str | Iterable[str] | Tensor = "magnitude"
    structure: str = "full"
    swag: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        hint = "A subnetwork is an index set of single weights, which has no Kronecker form."
        object.__setattr__(self, "structure", read_choice("structure", self.structure, STRUCTURES, hint=hint))
        if isinstance(self.by, str):
            object.__setattr__(self, "by", match_choice(self.by, SCORES) or self.by)
        ranked = isinstance(self.by, Tensor) or (isinstance(self.by, str) and self.by in SCORES)
        if ranked and self.size is None:
            raise DataError(f"Subnetwork(by={self.by!r}) needs a size: a number of weights, or a share of them.")
        if not ranked and self.size is not None:
            raise DataError(f"Subnetwork(by={self.by!r}) takes all weights of these parameters; leave out size.")
        if self.size is not None and not self.size > 0:
            raise DataError(f"Subnetwork(size={self.size}): at least one weight is needed.")

    @property
    def needs_data(self) -> bool:
        """Return whether ranking the weights takes passes over the data."""
        return isinstance(self.by, str) and self.by in ("variance", "swag")

    def choose(
        self,
        model: Model,
        layout: Layout,
        *,
        params: Mapping[str, Tensor] | None = None,
        loader: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
        prior: BoundPrior | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        **options: Any,
    ) -> Chosen:
        """Rank the weights and keep the best.

        Args:
            model: the trained network.
            layout: the parameters to choose from.
            params: parameter values, for a model that is a function.
            loader: data, for "variance" and "swag".
            likelihood: p(y|f), for the same.
            prior: over `layout`, for "variance".
            generator: for "random", and for the dropout of "swag".
            temperature: T, for "variance".
            options: passed to `accumulate` for "variance".
        """
        tensors = parameters_of(model, params)
        weights = {name: tensors[name] for name in layout.names}
        names = list(layout.names)
        if self.needs_data and (loader is None or likelihood is None or (self.by == "variance" and prior is None)):
            raise DataError(f"Subnetwork(by={self.by!r}) needs data and a likelihood, and by='variance' a prior.")
        if isinstance(self.by, Tensor):
            layout.check_length(self.by, "subnetwork scores")
            scores = self.by.detach()
        elif self.by == "magnitude":
            scores = layout.flatten(weights).detach().abs()
        elif self.by == "random":
            scores = torch.rand(layout.total, generator=generator, dtype=torch.float64)
        elif self.by == "swag":
            assert loader is not None and likelihood is not None
            scores = layout.flatten(
                swag_variance(model, loader, likelihood, names, generator=generator, **(self.swag or {}))
            )
        elif self.by == "variance":
            assert loader is not None and likelihood is not None and prior is not None
            curvature = accumulate(
                model, loader, likelihood, "diagonal", params=params, parameters=names, generator=generator, **options
            )
            scores = prior.add_to(curvature / temperature).inverse_diagonal()
        else:
            places = [torch.arange(layout.total)[layout.slice(name)] for name in select(weights, self.by)]
            return Chosen.of(layout, torch.cat(places))
        layout.check_finite(scores, "subnetwork scores")
        assert self.size is not None
        if not math.isfinite(self.size):
            raise DataError(f"Subnetwork(size={self.size}): a number of weights, or a share of them.")
        count = round(self.size * layout.total) if isinstance(self.size, float) and self.size < 1 else int(self.size)
        if not 1 <= count <= layout.total:
            raise DataError(f"Subnetwork(size={self.size}) of {layout.total} weights: that is {count} of them.")
        chosen = torch.sort(scores, descending=True, stable=True).indices[:count]
        if self.by == "variance" and prior is not None and count < layout.total:
            _warn_if_undetermined(scores[chosen] * prior.vector()[chosen].to(scores))
        return Chosen.of(layout, chosen.sort().values)


def _warn_if_undetermined(ratio: Tensor) -> None:
    """Warn if nearly all chosen weights are determined by the prior; `ratio` is posterior over prior variance `[K]`."""
    share = float((ratio > 1 - AT_PRIOR).double().mean())
    if share >= MOST:
        warnings.warn(
            f"{share:.0%} of the weights that Subnetwork(by='variance') chose are determined by the data to less than "
            f"{AT_PRIOR:.0%}: their variance is the prior's because the outputs hardly depend on them, so predictions "
            "will show next to no uncertainty. Rank by='swag' or by='magnitude' instead.",
            UserWarning,
            stacklevel=6,  # the caller of Laplace.fit
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """Hold single weights: the parameters that hold any of them, and where.

    Attributes:
        layout: parameters with at least one chosen weight.
        index: positions of the chosen weights in the flat vector of `layout`, ascending.
        inside: the layout of the chosen weights alone: the same names, flat.
        among: their positions in the layout that was chosen from.
    """

    layout: Layout
    index: Tensor
    inside: Layout
    among: Tensor

    @staticmethod
    def of(layout: Layout, among: Tensor) -> Chosen:
        """Return the weights at ascending positions in the flat vector of a layout."""
        among = among.cpu()
        counts = {name: 0 for name in layout.names}
        local: list[Tensor] = []
        start = 0
        for name in layout.names:
            place = layout.slice(name)
            positions = among[(among >= place.start) & (among < place.stop)] - place.start
            counts[name] = len(positions)
            if len(positions):
                local.append(positions + start)
                start += layout.sizes[name]
        held = [name for name, count in counts.items() if count]
        return Chosen(layout.select(held), torch.cat(local), Layout({name: (counts[name],) for name in held}), among)


def function_of_chosen(
    model: Model, params: Mapping[str, Tensor] | None, mean: Mapping[str, Tensor], index: Tensor, inside: Layout
) -> tuple[Function, dict[str, Tensor]]:
    """Return `(chosen, x) -> outputs` with all other weights at the mean, and the chosen weights' values."""
    layout = Layout.of(dict(mean))
    whole = layout.flatten(dict(mean))
    others = {name: value.detach() for name, value in parameters_of(model, params).items() if name not in mean}

    def function(chosen: dict[str, Tensor], x: Any) -> Tensor:
        weights = whole.index_copy(0, index, inside.flatten(chosen))
        return call(model, {**others, **layout.unflatten(weights)}, buffers_of(model), x)

    return function, inside.unflatten(whole[index])
