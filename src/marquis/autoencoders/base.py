"""What all autoencoders share: the protocol `encode`, `decode`, `reconstruct`, and training under Lightning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from marquis.autoencoders.estimate import Average, Draw, Estimate, Moments, Output, Reconstruction
from marquis.autoencoders.network import beside_mask, parts_of
from marquis.errors import DataError
from marquis.functional.call import call_module, laid_out_like
from marquis.likelihoods import Bernoulli, Likelihood, as_likelihood
from marquis.variational.base import evaluating

VALIDATION_SAMPLES, VALIDATION_SEED = 10, 20221128
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
Missing = bool | Literal["mask"]
"""What NaN means to a model; see `BaseAutoencoder`."""


@runtime_checkable
class UncertainAutoencoder(Protocol):
    """What the tasks need of a model; any object with these three methods will do."""

    def encode(
        self, x: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Estimate:
        """The code of `x [B, ...]`."""
        ...

    def decode(
        self, z: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Estimate:
        """The data that belong to the code `z [B, K]`."""
        ...

    def reconstruct(
        self, x: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Reconstruction:
        """`x` through encoder and decoder."""
        ...


class BaseAutoencoder(LightningModule):
    """Encoder and decoder under Lightning; a model says what one draw of it is and what it minimises.

    Training: Adam, learning rate halved when the validation loss has not improved for five epochs
    (`ReduceLROnPlateau(0.5, 5)`, methods.md 7). Batches are `x`, or `(x, ...)` of which the rest is ignored.

    Args:
        encoder: `[B, ...] -> [B, K]`. Becomes part of the model and is trained in place, as Lightning does.
        decoder: `[B, K] -> [B, ...]`.
        likelihood: "gaussian" or "bernoulli", or an object with that interface.
        lr: Learning rate of Adam.
        missing: Whether NaN marks a missing entry. Then missing entries enter the encoder as 0 (centre the data) and
            leave the likelihood (methods.md 1.2). If False, NaN is refused. With "mask" the encoder also sees which
            entries were observed: it takes twice the data along dimension 1, first the data, then ones and zeros.
    """

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

    # What a model says

    def draws(self, samples: int, generator: torch.Generator | None = None) -> Iterator[Draw]:
        """`samples` draws of the model, one after the other; a model without uncertainty has one."""
        raise NotImplementedError

    def loss(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What one batch adds to the objective, per datum, with the graph to the parameters.

        Args:
            x: Inputs, missing entries already filled.
            mask: 1 where an entry was observed; None if all were.
        """
        raise NotImplementedError

    def output(self, f: Tensor) -> Output:
        """What the decoder's outputs say about the data."""
        said = self.likelihood.predictive(f, f.new_zeros(()).expand_as(f))  # a zero for all, not a tensor of zeros
        if said.probs is None:
            return Output(f, said.mean, said.noise_variance)
        return Output(f, said.probs, said.probs * (1 - said.probs))

    def mean_code(self, inputs: Tensor) -> Tensor | None:
        """The mean code over all draws that there could be, where the model knows it; None: it takes draws."""
        return None

    def mean_output(self, z: Tensor) -> Tensor | None:
        """Likewise of the data that belong to codes, or to what `mean_code` says."""
        return None

    def draw_at(self, params: Mapping[str, Tensor]) -> Draw:
        """The networks at other weights, named `encoder.*` and `decoder.*`; what is not named keeps its value."""
        own = {name: self.get_parameter(name) for name in params}
        params = {name: laid_out_like(value.to(own[name]), own[name]) for name, value in params.items()}
        codes, images = parts_of(params, self.encoder, self.decoder)
        return Draw(
            lambda x: call_module(self.encoder, codes, (x,)),
            lambda z: self.output(call_module(self.decoder, images, (z,))),
        )

    # The protocol

    @torch.no_grad()
    def encode(
        self, x: Tensor, samples: int = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """The code of `x [B, ...]`: mean and variance over draws of the model.

        Cost: `samples` encoder passes; memory of two codes however many samples, unless they are kept.

        Args:
            x: Inputs.
            samples: How many draws.
            generator: For the draws; the same seed gives the same networks for every batch.
            keep: Also return the draws themselves.
        """
        inputs = self.inputs(*self._filled(x))
        found = Moments(keep, self.mean_code(inputs))
        for draw in self._counted(samples, generator):
            found.add(draw.encode(inputs))
        return _estimate(found, None)

    @torch.no_grad()
    def decode(
        self, z: Tensor, samples: int = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """The data that belong to the codes `z [B, K]`, likewise."""
        self._check(z, "codes")
        if not z.isfinite().all():
            raise DataError(f"the codes contain NaN or infinity ({int((~z.isfinite()).sum())} of {z.numel()} values).")
        found, noise = Moments(keep, self.mean_output(z)), Average()
        for draw in self._counted(samples, generator):
            _add_output(found, noise, draw.decode(z))
        return _estimate(found, noise)

    @torch.no_grad()
    def reconstruct(
        self, x: Tensor, samples: int = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Reconstruction:
        """`x` through encoder and decoder of the same draw, likewise; with the code and the log-likelihood of `x`."""
        x, mask = self._data(x)
        inputs = self.inputs(x, mask)
        code = self.mean_code(inputs)
        output = None if code is None else self.mean_output(code)
        latent, found, noise = Moments(keep, code), Moments(keep, output), Average()
        log_mean = expected = x.new_zeros(len(x))
        for number, draw in enumerate(self._counted(samples, generator)):
            z, output = draw.reconstruct(inputs)
            latent.add(z)
            _add_output(found, noise, output)
            density = self.likelihood.log_prob(output.f, x, mask)
            log_mean = density if number == 0 else torch.logaddexp(log_mean, density)
            expected = expected + density
        return Reconstruction(
            **vars(_estimate(found, noise)),
            latent=_estimate(latent, None),
            log_prob=log_mean - math.log(found.count),
            expected_log_prob=expected / found.count,
        )

    def _counted(self, samples: int, generator: torch.Generator | None) -> Iterator[Draw]:
        if samples < 1:
            raise DataError(f"samples={samples}: an estimate needs at least one draw.")
        with evaluating(self):  # batch statistics or dropout of a network left in training mode would change answers
            yield from self.draws(samples, generator)

    def inputs(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the encoder takes: the data without holes, and with `missing="mask"` what was observed of them."""
        if self.missing != "mask":
            return x
        return beside_mask(x, torch.ones_like(x) if mask is None else mask)

    def _filled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Inputs without holes, and the mask of what was observed."""
        self._check(x, "data")
        if x.isfinite().all():
            return x, None
        mask = ~x.isnan()
        if not self.missing or x.isinf().any():
            raise DataError(
                f"the data contain NaN or infinity ({int((~x.isfinite()).sum())} of {x.numel()} values). If NaN marks "
                f"missing entries, build {type(self).__name__}(..., missing=True)."
            )
        return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)), mask

    def _data(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Likewise, of data that the likelihood is going to judge."""
        x, mask = self._filled(x)
        if isinstance(self.likelihood, Bernoulli) and not bool(((x >= 0) & (x <= 1)).all()):
            raise DataError(
                f"the Bernoulli likelihood takes data from 0 to 1, got {float(x.min()):.4g} to {float(x.max()):.4g}; "
                "rescale them, or use likelihood='gaussian'."
            )
        return x, mask

    def _check(self, x: Tensor, what: str) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(f"an autoencoder takes floating-point {what}, got {got}; scale it (for instance x / 255).")
        if x.ndim < 2 or len(x) == 0:
            raise DataError(f"{what} of shape {list(x.shape)}: the batch comes first, [B, ...], and is not empty.")
        own = next((p.dtype for p in self.parameters()), x.dtype)
        if x.dtype != own:
            raise DataError(f"the {what} are {x.dtype}, the network {own}; write x.to({own}).")

    # Lightning

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction by the mean network, as the decoder gives it."""
        return self.decoder(self.encoder(self.inputs(x, None)))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimiser trains, as torch's optimisers take it."""
        return [{"params": list(self.parameters())}]

    def configure_optimizers(self) -> Any:
        """Adam (fused) and the plateau schedule."""
        optimiser = adam(self.parameter_groups(), self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=5)
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": plateau, "monitor": "validation_loss", "strict": False},
        }

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """One minibatch."""
        x, mask = self._data(inputs_of(batch))
        loss = self.loss(x, mask)
        if not bool(loss.detach().isfinite()):
            raise DataError(
                f"the training loss is {float(loss)} at step {self.global_step}: training diverged. "
                "Lower the learning rate, or scale the data to about [0, 1]."
            )
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(x))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Expected negative log-likelihood over ten draws, the same ones in every epoch, and squared error."""
        x = inputs_of(batch)
        generator = torch.Generator(device=self.device).manual_seed(VALIDATION_SEED)
        said = self.reconstruct(x, VALIDATION_SAMPLES, generator=generator)
        error = (said.mean - x).square().nan_to_num(0.0).sum() / len(x)
        options = {"batch_size": len(x), "sync_dist": True}
        self.log("validation_loss", -said.expected_log_prob.mean(), prog_bar=True, **options)
        self.log("validation_error", error, **options)


def adam(groups: Iterable[dict[str, Any]], lr: float) -> torch.optim.Adam:
    """Adam with the fused step where all parameters are on devices that have one; torch would say no only later."""
    groups = list(groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(p.is_floating_point() and p.device.type in FUSED_DEVICES for p in parameters)
    return torch.optim.Adam(groups, lr, fused=fused)


def num_data_of(model: LightningModule) -> int:
    """N, the rows of the data set behind the trainer's training loader.

    Raises:
        DataError: The loader has no data set with a length.
    """
    loader = model.trainer.train_dataloader
    try:
        return len(loader.dataset)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        raise DataError(
            f"{type(model).__name__} weighs its prior against the number of training data, which cannot be read from a "
            f"{type(loader).__name__}; pass num_data=."
        ) from None


def inputs_of(batch: Any) -> Tensor:
    """The data of a batch; labels are ignored."""
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(x, Tensor):
        raise DataError(f"a batch must be a tensor or begin with one, got {type(x).__name__}.")
    return x


def _add_output(found: Moments, noise: Average, output: Output) -> None:
    found.add(output.mean)
    if output.noise_variance is not None:
        noise.add(output.noise_variance)


def _estimate(found: Moments, noise: Average | None) -> Estimate:
    return Estimate(
        mean=found.mean,
        variance=found.variance,
        draws=found.count,
        noise_variance=None if noise is None else noise.mean,
        samples=found.samples,
        mean_known=found.mean_known,
    )
