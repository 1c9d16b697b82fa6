"""A process that is killed is an error in the others, and a checkpointed pass goes on afterwards."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch import nn

import marquis as mq
from marquis.curvature import accumulate, ggn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


def inputs():
    return torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Deadly(list):
    """Yields its batches and kills its process before the last one."""

    def __iter__(self):
        for index, batch in enumerate(super().__iter__()):
            if index == len(self) - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def share(rank, folder, deadly):
    torch.set_num_threads(1)
    place = f"file://{folder}/meeting{deadly}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    x = inputs()
    mine = [x[i : i + 2] for i in ((0, 2, 4) if rank == 0 else (6, 8, 10))]
    loader = Deadly(mine) if deadly and rank == 1 else mine
    try:
        total = accumulate(network(), loader, "categorical", checkpoint=Path(folder) / "sum", progress=False)
        torch.save(total.diagonal(), f"{folder}/{rank}.pt")
    except mq.MarquisError as error:
        Path(folder, f"message{rank}").write_text(str(error))
        os._exit(3)


@pytest.mark.slow
def test_killing_a_process_ends_the_others_with_an_error_and_the_pass_resumes(tmp_path: Path):
    context = mp.get_context("spawn")
    for deadly in (1, 0):
        group = [context.Process(target=share, args=(rank, str(tmp_path), deadly)) for rank in range(2)]
        for process in group:
            process.start()
        for process in group:
            process.join(120)
        if deadly:
            assert [process.exitcode for process in group] == [3, -signal.SIGKILL]
            assert "process 1 left the group" in (tmp_path / "message0").read_text()
    expected = ggn(network(), inputs(), "categorical").diagonal()
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected)
