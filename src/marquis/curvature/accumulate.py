"""Accumulate the curvature of a data set in one pass over a loader: bounded in memory, resumable, over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.arguments import checked
from marquis.choices import choose
from marquis.curvature.data_pass import DataPass, Position
from marquis.curvature.ggn import check_choices, curvature_along, empirical_fisher, fisher, ggn
from marquis.curvature.graph.cache import comparing_once
from marquis.curvature.hessian import hessian
from marquis.curvature.in_groups import SPREADABLE, refuse_other_groups, sum_in_groups
from marquis.curvature.linop.products import KINDS
from marquis.curvature.over_processes import decompose_over_processes, sum_over_processes
from marquis.curvature.planning.budget import Budget
from marquis.curvature.resume import Checkpoint, digest_of
from marquis.distributed import fails_together, group_is_up, guarded
from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.functional.call import Model, buffers_of, call, copied_buffers, plain_attention
from marquis.functional.selection import Selection, parameters_of, select
from marquis.functional.unwrap import computing_dtype, is_sharded
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.loaders import Batch, MaskOf, number_of_batches, refuse_one_shot
from marquis.progress import ProgressBar
from marquis.randomness import new_generator
from marquis.structures import Kronecker, Layout, Structure
from marquis.structures.corrected import CorrectedPiece
from marquis.structures.pieces import KroneckerPiece

Observer = Callable[[Tensor, Batch], None]
"""Receives outputs and the batch that they belong to."""


@fails_together
@checked
@comparing_once()
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
    width_limit: float = 512,
    generator: torch.Generator | None = None,
    weight_sharing: str = "expand",
    corrected: bool = False,
    kind: str = "ggn",
    memory_limit: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    mask_of: MaskOf | None = None,
    distributed: bool = True,
    observer: Observer | None = None,
) -> Structure:
    """Return the curvature of a data set: `ggn` summed over the batches of a loader (a sum, never a mean).

    For `kronecker` the sum is that of the joint batch: its factors are summed, so that it does not depend on how the
    data are cut into batches (docs/method/kronecker.md#sums-and-forgetting). `sketched` takes new random columns for
    each batch, so its error shrinks as batches accumulate. Cost: one pass over the data at the price of `ggn` per
    batch. Memory: that of one batch and two or three times the result; a batch that does not fit is split. `lowrank`
    grows with the data: P x N x O numbers.

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
        corrected: for `kronecker`, pass over the data once more and replace the products of eigenvalues by the
            curvature along the eigenvectors (EKFAC): never farther from the exact blocks.
        kind: "ggn"; "fisher" with `probes` labels per sample drawn from the model; "empirical-fisher" and "hessian" at
            the labels of the data, the latter for the structures "diagonal" and "full".
        memory_limit: bytes that may be used beyond the model and the batch itself; default: nine tenths of what is
            free.
        dtype: of the sum; `torch.float64` adds float32 batches without losing digits.
        device: of the sum; by default that of the parameters.
        progress: show a bar, if there is a terminal to show it on and it takes longer than a second.
        checkpoint: a file to which the sum is written every half minute and when anything is raised, the
            interruption by the user included. The same call then continues behind the batches that are in it, with the
            same result to the last digit, and deletes the file at the end. For that the loader must yield the same
            batches in the same order (no shuffling, or the same seed); it is checked that it does. Each process of a
            group has a file of its own. With another number of processes the pass continues too, from files that all
            of them can read: the samples that are in none of the sums are summed, in whatever shares they come now.
        mask_of: gives a batch's mask, 1 where a target entry was observed, one row per sample:
            `lambda batch: batch[2]`. An entry of the batch that is this very tensor is not passed on to the model.
        distributed: if a `torch.distributed` group is up, each process's loader is its share of the data (shares need
            not be equal), and all return the sum over processes. Of a network sharded by `fully_shard` a diagonal or
            Kronecker sum stays spread over the processes (`structures.Spread`), for one pass per process.
        observer: receives the outputs and the batch (inputs, labels, mask) of every forward pass, so that a fit of the
            labels needs no pass of its own. A batch may come in several pieces.

    Raises:
        DataError: an empty loader, NaN or a wrong shape in a batch (named by its index), a corrupt checkpoint, or a
            loader that yields other data than the checkpoint holds.
        MemoryBudgetError: not even one sample fits; names alternatives.
        ModelMismatchError: the checkpoint belongs to another network or other arguments; names what differs.
        UnsupportedOperationError: as in `ggn`.
    """
    structure, estimator = check_choices(structure, estimator, probes)
    if parameters is not None and not isinstance(parameters, str) and not callable(parameters):
        parameters = list(parameters)
    kind = choose("kind", kind, KINDS)
    if kind != "ggn" and (corrected or estimator != "exact" or (kind == "hessian" and mask_of is not None)):
        raise UnsupportedOperationError(
            f"kind={kind!r} has no estimator, no corrected=True, and the Hessian no mask; leave them out."
        )
    if corrected and (structure != "kronecker" or checkpoint is not None):
        raise UnsupportedOperationError(
            "corrected=True is for structure='kronecker', and its second pass has no checkpoint; leave one of them out."
        )
    if corrected:
        refuse_one_shot(loader, "corrected=True")
    likelihood = as_likelihood(likelihood)
    everything = parameters_of(model, params)
    params = everything if is_sharded(model) else params  # gathered once, not at every batch
    layout = Layout.of(select(everything, parameters))
    home = everything[layout.names[0]].device
    if checkpoint is not None and estimator == "sketched" and generator is None:
        # A generator of our own, seeded by the global one, can be saved without touching the global one on resuming.
        generator = new_generator(home)
    in_group = distributed and group_is_up()
    spread = in_group and is_sharded(model) and structure in SPREADABLE

    def over(names: list[str], first: bool, path: str | Path | None) -> tuple[Structure, Checkpoint | None]:
        """Return the curvature of some parameters, and the file that holds it too."""
        observed = first and observer is not None
        options: dict[str, Any] = {
            "structure": structure,
            "estimator": estimator,
            "params": params,
            "parameters": names,
            "probes": probes,
            "width_limit": width_limit,
            "memory_limit": memory_limit,
        }
        identity = {}
        if in_group or path is not None:
            how = f"probes={probes}, width_limit={width_limit}, weight_sharing={weight_sharing}"
            identity = {
                "structure": structure,
                "kind": kind,
                "estimator": f"{estimator} ({how})",
                "likelihood": _identity_of(likelihood),
                "dtype": str(dtype),
                "parameters": str(layout.select(names)),
                "values of the parameters": digest_of({"parameters": everything, "buffers": buffers_of(model)}),
            }

        def each(batch: Batch) -> Structure:
            if kind != "ggn":
                return of_another_kind(batch)
            return ggn(
                model,
                batch.x,
                likelihood,
                **options,
                generator=generator,
                mask=batch.mask,
                weight_sharing=weight_sharing,
                observer=(lambda f, notify=observer: notify(f, batch)) if observer is not None and observed else None,
            )

        def of_another_kind(batch: Batch) -> Structure:
            if observed:
                observe(batch)
            if batch.y is None and kind != "fisher":
                raise DataError(f"the batch has no labels, but kind={kind!r} depends on them; yield (x, y).")
            if kind == "hessian":
                return hessian(model, batch.x, batch.y, likelihood, structure, params=params, parameters=names)
            common: dict[str, Any] = {
                name: options[name] for name in ("structure", "params", "parameters", "memory_limit")
            }
            common |= {"mask": batch.mask, "weight_sharing": weight_sharing}
            if kind == "fisher":
                return fisher(model, batch.x, likelihood, samples=probes, generator=generator, **common)
            assert batch.y is not None
            return empirical_fisher(model, batch.x, batch.y, likelihood, **common)

        @torch.no_grad()
        def observe(batch: Batch) -> None:
            assert observer is not None
            with plain_attention():
                observer(call(model, everything, copied_buffers(model), batch.x), batch)

        work = DataPass(
            each=each,
            skipped=observe if observed else None,
            budget=Budget(model, likelihood, options, dtype, number_of_batches(loader)),
            home=home,
            dtype=dtype,
            device=device,
            generator=generator,
            mask_of=mask_of,
            file=_file(path, identity, in_group),
        )

        def over_all_data(work: DataPass, description: str) -> Structure:
            """Pass over the loader, and return the sum over all processes."""
            shown = progress and (not in_group or dist.get_rank() == 0)
            with (
                nullcontext() if work.file is None else work.file.held(),
                ProgressBar(description, number_of_batches(loader), shown) as bar,
            ):
                work.resume(loader)
                work.run(guarded(loader) if in_group else loader, bar)
            total = work.total()
            if in_group:
                total = sum_over_processes(total, digest_of(identity))
            if total is None:
                raise DataError("the loader yields no batches; there is no curvature without data.")
            return total

        total = over_all_data(work, f"{structure} curvature")
        if in_group and (corrected or not spread):
            decompose_over_processes(total)
        if not corrected:
            return total, work.file
        # With the estimator `exact` the values along the eigenvectors are the diagonal of the exact block in that basis
        # (docs/method/kronecker.md#eigenvalue-correction).
        assert isinstance(total, Kronecker)
        pairs = {name: piece for name, piece in total.pieces.items() if isinstance(piece, KroneckerPiece)}
        if not pairs:
            return total, None
        dtype_there = computing_dtype(everything[layout.names[0]].dtype)
        bases = {name: CorrectedPiece.of(piece, name).to(dtype_there, home) for name, piece in pairs.items()}

        def along(batch: Batch) -> Structure:
            named = {name: options[name] for name in ("estimator", "params", "probes", "memory_limit")}
            return curvature_along(bases, model, batch.x, likelihood, **named, generator=generator, mask=batch.mask)

        again = replace(work, each=along, skipped=None, file=None, at=Position(), done=[], skip=None)
        better = over_all_data(again, "corrected curvature")
        assert isinstance(better, Kronecker)
        return Kronecker(total.layout, {**total.pieces, **better.pieces}, total.scale, total.shift), None

    if spread:
        first = everything[layout.names[0]]
        like = first.to(dtype=dtype or computing_dtype(first.dtype), device=device)
        return sum_in_groups(over, model, layout, structure, loader, like, checkpoint)
    if checkpoint is not None and is_sharded(model):  # one process now, perhaps several before
        refuse_other_groups(Path(checkpoint))
    total, file = over(list(layout.names), True, checkpoint)
    if file is not None:
        file.remove()
    return total


def _identity_of(likelihood: Likelihood) -> str:
    """Return text that tells one likelihood and its state from another."""
    try:
        return f"{likelihood!r}, state {digest_of(likelihood.state_dict())}"
    except MarquisError:  # somebody's own object, which does not say what it holds
        return repr(likelihood)


def _file(checkpoint: str | Path | None, identity: Mapping[str, str], in_group: bool) -> Checkpoint | None:
    """Return the checkpoint of this process's sum; None without one."""
    if checkpoint is None:
        return None
    processes = (dist.get_rank(), dist.get_world_size()) if in_group else (0, 1)
    return Checkpoint(Path(checkpoint), identity, *processes)
