"""The written-out learner of tables against the generic one, which is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.autoencoders import EncoderDecoder
from marquis.sklearn import LaplacianAutoencoder, table_training
from marquis.sklearn.network import perceptron
from marquis.sklearn.table_learner import TableLearner, can_be_written_out


def twins(activation: str, hidden: tuple[int, ...] = (7, 4)) -> tuple[mq.OnlineLaplace, TableLearner]:
    """Two learners with the same weights and the same random streams."""
    made = []
    for kind in (lambda net, **o: mq.OnlineLaplace(net, "gaussian", "diagonal", "exact", **o), TableLearner):
        torch.manual_seed(3)
        network = EncoderDecoder(
            perceptron(5, 3, hidden, activation).double(), perceptron(3, 5, hidden[::-1], activation).double()
        )
        made.append(kind(network, num_data=40, posterior_temperature=0.5, generator=torch.Generator().manual_seed(1)))
    return made[0], made[1]


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("masked", [True, False])
def test_losses_gradients_and_curvature_are_those_of_the_generic_learner(activation, masked):
    generic, written = twins(activation)
    optimisers = [torch.optim.SGD(own.means().values(), 0.05) for own in (generic, written)]
    source = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = torch.randn(8, 5, dtype=torch.float64, generator=source)
        y = torch.randn(8, 5, dtype=torch.float64, generator=source)
        mask = torch.rand(8, 5, generator=source) < 0.7 if masked else None
        losses = []
        for own, optimiser in zip((generic, written), optimisers, strict=True):
            optimiser.zero_grad()
            losses.append(own.step(x, y, mask))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=0)
        for name, mean in generic.means().items():
            torch.testing.assert_close(written.means()[name].grad, mean.grad, rtol=1e-9, atol=1e-12)
        curvature = [own.posterior().precision.diagonal() for own in (generic, written)]
        torch.testing.assert_close(curvature[1], curvature[0], rtol=1e-10, atol=0)
        for optimiser in optimisers:
            optimiser.step()
    assert written.state.noise_precision == pytest.approx(generic.state.noise_precision, rel=1e-12)


def test_only_what_is_known_is_written_out():
    known = perceptron(5, 2, (4,), "tanh")
    assert can_be_written_out(known, perceptron(2, 5, (), "relu"))
    for other in (perceptron(5, 2, (4,), "gelu"), nn.Linear(5, 2), nn.Sequential(nn.Linear(5, 2), nn.Dropout())):
        assert not can_be_written_out(known, other)


@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_both_learners_give_the_same_fit(activation, monkeypatch):
    """Whichever of the two is taken; the one with silu cannot be written out."""
    X = torch.randn(70, 4, generator=torch.Generator().manual_seed(0)).double().numpy()
    options = {"epochs": 4, "hidden_sizes": (6,), "activation": activation, "samples": 3, "random_state": 0}
    usual = LaplacianAutoencoder(**options).fit(X)
    monkeypatch.setattr(table_training, "can_be_written_out", lambda *networks: False)
    generic = LaplacianAutoencoder(**options).fit(X)
    assert abs(usual.score_samples(X) - generic.score_samples(X)).max() < 1e-9
