"""What Variational Laplace cannot train is refused by name, wherever it hides; what it can is left alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from marquis.errors import UnsupportedOperationError
from marquis.variational import MAP, MeanFieldVI, SmoothnessWarning, VariationalLaplace


class Functional(nn.Module):
    """A layer, a function of its output, a layer."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


class Inner(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.body = nn.ModuleDict({"block": Functional(function)})

    def forward(self, x):
        return self.body["block"](x)


def step(net, x=None):
    x = torch.randn(4, 3) if x is None else x
    method = VariationalLaplace(net, "gaussian", num_data=4)
    return method.step(x, torch.zeros(len(x), 2))


KINKED_MODULES = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(), nn.PReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Threshold(0.1, 0.0),
    nn.RReLU(), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardshrink(), nn.Softshrink(), nn.SELU(), nn.ELU(alpha=0.5),
]  # fmt: skip


@pytest.mark.parametrize("module", KINKED_MODULES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_modules_are_refused_with_their_path(module, training):
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(module), nn.Linear(4, 2)).train(training)
    with pytest.raises(UnsupportedOperationError, match=r"module '1\.0'.*softplus, tanh, GELU or SiLU"):
        step(net)


@pytest.mark.parametrize(
    "function",
    [
        F.relu,
        torch.relu,
        torch.relu_,
        lambda x: x.clamp(min=0),
        lambda x: torch.clamp_min(x, 0),
        F.leaky_relu,
        F.relu6,
        F.hardtanh,
        F.rrelu,
        lambda x: F.threshold(x, 0.0, 0.0),
        torch.abs,
    ],
)
def test_functional_calls_are_refused_with_the_module_that_makes_them(function):
    with pytest.raises(UnsupportedOperationError, match=r"module 'body\.block' \(Functional\)"):
        step(Inner(function))


def test_hidden_in_a_transformer_layer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(UnsupportedOperationError, match="ReLU in module '0'"):
        step(net, torch.randn(4, 3, 4))
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu").eval()
    step(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2)), torch.randn(4, 3, 4))


def test_hidden_in_a_recurrent_layer():
    class Recurrent(nn.Module):
        def __init__(self, nonlinearity):
            super().__init__()
            self.layer, self.head = nn.RNN(3, 4, batch_first=True, nonlinearity=nonlinearity), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.layer(x)[0][:, -1])

    with pytest.raises(UnsupportedOperationError, match=r"ReLU in module 'layer' \(RNN\)"):
        step(Recurrent("relu"), torch.randn(4, 5, 3))
    step(Recurrent("tanh"), torch.randn(4, 5, 3))


@pytest.mark.parametrize(
    "module",
    [nn.Softplus(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Mish(), nn.LogSigmoid(), nn.Softmax(1)],
    ids=str,
)
def test_smooth_ones_pass_in_silence(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmoothnessWarning)
        step(nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 2)))


@pytest.mark.parametrize("module", [nn.ELU(), nn.CELU(0.7)], ids=str)
def test_elu_warns(module):
    with pytest.warns(SmoothnessWarning, match="ELU in module '1'"):
        step(nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 2)))


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(2), lambda x: x.amax(1, keepdim=True), lambda x: F.max_pool2d(x, 2)]
)
def test_max_pooling_warns(pool):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool, self.head = nn.Conv2d(1, 2, 1), pool, nn.LazyLinear(2)

        def forward(self, x):
            return self.head(self.pool(self.conv(x)).tanh().flatten(1))

    net, x = Net(), torch.randn(4, 1, 4, 4)
    net(x)
    with pytest.warns(SmoothnessWarning, match="selects values"):
        step(net, x)


def test_a_kink_built_by_hand_warns():
    with pytest.warns(SmoothnessWarning, match="compares activations"):
        step(Inner(lambda x: torch.where(x > 0, x, torch.zeros_like(x))))


def test_a_kink_before_the_first_trained_weight_is_harmless():
    frozen = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    step(nn.Sequential(frozen, nn.Linear(3, 2)))
    step(nn.Sequential(nn.Hardtanh(), nn.Linear(3, 2)))
    with pytest.raises(UnsupportedOperationError):
        step(nn.Sequential(frozen, nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))


def test_only_in_training_mode():
    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x).relu() if self.training else self.layer(x)

    method = VariationalLaplace(Sly().eval(), "gaussian", num_data=4)
    x, y = torch.randn(4, 3), torch.zeros(4, 2)
    method.step(x, y)
    with pytest.raises(UnsupportedOperationError, match="the model's forward"):
        method.train().step(x, y)


def test_the_look_happens_once_and_leaves_nothing_behind():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
    method = VariationalLaplace(net, "gaussian", num_data=4)
    state, flag = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    method._examine(x)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.backends.mha.get_fastpath_enabled() == flag
    assert int(method.network[1].num_batches_tracked) == 0
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in method.network.modules())
    assert len(method._examined) == 1


@pytest.mark.parametrize("kind", [MeanFieldVI, MAP])
def test_the_other_methods_accept_everything(kind):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kind(net, "gaussian", num_data=4).step(torch.randn(4, 3), torch.zeros(4, 2)).backward()
