"""What `OnlineLaplace` asks of the engine: one capture, one forward pass per step, an end in every process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import multiprocessing as mp

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
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    online = learner()
    online.step(torch.randn(3, 4))
    x = torch.full((3, 4), float("nan")) if rank == 1 else torch.randn(3, 4)
    with pytest.raises(MarquisError) as caught:
        online.step(x)
    Path(folder, f"message{rank}").write_text(f"{type(caught.value).__name__}: {caught.value}")
    torch.distributed.destroy_process_group()


def test_all_processes_stop_when_one_fails(tmp_path: Path):
    mp.spawn(_failing_process, (str(tmp_path),), nprocs=2)  # type: ignore[attr-defined]
    own, other = (tmp_path / "message1").read_text(), (tmp_path / "message0").read_text()
    assert "NaN" in own and "process 1 failed" in other and "NaN" in other and DataError.__name__ in other
