"""Encoder and decoder joined into the one network that curvature and posteriors speak about."""

from __future__ import annotations

from torch import Tensor, nn


class EncoderDecoder(nn.Module):
    """`decoder(encoder(x))`, with parameters named `encoder.*` and `decoder.*`."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of `x`, as the decoder gives it."""
        return self.decoder(self.encoder(x))
