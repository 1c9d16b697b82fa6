"""What makes the adapted evidence fast: Jacobians kept in memory, mixing of steps, groups sent to their limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, randn
from torch import Tensor, nn

from marquis.evidence.adapted import adapted, exact_curvature, log_precisions, plain_step, with_logs
from marquis.evidence.anderson import Anderson, bounded, longest_jumps, pruned
from marquis.evidence.linear_model import LinearModel
from marquis.evidence.log_evidence import effective_parameters
from marquis.evidence.stored_jacobians import jacobian_of
from marquis.functional.function import NetworkFunction
from marquis.likelihoods import Categorical, Gaussian
from marquis.priors import Prior


def classes(structure: str = "full", model: nn.Module | None = None):
    torch.manual_seed(0)
    net = model or nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    x = randn(30, 3, seed=1)
    y = (x @ randn(3, 4, seed=2)).argmax(1)
    return build(net.double(), batches(x, y, 8), Categorical(), Prior(groups="layer"), structure)


def test_kept_jacobians_give_the_same_products():
    problem = classes()
    kept, passes = LinearModel(problem, "adapted"), LinearModel(problem, "adapted", store_bytes=0)
    rows = randn(3, problem.layout.total, seed=3)
    theta = problem.mean + 0.3 * randn(problem.layout.total, seed=4)
    expected = passes.product(rows, theta)
    for _ in range(2):  # the first pass keeps them, the second uses them
        torch.testing.assert_close(kept.product(rows, theta), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(kept.fit(theta)[1], passes.fit(theta)[1], rtol=1e-10, atol=1e-12)
    assert kept.stored and not passes.stored
    size = 30 * 4 * problem.layout.total * 8
    for limit, stored in ((size, True), (size - 1, False)):
        tangent = LinearModel(problem, "adapted", store_bytes=limit)
        tangent.product(rows)
        assert tangent.stored is stored


def test_the_whole_matrix_from_kept_jacobians_is_the_curvature():
    problem, approximate = classes("full"), classes("kronecker")
    matrix = LinearModel(problem, "adapted").dense()
    assert matrix is not None and problem.curvature is not None
    torch.testing.assert_close(matrix, problem.curvature.to_dense(), rtol=1e-10, atol=1e-12)
    assert exact_curvature(LinearModel(problem, "adapted"), problem) is None  # it has it already
    result = exact_curvature(LinearModel(approximate, "adapted"), approximate)
    assert result is not None
    torch.testing.assert_close(result.to_dense(), matrix)
    assert exact_curvature(LinearModel(approximate, "adapted", store_bytes=0), approximate) is None
    few = replace(approximate, loader=approximate.loader[:2])  # 64 rows for 44 weights: products are cheaper
    assert exact_curvature(LinearModel(few, "adapted"), few) is None


@pytest.mark.parametrize(("structure", "accuracy"), [("full", 1e-8), ("diagonal", 1e-3)])
def test_tuned_alike_with_and_without_memory(structure, accuracy):
    problem = classes(structure)
    a, b = (adapted(problem, theta_tolerance=accuracy**1.5, tolerance=accuracy, store_bytes=m) for m in (None, 0))
    assert a.converged and b.converged
    torch.testing.assert_close(a.prior.precision, b.prior.precision, rtol=20 * accuracy, atol=0)
    assert a.log_evidence == pytest.approx(b.log_evidence, rel=accuracy)


class Coupled(nn.Module):
    """Each datum's output depends on its batch, so that no Jacobian is one datum's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


def test_data_that_depend_on_each_other_are_never_kept():
    problem = classes("diagonal")
    x = problem.loader[0][0]  # type: ignore[index]
    for model, kept in ((Coupled().double(), False), (nn.Linear(3, 4).double(), True)):
        result = jacobian_of(NetworkFunction.copy_of(model), x, model(x).detach())
        assert (result is not None) is kept


def test_anderson_is_faster_than_plain_steps():
    slopes = torch.tensor([0.9, 0.5, -0.4], dtype=F64)
    fixed = torch.tensor([1.0, -2.0, 3.0], dtype=F64)
    x, mixing = torch.zeros(3, dtype=F64), Anderson()
    plain = x.clone()
    for _ in range(10):
        x = x + mixing.jump(x, (1 - slopes) * (fixed - x))
        plain = plain + (1 - slopes) * (fixed - plain)
    assert float((x - fixed).abs().max()) < 1e-3 < 0.3 < float((plain - fixed).abs().max())


def test_a_jump_is_bounded_and_finite():
    mixing = Anderson()
    mixing.jump(torch.zeros(2, dtype=F64), torch.tensor([1.0, 0.1], dtype=F64))
    far = mixing.jump(torch.ones(2, dtype=F64), torch.tensor([1.0, 0.1], dtype=F64))  # steps that never shrink
    bound = longest_jumps(torch.tensor([1.0, 0.1], dtype=F64))
    assert bool((far.abs() <= bound).all()) and bound.tolist() == pytest.approx([10.1, 1.1])
    held = mixing.jump(torch.full((2,), 2.0, dtype=F64), torch.tensor([0.5, 0.0], dtype=F64))
    assert float(held[1]) == 0.0  # at a limit, whatever the others do
    assert bounded(torch.tensor([-1e3, 1e3], dtype=F64)).exp().tolist() == pytest.approx([1e-8, 1e8])


def test_only_rising_groups_with_nothing_to_gain_are_sent_to_the_limit():
    step = torch.tensor([0.5, 0.5, -0.5, 0.5, 0.5, 0.5], dtype=F64)  # the last is the noise
    gamma = torch.tensor([1e-5, 2.0, 1e-5, 0.1, 0.1], dtype=F64)
    share = torch.tensor([1e-6, 0.5, 1e-6, 1e-3, 1e-3], dtype=F64)
    slope = torch.tensor([1e-6, 1e-6, 1e-6, 1e-4, 0.02], dtype=F64)
    assert pruned(step, gamma, share, slope, 1e-3).tolist() == [True, False, False, True, False, False]


def irrelevant_inputs() -> tuple[Regression, Prior]:
    """Linear regression in which two of the inputs have nothing to do with the labels."""
    data = Regression(n=60, inputs=4, bias=False, seed=3)
    data.y = data.x[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=F64) + 0.3 * randn(60, 1, seed=9)
    rest = torch.cat([data.x[:, :2], data.y], 1)
    idle = data.x[:, 2:] - rest @ torch.linalg.lstsq(rest, data.x[:, 2:]).solution  # exactly nothing, in this sample
    data.x = torch.cat([data.x[:, :2], idle], 1)
    data.design = data.x
    data.labels, data.loader = data.y.reshape(-1), batches(data.x, data.y, 7)

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = (nn.Linear(2, 1, bias=False) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x[:, :2]) + self.idle(x[:, 2:])

    torch.manual_seed(0)
    data.model = Split().double()  # type: ignore[assignment]
    return data, Prior(groups="layer")


def test_a_group_that_the_data_do_not_need_ends_at_the_limit_and_that_is_the_maximum():
    data, prior = irrelevant_inputs()
    problem = data.problem(prior)
    tuned = adapted(problem, tolerance=1e-8, theta_tolerance=1e-14)
    assert tuned.converged and tuned.prior.precision.tolist()[1] == pytest.approx(1e8, rel=1e-2)
    vector, beta = tuned.prior.vector(), tuned.likelihood.noise_precision
    best = data.log_marginal(vector, beta)
    for idle in (1e-2, 1.0, 1e2, 1e4):  # no finite precision of the idle group is better
        other = torch.where(tuned.prior.index == 1, torch.tensor(idle, dtype=F64), vector)
        assert data.log_marginal(other, beta) < best
    assert any("does not need" in note for note in tuned.notes)
    assert len(tuned.history) < 30  # it does not crawl there


def test_the_plain_step_points_uphill():
    data = Regression(outputs=2, size=15)
    problem = data.at_optimum(Prior(torch.tensor([0.2, 40.0]), groups="tensor"), beta=3.0)
    step = plain_step(problem, effective_parameters(problem), noise=True)
    logs = log_precisions(problem).requires_grad_()
    data.log_marginal(logs[:-1].exp()[problem.grouped_prior.index], logs[-1].exp()).backward()
    assert logs.grad is not None and bool((logs.grad * step > 0).all())
    moved = with_logs(problem, logs.detach() + step, noise=True)
    assert moved.noise is not None and float(moved.noise) != 3.0
    held = with_logs(problem, logs.detach() + step, noise=False)
    assert held.noise is not None and float(held.noise) == 3.0


def test_steps_that_lose_ground_are_taken_back(monkeypatch: pytest.MonkeyPatch):
    data = Regression(outputs=2, size=15)
    data.place(3 * randn(10, seed=8))
    problem = data.problem(Prior(groups="tensor"))
    reference = adapted(problem, tolerance=1e-8, theta_tolerance=1e-14)
    monkeypatch.setattr(Anderson, "jump", lambda self, point, step: -4 * step)  # always the wrong way
    tuned = adapted(problem, tolerance=1e-4, theta_tolerance=1e-10)
    assert tuned.converged
    torch.testing.assert_close(tuned.prior.precision, reference.prior.precision, rtol=1e-3, atol=0)
    assert all(b > a - 1e-9 for a, b in pairwise(step.log_evidence or 0.0 for step in tuned.history))


def test_a_gaussian_network_keeps_its_noise_held():
    data = Regression(outputs=2, size=15)
    tuned = adapted(data.problem(beta=2.0), noise=False)
    assert isinstance(tuned.likelihood, Gaussian) and float(tuned.likelihood.noise_precision) == 2.0
