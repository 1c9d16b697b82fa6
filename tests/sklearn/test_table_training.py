"""Training on a table: the best epoch is kept, and entries are hidden in the share that was asked for."""

from __future__ import annotations

import pytest
import torch

from marquis.sklearn import table_training
from marquis.sklearn.network import perceptron


def test_training_goes_back_to_the_best_epoch(monkeypatch):
    """Held-out values by a script: the twin stops after the best epoch of its own accord."""
    x = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def trained(values, **settings):
        script = iter(values)
        monkeypatch.setattr(table_training._HeldOut, "__call__", lambda self, online: next(script))
        torch.manual_seed(0)
        networks = [perceptron(a, b, (4,), "tanh").double() for a, b in ((3, 2), (2, 3))]
        options = {"batch_size": 16, "learning_rate": 0.01, "held_out": 0.1, "hide": 0.2, **settings}
        training = table_training.TableTraining(**options)
        online, epochs, apart = training.run(*networks, x, torch.Generator().manual_seed(1), prior_precision=1.0)
        assert len(apart) == 6
        return online, epochs

    best, _ = trained([3.0, 1.0], epochs=2, patience=9)
    back, epochs = trained([3.0, 1.0, 2.0, 0.9999, 1.5, 0.0], epochs=9, patience=3)  # 0.9999 is no gain worth naming
    assert epochs == 5
    for name, value in best.means().items():
        assert torch.equal(value, back.means()[name])
    assert back.state.noise_precision == best.state.noise_precision
    assert torch.equal(back.posterior().precision.diagonal(), best.posterior().precision.diagonal())
    further, _ = trained([3.0, 1.0, 0.5], epochs=3, patience=9)
    assert not all(torch.equal(value, further.means()[name]) for name, value in best.means().items())


def test_held_out_value_is_the_negative_log_of_the_mean_density_per_observed_entry():
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 1] = x[3, 0] = x[3, 2] = x[6] = torch.nan
    torch.manual_seed(0)
    networks = [perceptron(a, b, (4,), "tanh").double() for a, b in ((3, 2), (2, 3))]
    source = torch.Generator().manual_seed(1)
    online = table_training.online_learner(*networks, source, num_data=40, prior_precision=1.0)
    training = table_training.TableTraining(1, 7, 0.01, 1, 0.1, hide=0.0)
    online.step(*training.shown(x, source))  # so that there is some curvature and some noise
    check = table_training._HeldOut(training, x, source)
    draws, density = torch.Generator().manual_seed(check.seed), torch.zeros(7, dtype=torch.float64)
    for _ in range(table_training.HELD_OUT_DRAWS):
        f = online.outputs(online.draw(draws), x.nan_to_num(0.0)).detach()
        each = torch.distributions.Normal(f, online.state.noise_precision**-0.5).log_prob(x.nan_to_num(0.0))
        density += torch.where(x.isnan(), 0.0, each).sum(1).exp() / table_training.HELD_OUT_DRAWS
    assert check(online) == pytest.approx(float(-density.log().sum() / 15), rel=1e-10)
    assert check(online) == check(online)  # the same draws


def test_hidden_entries_are_a_share_that_differs_between_rows():
    x = torch.ones(400, 500, dtype=torch.float64)
    assert not bool(table_training.hidden(x, 0.0, torch.Generator()).any())
    gone = table_training.hidden(x, 0.2, torch.Generator().manual_seed(0))
    share = gone.double().mean(1)
    assert float(share.mean()) == pytest.approx(0.2, abs=0.02)
    assert float(share.std()) == pytest.approx(0.4 / 12**0.5, rel=0.1)  # uniform from 0 to 0.4
    assert float(share.max()) < 0.5 and bool((x == 1).all())


@pytest.mark.parametrize("hide", [0.0, 0.4])
def test_encoder_is_shown_zeros_and_on_demand_where_they_are(hide):
    x = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 3
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = torch.nan

    def shown(mask_input):
        training = table_training.TableTraining(1, 7, 0.01, 1, 0.1, hide, mask_input)
        return training.shown(x, torch.Generator().manual_seed(2))

    (plain, targets, observed), (both, *others) = shown(False), shown(True)
    assert torch.equal(others[0], targets) and torch.equal(others[1], observed)
    assert torch.equal(observed, ~x.isnan()) and torch.equal(targets, x.nan_to_num(0.0))
    inputs, seen = both.split(6, 1)
    assert torch.equal(inputs, plain) and torch.equal(inputs, seen * targets)
    assert bool(((seen == 0) | (seen == 1)).all()) and bool((seen[~observed] == 0).all())
    assert bool((seen[observed] == 0).any()) == (hide > 0)  # what is hidden is shown as missing, too
