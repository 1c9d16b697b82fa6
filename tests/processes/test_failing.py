"""Where one process of a group fails, all of them stop with its rank and its cause, and none waits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import accumulate, operator
from marquis.evidence import train

LAST = 10.0
"""Seconds after a failure within which all processes have stopped."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 3, generator=generator), torch.randn(2, 2, generator=generator)) for _ in range(count)]


class Broken(list):
    """Raises somebody's error before its last batch."""

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(super().__iter__()):
            if index == len(self) - 1:
                raise OSError("the share on drive Z is gone")
            yield batch


def fit(loader: Any, model: nn.Module | None = None, structure: str = "diagonal", **options: Any) -> mq.Laplace:
    return mq.Laplace(model or network(), "gaussian", structure).fit(loader, progress=False, **options)


def with_nan(loader: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    loader[1][0][0, 0] = float("nan")
    return loader


def step(x: Any, y: Any, **options: Any) -> Tensor:
    return mq.OnlineLaplace(network(), "gaussian", num_data=8).step(x, y, **options)


def subnetwork(loader: Any) -> mq.Laplace:
    chosen = mq.Subnetwork(3, by="magnitude")
    return mq.Laplace(network(), "gaussian", "full", parameters=chosen).fit(loader, progress=False)


X, Y = torch.ones(2, 3), torch.ones(2, 2)

CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    # what the failing process does, what the others do, and a word of the cause that all of them have to hear
    "fit, NaN": (lambda: fit(with_nan(batches())), lambda: fit(batches()), "batch 1"),
    "fit, reading fails": (lambda: fit(Broken(batches())), lambda: fit(batches()), "drive Z"),
    "fit, strange batches": (lambda: fit(["strange"]), lambda: fit(batches()), "str"),
    "fit, wrong width": (lambda: fit([(X[:, :2], Y)]), lambda: fit(batches()), "cannot take x"),
    "fit, labels": (lambda: fit([(X, Y[:1])]), lambda: fit(batches()), "[1, 2]"),
    "fit, argument": (lambda: fit(None), lambda: fit(batches()), "loader"),
    "fit, training mode": (lambda: fit(batches(), nn.Dropout()), lambda: fit(batches()), "call model.eval()"),
    "fit, corrected": (
        lambda: fit(iter(batches()), structure="kronecker", corrected=True),
        lambda: fit(batches(), structure="kronecker", corrected=True),
        "one-shot",
    ),
    "step, NaN": (lambda: step(X * float("nan"), Y), lambda: step(X, Y), "NaN"),
    "step, wrong width": (lambda: step(X[:, :1], Y), lambda: step(X, Y), "mat1 and mat2"),
    "step, argument": (lambda: step(X, Y, learning_rate="fast"), lambda: step(X, Y), "learning_rate"),
    "online, argument": (
        lambda: mq.OnlineLaplace(network(), "strange", num_data=8),
        lambda: mq.OnlineLaplace(network(), "gaussian", num_data=8),
        "strange",
    ),
    "tune": (
        lambda: fit(batches()).tune("grid", Broken(batches())),
        lambda: fit(batches()).tune("grid", batches()),
        "drive Z",
    ),
    "tune, adapted": (
        lambda: fit(batches()).tune("adapted", Broken(batches())),
        lambda: fit(batches()).tune("adapted", batches()),
        "drive Z",
    ),
    "check": (
        lambda: fit(batches()).check(Broken(batches())),
        lambda: fit(batches()).check(batches()),
        "drive Z",
    ),
    "predict_loader": (
        lambda: fit(batches()).predict_loader(Broken(batches()), progress=False),
        lambda: fit(batches()).predict_loader(batches(), progress=False),
        "drive Z",
    ),
    "train": (
        lambda: train(network(), Broken(batches()), "gaussian", epochs=1, progress=False),
        lambda: train(network(), batches(), "gaussian", epochs=1, progress=False),
        "drive Z",
    ),
    "subnetwork": (
        lambda: subnetwork(Broken(batches())),
        lambda: subnetwork(batches()),
        "drive Z",
    ),
    "accumulate": (
        lambda: accumulate(network(), Broken(batches()), "gaussian", progress=False),
        lambda: accumulate(network(), batches(), "gaussian", progress=False),
        "drive Z",
    ),
    "operator": (
        lambda: operator(network(), with_nan(batches()), "gaussian"),
        lambda: operator(network(), batches(), "gaussian"),
        "NaN",
    ),
}


def every_case(rank: int, folder: str, count: int) -> None:
    """Fails in one case after the other, and works afterwards: the processes stay in step."""
    bad = count - 1
    for name, (failing, working, cause) in CASES.items():
        with pytest.raises((mq.MarquisError, OSError)) as caught:
            (failing if rank == bad else working)()
        message = str(caught.value)
        assert cause in message, f"{name}: {message}"
        assert rank == bad or f"process {bad} failed" in message, f"{name}: {message}"
    mine = [] if rank == bad else batches()  # no data is no failure: the sum is that of the others
    expected = fit(batches() * bad, distributed=False).curvature.diagonal()
    torch.testing.assert_close(fit(mine).curvature.diagonal(), expected)
    with pytest.raises(mq.MarquisError, match="no batches"):
        fit([])
    with pytest.raises(mq.MarquisError, match="no process has any samples"):
        step(X[:0], Y[:0])
    with pytest.raises(mq.MarquisError, match="passes over the training data"):
        fit(mine).check()  # the process has a part of the data only
    torch.testing.assert_close(step(X, Y), step(X, Y))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_processes_hear_of_the_one_that_failed(tmp_path: Path, count: int):
    in_processes(every_case, tmp_path, count, count=count)


class Slow(list):
    """Takes its time over every batch."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            time.sleep(0.2)
            yield batch


def timed(rank: int, folder: str, case: str) -> None:
    """Writes when the failure happened and when each process stopped."""
    bad = rank == 2
    fit(batches())  # torch's compiler is imported and the network captured before the time is taken
    try:
        if case == "step":
            online = mq.OnlineLaplace(network(), "gaussian", num_data=8)
            for number in range(300):
                time.sleep(0.1)
                Path(folder, "failure").touch() if bad and number == 10 else None
                online.step(X * float("nan") if bad and number == 10 else X, Y)
        elif bad:
            Path(folder, "failure").touch()
            fit(Broken(batches())) if case == "fit" else os.kill(os.getpid(), signal.SIGKILL)
        else:  # a minute of work, which the failure ends
            fit(Slow(batches(300))) if case == "fit" else fit(batches())
    except (mq.MarquisError, OSError) as error:
        Path(folder, f"stopped{rank}").write_text(str(error))
        assert bad or "process 2" in str(error) or case == "killed"
        if case == "killed":  # as a script ends, so that those who wait for this one hear of it too
            raise


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fit", "step", "killed"])
def test_four_processes_stop_within_ten_seconds(tmp_path: Path, case: str):
    if case == "killed":
        with pytest.raises(AssertionError, match="-9"):
            in_processes(timed, tmp_path, case, count=4)
    else:
        in_processes(timed, tmp_path, case, count=4)
    failed = (tmp_path / "failure").stat().st_mtime
    stopped = {path.name: path.stat().st_mtime - failed for path in tmp_path.glob("stopped*")}
    print(f"{case}: seconds from the failure to the end of each process: {stopped}")
    print("\n".join(path.read_text() for path in sorted(tmp_path.glob("stopped*"))))
    assert len(stopped) == (3 if case == "killed" else 4)
    assert max(stopped.values()) < LAST
