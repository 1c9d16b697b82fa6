"""Every front door gives one process's answer in two and four processes, with uneven and empty shares."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import accumulate, operator
from marquis.errors import UnsupportedOperationError
from marquis.evidence import train
from marquis.online import OnlineLaplace

N = 22


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double().eval()


def data(regression=False):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    return (x, x.sum(1, keepdim=True).sin() + 0.1 * noise) if regression else (x, (x.sum(1) > 0).long())


SHARES = {
    1: [[[*range(0, 9)], [*range(9, 16)], [*range(16, 22)]]],
    2: [[[*range(0, 6)], [9, 10], [16]], [[6, 7, 8], [*range(11, 16)], [*range(17, 22)]]],
    4: [[[0, 1], [9, 10]], [[2], [11], [*range(16, 22)]], [], [[*range(3, 9)], [12, 13, 14, 15]]],
}
"""Rows of every batch of every process: the k-th batches of all processes are the k-th batch of one."""


def batches(rank, world, regression=False):
    x, y = data(regression)
    return [(x[rows], y[rows]) for rows in SHARES[world][rank]]


def by_data_passes(mine):
    report = {}
    for structure in ("diagonal", "kronecker", "block", "full", "lowrank"):
        curvature = accumulate(network(), mine, "categorical", structure, progress=False)
        report[f"accumulate {structure}"] = curvature.to_dense()
    corrected = accumulate(network(), mine, "categorical", "kronecker", corrected=True, progress=False)
    report["corrected"] = corrected.diagonal()
    vectors = torch.linspace(-1, 1, 2 * 32, dtype=torch.float64).reshape(2, 32)
    for kind in ("ggn", "hessian", "empirical-fisher"):
        report[f"operator {kind}"] = operator(network(), mine, "categorical", kind) @ vectors
    for sketch in (None, 20):
        generator = torch.Generator().manual_seed(2)
        lanczos = mq.scores.sketched_lanczos(network(), mine, "categorical", 5, sketch, generator=generator)
        report[f"lanczos {sketch}"] = lanczos.score(data()[0])
    return report


def by_laplace(mine, regression):
    likelihood, outputs = ("gaussian", 1) if regression else ("categorical", 2)
    report = {}
    for name, structure, parameters in (
        ("kronecker", "kronecker", "all"),
        ("full", "full", "all"),
        ("last layer", "full", "last-layer"),
        ("subnetwork", "full", mq.Subnetwork(9, by="variance")),
        ("subnetwork columns", "full", mq.Subnetwork(9, by="variance", structure="lowrank")),
    ):
        la = mq.Laplace(network(outputs), likelihood, structure, parameters=parameters, prior=mq.Prior(1.0))
        la.fit(mine, progress=False)
        report[f"{name} evidence"] = la.log_evidence()
        report[f"{name} tuned"] = torch.cat([la.tune().prior.precision, la.log_evidence()[None]])
        for method in ("linearised", "linearised-samples", "sampled"):
            generator = torch.Generator().manual_seed(5)
            prediction = la.predict_loader(mine, method, samples=6, generator=generator, progress=False)
            report[f"{name} {method}"] = torch.cat([prediction.mean, prediction.variance], 1)
        if name == "full":
            report["mean shift"] = la.mean_shift(mine).gain
            report["check"] = torch.tensor([la.check(mine).relative_gradient, la.check(mine).distance_to_mode])
            report["validation"] = torch.tensor(list(la.tune(validation=mine).held_out.scores.values()))
            report["grid"] = la.tune("grid", mine, values=[0.1, 1.0, 10.0]).prior.precision
            adapted = la.tune("adapted", mine)
            report["adapted"] = torch.cat([adapted.prior.precision, adapted.theta_star])
            if not regression:
                report["adapted there"] = la.tune("adapted", mine, hessian_at="theta_star").prior.precision
    return report


def by_training(mine, world):
    report = {}
    for update in ("gradient", "mackay"):
        trained = train(network(1), mine, "gaussian", epochs=4, update=update, learning_rate=0.02, progress=False)
        weights = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
        report[update] = torch.cat([weights, trained.prior.precision, torch.tensor([trained.log_evidence])])
    for structure in ("diagonal", "kronecker"):
        model = copy.deepcopy(network(1))
        generator = torch.Generator().manual_seed(3)
        learner = OnlineLaplace(
            model, "gaussian", structure, "exact", num_data=N, prior_precision="learnt", generator=generator
        )
        step = DistributedDataParallel(_Step(learner)) if world > 1 else _Step(learner)
        optimiser = torch.optim.SGD(model.parameters(), 0.05)
        for k in range(3):
            x, y = mine[k] if k < len(mine) else (torch.zeros(0, 3).double(), torch.zeros(0, 1).double())
            optimiser.zero_grad()
            step(x, y).backward()
            optimiser.step()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        report[f"online {structure}"] = torch.cat([weights, learner.posterior().precision.diagonal()])
    return report


class _Step(nn.Module):
    def __init__(self, learner):
        super().__init__()
        self.model, self.learner = learner.model, learner

    def forward(self, x, y):
        return self.learner.step(x, y)


def answers(rank, world, regression):
    report = {"passes": by_data_passes(batches(rank, world))}
    report["laplace"] = by_laplace(batches(rank, world, regression), regression)
    report["training"] = by_training(batches(rank, world, True), world)
    return report


def share(rank, folder, world):
    if rank == 0:
        la = mq.Laplace(network(), "categorical").fit(batches(rank, world), progress=False, distributed=False)
        assert la.statistics.n == sum(map(len, SHARES[world][0]))
        assert la.predict_loader(batches(0, world), distributed=False, progress=False).mean.shape[0] == la.statistics.n
    mine = batches(rank, world)
    la = mq.Laplace(network(), "categorical").fit(mine, progress=False)
    with pytest.raises(UnsupportedOperationError, match="adapted"):
        la.tune("sampled", mine)
    with pytest.raises(UnsupportedOperationError, match="distributed=False"):
        la.predict_loader(mine, keep_inputs=True)
    with pytest.raises(UnsupportedOperationError, match="noisy-adam"):
        OnlineLaplace(network(), "gaussian", num_data=N, rule="noisy-adam")
    with pytest.raises(UnsupportedOperationError, match="BatchNorm"), pytest.warns(UserWarning):
        train(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double(), mine, "categorical")
    torch.save(answers(rank, world, world == 4), f"{folder}/{rank}.pt")


@pytest.mark.filterwarnings("ignore::marquis.evidence.tuning_result.TuningWarning")
@pytest.mark.parametrize("world", [2, 4])
def test_processes_give_the_answer_of_one(tmp_path: Path, world):
    in_processes(share, tmp_path, world, count=world)
    expected = answers(0, 1, world == 4)
    rows = torch.tensor([row for share in SHARES[world] for batch in share for row in batch])
    assert sorted(rows.tolist()) == list(range(N))
    for rank in range(world):
        result = torch.load(tmp_path / f"{rank}.pt")
        for group, report in expected.items():
            for what, value in report.items():
                # predictions come in the order of the ranks; a low-rank matrix is compared as a matrix
                value = value[rows] if what.split()[-1] in ("linearised", "linearised-samples", "sampled") else value
                torch.testing.assert_close(result[group][what], value, rtol=1e-6, atol=1e-9, msg=f"{group}: {what}")


def null_space_samples(loader):
    posterior = mq.scores.null_space(network(), loader, "categorical", "losses")
    weights = posterior.sample(2, torch.Generator().manual_seed(2), tolerance=0.05)
    return torch.cat([value.flatten(1) for value in weights.values()], 1)


def projected(rank, folder):
    torch.save(null_space_samples(batches(rank, 2)), f"{folder}/{rank}.pt")
    alone = mq.scores.null_space(network(), batches(rank, 2), "categorical", distributed=False)
    assert not alone.shared


def test_samples_of_a_null_space_are_projected_by_the_data_of_all_processes(tmp_path: Path):
    in_processes(projected, tmp_path)
    expected = null_space_samples(batches(0, 2) + batches(1, 2))
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected)
    assert (null_space_samples(batches(0, 2)) - expected).abs().max() > 0.01
