"""What happens to a loader during `fit`: looked into once, and watched while its batches pass by."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils import _pytree as pytree

from marquis.distributed import group_is_up
from marquis.errors import DataError
from marquis.evidence.problem import Collector, Statistics
from marquis.functional.call import Model, call, copied_buffers, plain_attention
from marquis.likelihoods import Likelihood
from marquis.loaders import split_batch

MaskOf = Callable[[Any], Tensor]
"""Gives a batch's mask, 1 where a label was observed."""


class Watched:
    """A loader that adds up the fit of the data as its batches pass by, so that one pass is enough."""

    def __init__(
        self,
        loader: Iterable[Any],
        model: Model,
        params: Mapping[str, Tensor],
        likelihood: Likelihood,
        mask_of: MaskOf | None,
    ) -> None:
        self._loader, self._model, self._mask_of = loader, model, mask_of
        self._params = {name: tensor.detach() for name, tensor in params.items()}
        self._collector = Collector(likelihood)
        self._labelled, self._seen = True, False

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        device = next(iter(self._params.values())).device
        for batch in self._loader:
            mask = None if self._mask_of is None else self._mask_of(batch)
            x, y = split_batch(_without(batch, mask))
            if y is None:
                self._labelled = False
            if self._labelled:
                self._seen = True
                x, y, mask = pytree.tree_map_only(Tensor, lambda t: t.to(device), (x, y, mask))
                with torch.no_grad(), plain_attention():
                    self._collector.add(call(self._model, self._params, copied_buffers(self._model), x), y, mask)
            yield batch

    def statistics(self) -> Statistics | None:
        """The fit of the data, over all processes; None if any batch had no labels."""
        if not self._labelled:
            return None
        if not group_is_up():
            return self._collector.statistics()
        found: list[tuple[int, int, float, bool] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, self._share())
        shares = [share for share in found if share is not None]
        if not shares:
            raise DataError("no process's loader yields a batch; there is no evidence without data.")
        n, observed, total = (sum(share[i] for share in shares) for i in range(3))
        value = torch.tensor(total, dtype=torch.float64)
        if shares[0][3]:
            return Statistics(int(n), int(observed), sse=value)
        return Statistics(int(n), int(observed), log_likelihood=value)

    def _share(self) -> tuple[int, int, float, bool] | None:
        """This process's part: data, observed labels, their fit, and whether that is a sum of squares."""
        if not self._seen:
            return None
        own = self._collector.statistics()
        value = own.log_likelihood if own.sse is None else own.sse
        assert value is not None
        return own.n, own.observed, float(value), own.sse is not None


def _without(batch: Any, mask: Tensor | None) -> Any:
    """The batch without the entry that is the mask."""
    if mask is None:
        return batch
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if value is not mask}
    return tuple(value for value in batch if value is not mask) if isinstance(batch, (tuple, list)) else batch


def inputs_of(batch: Any, mask_of: MaskOf | None, device: torch.device) -> Any:
    """The inputs of a batch, on a device."""
    x, _ = split_batch(_without(batch, None if mask_of is None else mask_of(batch)))
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), x)


def is_one_shot(loader: Any) -> bool:
    """Whether a loader can be iterated only once."""
    return isinstance(loader, (Iterator, _Chained))


class _Chained:
    """A first batch and the rest of a one-shot iterator."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._first, self._rest = first, rest

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain([self._first], self._rest)


def peek(loader: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first batch, and a loader that still yields it."""
    iterator = iter(loader)
    try:
        first = next(iterator)
    except StopIteration:
        raise DataError("the loader yields no batches; there is no curvature without data.") from None
    return first, _Chained(first, iterator) if isinstance(loader, Iterator) else loader
