"""A pass that `torchrun` restarts goes on where it was, with as many processes or with another number of them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import accumulate, ggn
from marquis.io.tensors import load_tensors

N = 24


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


def inputs():
    x = torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[7] = x[2]  # two samples may be the same
    return x


def own(rank, world, size):
    """Returns the batches of every world-th sample, as a sampler deals them out."""
    x = inputs()[rank::world]
    return [x[i : i + size] for i in range(0, len(x), size)]


def attempt(rank, folder, world, size, interrupted, structure="kronecker"):
    """Sums a share and notes how many samples were summed; or leaves a checkpoint after two batches."""
    module = importlib.import_module("marquis.curvature.accumulate")
    plain, summed = module.ggn, []

    def noted(model, x, *more, **options):
        if interrupted and len(summed) == 2:
            raise OSError("the power is gone")
        summed.append(len(x))
        return plain(model, x, *more, **options)

    module.ggn = noted
    try:
        loader, file = own(rank, world, size), f"{folder}/sum"
        total = accumulate(network(), loader, "categorical", structure, checkpoint=file, progress=False)
        torch.save((sum(summed), total.to_dense()), f"{folder}/{rank}.pt")
    except (OSError, mq.MarquisError):
        assert interrupted
    finally:
        module.ggn = plain


def run(folder, world, *arguments):
    if world == 1:
        attempt(0, str(folder), 1, *arguments)
    else:
        in_processes(attempt, folder, world, *arguments, count=world)


def left_over(folder):
    return sorted(path.name for path in Path(folder).glob("sum*") if "previous" not in path.name)


def summed_in(folder):
    """Returns how many samples are in the checkpoints: a process that hears of another's failure stops earlier."""
    return sum(len(load_tensors(folder / name, ("accumulate",))[2]["samples"]) for name in left_over(folder))


def check_end(folder, world, already, structure="kronecker"):
    """Compares with one process, and counts the samples that were not summed again."""
    expected = ggn(network(), inputs(), "categorical", structure).to_dense()
    result = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
    for _, total in result:
        torch.testing.assert_close(total, expected)
    assert sum(count for count, _ in result) == N - already
    assert left_over(folder) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 1), *(pytest.param(*counts, marks=pytest.mark.slow) for counts in [(1, 2), (2, 4), (4, 2), (3, 2)])],
)
def test_another_number_of_processes_goes_on(tmp_path: Path, before: int, after: int):
    run(tmp_path, before, 2, True)
    already = summed_in(tmp_path)
    assert 0 < already < N
    run(tmp_path, after, 3, False)
    check_end(tmp_path, after, already)


@pytest.mark.slow
def test_the_number_may_change_twice_and_the_change_itself_be_interrupted(tmp_path: Path):
    run(tmp_path, 2, 2, True, "lowrank")
    shutil.copytree(tmp_path, tmp_path / "before")
    run(tmp_path, 1, 5, True, "lowrank")
    already = summed_in(tmp_path)
    assert already > summed_in(tmp_path / "before") > 0
    for file in (tmp_path / "before").glob("sum*"):  # as if the old files had not been removed any more
        shutil.copy(file, tmp_path / file.name)
    run(tmp_path, 3, 2, False, "lowrank")
    check_end(tmp_path, 3, already, "lowrank")


def test_data_that_are_gone_are_refused(tmp_path: Path):
    attempt(0, str(tmp_path), 1, 2, True, "diagonal")
    in_processes(other_data, tmp_path)


def other_data(rank, folder):
    options = {"checkpoint": f"{folder}/sum", "progress": False}
    with pytest.raises(mq.MarquisError, match="in no process's loader"):
        accumulate(network(), [inputs()[2 + rank : 8 : 2]], "categorical", **options)


SCRIPT = """
import os, signal, sys, time
import torch
from torch import distributed as dist
sys.path.insert(0, {tests!r})
from processes.test_restarted import network, own
from marquis.curvature import accumulate, data_pass

torch.set_num_threads(1)
# Names of their own for every attempt: torch 2.13 finds addresses of the processes before the restart otherwise.
store, rank, world = next(dist.rendezvous("env://"))
store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
folder = {folder!r}
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and {deadly}
data_pass.SECONDS = 0.0  # a checkpoint after every batch

class Share(list):
    def __iter__(self):
        for index, batch in enumerate(super().__iter__()):
            if first and rank == 1 and index == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.3 if first else 0)
            yield batch

total = accumulate(network(), Share(own(rank, world, 2)), "categorical", checkpoint=folder + "/sum", progress=False)
torch.save(total.diagonal(), f"{{folder}}/{{rank}}.pt")
print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
os._exit(0)  # the interpreter's own end sometimes aborts in threads of gloo
"""


def torchrun(folder: Path, processes: int, restarts: int, deadly: bool) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), folder=str(folder), deadly=deadly))
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_torchrun_restarts_after_kill_minus_nine_and_another_number_finishes(tmp_path: Path):
    expected = ggn(network(), inputs(), "categorical").diagonal()
    restarted = torchrun(tmp_path, 2, restarts=1, deadly=True)
    assert restarted.returncode == 0, restarted.stderr[-3000:]
    assert restarted.stdout.count("restarts 1") == 2
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected)
        (tmp_path / f"{rank}.pt").unlink()
    failed = torchrun(tmp_path, 2, restarts=0, deadly=True)
    assert failed.returncode != 0
    assert left_over(tmp_path), "no checkpoint"
    finished = torchrun(tmp_path, 3, restarts=0, deadly=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for rank in range(3):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected)


# --- a cut link -------------------------------------------------------------------------------------------------


def ip(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def two_machines():
    """Two network namespaces with a cable between them: what two machines see of each other."""
    names = [f"marquis{os.getpid()}{side}" for side in "ab"]
    if shutil.which("ip") is None or ip("netns", "add", names[0]).returncode:
        pytest.skip("this machine allows no network namespaces (ip netns)")
    ip("netns", "add", names[1])
    cable = [f"v{os.getpid()}{side}" for side in "ab"]
    made = ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
    try:
        if made.returncode:
            pytest.skip(f"this machine allows no virtual cables: {made.stderr}")
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names, cable
    finally:
        for name in names:
            ip("netns", "delete", name)


MACHINE = """
import os, sys, time
from datetime import timedelta
import torch
from torch import distributed as dist
sys.path.insert(0, {tests!r})
from processes.test_restarted import network, own
import marquis as mq
from marquis.curvature import accumulate, data_pass

torch.set_num_threads(1)
rank, folder, wait = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo", init_method="tcp://10.77.0.1:29511", rank=rank, world_size=2,
                        timeout=timedelta(seconds=20))
data_pass.SECONDS = 0.0

class Share(list):
    def __iter__(self):
        for index, batch in enumerate(super().__iter__()):
            if index == 2 and wait:
                open(f"{{folder}}/halfway{{rank}}", "w").close()
                time.sleep(wait)
            yield batch

try:
    total = accumulate(network(), Share(own(rank, 2, 2)), "categorical", checkpoint=folder + "/sum", progress=False)
    torch.save(total.diagonal(), f"{{folder}}/{{rank}}.pt")
    os._exit(0)
except mq.MarquisError as error:
    open(f"{{folder}}/message{{rank}}", "w").write(str(error))
    os._exit(3)
"""


@pytest.mark.slow
def test_a_cut_link_ends_both_sides_and_the_pass_goes_on_when_it_is_mended(tmp_path: Path, two_machines):
    names, cable = two_machines
    script = tmp_path / "machine.py"
    script.write_text(textwrap.dedent(MACHINE).format(tests=str(Path(__file__).parents[1])))

    def start(wait: float) -> list[subprocess.Popen]:
        machines = []
        for rank, (name, end) in enumerate(zip(names, cable, strict=True)):
            command = ["ip", "netns", "exec", name, sys.executable, str(script), str(rank), str(tmp_path), str(wait)]
            machines.append(subprocess.Popen(command, env={**os.environ, "GLOO_SOCKET_IFNAME": end}))
        return machines

    machines = start(8.0)
    limit = time.monotonic() + 240
    while not all((tmp_path / f"halfway{rank}").exists() for rank in range(2)):
        assert time.monotonic() < limit and not any(machine.poll() for machine in machines)
        time.sleep(0.1)
    ip("-n", names[0], "link", "set", cable[0], "down")
    assert [machine.wait(120) for machine in machines] == [3, 3]
    for rank in range(2):
        assert "left the group" in (tmp_path / f"message{rank}").read_text()
    assert left_over(tmp_path) == ["sum.0-of-2", "sum.1-of-2"]
    ip("-n", names[0], "link", "set", cable[0], "up")
    ip("-n", names[0], "addr", "add", "10.77.0.1/24", "dev", cable[0])
    assert [machine.wait(240) for machine in start(0.0)] == [0, 0]
    expected = ggn(network(), inputs(), "categorical").diagonal()
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected)
