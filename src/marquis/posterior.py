"""Represent a Gaussian over weights by mean and precision: sampling, density, variances, covariance of functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from marquis.arguments import FromZero, checked, checked_methods
from marquis.errors import DataError, ModelMismatchError
from marquis.io.tensors import save_tensors, split_prefix
from marquis.randomness import device_for
from marquis.structures import Layout, Structure, from_state_dict


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Hold `theta ~ N(mean, precision^-1)` over the parameters of `layout`; an immutable value.

    See docs/method/posterior.md#posterior-precision.

    Parameters of the network that are not in `layout` stay at the values that the model has when it is used. With
    `index`, only some single weights are random (a subnetwork) and the others stay at their mean.

    Args:
        layout: names and shapes of the parameters.
        mean: one tensor per name.
        precision: `A = H / T + prior`, over the `P` weights of `layout`, or over those at `index` only.
        index: positions in the flat vector of `layout` of the weights that are random; None for all of them.
    """

    layout: Layout
    mean: dict[str, Tensor]
    precision: Structure
    index: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that mean, precision and index belong together."""
        flat = self.layout.flatten({name: tensor.detach() for name, tensor in self.mean.items()})
        if flat.dim() != 1:
            raise DataError("the mean of a posterior is one tensor per parameter, without leading axes.")
        self.layout.check_finite(flat, "posterior mean")
        object.__setattr__(self, "mean", {name: self.mean[name].detach() for name in self.layout.names})
        expected = self.layout.total if self.index is None else len(self.index)
        if self.precision.layout.total != expected:
            raise ModelMismatchError(
                f"the precision is over {self.precision.layout.total} weights, the posterior over {expected}."
            )
        if self.index is None:
            self.layout.require_same(self.precision.layout)
        elif expected and (int(self.index.min()) < 0 or int(self.index.max()) >= self.layout.total):
            raise DataError(f"index points outside of the {self.layout.total} weights of the posterior's parameters.")

    # --- between all weights of the layout and the random ones -----------------------------------------

    @property
    def vector(self) -> Tensor:
        """Return the mean as one flat vector `[P]`."""
        return self.layout.flatten(self.mean)

    @property
    def num_random(self) -> int:
        """Return the number of weights that are random."""
        return self.precision.layout.total

    def restrict(self, v: Tensor) -> Tensor:
        """Return the random entries `[..., K]` of `[..., P]`."""
        return v if self.index is None else v[..., self.index]

    def embed(self, v: Tensor) -> Tensor:
        """Return `[..., K]` over all weights of the layout, `[..., P]`, with zeros for weights that are not random."""
        if self.index is None:
            return v
        return v.new_zeros(*v.shape[:-1], self.layout.total).index_copy(-1, self.index, v)

    # --- the distribution ------------------------------------------------------------------------------

    @property
    def noise_dim(self) -> int:
        """Return how many standard normal numbers one sample takes."""
        return self.precision.noise_dim

    def deviations_from(self, z: Tensor) -> dict[str, Tensor]:
        """Return `theta - mean` for noise `z [..., noise_dim]`: linear in z, by name `[..., *shape]`."""
        flat = self.embed(self.precision.sample_from(z))
        return {name: part.to(self.mean[name]) for name, part in self.layout.unflatten(flat).items()}

    def noise(self, n: FromZero, generator: torch.Generator | None = None) -> Tensor:
        """Return `[n, noise_dim]` standard normal numbers, in the precision's dtype and on its device."""
        device = device_for(generator, self.precision.device)
        # One call per sample: torch would deal out other numbers to the same sample in larger calls, and then weights
        # would depend on how many are drawn at once, that is, on the size of a chunk.
        options = {"generator": generator, "dtype": self.precision.dtype, "device": device}
        rows = [torch.randn(self.noise_dim, **options) for _ in range(n)]
        return torch.stack(rows).to(self.precision.device) if rows else self.precision.like.new_zeros(0, self.noise_dim)

    def sample_from(self, z: Tensor) -> dict[str, Tensor]:
        """Return the weights for standard normal noise `z [..., noise_dim]`, by name `[..., *shape]`."""
        return {name: self.mean[name] + d for name, d in self.deviations_from(z).items()}

    @checked
    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return `n` samples of the weights, by name `[n, *shape]`."""
        return self.sample_from(self.noise(n, generator))

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the normalised log density at `params` (by name, `[..., *shape]`), over the random weights."""
        difference = self.layout.flatten(dict(params)) - self.vector
        difference = self.restrict(difference).to(self.precision.dtype)
        squared = (difference * self.precision.matvec(difference)).sum(-1)
        return 0.5 * (self.precision.logdet() - squared - self.num_random * math.log(2 * math.pi))

    def variance(self) -> dict[str, Tensor]:
        """Return the marginal variance of every weight, by name; 0 where a weight is not random."""
        flat = self.embed(self.precision.inverse_diagonal())
        return {name: part.to(self.mean[name]) for name, part in self.layout.unflatten(flat).items()}

    def functional_covariance(self, jacobian: Tensor) -> Tensor:
        """Return `J A^-1 J^T [..., O, O]` for `J [..., O, P]`: covariance of linear functions of the weights."""
        return self.precision.quadratic(self.restrict(jacobian))

    def functional_variance(self, jacobian: Tensor) -> Tensor:
        """Return the diagonal of `functional_covariance`, `[..., O]`, without the O x O matrix."""
        return self.precision.quadratic(self.restrict(jacobian), diagonal_only=True)

    def covariance_matvec(self, v: Tensor) -> Tensor:
        """Return `A^-1 v` for `v [..., P]`, zero where nothing is random."""
        return self.embed(self.precision.solve(self.restrict(v)))

    # --- saving ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return a flat dictionary of contiguous tensors, ready for safetensors."""
        order = json.dumps(self.layout.names).encode()  # files sort their entries, but the order is the layout's
        state = {"names": torch.tensor(list(order), dtype=torch.uint8)}
        state |= {f"mean.{name}": t.clone(memory_format=torch.contiguous_format) for name, t in self.mean.items()}
        state |= {f"precision.{key}": tensor for key, tensor in self.precision.state_dict().items()}
        return state if self.index is None else {**state, "index": self.index.clone()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Posterior:
        """Build the posterior that `state_dict` described.

        Raises:
            DataError: the state is incomplete or of something else.
        """
        means = split_prefix(state, "mean.")
        try:
            names = json.loads(bytes(state["names"].tolist()).decode())
            mean = {name: means[name] for name in names}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"this is not the complete state of a posterior ({error!r}): corrupt file?") from error
        precision = from_state_dict(split_prefix(state, "precision."))
        return cls(Layout.of(mean), mean, precision, state.get("index"))

    @checked
    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, atomically; `marquis.load` reads it."""
        save_tensors(path, "posterior", {}, self.state_dict())

    def __repr__(self) -> str:
        """Show how many weights and which structure."""
        part = "" if self.index is None else f" of {self.layout.total}"
        return f"Posterior({self.num_random}{part} weights, {self.precision!r})"
