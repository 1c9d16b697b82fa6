"""The curvature of a whole data set: one pass over a loader, within a memory budget, resumable, over processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils import _pytree as pytree

from marquis.curvature.budget import Budget
from marquis.curvature.call import Model, Selection, batch_size, parameters_of, select, split_batch
from marquis.curvature.ggn import ggn
from marquis.curvature.plan import check_choices
from marquis.curvature.processes import group_is_up, sum_over_processes
from marquis.curvature.progress import ProgressBar
from marquis.curvature.resume import SECONDS, Checkpoint, Saved, digest_of, digest_of_network
from marquis.errors import DataError, MarquisError, MemoryBudgetError
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.structures import Layout, Structure


def accumulate(
    model: Model,
    loader: Iterable[Any],
    likelihood: str | Likelihood | Any,
    structure: str = "diagonal",
    estimator: str = "exact",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    probes: int = 1,
    width_limit: int = 512,
    generator: torch.Generator | None = None,
    weight_sharing: str = "expand",
    memory_limit: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    mask_of: Callable[[Any], Tensor] | None = None,
    distributed: bool = True,
) -> Structure:
    """The curvature of a data set: `ggn` summed over the batches of a loader (a sum over the data, never a mean).

    For `kronecker` the sum is that of the joint batch: its factors are summed (methods.md 2.4), so that it does not
    depend on how the data are cut into batches. `sketched` draws anew for each batch, so its error shrinks as batches
    accumulate. Cost: one pass over the data at the price of `ggn` per batch. Memory: that of one batch and two or
    three times the result; a batch that does not fit is split. `lowrank` grows with the data: P x N x O numbers.

    Args:
        model: as in `ggn`. Batches are moved to the device of its parameters.
        loader: yields `(x, y)`, `x` alone, or a dict; any iterable. The last batch may be smaller. Labels are not used.
        likelihood: as in `ggn`.
        structure: as in `ggn`.
        estimator: as in `ggn`.
        params: as in `ggn`.
        parameters: as in `ggn`.
        probes: as in `ggn`.
        width_limit: as in `ggn`.
        generator: as in `ggn`.
        weight_sharing: as in `ggn`.
        memory_limit: bytes that may be used beyond the model and the batch itself; default: nine tenths of what is
            free.
        dtype: of the sum; `torch.float64` adds float32 batches without losing digits.
        device: of the sum; by default that of the parameters.
        progress: show a bar, if there is a terminal to show it on and it takes longer than a second.
        checkpoint: a file to which the sum is written every half minute and when anything is raised, the
            interruption by the user included. The same call then continues behind the batches that are in it, with the
            same result to the last digit, and deletes the file at the end. For that the loader must yield the same
            batches in the same order (no shuffling, or the same seed); it is checked that it does. Each process of a
            group has a file of its own.
        mask_of: gives a batch's mask, 1 where a target entry was observed, one row per sample:
            `lambda batch: batch[2]`. An entry of the batch that is this very tensor is not passed on to the model.
        distributed: if a `torch.distributed` group is up, each process's loader is its share of the data (shares need
            not be equal), and all return the sum over processes.

    Raises:
        DataError: an empty loader, NaN or a wrong shape in a batch (named by its index), a corrupt checkpoint, or a
            loader that yields other data than the checkpoint holds.
        MemoryBudgetError: not even one sample fits; names alternatives.
        ModelMismatchError: the checkpoint belongs to another network or other arguments; names what differs.
        UnsupportedOperationError: as in `ggn`.
    """
    check_choices(structure, estimator, probes)
    if parameters is not None and not isinstance(parameters, str) and not callable(parameters):
        parameters = list(parameters)
    known = as_likelihood(likelihood)
    everything = parameters_of(model, params)
    layout = Layout.of(select(everything, parameters))
    home = everything[layout.names[0]].device
    if checkpoint is not None and estimator == "sketched" and generator is None:
        # A generator of our own, seeded by the global one, can be saved without touching the global one on resuming.
        generator = torch.Generator(device=home).manual_seed(int(torch.randint(2**62, ())))
    options: dict[str, Any] = {
        "structure": structure,
        "estimator": estimator,
        "params": params,
        "parameters": parameters,
        "probes": probes,
        "width_limit": width_limit,
        "memory_limit": memory_limit,
    }
    together = distributed and group_is_up()
    identity = {}
    if together or checkpoint is not None:
        identity = {
            "structure": structure,
            "estimator": f"{estimator} (probes={probes}, width_limit={width_limit}, weight_sharing={weight_sharing})",
            "likelihood": _identity_of(known),
            "dtype": str(dtype),
            "parameters": str(layout),
            "values of the parameters": digest_of_network(model, everything),
        }
    work = _Pass(
        each=lambda x, mask: ggn(
            model, x, known, **options, generator=generator, mask=mask, weight_sharing=weight_sharing
        ),
        budget=Budget(model, known, options, dtype, _length(loader)),
        home=home,
        dtype=dtype,
        device=device,
        generator=generator,
        mask_of=mask_of,
        file=_file(checkpoint, identity, together),
    )
    failure: Exception | None = None
    try:
        with ProgressBar(f"{structure} curvature", _length(loader), progress and _is_first(together)) as bar:
            work.run(loader, bar)
    except Exception as error:
        if not together:
            raise
        failure = error
    own = work.total()
    if together:
        own = sum_over_processes(own, failure, digest_of(identity))
    if own is None:
        raise DataError("the loader yields no batches; there is no curvature without data.")
    if work.file is not None:
        work.file.remove()
    return own


def _length(loader: Any) -> int | None:
    """Number of batches, where the loader knows it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _identity_of(likelihood: Likelihood) -> str:
    try:
        return f"{likelihood!r}, state {digest_of(likelihood.state_dict())}"
    except MarquisError:  # somebody's own object, which does not say what it holds
        return repr(likelihood)


def _is_first(together: bool) -> bool:
    return not together or dist.get_rank() == 0


def _file(checkpoint: str | Path | None, identity: Mapping[str, str], together: bool) -> Checkpoint | None:
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    if not together:
        return Checkpoint(path, {**identity, "processes": "1"})
    rank, world = dist.get_rank(), dist.get_world_size()
    return Checkpoint(path.with_name(f"{path.name}.{rank}"), {**identity, "processes": f"{rank} of {world}"})


@dataclass(frozen=True, eq=False)
class _Position:
    """Where the pass stands after a whole number of batches; replaced in one assignment, so that it is never half new.

    Attributes:
        parts: the sum so far; of a structure that grows, everything added, to be joined at the end.
        batches: how many are in it.
        data: digest of the batches seen.
        drawn: state of the generator after them.
    """

    parts: tuple[Structure, ...] = ()
    batches: int = 0
    data: str = ""
    drawn: Tensor | None = None


@dataclass(eq=False)
class _Pass:
    """One pass over the data."""

    each: Callable[[Any, Tensor | None], Structure]
    budget: Budget
    home: torch.device
    dtype: torch.dtype | None
    device: torch.device | str | None
    generator: torch.Generator | None
    mask_of: Callable[[Any], Tensor] | None
    file: Checkpoint | None
    at: _Position = field(default_factory=_Position)

    def run(self, loader: Iterable[Any], bar: ProgressBar) -> None:
        """Sum all batches, from where the checkpoint left off."""
        saved = self._resume()
        written = time.monotonic()
        index, digest = -1, ""
        try:
            for index, batch in enumerate(loader):
                x, mask = self._inputs(batch, index)
                digest = digest_of((x, mask), digest) if self.file is not None else ""
                if index >= saved.batches:
                    parts = self._plus(self._curvature(x, mask, index))
                    drawn = None if self.generator is None else self.generator.get_state()
                    self.at = _Position(parts, index + 1, digest, drawn)
                elif index + 1 == saved.batches and digest != saved.data:
                    raise DataError(self._other_data())
                bar.advance()
                if self.file is not None and time.monotonic() - written >= SECONDS:
                    self._save()
                    written = time.monotonic()
        except BaseException:
            if self.at.batches > saved.batches:
                self._save()
            raise
        if index + 1 < saved.batches:
            raise DataError(self._other_data())

    def total(self) -> Structure | None:
        """The sum so far."""
        if len(self.at.parts) > 1:  # only columns are kept apart: joining them at each batch would copy them each time
            columns = torch.cat([part.tensors()[0] for part in self.at.parts], dim=1)
            self.at = replace(self.at, parts=(self.at.parts[0].with_tensors([columns]),))
        return self.at.parts[0] if self.at.parts else None

    def _plus(self, part: Structure) -> tuple[Structure, ...]:
        if part.reduction == "gather" or not self.at.parts:
            return (*self.at.parts, part)
        return (self.at.parts[0] + part,)

    def _curvature(self, x: Any, mask: Tensor | None, index: int) -> Structure:
        """One batch, in as many pieces as the memory asks for."""
        try:
            size = batch_size(x)
            rows = self.budget.rows(x, size, self.at.batches)
            found: Structure | None = None
            for start in range(0, size, rows):
                piece = (x, mask) if rows >= size else _slice((x, mask), start, start + rows)
                part = self._converted(self.each(*piece))
                found = part if found is None else found + part
            assert found is not None
            return found
        except MarquisError as error:
            raise type(error)(f"batch {index}: {error}") from error
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "allocate" in str(error):
                raise MemoryBudgetError(
                    f"batch {index}: {error} Pass memory_limit to have batches split, or smaller batches."
                ) from error
            raise DataError(f"batch {index} cannot be used ({_shapes(x)}): {error}") from error
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise DataError(f"batch {index} cannot be used ({_shapes(x)}): {type(error).__name__}: {error}") from error

    def _converted(self, part: Structure) -> Structure:
        """In the dtype and on the device of the sum."""
        if self.dtype is None or part.dtype == self.dtype or part.reduction == "gather":
            return part.to(dtype=self.dtype, device=self.device)
        # A product is symmetric up to rounding; with more digits that rounding would count as asymmetry.
        moved = [tensor.to(device=self.device) for tensor in part.tensors()]
        wide = [tensor.to(self.dtype) if tensor.dim() else tensor for tensor in moved]  # counts stay what they are
        return part.with_tensors([(tensor + tensor.mT) / 2 if tensor.dim() > 1 else tensor for tensor in wide])

    def _inputs(self, batch: Any, index: int) -> tuple[Any, Tensor | None]:
        """Inputs and mask, on the model's device."""
        try:
            mask = None if self.mask_of is None else self.mask_of(batch)
            x, _ = split_batch(batch if mask is None else _without(batch, mask))
            if mask is not None and (mask.dim() == 0 or mask.shape[0] != batch_size(x)):
                raise DataError(
                    f"the mask has shape {list(mask.shape)}, but there are {batch_size(x)} samples; give it one row "
                    "per sample (mask.expand)."
                )
        except MarquisError as error:
            raise type(error)(f"batch {index}: {error}") from error
        x, mask = pytree.tree_map_only(Tensor, lambda t: t.to(self.home), (x, mask))
        return x, mask

    def _resume(self) -> _Position:
        saved = self.file.load() if self.file is not None else None
        if saved is not None:
            total = saved.total.to(device=self.home if self.device is None else self.device)
            self.at = _Position((total,), saved.batches, saved.data, saved.generator)
            self.budget.limit_rows = saved.rows
            if self.generator is not None and saved.generator is not None:
                self.generator.set_state(saved.generator)
        return self.at

    def _save(self) -> None:
        total = self.total()
        if self.file is not None and total is not None:
            self.file.save(Saved(total, self.at.batches, self.budget.limit_rows, self.at.data, self.at.drawn))

    def _other_data(self) -> str:
        assert self.file is not None
        return (
            f"the checkpoint {self.file.path} holds the sum over {self.at.batches} batches, but the loader does not "
            "yield the same ones again. Resuming needs the same batches in the same order: switch off shuffling and "
            "random augmentation, or seed them alike; or delete the file to start anew."
        )


def _without(batch: Any, mask: Tensor) -> Any:
    """The batch without the entry that is the mask."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if value is not mask}
    if isinstance(batch, (tuple, list)):
        return tuple(value for value in batch if value is not mask)
    return batch


def _slice(tree: Any, start: int, stop: int) -> Any:
    """Some samples of a batch."""
    return pytree.tree_map_only(Tensor, lambda t: t[start:stop], tree)


def _shapes(x: Any) -> str:
    shapes = [f"{list(leaf.shape)}" for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    return f"inputs of shape {', '.join(shapes)}"
