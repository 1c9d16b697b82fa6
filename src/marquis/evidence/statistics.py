"""Measure how well the data are fitted at the weights, in the few numbers that the evidence needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.distributed import exchange, group_is_up
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.functional.function import NetworkFunction
from marquis.likelihoods import Likelihood
from marquis.loaders import Batch, MaskOf, read_batches


@checked_methods
@dataclass(frozen=True)
class Statistics:
    """Hold how well the data are fitted.

    Attributes:
        n: Number of data.
        observed: Number of observed scalar labels, `N * O` where none is missing.
        sse: Sum of squared errors, where the likelihood is Gaussian with one noise precision; the log likelihood at
            any noise then follows.
        log_likelihood: Sum of `log p(y|f)` for every other likelihood.
    """

    n: int
    observed: int
    sse: Tensor | None = None
    log_likelihood: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a fit."""
        if (self.sse is None) == (self.log_likelihood is None):
            raise DataError("Statistics hold either sse (Gaussian with one noise precision) or log_likelihood.")
        value = self.sse if self.sse is not None else self.log_likelihood
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise DataError("the fit of the data is NaN or infinite; check the labels, or whether training diverged.")

    def __add__(self, other: Statistics) -> Statistics:
        """Return the statistics of both data sets."""
        sums = {name: getattr(self, name) for name in ("sse", "log_likelihood")}
        sums = {name: None if value is None else value + getattr(other, name) for name, value in sums.items()}
        return Statistics(self.n + other.n, self.observed + other.observed, **sums)

    @staticmethod
    def gather(
        model: Model,
        loader: Iterable[Any],
        likelihood: Likelihood,
        *,
        params: Mapping[str, Tensor] | None = None,
        mask_of: MaskOf | None = None,
    ) -> Statistics:
        """Compute the statistics in one pass over labelled data. Cost: one forward pass; sums are kept in float64."""
        network = NetworkFunction.copy_of(model, params=params)
        collector = Collector(likelihood)
        with torch.no_grad():
            for batch in read_batches(loader, network.device, mask_of, labels_for="the evidence"):
                collector.add(network(network.point, batch.x), batch.y, batch.mask)
        return collector.statistics()


class Collector:
    """Add up `Statistics` batch by batch from outputs and labels.

    Attributes:
        labelled: Whether all batches so far had labels.
    """

    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood = likelihood
        self._squared = likelihood.scalar_noise_precision is not None
        self._n = self._observed = 0
        self._total: Tensor | None = None
        self.labelled = True

    def observe(self, outputs: Tensor, batch: Batch) -> None:
        """Add one batch if it has labels; the observer of `curvature.accumulate`."""
        if batch.y is None:
            self.labelled = False
        elif self.labelled:
            self.add(outputs, batch.y, batch.mask)

    def add(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        """Add one batch of outputs and its labels."""
        self._likelihood.validate(f, y, mask)
        if self._squared:
            error = y.to(f.dtype) - f
            if mask is not None:  # not a product: labels under a 0 may be NaN
                error = torch.where(mask.bool().expand_as(error), error, torch.zeros_like(error))
            value = error.double().square().sum()
        else:
            value = self._likelihood.log_prob(f, y, mask).double().sum()
        self._total = value if self._total is None else self._total + value
        self._n += f.shape[0]
        self._observed += int(self._likelihood.observed(y, mask).sum())

    def statistics(self) -> Statistics:
        """Return what was added up in this process."""
        if self._total is None:
            raise DataError("the loader yields no batches; there is no evidence without data.")
        return self._as_statistics(self._n, self._observed, self._total)

    def statistics_of_all(self, distributed: bool = True) -> Statistics | None:
        """Return the sum over all processes, which all have to call this; None if any batch had no labels."""
        if not (distributed and group_is_up()):
            return self.statistics() if self.labelled else None
        total = 0.0 if self._total is None else float(self._total)
        shares = exchange((self._n, self._observed, total, self.labelled))
        if not all(labelled for *_, labelled in shares):
            return None
        n, observed, total = (sum(share[i] for share in shares) for i in range(3))
        return self._as_statistics(int(n), int(observed), torch.tensor(total, dtype=torch.float64))

    def _as_statistics(self, n: int, observed: int, total: Tensor) -> Statistics:
        """Return sums as `Statistics` of the likelihood's kind."""
        return Statistics(n, observed, **{"sse" if self._squared else "log_likelihood": total})
