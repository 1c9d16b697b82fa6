"""Join encoder and decoder into one network, as curvature and posteriors take it, and copy it with fresh weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from marquis.arguments import checked
from marquis.errors import UnsupportedOperationError
from marquis.functional.unwrap import named_parameters
from marquis.randomness import seeded


class EncoderDecoder(nn.Module):
    """Compute `decoder(encoder(x))`, with parameters named `encoder.*` and `decoder.*`."""

    @checked
    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction of `x`, as the decoder gives it."""
        return self.decoder(self.encoder(x))


def parts_of(
    weights: Mapping[str, Tensor], encoder: nn.Module, decoder: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split weights named as in `EncoderDecoder` into those of encoder and decoder, as `call_module` takes them.

    A parameter that both use has one name in `EncoderDecoder`, its first, and goes to both.
    """
    joint = {id(parameter): name for name, parameter in named_parameters(EncoderDecoder(encoder, decoder)).items()}

    def part(network: nn.Module) -> dict[str, Tensor]:
        names = {name: joint[id(parameter)] for name, parameter in named_parameters(network).items()}
        return {name: weights[whole] for name, whole in names.items() if whole in weights}

    return part(encoder), part(decoder)


def reinitialised(network: nn.Module, seed: int | None = None) -> nn.Module:
    """Return a copy of `network` that shares nothing with it and has new initial weights.

    Args:
        network: Stays as it is.
        seed: Seed of the new weights; None continues torch's global random stream.

    Raises:
        UnsupportedOperationError: A module has parameters but no `reset_parameters`, so how it starts is not known.
    """
    fresh = copy.deepcopy(network)
    with seeded(seed):
        for path, module in fresh.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif next(module.parameters(recurse=False), None) is not None:
                raise UnsupportedOperationError(
                    f"{path or 'the network'} ({type(module).__name__}) has parameters but no reset_parameters(), so "
                    "there is no second start for it. Write one, or build every network yourself and pass them all."
                )
    return fresh


def code_size(encoder: nn.Module) -> int:
    """Return K, the number of outputs of the encoder's last dense layer.

    Raises:
        UnsupportedOperationError: There is none to read it from.
    """
    sizes = [module.out_features for module in encoder.modules() if isinstance(module, nn.Linear)]
    if not sizes:
        raise UnsupportedOperationError(
            f"the size of the code cannot be read from {type(encoder).__name__}, which has no nn.Linear; pass latent=K."
        )
    return sizes[-1]
