"""What a report wants to know about a model, in one pass over held-out data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.estimate import Reconstruction
from marquis.errors import DataError
from marquis.likelihoods import Bernoulli
from marquis.report.examples import Examples
from marquis.report.latent_map import LatentMap, latent_map
from marquis.report.widths import posterior_of, posterior_widths
from marquis.tasks.batches import SameSeed, batches, require
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc

LEVEL = 0.9
INSIDE = "held-out data"
OUTPUT, CODE = "output variance", "code variance"


@dataclass(frozen=True)
class Effort:
    """How much is computed.

    Attributes:
        rows: Held-out data at most.
        samples: Draws of the model for reconstructions.
        edge: Grid points per axis of the map.
        map_samples: Draws of the model for the map.
        batch: Data at once.
    """

    rows: int = 2000
    samples: int = 50
    edge: int = 48
    map_samples: int = 30
    batch: int = 256

    @classmethod
    def sensible(cls, shape: Sequence[int]) -> Effort:
        """For data of this shape: less for large ones, so that a report takes seconds and not the training's time."""
        return cls() if math.prod(shape) <= 1024 else cls(400, 20, 24, 10, 64)


@dataclass(frozen=True, eq=False)
class Study:
    """What was found.

    Attributes:
        numbers: For the table of models.
        codes: Of the held-out data, `[n, K]`.
        map: The code in two dimensions.
        examples: Reconstructions of the data that are shown.
        variances: Per datum, by kind and data set.
        widths: Quantiles of the posterior's standard deviations by parameter; None without a posterior.
        draws: How many draws of the model were averaged.
    """

    numbers: dict[str, float]
    codes: Tensor
    map: LatentMap
    examples: Examples
    variances: dict[str, dict[str, Tensor]]
    widths: dict[str, Tensor] | None
    draws: int


def study(
    model: Any,
    x: Tensor,
    shown: Tensor,
    *,
    outside: Mapping[str, Tensor] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Study:
    """Reconstruct held-out data and data from elsewhere, map the code, and look at the posterior.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        x: Held-out data `[n, ...]`.
        shown: Which of them are shown as examples.
        outside: Data from elsewhere, by name.
        effort: How much is computed; by default what is sensible for the data's size.
        seed: Of the draws.
    """
    require(model, "reconstruct")
    require(model, "decode")
    effort = effort or Effort.sensible(x.shape[1:])
    same = SameSeed(model, torch.Generator().manual_seed(seed))
    seen = _Pass(model)
    for part in batches(model, x, effort.batch, INSIDE, progress=False):
        seen.add(part, model.reconstruct(part, effort.samples, generator=same.generator()))
    inside = seen.variances()
    variances = {kind: {INSIDE: values} for kind, values in inside.items()}
    numbers = seen.numbers()
    for name, other in (outside or {}).items():
        if name == INSIDE or other.shape[1:] != x.shape[1:]:
            raise DataError(
                f"data from elsewhere, {name!r}, have shape {list(other.shape[1:])} each, the held-out data "
                f"{list(x.shape[1:])}; they need a name of their own and the same shape."
            )
        foreign = _Pass(model)
        for part in batches(model, other, effort.batch, name, progress=False):
            foreign.add(part, model.reconstruct(part, effort.samples, generator=same.generator()))
        for kind, values in foreign.variances().items():
            variances[kind][name] = values
            separable = bool((inside[kind] > 0).any())
            numbers[f"AUROC of {name} by {kind}"] = auroc(inside[kind], values) if separable else math.nan
        numbers[f"AUROC of {name} by squared error"] = auroc(torch.cat(seen.error), torch.cat(foreign.error))
    temperature = getattr(model, "effective_temperature", None)
    if isinstance(temperature, float):
        numbers["effective temperature"] = temperature
    posterior = posterior_of(model)
    codes = torch.cat(seen.codes)
    generator = torch.Generator().manual_seed(seed)
    return Study(
        numbers,
        codes,
        latent_map(model, codes, edge=effort.edge, samples=effort.map_samples, generator=generator),
        _examples(model, x[shown], effort, same),
        variances,
        None if posterior is None else posterior_widths(posterior),
        seen.draws,
    )


def _examples(model: Any, x: Tensor, effort: Effort, same: SameSeed) -> Examples:
    """Reconstructions of a few data; several calls are as good as one, for all data meet the same draws."""
    found: list[Reconstruction] = []
    for part in batches(model, x, effort.batch, "examples", progress=False):
        found.append(model.reconstruct(part, effort.samples, generator=same.generator()))
    several = found[0].draws > 1
    noise = None
    if found[0].noise_variance is not None:
        noise = torch.cat([said.noise_variance.expand_as(said.mean).cpu() for said in found])  # type: ignore[union-attr]
    return Examples(
        torch.cat([said.mean.cpu() for said in found]),
        torch.cat([said.variance.cpu() for said in found]) if several else None,
        noise,
    )


class _Pass:
    """Sums over batches; images themselves are not kept."""

    def __init__(self, model: Any) -> None:
        likelihood = getattr(model, "likelihood", None)
        self.has_intervals = not isinstance(likelihood, Bernoulli)  # of 0 or 1 there is no interval
        self.log_prob: list[Tensor] = []
        self.error: list[Tensor] = []
        self.output: list[Tensor] = []
        self.latent: list[Tensor] = []
        self.codes: list[Tensor] = []
        self.held = self.entries = 0.0
        self.draws = 0

    def add(self, x: Tensor, said: Reconstruction) -> None:
        if said.mean.shape != x.shape:
            raise DataError(f"the model reconstructs {list(x.shape)} as {list(said.mean.shape)}.")
        away = (said.mean - x).square()
        self.log_prob.append(said.log_prob.double().cpu())
        self.error.append(torch.where(x.isnan(), 0, away).flatten(1).double().sum(1).cpu())
        self.output.append(said.variance.flatten(1).double().mean(1).cpu())
        self.latent.append(said.latent.variance.flatten(1).double().mean(1).cpu())
        self.codes.append(said.latent.mean.flatten(1).double().cpu())
        entries = int((~x.isnan()).sum())
        if self.has_intervals and said.noise_variance is not None and entries:
            found = coverage(said.mean, said.total_variance.expand_as(said.mean), x, [LEVEL])
            self.held, self.entries = self.held + found[LEVEL] * entries, self.entries + entries
        self.draws = said.draws

    def variances(self) -> dict[str, Tensor]:
        return {OUTPUT: torch.cat(self.output), CODE: torch.cat(self.latent)}

    def numbers(self) -> dict[str, float]:
        """Means over the data, in the order of the table."""
        return {
            "log p": float(torch.cat(self.log_prob).mean()),
            "squared error": float(torch.cat(self.error).mean()),
            f"{LEVEL:.0%} coverage": self.held / self.entries if self.entries else math.nan,
            OUTPUT: float(torch.cat(self.output).mean()),
            CODE: float(torch.cat(self.latent).mean()),
        }
