"""Represent the curvature of a data set as a matrix that is never formed: products over a loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.arguments import AtLeastOne, checked
from marquis.choices import choose
from marquis.curvature.linop.iterative import rademacher
from marquis.curvature.linop.linear_operator import LinearOperator
from marquis.curvature.linop.products import KINDS, batch_product
from marquis.distributed import exchange, fails_together, from_first_process, group_is_up, guarded, sum_tensor
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.functional.call import Model, describe
from marquis.functional.checks import all_finite, batch_size, check_finite, is_close
from marquis.functional.function import NetworkFunction
from marquis.functional.selection import Selection
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import number_of_batches, refuse_one_shot, split_batch
from marquis.progress import ProgressBar
from marquis.randomness import new_seed
from marquis.structures.layout import Layout

VECTORS_PER_PASS = 8
"""Vectors that go through a batch of a dense network together."""


@fails_together
@checked
def operator(
    model: Model,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any,
    kind: str = "ggn",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    vectors_per_pass: AtLeastOne | None = None,
    distributed: bool = True,
    check: bool = True,
    progress: bool = False,
) -> CurvatureOperator:
    """Return the curvature of the negative log likelihood, summed over a loader, as a linear operator.

    Cost of a product with k vectors: one pass over the data with a forward pass, and a forward-mode and a backward
    pass per vector (for the Hessian two backward passes).
    Memory: linear in the parameters, and the activations of one batch for `vectors_per_pass` vectors.

    Args:
        model: a module in evaluation mode, or a function `(params, x) -> outputs`.
        loader: yields `(x, y)`, `x` alone, or dicts; iterated once per product, so a list or a `DataLoader`, not
            a generator. Shuffling is harmless for a sum, except under `kind="fisher"`.
        likelihood: a name or an object of `marquis.likelihoods`.
        kind: `"ggn"`; `"hessian"`, the true one, indefinite in general; `"fisher"`, with one label per sample from the
            model, the same in all products; `"empirical-fisher"`, with the true labels, a different matrix
            (docs/method/curvature.md#hessian-and-fisher).
        params: the parameters of a function, or other values for a module's.
        parameters: which parameters: `None` for all that are trainable, a pattern, a predicate, or names.
        generator: seeds the labels of `kind="fisher"`.
        dtype: compute in this type (parameters and floating data are converted); by default as they are.
        vectors_per_pass: vectors that go through a batch together, by `vmap`, which shares the forward pass and costs
            memory. By default 8 where all parameters are matrices and vectors, else 1: kernels of convolutions are
            slow under `vmap`.
        distributed: if a process group is up, each process's loader is its share and products are summed over
            all (vectors must be the same in all processes; random probes are the first process's).
        check: two products at the start, to find dropout, loaders that change, NaN in the data.
        progress: show a bar for every pass over the data.

    Raises:
        DataError: the loader is empty, can be iterated only once, changes, or holds NaN.
        UnsupportedOperationError: active batch statistics or dropout, or outputs that vary from call to call.
    """
    kind = choose("kind", kind, KINDS)
    refuse_one_shot(loader, "a curvature operator")
    network = NetworkFunction.copy_of(model, params=params, parameters=parameters, dtype=dtype)
    if vectors_per_pass is None:
        vectors_per_pass = VECTORS_PER_PASS if all(value.dim() <= 2 for value in network.point.values()) else 1
    seed = new_seed(generator) if kind == "fisher" else 0
    shared = distributed and group_is_up()
    made = CurvatureOperator(
        network, loader, as_likelihood(likelihood), kind, seed, dtype, vectors_per_pass, shared, progress
    )
    if check:
        made.require_fixed()
    return made


@dataclass(eq=False, repr=False)
class CurvatureOperator(LinearOperator):
    """Represent a fixed symmetric matrix, the sum over a loader, by its products; made by `operator`.

    Attributes:
        network: the network at its parameters.
        loader: the data, or this process's share of them.
        likelihood: p(y|f).
        kind: which curvature it is.
        seed: of the labels of `kind="fisher"`, drawn anew for each product: the matrix is fixed and nothing is stored.
        data_dtype: type that floating data are converted to; None for that of the parameters.
        vectors_per_pass: vectors that go through a batch together.
        shared: whether products are summed over the processes of a group.
        progress: whether every pass shows a bar.
        num_data: how many data the (own share of the) loader holds; 0 before the first product if unchecked.
    """

    network: NetworkFunction
    loader: Iterable[Any]
    likelihood: Likelihood
    kind: str
    seed: int
    data_dtype: torch.dtype | None
    vectors_per_pass: int
    shared: bool
    progress: bool
    num_data: int = 0

    def __post_init__(self) -> None:
        """Read layout, type and device from the network."""
        self.layout = Layout.of(self.network.point)
        self.dtype, self.device = computing_dtype(self.network.dtype), self.network.device

    def __repr__(self) -> str:
        """Show kind, size, model and data in one line."""
        model = describe(self.network.model)
        return f"CurvatureOperator(kind={self.kind!r}, P={self.size}, model={model}, num_data={self.num_data})"

    def _product(self, rows: Tensor) -> Tensor:
        with self._untouched_rng(), torch.inference_mode(False):
            return self._pass(rows)

    def _pass(self, rows: Tensor, *, inspect: bool = False) -> Tensor:
        """Pass over the data once and return the sum over processes, which is taken even if this one failed."""
        total = torch.zeros_like(rows)
        if self.shared:
            fails_together(self._add_up, confirm=False)(rows, total, inspect)
            if not any(exchange(self.num_data)):
                raise DataError("no process's loader yields a batch; there is no curvature without data.")
            total = sum_tensor(total)
        else:
            self._add_up(rows, total, inspect)
        if not all_finite(total):
            raise NumericalError(
                f"a product with the {self.kind} is NaN or infinite though data and outputs are finite; compute in "
                "float64, or look for an operation with an infinite derivative (sqrt or norm at 0)."
            )
        return total

    def _add_up(self, rows: Tensor, total: Tensor, inspect: bool) -> None:
        """Add the products of all batches with the rows to `total`; the first pass inspects the data."""
        samples = 0
        for index, batch in enumerate(self._batches()):
            x, y = split_batch(batch)
            count = batch_size(x)
            if inspect:
                check_finite(x, "x")
                check_finite(y, "y")
            x, y = (self.network.prepare(part, self.data_dtype) for part in (x, y))
            if inspect and samples == 0:
                self._refuse_coupled_samples(x)
            samples += count
            product = batch_product(self.network, self.likelihood, self.kind, x, y, self._label_generator(index))
            for start in range(0, rows.shape[0], self.vectors_per_pass):
                part = slice(start, start + self.vectors_per_pass)
                pieces = product(list(self.layout.unflatten(rows[part]).values()))
                for name, piece in zip(self.layout.names, pieces, strict=True):
                    total[part, self.layout.slice(name)] += piece.flatten(start_dim=1)
        if samples == 0 and not self.shared:  # a share may be empty; whether all are, the exchange tells
            raise DataError("the loader yields no batches; there is no curvature without data.")
        if self.num_data not in (0, samples):
            raise DataError(
                f"the loader yielded {samples} data in this pass and {self.num_data} in the first; it must give the "
                "same data whenever it is iterated."
            )
        self.num_data = samples

    def _refuse_coupled_samples(self, x: Any) -> None:
        """Refuse a network whose outputs for a sample depend on the rest of its batch."""
        network = self.network
        outputs = network.at_point(x)
        if not is_close(network.at_point(x), outputs):
            return  # random: then two products will differ
        network.refuse_coupled_samples(x)

    def _batches(self) -> Iterator[Any]:
        """Yield the batches of one pass, with a progress bar if there is to be one."""
        with ProgressBar(f"{self.kind} product", number_of_batches(self.loader), self.progress) as bar:
            for batch in guarded(self.loader) if self.shared else self.loader:
                yield batch
                bar.advance()

    def _label_generator(self, index: int) -> torch.Generator | None:
        """Return the generator of a batch's labels: the same labels in every product."""
        if self.kind != "fisher":
            return None
        rank = dist.get_rank() if self.shared else 0
        # Golden-ratio strides keep the seeds of different batches and processes far apart.
        seed = (self.seed + index * 0x9E3779B97F4A7C15 + rank * 0xC2B2AE3D27D4EB4F) % 2**63
        return torch.Generator(device=self.device).manual_seed(seed)

    def probe_vectors(self, probes: int | Tensor, generator: torch.Generator | None) -> Tensor:
        """Return random signs `[probes, P]`, those of the first process, or the probes that were passed."""
        vectors = super().probe_vectors(probes, generator)
        if self.shared and not isinstance(probes, Tensor):
            return from_first_process(vectors)
        return vectors

    def _untouched_rng(self) -> Any:
        """Return a context that restores the global random generators, from which a DataLoader takes a seed."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    def require_fixed(self) -> None:
        """Refuse a network or loader with which two products differ, both inside one RNG scope."""
        seeded = torch.Generator().manual_seed(0)
        probe = rademacher(1, self.size, generator=seeded, device=self.device, dtype=self.dtype)
        with self._untouched_rng(), torch.inference_mode(False):
            first = self._pass(probe, inspect=True)
            second = self._pass(probe)
        allowed = torch.finfo(self.dtype).eps ** 0.5 * float(first.norm())
        if float((first - second).norm()) > allowed:
            raise UnsupportedOperationError(
                f"two {self.kind} products with the same vector differ: the network is random (dropout written as "
                "a function, noise in forward) or the loader gives other data in each pass (shuffling with "
                "drop_last, random augmentation"
                + (", any shuffling under kind='fisher'" if self.kind == "fisher" else "")
                + "). Both must be fixed."
            )
