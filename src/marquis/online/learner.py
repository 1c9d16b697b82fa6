"""Define `mq.OnlineLaplace`, a Gaussian over the weights that is learnt while the network trains."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, NotNegative, checked
from marquis.curvature.backward.accumulators import Running
from marquis.curvature.over_processes import decompose_over_processes, sum_over_processes
from marquis.curvature.planning.choices import SHARING_ESTIMATORS
from marquis.distributed import exchange, fails_together, from_first_process, group_is_up, sum_tensor
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model, buffers_of, call, describe
from marquis.functional.checks import check_inputs, naming_inputs
from marquis.functional.selection import parameters_of, select
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Gaussian, Likelihood
from marquis.online.batch_statistics import at_running_statistics
from marquis.online.evaluation import Evaluated, evaluate
from marquis.online.learnt_noise import likelihood_and_noise, start_value
from marquis.online.reparameterised import Reparameterised
from marquis.online.saving import pack, unpack
from marquis.online.settings import NEW_NAMES, OnlineSettings
from marquis.online.state import OnlineState, rates, weighted
from marquis.online.weights import require_finite_weights, sample_weights
from marquis.options import renamed_arguments, renamed_attributes, takes_options
from marquis.posterior import Posterior
from marquis.predictive import Prediction, predict
from marquis.randomness import new_seeds
from marquis.structures import Diagonal, Layout, Structure


@renamed_attributes(temperature="effective_temperature")
@takes_options(OnlineSettings)
class OnlineLaplace:
    """Learn a Laplace posterior while training: loss at a sampled network, curvature remembered (LAE 3).

    ```python
    online = mq.OnlineLaplace(model, "gaussian", num_data=len(data))
    for x, y in loader:
        loss = online.step(x, y)
        loss.backward(); optimiser.step(); optimiser.zero_grad()
    ```

    The mean is the model's own parameters, moved by your optimiser; nothing else of the model is touched. The weights
    have precision `(β H + δ) / T` with the running curvature H. By default the noise precision β (Gaussian likelihood)
    is learnt, the prior precision δ is 1 (it can be learnt from the evidence too) and the posterior temperature T is
    0.01: see `OnlineSettings` for why. `settings` holds the options in use.

    Cost of a step with the sketched diagonal: about 2.5 plain steps; memory of three more copies of the weights.

    Args:
        model: A module, or a function `(params, x) -> outputs` with `params`. Batch normalisations in training mode
            update their running statistics by a plain pass, and dropout is off (`online.batch_statistics`).
        likelihood: Name or object. A Gaussian object keeps its noise precision, unless that is "learnt".
        structure: Structure of the curvature: "diagonal", "kronecker", "block" or "full".
        estimator: Estimator of the curvature, as in `mq.curvature.ggn`; "approximate", "mixed" for a diagonal only.
        num_data: Number of training samples N.
        preset: None, "paper" or "paper-code" (docs/method/online.md#presets), or an `OnlineSettings`.
        parameters: Which weights are uncertain, as in `mq.Laplace`; the others are trained as usual.
        params: The parameters of a function.
        generator: Source of all random numbers; in a group of processes that of the first counts.
        **options: Fields of `OnlineSettings`; None keeps the preset's value.
    """

    @fails_together
    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any = "gaussian",
        structure: str | None = None,
        estimator: str | None = None,
        *,
        num_data: AtLeastOne,
        preset: str | OnlineSettings | None = None,
        parameters: Any = None,
        params: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        self.model, self.num_data, self._params = model, num_data, params
        self.likelihood, noise = likelihood_and_noise(likelihood, options.pop("noise_precision", None))
        options |= {"structure": structure, "estimator": estimator, "noise_precision": noise}
        self.settings = OnlineSettings.of(preset, options)
        self.structure, self.estimator = self.settings.structure, self.settings.estimator
        if self.settings.rule == "noisy-adam" and self.structure != "diagonal":
            raise UnsupportedOperationError("rule='noisy-adam' squares gradients, which are a diagonal only.")
        if self.settings.rule == "noisy-adam" and group_is_up():
            raise UnsupportedOperationError(
                "rule='noisy-adam' squares the gradient of the whole batch, which no process of a group has; train in "
                "one process, or use the other rules."
            )
        self.names = list(select(parameters_of(model, params), parameters))
        means = self.means()
        self.layout = Layout.of(means)
        like = means[self.names[0]]
        # Two streams: processes with uneven batches take different numbers of probes, but must draw the same weights.
        seeds = new_seeds(2, generator)
        if group_is_up():
            seeds = from_first_process(seeds)
        seeds = seeds.tolist()
        self._weights_stream = torch.Generator(like.device).manual_seed(seeds[0])
        self._probes_stream = torch.Generator(like.device).manual_seed(seeds[1])
        self.state = OnlineState(
            curvature=None,
            initial=float(num_data if self.settings.initial == "data" else self.settings.initial),
            noise_precision=start_value(self.settings.noise_precision),
            prior_precision=start_value(self.settings.prior_precision),
        )
        self._buffer: Tensor | None = None
        self._multiplied_once: frozenset[str] = frozenset()

    @property
    def state(self) -> OnlineState:
        """Return what has been learnt besides the mean; an immutable value, which later steps leave as it is."""
        self._state_is_shared = True  # the next update writes to a copy
        return self._state

    @state.setter
    def state(self, state: OnlineState) -> None:
        self._state, self._state_is_shared = state, True

    # Training

    @functools.partial(fails_together, confirm=False)
    @checked
    @at_running_statistics
    def step(
        self, x: Any, y: Any = None, mask: Tensor | None = None, *, learning_rate: NotNegative | None = None
    ) -> Tensor:
        """Return the loss of one batch per sample, at sampled weights; `backward` fills the gradients of the means.

        `-(1/S) Σ_s mean_n log p(y_n | x_n, θ_s) + δ/(2N) |μ|²` with `θ_s ~ N(μ, precision^-1)`; no gradient flows
        through the precision (LAE eq. 64). Updates `state` (eq. 65; docs/method/online.md#algorithm). In a group of
        processes all raise if one fails, and the *average* of their losses (what `DistributedDataParallel` takes the
        gradient of) is that of the joint batch, also where shares differ in size or have no samples.

        Args:
            x: Inputs.
            y: Labels; by default the inputs (an autoencoder).
            mask: 1 where a label was observed.
            learning_rate: For `forgetting="learning-rate"`.
        """
        curvature: Structure | None = None
        evaluated = evaluate(self, x, x if y is None else y, mask)
        running = None if group_is_up() else self._running(evaluated, learning_rate)
        if running is None and evaluated.curvatures:
            first, *others = [compute() for compute in evaluated.curvatures]
            curvature = weighted(sum(others, first), 1 / len(evaluated.curvatures))
        elif running is not None:
            curvature = evaluated.curvatures[0](running)
        share = self._learn(evaluated, curvature, running, learning_rate)
        data = evaluated.losses if share == 1 else [share * loss for loss in evaluated.losses]
        losses = [penalty + loss for penalty, loss in zip(evaluated.penalties, data, strict=True)]
        return torch.stack(losses).mean() if len(losses) > 1 else losses[0]

    def _running(self, batch: Evaluated, learning_rate: float | None) -> Running | None:
        """Return the memory of a diagonal curvature, to which this batch is added; a copy if others hold it."""
        settings, held = self.settings, self._state.curvature
        one = len(batch.curvatures) == 1 and isinstance(held, Diagonal)
        if not one or settings.rule == "redux" or not self._shares_forward:
            return None
        assert isinstance(held, Diagonal)
        values = held.values.clone() if self._state_is_shared else held.values
        keep, gain = rates(settings.rule, self._alpha(batch.size, learning_rate), settings.every)
        return Running(values, keep, gain * self._scale(batch.size))

    @property
    def _shares_forward(self) -> bool:
        """Return whether loss and curvature come from one forward pass."""
        settings = self.settings
        by_sample = settings.curvature_at == "sample" and settings.rule != "noisy-adam"
        mixed = torch.is_autocast_enabled(self._weights_stream.device.type)
        return by_sample and self.estimator in SHARING_ESTIMATORS and not mixed

    def _scale(self, size: int) -> float:
        """Return the factor of a batch's curvature: 1, or to the size of the data set."""
        return self.num_data / size if self.settings.scale == "dataset" else 1.0

    @checked
    def outputs(self, theta: Mapping[str, Tensor], x: Any) -> Tensor:
        """Return the network's outputs at these weights; those that are not named keep their value."""
        weights = {**parameters_of(self.model, self._params), **theta}
        check_inputs(x)
        with naming_inputs(self.model, x, lambda: call(self.model, weights, buffers_of(self.model), x)):
            return call(self.model, weights, buffers_of(self.model), x)

    @torch.no_grad()
    def _learn(
        self,
        batch: Evaluated,
        curvature: Structure | None,
        running: Running | None,
        learning_rate: float | None,
    ) -> float:
        """Update curvature, noise and prior after one batch, of all processes together; return the data's weight.

        Raises:
            DataError: No process has any samples.
        """
        settings, state = self.settings, self._state
        size, error, entries, share = batch.size, batch.error, batch.entries, 1.0
        if group_is_up():
            reports = exchange((size, error, entries))
            size, error, entries = (sum(numbers[1:], numbers[0]) for numbers in zip(*reports, strict=True))
            if size == 0:
                raise DataError("no process has any samples in this step.")
            share = batch.size * len(reports) / size
            if state.steps % settings.every == 0:
                if any(rows == 0 for rows, _, _ in reports):
                    curvature = sum_over_processes(curvature, "")
                elif curvature is not None:
                    curvature = curvature.with_tensors([sum_tensor(tensor) for tensor in curvature.tensors()])
        if curvature is None:
            after = state.skip(size)
        elif running is not None:  # already added
            after = state.with_curvature(curvature, running.keep, running.gain, size, size)
        else:
            scale = self._scale(size)
            alpha = self._alpha(size, learning_rate)
            curvature = weighted(curvature, scale)
            after = state.update(settings.rule, curvature, size, scale * size, self.num_data, alpha, settings.every)
        if settings.noise_precision == "learnt":
            after = after.with_error(error, entries)
        if settings.prior_precision == "learnt" and after.seen // self.num_data > state.seen // self.num_data:
            squared = sum(float(mean.detach().double().square().sum()) for mean in self.means().values())
            after = after.with_prior(squared, settings.factor)
        if curvature is not None and after.curvature is not None:
            decompose_over_processes(after.curvature)
        self._state = after
        self._state_is_shared = self._state_is_shared and curvature is None
        return share

    @checked
    def predict(
        self,
        x: Any,
        method: str = "linearised",
        samples: int = 100,
        link: str | None = None,
        generator: torch.Generator | None = None,
    ) -> Prediction:
        """Predict with the present posterior, as `Laplace.predict` does.

        Args:
            x: Inputs with the batch as dimension 0.
            method: "linearised", "linearised-samples" or "sampled".
            samples: Number of weight samples.
            link: How Gaussian logits become probabilities.
            generator: Source of randomness.
        """
        return predict(
            self.posterior(), self.model, x, self.noisy_likelihood, method, samples, link, generator=generator
        )

    # Weights

    def means(self) -> dict[str, Tensor]:
        """Return the uncertain parameters themselves, by name."""
        everything = parameters_of(self.model, self._params)
        return {name: everything[name] for name in self.names}

    def _sampled_weights(self, means: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Return sampled weights with the graph to the means, and the prior's part of the loss."""
        if self._buffer is None or self.settings.samples > 1:
            self._buffer = self._empty()
        # The next step overwrites the buffer: memory fresh from the system costs more than the noise itself.
        stream, buffer = self._weights_stream, self._buffer
        samples = sample_weights(self.layout, means, self._state, self.settings, stream, buffer)
        weight = self._state.prior_precision / self.num_data if self.settings.prior_in_loss else 0.0
        theta, penalty = {}, None
        for name, mean in means.items():
            theta[name], half = Reparameterised.apply(mean, samples[name], weight, name in self._multiplied_once)
            penalty = half if penalty is None else penalty + half
        assert penalty is not None
        return theta, penalty

    def _empty(self) -> Tensor:
        """Return memory for one sample of the weights."""
        like = self.means()[self.names[0]]
        return torch.empty(self.layout.total, dtype=computing_dtype(like.dtype), device=like.device)

    @checked
    @torch.no_grad()
    def draw(self, generator: torch.Generator, out: Tensor | None = None) -> dict[str, Tensor]:
        """Return one sample of the weights from the present posterior, by name.

        As `posterior().sample`, but with the random numbers of `random_numbers`, which cost a fifth.

        Args:
            generator: Source of randomness.
            out: Flat memory `[P]` to write to; by default new.
        """
        out = self._empty() if out is None else out
        samples = sample_weights(self.layout, self.means(), self._state, self.settings, generator, out)
        require_finite_weights(samples, self.layout)
        return samples

    @renamed_arguments(**NEW_NAMES)
    @checked
    def posterior(self, posterior_temperature: float | Literal["laplace"] | None = None) -> Posterior:
        """Return the present posterior as an ordinary one, which samples, saves and loads like the others.

        Args:
            posterior_temperature: T; by default that of training. Networks that were trained with a cold posterior can
                be evaluated at another temperature: the precision is divided by T, and nothing else depends on it.
                "laplace" gives the Laplace posterior `β G + δ` whatever the settings: the curvature G counts every
                training sample once, and the prior keeps its precision.
        """
        if posterior_temperature == "laplace":
            precision = self._state.laplace_precision(self.num_data)
        else:
            settings = self.settings.changed({"posterior_temperature": posterior_temperature})
            precision = self._state.precision(settings.factor, settings.posterior_temperature)
        mean = {name: value.detach().clone() for name, value in self.means().items()}
        return Posterior(self.layout, mean, precision)

    @property
    def device(self) -> torch.device:
        """Return the device of curvature and random generators: that of the weights when the learner was made."""
        return self._weights_stream.device

    @property
    def effective_temperature(self) -> float:
        """Return `T N / (c n)`: 1 is the Laplace posterior, less is colder (docs/method/online.md#steady-state).

        `n` is the number of samples whose curvature H holds at present: for the default it grows to N within a few
        epochs, for the preset "paper-code" to 1000 N, with c = 1/2. Infinite before the first batch.
        """
        settings, data = self.settings, self._state.data
        return settings.posterior_temperature * self.num_data / (settings.factor * data) if data else math.inf

    def _alpha(self, size: int, learning_rate: float | None) -> float:
        """Return the forgetting rate of a step."""
        forgetting = self.settings.forgetting
        if forgetting == "learning-rate":
            if learning_rate is None:
                raise DataError("forgetting='learning-rate': pass learning_rate= to `step`.")
            return float(learning_rate)
        return min(size / self.num_data, 1.0) if forgetting == "batch" else float(forgetting)

    @property
    def noisy_likelihood(self) -> Likelihood:
        """Return the likelihood with the present noise precision."""
        if isinstance(self.likelihood, Gaussian) and self.likelihood.scalar_noise_precision is not None:
            relative = self._state.relative_noise
            return self.likelihood.with_noise(self._state.noise_precision * (1.0 if relative is None else relative))
        return self.likelihood

    @property
    def curvature_likelihood(self) -> Likelihood:
        """Return the likelihood at which the curvature H is summed: β multiplies it later.

        Noise that is learnt in groups of outputs enters relative to β, at its present value: β can change without
        delay, the ratios within the memory of H.
        """
        relative = self._state.relative_noise
        unit = self.likelihood.at_unit_noise()
        return unit if relative is None or not isinstance(unit, Gaussian) else unit.with_noise(relative)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the mean, which is in the model: curvature, noise, prior, counts, random states."""
        return pack(self.state, {"weights": self._weights_stream, "probes": self._probes_stream}, self.layout)

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, so that training continues exactly where `state_dict` was called.

        Raises:
            ModelMismatchError: The state is of another network.
            DataError: It is incomplete.
        """
        streams = {"weights": self._weights_stream, "probes": self._probes_stream}
        device = self.means()[self.names[0]].device
        self.state = unpack(state, streams, self.layout, device)

    def __repr__(self) -> str:
        """Show network, structure, estimator and progress."""
        return (
            f"OnlineLaplace({describe(self.model)}, {self.structure}, {self.estimator}, {self._state.steps} steps, "
            f"noise precision {self._state.noise_precision:.4g}, prior precision {self._state.prior_precision:.4g}, "
            f"effective temperature {self.effective_temperature:.4g})"
        )
