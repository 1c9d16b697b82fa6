"""Curvature of a data set: against one batch with everything, over processes, interrupted and resumed."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import accumulate, ggn, plan
from marquis.curvature.planning.memory import AllocationMeter
from marquis.errors import DataError, MemoryBudgetError, ModelMismatchError, StorageError, UnsupportedOperationError
from marquis.structures import Structure

N = 13
KINDS = ("diagonal", "kronecker", "block", "full", "lowrank")
accumulate_module = sys.modules["marquis.curvature.accumulate"]
data_pass_module = sys.modules["marquis.curvature.data_pass"]
progress_module = sys.modules["marquis.progress"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def mlp(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double().eval()


def batches(x: Tensor, size: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [(part, torch.zeros(len(part))) for part in x.split(size)]


def assert_same(found: Structure, expected: Structure, rtol: float = 1e-10) -> None:
    assert type(found) is type(expected)
    torch.testing.assert_close(found.to_dense(), expected.to_dense(), rtol=rtol, atol=rtol)


def assert_identical(found: Structure, expected: Structure) -> None:
    assert type(found) is type(expected)
    for ours, theirs in zip(found.tensors(), expected.tensors(), strict=True):
        assert torch.equal(ours, theirs)


# --- the sum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", KINDS)
def test_batches_of_uneven_size_sum_to_the_whole(structure: str):
    model, x = mlp(), randn(N, 4)
    expected = ggn(model, x, "categorical", structure)
    assert_same(accumulate(model, batches(x), "categorical", structure), expected)
    assert_same(accumulate(model, [x], "categorical", structure), expected)


@pytest.mark.parametrize("estimator", ["approximate", "mixed"])
def test_other_estimators(estimator: str):
    model, x = mlp(), randn(N, 4)
    result = accumulate(model, batches(x), "gaussian", estimator=estimator, width_limit=4)
    assert_same(result, ggn(model, x, "gaussian", estimator=estimator, width_limit=4))


def test_sketched_draws_anew_for_each_batch_from_the_given_generator():
    model, x = mlp(), randn(N, 4)
    source = generator(1)
    parts = [ggn(model, part, "gaussian", estimator="sketched", generator=source) for part in x.split(5)]
    result = accumulate(model, batches(x), "gaussian", estimator="sketched", generator=generator(1))
    assert_identical(result, parts[0] + parts[1] + parts[2])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(left * right)


def test_loaders_of_tensors_dictionaries_and_pytrees():
    model = mlp()
    x = randn(N, 4)
    expected = ggn(model, x, "gaussian")
    loader = DataLoader(TensorDataset(x, torch.zeros(N)), batch_size=4)
    assert_same(accumulate(model, loader, "gaussian"), expected)
    assert_same(accumulate(model, iter(x.split(6)), "gaussian"), expected)  # also what can be iterated only once
    two = TwoInputs().double().eval()
    y = randn(N, 4, seed=1)
    whole = ggn(two, (x, y), "gaussian")
    pieces = list(zip(x.split(5), y.split(5), strict=True))
    assert_same(accumulate(two, [((a, b), None) for a, b in pieces], "gaussian"), whole)
    assert_same(accumulate(two, [{"left": a, "right": b, "labels": a} for a, b in pieces], "gaussian"), whole)


def test_a_function_and_a_subset_given_as_an_iterator():
    model, x = mlp(), randn(N, 4)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    result = accumulate(
        lambda p, x: torch.func.functional_call(model, p, (x,)),
        batches(x),
        "gaussian",
        params=params,
        parameters=iter(["2.weight", "2.bias"]),
    )
    assert_same(result, ggn(model, x, "gaussian", parameters="2.*"))


def test_masks():
    model, x = mlp(), randn(N, 4)
    mask = torch.rand(N, 3, generator=generator()) > 0.5
    expected = ggn(model, x, "gaussian", mask=mask)
    assert (expected.diagonal() < ggn(model, x, "gaussian").diagonal()).any()
    triples = list(zip(x.split(5), x.split(5), mask.split(5), strict=True))
    assert_same(accumulate(model, triples, "gaussian", mask_of=lambda batch: batch[2]), expected)
    dictionaries = [{"input": a, "y": a, "seen": m} for a, _, m in triples]
    assert_same(accumulate(model, dictionaries, "gaussian", mask_of=lambda batch: batch["seen"]), expected)
    missing = torch.where(mask, 1.0, torch.nan)
    labelled = list(zip(x.split(5), missing.split(5), strict=True))
    assert_same(accumulate(model, labelled, "gaussian", mask_of=lambda batch: ~batch[1].isnan()), expected)
    with pytest.raises(DataError, match=r"batch 0: the mask has shape \[3\], but there are 5 samples"):
        accumulate(model, labelled, "gaussian", mask_of=lambda batch: mask[0])


@pytest.mark.parametrize("structure", KINDS)
def test_a_sum_in_float64_of_batches_in_float32(structure: str):
    model, x = mlp().float(), randn(400, 4).float()
    result = accumulate(model, batches(x, 4), "gaussian", structure, dtype=torch.float64)
    assert result.dtype == torch.float64
    parts = [[t.double() for t in ggn(model, part, "gaussian", structure).tensors()] for part in x.split(4)]
    if structure == "lowrank":
        assert torch.equal(result.tensors()[0], torch.cat([columns for (columns,) in parts], dim=1))
        return
    for ours, terms in zip(result.tensors(), zip(*parts, strict=True), strict=True):
        theirs = torch.stack(terms).sum(0)
        # Products in float32 are symmetric only up to rounding; what is summed is their symmetric part.
        symmetric = (theirs + theirs.mT) / 2 if theirs.dim() > 1 else theirs
        torch.testing.assert_close(ours, symmetric, rtol=1e-13, atol=1e-13)
    if structure == "diagonal":  # and it does make a difference
        narrow = accumulate(model, batches(x, 4), "gaussian").diagonal().double()
        assert (narrow - result.diagonal()).abs().max() > 1e-9


def test_nothing_of_the_users_changes():
    model, x = mlp(), randn(N, 4)
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    accumulate(model, batches(x), "gaussian", "kronecker")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


# --- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        ([], DataError, "yields no batches"),
        ([randn(3, 4), randn(3, 4) * float("nan")], DataError, "batch 1: x holds 12 NaN"),
        ([randn(3, 4), randn(3, 7)], DataError, "batch 1: .*3x7"),
        ([randn(3, 4), randn(0, 4)], DataError, "batch 1: the batch is empty"),
        ([randn(3, 4), (randn(3, 4),) * 3], DataError, "batch 1: the loader yields a tuple of 3 items"),
        ([randn(3, 4), "abc"], DataError, "batch 1: the loader yields str"),
    ],
)
def test_bad_batches_are_named(loader: list[Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        accumulate(mlp(), loader, "gaussian")


def test_choices_are_refused_before_the_loader_is_touched():
    def loader() -> Iterator[Tensor]:
        raise AssertionError("touched")
        yield

    with pytest.raises(UnsupportedOperationError, match="structure='diagnal' is not known"):
        accumulate(mlp(), loader(), "gaussian", "diagnal")
    with pytest.raises(UnsupportedOperationError, match="only the diagonal"):
        accumulate(mlp(), loader(), "gaussian", "full", "approximate")
    with pytest.raises(mq.MarquisError, match="selects none"):
        accumulate(mlp(), loader(), "gaussian", parameters="encoder.*")


# --- memory ------------------------------------------------------------------------------------------------------


def wide(outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.Softplus(), nn.Conv2d(8, 8, 3, padding=1), nn.Softplus()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, outputs)).double().eval()


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "lowrank"])
def test_a_batch_that_does_not_fit_is_split(structure: str):
    model, x = wide(), randn(32, 1, 8, 8)
    chosen = ["0.weight", "0.bias", "2.weight", "2.bias"]
    expected = ggn(model, x, "gaussian", structure, parameters=chosen)
    whole = plan(model, x, "gaussian", structure, parameters=chosen)
    limit = (whole.total_bytes + 2 * whole.result_bytes) * 6 // 10
    seen: list[int] = []
    peaks: list[int] = []
    real = accumulate_module.ggn

    def watched(model: Any, x: Tensor, *args: Any, **kwargs: Any) -> Structure:
        seen.append(len(x))
        with AllocationMeter() as meter:
            result = real(model, x, *args, **kwargs)
        peaks.append(meter.peak)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate_module, "ggn", watched)
        result = accumulate(model, [x], "gaussian", structure, parameters=chosen, memory_limit=limit)
        assert_same(result, expected)
        assert 1 < max(seen) < 32
        assert sum(seen) == 32
        assert max(peaks) + 2 * expected.nbytes <= limit
        peaks.clear()
        accumulate(model, [x], "gaussian", structure, parameters=chosen)
    assert max(peaks) + 2 * expected.nbytes > limit  # without the limit it takes more, so the limit did something


def test_masks_are_split_with_their_samples():
    model, x = wide(3), randn(16, 1, 8, 8)
    mask = torch.rand(16, 3, generator=generator()) > 0.5
    limit = plan(model, x, "gaussian").total_bytes // 4
    result = accumulate(model, [(x, x, mask)], "gaussian", mask_of=lambda batch: batch[2], memory_limit=limit)
    assert_same(result, ggn(model, x, "gaussian", mask=mask))


def test_not_even_one_sample_fits():
    model, x = wide(), randn(8, 1, 8, 8)
    with pytest.raises(
        MemoryBudgetError, match=r"batch 0: structure='full'.*even for one sample.*These fit: .*diagonal"
    ):
        accumulate(model, batches(x), "gaussian", "full", memory_limit=2 * 10**6)
    with pytest.raises(MemoryBudgetError, match="No other structure or estimator fits"):
        accumulate(model, batches(x), "gaussian", memory_limit=10)


def test_low_rank_counts_all_batches_before_it_starts():
    model, x = mlp(), randn(N, 4)
    one = plan(model, x[:5], "gaussian", "lowrank")
    enough = one.total_bytes + 6 * one.result_bytes
    accumulate(model, [x[:5]] * 3, "gaussian", "lowrank", memory_limit=enough)
    touched: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[Tensor]:
            for index in range(1000):
                touched.append(index)
                yield x[:5]

    with pytest.raises(MemoryBudgetError, match="batch 0"):
        accumulate(model, Loader(), "gaussian", "lowrank", memory_limit=enough)
    assert touched == [0]
    with pytest.raises(MemoryBudgetError, match=r"batch [34]"):  # of unknown length: when it becomes too much
        accumulate(model, iter(Loader()), "gaussian", "lowrank", memory_limit=enough)


# --- progress ------------------------------------------------------------------------------------------------------


def test_no_bar_where_nobody_watches(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    accumulate(mlp(), batches(randn(N, 4)), "gaussian")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_bar_on_a_terminal_if_it_takes_long(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(patience: float, progress: bool) -> str:
        monkeypatch.setattr(progress_module, "PATIENCE", patience)
        monkeypatch.setattr(sys, "stderr", Terminal())
        accumulate(mlp(), batches(randn(N, 4)), "gaussian", progress=progress)
        return sys.stderr.getvalue()  # type: ignore[attr-defined]

    monkeypatch.setenv("TERM", "xterm")
    assert "diagonal curvature" in shown(0.0, True)
    assert shown(3600.0, True) == ""
    assert shown(0.0, False) == ""


# --- interrupted and resumed ---------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def interrupted(loader: list[Any], after: int) -> Iterator[Any]:
    yield from loader[:after]
    raise Interrupted


@pytest.mark.parametrize("structure", KINDS)
@pytest.mark.parametrize("estimator", ["exact", "sketched"])
def test_resumed_is_the_same_to_the_last_digit(structure: str, estimator: str, tmp_path: Path):
    model, loader = mlp(), batches(randn(N, 4), 3)
    options: dict[str, Any] = {"structure": structure, "estimator": estimator, "probes": 2}
    expected = accumulate(model, loader, "categorical", **options, generator=generator(3))
    path = tmp_path / "deep" / "sum.safetensors"
    seen: list[int] = []

    def counted(batches: list[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            seen.append(1)

    for after in (2, 3):  # twice, the second time behind the first
        with pytest.raises(Interrupted):
            broken = interrupted(loader, after)
            accumulate(model, broken, "categorical", **options, generator=generator(3), checkpoint=path)
        assert path.exists()
    calls: list[int] = []
    real = accumulate_module.ggn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate_module, "ggn", lambda *a, **k: calls.append(1) or real(*a, **k))
        result = accumulate(
            model, counted(loader), "categorical", **options, generator=generator(3), checkpoint=str(path)
        )
    assert_identical(result, expected)
    assert len(calls) == len(loader) - 3
    assert list(path.parent.iterdir()) == []  # removed at the end, nothing left behind


def test_a_batch_that_failed_half_way_is_done_again_with_the_same_signs(tmp_path: Path):
    model, loader, path = mlp(), batches(randn(N, 4), 3), tmp_path / "sum"
    expected = accumulate(model, loader, "gaussian", estimator="sketched", generator=generator(3))
    real, calls = accumulate_module.ggn, []

    def failing(*args: Any, **kwargs: Any) -> Structure:
        result = real(*args, **kwargs)  # signs are drawn, and then the power goes
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate_module, "ggn", failing)
        with pytest.raises(KeyboardInterrupt):
            accumulate(model, loader, "gaussian", estimator="sketched", generator=generator(3), checkpoint=path)
    result = accumulate(model, loader, "gaussian", estimator="sketched", generator=generator(3), checkpoint=path)
    assert_identical(result, expected)


def test_without_a_generator_the_signs_are_resumed_too(tmp_path: Path):
    model, loader = mlp(), batches(randn(N, 4), 3)
    torch.manual_seed(5)
    expected = accumulate(model, loader, "gaussian", estimator="sketched", checkpoint=tmp_path / "a")
    torch.manual_seed(5)
    with pytest.raises(Interrupted):
        accumulate(model, interrupted(loader, 2), "gaussian", estimator="sketched", checkpoint=tmp_path / "b")
    torch.manual_seed(77)
    assert_identical(accumulate(model, loader, "gaussian", estimator="sketched", checkpoint=tmp_path / "b"), expected)


def test_written_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "sum"
    there: list[bool] = []

    def loader() -> Iterator[Tensor]:
        for part in randn(N, 4).split(3):
            there.append(path.exists())
            yield part

    accumulate(mlp(), loader(), "gaussian", checkpoint=path)
    assert not any(there)  # it was over too soon
    there.clear()
    monkeypatch.setattr(data_pass_module, "SECONDS", 0.0)
    accumulate(mlp(), loader(), "gaussian", checkpoint=path)
    assert there == [False, True, True, True, True]
    assert not path.exists()


def leave_checkpoint(path: Path) -> list[tuple[Tensor, Tensor]]:
    loader = batches(randn(N, 4), 3)
    with pytest.raises(Interrupted):
        accumulate(mlp(), interrupted(loader, 2), "gaussian", checkpoint=path)
    return loader


def other_weights() -> nn.Module:
    model = mlp()
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-12
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structure": "kronecker"}, "structure was diagonal and is now kronecker"),
        ({"estimator": "sketched"}, "estimator was exact"),
        ({"likelihood": mq.Gaussian(2.0)}, r"likelihood was Gaussian\(1\).* and is now Gaussian\(2\)"),
        ({"dtype": torch.float32}, "dtype was None and is now torch.float32"),
        ({"parameters": "2.*"}, "parameters was Layout"),
        ({"model": other_weights()}, "values of the parameters was"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(change: dict[str, Any], message: str, tmp_path: Path):
    loader = leave_checkpoint(tmp_path / "sum")
    before = (tmp_path / "sum").read_bytes()
    arguments = {"model": mlp(), "loader": loader, "likelihood": "gaussian", "checkpoint": tmp_path / "sum", **change}
    with pytest.raises(ModelMismatchError, match=message):
        accumulate(**arguments)
    assert (tmp_path / "sum").read_bytes() == before


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def damage_other(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, str(path))


@pytest.mark.parametrize("damage", [damage_empty, damage_cut, damage_other])
def test_a_damaged_checkpoint_is_refused(damage: Callable[[Path], None], tmp_path: Path):
    path = tmp_path / "sum"
    loader = leave_checkpoint(path)
    damage(path)
    with pytest.raises(DataError, match=r"checkpoint .*sum cannot be read .*Delete it"):
        accumulate(mlp(), loader, "gaussian", checkpoint=path)


def test_one_flipped_bit_anywhere_is_refused(tmp_path: Path):
    """Of 100 checkpoints with one flipped bit, 25 to 100 were summed on silently before they had a checksum."""
    path = tmp_path / "sum"
    loader = leave_checkpoint(path)
    raw = path.read_bytes()
    for position in range(0, len(raw), max(1, len(raw) // 60)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 4]) + raw[position + 1 :])
        with pytest.raises(DataError, match="cannot be read"):
            accumulate(mlp(), loader, "gaussian", checkpoint=path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("marquis.curvature.data_pass.SECONDS", 0.0)
    path = tmp_path / "sum"
    loader = batches(randn(N, 4), 3)
    expected = accumulate(mlp(), loader, "gaussian")
    with pytest.raises(Interrupted):
        accumulate(mlp(), interrupted(loader, 2), "gaussian", checkpoint=path)
    assert (tmp_path / "sum.previous").exists()
    damage_cut(path)
    with pytest.warns(UserWarning, match="one before it"):
        resumed = accumulate(mlp(), loader, "gaussian", checkpoint=path)
    assert_identical(resumed, expected)
    assert not list(tmp_path.iterdir())


def test_two_passes_cannot_write_one_checkpoint(tmp_path: Path):
    loader = batches(randn(N, 4), 3)

    def second() -> Iterator[Any]:
        yield loader[0]
        accumulate(mlp(), loader, "gaussian", checkpoint=tmp_path / "sum")

    with pytest.raises(StorageError, match="another pass over data"):
        accumulate(mlp(), second(), "gaussian", checkpoint=tmp_path / "sum")


def test_a_loader_that_yields_other_data_is_noticed(tmp_path: Path):
    loader = leave_checkpoint(tmp_path / "sum")
    for other in ([loader[1], loader[0], *loader[2:]], [batches(randn(N, 4, seed=1))[0], *loader[1:]], loader[:1]):
        with pytest.raises(DataError, match="holds the sum over 2 batches, but the loader does not yield the same"):
            accumulate(mlp(), other, "gaussian", checkpoint=tmp_path / "sum")
    assert_same(accumulate(mlp(), loader, "gaussian", checkpoint=tmp_path / "sum"), ggn(mlp(), randn(N, 4), "gaussian"))


# --- several processes ---------------------------------------------------------------------------------------------


def share(rank: int, folder: str) -> None:
    model, x = mlp(), randn(N, 4)
    mine = batches(x[:9] if rank == 0 else x[9:], 3)  # three batches and two
    result: dict[str, Any] = {k: accumulate(model, mine, "categorical", k).to_dense() for k in KINDS}
    nothing = mine if rank == 0 else []  # a share without data
    empty = {k: accumulate(model, nothing, "categorical", k).to_dense() for k in KINDS}
    alone = accumulate(model, mine, "categorical", distributed=False).to_dense()
    messages = []
    cases: list[tuple[nn.Module, list[Any]]] = [
        (model, [x[:3] * (float("nan") if rank == 1 else 1.0)]),
        (mlp() if rank == 0 else other_weights(), mine),
        (model, []),
    ]
    for network, loader in cases:
        try:
            accumulate(network, loader, "categorical")
        except mq.MarquisError as error:
            messages.append(str(error))
    path = Path(folder) / "sum"
    try:
        accumulate(model, interrupted(mine, 1), "categorical", checkpoint=path)
    except Exception as error:
        messages.append(type(error).__name__)
    files = sorted(p.name for p in Path(folder).glob("sum*"))
    torch.distributed.barrier()
    resumed = accumulate(model, mine, "categorical", checkpoint=path).to_dense()
    torch.distributed.barrier()
    left = list(Path(folder).glob("sum*"))
    torch.save(
        {"found": result, "empty": empty, "alone": alone, "messages": messages, "files": files, "resumed": resumed}
        | {"left": len(left)},
        f"{folder}/{rank}.pt",
    )


def test_two_processes_sum_their_shares(tmp_path: Path):
    in_processes(share, tmp_path)
    model, x = mlp(), randn(N, 4)
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt")
        for kind in KINDS:
            whole = ggn(model, x, "categorical", kind).to_dense()
            torch.testing.assert_close(got["found"][kind], whole, rtol=1e-10, atol=1e-10)
            first = ggn(model, x[:9], "categorical", kind).to_dense()
            torch.testing.assert_close(got["empty"][kind], first, rtol=1e-10, atol=1e-10)
        own = ggn(model, x[:9] if rank == 0 else x[9:], "categorical").to_dense()
        torch.testing.assert_close(got["alone"], own, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got["resumed"], ggn(model, x, "categorical").to_dense(), rtol=1e-10, atol=1e-10)
        assert "NaN" in got["messages"][0]
        assert "different parameters" in got["messages"][1]
        assert "no process's loader" in got["messages"][2]
        assert got["messages"][3] == "Interrupted"
        assert got["files"] == ["sum.0-of-2", "sum.1-of-2"]
        assert got["left"] == 0
    assert "process 1 failed" in torch.load(tmp_path / "0.pt")["messages"][0]
