"""The curvature of a sharded network stays spread over the processes, and gives one process's answers."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import accumulate
from marquis.curvature.over_processes import balanced
from marquis.structures import Kronecker, Spread

N = 14


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double().eval()


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) > 0).long()


def shares(count):
    """Returns uneven shares of the data, the last of four empty."""
    x, y = data()
    ends = {1: [0, N], 2: [0, 9, N], 4: [0, 5, 6, N, N]}[count]
    rows = [[slice(i, min(i + 3, b)) for i in range(a, b, 3)] for a, b in itertools.pairwise(ends)]
    return [[(x[some], y[some]) for some in share] for share in rows]


CASES = [
    ("diagonal", "all", {}),
    ("kronecker", "all", {}),
    ("kronecker", "all", {"corrected": True}),
    ("kronecker", "last-layer", {}),
    ("diagonal", "last-layer", {}),
]


def results(model, loader, everyone):
    """Returns what a user asks a posterior for, `everyone` being the loader of `predict_loader`."""
    x, _ = data()
    report = {}
    for structure, parameters, options in CASES:
        prior = mq.Prior(1.0, groups="tensor" if parameters == "all" else "scalar")
        la = mq.Laplace(model, "categorical", structure, parameters=parameters, prior=prior)
        la.fit(loader, progress=False, **options)
        key = f"{structure} {parameters} {options}"
        tuned = {"curvature": la.curvature.to_dense(), "evidence": la.log_evidence()}
        tuned["gradient"] = la.tune("gradient", steps=5).prior.precision  # its derivatives cross processes
        tuned["mackay"] = la.tune().prior.precision
        prediction = la.predict(x, diagonal=False)
        tuned |= {"probs": prediction.probs, "covariance": prediction.covariance}
        tuned["joint"] = la.predict(x[:3], joint=True).covariance
        generator = torch.Generator().manual_seed(3)
        tuned["networks"] = la.predict(x, "sampled", samples=5, generator=generator).mean
        tuned["weights"] = torch.cat([w.flatten(1) for w in la.sample(2, generator).values()], 1)
        tuned["loader"] = la.predict_loader(everyone, progress=False).variance
        point = x[:2].clone().requires_grad_()
        la.predict(point, differentiable=True).variance.sum().backward()
        tuned["slope"] = point.grad
        more = mq.Laplace(model, "categorical", structure, parameters=parameters, prior=prior)
        if not options:
            tuned["twice"] = more.fit(loader, continue_from=la, progress=False).curvature.diagonal()
        report[key] = tuned
    return report


def share(rank, folder, count):
    mine = shares(count)[rank]
    model = sharded()
    report = results(model, mine, mine)
    la = mq.Laplace(model, "categorical").fit(mine, progress=False)
    assert isinstance(la.curvature, Spread)
    assert la.curvature.nbytes < accumulate(network(), mine, "categorical", "kronecker", progress=False).nbytes
    with pytest.raises(mq.MarquisError, match="different inputs"):
        la.predict(data()[0][: rank + 1])
    with pytest.raises(mq.MarquisError, match="one-shot"):
        la.fit(iter(mine), progress=False)
    la.save(f"{folder}/saved")
    loaded = mq.load(f"{folder}/saved", model)
    torch.testing.assert_close(loaded.log_evidence(), la.log_evidence())
    torch.save(report, f"{folder}/{rank}.pt")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sharded_networks_give_the_answers_of_one_process(tmp_path: Path, count: int):
    in_processes(share, tmp_path, count, count=count)
    x, y = data()
    loader = [(x[i : i + 3], y[i : i + 3]) for i in range(0, N, 3)]
    expected = results(network(), loader, [(x, y)])
    for rank in range(count):
        result = torch.load(tmp_path / f"{rank}.pt")
        for case, report in expected.items():
            for what, value in report.items():
                torch.testing.assert_close(result[case][what], value, rtol=1e-6, atol=1e-9, msg=f"{case}: {what}")


def never_whole(rank, folder):
    """Notes the largest structure that any call of the engine returns in this process."""
    from torch.distributed.fsdp import fully_shard

    def deep():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(24, 24) for _ in range(8))).double().eval()

    x = torch.randn(4, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    module = importlib.import_module("marquis.curvature.accumulate")
    sizes, plain = [], module.ggn

    def noted(*arguments, **options):
        sizes.append((result := plain(*arguments, **options)).nbytes)
        return result

    module.ggn = noted
    for structure in ("diagonal", "kronecker"):
        sizes.clear()
        whole = accumulate(deep(), [x], "gaussian", structure, progress=False, distributed=False).nbytes
        assert sizes == [whole]
        sizes.clear()
        kept = accumulate(fully_shard(deep()), [x], "gaussian", structure, progress=False)
        assert len(sizes) == 4, sizes
        assert max(sizes) <= whole / 4 + 1 and kept.nbytes <= whole / 4 + 1


@pytest.mark.slow
def test_no_process_ever_holds_more_than_its_part_of_the_curvature(tmp_path: Path):
    in_processes(never_whole, tmp_path, count=4)


class Interrupted:
    """A loader that stops in the middle of its second reading: the first group is done, the second is not."""

    def __init__(self, batches):
        self.batches, self.readings = batches, 0

    def __iter__(self):
        self.readings += 1
        yield self.batches[0]
        if self.readings == 2:
            raise KeyboardInterrupt
        yield from self.batches[1:]

    def __len__(self):
        return len(self.batches)


def begun(rank, folder):
    with pytest.raises((KeyboardInterrupt, mq.MarquisError)):
        loader = Interrupted(shares(2)[rank])
        accumulate(sharded(), loader, "categorical", "kronecker", progress=False, checkpoint=f"{folder}/half")


def refused(rank, folder):
    count = torch.distributed.get_world_size()
    with pytest.raises(mq.MarquisError, match=rf"of 2 processes and there are {count} now"):
        options = {"progress": False, "checkpoint": f"{folder}/half"}
        accumulate(sharded(), shares(count)[rank], "categorical", "kronecker", **options)


def continued(rank, folder):
    options = {"progress": False, "checkpoint": f"{folder}/half"}
    total = accumulate(sharded(), shares(2)[rank], "categorical", "kronecker", **options)
    whole = accumulate(network(), [data()[0]], "categorical", "kronecker", progress=False, distributed=False)
    torch.testing.assert_close(total.to_dense(), whole.to_dense())


@pytest.mark.parametrize("after", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_half_done_pass_is_refused_by_another_number_and_continued_by_the_same(tmp_path: Path, after: int):
    in_processes(begun, tmp_path)
    assert len(list(tmp_path.glob("half.group*-of-2"))) == 2
    in_processes(refused, tmp_path, count=after)
    assert len(list(tmp_path.glob("half.group*-of-2"))) == 2  # nothing is lost by asking
    in_processes(continued, tmp_path)
    assert not list(tmp_path.glob("half.group*-of-*"))


def decomposed(rank, folder):
    """Decomposes in one process what the other then has."""
    x, y = data()
    calls = []
    from marquis.structures import pieces

    plain = pieces.eigh_psd
    pieces.eigh_psd = lambda matrix, what: calls.append(matrix.shape[-1]) or plain(matrix, what)
    total = accumulate(network(), [(x[rank::2], y[rank::2])], "categorical", "kronecker", progress=False)
    assert isinstance(total, Kronecker)
    assert len(calls) == 3, calls  # six factors of three layers
    total.add_diagonal(1.0).logdet()
    assert len(calls) == 3, calls
    torch.save([calls, total.add_diagonal(1.0).logdet()], f"{folder}/{rank}.pt")


def test_each_factor_is_decomposed_in_one_process_only(tmp_path: Path):
    in_processes(decomposed, tmp_path)
    x, y = data()
    expected = accumulate(network(), [(x, y)], "categorical", "kronecker", progress=False).add_diagonal(1.0).logdet()
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert both[0][1] == both[1][1]
    torch.testing.assert_close(both[0][1], expected)
    assert sorted(both[0][0] + both[1][0]) == [2, 3, 5, 5, 6, 6]


def test_the_dearest_job_goes_first_and_to_the_idlest():
    assert balanced([1, 8, 3, 4], 2) == [1, 0, 1, 1]
    assert balanced([], 3) == []
