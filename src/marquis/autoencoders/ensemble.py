"""Join plain autoencoders with different initial weights into an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, checked, describe_value
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.network import EncoderDecoder, reinitialised
from marquis.autoencoders.predictions import SampledModel
from marquis.errors import DataError
from marquis.likelihoods import Likelihood
from marquis.options import inherits_options


class _Pair(Protocol):
    encoder: nn.Module
    decoder: nn.Module


@inherits_options
class EnsembleAutoencoder(BaseAutoencoder):
    """Train an ensemble of autoencoders, five by default, from different initial weights.

    Source: Lakshminarayanan et al. (2017); docs/method/autoencoders.md#baselines.

    All members are trained on the same batches and with one learning rate: the loss is the sum of theirs, so that each
    has the gradient it would have alone. Only the initial weights differ, not the order of the data. The first member
    consists of the networks passed, the others are copies with new weights. Its samples are its members, once each,
    whatever number of samples is requested.

    Args:
        encoder: `[B, ...] -> [B, K]`.
        decoder: `[B, K] -> [B, ...]`.
        likelihood: "gaussian" (unit noise) or "bernoulli", or an object with that interface.
        members: Number of members.
        seed: Seed of the copies' initial weights; None continues torch's global random stream.
        **options: `lr` and `missing`, as `BaseAutoencoder` takes them.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: str | Likelihood = "gaussian",
        *,
        members: AtLeastOne = 5,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, decoder, likelihood, **options)
        start = EncoderDecoder(encoder, decoder)
        seeds = [None if seed is None else seed + number for number in range(members - 1)]
        self.others = nn.ModuleList([reinitialised(start, member_seed) for member_seed in seeds])

    @classmethod
    @checked
    def of(
        cls,
        members: Sequence[_Pair],
        likelihood: str | Likelihood = "gaussian",
        **options: Any,
    ) -> EnsembleAutoencoder:
        """Return an ensemble of existing networks, for instance of autoencoders trained one by one."""
        if not members:
            raise DataError("an ensemble has at least one member.")
        for number, member in enumerate(members):
            if not hasattr(member, "encoder") or not hasattr(member, "decoder"):
                what = describe_value(member)
                raise DataError(f"members[{number}] is {what}; every member has networks `encoder` and `decoder`.")
        first, *others = members
        made = cls(first.encoder, first.decoder, likelihood, members=1, **options)
        made.others = nn.ModuleList([EncoderDecoder(member.encoder, member.decoder) for member in others])
        return made

    @property
    def members(self) -> list[EncoderDecoder]:
        """Return all members, the first included."""
        others = [other for other in self.others if isinstance(other, EncoderDecoder)]
        return [EncoderDecoder(self.encoder, self.decoder), *others]

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the members' outputs."""
        inputs = self.inputs(x, None)
        return torch.stack([member(inputs) for member in self.members]).mean(0)

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield the members."""
        for member in self.members:
            yield SampledModel(member.encoder, lambda z, decoder=member.decoder: self.output(decoder(z)))

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the members' negative log-likelihoods per sample, summed over the members."""
        losses = [-self.likelihood.log_prob(member(inputs), x, mask).mean() for member in self.members]
        return torch.stack(losses).sum()
