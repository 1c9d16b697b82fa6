"""Train with evidence: weight decay and noise are learnt while the network trains, without validation data."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, checked
from marquis.choices import choose
from marquis.curvature import accumulate
from marquis.distributed import exchange, fails_together, group_is_up, sum_tensor, this_or_first
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.evidence.gradient import LogPrecisions, maximise
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.statistics import Collector
from marquis.evidence.tuning_result import TuningStep, finish
from marquis.functional.call import run as run_module
from marquis.functional.checks import batch_size, naming_inputs, require_derivative
from marquis.functional.replica import refuse_torchscript
from marquis.functional.selection import parameters_of, select
from marquis.functional.unwrap import independent_copy
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import Batch, MaskOf, read_batches, refuse_one_shot
from marquis.priors import BoundPrior, Prior
from marquis.progress import ProgressBar
from marquis.structures import Layout

UPDATES = ("gradient", "mackay")


@dataclass(frozen=True, eq=False)
class Epoch:
    """Hold one epoch: mean loss per sample while training, and the values after it.

    Attributes:
        number: counted from 1.
        loss: negative log joint per sample, averaged over the epoch.
        log_evidence: after the update of the precisions; None where there was none.
        precision: prior precision per group in force after the epoch.
        noise_precision: noise precision of a Gaussian with one noise precision, else None.
    """

    number: int
    loss: float
    log_evidence: float | None
    precision: Tensor
    noise_precision: float | None


@dataclass(frozen=True, eq=False)
class EvidenceTraining:
    """Hold the outcome of `train`.

    Attributes:
        model: a trained copy of the network, in evaluation mode, at the epoch of the largest evidence.
        prior: its prior.
        likelihood: its likelihood, with the learnt noise.
        log_evidence: at that epoch; None if no update took place.
        epoch: number of that epoch.
        updates: number of updates of the precisions.
        history: every epoch.
        report: a table.
    """

    model: nn.Module
    prior: BoundPrior
    likelihood: Likelihood
    log_evidence: float | None
    epoch: int
    updates: int
    history: tuple[Epoch, ...]
    report: str

    def __str__(self) -> str:
        """Return the table."""
        return self.report


def number_of_updates(epochs: int, burn_in: int, every: int) -> int:
    """Return how many of the epochs 1 to `epochs` are at least `burn_in` and multiples of `every`.

    See docs/method/evidence.md#training-with-evidence.
    """
    return max(epochs // every - (max(burn_in, 1) - 1) // every, 0)


@fails_together
@checked
def train(
    model: nn.Module,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any,
    *,
    prior: Prior | None = None,
    structure: str = "kronecker",
    estimator: str = "exact",
    epochs: AtLeastOne = 300,
    burn_in: int = 0,
    every: AtLeastOne = 1,
    update: str = "gradient",
    hyper_steps: AtLeastOne = 10,
    hyper_learning_rate: float = 0.1,
    noise: bool = True,
    temperature: float = 1.0,
    learning_rate: float = 1e-3,
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
    curvature_loader: Iterable[Any] | None = None,
    mask_of: MaskOf | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> EvidenceTraining:
    """Train to the mode of the posterior while the evidence chooses prior precisions and noise.

    See docs/method/evidence.md#training-with-evidence.

    Minimises `1/N [sum_n l(y_n, f(x_n)) / T + 1/2 (theta-mu0)^T Delta (theta-mu0)]` by mini-batches. After every epoch
    that is at least `burn_in` and a multiple of `every`, the curvature is computed anew and the precisions are updated.
    The network of the largest evidence is returned. Immer et al. (2021); MacKay (1992).
    In a `torch.distributed` group each process's loader is its share: the k-th batches of all processes are one batch,
    gradients and curvature are summed, and all processes return the same network. Shares may be uneven or empty.
    Cost: that of training, and one curvature pass per update.

    Args:
        model: starting point; it is copied and not changed.
        loader: labelled data; shuffling is welcome.
        likelihood: a name or an object.
        prior: by default one precision per layer, starting at 1.
        structure: structure of the curvature.
        estimator: estimator of the curvature.
        epochs: number of epochs.
        burn_in: first epoch with an update.
        every: epochs between updates.
        update: `"gradient"`: `hyper_steps` of Adam on the logarithms, its moments kept from update to update;
            `"mackay"`: all the way to the maximum at the present weights.
        hyper_steps: number of steps of Adam per update.
        hyper_learning_rate: learning rate of that Adam.
        noise: whether the noise precision of a Gaussian is learnt.
        temperature: T.
        learning_rate: learning rate of the default optimiser, Adam.
        optimiser: makes another one from the list of parameters; it must not decay weights itself.
        schedule: makes a learning-rate schedule from the optimiser, stepped once per epoch.
        curvature_loader: data for the evidence, if not `loader` (one without augmentation, with larger batches); it
            has to hold the same number of data.
        mask_of: gives a batch's mask.
        generator: source of the random columns of the estimator "sketched".
        progress: show a bar.

    Raises:
        NumericalError: the loss is no longer finite.
    """
    update = choose("update", update, UPDATES)
    refuse_one_shot(loader, "training")
    refuse_torchscript(model)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if normalised:
        warnings.warn(
            "the network has BatchNorm: the scale of the weights before it is free, so their precision may drift; "
            "Prior(groups='normalised') keeps them apart, and tune(method='adapted') after training is the safer way.",
            UserWarning,
            stacklevel=2,
        )
    network = independent_copy(model)
    if group_is_up() and normalised:
        raise UnsupportedOperationError(
            "the network has BatchNorm, whose batch statistics would differ between processes; train in one process."
        )
    chosen = {name: p for name, p in select(parameters_of(network)).items() if isinstance(p, nn.Parameter)}
    weights = list(chosen.values())
    steps = torch.optim.Adam(weights, lr=learning_rate) if optimiser is None else optimiser(weights)
    if any(group.get("weight_decay", 0) for group in steps.param_groups):
        raise UnsupportedOperationError("the optimiser decays weights, but so does the prior; set weight_decay=0.")
    rate = None if schedule is None else schedule(steps)
    n, x = _count(loader, weights[0].device, mask_of)
    layout = Layout.of(chosen)
    bound = (prior or Prior(groups="layer")).bind(layout, network.eval(), x, like=weights[0].detach())
    run = _Run(network, chosen, layout, bound, as_likelihood(likelihood), n, temperature, mask_of)
    data = loader if curvature_loader is None else curvature_loader
    logs: LogPrecisions | None = None
    history: list[Epoch] = []
    best: _Checkpoint | None = None
    with ProgressBar("training with evidence", epochs, progress) as bar:
        for number in range(1, epochs + 1):
            loss = run.epoch(loader, steps, number)
            if rate is not None:
                rate.step()
            value = None
            if number >= burn_in and number % every == 0:
                problem = run.problem(data, structure, estimator, generator)
                if update == "mackay":
                    problem = maximise(problem, noise=noise).problem
                else:
                    logs = logs or LogPrecisions(problem, noise=noise, learning_rate=hyper_learning_rate)
                    problem = logs.ascended(problem, hyper_steps)
                run.prior, run.likelihood = problem.grouped_prior, problem.likelihood
                value = float(log_evidence(problem))
                if best is None or value > best.log_evidence:
                    best = _Checkpoint(value, number, copy.deepcopy(network.state_dict()), problem)
            beta = run.likelihood.scalar_noise_precision
            history.append(
                Epoch(number, loss, value, run.prior.precision.detach().clone(), None if beta is None else float(beta))
            )
            bar.advance()
    return _restored(run, best, bound, as_likelihood(likelihood), history)


@dataclass(frozen=True, eq=False)
class _Checkpoint:
    """Hold the network and the precisions at one update."""

    log_evidence: float
    epoch: int
    state: dict[str, Any]
    problem: EvidenceProblem


@dataclass(eq=False)
class _Run:
    """Train a copy of the network with the prior and the likelihood in force."""

    network: nn.Module
    chosen: dict[str, nn.Parameter]
    layout: Layout
    prior: BoundPrior
    likelihood: Likelihood
    n: int
    temperature: float
    mask_of: MaskOf | None

    def epoch(self, loader: Iterable[Any], optimiser: torch.optim.Optimizer, number: int) -> float:
        """Train for one epoch, and return the mean loss per sample."""
        self.network.train()
        total, samples = 0.0, 0
        batches = read_batches(loader, self.prior.mean.device, self.mask_of, labels_for="the evidence")
        while True:
            optimiser.zero_grad()
            data, count = self._add_gradient(batches)
            if count == 0:
                return total / samples
            penalty = 0.5 * self.prior.quadratic(self.layout.flatten(self.chosen)) / self.n
            penalty.backward()
            loss = data + float(penalty.detach())
            if not math.isfinite(loss):
                raise NumericalError(f"the loss is {loss} in epoch {number}; lower the learning rate.")
            optimiser.step()
            total, samples = total + count * loss, samples + count

    def _add_gradient(self, batches: Iterator[Batch]) -> tuple[float, int]:
        """Differentiate the mean loss of the next batch, of all processes together; return it and its samples.

        Raises:
            DataError: The batch has no samples.
        """
        batch, count, total = next(batches, None), 0, self.prior.mean.new_zeros(())
        if batch is not None:
            with naming_inputs(self.network, batch.x, lambda: run_module(self.network, batch.x)):
                f = require_derivative(self.network, run_module(self.network, batch.x))
            count, log_likelihood = f.shape[0], self.likelihood.log_prob(f, batch.y, batch.mask).sum()
            data = -log_likelihood / ((1 if group_is_up() else count) * self.temperature)
            data.backward()
            total = data.detach()
        if not group_is_up():
            if batch is not None and count == 0:
                raise DataError("a batch has no samples; leave it out.")
            return float(total), count
        reports = exchange((batch is not None, count))
        count = sum(rows for _, rows in reports)
        if count == 0:
            if any(there for there, _ in reports):
                raise DataError("a batch has no samples in any process; leave it out.")
            return 0.0, 0
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self.chosen.items()}
        summed = sum_tensor(torch.cat([self.layout.flatten(gradients), total[None]])) / count
        for name, gradient in self.layout.unflatten(summed[:-1]).items():
            self.chosen[name].grad = gradient.clone()
        return float(summed[-1]), count

    def problem(
        self, data: Iterable[Any], structure: str, estimator: str, generator: torch.Generator | None
    ) -> EvidenceProblem:
        """Return the inputs of the evidence at the present weights."""
        self.network.eval()
        collector = Collector(self.likelihood)
        curvature = accumulate(
            self.network,
            data,
            self.likelihood.at_unit_noise(),
            structure=structure,
            estimator=estimator,
            parameters=list(self.layout.names),
            mask_of=self.mask_of,
            generator=generator,
            progress=False,
            observer=collector.observe,
        )
        if not collector.labelled:
            raise DataError("the loader yields batches without labels, but the evidence depends on them; yield (x, y).")
        statistics = collector.statistics_of_all()
        assert statistics is not None
        if statistics.n != self.n:
            raise DataError(
                f"the curvature's loader holds {statistics.n} data and the training loader {self.n}; both must hold "
                "the same data (drop_last leaves some out)."
            )
        theta = self.layout.flatten(self.chosen).detach()
        return EvidenceProblem(curvature, theta, self.prior, self.likelihood, statistics, self.temperature)


def _count(loader: Iterable[Any], device: torch.device, mask_of: MaskOf | None) -> tuple[int, Any]:
    """Return the number of samples of all processes, and the first batch's inputs."""
    n, first = 0, None
    for x, _, _ in read_batches(loader, device, mask_of, labels_for="the evidence"):
        first = x if first is None else first
        n += batch_size(x)
    if group_is_up():
        n, first = sum(exchange(n)), this_or_first(first)
    if n == 0:
        raise DataError("the loader yields no batches; there is nothing to train on.")
    return n, first


def _restored(
    run: _Run, best: _Checkpoint | None, prior: BoundPrior, likelihood: Likelihood, history: list[Epoch]
) -> EvidenceTraining:
    """Return the best checkpoint, or the last state if there was no update."""
    updates = sum(epoch.log_evidence is not None for epoch in history)
    if best is None:
        text = f"none of the {len(history)} epochs was due for an update, so prior and noise are those at the start."
        warnings.warn(text, UserWarning, stacklevel=3)
        return EvidenceTraining(
            run.network.eval(), run.prior, run.likelihood, None, len(history), 0, tuple(history), text
        )
    run.network.load_state_dict(best.state)
    before = best.problem.with_hyper(prior.precision, likelihood.scalar_noise_precision)
    steps = [TuningStep(None, prior.precision)] + [
        TuningStep(epoch.log_evidence, epoch.precision, epoch.noise_precision)
        for epoch in history
        if epoch.log_evidence is not None
    ]
    tuned = finish(
        before,
        best.problem,
        method=f"evidence while training (epoch {best.epoch} of {len(history)} kept)",
        log_evidence=best.log_evidence,
        gamma=effective_parameters(best.problem).detach(),
        history=steps,
        notes=[],
    )
    return EvidenceTraining(
        run.network.eval(),
        best.problem.grouped_prior,
        best.problem.likelihood,
        best.log_evidence,
        best.epoch,
        updates,
        tuple(history),
        tuned.report,
    )
