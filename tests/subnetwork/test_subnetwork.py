"""Single weights and the last layer (docs/method/curvature.md#last-layer-and-subnetworks)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from helpers.small_networks import close, convnet, dense_jacobian, inputs_for, layout_of, mlp, parameters, seeded
from marquis.errors import DataError, UnsupportedOperationError
from marquis.subnetwork import swag_moments, swag_variance
from marquis.subnetwork.last_layer import last_layer


def data(network: nn.Module, n: int = 9) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = inputs_for(network, n)
    with torch.no_grad():
        classes = network(x[:1]).shape[1]
    y = torch.randint(classes, (n,), generator=seeded(2))
    return [(x[:4], y[:4]), (x[4:], y[4:])]


@pytest.mark.parametrize("make", [mlp, convnet])
def test_it_is_the_subblock_of_the_precision_and_not_of_the_covariance(make):
    network = make()
    full = mq.Laplace(network, "categorical", "full", prior=0.3).fit(data(network))
    sub = mq.Laplace(network, "categorical", prior=0.3, parameters=mq.Subnetwork(12)).fit(data(network))
    names = sub.posterior.layout.names
    offsets = torch.cat([torch.arange(layout_of(network).total)[layout_of(network).slice(n)] for n in names])
    chosen = offsets[sub.posterior.index]
    dense = full.posterior.precision.to_dense()
    close(sub.posterior.precision.to_dense(), dense[chosen][:, chosen], 1e-10)
    other = torch.linalg.inv(torch.linalg.inv(dense)[chosen][:, chosen])
    assert not torch.allclose(sub.posterior.precision.to_dense(), other, rtol=1e-3)


def test_all_weights_are_the_full_posterior():
    network = mlp()
    full = mq.Laplace(network, "categorical", "full").fit(data(network))
    sub = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(44)).fit(data(network))
    x = inputs_for(network, 5, seed=8)
    close(sub.predict(x).covariance, full.predict(x).covariance, 1e-10)
    close(sub.log_evidence(), full.log_evidence(), 1e-10)
    close(sub.effective_parameters(), full.effective_parameters(), 1e-10)


def test_the_largest_variances_are_kept_and_ties_go_to_the_lowest_index():
    network = mlp()
    diagonal = mq.Laplace(network, "categorical", "diagonal").fit(data(network)).posterior
    variance = layout_of(network).flatten(diagonal.variance())
    sub = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(0.25, "variance")).fit(data(network))
    sub = sub.posterior
    kept = (
        layout_of(network)
        .flatten(
            {
                n: (sub.variance()[n] > 0).double() if n in sub.mean else torch.zeros_like(p)
                for n, p in parameters(network).items()
            }
        )
        .bool()
    )
    assert kept.sum() == 11
    assert variance[kept].min() > variance[~kept].max()
    scores = torch.tensor([1.0, 2.0] * 22)
    tied = mq.Subnetwork(5, by=scores).choose(network, layout_of(network))
    assert tied.among.tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("structure", ["diagonal", "lowrank", "block"])
def test_structures_inside(structure):
    network = mlp()
    by = torch.arange(44.0).flip(0).roll(7)
    dense = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(20, by)).fit(data(network)).posterior
    inside = (
        mq.Laplace(network, "categorical", parameters=mq.Subnetwork(20, by, structure)).fit(data(network)).posterior
    )
    expected = dense.precision.to_dense()
    if structure == "diagonal":
        expected = torch.diag(expected.diagonal())
    if structure == "block":
        module = torch.tensor([int(dense.precision.layout.locate(i)[0]) for i in range(20)])
        assert len(module.unique()) == 2
        expected = expected * (module[:, None] == module)
    close(inside.precision.to_dense(), expected, 1e-10)


def test_other_ways_of_ranking():
    network = mlp()
    layout = layout_of(network)
    weights = layout.flatten(parameters(network))
    largest = mq.Subnetwork(6, "magnitude").choose(network, layout)
    assert set(largest.among.tolist()) == set(weights.abs().topk(6).indices.tolist())
    assert torch.equal(mq.Subnetwork(6).choose(network, layout).among, largest.among)  # the default
    one, two = (mq.Subnetwork(6, "random").choose(network, layout, generator=seeded(3)).among for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, mq.Subnetwork(6, "random").choose(network, layout, generator=seeded(4)).among)
    named = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(by="2.*")).fit(data(network))
    plain = mq.Laplace(network, "categorical", "full", parameters="2.*").fit(data(network))
    close(named.posterior.precision.to_dense(), plain.posterior.precision.to_dense(), 1e-10)


def test_swag_is_the_variance_of_snapshots_and_leaves_the_network_alone():
    network = nn.Linear(2, 1, bias=False).double().eval()
    before, state = network.weight.detach().clone(), torch.get_rng_state()
    x = torch.randn(8, 2, generator=seeded(), dtype=torch.float64)
    y = torch.randn(8, 1, generator=seeded(1), dtype=torch.float64)
    result = swag_variance(
        network,
        [(x, y)],
        mq.Gaussian(),
        ["weight"],
        epochs=5,
        lr=0.1,
        momentum=0.0,
        weight_decay=0.0,
        generator=seeded(),
    )
    snapshots, weight = [], before.clone()
    for _ in range(5):
        weight = weight - 0.1 * (x @ weight.mT - y).mT @ x / 8
        snapshots.append(weight)
    close(result["weight"], torch.stack(snapshots).var(0, correction=0), 1e-10)
    options = {"epochs": 5, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "generator": seeded()}
    mean, variance = swag_moments(network, [(x, y)], mq.Gaussian(), ["weight"], **options)
    close(mean["weight"], torch.stack(snapshots).mean(0), 1e-10)
    close(variance["weight"], result["weight"], 1e-12)
    assert torch.equal(network.weight, before) and not network.training and torch.equal(torch.get_rng_state(), state)
    la = mq.Laplace(mlp(), "categorical", parameters=mq.Subnetwork(5, "swag", swag={"epochs": 3})).fit(data(mlp()))
    assert la.posterior.num_random == 5


def network_with_a_dead_unit() -> nn.Module:
    """Four hidden units with ReLU, of which number 2 is off for every input within reach."""
    network = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)).double().eval()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0], [-1.2], [0.7], [0.4]]))
        network[0].bias.copy_(torch.tensor([0.2, 0.3, -1000.0, 0.5]))
        network[2].weight.copy_(torch.tensor([[0.5, -0.6, 0.9, 0.8]]))
    return network


def test_the_largest_laplace_variance_belongs_to_weights_without_influence():
    network = network_with_a_dead_unit()
    x = torch.linspace(-1, 1, 11, dtype=torch.float64).unsqueeze(1)
    batches = [(x, x.square())]
    with pytest.warns(UserWarning, match="by='swag'"):
        variance = mq.Laplace(network, "gaussian", parameters=mq.Subnetwork(3, "variance")).fit(batches, progress=False)
    # What the distance asks for: the dead unit's three weights, at the prior's variance of 1, the largest there is.
    assert variance.posterior.layout.names == ("0.weight", "0.bias", "2.weight")
    assert variance.posterior.index.tolist() == [2, 6, 10]
    whole = mq.Laplace(network, "gaussian", "full").fit(batches, progress=False)
    others = [
        mq.Subnetwork(3, "swag", swag={"epochs": 5, "lr": 1e-3, "weight_decay": 0.0}),
        mq.Subnetwork(by=["2.weight"]),
    ]
    inputs = torch.linspace(-3, 3, 13, dtype=torch.float64).unsqueeze(1)
    assert float(variance.predict(inputs).variance.max()) == 0.0
    for subnetwork in others:
        result = mq.Laplace(network, "gaussian", parameters=subnetwork).fit(batches, progress=False)
        share = (result.predict(inputs).variance / whole.predict(inputs).variance).sqrt()
        assert float(share.min()) > 0.1


def test_no_warning_where_the_chosen_weights_matter(recwarn):
    network = nn.Linear(4, 1).double().eval()
    x = torch.randn(30, 4, generator=seeded(), dtype=torch.float64)
    mq.Laplace(network, "gaussian", parameters=mq.Subnetwork(2)).fit([(x, x[:, :1])], progress=False)
    dead = network_with_a_dead_unit()  # with all weights there is nothing to choose
    mq.Laplace(dead, "gaussian", parameters=mq.Subnetwork(13)).fit([(x[:, :1], x[:, :1])], progress=False)
    assert not [w for w in recwarn if "Subnetwork" in str(w.message)]


def test_prior_groups_of_a_subnetwork():
    network = mlp()
    prior = mq.Prior({"0": 2.0, "2": 5.0}, "layer")
    by = torch.zeros(44).index_fill(0, torch.tensor([0, 3, 40]), 1.0)
    la = mq.Laplace(network, "categorical", prior=prior, parameters=mq.Subnetwork(3, by)).fit(data(network))
    assert la.prior.vector().tolist() == [2.0, 2.0, 5.0]
    only = mq.Laplace(network, "categorical", prior=prior, parameters=mq.Subnetwork(2, by)).fit(data(network))
    assert only.prior.names == ("0",)


def test_a_subnetwork_can_be_continued():
    network = mlp()
    whole, by = data(network), torch.arange(44.0)
    first = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(7, by)).fit(whole[:1])
    second = mq.Laplace(network, "categorical", prior=first, parameters=mq.Subnetwork(7, by)).fit(whole[1:])
    both = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(7, by)).fit(whole)
    close(second.posterior.precision.to_dense(), both.posterior.precision.to_dense(), 1e-10)


class ConvolutionalHead(nn.Module):
    """Its last layer is a convolution that is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.body = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x))).mean((2, 3))


def test_last_layer_is_found_by_tracing():
    network = ConvolutionalHead().double().eval()
    x = inputs_for(network)
    assert last_layer(network, dict(network.named_parameters()), x) == ["head.weight", "head.bias"]
    assert last_layer(mlp(), dict(mlp().named_parameters()), inputs_for(mlp())) == ["2.weight", "2.bias"]

    def function(params, x):
        return torch.tanh(x @ params["b"]) @ params["a"].mT

    values = {"a": torch.randn(2, 4).double(), "b": torch.randn(3, 4).double()}
    assert last_layer(function, values, inputs_for(mlp())) == ["a"]
    normed = nn.Sequential(mlp(), nn.LayerNorm(4)).double()
    assert last_layer(normed, dict(normed.named_parameters()), inputs_for(mlp())) == ["0.2.weight", "0.2.bias"]
    la = mq.Laplace(network, "categorical", "full", parameters="last-layer").fit([(x, torch.zeros(7).long())])
    assert la.posterior.layout.names == ("head.weight", "head.bias")
    rows = dense_jacobian(network, x, ["head.weight", "head.bias"])
    close(la.predict(x).covariance, rows @ torch.linalg.inv(la.posterior.precision.to_dense()) @ rows.mT, 1e-10)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: mq.Subnetwork(5, structure="kronecker"), UnsupportedOperationError, "Kronecker"),
        (lambda: mq.Subnetwork(), DataError, "size"),
        (lambda: mq.Subnetwork(0), DataError, "at least one"),
        (lambda: mq.Subnetwork(5, by="2.*"), DataError, "leave out size"),
        (lambda: mq.Subnetwork(45, "magnitude").choose(mlp(), layout_of(mlp())), DataError, "45"),
        (lambda: mq.Subnetwork(5, "variance").choose(mlp(), layout_of(mlp())), DataError, "data"),
        (
            lambda: mq.Laplace(mlp(), "categorical", parameters=mq.Subnetwork(5, "variance")).fit(iter(data(mlp()))),
            DataError,
            "one-shot",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()
