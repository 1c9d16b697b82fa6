"""Priors: groups, numbers, and weights that feed a normalisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.small_networks import close, layout_of, mlp, parameters, seeded
from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.priors import Prior
from marquis.structures import Layout


def test_groups_by_name():
    network = mlp()
    layout = layout_of(network)
    assert Prior().bind(layout).names == ("all",)
    assert Prior(groups="layer").bind(layout).names == ("0", "2")
    assert Prior(groups="tensor").bind(layout).names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert len(Prior(groups="parameter").bind(layout).precision) == layout.total
    bound = Prior({"first": 2.0, "rest": 3.0}, {"first": "0.*", "rest": "*"}).bind(layout)
    assert bound.vector().tolist() == [2.0] * 20 + [3.0] * 24
    assert bound.sizes.tolist() == [20, 24]


@pytest.mark.parametrize("groups", ["scalar", "layer", "tensor", "parameter", {"a": ["0.weight", "2.bias"], "b": "*"}])
def test_density_is_that_of_independent_gaussians(groups):
    network = mlp()
    layout = layout_of(network)
    theta = layout.flatten(parameters(network))
    count = len(Prior(groups=groups).bind(layout).precision)
    precision = torch.rand(count, generator=seeded(), dtype=torch.float64) + 0.5
    mean = torch.randn(layout.total, generator=seeded(1), dtype=torch.float64)
    bound = Prior(precision, groups, mean).bind(layout, network)
    expected = torch.distributions.Normal(mean, bound.vector().rsqrt()).log_prob(theta).sum()
    close(bound.log_density(theta), expected)
    close(bound.log_density(parameters(network)), expected)
    close((bound.precision * bound.scatter(theta)).sum(), bound.quadratic(theta))
    close(layout.vector(bound.diagonal(), theta), bound.vector())
    close(bound.gradient(theta), torch.func.grad(lambda t: bound.quadratic(t) / 2)(theta))


def test_a_number_keeps_its_digits():
    assert Prior(0.1).bind(layout_of(mlp()), mlp()).precision.item() == 0.1
    assert Prior(0.1, mean=0.3).bind(layout_of(mlp()), mlp()).mean[0].item() == 0.3


def test_gradients_reach_the_precision():
    layout = layout_of(mlp())
    precision = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    bound = Prior(groups="layer").bind(layout, mlp()).with_precision(precision)
    bound.logdet().backward()
    close(precision.grad, bound.sizes / precision.detach())


class Normalised(nn.Module):
    """Convolutions before norms of every kind, one behind a reshape, one that is also used elsewhere, one tied."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 3, padding=1)
        self.batch = nn.BatchNorm2d(4)
        self.b = nn.Conv2d(4, 4, 1)
        self.group = nn.GroupNorm(2, 4)
        self.c = nn.Linear(64, 6)
        self.layer = nn.LayerNorm(6)
        self.skipped = nn.Linear(6, 6)
        self.layer2 = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 6)
        self.layer3 = nn.LayerNorm(6)
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        x = torch.relu(self.batch(self.a(x)))
        x = self.group(self.b(x))
        x = self.layer(self.c(x.flatten(1)).reshape(-1, 1, 6)).squeeze(1)
        y = self.skipped(x)
        x = self.layer2(y) + y
        x = self.layer3(self.tied(x)) + self.tied(x)
        return self.out(x)


def test_normalised_groups_are_weight_and_bias_before_a_norm():
    network = Normalised().double().eval()
    x = torch.randn(3, 1, 4, 4, generator=seeded(), dtype=torch.float64)
    bound = Prior(groups="normalised").bind(layout_of(network), network, x)
    assert set(bound.names) == {"other", "a", "b", "c"}
    group = {name: bound.index[bound.layout.slice(name)].tolist() for name in bound.layout.names}
    for name in ("a", "b", "c"):
        number = bound.names.index(name)
        assert set(group[f"{name}.weight"] + group[f"{name}.bias"]) == {number}
        assert bound.sizes[number] == sum(p.numel() for p in getattr(network, name).parameters())
    other = bound.names.index("other")
    for name in ("batch.weight", "skipped.weight", "tied.weight", "out.bias", "layer.bias"):
        assert set(group[name]) == {other}


def test_scale_of_a_normalised_group_does_not_matter_and_that_of_others_does():
    network = Normalised().double().eval()
    for norm in (network.group, network.layer, network.layer2, network.layer3):
        norm.eps = 0.0
    x = torch.randn(3, 1, 4, 4, generator=seeded(), dtype=torch.float64)
    before = network(x).detach()
    for names, same in ((["b.weight", "b.bias"], True), (["b.weight"], False), (["tied.weight", "tied.bias"], False)):
        scaled = {n: p.detach() * (3.0 if n in names else 1.0) for n, p in network.named_parameters()}
        after = torch.func.functional_call(network, scaled, (x,))
        assert torch.allclose(before, after, rtol=1e-10) == same


def test_weight_norm_is_found():
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(3, 3, generator=seeded(), dtype=torch.float64)
    bound = Prior(groups="normalised").bind(layout_of(network), network, x)
    number = bound.index[bound.layout.slice("0.parametrizations.weight.original1")].unique().tolist()
    assert len(number) == 1 and bound.sizes[number[0]] == 12
    assert bound.names[int(bound.index[bound.layout.slice("0.bias")][0])] == "other"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda layout: Prior(-1.0), DataError),
        (lambda layout: Prior(0.0), DataError),
        (lambda layout: Prior(float("nan")), DataError),
        (lambda layout: Prior(groups="layers"), UnsupportedOperationError),
        (lambda layout: Prior(groups="normalised").bind(layout), MarquisError),
        (lambda layout: Prior(groups={"a": "0.*"}).bind(layout), UnsupportedOperationError),
        (lambda layout: Prior(groups={"a": "*", "b": "0.*"}).bind(layout), UnsupportedOperationError),
        (lambda layout: Prior(torch.ones(3), "layer").bind(layout), DataError),
        (lambda layout: Prior({"0": 1.0}, "layer").bind(layout), UnsupportedOperationError),
        (lambda layout: Prior(mean=torch.zeros(3)).bind(layout), DataError),
    ],
)
def test_what_cannot_be_meant_is_refused(make, error):
    with pytest.raises(error):
        make(layout_of(mlp()))


def test_the_scatter_is_remembered_only_for_the_same_weights():
    layout = Layout.of({"a": torch.zeros(2, 3), "b": torch.zeros(3)})
    prior = Prior(2.0, groups="tensor").bind(layout)
    theta = torch.arange(9.0)
    expected = torch.stack([theta[:6].square().sum(), theta[6:].square().sum()])
    torch.testing.assert_close(prior.scatter(theta), expected)
    torch.testing.assert_close(prior.with_precision(5.0).scatter(theta), expected)
    theta.mul_(2)  # in place: the same object with other values
    torch.testing.assert_close(prior.scatter(theta), 4 * expected)
