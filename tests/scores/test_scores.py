"""Scores and samples without a posterior matrix, against dense Jacobians."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.curvature import ggn, operator
from marquis.errors import DataError, NumericalError
from marquis.functional.function import NetworkFunction
from marquis.functional.jacobian import jacobian, sample_gradients
from marquis.scores.sketched_lanczos import FourierSketch


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    x = torch.randn(12, 3, dtype=torch.float64)
    return model, x, torch.arange(12) % 3


def rows_of(model, x):
    return jacobian(NetworkFunction.copy_of(model), x)


def krylov_projector(matrix, start, steps):
    """The dense projector onto the Krylov space, by orthogonalising every power against all before it."""
    vectors = [start / start.norm()]
    for _ in range(steps - 1):
        v = matrix @ vectors[-1]
        for _ in range(3):
            for u in vectors:
                v = v - (u @ v) * u
        vectors.append(v / v.norm())
    basis = torch.stack(vectors, 1)
    return basis @ basis.mT


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_the_score_without_a_sketch_is_the_dense_projection_onto_the_same_krylov_space(case, steps):
    model, x, y = case
    scores = mq.scores.sketched_lanczos(model, [(x, y)], "categorical", steps, generator=seeded())
    dense = ggn(model, x, "categorical", "full").to_dense()
    start = (2 * torch.randint(0, 2, (1, len(dense)), generator=seeded()) - 1).double()[0]
    outside = torch.eye(len(dense), dtype=torch.float64) - krylov_projector(dense, start, steps)
    new = torch.randn(5, 3, dtype=torch.float64)
    expected = ((rows_of(model, new) @ outside) ** 2).sum((1, 2))
    torch.testing.assert_close(scores.score(new), expected, rtol=1e-6, atol=1e-8)


def test_at_full_rank_training_inputs_score_nothing_and_others_what_the_null_space_holds(case):
    model, x, y = case
    few = x[:4]
    scores = mq.scores.sketched_lanczos(model, [(few, y[:4])], "gaussian", 40, generator=seeded())
    rows = rows_of(model, few).flatten(0, 1)
    null = torch.eye(rows.shape[1], dtype=torch.float64) - torch.linalg.pinv(rows) @ rows
    new = torch.randn(5, 3, dtype=torch.float64)
    expected = ((rows_of(model, new) @ null) ** 2).sum((1, 2))
    start = (2 * torch.randint(0, 2, (1, rows.shape[1]), generator=seeded()) - 1).double()
    along = null @ start[0] / (null @ start[0]).norm()  # Lanczos starts outside of the range, too
    expected = expected - ((rows_of(model, new) @ along) ** 2).sum(1)
    torch.testing.assert_close(scores.score(new), expected, rtol=1e-6, atol=1e-8)
    assert scores.score(few).max() < 1e-8 < scores.score(new).min()


def test_a_sketch_keeps_lengths_and_gives_nearly_the_same_scores():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 1)).double().eval()
    x = torch.randn(20, 4, dtype=torch.float64)
    whole, coarse, fine = (
        mq.scores.sketched_lanczos(model, [(x, x[:, :1])], "gaussian", 8, sketch, generator=seeded())
        for sketch in (None, 100, 2400)
    )
    assert fine.basis.shape == (2400, 8) and whole.basis.shape == (4021, 8)
    new = 2 * torch.randn(30, 4, dtype=torch.float64)
    lengths = rows_of(model, new).square().sum((1, 2))
    errors = [((sketched.score(new) - whole.score(new)).abs() / lengths).median() for sketched in (coarse, fine)]
    assert errors[1] < 0.02 < errors[0]  # falls with the root of the sketch's size
    sketch = FourierSketch.draw(4021, 2000, seeded(3), torch.device("cpu"))
    v = torch.randn(200, 4021, dtype=torch.float64)
    assert abs(float((sketch(v).square().sum(1) / v.square().sum(1)).mean()) - 1) < 0.01
    complete = FourierSketch.draw(101, 202, seeded(3), torch.device("cpu"))  # all coordinates: an isometry
    u = torch.randn(3, 101, dtype=torch.float64)
    torch.testing.assert_close(complete(u) @ complete(u).mT, u @ u.mT)


def linearised(model, x, samples):
    names = dict(model.named_parameters())
    deviations = torch.cat([(samples[n] - p.detach()).flatten(1) for n, p in names.items()], 1)
    return torch.einsum("bop,np->nbo", rows_of(model, x), deviations), deviations


@pytest.mark.parametrize("size", [12, 3])
def test_null_space_samples_leave_what_they_promise(case, size):
    model, x, y = case
    loader = [(x[i : i + size], y[i : i + size]) for i in range(0, 6, size)]
    x, y = torch.cat([a for a, _ in loader]), torch.cat([b for _, b in loader])
    free = torch.randn(6, 59, dtype=torch.float64, generator=seeded(5))
    likelihood = mq.Categorical()
    residual = likelihood.gradient(model(x).detach(), y)
    changes = {}
    for kept in ("outputs", "losses"):
        posterior = mq.scores.null_space(model, loader, "categorical", kept)
        samples = posterior.sample(6, seeded(5), tolerance=1e-9, sweeps=5000)
        outputs, deviations = linearised(model, x, samples)
        losses = torch.einsum("nbo,bo->nb", outputs, residual)
        changes[kept] = outputs.abs().max(), losses.abs().max()
        rows = rows_of(model, x)
        rows = rows.flatten(0, 1) if kept == "outputs" else torch.einsum("bo,bop->bp", residual, rows)
        projector = torch.eye(59, dtype=torch.float64) - torch.linalg.pinv(rows) @ rows
        torch.testing.assert_close(deviations, free @ projector, rtol=1e-4, atol=1e-5)  # the projection of that draw
    assert changes["outputs"][0] < 1e-5 and changes["outputs"][1] < 1e-5
    assert changes["losses"][1] < 1e-5 and changes["losses"][0] > 0.1
    unprojected = torch.einsum("bop,np->nbo", rows_of(model, x), free)
    assert unprojected.abs().max() > 0.1
    assert torch.einsum("nbo,bo->nb", unprojected, residual).abs().max() > 0.1


def test_losses_never_form_the_jacobian(case, monkeypatch):
    model, x, y = case
    function = NetworkFunction.copy_of(model)
    cotangents = torch.randn(12, 3, dtype=torch.float64, generator=seeded(2))
    expected = torch.einsum("bo,bop->bp", cotangents, rows_of(model, x))
    torch.testing.assert_close(sample_gradients(function, x, cotangents), expected)

    def refuse(*_):
        raise AssertionError("a Jacobian of all outputs")

    monkeypatch.setattr(sys.modules["marquis.scores.null_space"], "jacobian", refuse)
    mq.scores.null_space(model, [(x, y)], "categorical", "losses").sample(1, seeded())
    with pytest.raises(AssertionError, match="all outputs"):
        mq.scores.null_space(model, [(x, y)], "categorical", "outputs").sample(1, seeded())


def test_what_cannot_be_is_refused(case):
    model, x, y = case
    with pytest.raises(DataError, match="one-shot"):
        mq.scores.null_space(model, iter([(x, y)]), "categorical")
    with pytest.raises(NumericalError, match="sweeps"):
        mq.scores.null_space(model, [(x[:6], y[:6]), (x[6:], y[6:])], "categorical").sample(1, seeded(), sweeps=1)
    with pytest.raises(DataError, match="sketch"):
        mq.scores.sketched_lanczos(model, [(x, y)], "categorical", 10, 5)
    assert operator(model, [(x, y)], "categorical").size == 59
