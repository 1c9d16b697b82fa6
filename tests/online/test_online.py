"""The online learner against closed forms, plain training and hand-made recursions (docs/method/online.md#checks)."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature import ggn
from marquis.errors import DataError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.online import NoisyAdam, OnlineLaplace, OnlineState
from marquis.online.random_numbers import fill_with_noise, fill_with_samples, row_tables
from marquis.structures import Diagonal, Layout

N, B = 40, 10
LAYOUT = Layout({"w": (3,)})
G = torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=gen(seed))


def network(outputs: int = 3, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).to(dtype)


def linear(outputs: int = 3) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, outputs).double()


def start(initial: float = 5.0) -> OnlineState:
    return OnlineState(curvature=None, initial=initial, noise_precision=1.0, prior_precision=1.0)


def repeat(rule: str, times: int, alpha: float, every: int = 1, size: int = B) -> OnlineState:
    state = start()
    for _ in range(times):
        state = state.update(rule, Diagonal(LAYOUT, G.clone()), size, size, N, alpha, every)
    return state


def values(state: OnlineState) -> Tensor:
    assert state.curvature is not None
    return state.curvature.diagonal()


# ---- the recursions


@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_constant_curvature_follows_the_closed_form(alpha: float):
    for steps in (1, 7, 200):
        state, keep = repeat("lae", steps, alpha), (1 - alpha) ** steps
        torch.testing.assert_close(values(state), (1 - keep) / alpha * G, rtol=1e-10, atol=0)
        assert state.initial == pytest.approx(5.0 * keep)
        assert state.data == pytest.approx(B * (1 - keep) / alpha)
        torch.testing.assert_close(values(repeat("nng", steps, alpha)), (1 - keep) * G, rtol=1e-10, atol=0)
        torch.testing.assert_close(values(repeat("van", steps, alpha)), steps * alpha * G, rtol=1e-10, atol=0)
    assert repeat("van", 7, alpha).initial == 5.0


def test_redux_replaces_at_the_end_of_each_epoch():
    assert repeat("redux", 3, 0.1).curvature is None
    once = repeat("redux", 4, 0.1)
    torch.testing.assert_close(values(once), 4 * G)
    assert once.initial == 0 and once.data == N
    torch.testing.assert_close(values(repeat("redux", 7, 0.1)), 4 * G)
    torch.testing.assert_close(values(repeat("redux", 8, 0.1)), 4 * G)


@pytest.mark.parametrize("rule", ["lae", "nng", "van"])
def test_one_curvature_for_several_steps_stands_for_all_of_them(rule: str):
    torch.testing.assert_close(values(repeat(rule, 5, 0.1, every=4)), values(repeat(rule, 20, 0.1)), rtol=1e-10, atol=0)


def test_states_are_values():
    old = repeat("lae", 3, 0.1)
    before = values(old).clone()
    old.update("lae", Diagonal(LAYOUT, G.clone()), B, B, N, 0.1).with_error(3.0, 2.0).with_prior(1.0, 1.0)
    assert torch.equal(values(old), before)
    assert old.noise_precision == 1.0


def test_noise_precision_is_entries_over_sampled_error():
    state = start()
    for _ in range(5):
        state = state.with_error(12.0, 30.0)
    assert state.noise_precision == pytest.approx(2.5)


def test_prior_precision_is_mackays_fixed_point():
    state, squared, factor = repeat("lae", 3, 0.1), 0.7, 0.5
    h = state.noise_precision * factor * values(state)  # the start value is no data
    gamma = float((h / (h + state.noise_precision * state.initial + state.prior_precision)).sum())
    assert state.with_prior(squared, factor).prior_precision == pytest.approx(gamma / squared)


# ---- stationary precision: docs/method/online.md#steady-state


@pytest.mark.parametrize(
    ("preset", "ratio", "tolerance"), [("paper", 1.0, 0.01), ("paper-code", 500.0, 3.0), (None, 1.0, 0.01)]
)
def test_stationary_precision_over_laplace_precision(preset: str | None, ratio: float, tolerance: float):
    model, x, y = linear(), randn(N, 4, seed=1), randn(N, 3, seed=2)
    whole = ggn(model, x, "gaussian").diagonal()
    options: dict[str, Any] = {"prior_precision": 0.3, "posterior_temperature": 1.0} if preset is None else {}
    online = OnlineLaplace(model, mq.Gaussian(1.0), estimator="exact", num_data=N, preset=preset, **options)
    order, seen, epochs = gen(3), [], 100
    alpha = 1e-3 if preset == "paper-code" else B / N
    for _ in range(epochs):
        for rows in torch.randperm(N, generator=order).split(B):
            online.step(x[rows], y[rows])
            # A linear network's curvature does not depend on the weights, so what is not yet there is known exactly.
            filled = 1 - (1 - alpha) ** online.state.steps
            seen.append(online.settings.factor * values(online.state) / filled)
    result = (torch.stack(seen[len(seen) // 2 :]).mean(0) / whole).mean()
    assert abs(float(result) - ratio) < tolerance
    assert online.effective_temperature * filled == pytest.approx(1 / ratio, rel=1e-6)


def test_full_batch_without_memory_is_the_laplace_precision():
    x, y = randn(N, 4, seed=1), randn(N, 3, seed=2)
    for structure in ("diagonal", "kronecker", "block", "full"):
        model = network()
        online = OnlineLaplace(
            model,
            mq.Gaussian(2.0),
            structure,
            "exact",
            num_data=N,
            forgetting=1.0,
            curvature_at="mean",
            prior_precision=0.3,
            posterior_temperature=1.0,
        )
        online.step(x, y)
        expected = ggn(model, x, mq.Gaussian(2.0), structure).to_dense() + 0.3 * torch.eye(online.layout.total)
        torch.testing.assert_close(online.posterior().precision.to_dense(), expected, rtol=1e-8, atol=1e-10)
        assert online.effective_temperature == pytest.approx(1.0)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_a_posterior_can_be_read_at_another_temperature(structure):
    model, x = network(2), randn(B, 4, seed=1)
    online = OnlineLaplace(
        model, "gaussian", structure, "exact", num_data=N, posterior_temperature=0.1, generator=gen(2)
    )
    warmer = OnlineLaplace(
        model, "gaussian", structure, "exact", num_data=N, posterior_temperature=3.0, generator=gen(2)
    )
    online.step(x, randn(B, 2, seed=2))
    warmer.state = online.state
    own, read = online.posterior(), online.posterior(posterior_temperature=3.0)
    torch.testing.assert_close(read.precision.to_dense() * 30.0, own.precision.to_dense(), rtol=1e-10, atol=1e-12)
    expected = warmer.posterior().precision.to_dense()
    torch.testing.assert_close(read.precision.to_dense(), expected, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(read.mean[name], own.mean[name]) for name in own.mean)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="temperature"):
            online.posterior(temperature=wrong)


def test_kronecker_forgets_to_the_joint_data():
    model, x, y = linear(), randn(N, 4, seed=1), randn(N, 3, seed=2)
    online = OnlineLaplace(model, mq.Gaussian(1.0), "kronecker", "exact", num_data=N, curvature_at="mean", rule="redux")
    for start_row in range(0, N, B):
        online.step(x[start_row : start_row + B], y[start_row : start_row + B])
    assert online.state.curvature is not None
    expected = ggn(model, x, "gaussian", "kronecker").to_dense()
    torch.testing.assert_close(online.state.curvature.to_dense(), expected, rtol=1e-10, atol=1e-12)


def test_published_code_by_hand_on_two_batches():
    x = randn(2 * B, 4, seed=1)
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)).double()
    online = OnlineLaplace(model, "gaussian", estimator="exact", num_data=2 * B, preset="paper-code", generator=gen(4))
    twin = OnlineLaplace(model, "gaussian", estimator="exact", num_data=2 * B, preset="paper-code", generator=gen(4))
    hessian = torch.full((online.layout.total,), 2.0 * B, dtype=torch.float64)
    for rows in (x[:B], x[B:]):
        theta, _ = twin._sampled_weights(twin.means())
        noise = (
            online.layout.flatten({k: (theta[k] - v).detach() for k, v in online.means().items()})
            * (hessian + 1).sqrt()
        )
        table = row_tables(torch.float64).flatten()
        assert bool((noise.unsqueeze(1) - table).abs().min(1).values.lt(1e-8).all())  # standard normal after all
        part = ggn(model, rows, "gaussian", params={k: t.detach() for k, t in theta.items()}).diagonal()
        hessian = 0.999 * hessian + 0.5 * (2 * B / B) * part
        online.step(rows)
        twin.state = online.state
        torch.testing.assert_close(online.posterior().precision.diagonal(), hessian + 1.0, rtol=1e-10, atol=0)


# ---- loss and gradient


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_gradient_is_that_of_the_loss_at_the_samples(samples: int, structure: str):
    x, y, delta = randn(B, 4, seed=1), randn(B, 3, seed=2), 0.7
    model = network()
    options: dict[str, Any] = {"num_data": N, "prior_precision": delta, "initial": 4.0, "samples": samples}
    online = OnlineLaplace(model, mq.Gaussian(3.0), structure, "exact", generator=gen(5), **options)
    online.step(x, y)  # so that there is a curvature
    drawn: list[dict[str, Tensor]] = []
    own = online._sampled_weights

    def spy(means: dict[str, Tensor]) -> Any:
        theta, penalty = own(means)
        drawn.append({name: t.detach().clone() for name, t in theta.items()})
        return theta, penalty

    online._sampled_weights = spy  # type: ignore[method-assign]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = 2.0 * online.step(x, y)  # scaled, as a user or a gradient scaler may do
    loss.backward()
    mean = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    shifted = [{name: mean[name] + (t[name] - before[name]) for name in mean} for t in drawn]
    fits = [mq.Gaussian(3.0).log_prob(functional_call(model, theta, (x,)), y).mean() for theta in shifted]
    expected = 2.0 * (0.5 * delta / N * sum(p.square().sum() for p in mean.values()) - torch.stack(fits).mean())
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, mean[name].grad, rtol=1e-10, atol=1e-12)
        assert torch.equal(p, before[name])
    assert len(drawn) == samples and not torch.equal(drawn[0]["0.weight"], before["0.weight"])


def test_without_noise_it_is_plain_training_bit_for_bit():
    x, y = randn(N, 4, seed=1).float(), randn(N, 3, seed=2).float()
    noisy, plain = network(dtype=torch.float32), network(dtype=torch.float32)
    online = OnlineLaplace(noisy, mq.Gaussian(1.0), num_data=N, initial=1e37, forgetting=1e-12, prior_precision=0.0)
    optimisers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (noisy, plain)]
    for rows in torch.randperm(N, generator=gen(1)).repeat(5).split(B):
        for optimiser, loss in zip(
            optimisers,
            (online.step(x[rows], y[rows]), -mq.Gaussian(1.0).log_prob(plain(x[rows]), y[rows]).mean()),
            strict=True,
        ):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for a, b in zip(noisy.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_missing_labels_leave_loss_noise_and_curvature():
    x, y = randn(B, 4, seed=1), randn(B, 3, seed=2)
    mask = torch.ones(B, 3, dtype=torch.bool)
    mask[:, 2] = False
    model = network()
    full = OnlineLaplace(model, "gaussian", estimator="exact", num_data=N, generator=gen(1))
    cut = OnlineLaplace(model, "gaussian", estimator="exact", num_data=N, generator=gen(1))
    a, b = full.step(x, y), cut.step(x, torch.where(mask, y, torch.nan), mask)
    assert float(a.detach()) > float(b.detach())
    assert cut.state.entries == 2 * B and full.state.entries == 3 * B
    assert float(cut.state.curvature.by_parameter()["2.weight"][2].abs().sum()) == 0  # type: ignore[union-attr]
    assert float(full.state.curvature.by_parameter()["2.weight"][2].abs().sum()) > 0  # type: ignore[union-attr]


def test_frozen_weights_stay_certain():
    model = network()
    model[0].requires_grad_(False)
    online = OnlineLaplace(model, "gaussian", num_data=N)
    online.step(randn(B, 4), randn(B, 3)).backward()
    assert set(online.layout.names) == {"2.weight", "2.bias"}
    assert set(online.posterior().mean) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("estimator", ["exact", "sketched", "approximate", "mixed"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_every_estimator_learns(estimator: str, likelihood: str):
    x = (randn(N, 4, seed=1) > 0).double()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    online = OnlineLaplace(
        model, likelihood, estimator=estimator, num_data=N, prior_precision="learnt", generator=gen(1)
    )
    optimiser = torch.optim.Adam(model.parameters(), 2e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = online.step(x)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < sum(losses[:10])
    assert online.state.noise_precision != 1.0 if likelihood == "gaussian" else online.state.noise_precision == 1.0
    assert online.state.prior_precision != 1.0
    sampled = online.posterior().sample(2, gen())
    assert all(t.isfinite().all() for t in sampled.values())


def test_learnt_noise_agrees_with_the_noise_of_the_data():
    x = randn(2000, 4, seed=1)
    y = x @ randn(4, 2, seed=2) + 0.2 * randn(2000, 2, seed=3)
    model = nn.Linear(4, 2).double()
    online = OnlineLaplace(model, "gaussian", num_data=2000, prior_precision="learnt", generator=gen(1))
    optimiser = torch.optim.Adam(model.parameters(), 3e-2)
    for epoch in range(15):
        for rows in torch.randperm(2000, generator=gen(epoch)).split(50):
            optimiser.zero_grad()
            online.step(x[rows], y[rows]).backward()
            optimiser.step()
    assert online.state.noise_precision == pytest.approx(25.0, rel=0.1)
    # Ten weights of size about one: the evidence's answer for their precision is of that order.
    assert 0.1 < online.state.prior_precision < 10


# ---- noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rows_of_a_table_have_the_moments_of_the_normal(dtype: torch.dtype):
    identity = torch.eye(32, dtype=torch.float64)
    rounding = 1e-12 if dtype == torch.float64 else 1e-6
    tables = row_tables(dtype).double()
    for table in tables:
        assert torch.equal(table.mean(0), torch.zeros(32, dtype=torch.float64))
        torch.testing.assert_close(table.mT @ table / len(table), identity, rtol=0, atol=rounding)
        third = torch.einsum("ni,nj,nk->ijk", table, table, table) / len(table)
        assert third.abs().max() < 1e-12  # rows come in pairs of opposite sign
        torch.testing.assert_close(table.pow(4).mean(0), 3 * torch.ones_like(identity[0]), rtol=0.015, atol=0)
    crossed = tables.square().mT @ tables.square() / tables.shape[1] - identity * 2
    assert (crossed.mean(0) - 1).fill_diagonal_(0).abs().max() < 0.07
    # Two-sided: a product of squares does deviate within one table, which is why there are several.
    assert (crossed[0] - 1).fill_diagonal_(0).abs().max() > 0.03
    assert tables.abs().max() < 4.5


def test_draws_are_white_across_and_within_rows():
    drawn = fill_with_noise(torch.empty(400_000), gen(1)).reshape(-1, 64)
    assert abs(float(drawn.mean())) < 0.008
    assert float(drawn.var()) == pytest.approx(1.0, abs=0.012)
    covariance = drawn.T @ drawn / len(drawn)  # 6,250 rows: standard error 0.0127
    assert (covariance - torch.eye(64)).abs().max() < 0.065
    assert torch.equal(fill_with_noise(torch.empty(9_999), gen(7)), fill_with_noise(torch.empty(9_999), gen(7)))
    odd = fill_with_noise(torch.empty(70_003), gen(2))
    assert odd.isfinite().all() and odd[-3:].abs().sum() > 0


def test_every_draw_takes_other_rows_and_every_table_is_used():
    tables = row_tables(torch.float64)  # whole rows: single numbers may stand in several tables
    result = set()
    generator = gen(5)
    for _ in range(40):
        row = fill_with_noise(torch.empty(32, dtype=torch.float64), generator)
        (table,) = (tables == row).all(2).any(1).nonzero()
        result.add(int(table))
    assert result == {0, 1, 2, 3}


def test_samples_are_scaled_noise_around_the_mean():
    sizes = (70_000, 33, 0, 5)
    curvatures = [torch.rand(n, dtype=torch.float64, generator=gen(4)) for n in sizes]
    zeros, means = ([torch.full((n,), value, dtype=torch.float64) for n in sizes] for value in (0.0, 3.0))
    noise, outs = ([torch.empty(n, dtype=torch.float64) for n in sizes] for _ in range(2))
    fill_with_samples(noise, zeros, None, 2.0, 1.0, gen(3))
    fill_with_samples(outs, means, curvatures, 2.0, 0.3, gen(3))
    for out, z, curvature in zip(outs, noise, curvatures, strict=True):
        torch.testing.assert_close(out, 3 + z / (2 * curvature + 0.3).sqrt(), rtol=1e-12, atol=1e-14)
    assert float(noise[0].var()) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("coefficients", [(0.3, -1.0, 2.0, 0.0), (0.3, -1.0, 2.0, 1.5)], ids=["quadratic", "cubic"])
def test_opper_archambeau_identities(coefficients: tuple[float, ...]):
    """d/dμ E[V] = E[V'], d/dσ² E[V] = 1/2 E[V''], with the learner's noise as the measure (docs/method/online.md)."""
    c0, c1, c2, c3 = coefficients
    mu = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    nodes, weights = _hermite(20)
    w = mu + variance.sqrt() * nodes
    mean = (weights * (c0 + c1 * w + c2 * w**2 + c3 * w**3)).sum()
    to_mu, to_variance = torch.autograd.grad(mean, (mu, variance))
    at = (mu + variance.sqrt() * row_tables(torch.float64)[0, :, 0]).detach()
    torch.testing.assert_close((c1 + 2 * c2 * at + 3 * c3 * at**2).mean(), to_mu, rtol=1e-9, atol=0)
    torch.testing.assert_close(0.5 * (2 * c2 + 6 * c3 * at).mean(), to_variance, rtol=1e-9, atol=0)


def _hermite(count: int) -> tuple[Tensor, Tensor]:
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return torch.from_numpy(nodes), torch.from_numpy(weights / math.sqrt(2 * math.pi))


# ---- noisy Adam


def test_noisy_adam_squares_the_batch_gradient_at_the_sample():
    x, y = randn(B, 4, seed=1), randn(B, 3, seed=2)
    model = linear()
    online = OnlineLaplace(
        model, mq.Gaussian(2.0), num_data=N, rule="noisy-adam", forgetting=0.1, prior_precision=0.5, generator=gen(1)
    )
    optimiser = NoisyAdam(online, lr=0.01, momentum=0.9, damping=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = online.step(x, y)
    loss.backward()
    prior = {name: 0.5 / N * p for name, p in before.items()}
    g = {name: p.grad - prior[name] for name, p in model.named_parameters()}  # type: ignore[operator]
    f = {name: 0.1 * value.square() for name, value in g.items()}
    held = online.layout.unflatten(2.0 / N * values(online.state))
    for name in g:
        torch.testing.assert_close(held[name], f[name], rtol=1e-10, atol=0)
    optimiser.step()
    for name, p in model.named_parameters():
        metric = f[name] + 2.0 * 0.9 * 100 / N + 0.5 / N + 0.01
        torch.testing.assert_close(p.detach(), before[name] - 0.01 * p.grad / metric, rtol=1e-10, atol=1e-12)
    with pytest.raises(UnsupportedOperationError, match="noisy-adam"):
        NoisyAdam(OnlineLaplace(model, "gaussian", num_data=N))


# ---- saving, processes, precision


def train(online: OnlineLaplace, optimiser: torch.optim.Optimizer, x: Tensor, epochs: range) -> None:
    for epoch in epochs:
        for rows in torch.randperm(len(x), generator=gen(epoch)).split(B):
            optimiser.zero_grad()
            online.step(x[rows]).backward()
            optimiser.step()


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
@pytest.mark.parametrize("rule", ["lae", "redux"])
def test_a_loaded_learner_goes_on_bit_for_bit(structure: str, rule: str, tmp_path: Path):
    x = randn(N + 3, 4, seed=1)

    def fresh(seed: int) -> tuple[nn.Module, OnlineLaplace, torch.optim.Optimizer]:
        model = network(4)
        online = OnlineLaplace(model, "gaussian", structure, num_data=len(x), rule=rule, generator=gen(seed))
        return model, online, torch.optim.Adam(model.parameters(), 1e-2)

    model, online, optimiser = fresh(1)
    train(online, optimiser, x, range(2))
    torch.save([model.state_dict(), online.state_dict(), optimiser.state_dict()], tmp_path / "state.pt")
    train(online, optimiser, x, range(2, 4))
    other, resumed, other_optimiser = fresh(99)
    weights, state, moments = torch.load(tmp_path / "state.pt", weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    other_optimiser.load_state_dict(moments)
    train(resumed, other_optimiser, x, range(2, 4))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(online.posterior().precision.diagonal(), resumed.posterior().precision.diagonal())
    assert vars(online.state)["noise_precision"] == resumed.state.noise_precision


def test_the_random_stream_of_another_kind_of_device_gives_a_seed():
    """A state that was taken on a GPU holds 16 bytes per stream, which no stream of a CPU can go on from."""
    online = OnlineLaplace(network(), "gaussian", num_data=N)
    online.step(randn(B, 4), randn(B, 3))

    def first_draw(stream: int) -> Tensor:
        state = online.state_dict()
        state["streams"] = {name: torch.full((16,), stream, dtype=torch.uint8) for name in state["streams"]}
        resumed = OnlineLaplace(network(), "gaussian", num_data=N)
        resumed.load_state_dict(state)
        return torch.cat([value.flatten() for value in resumed.draw(resumed._weights_stream).values()])

    assert torch.equal(first_draw(1), first_draw(1))
    assert not torch.equal(first_draw(1), first_draw(2))


def test_foreign_states_are_refused():
    online = OnlineLaplace(network(), "gaussian", num_data=N)
    online.step(randn(B, 4), randn(B, 3))
    with pytest.raises(ModelMismatchError, match="other names or shapes"):
        OnlineLaplace(network(2), "gaussian", num_data=N).load_state_dict(online.state_dict())
    with pytest.raises(DataError, match="complete state"):
        OnlineLaplace(network(), "gaussian", num_data=N).load_state_dict({"numbers": {}})
    state = online.state_dict()
    state["numbers"].pop("data")
    with pytest.raises(DataError, match="version"):
        online.load_state_dict(state)


def test_mixed_precision_leaves_the_curvature_alone():
    x, y = randn(B, 4, seed=1).float(), randn(B, 3, seed=2).float()
    states = []
    for mixed in (False, True):
        model = network(dtype=torch.float32)
        online = OnlineLaplace(model, mq.Gaussian(1.0), estimator="exact", num_data=N, generator=gen(1))
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = online.step(x, y)
        loss.backward()
        states.append((online.state, loss.detach()))
    torch.testing.assert_close(values(states[0][0]), values(states[1][0]), rtol=1e-5, atol=0)
    assert values(states[1][0]).dtype == torch.float32
    assert not torch.equal(states[0][1], states[1][1])  # the loss did run in bfloat16
    torch.testing.assert_close(states[0][1], states[1][1], rtol=3e-2, atol=0)


def _process(rank: int, folder: str, world: int) -> None:
    x = randn(N, 4, seed=1)
    model = network(4)
    online = OnlineLaplace(
        model,
        "gaussian",
        estimator="exact",
        num_data=N,
        prior_precision="learnt",
        posterior_temperature=1.0,
        generator=gen(1),
    )
    trained: nn.Module = nn.parallel.DistributedDataParallel(_Loss(online)) if world > 1 else _Loss(online)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(3):
        for rows in torch.randperm(N, generator=gen(epoch)).split(B):
            optimiser.zero_grad()
            trained(x[rows.chunk(world)[rank]]).backward()
            optimiser.step()
    if rank == 0:
        torch.save([model.state_dict(), online.state_dict()], f"{folder}/result{world}.pt")


class _Loss(nn.Module):
    def __init__(self, online: OnlineLaplace) -> None:
        super().__init__()
        self.model, self.online = online.model, online

    def forward(self, x: Tensor) -> Tensor:
        return self.online.step(x)


def test_two_processes_learn_what_one_would(tmp_path: Path):
    in_processes(_process, tmp_path, 2)
    _process(0, str(tmp_path), 1)
    one, two = (torch.load(tmp_path / f"result{world}.pt", weights_only=True) for world in (1, 2))
    for name in one[0]:
        torch.testing.assert_close(two[0][name], one[0][name], rtol=1e-9, atol=1e-11)
    for key in ("noise_precision", "prior_precision", "data"):
        assert two[1]["numbers"][key] == pytest.approx(one[1]["numbers"][key], rel=1e-9)
    for key, tensor in one[1]["structures"]["curvature"].items():
        torch.testing.assert_close(two[1]["structures"]["curvature"][key], tensor, rtol=1e-8, atol=1e-12)


# ---- what is refused


def test_forgotten_weights_are_reported_not_patched():
    x = randn(B, 4)
    x[:, 1] = 0  # an always-black pixel
    online = OnlineLaplace(linear(), "gaussian", estimator="exact", num_data=N, preset="paper", forgetting=1.0)
    online.step(x, randn(B, 3))
    with pytest.raises(NumericalError, match=r"weight weight.*prior_precision"):
        online.step(x, randn(B, 3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "sgd"}, "rule='sgd'"),
        ({"preset": "papers"}, "preset='papers'"),
        ({"forgetting": 0.0}, "forgetting"),
        ({"forgetting": "epoch"}, "forgetting"),
        ({"posterior_temperature": -1.0}, "temperature"),
        ({"prior_precision": -1.0}, "prior_precision"),
        ({"noise_precision": "fixed"}, "noise_precision"),
        ({"samples": 0}, "samples"),
        ({"initial": 0.0}, "initial"),
        ({"scale": "epoch"}, "scale"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str):
    with pytest.raises(DataError, match=text):
        OnlineLaplace(network(), "gaussian", num_data=N, **options)


def test_bad_calls():
    with pytest.raises(DataError, match="num_data"):
        OnlineLaplace(network(), "gaussian", num_data=0)
    with pytest.raises(UnsupportedOperationError, match="lowrank"):
        OnlineLaplace(network(), "gaussian", "lowrank", num_data=N)
    with pytest.raises(UnsupportedOperationError, match="noise_precision"):
        OnlineLaplace(network(), "bernoulli", num_data=N, noise_precision=2.0)
    online = OnlineLaplace(network(), "gaussian", num_data=N, forgetting="learning-rate")
    with pytest.raises(DataError, match="learning_rate"):
        online.step(randn(B, 4), randn(B, 3))
    with pytest.raises(DataError, match="at least one batch"):
        online.posterior()
    online.step(randn(B, 4), randn(B, 3), learning_rate=0.5)
    with pytest.raises(DataError, match="NaN"):
        online.step(randn(B, 4) * torch.nan, randn(B, 3), learning_rate=0.5)


def test_the_model_keeps_its_modes_and_buffers():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    online = OnlineLaplace(model, "gaussian", num_data=N, generator=gen(1))
    for x, y in zip(randn(N, 4).split(B), randn(N, 3).split(B), strict=True):
        online.step(x, y)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not model.training
