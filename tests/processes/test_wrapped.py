"""Data-parallel and sharded networks in two processes give one process's posterior."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import operator

N = 14


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) > 0).long()


def results(model, loader):
    x, _ = data()
    report = {}
    for structure in ("kronecker", "diagonal", "full"):
        la = mq.Laplace(model, "categorical", structure).fit(loader, progress=False)
        report[structure] = la.curvature.to_dense()
        la.tune()
        report[f"{structure} evidence"] = la.log_evidence()
        report[f"{structure} probabilities"] = la.predict(x).probs
    last = mq.Laplace(model, "categorical", parameters="last-layer").fit(loader, progress=False)
    assert last.posterior.layout.names == ("4.weight", "4.bias")
    report["last layer"] = last.predict(x).covariance
    return report


def share(rank, folder):
    x, y = data()
    mine = [(x[i : i + 3], y[i : i + 3]) for i in ((0, 3, 6) if rank == 0 else (9, 12))]
    from torch.distributed.fsdp import fully_shard

    sharded = network()
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer)
    fully_shard(sharded)
    result = {"ddp": results(DistributedDataParallel(network()), mine), "fsdp2": results(sharded, mine)}
    for trains_a_copy in (
        lambda: mq.evidence.train(sharded, mine, "categorical", epochs=1, progress=False),
        lambda: mq.variational.VariationalLaplace(sharded, "categorical", num_data=N),
    ):
        with pytest.raises(mq.UnsupportedOperationError, match="before fully_shard"):
            trains_a_copy()
    sharded(x[:2])  # after a forward pass of its own, too
    result["fsdp2 used"] = results(sharded, mine)
    nothing = mine if rank == 1 else []
    result["empty"] = results(DistributedDataParallel(network()), nothing)
    vector = torch.linspace(-1, 1, 71, dtype=torch.float64)
    result["operator"] = {"product": operator(DistributedDataParallel(network()), mine, "categorical") @ vector}
    result["operator empty"] = {"product": operator(network(), nothing, "categorical") @ vector}
    apart = mq.Laplace(network(), "categorical").fit(mine, progress=False, distributed=False)
    result["apart"] = {"data": apart.statistics.n}
    torch.save(result, f"{folder}/{rank}.pt")


def test_two_processes_with_wrapped_networks_give_the_answer_of_one(tmp_path: Path):
    in_processes(share, tmp_path)
    x, y = data()
    expected = results(network(), [(x, y)])
    part = results(network(), [(x[9:], y[9:])])
    for rank in range(2):
        result = torch.load(tmp_path / f"{rank}.pt")
        vector = torch.linspace(-1, 1, 71, dtype=torch.float64)
        for name, rows in (("operator", slice(None)), ("operator empty", slice(9, None))):
            product = operator(network(), [(x[rows], y[rows])], "categorical") @ vector
            torch.testing.assert_close(result.pop(name)["product"], product, rtol=1e-8, atol=1e-10)
        assert result.pop("apart")["data"] == (9 if rank == 0 else 5)
        for name, report in result.items():
            for what, value in (part if name == "empty" else expected).items():
                torch.testing.assert_close(report[what], value, rtol=1e-6, atol=1e-9, msg=f"{name}: {what}")
