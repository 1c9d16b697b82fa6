"""From Gaussian logits to class probabilities: probit, Laplace bridge, averages (docs/method/predictive.md)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.likelihoods import Bernoulli, Categorical, Likelihood, Predictive

LINKS = ("probit", "bridge", "mc")
"""How Gaussian logits become probabilities."""


def check_link(link: str | None, likelihood: Likelihood | None) -> str | None:
    """Return the link as the package writes it; refuse one that is not known, or that the likelihood has no use for."""
    if link is None:
        return None
    link = choose("link", link, LINKS)
    if likelihood is None or likelihood.kind in ("gaussian", "heteroscedastic"):
        raise UnsupportedOperationError(f"link={link!r} turns logits into probabilities; {likelihood} has none.")
    if link == "bridge" and not isinstance(likelihood, Categorical):
        raise UnsupportedOperationError(f"the Laplace bridge needs Categorical, not {likelihood}; use link='probit'.")
    return link


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
    return likelihood.predictive(outputs, torch.zeros_like(outputs))


def label_entropy(likelihood: Likelihood | None, probs: Tensor) -> Tensor:
    """Return the entropy of every label in nats, of probabilities shaped like the outputs."""
    if isinstance(likelihood, Categorical):
        return torch.special.entr(probs).sum(likelihood.dim)
    if isinstance(likelihood, Bernoulli):
        return torch.special.entr(probs) + torch.special.entr(1 - probs)
    raise UnsupportedOperationError(f"the entropy of labels is known for Categorical and Bernoulli, not {likelihood}.")
