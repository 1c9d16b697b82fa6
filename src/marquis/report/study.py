"""Collect metrics, codes, examples and variances of a model for a report, in one pass over held-out data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked_methods
from marquis.autoencoders.predictions import Reconstruction
from marquis.errors import DataError
from marquis.likelihoods import Bernoulli
from marquis.report.examples import Examples
from marquis.report.figures import posterior_of, posterior_widths
from marquis.report.latent_map import LatentMap, latent_map
from marquis.tasks.batches import SameSeed, batches, require_method
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc

LEVEL = 0.9
HELD_OUT = "held-out data"
OUTPUT, CODE = "output variance", "code variance"


@checked_methods
@dataclass(frozen=True)
class Effort:
    """Set the size of what is computed for a report.

    Attributes:
        rows: Maximum number of held-out rows.
        samples: Posterior samples for reconstructions.
        edge: Grid points per axis of the map.
        map_samples: Posterior samples for the map.
        batch: Rows per batch.
    """

    rows: AtLeastOne = 2000
    samples: AtLeastOne = 50
    edge: AtLeastOne = 48
    map_samples: AtLeastOne = 30
    batch: AtLeastOne = 256

    @classmethod
    def sensible(cls, shape: Sequence[int]) -> Effort:
        """Choose the effort for data of this shape: less for large ones, so that a report takes seconds."""
        if not all(isinstance(size, int) for size in shape):
            raise DataError(f"shape is {shape!r}; whole numbers are needed.")
        return cls() if math.prod(shape) <= 1024 else cls(400, 20, 24, 10, 64)


@dataclass(frozen=True, eq=False)
class Study:
    """Hold the results of a model for a report.

    Attributes:
        numbers: Rows of the table of models.
        codes: Codes of the held-out data, `[n, K]`.
        map: The code in two dimensions.
        examples: Reconstructions of the data that are shown.
        variances: Per sample, by kind and data set.
        widths: Quantiles of the posterior's standard deviations by parameter; None without a posterior.
        samples: Number of posterior samples.
    """

    numbers: dict[str, float]
    codes: Tensor
    map: LatentMap
    examples: Examples
    variances: dict[str, dict[str, Tensor]]
    widths: dict[str, Tensor] | None
    samples: int


def study(
    model: Any,
    x: Tensor,
    shown: Tensor,
    *,
    out_of_distribution: Mapping[str, Tensor] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Study:
    """Reconstruct held-out and OOD data, map the codes, and summarise the posterior."""
    require_method(model, "reconstruct")
    require_method(model, "decode")
    effort = effort or Effort.sensible(x.shape[1:])
    same = SameSeed(model, torch.Generator().manual_seed(seed))
    seen = _Pass.over(model, x, effort, same, HELD_OUT)
    held_out = seen.variances()
    variances = {kind: {HELD_OUT: values} for kind, values in held_out.items()}
    numbers = seen.numbers()
    for name, other in (out_of_distribution or {}).items():
        if name == HELD_OUT or other.shape[1:] != x.shape[1:]:
            raise DataError(
                f"OOD data {name!r} have shape {list(other.shape[1:])} each, the held-out data "
                f"{list(x.shape[1:])}; they need another name and the same shape."
            )
        other_pass = _Pass.over(model, other, effort, same, name)
        for kind, values in other_pass.variances().items():
            variances[kind][name] = values
            separable = bool((held_out[kind] > 0).any())
            numbers[f"AUROC of {name} by {kind}"] = auroc(held_out[kind], values) if separable else math.nan
        numbers[f"AUROC of {name} by squared error"] = auroc(torch.cat(seen.error), torch.cat(other_pass.error))
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
        seen.samples,
    )


def _examples(model: Any, x: Tensor, effort: Effort, same: SameSeed) -> Examples:
    """Reconstruct a few samples; several calls equal one, as the sampled networks are the same for all data."""
    results: list[Reconstruction] = []
    for part in batches(model, x, effort.batch, "examples", progress=False):
        results.append(model.reconstruct(part, effort.samples, generator=same.generator()))
    several = results[0].draws > 1
    noise = None
    if results[0].noise_variance is not None:
        noise = torch.cat([result.noise_variance.expand_as(result.mean).cpu() for result in results])  # type: ignore[union-attr]
    return Examples(
        torch.cat([result.mean.cpu() for result in results]),
        torch.cat([result.variance.cpu() for result in results]) if several else None,
        noise,
    )


class _Pass:
    """Sum over batches; images themselves are not kept."""

    def __init__(self, model: Any) -> None:
        likelihood = getattr(model, "likelihood", None)
        self.has_intervals = not isinstance(likelihood, Bernoulli)  # of 0 or 1 there is no interval
        self.log_prob: list[Tensor] = []
        self.error: list[Tensor] = []
        self.output: list[Tensor] = []
        self.latent: list[Tensor] = []
        self.codes: list[Tensor] = []
        self.covered = self.entries = 0.0
        self.samples = 0

    @staticmethod
    def over(model: Any, x: Tensor, effort: Effort, same: SameSeed, what: str) -> _Pass:
        """Reconstruct the data and add them up."""
        sums = _Pass(model)
        for part in batches(model, x, effort.batch, what, progress=False):
            sums.add(part, model.reconstruct(part, effort.samples, generator=same.generator()))
        return sums

    def add(self, x: Tensor, result: Reconstruction) -> None:
        """Add one batch: its errors, variances, codes and examples."""
        if result.mean.shape != x.shape:
            raise DataError(f"the model reconstructs {list(x.shape)} as {list(result.mean.shape)}.")
        error = (result.mean - x).square()
        self.log_prob.append(result.log_prob.double().cpu())
        self.error.append(torch.where(x.isnan(), 0, error).flatten(1).double().sum(1).cpu())
        self.output.append(result.variance.flatten(1).double().mean(1).cpu())
        self.latent.append(result.latent.variance.flatten(1).double().mean(1).cpu())
        self.codes.append(result.latent.mean.flatten(1).double().cpu())
        entries = int((~x.isnan()).sum())
        if self.has_intervals and result.noise_variance is not None and entries:
            share = coverage(result.mean, result.total_variance.expand_as(result.mean), x, [LEVEL])
            self.covered, self.entries = self.covered + share[LEVEL] * entries, self.entries + entries
        self.samples = result.draws

    def variances(self) -> dict[str, Tensor]:
        """Return the variances of outputs and codes of all data."""
        return {OUTPUT: torch.cat(self.output), CODE: torch.cat(self.latent)}

    def numbers(self) -> dict[str, float]:
        """Return means over the data, in the order of the table."""
        return {
            "log-likelihood": float(torch.cat(self.log_prob).mean()),
            "squared error": float(torch.cat(self.error).mean()),
            f"{LEVEL:.0%} coverage": self.covered / self.entries if self.entries else math.nan,
            OUTPUT: float(torch.cat(self.output).mean()),
            CODE: float(torch.cat(self.latent).mean()),
        }
