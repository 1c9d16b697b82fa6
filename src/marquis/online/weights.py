"""Sample weights from the running posterior into memory that is kept between steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marquis.errors import NumericalError
from marquis.functional.call import laid_out_like
from marquis.online.random_numbers import fill_with_noise, fill_with_samples
from marquis.online.settings import OnlineSettings
from marquis.online.state import OnlineState
from marquis.structures import Diagonal, Layout


@torch.no_grad()
def sample_weights(
    layout: Layout,
    means: Mapping[str, Tensor],
    state: OnlineState,
    settings: OnlineSettings,
    generator: torch.Generator,
    out: Tensor,
) -> dict[str, Tensor]:
    """Return one sample of `N(mean, precision^-1)` by name, each as its mean is laid out in memory."""
    samples, temperature = layout.unflatten(out), settings.posterior_temperature
    flat_means = [means[name].detach().reshape(-1).to(out.dtype) for name in samples]
    if state.curvature is None or isinstance(state.curvature, Diagonal):
        curvatures = None
        if state.curvature is not None:
            curvatures = [part.view(-1) for part in layout.unflatten(state.curvature.values).values()]
        weight = settings.factor * state.noise_precision / temperature
        flat = [part.view(-1) for part in samples.values()]
        fill_with_samples(flat, flat_means, curvatures, weight, state.constant(temperature), generator)
    else:
        precision = state.precision(settings.factor, temperature)
        noise = torch.empty(precision.noise_dim, dtype=out.dtype, device=out.device)
        torch.add(precision.sample_from(fill_with_noise(noise, generator)), torch.cat(flat_means), out=out)
    return {name: laid_out_like(value.to(means[name].dtype), means[name]) for name, value in samples.items()}


def require_finite_weights(samples: Mapping[str, Tensor], layout: Layout) -> None:
    """Raise if the standard deviation of a weight was infinite."""
    for name, value in samples.items():
        if not bool(value.detach().sum().isfinite()):  # a finite sum proves finite entries without a temporary
            index = int((~value.detach().isfinite()).reshape(-1).nonzero()[0])
            place = layout.locate(layout.slice(name).start + index)
            raise NumericalError(
                f"the precision of weight {place} has decayed to zero, so its standard deviation is infinite: without "
                "a prior in the precision, weights that see no data are forgotten. Use prior_precision > 0."
            )
