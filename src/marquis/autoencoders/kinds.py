"""List the kinds of autoencoders by name, and describe how a model is built, saved and built again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from marquis.arguments import Positive, checked_methods
from marquis.autoencoders import architectures
from marquis.autoencoders.base import Autoencoder, BaseAutoencoder
from marquis.autoencoders.dropout import DropoutAutoencoder
from marquis.autoencoders.ensemble import EnsembleAutoencoder
from marquis.autoencoders.inputs import Missing
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.learnt_variance import LearntVarianceAutoencoder, PredictedNoise
from marquis.autoencoders.mean_field import MeanFieldAutoencoder
from marquis.autoencoders.posthoc import fit_posthoc
from marquis.autoencoders.variational import VariationalAutoencoder
from marquis.choices import choose, match_choice
from marquis.errors import DataError
from marquis.likelihoods import Likelihood
from marquis.online.settings import NEW_NAMES, OnlineSettings
from marquis.options import options_of, rename_options
from marquis.randomness import seeded

OWN = "own"
"""The architecture of networks that the user brings."""
BUILT = ("auto", "dense", "convolutional")
"""Architectures that are derived from the data's shape."""


@dataclass(frozen=True)
class Kind:
    """Describe one kind of autoencoder.

    Attributes:
        model: What is trained.
        summary: One line for lists of kinds.
        options: Names of the options it takes besides those that all have.
        gaussian_only: Whether it has no likelihood to choose.
        posthoc: Whether the posterior is made after training.
    """

    model: type[BaseAutoencoder]
    summary: str
    options: tuple[str, ...] = ()
    gaussian_only: bool = False
    posthoc: bool = False


KINDS: dict[str, Kind] = {
    "lae": Kind(
        LaplacianAutoencoder,
        "Laplacian autoencoder: a Gaussian over its weights is learnt in training",
        ("preset", *options_of(OnlineSettings)),
    ),
    "lae-posthoc": Kind(
        Autoencoder,
        "plain autoencoder with a Laplace posterior fitted after training",
        ("structure", "estimator", "tune", "temperature", "posterior_temperature"),
        posthoc=True,
    ),
    "ae": Kind(Autoencoder, "plain autoencoder, constant noise, no uncertainty"),
    "ae-variance": Kind(
        LearntVarianceAutoencoder, "plain autoencoder that predicts its noise", ("min_log_sigma",), gaussian_only=True
    ),
    "vae": Kind(VariationalAutoencoder, "variational autoencoder: codes are uncertain", ("kl_weight", "min_log_sigma")),
    "dropout": Kind(DropoutAutoencoder, "Monte Carlo dropout", ("p", "on_code")),
    "ensemble": Kind(EnsembleAutoencoder, "five autoencoders from different initial weights", ("members",)),
    "bbb": Kind(
        MeanFieldAutoencoder, "Bayes by Backprop: mean-field weights", ("prior_scale", "tempering", "multiplier")
    ),
}


@checked_methods
@dataclass(frozen=True)
class ModelSpec:
    """Describe a model so that it can be built again; the weights are kept apart.

    Attributes:
        kind: One of `KINDS`.
        shape: Shape of one example, without the batch.
        latent: K, the size of the code.
        architecture: One of the paper's by name (`mnist-dense`, `fashion-conv`, `celeba-conv`); "auto", "dense" or
            "convolutional" for networks derived from the shape; "own" for networks that are passed to `build`.
        width: Factor on the numbers of channels and hidden units.
        likelihood: "gaussian", "bernoulli", for "lae" also "heteroscedastic", or an object.
        missing: Whether NaN marks a missing entry; see `BaseAutoencoder`. "mask" with derived or own networks.
        lr: Learning rate.
        options: Further options of the kind, such as `preset` or `kl_weight`; what JSON can hold.
    """

    kind: str
    shape: tuple[int, ...]
    latent: int
    architecture: str = "auto"
    width: float = 1.0
    likelihood: str | Likelihood = "gaussian"
    missing: Missing = False
    lr: Positive = 1e-3
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        object.__setattr__(self, "kind", choose("kind of autoencoder", self.kind, KINDS))
        kind = KINDS[self.kind]
        if self.kind == "lae":
            object.__setattr__(self, "options", rename_options(self.options, NEW_NAMES, "ModelSpec"))
        unknown = sorted(set(self.options) - set(kind.options))
        if unknown:
            takes = ", ".join(kind.options) or "none"
            raise DataError(f"{self.kind} has no option {', '.join(unknown)}; it takes: {takes}.")
        if kind.gaussian_only and self.likelihood != "gaussian":
            raise DataError(f"{self.kind} predicts the noise of a Gaussian; it takes likelihood='gaussian' only.")
        if self.likelihood == "heteroscedastic" and self.kind != "lae":
            raise DataError(
                f"{self.kind} has no likelihood 'heteroscedastic': lae has; ae-variance predicts its noise."
            )
        known = (*BUILT, *architectures.NAMES, OWN)
        if self.architecture not in known:
            raise DataError(f"no architecture is called {self.architecture!r}; known: {', '.join(known)}.")

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> ModelSpec:
        """Return the description that `as_json` wrote, also in earlier versions."""
        try:
            kind, options = entries["kind"], dict(entries["options"])
            shape = tuple(int(size) for size in entries["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"this is no description that as_json wrote ({type(error).__name__}: {error}).") from error
        if kind == "lae":
            options = {NEW_NAMES.get(name, name): value for name, value in options.items()}
        return cls(**{**entries, "shape": shape, "options": options})

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them; a likelihood that is an object stays one."""
        entries = {name: getattr(self, name) for name in ModelSpec.__dataclass_fields__}
        return entries | {"shape": list(self.shape), "options": dict(self.options)}

    def networks(self, seed: int | None = None) -> tuple[nn.Module, nn.Module]:
        """Build encoder and decoder with new weights.

        Raises:
            DataError: The architecture is for data of another shape, or the user's own.
        """
        if self.architecture == OWN:
            raise DataError("this model has networks of the user's own: pass networks=(encoder, decoder).")
        with torch.device("meta"):  # nothing is allocated before it is known to fit
            encoder, decoder = self._pair(None)
            _require_shape(encoder, decoder.mean if isinstance(decoder, PredictedNoise) else decoder, self)
        return self._pair(seed)

    def size(self) -> int:
        """Return the number of weights of encoder and decoder; nothing is allocated."""
        with torch.device("meta"):
            return sum(p.numel() for network in self._pair(None) for p in network.parameters())

    def _pair(self, seed: int | None) -> tuple[nn.Module, nn.Module]:
        """Build encoder and decoder, the latter with a second network for the noise where it is predicted."""
        encoder, decoder = self._plain_pair(seed)
        if self.likelihood != "heteroscedastic":
            return encoder, decoder
        with seeded(seed):
            return encoder, PredictedNoise(decoder)

    def _plain_pair(self, seed: int | None) -> architectures.Pair:
        """Build encoder and decoder by the architecture's name, or for the shape of the data."""
        kind = match_choice(self.architecture, BUILT)
        if kind is None:
            return architectures.build(self.architecture, self.latent, self.width, seed=seed)
        with seeded(seed):
            encoder, decoder = architectures.build(self.shape, self.latent, self.width, kind=kind)
            if self.missing == "mask":
                encoder, _ = architectures.build(self._inputs, self.latent, self.width, kind=kind)
            return encoder, decoder

    @property
    def _inputs(self) -> tuple[int, ...]:
        """Return the shape of the encoder's inputs."""
        return (2 * self.shape[0], *self.shape[1:]) if self.missing == "mask" else self.shape

    def build(self, seed: int | None = None, networks: tuple[nn.Module, nn.Module] | None = None) -> BaseAutoencoder:
        """Build the untrained model; for a post-hoc kind, the plain autoencoder that is trained first.

        Args:
            seed: Seed of the weights and of the model's random streams; None continues torch's global stream.
            networks: The user's encoder and decoder, for architecture "own".
        """
        kind = KINDS[self.kind]
        with seeded(seed):
            pair = self.networks() if networks is None else networks
            arguments: dict[str, Any] = {"lr": self.lr, "missing": self.missing}
            if not kind.gaussian_only:
                arguments["likelihood"] = self.likelihood
            if not kind.posthoc:
                arguments |= self.options
            return kind.model(*pair, **arguments)

    def finish(
        self, model: BaseAutoencoder, loader: Iterable[Any], *, seed: int = 0, progress: bool = True
    ) -> BaseAutoencoder:
        """Return the finished model after training: for a post-hoc kind with its posterior, otherwise as it is."""
        if not KINDS[self.kind].posthoc:
            return model
        if not isinstance(model, Autoencoder):
            raise DataError(f"{self.kind} is made of a plain autoencoder, not of {type(model).__name__}.")
        generator = torch.Generator().manual_seed(seed)
        return fit_posthoc(model, loader, generator=generator, progress=progress, **self.options)


def _require_shape(encoder: nn.Module, decoder: nn.Module, spec: ModelSpec) -> None:
    """Refuse networks that do not map the data to their own shape; tried on tensors without contents."""
    try:
        out = decoder(encoder(torch.empty(1, *spec._inputs)))
    except RuntimeError as error:
        taken = f"data of shape {list(spec.shape)}"
        if spec.missing == "mask":
            taken += " with the mask beside them (missing='mask')"
        raise DataError(f"the architecture {spec.architecture!r} does not take {taken}; use 'auto'.") from error
    if tuple(out.shape[1:]) != tuple(spec.shape):
        raise DataError(
            f"the architecture {spec.architecture!r} makes data of shape {list(out.shape[1:])} out of "
            f"{list(spec.shape)}; use 'auto'."
        )
