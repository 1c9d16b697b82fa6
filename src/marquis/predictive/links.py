"""Turn Gaussian logits into class probabilities (docs/method/predictive.md#classification-links)."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.likelihoods import Bernoulli, Categorical, Likelihood, Predictive

LINKS = ("quadrature", "probit", "bridge", "mc")
"""How Gaussian logits become probabilities."""

ERRORS = {
    "probit": "probabilities are off by up to .1 to .4 on average where logits have variances from 1 on, and change "
    "with a variance that all logits share",
    "bridge": "probabilities are off by up to .1 to .8 on average, also for small variances, where the most probable "
    "class is often another one than the network's",
}
"""What is wrong with the published links for three or more classes (docs/experiments/links.md)."""


def check_link(link: str | None, likelihood: Likelihood | None) -> str | None:
    """Return the link as the package writes it; refuse one that is not known, or that the likelihood has no use for."""
    if link is None:
        return None
    link = choose("link", link, LINKS)
    if likelihood is None or likelihood.kind in ("gaussian", "heteroscedastic", "poisson", "negative-binomial"):
        raise UnsupportedOperationError(f"link={link!r} turns logits into probabilities; {likelihood} has none.")
    if link == "bridge" and not isinstance(likelihood, Categorical):
        raise UnsupportedOperationError(f"the Laplace bridge needs Categorical, not {likelihood}; leave link out.")
    if link in ERRORS and isinstance(likelihood, Categorical):
        warnings.warn(f"link={link!r}: {ERRORS[link]}. The default, 'quadrature', is within .017.", stacklevel=4)
    return link


def linked(
    likelihood: Likelihood | None, mean: Tensor, variance: Tensor, covariance: Tensor | None, link: str | None
) -> Predictive:
    """Return the prediction of the likelihood for Gaussian outputs, its probabilities by the link."""
    if likelihood is None:
        return Predictive(mean, variance)
    if link == "probit":
        return Predictive(mean, variance, None, probit(likelihood, mean, variance))
    if isinstance(likelihood, Categorical):
        if link == "bridge":
            each = covariance if covariance is not None and covariance.dim() == 3 else None
            return Predictive(mean, variance, None, bridge(likelihood, mean, variance, each))
        return likelihood.predictive(mean, variance, covariance)
    return likelihood.predictive(mean, variance)


def probit(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
    """Return `sigmoid` or `softmax` of `m / sqrt(1 + pi v / 8)` (MacKay 1992); drops correlations between logits."""
    probs = likelihood.predictive_at(mean * torch.rsqrt(1 + math.pi / 8 * variance)).probs
    assert probs is not None
    return probs


def bridge(likelihood: Categorical, mean: Tensor, variance: Tensor, covariance: Tensor | None = None) -> Tensor:
    """Return the probabilities of the Dirichlet that matches the logits' Gaussian (Hobbhahn et al. 2022).

    See docs/method/predictive.md.

    The logits are first conditioned on a zero sum, because a common shift means nothing; then
    `a_c = (1 - 2/C + e^{m_c} sum_k e^{-m_k} / C^2) / V_cc` and `p = a / sum a`.

    Args:
        likelihood: says where the classes are.
        mean: logits, shaped like the outputs.
        variance: marginal variances, same shape.
        covariance: `[B, C, C]` for outputs `[B, C]`; without it the logits count as independent.
    """
    dim = likelihood.dim % mean.dim()
    if covariance is not None and mean.dim() == 2:
        along, total = covariance.sum(-1), covariance.sum((-1, -2)).unsqueeze(-1)
    else:
        along, total = variance, variance.sum(dim, keepdim=True)
    tiny = torch.finfo(mean.dtype).tiny
    total = total.clamp(min=tiny)
    mean = mean - along * mean.sum(dim, keepdim=True) / total
    variance = (variance - along.square() / total).clamp(min=tiny)
    classes = mean.shape[dim]
    # In logarithms: e^m overflows long before the ratio does.
    spread = mean + torch.logsumexp(-mean, dim, keepdim=True) - 2 * math.log(classes)
    constant = torch.full_like(mean, 1 - 2 / classes).log()
    return (torch.logaddexp(spread, constant) - variance.log()).softmax(dim)


def point(likelihood: Likelihood | None, outputs: Tensor) -> Predictive:
    """Return the likelihood's predictive distribution for outputs without uncertainty, `[B, *rest]`."""
    if likelihood is None:
        return Predictive(outputs, torch.zeros_like(outputs))
    return likelihood.predictive_at(outputs)


def label_entropy(likelihood: Likelihood | None, probs: Tensor) -> Tensor:
    """Return the entropy of every label in nats, of probabilities shaped like the outputs."""
    if isinstance(likelihood, Categorical):
        return torch.special.entr(probs).sum(likelihood.dim)
    if isinstance(likelihood, Bernoulli):
        return torch.special.entr(probs) + torch.special.entr(1 - probs)
    raise UnsupportedOperationError(f"the entropy of labels is known for Categorical and Bernoulli, not {likelihood}.")
