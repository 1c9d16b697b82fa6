"""Define the Laplacian autoencoder, whose weights are a Gaussian that is learnt while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.inputs import Missing, num_data_of
from marquis.autoencoders.learnt_variance import PredictedNoise
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.predictions import SampledModel
from marquis.errors import DataError
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.online.learner import OnlineLaplace
from marquis.online.settings import NEW_NAMES, OnlineSettings
from marquis.options import rename_options, renamed_arguments, renamed_attributes, takes_options
from marquis.posterior import Posterior
from marquis.randomness import new_seed


@renamed_attributes(temperature="effective_temperature")
@takes_options(OnlineSettings)
class LaplacianAutoencoder(BaseAutoencoder):
    """Train the Laplacian autoencoder (Miani et al. 2022, section 3; docs/method/autoencoders.md) with Lightning.

    ```python
    lae = mq.autoencoders.LaplacianAutoencoder(encoder, decoder)
    Trainer(max_epochs=50).fit(lae, loader)
    out = lae.reconstruct(x, samples=100)  # out.mean, out.variance
    ```

    Every step samples a network, computes the loss there and updates the running curvature; see `mq.OnlineLaplace`. By
    default the noise precision is learnt too, and the posterior is cold (posterior temperature 0.01). Checkpoints hold
    curvature, noise, prior and random streams, so that an interrupted training resumes to the same weights.

    Args:
        encoder: `[B, ...] -> [B, K]`. Becomes part of the model and is trained in place, as Lightning does.
        decoder: `[B, K] -> [B, ...]`.
        likelihood: "gaussian", "bernoulli", "heteroscedastic" (the decoder and a copy of it with new weights predict
            mean and log variance of every entry, and the posterior is over both), or an object with that interface;
            for `mq.Heteroscedastic()` the decoder returns both halves itself.
        preset: None, "paper" or "paper-code" (docs/method/online.md#presets), or an `OnlineSettings`.
        num_data: Number of training samples N; by default the rows behind the trainer's training loader.
        generator: Source of the random numbers in training; by default torch's global random stream gives their seed.
        lr: Learning rate of Adam.
        missing: Whether NaN marks a missing entry; see `BaseAutoencoder`.
        **options: Fields of `OnlineSettings`; None keeps the preset's value.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: str | Likelihood = "gaussian",
        *,
        preset: str | OnlineSettings | None = None,
        num_data: int | None = None,
        generator: torch.Generator | None = None,
        lr: float = 1e-3,
        missing: Missing = False,
        **options: Any,
    ) -> None:
        self._online: OnlineLaplace | None = None
        self._held: Mapping[str, Any] | None = None
        predicts_noise = isinstance(likelihood, str) and as_likelihood(likelihood).kind == "heteroscedastic"
        if predicts_noise and not isinstance(decoder, PredictedNoise):
            decoder = PredictedNoise(decoder)
        super().__init__(encoder, decoder, likelihood, lr=lr, missing=missing)
        # In a tuple, so that torch does not list the same parameters under a second name.
        self._joined = (EncoderDecoder(encoder, decoder),)
        self._likelihood_argument = likelihood
        self._seed = new_seed(generator)
        options = rename_options(options, NEW_NAMES, "LaplacianAutoencoder")
        self._options = {"preset": preset, **options}
        made = self._new_learner(1 if num_data is None else num_data)  # refuses wrong options now, not later
        self._online = None if num_data is None else made

    @property
    def online(self) -> OnlineLaplace | None:
        """Return the learner; None before training.

        What a checkpoint holds is taken up when it is first wanted, and a model that was moved to another device takes
        its learner along: curvature and random streams have to be where the weights are, and Lightning loads first and
        moves then.
        """
        saved, learner = self._held, self._online
        if saved is None and learner is not None and learner.device.type != next(self.parameters()).device.type:
            saved = {"num_data": learner.num_data, "state": learner.state_dict()}
        if saved is not None:
            learner = self._new_learner(int(saved["num_data"]))
            learner.load_state_dict(saved["state"])
            self._online, self._held = learner, None
        return learner

    def _new_learner(self, num_data: int) -> OnlineLaplace:
        """Return a new online learner of the joined networks."""
        seeded = torch.Generator().manual_seed(self._seed)
        return OnlineLaplace(
            self._joined[0], self._likelihood_argument, num_data=num_data, generator=seeded, **self._options
        )

    @property
    def likelihood(self) -> Likelihood:
        """Return the likelihood with the noise precision learnt so far."""
        return self._likelihood if self.online is None else self.online.noisy_likelihood

    @likelihood.setter
    def likelihood(self, likelihood: Likelihood) -> None:
        self._likelihood = as_likelihood(likelihood)

    def begin(self, num_data: int) -> None:
        """Make the learner, now that the number of samples and the device are known, unless there is one already."""
        if self.online is None:
            self._online = self._new_learner(num_data)

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative log-likelihood at a sampled network and the prior's share; updates the curvature."""
        return self._learner().step(inputs, x, mask, learning_rate=self.learning_rate)

    @renamed_arguments(**NEW_NAMES)
    @checked
    def posterior(self, posterior_temperature: float | Literal["laplace"] | None = None) -> Posterior:
        """Return the weights `encoder.*` and `decoder.*` as a Gaussian posterior, which samples, predicts and saves.

        Args:
            posterior_temperature: See `OnlineLaplace.posterior`; `from_posterior` makes it an autoencoder again.
        """
        return self._learner().posterior(posterior_temperature)

    @property
    def effective_temperature(self) -> float:
        """Return the effective temperature: 1 is the Laplace posterior, less is colder."""
        return self._learner().effective_temperature

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield networks with weights sampled from the posterior learnt so far."""
        if self.online is None and self._trainer is not None and self.trainer.sanity_checking:
            yield self.model_at({})  # Lightning tries out the validation before training has begun
            return
        online = self._learner()
        source = torch.default_generator if generator is None else generator
        for _ in range(samples):
            yield self.model_at(online.draw(source))

    def _learner(self) -> OnlineLaplace:
        """Return the online learner; raise before training."""
        if self.online is None:
            raise DataError("this Laplacian autoencoder is not trained yet: train it, or pass num_data=.")
        return self.online

    # Lightning

    def on_train_start(self) -> None:
        """Make the learner, unless a checkpoint brought one."""
        if self.online is None:
            self.begin(num_data_of(self))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log what is learnt besides the weights."""
        state = self._learner().state
        self.log("noise_precision", state.noise_precision)
        self.log("prior_precision", state.prior_precision)
        self.log("effective_temperature", self.effective_temperature)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add curvature, noise, prior and random streams to the checkpoint."""
        if self.online is not None:
            checkpoint["online_laplace"] = {"num_data": self.online.num_data, "state": self.online.state_dict()}

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore curvature, noise, prior and random streams."""
        self._held = checkpoint.get("online_laplace")
