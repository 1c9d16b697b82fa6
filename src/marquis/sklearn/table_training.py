"""Training of a Laplacian autoencoder on a table: a plain loop with early stopping on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marquis.errors import DataError, NumericalError
from marquis.sklearn.options import is_number, positive, whole
from marquis.sklearn.table_learner import TableLearner, can_be_written_out

if TYPE_CHECKING:
    from marquis.online import OnlineLaplace

HELD_OUT_DRAWS, SMALLEST_HELD_OUT = 5, 5
"""Networks per check of the held-out rows; and how many rows there have to be, or nothing is held out."""

GAIN = 1e-3
"""Nats per entry that count as an improvement of the held-out likelihood."""


@dataclass(frozen=True)
class TableTraining:
    """How to train.

    Attributes:
        epochs: Passes over the data at most.
        batch_size: Rows per step.
        learning_rate: Of Adam, at the start; halved whenever half the patience has gone by.
        patience: Epochs without a better held-out likelihood after which training stops.
        held_out: Share of the rows that is held out.
        hide: Share of the observed entries, from 0 to 1, that the encoder does not see though they are predicted.
        mask_input: Whether the encoder takes `[B, 2 d]`: the entries it sees, and which ones these are.
        report: Called with a line of text now and then; None is silent.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    patience: int
    held_out: float
    hide: float
    mask_input: bool = False
    report: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("epochs", "batch_size", "patience"):
            whole(name, getattr(self, name))
        positive("lr", self.learning_rate)
        for name, value in (("validation_fraction", self.held_out), ("hide", self.hide)):
            if not (is_number(value) and 0 <= value < 1):
                raise DataError(f"{name}={value!r}: a share from 0 to below 1.")

    def run(
        self, encoder: nn.Module, decoder: nn.Module, x: Tensor, generator: torch.Generator, **options: Any
    ) -> tuple[OnlineLaplace, int, Tensor]:
        """Encoder and decoder trained on `x [N, d]`, with NaN where entries are missing; epochs; held-out rows.

        Weights and curvature are those of the best held-out likelihood. Cost: about 2.5 plain steps per step.

        Args:
            encoder: Trained in place.
            decoder: Trained in place.
            x: Standardised rows.
            generator: Of all that is random.
            **options: Of `marquis.OnlineLaplace`.
        """
        from marquis.autoencoders.base import adam  # here, because it loads Lightning

        train, held_out = self._split(x, generator)
        online = online_learner(encoder, decoder, num_data=len(train), generator=generator, **options)
        weights = online.means()
        optimiser = adam([{"params": list(weights.values())}], self.learning_rate)
        check = _HeldOut(self, held_out, generator) if len(held_out) else None
        best, kept, since = math.inf, None, 0
        epoch = 0
        for epoch in range(1, int(self.epochs) + 1):
            for rows in torch.randperm(len(train), generator=generator).split(int(self.batch_size)):
                inputs, targets, mask = self.shown(train[rows], generator)
                optimiser.zero_grad()
                loss = online.step(inputs, targets, mask)
                if not bool(loss.detach().isfinite()):
                    raise NumericalError(
                        f"training diverged: the loss is {float(loss)} in epoch {epoch}; lower lr, or look for values "
                        "that are far from all others."
                    )
                loss.backward()
                optimiser.step()
            if check is None:
                continue
            now = check(online)
            self._say(f"epoch {epoch}: held-out -log p per entry {now:.4f}")
            if now < best - GAIN:
                best, since = now, 0
                kept = {name: own.detach().clone() for name, own in weights.items()}, online.state
                continue
            since += 1
            if since >= self.patience:
                break
            if since % max(1, int(self.patience) // 2) == 0:
                for group in optimiser.param_groups:
                    group["lr"] *= 0.5
        if kept is not None:
            with torch.no_grad():
                for name, own in weights.items():
                    own.copy_(kept[0][name])
            online.state = kept[1]
        self._say(f"{epoch} epochs, noise precision {online.state.noise_precision:.4g}")
        return online, epoch, held_out

    def shown(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """What the encoder sees of rows, what is to be predicted, and the mask of what was observed of that.

        Zero, the mean of a column, stands at entries that are missing or hidden. A target that the mask leaves out has
        no influence whatsoever.
        """
        from marquis.autoencoders.network import beside_mask  # here, because it loads Lightning

        observed = ~x.isnan()
        targets = torch.where(observed, x, 0)
        seen = observed & ~hidden(x, self.hide, generator)
        inputs = torch.where(seen, targets, 0)
        return beside_mask(inputs, seen) if self.mask_input else inputs, targets, observed

    def _split(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Training rows and held-out rows."""
        count = round(self.held_out * len(x))
        if count < SMALLEST_HELD_OUT:
            return x, x[:0]
        if count == len(x):
            raise DataError(f"validation_fraction={self.held_out!r} leaves none of {len(x)} rows to learn from.")
        order = torch.randperm(len(x), generator=generator)
        return x[order[count:]], x[order[:count]]

    def _say(self, line: str) -> None:
        if self.report is not None:
            self.report(line)


def online_learner(encoder: nn.Module, decoder: nn.Module, generator: torch.Generator, **options: Any) -> OnlineLaplace:
    """The learner of `decoder(encoder(x))` with the exact diagonal, written out where the networks are known."""
    from marquis.autoencoders import EncoderDecoder
    from marquis.online import OnlineLaplace

    joined = EncoderDecoder(encoder, decoder)
    options["generator"] = torch.Generator().manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
    if can_be_written_out(encoder, decoder):
        return TableLearner(joined, **options)
    return OnlineLaplace(joined, "gaussian", "diagonal", "exact", **options)


def hidden(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Which entries the encoder is not to see: for each row a share between 0 and twice `share` (at most all)."""
    if share == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    shares = 2 * share * torch.rand(len(x), 1, dtype=x.dtype, generator=generator)
    return torch.rand(x.shape, dtype=x.dtype, generator=generator) < shares


class _HeldOut:
    """Negative predictive log-likelihood per observed entry of held-out rows, with the same draws every time."""

    def __init__(self, training: TableTraining, x: Tensor, generator: torch.Generator) -> None:
        self.inputs, self.targets, self.mask = training.shown(x, generator)
        self.seed = int(torch.randint(2**62, (), generator=generator))

    @torch.no_grad()
    def __call__(self, online: OnlineLaplace) -> float:
        found, source = [], torch.Generator().manual_seed(self.seed)
        for _ in range(HELD_OUT_DRAWS):
            f = online.outputs(online.draw(source), self.inputs)
            found.append(online.noisy_likelihood.log_prob(f, self.targets, self.mask))
        log_prob = torch.stack(found).logsumexp(0) - math.log(len(found))
        return float(-log_prob.sum() / self.mask.sum().clamp_min(1))
