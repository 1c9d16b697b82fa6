"""Define the base class of all autoencoders: the protocol `encode`, `decode`, `reconstruct`, and training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from marquis.arguments import AtLeastOne, checked
from marquis.autoencoders.inputs import DataInputs, Missing, inputs_of
from marquis.autoencoders.network import parts_of
from marquis.autoencoders.predictions import Average, Estimate, Output, Reconstruction, SampledModel, SampleMoments
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.functional.call import call_module, laid_out_like
from marquis.functional.checks import naming_shape
from marquis.functional.unwrap import named_parameters
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.likelihoods.pointwise import PointwiseLikelihood
from marquis.options import renamed_attributes
from marquis.posterior import Posterior
from marquis.variational.base import evaluation_mode

VALIDATION_SAMPLES, VALIDATION_SEED = 10, 20221128
PLATEAU = 5
"""Number of epochs without improvement after which the next one halves the learning rate (LAE, appendix D)."""
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
Method = TypeVar("Method", bound=Callable[..., Any])


def _naming_shape(method: Method) -> Method:
    """Return a method that names the shape of its data, and the network's first layer, where torch refuses them."""

    @functools.wraps(method)
    def wrapper(self: BaseAutoencoder, *args: Any, **options: Any) -> Any:
        network, name = (self.decoder, "z") if method.__name__ == "decode" else (self, "x")
        with naming_shape(network, args[0] if args else options[name], method.__name__):
            return method(self, *args, **options)

    return cast(Method, wrapper)


@renamed_attributes(draws="sampled_models", draw_at="model_at")
class BaseAutoencoder(DataInputs, LightningModule):
    """Train and evaluate an autoencoder; a model defines its samples (`sampled_models`) and its loss (`objective`).

    Training: Adam, learning rate halved when the validation loss has not improved for five epochs
    (`ReduceLROnPlateau(0.5, 5)`; docs/method/autoencoders.md#baselines). Batches are `x`, or `(x, ...)` of which the
    rest is ignored.

    Args:
        encoder: `[B, ...] -> [B, K]`. Becomes part of the model and is trained in place, as Lightning does.
        decoder: `[B, K] -> [B, ...]`.
        likelihood: "gaussian" or "bernoulli", or an object with that interface.
        lr: Learning rate of Adam.
        missing: Whether NaN marks a missing entry. Then missing entries enter the encoder as 0 (centre the data) and
            leave the likelihood (docs/method/likelihoods.md#missing-entries). If False, NaN is refused. With "mask" the
            encoder also sees which entries were observed: it takes twice the data along dimension 1, first the data,
            then ones and zeros.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: str | Likelihood = "gaussian",
        *,
        lr: float = 1e-3,
        missing: Missing = False,
    ) -> None:
        super().__init__()
        if missing not in (True, False, "mask"):
            raise DataError(f"missing={missing!r}: True, False, or 'mask' to show the encoder what was observed.")
        self.encoder, self.decoder = encoder, decoder
        self.likelihood = as_likelihood(likelihood)
        self.lr = lr
        self.missing: Missing = missing
        self._optimiser: torch.optim.Optimizer | None = None

    # What a model defines

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield `samples` samples of the model one by one; a model without uncertainty has a single one."""
        raise NotImplementedError

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the training loss of one batch, per sample, with the graph to the parameters.

        Args:
            inputs: What the encoder takes, see `inputs`.
            x: The data to reconstruct, with zeros at missing entries.
            mask: 1 where an entry was observed; None if all were.
        """
        raise NotImplementedError

    def loss(self, x: Tensor, mask: Tensor | None, seen: Tensor | None = None) -> Tensor:
        """Compute the training loss of one batch, per sample, with the graph to the parameters.

        Args:
            x: Data, with zeros at missing entries.
            mask: 1 where an entry was observed; None if all were.
            seen: 1 where the encoder sees an entry; by default where it was observed.
        """
        return self.objective(self._visible(x, mask, seen), x, mask)

    def output(self, f: Tensor) -> Output:
        """Return mean and noise variance of the data for the decoder's outputs `f`."""
        prediction = self.likelihood.predictive_at(f)
        if prediction.probs is None:
            return Output(f, prediction.mean, prediction.noise_variance)
        return Output(f, prediction.probs, prediction.probs * (1 - prediction.probs))

    def mean_code(self, inputs: Tensor) -> Tensor | None:
        """Return the exact mean code over the posterior where there is a closed form; None if there is none."""
        return None

    def mean_output(self, z: Tensor) -> Tensor | None:
        """Return the exact mean of the data decoded from codes where there is a closed form; None otherwise."""
        return None

    def model_at(self, params: Mapping[str, Tensor]) -> SampledModel:
        """Return the networks at other weights, named `encoder.*` and `decoder.*`; the others keep their values."""
        present = named_parameters(self)
        params = {name: laid_out_like(value.to(present[name]), present[name]) for name, value in params.items()}
        encoder, decoder = parts_of(params, self.encoder, self.decoder)
        return SampledModel(
            lambda x: call_module(self.encoder, encoder, (x,)),
            lambda z: self.output(call_module(self.decoder, decoder, (z,))),
        )

    def sampled_networks(
        self, posterior: Posterior, samples: int, generator: torch.Generator | None
    ) -> Iterator[SampledModel]:
        """Yield networks with weights sampled from a posterior, one at a time."""
        for _ in range(samples):
            weights = posterior.sample(1, generator)
            yield self.model_at({name: value[0] for name, value in weights.items()})

    # The protocol

    @checked
    @_naming_shape
    @torch.no_grad()
    def encode(
        self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """Return the code of `x [B, ...]`: mean and variance over samples of the model.

        Cost: `samples` encoder passes; memory of two codes however many samples, unless they are kept.

        Args:
            x: Inputs.
            samples: Number of samples.
            generator: Source of the samples; the same seed gives the same networks for every batch.
            keep: Also return the samples themselves.
        """
        inputs = self.inputs(*self._filled(x))
        moments = SampleMoments(keep, self.mean_code(inputs))
        for sample in self._samples_in_evaluation_mode(samples, generator):
            moments.add(sample.encode(inputs))
        return moments.estimate()

    @checked
    @_naming_shape
    @torch.no_grad()
    def decode(
        self, z: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """Return the data decoded from the codes `z [B, K]`: mean and variance over samples, as in `encode`."""
        self._check(z, "codes")
        if not z.isfinite().all():
            raise DataError(f"the codes contain NaN or infinity ({int((~z.isfinite()).sum())} of {z.numel()} values).")
        moments = SampleMoments(keep, self.mean_output(z))
        for sample in self._samples_in_evaluation_mode(samples, generator):
            output = sample.decode(z)
            moments.add(output.mean, output.noise_variance)
        return moments.estimate()

    @checked
    @_naming_shape
    @torch.no_grad()
    def reconstruct(
        self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Reconstruction:
        """Return the reconstruction of `x`, as in `encode`, with the code and the log-likelihood of `x`."""
        x, mask = self._data(x)
        inputs = self.inputs(x, mask)
        code = self.mean_code(inputs)
        output = None if code is None else self.mean_output(code)
        latent, moments = SampleMoments(keep, code), SampleMoments(keep, output)
        log_mean = expected = x.new_zeros(len(x))
        for number, sample in enumerate(self._samples_in_evaluation_mode(samples, generator)):
            z, output = sample.reconstruct(inputs)
            latent.add(z)
            moments.add(output.mean, output.noise_variance)
            density = self.likelihood.log_prob(output.f, x, mask)
            log_mean = density if number == 0 else torch.logaddexp(log_mean, density)
            expected = expected + density
        return Reconstruction(
            **vars(moments.estimate()),
            latent=latent.estimate(),
            log_prob=log_mean - math.log(moments.count),
            expected_log_prob=expected / moments.count,
        )

    @checked
    @_naming_shape
    @torch.no_grad()
    def entry_log_probs(
        self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the log-likelihood of each entry of `x` under each sample, `[S, *x.shape]`; 0 for missing entries.

        Summed over entries and averaged over samples as probabilities, it is `log_prob` of `reconstruct`.

        Raises:
            UnsupportedOperationError: The likelihood is not a product over entries.
        """
        if not isinstance(self.likelihood, PointwiseLikelihood):
            raise UnsupportedOperationError(f"{self.likelihood} has no likelihood of single entries.")
        x, mask = self._data(x)
        inputs, likelihood = self.inputs(x, mask), self.likelihood
        outputs = (sample.reconstruct(inputs)[1] for sample in self._samples_in_evaluation_mode(samples, generator))
        return torch.stack([likelihood.entry_log_prob(output.f, x, mask) for output in outputs])

    def _samples_in_evaluation_mode(self, samples: int, generator: torch.Generator | None) -> Iterator[SampledModel]:
        """Yield samples of the model in evaluation mode."""
        with evaluation_mode(self):  # in training mode batch statistics and dropout would change results
            yield from self.sampled_models(samples, generator)

    # Training, by `fit_in_memory` or by Lightning

    def begin(self, num_data: int) -> None:
        """Set the number of training samples before the first step, where the model needs it."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return what the optimiser trains, as torch's optimisers take it."""
        return [{"params": list(self.parameters())}]

    def optimiser_and_schedule(self, plateau: int = PLATEAU) -> tuple[torch.optim.Optimizer, ReduceLROnPlateau]:
        """Return Adam, fused where it can be, and the schedule that halves its rate when the validation loss stagnates.

        Args:
            plateau: Number of epochs without improvement that the schedule tolerates.
        """
        groups = self.parameter_groups()
        parameters = [parameter for group in groups for parameter in group["params"]]
        # torch would refuse a fused step only when it is taken
        fused = all(p.is_floating_point() and p.device.type in FUSED_DEVICES for p in parameters)
        optimiser = torch.optim.Adam(groups, self.lr, fused=fused)
        self._optimiser = optimiser
        return optimiser, ReduceLROnPlateau(optimiser, factor=0.5, patience=plateau)

    @property
    def learning_rate(self) -> float:
        """Return the present learning rate."""
        return self.lr if self._optimiser is None else self._optimiser.param_groups[0]["lr"]

    def training_loss(self, batch: Any, seen: Tensor | None = None) -> Tensor:
        """Compute the loss of one training batch.

        Args:
            batch: Data, or `(data, ...)`.
            seen: 1 where the encoder sees an entry; by default where it was observed.

        Raises:
            NumericalError: Training diverged.
        """
        x, mask = self._data(inputs_of(batch))
        with naming_shape(self, x, "training"), self._naming_outputs(x):
            loss = self.loss(x, mask) if seen is None else self.loss(x, mask, seen)
        if not bool(loss.detach().isfinite()):
            raise NumericalError(
                f"training diverged: the loss is {float(loss.detach())}. Lower the learning rate, scale the data to "
                "about [0, 1], or look for values that are far from all others."
            )
        return loss

    @torch.no_grad()
    def validation_loss(self, batch: Any, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the expected negative log-likelihood of a batch over ten samples of fixed seed, and squared error.

        Both are NaN where the training diverged.

        Args:
            batch: Data, or `(data, ...)`.
            seen: 1 where the encoder sees an entry; by default where it was observed.
        """
        x, mask = self._data(inputs_of(batch))
        generator = torch.Generator(device=x.device).manual_seed(VALIDATION_SEED)
        inputs = self._visible(x, mask, seen)
        log_prob, mean = x.new_zeros(len(x)), Average()
        for sample in self._samples_in_evaluation_mode(VALIDATION_SAMPLES, generator):
            try:
                with naming_shape(self, x, "validation"):
                    output = sample.reconstruct(inputs)[1]
                log_prob = log_prob + self.likelihood.log_prob(output.f, x, mask)
            except NumericalError:  # the stopping rule ends a training whose loss is NaN, and keeps its best epoch
                return x.new_tensor(math.nan), x.new_tensor(math.nan)
            mean.add(output.mean)
        assert mean.mean is not None
        error = mean.mean - x if mask is None else torch.where(mask, mean.mean - x, 0)
        return -(log_prob / mean.count).mean(), error.square().sum() / len(x)

    # Lightning

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction by the mean network, as the decoder gives it."""
        return self.decoder(self.encoder(self.inputs(x, None)))

    def configure_optimizers(self) -> Any:
        """Return optimiser and schedule."""
        optimiser, plateau = self.optimiser_and_schedule()
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": plateau, "monitor": "validation_loss", "strict": False},
        }

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute and log the loss of one training batch."""
        loss = self.training_loss(batch)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(inputs_of(batch)))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Compute and log the loss and the squared error of one validation batch."""
        loss, error = self.validation_loss(batch)
        options = {"batch_size": len(inputs_of(batch)), "sync_dist": True}
        self.log("validation_loss", loss, prog_bar=True, **options)
        self.log("validation_error", error, **options)


class Autoencoder(BaseAutoencoder):
    """Train a plain autoencoder ("AE MSE"): `-log p(x | dec(enc(x)))` per example with fixed noise.

    Source: docs/method/autoencoders.md#baselines. With the Gaussian likelihood of unit noise that is half the squared
    error. It has a single sample and no variance.
    """

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield the network itself, once."""
        yield SampledModel(self.encoder, lambda z: self.output(self.decoder(z)))

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative log-likelihood per sample."""
        return -self.likelihood.log_prob(self.decoder(self.encoder(inputs)), x, mask).mean()
