"""A captured graph is used only while it gives what the model gives, whatever the model reads."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from marquis.curvature.graph import cache

SCALES = {"scale": 1.0}


class Scaled(nn.Module):
    """Reads its scale from one of the places that a description of the module does not see."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.place = place
        self.config = SimpleNamespace(scale=1.0)
        self.array = np.ones(1)

    def scale(self) -> float:
        scales = {"object": lambda: self.config.scale, "array": lambda: float(self.array[0])}
        scales |= {"global": lambda: SCALES["scale"], "environment": lambda: float(os.environ["MARQUIS_SCALE"])}
        return scales[self.place]()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale()


def change(module: Scaled, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    module.config.scale = scale
    module.array[0] = scale
    SCALES["scale"] = scale
    monkeypatch.setenv("MARQUIS_SCALE", str(scale))


@pytest.mark.parametrize("place", ["object", "array", "global", "environment"])
@pytest.mark.parametrize("scale", [2.0, 1.0001])
def test_state_that_is_not_described_is_noticed(place, scale, monkeypatch):
    torch.manual_seed(0)
    model, x = Scaled(place).eval(), torch.randn(7, 3)
    change(model, 1.0, monkeypatch)
    before = ggn(model, x, "gaussian").diagonal()
    change(model, scale, monkeypatch)
    after = ggn(model, x, "gaussian").diagonal()
    torch.testing.assert_close(after, scale**2 * before, rtol=1e-6, atol=0)
    change(model, 1.0, monkeypatch)
    torch.testing.assert_close(ggn(model, x, "gaussian").diagonal(), before, rtol=1e-6, atol=0)


def test_a_fit_compares_once_per_batch_and_notices_what_its_loader_changes(monkeypatch):
    torch.manual_seed(0)
    model, x, sizes = Scaled("object").eval(), torch.randn(4, 7, 3), []
    difference = cache._difference

    def counted(network, model, params, x):
        sizes.append(len(x))
        return difference(network, model, params, x)

    def loader(scales):
        for part, scale in zip(x, scales, strict=True):
            model.config.scale = scale
            yield part, torch.zeros(7, 2)

    def fitted(scales):
        laplace = mq.Laplace(model, "gaussian", "diagonal", prior=1.0)
        return laplace.fit(list(loader([1.0] * 4)) if scales is None else loader(scales), progress=False)

    before = fitted(None).curvature.diagonal()
    monkeypatch.setattr(cache, "_difference", counted)
    torch.testing.assert_close(fitted(None).curvature.diagonal(), before)
    assert len(sizes) == 4
    parts = [ggn(model, part, "gaussian").diagonal() for part in x]
    changed = fitted([1.0, 1.0, 2.0, 3.0]).curvature.diagonal()
    torch.testing.assert_close(changed, parts[0] + parts[1] + 4 * parts[2] + 9 * parts[3], rtol=1e-5, atol=0)


def test_inputs_written_to_in_place_are_other_inputs():
    torch.manual_seed(0)
    model, x = Scaled("object").eval(), torch.randn(7, 3)
    ggn(model, x, "gaussian")
    network = cache._CAPTURES[model][-1]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with cache.comparing_once():
        assert cache._agrees(network, model, parameters, x)
        model.config.scale = 2.0
        assert cache._agrees(network, model, parameters, x[:3])
        x.mul_(1.0)
        assert not cache._agrees(network, model, parameters, x)
    model.config.scale = 1.0
    assert cache._agrees(network, model, parameters, x)
    model.config.scale = 2.0
    assert not cache._agrees(network, model, parameters, x)


def test_variances_follow_the_model(monkeypatch):
    torch.manual_seed(0)
    model, x, y = Scaled("object").eval(), torch.randn(40, 3), torch.randn(40, 2)
    loader = [(x[:20], y[:20]), (x[20:], y[20:])]
    mq.Laplace(model, "gaussian").fit(loader)
    model.config.scale = 2.0
    stale = mq.Laplace(model, "gaussian").fit(loader).predict(x).variance
    fresh = Scaled("object").eval()
    fresh.load_state_dict(model.state_dict())
    fresh.config.scale = 2.0
    torch.testing.assert_close(stale, mq.Laplace(fresh, "gaussian").fit(loader).predict(x).variance)


def test_nothing_is_captured_twice_while_nothing_changes(monkeypatch):
    """Rounding between graph and model is no change, whatever the batch."""
    captured = []
    plain = cache.capture
    monkeypatch.setattr(cache, "capture", lambda *args: captured.append(1) or plain(*args))
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).mean(1)

    model = Mean().eval()
    for number in range(12):
        ggn(model, torch.randn(2 + number, 5, 16) * 10 ** (number / 4), "gaussian", "diagonal", "sketched")
    assert len(captured) == 1


def test_networks_of_torchs_own_layers_are_not_run_again(monkeypatch):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(5, 3)
    ggn(model, x, "gaussian")
    monkeypatch.setattr(cache, "_difference", lambda *args: pytest.fail("compared"))
    ggn(model, x, "gaussian")
    model.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(pytest.fail.Exception):
        ggn(model, x, "gaussian")
