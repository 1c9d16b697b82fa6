"""What `OnlineLaplace` asks of the engine: one capture, one forward pass per step, an end in every process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.processes import in_processes
from marquis import MarquisError, OnlineLaplace
from marquis.curvature.graph import cache
from marquis.curvature.graph.network import Network
from marquis.errors import DataError

RUNS: list[str] = []
"""Forward passes, of the captured graph and of the module itself."""


class Scaled(nn.Module):
    """A network with an attribute that changes what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(4, 3), nn.Linear(3, 4), 1.0

    def forward(self, x: Tensor) -> Tensor:
        RUNS.append("module")
        return self.scale * self.last(torch.tanh(self.first(x)))


def learner(**options: Any) -> OnlineLaplace:
    torch.manual_seed(0)
    options = {"num_data": 20, "generator": torch.Generator().manual_seed(1), **options}
    return OnlineLaplace(Scaled().eval(), "gaussian", **options)


@pytest.mark.parametrize("estimator", ["sketched", "exact", "approximate", "mixed"])
def test_the_graph_is_captured_once_until_the_model_changes(estimator, monkeypatch):
    captures: list[int] = []
    original = cache.capture
    monkeypatch.setattr(cache, "capture", lambda *a: captures.append(1) or original(*a))
    online = learner(estimator=estimator)
    optimiser = torch.optim.Adam(online.model.parameters(), 0.1)  # type: ignore[union-attr]
    for size in (5, 3, 5, 5):
        optimiser.zero_grad()
        online.step(torch.randn(size, 4)).backward()
        optimiser.step()
    assert len(captures) == 1
    before = online.state.curvature
    online.model.scale = 3.0  # type: ignore[union-attr]
    online.step(torch.randn(5, 4))
    assert len(captures) == 2 and online.state.curvature is not before


@pytest.mark.parametrize("estimator", ["sketched", "exact"])
def test_one_forward_pass_serves_loss_and_curvature(estimator, monkeypatch):
    online, x = learner(estimator=estimator), torch.randn(5, 4)
    online.step(x)
    forward = Network.forward
    monkeypatch.setattr(Network, "forward", lambda *a, **k: RUNS.append("graph") or forward(*a, **k))
    monkeypatch.setattr(cache, "_difference", lambda *args: 0.0)  # graph and model are compared on two samples
    RUNS.clear()
    online.step(x)
    assert RUNS == ["graph"]


def test_predict_is_that_of_the_posterior():
    online, x = learner(posterior_temperature=1.0), torch.randn(6, 4)
    online.step(x)
    prediction = online.predict(x)
    weights = {name: p.detach() for name, p in online.model.named_parameters()}  # type: ignore[union-attr]
    assert online.posterior().mean.keys() == weights.keys()
    jacobians = torch.func.jacrev(lambda w: torch.func.functional_call(online.model, w, (x,)))(weights)  # type: ignore[arg-type]
    rows = torch.cat([jacobians[name].flatten(2) for name in weights], dim=2)
    variance = (rows.square() * online.posterior().precision.inverse_diagonal()).sum(-1)
    torch.testing.assert_close(prediction.mean, online.model(x))
    torch.testing.assert_close(prediction.variance, variance, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(
        prediction.noise_variance, torch.full_like(variance, 1 / online.state.noise_precision), rtol=1e-5, atol=0
    )


def _failing_process(rank: int, folder: str) -> None:
    online = learner()
    online.step(torch.randn(3, 4))
    x = torch.full((3, 4), float("nan")) if rank == 1 else torch.randn(3, 4)
    with pytest.raises(MarquisError) as caught:
        online.step(x)
    Path(folder, f"message{rank}").write_text(f"{type(caught.value).__name__}: {caught.value}")


def test_all_processes_stop_when_one_fails(tmp_path: Path):
    in_processes(_failing_process, tmp_path)
    own, other = (tmp_path / "message1").read_text(), (tmp_path / "message0").read_text()
    assert "NaN" in own and "process 1 failed" in other and "NaN" in other and DataError.__name__ in other


# ---- memory that is kept between steps


class TiedWeights(nn.Module):
    """Weights whose gradients autograd hands out twice, or shares with another branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.once, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(torch.tanh(self.twice(self.once(x))))
        return h @ (self.a + self.b)


@pytest.mark.parametrize("make", [TiedWeights, Scaled])
def test_the_prior_is_added_to_the_gradient_however_weights_are_used(make):
    """Against autograd's own gradient of the loss and of the prior, at the same sampled weights."""
    torch.manual_seed(0)
    model, x = make().double().eval(), torch.randn(6, 4, dtype=torch.float64)
    online = OnlineLaplace(model, "gaussian", num_data=20, prior_precision=3.0, generator=torch.Generator())
    online.step(x).backward()
    online.step(x).backward()
    for _ in range(3):
        model.zero_grad()
        stream = online._weights_stream.get_state()
        theta = {name: value.clone() for name, value in online.draw(online._weights_stream).items()}
        likelihood, delta = online.noisy_likelihood, online.state.prior_precision
        online._weights_stream.set_state(stream)
        online.step(x).backward()
        leaves = {name: value.requires_grad_() for name, value in theta.items()}
        loss = -likelihood.log_prob(torch.func.functional_call(model, leaves, (x,)), x, None).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for (name, mean), gradient in zip(model.named_parameters(), gradients, strict=True):
            expected = gradient + delta / 20 * mean.detach()
            torch.testing.assert_close(mean.grad, expected, rtol=1e-10, atol=1e-12, msg=name)


def test_only_weights_of_single_layers_take_the_prior_in_place():
    online = OnlineLaplace(TiedWeights().eval(), "gaussian", num_data=20)
    online.step(torch.randn(6, 4))
    assert online._multiplied_once == {"once.weight"}


@pytest.mark.parametrize("rule", ["lae", "van", "nng", "redux"])
@pytest.mark.parametrize("every", [1, 2])
def test_states_that_were_read_stay_as_they_were(rule, every):
    """Reading the state at every step or never gives the same curvature; an old state never changes."""
    batches = [torch.randn(5, 4, generator=torch.Generator().manual_seed(i)) for i in range(7)]
    ends = []
    for read in (False, True):
        online, seen = learner(rule=rule, every=every, forgetting=0.1, scale="dataset"), []
        for x in batches:
            online.step(x)
            if read and online.state.curvature is not None:
                seen.append((online.state.curvature, online.state.curvature.diagonal().clone()))
        for curvature, copy in seen:
            assert torch.equal(curvature.diagonal(), copy)
        ends.append(online.state)
    for one, other in ((ends[0].curvature, ends[1].curvature), (ends[0].pending, ends[1].pending)):
        assert (one is None) == (other is None) and (one is None or torch.equal(one.diagonal(), other.diagonal()))
    assert (ends[0].data, ends[0].initial) == (ends[1].data, ends[1].initial)


def test_without_readers_the_curvature_stays_in_its_memory():
    online = learner()
    online.step(torch.randn(5, 4))
    online.step(torch.randn(5, 4))
    place = online._state.curvature.values.data_ptr()
    online.step(torch.randn(5, 4))
    assert online._state.curvature.values.data_ptr() == place
    held = online.state_dict()["structures"]["curvature"]["values"]
    copy = held.clone()
    online.step(torch.randn(5, 4))
    assert torch.equal(held, copy) and not torch.equal(online._state.curvature.values, copy)


def test_a_failing_batch_leaves_the_curvature_alone():
    online = learner()
    for _ in range(3):
        online.step(torch.randn(5, 4))
    before, steps = online._state.curvature.values.clone(), online._state.steps
    with pytest.raises(DataError):
        online.step(torch.full((5, 4), float("nan")))
    assert torch.equal(online._state.curvature.values, before) and online._state.steps == steps


def test_curvature_that_would_overflow_is_refused_before_it_is_written():
    model = nn.Linear(4, 4).eval()
    online = OnlineLaplace(model, "gaussian", num_data=20, noise_precision=1e-8)
    online.step(torch.randn(5, 4))
    online.step(torch.randn(5, 4))
    before = online._state.curvature.values.clone()
    with pytest.raises(MarquisError):
        online.step(torch.full((5, 4), 1e30))
    assert torch.equal(online._state.curvature.values, before)
