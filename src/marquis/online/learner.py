"""`mq.OnlineLaplace`: a Gaussian over the weights that is learnt while the network trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.curvature.ggn import SHARING_ESTIMATORS, ggn, outputs_and_ggn
from marquis.distributed import exchange, from_first_process, group_is_up, sum_tensor
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.functional.call import Model, buffers_of, call, describe, laid_out_like
from marquis.functional.checks import batch_size
from marquis.functional.selection import parameters_of, select
from marquis.likelihoods import Gaussian, Likelihood
from marquis.online.learnt_noise import likelihood_and_noise, squared_error, start_value
from marquis.online.random_numbers import fill_with_deviations, fill_with_noise
from marquis.online.reparameterised import Reparameterised
from marquis.online.saving import pack, unpack
from marquis.online.settings import NEW_NAMES, OnlineSettings
from marquis.online.state import OnlineState, weighted
from marquis.options import renamed_arguments, takes_options, warn_renamed
from marquis.posterior import Posterior
from marquis.predictive import Prediction, predict
from marquis.structures import Diagonal, Layout, Structure


@dataclass(eq=False)
class _Evaluated:
    """Loss at each sample of the weights, curvatures of the batch, its size, squared error and observed entries."""

    losses: list[Tensor] = field(default_factory=list)
    curvatures: list[Structure] = field(default_factory=list)
    size: int = 0
    error: float = 0.0
    entries: float = 0.0


@takes_options(OnlineSettings)
class OnlineLaplace:
    """Laplace while training: the loss at a sampled network, gradients to the mean, curvature remembered (LAE 3).

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
        model: A module in evaluation mode as far as that matters (no batch statistics, no dropout), or a function
            `(params, x) -> outputs` with `params`.
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

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any = "gaussian",
        structure: str | None = None,
        estimator: str | None = None,
        *,
        num_data: int,
        preset: str | OnlineSettings | None = None,
        parameters: Any = None,
        params: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        if num_data < 1:
            raise DataError(f"num_data is the number of training samples, at least 1; got {num_data}.")
        self.model, self.num_data, self._params = model, num_data, params
        self.likelihood, noise = likelihood_and_noise(likelihood, options.pop("noise_precision", None))
        options |= {"structure": structure, "estimator": estimator, "noise_precision": noise}
        self.settings = OnlineSettings.of(preset, options)
        self.structure, self.estimator = self.settings.structure, self.settings.estimator
        if self.settings.rule == "noisy-adam" and self.structure != "diagonal":
            raise UnsupportedOperationError("rule='noisy-adam' squares gradients, which are a diagonal only.")
        self.names = list(select(parameters_of(model, params), parameters))
        means = self.means()
        self.layout = Layout.of(means)
        like = means[self.names[0]]
        # Two streams: processes with uneven batches take different numbers of probes, but must draw the same weights.
        device = "cpu" if generator is None else generator.device
        seeds = torch.randint(1 << 62, (2,), generator=generator, device=device)
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

    # Training

    @checked
    def step(self, x: Any, y: Any = None, mask: Tensor | None = None, *, learning_rate: float | None = None) -> Tensor:
        """Return the loss of one batch per sample, at sampled weights; `backward` fills the gradients of the means.

        `-(1/S) Σ_s mean_n log p(y_n | x_n, θ_s) + δ/(2N) |μ|²` with `θ_s ~ N(μ, precision^-1)`; no gradient flows
        through the precision (LAE eq. 64). Updates `state` (eq. 65; docs/method/online.md#algorithm). In a group of
        processes all raise if one fails.

        Args:
            x: Inputs.
            y: Labels; by default the inputs (an autoencoder).
            mask: 1 where a label was observed.
            learning_rate: For `forgetting="learning-rate"`.
        """
        failure: Exception | None = None
        evaluated = _Evaluated()
        try:
            evaluated = self._evaluate(x, x if y is None else y, mask)
        except Exception as error:
            if not group_is_up():
                raise
            failure = error  # raised after the others have been told, which would wait for this process otherwise
        self._learn(evaluated, learning_rate, failure)
        return torch.stack(evaluated.losses).mean()

    def _evaluate(self, x: Any, y: Any, mask: Tensor | None) -> _Evaluated:
        """Compute loss, curvature and squared errors of one batch at sampled weights."""
        settings = self.settings
        with_curvature = self.state.steps % settings.every == 0
        by_gradient = settings.rule == "noisy-adam"
        means = self.means()
        result = _Evaluated(size=batch_size(x))
        for _ in range(settings.samples):
            theta, penalty = self._sampled_weights(means)
            at_sample = with_curvature and settings.curvature_at == "sample" and not by_gradient
            outputs, curvature = self._forward(x, theta, mask, at_sample)
            self.likelihood.validate(outputs.detach(), y, mask)
            log_likelihood = self.noisy_likelihood.log_prob(outputs, y, mask).mean()
            if not bool(log_likelihood.detach().isfinite()):
                raise DataError(
                    "the log-likelihood of this batch is not finite: labels far from the outputs, or weights that "
                    "diverged; check their scale, or lower the learning rate."
                )
            result.losses.append(penalty - log_likelihood)
            if curvature is not None:
                result.curvatures.append(curvature())
            if by_gradient and with_curvature:
                result.curvatures.append(self._squared_gradient(log_likelihood, theta))
            if settings.noise_precision == "learnt":
                error, entries = squared_error(outputs.detach(), y, mask)
                result.error += error / settings.samples
                result.entries += entries / settings.samples
        if with_curvature and settings.curvature_at == "mean" and not by_gradient:
            result.curvatures.append(self._curvature({name: mean.detach() for name, mean in means.items()}, x, mask))
        return result

    def outputs(self, theta: Mapping[str, Tensor], x: Any) -> Tensor:
        """Return the network's outputs at these weights; those that are not named keep their value."""
        return call(self.model, {**parameters_of(self.model, self._params), **theta}, buffers_of(self.model), x)

    def _forward(
        self, x: Any, theta: dict[str, Tensor], mask: Tensor | None, with_curvature: bool
    ) -> tuple[Tensor, Any]:
        """Return the outputs at sampled weights, and a function that computes the curvature there."""
        like = theta[self.names[0]]
        mixed = torch.is_autocast_enabled(like.device.type)
        if with_curvature and self.estimator in SHARING_ESTIMATORS and not mixed:
            return outputs_and_ggn(
                self.model,
                x,
                self.likelihood.at_unit_noise(),
                self.structure,
                self.estimator,
                params={**parameters_of(self.model, self._params), **theta},
                parameters=self.names,
                probes=self.settings.probes,
                generator=self._probes_stream,
                mask=mask,
            )
        outputs = self.outputs(theta, x).to(like.dtype)
        if not with_curvature:
            return outputs, None
        at = {name: value.detach() for name, value in theta.items()}
        return outputs, lambda: self._curvature(at, x, mask)

    def _curvature(self, at: Mapping[str, Tensor], x: Any, mask: Tensor | None) -> Structure:
        """Return the batch's curvature in full precision, also under `torch.autocast`."""
        kind = next(iter(at.values())).device.type
        with torch.autocast(kind, enabled=False):
            return ggn(
                self.model,
                x,
                self.likelihood.at_unit_noise(),
                self.structure,
                self.estimator,
                params={**parameters_of(self.model, self._params), **at},
                parameters=self.names,
                probes=self.settings.probes,
                width_limit=self.settings.width_limit,
                generator=self._probes_stream,
                mask=mask,
            )

    def _squared_gradient(self, log_likelihood: Tensor, theta: dict[str, Tensor]) -> Structure:
        """Return `N g∘g` with g the batch-mean gradient of the log likelihood (docs/method/online.md#update-rules)."""
        gradients = torch.autograd.grad(log_likelihood, list(theta.values()), retain_graph=True)
        flat = self.layout.flatten(dict(zip(theta, gradients, strict=True)))
        return Diagonal(self.layout, flat.square() * (self.num_data / self.state.noise_precision))

    @torch.no_grad()
    def _learn(self, batch: _Evaluated, learning_rate: float | None, failure: Exception | None) -> None:
        """Update curvature, noise and prior after one batch, of all processes together."""
        settings, state = self.settings, self.state
        size, error, entries = batch.size, batch.error, batch.entries
        curvature = sum(batch.curvatures[1:], batch.curvatures[0]) if batch.curvatures else None
        if group_is_up():
            reports = exchange((size, error, entries), failure)
            size, error, entries = (sum(numbers) for numbers in zip(*reports, strict=True))
            if curvature is not None:
                curvature = curvature.with_tensors([sum_tensor(tensor) for tensor in curvature.tensors()])
        if curvature is None:
            after = state.skip(size)
        else:
            scale = self.num_data / size if settings.scale == "dataset" else 1.0
            curvature = weighted(curvature, scale / len(batch.curvatures))
            alpha = self._alpha(size, learning_rate)
            after = state.update(settings.rule, curvature, size, scale * size, self.num_data, alpha, settings.every)
        if settings.noise_precision == "learnt":
            after = after.with_error(error, entries)
        if settings.prior_precision == "learnt" and after.seen // self.num_data > state.seen // self.num_data:
            squared = sum(float(mean.detach().double().square().sum()) for mean in self.means().values())
            after = after.with_prior(squared, settings.factor)
        self.state = after

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
        samples = self.draw(self._weights_stream, self._buffer)
        weight = self.state.prior_precision / self.num_data if self.settings.prior_in_loss else 0.0
        theta, penalty = {}, None
        for name, mean in means.items():
            theta[name], half = Reparameterised.apply(mean, samples[name], weight)
            penalty = half if penalty is None else penalty + half
        assert penalty is not None
        return theta, penalty

    def _empty(self) -> Tensor:
        like = self.means()[self.names[0]]
        return torch.empty(self.layout.total, dtype=like.dtype, device=like.device)

    @checked
    @torch.no_grad()
    def draw(self, generator: torch.Generator, out: Tensor | None = None) -> dict[str, Tensor]:
        """Return one sample of the weights from the present posterior, by name.

        As `posterior().sample`, but with the random numbers of `quantile_table`, which cost a quarter.

        Args:
            generator: Source of randomness.
            out: Flat memory `[P]` to write to; by default new.
        """
        state, settings = self.state, self.settings
        out = self._empty() if out is None else out
        if state.curvature is None or isinstance(state.curvature, Diagonal):
            values = None if state.curvature is None else state.curvature.values
            weight = settings.factor * state.noise_precision / settings.posterior_temperature
            fill_with_deviations(out, generator, values, weight, state.constant(settings.posterior_temperature))
        else:
            precision = state.precision(settings.factor, settings.posterior_temperature)
            noise = torch.empty(precision.noise_dim, dtype=out.dtype, device=out.device)
            out.copy_(precision.sample_from(fill_with_noise(noise, generator)))
        if not bool(out.sum().isfinite()):  # a finite sum proves finite entries without a temporary
            place = self.layout.locate(int((~out.isfinite()).nonzero()[0]))
            raise NumericalError(
                f"the precision of weight {place} has decayed to zero, so its standard deviation is infinite: without "
                "a prior in the precision, weights that see no data are forgotten. Use prior_precision > 0."
            )
        samples, means = self.layout.unflatten(out), self.means()
        torch._foreach_add_(list(samples.values()), [means[name].detach() for name in samples])
        return {name: laid_out_like(value, means[name]) for name, value in samples.items()}

    @renamed_arguments(**NEW_NAMES)
    def posterior(self, posterior_temperature: float | Literal["laplace"] | None = None) -> Posterior:
        """Return the present posterior as an ordinary one, which samples, saves and loads like the others.

        Args:
            posterior_temperature: T; by default that of training. Networks that were trained with a cold posterior can
                be evaluated at another temperature: the precision is divided by T, and nothing else depends on it.
                "laplace" gives the Laplace posterior `β G + δ` whatever the settings: the curvature G counts every
                training sample once, and the prior keeps its precision.
        """
        if posterior_temperature == "laplace":
            precision = self.state.laplace_precision(self.num_data)
        else:
            settings = self.settings.changed({"posterior_temperature": posterior_temperature})
            precision = self.state.precision(settings.factor, settings.posterior_temperature)
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
        settings, data = self.settings, self.state.data
        return settings.posterior_temperature * self.num_data / (settings.factor * data) if data else math.inf

    @property
    def temperature(self) -> float:
        """Return `effective_temperature`, by its deprecated name."""
        warn_renamed("OnlineLaplace.temperature", "effective_temperature")
        return self.effective_temperature

    def _alpha(self, size: int, learning_rate: float | None) -> float:
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
            return self.likelihood.with_noise(self.state.noise_precision)
        return self.likelihood

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the mean, which is in the model: curvature, noise, prior, counts, random states."""
        return pack(self.state, {"weights": self._weights_stream, "probes": self._probes_stream}, self.layout)

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
            f"OnlineLaplace({describe(self.model)}, {self.structure}, {self.estimator}, {self.state.steps} steps, "
            f"noise precision {self.state.noise_precision:.4g}, prior precision {self.state.prior_precision:.4g}, "
            f"effective temperature {self.effective_temperature:.4g})"
        )
