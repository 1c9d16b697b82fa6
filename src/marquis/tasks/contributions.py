"""Compute which entries make a sample an outlier: contributions that add up to its score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked_arrays
from marquis.choices import choose
from marquis.errors import DataError, UnsupportedOperationError
from marquis.tasks.batches import Data, SameSeed, batches, naming_shape, require_method

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder

EXPLAINED = ("error", "nll", "output_variance", "output_std", "total_variance")
"""Scores that are sums over the entries of a sample, or can be written as one."""
NODES = 32
"""Of the Gauss-Legendre rule by which the likelihood's contributions are integrated."""


@checked_arrays
def contributions(
    model: UncertainAutoencoder,
    data: Data,
    samples: int = 100,
    *,
    score: str = "nll",
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 64,
    progress: bool = True,
) -> Tensor:
    """Compute what each entry adds to an outlier score; the sum over a sample's entries is its score of `ood.scores`.

    All scores but `nll` are sums over entries already. The likelihood of a mixture of networks is not: see
    `nll_contributions`. Missing entries (NaN) contribute 0 to `error` and `nll`. Cost: that of the score, and for `nll`
    memory of `samples` batches.

    Args:
        model: Anything with `reconstruct`; for `nll` a model of `marquis.autoencoders`.
        data: A tensor or array `[n, ...]`, or a loader.
        samples: How many networks; all data meet the same, those of `ood.scores` with the same generator.
        score: "nll", "error", "output_variance", "output_std" or "total_variance".
        generator: Source of the sampled networks.
        batch_size: How a tensor is cut.
        progress: Show a bar on a terminal.

    Returns:
        `[n, ...]`, of the shape of the data; positive where an entry makes its sample more of an outlier.
    """
    require_method(model, "reconstruct")
    score = choose("score", score, EXPLAINED, error=DataError)
    same, parts = SameSeed(model, generator), []
    for x in batches(model, data, batch_size, "contributions", progress):
        with naming_shape(model, x, "contributions"):
            if score == "nll":
                parts.append(nll_contributions(model, x, samples, same.generator()).cpu())
            else:
                result = model.reconstruct(x, samples, generator=same.generator())
                parts.append(entries_of(result, x)[score].cpu())
    return torch.cat(parts)


def entries_of(result: Any, x: Tensor) -> dict[str, Tensor]:
    """Return the scores that are sums over entries, entry by entry, from a `Reconstruction` of `x`.

    The networks' mean squared error is that of their mean plus their biased variance, so none of them is kept
    (docs/method/autoencoders.md). Around a mean that is known the variance is the mean square already.
    """
    known = getattr(result, "mean_known", False)
    spread = result.variance if known else result.variance * ((result.draws - 1) / result.draws)
    return {
        "error": torch.where(x.isnan(), 0, (result.mean - x).square() + spread),
        "output_variance": result.variance,
        "output_std": result.std,
        "total_variance": result.total_variance,
    }


@torch.no_grad()
def nll_contributions(model: Any, x: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Compute what each entry adds to `-log (1/S) Σ_s p(x | network s)`, the Aumann-Shapley value of observing it.

    With `l_sd` the log-likelihood of entry d under network s, every entry counts with the power t, from 0 to 1:
    `c_d = ∫₀¹ Σ_s w_s(t) (-l_sd) dt`, `w(t) = softmax(t Σ_d l_sd)`. The integrand summed over d is the derivative of
    `-log (1/S) Σ_s exp(t Σ_d l_sd)`, so the contributions add up to the score (docs/method/tasks.md). The integral is
    by Gauss-Legendre in `sqrt(t)`; what the rule misses is spread evenly over the observed entries. Cost: `samples`
    passes of the network; memory of `samples` copies of `x`.

    Args:
        model: Of `marquis.autoencoders`, with a likelihood that is a product over entries.
        x: One batch `[B, ...]`; NaN where entries are missing.
        samples: Number of networks.
        generator: As for `model.reconstruct`: the same one gives the same networks.

    Returns:
        `[B, ...]`; the sum over entries is `-model.reconstruct(x, samples, generator=...).log_prob`.

    Raises:
        UnsupportedOperationError: The model is another, or its likelihood couples entries.
    """
    from marquis.autoencoders.base import BaseAutoencoder  # here, because it loads Lightning

    if not isinstance(model, BaseAutoencoder):
        raise UnsupportedOperationError(
            f"contributions to the likelihood need a model of marquis.autoencoders, not {type(model).__name__}; use "
            "score='error'."
        )
    density = model.entry_log_probs(x, samples, generator=generator).flatten(2)  # [S, B, D]
    total = density.sum(2)
    nodes, weights = _quadrature(total)
    w = torch.softmax(nodes[:, None, None] * total, 1)  # [nodes, S, B]
    share = torch.einsum("q,qsb->sb", weights, w)
    parts = -torch.einsum("sb,sbd->bd", share, density)
    score = -(total.logsumexp(0) - torch.log(total.new_tensor(float(len(total)))))
    observed = (~x.isnan()).flatten(1)
    missed = (score - parts.sum(1)) / observed.sum(1).clamp_min(1)
    return (parts + torch.where(observed, missed[:, None], 0)).view_as(x)


def _quadrature(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [0, 1], dense at 0, where the weights of the networks change fastest."""
    import numpy as np

    root, weight = np.polynomial.legendre.leggauss(NODES)
    root = (root + 1) / 2
    return like.new_tensor(root**2), like.new_tensor(weight * root)  # dt = 2 u du, and leggauss integrates over [-1, 1]
