"""Predict from a posterior, a network and inputs by the method that fits: `predict`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from marquis.arguments import AtLeastOne, checked
from marquis.choices import choose
from marquis.curvature.resume import digest_of
from marquis.distributed import (
    all_shares,
    exchange,
    fails_together,
    from_first_process,
    group_is_up,
    guarded,
    require_same,
)
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model
from marquis.functional.checks import check_inputs, naming_inputs
from marquis.functional.unwrap import plain_inputs
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import number_of_batches, read_batches
from marquis.posterior import Posterior
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.linearised import OutputMoments, average_probabilities, closed_form, differentiable_moments
from marquis.predictive.links import check_link, linked
from marquis.predictive.prediction import Prediction
from marquis.predictive.sampling import SampleSummary, WeightSamples, summarise_linearised, summarise_networks
from marquis.progress import ProgressBar
from marquis.randomness import new_generator
from marquis.structures import Spread

METHODS = ("linearised", "linearised-samples", "sampled")
"""How the posterior over weights becomes one over outputs."""


@checked
def predict(
    posterior: Posterior,
    model: Model,
    x: Any,
    likelihood: str | Likelihood | Any = None,
    method: str = "linearised",
    samples: AtLeastOne = 100,
    link: str | None = None,
    at: str | None = None,
    joint: bool = False,
    diagonal: bool | None = None,
    generator: torch.Generator | None = None,
    memory_limit: int | None = None,
    differentiable: bool = False,
) -> Prediction:
    """Predict with uncertainty (docs/method/predictive.md).

    | method | what | cost |
    | --- | --- | --- |
    | `linearised` | closed form `N(f, J A^-1 J^T)`; beyond 1024 outputs `linearised-samples` | O backward passes |
    | `linearised-samples` | `f + J (theta_s - theta*)` by JVP, outputs of any size | `samples` forward-mode passes |
    | `sampled` | networks `f(theta_s)`; off scale unless the posterior is narrow | `samples` forward passes |

    Args:
        posterior: Gaussian over (some of) the model's weights.
        model: a module in eval mode, or a function `(params, x) -> outputs`. Never changed.
        x: inputs with the batch as dimension 0.
        likelihood: p(y|f); None predicts outputs only.
        method: see the table.
        samples: number of weight samples, or of logit samples for link="mc".
        link: "quadrature" (default of the closed form: fixed nodes), "mc" (default of the samples), or the published
            "probit" and "bridge", which warn for classes, as they are far off.
        at: path of a module whose output is predicted instead, with mean and variance.
        joint: covariance over all inputs together, `[B O, B O]`.
        diagonal: True for variances only, never an O x O block; False to insist on covariances; None: up to 128
            outputs have them.
        generator: source of randomness.
        memory_limit: bytes for temporaries; default 256 MB.
        differentiable: keep the graph to `x`, so that mean, variance, covariance and samples have gradients. Only for
            method="linearised"; memory B x O x P.

    Raises:
        UnsupportedOperationError: model in training mode, unknown method or link, no such module.
        ModelMismatchError: the posterior is about other parameters.
        DataError: NaN or infinity in the inputs or outputs.
        MemoryBudgetError: a demanded covariance would not fit.
    """
    method = choose("method", method, METHODS)
    x = plain_inputs(x)
    check_inputs(x)
    if isinstance(posterior.precision, Spread):
        require_same("inputs", digest_of(x))
    function = PosteriorFunction(model, posterior, at)
    likelihood = None if likelihood is None or at is not None else as_likelihood(likelihood)
    link = check_link(link, likelihood)
    with naming_inputs(model, x, lambda: function.at_point(x)):
        if differentiable:
            if method != "linearised" or link == "mc":
                raise UnsupportedOperationError(
                    "differentiable=True is for the closed form: method='linearised', link None, 'probit' or 'bridge'."
                )
            moments, draw = differentiable_moments(function, x, joint=joint, limit=memory_limit)
            predictive = linked(likelihood, moments.mean, moments.variance, moments.covariance, link)
            return Prediction(*predictive, moments.covariance, "linearised (differentiable)", likelihood, draw)
        if method == "sampled":
            if joint or diagonal is False or link not in (None, "mc"):
                raise UnsupportedOperationError(
                    "method='sampled' averages over networks: it has no joint= or diagonal=False covariance and no "
                    "link; use method='linearised', or prediction.sample(n)."
                )
            runner = WeightSamples(function, x, False, memory_limit)
            summary = summarise_networks(runner, likelihood, samples, generator)
            how = f"sampled ({samples} networks)"
            return Prediction(*summary[:4], None, how, likelihood, runner.collect, summary.expected_entropy)
        runner = WeightSamples(function, x, True, memory_limit)
        if method == "linearised":
            moments = closed_form(function, x, joint=joint, diagonal=diagonal, limit=memory_limit)
            if moments is not None:
                return _from_moments(moments, likelihood, link, samples, runner, generator)
        elif joint or diagonal is False:
            raise UnsupportedOperationError("covariances are in closed form: use method='linearised', or sample(n).")
        return _from_samples(likelihood, link, samples, runner, generator)


def _from_moments(
    moments: OutputMoments,
    likelihood: Likelihood | None,
    link: str | None,
    samples: int,
    runner: WeightSamples,
    generator: torch.Generator | None,
) -> Prediction:
    """Return the prediction for Gaussian outputs with known moments."""
    predictive = linked(likelihood, moments.mean, moments.variance, moments.covariance, link)
    entropy = None
    if link == "mc" and likelihood is not None:
        if moments.can_draw:
            probs, entropy = average_probabilities(moments, likelihood, samples, generator, runner.limit)
        else:
            summary = summarise_linearised(runner, likelihood, samples, generator, probs=True)
            probs, entropy = summary.probs, summary.expected_entropy
        predictive = predictive._replace(probs=probs)
    draw_apart = moments.draw if moments.can_draw else None
    how = "linearised (closed form)"
    return Prediction(*predictive, moments.covariance, how, likelihood, runner.collect, entropy, draw_apart)


def _from_samples(
    likelihood: Likelihood | None,
    link: str | None,
    samples: int,
    runner: WeightSamples,
    generator: torch.Generator | None,
) -> Prediction:
    """Return the prediction for moments, and probabilities where there are classes, from linearised samples."""
    average = likelihood is not None and link in (None, "mc")
    summary: SampleSummary = summarise_linearised(runner, likelihood, samples, generator, probs=average)
    predictive = linked(likelihood, summary.mean, summary.variance, None, link)
    if average:
        predictive = predictive._replace(probs=summary.probs)
    how = f"linearised ({samples} samples)"
    return Prediction(*predictive, None, how, likelihood, runner.collect, summary.expected_entropy)


@fails_together
@checked
def predict_loader(
    posterior: Posterior,
    model: Model,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any = None,
    *,
    generator: torch.Generator | None = None,
    keep_inputs: bool = False,
    progress: bool = True,
    device: torch.device | str | None = None,
    distributed: bool = True,
    **options: Any,
) -> Prediction:
    """Predict for a loader, batch by batch, and return one `Prediction` for all of it.

    Weight samples are the same for every batch. Batches are inputs, or `(x, y)`, whose labels are ignored; with
    `keep_inputs` they are kept, so that `sample` works on the result, and with `device` they are moved there first.
    `progress` shows a bar. If a process group is up, each process's loader is its share, and with `distributed` all
    return the predictions of all shares, in the order of the ranks; the first process's random numbers count (where the
    posterior is spread over the processes, each of them predicts for all shares). The other arguments and options
    are those of `predict`; `joint` is refused.
    """
    if options.get("joint"):
        raise UnsupportedOperationError("joint=True is over the inputs of one batch; call predict on that batch.")
    in_group = distributed and group_is_up()
    if in_group and keep_inputs:
        raise UnsupportedOperationError(
            "keep_inputs=True keeps the batches of this process, not those of the others; pass distributed=False."
        )
    if generator is None:
        generator = new_generator()
    state = from_first_process(generator.get_state()) if in_group else generator.get_state()
    if in_group and isinstance(posterior.precision, Spread):  # every prediction is one of all processes
        loader, in_group = all_shares(loader), False
    parts: list[Prediction] = []
    with ProgressBar("predicting", number_of_batches(loader), progress) as bar:
        for x, _, _ in read_batches(guarded(loader) if in_group else loader, device):
            generator.set_state(state)
            part = predict(posterior, model, x, likelihood, generator=generator, **options)
            parts.append(part if keep_inputs else replace(part, _draw=None))
            bar.advance()
    if in_group:
        joined = Prediction.join(parts) if parts else None
        everyone = exchange(None if joined is None else replace(joined, _draw_apart=None))
        parts = [part for part in everyone if part is not None]
    if not parts:
        raise DataError("the loader is empty: there is nothing to predict.")
    return Prediction.join(parts, keep_draws=keep_inputs)
