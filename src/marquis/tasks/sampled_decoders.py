"""Sample decoders from a model once and use them many times, with their Jacobians in the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked_methods
from marquis.errors import DataError
from marquis.tasks.batches import SameSeed, device_of, dtype_of, naming_shape, require_method

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


@checked_methods
class SampledDecoders:
    """Hold a fixed set of decoders of a model, so that every call uses the same networks.

    Of a model of `marquis.autoencoders` the sampled weights are kept (`samples` times the memory of its decoder) and
    Jacobians are exact. Of any other model with `decode`, and of a linearised one, the networks are those of one
    seed, sampled anew at each call, and Jacobians are central differences: their error is about 1e-10 of the outputs
    in float64, 1e-5 in float32.

    Args:
        model: Anything with `decode`; a module has to be in evaluation mode while threads share it.
        samples: Number of networks; a model that has fewer gives what it has.
        generator: Source of the sampled networks.

    Attributes:
        count: Number of networks.
    """

    def __init__(
        self, model: UncertainAutoencoder, samples: AtLeastOne = 20, *, generator: torch.Generator | None = None
    ) -> None:
        require_method(model, "decode")
        self._model, self._samples = model, samples
        self._same = SameSeed(model, generator)
        self._models = self._kept_models()
        self.count = samples if self._models is None else len(self._models)

    def _kept_models(self) -> list[Any] | None:
        """Return the sampled networks of a model of ours; None for others."""
        from marquis.autoencoders.base import BaseAutoencoder  # here, because it loads Lightning
        from marquis.autoencoders.linearised import LinearisedAutoencoder
        from marquis.autoencoders.variational import VariationalAutoencoder

        model = self._model
        # A traced linearisation takes the code for a constant, so that its derivative would be silently wrong.
        if not isinstance(model, BaseAutoencoder) or isinstance(model, LinearisedAutoencoder):
            return None
        samples = 1 if isinstance(model, VariationalAutoencoder) else self._samples  # its decoder does not vary
        return list(model.sampled_models(samples, self._same.generator()))

    def like_codes(self, z: Tensor) -> Tensor:
        """Return codes in the precision and on the device of the model."""
        codes = z.to(device_of(self._model), dtype_of(self._model) if device_of(self._model) else z.dtype)
        if bool((codes.isinf() & z.isfinite().to(codes.device)).any()):
            raise DataError(f"codes up to {float(z.abs().max()):.3g} are too large for the model's {codes.dtype}.")
        return codes

    @torch.no_grad()
    def outputs(self, z: Tensor) -> Iterator[Tensor]:
        """Yield the decoded means of codes `z [n, K]`, flattened to `[n, D]`, network by network."""
        if self._models is None:
            yield from self._by_protocol(z).samples.flatten(2)
            return
        for sampled in self._models:
            yield self._output_of(sampled, z).mean.flatten(1)

    @torch.no_grad()
    def shaped_outputs(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the decoded means `[S, n, ...]` and the mean noise variance `[n, ...]`, if the model has one."""
        if self._models is None:
            result = self._by_protocol(z)
            return result.samples, result.noise_variance
        outputs = [self._output_of(sampled, z) for sampled in self._models]
        noise = [output.noise_variance for output in outputs if output.noise_variance is not None]
        return torch.stack([output.mean for output in outputs]), torch.stack(noise).mean(0) if noise else None

    def jacobians(self, z: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs `[n, D]` and Jacobians `[n, D, K]` of codes `z [n, K]`, network by network.

        Cost: about `2 K` passes of each network; memory of one network's Jacobian.
        """
        if self._models is None:
            yield from self._differences(z)
            return
        for sampled in self._models:
            yield self._differentiated(sampled, z)

    def _differentiated(self, sampled: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and exact Jacobians of one network.

        `J v` is the derivative of `Jᵀ u` in u: reverse mode twice, because torch's forward mode is not thread-safe.
        """
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            outputs = self._output_of(sampled, leaf).mean.flatten(1)
            u = torch.zeros_like(outputs, requires_grad=True)
            (pulled,) = torch.autograd.grad(outputs, leaf, u, create_graph=True)
            columns = [
                torch.autograd.grad(pulled[:, k].sum(), u, retain_graph=True, allow_unused=True)[0]
                for k in range(z.shape[1])
            ]
        flat = outputs.detach()
        return flat, torch.stack([torch.zeros_like(flat) if c is None else c for c in columns], -1)

    @torch.no_grad()
    def _differences(self, z: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and Jacobians by central differences."""
        step = torch.finfo(z.dtype).eps ** (1 / 3) * z.abs().amax().clamp_min(1)
        shifts = step * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        at = self._by_protocol(z).samples
        beside = [(self._by_protocol(z + shift).samples, self._by_protocol(z - shift).samples) for shift in shifts]
        for number, outputs in enumerate(at):
            columns = [(above[number] - below[number]).flatten(1) / (2 * step) for above, below in beside]
            yield outputs.flatten(1), torch.stack(columns, -1)

    def _output_of(self, sampled: Any, z: Tensor) -> Any:
        """Return the output of one sampled network in evaluation mode."""
        from marquis.variational.base import evaluation_mode

        _require_codes(z)
        with evaluation_mode(self._model), naming_shape(self._model, z, "decoding"):  # type: ignore[arg-type]
            return sampled.decode(z)

    def _by_protocol(self, z: Tensor) -> Any:
        """Return the result of the model's `decode`, with the same networks each time."""
        _require_codes(z)
        with naming_shape(self._model, z, "decoding"):
            result = self._model.decode(z, self._samples, generator=self._same.generator(), keep=True)
        if result.samples is None or result.samples.shape[1] != len(z):
            raise DataError("decode(z, keep=True) must give samples [S, n, ...].")
        self.count = len(result.samples)
        return result


def _require_codes(z: Tensor) -> None:
    """Refuse what is no table of codes."""
    if z.ndim != 2 or not z.is_floating_point():
        raise DataError(f"z has shape {list(z.shape)} ({z.dtype}); codes are floating-point [n, K].")
