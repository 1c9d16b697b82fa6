"""Training with evidence: when it updates, what it minimises, what it gives back (docs/method/evidence.md)."""

from __future__ import annotations

import copy

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, generator, randn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.evidence import log_evidence, train
from marquis.evidence.training import number_of_updates
from marquis.likelihoods import Gaussian
from marquis.priors import Prior


def toy(outputs: int = 1) -> tuple[nn.Sequential, list]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    x = randn(20, 1, seed=1)
    y = torch.sin(2 * x).expand(20, outputs) + 0.1 * randn(20, outputs, seed=2)
    return model, batches(x, y, 12)


@pytest.mark.parametrize(
    ("epochs", "burn_in", "every"), [(7, 0, 1), (7, 3, 1), (9, 4, 2), (9, 5, 3), (6, 6, 3), (5, 2, 4)]
)
def test_number_of_updates_is_the_floor_count(epochs, burn_in, every):
    model, loader = toy()
    start = Prior(2.0, groups="layer")
    trained = train(
        model, loader, "gaussian", prior=start, epochs=epochs, burn_in=burn_in, every=every, structure="diagonal",
        hyper_steps=1, progress=False,
    )  # fmt: skip
    due = [e for e in range(1, epochs + 1) if e >= burn_in and e % every == 0]
    assert trained.updates == len(due) == number_of_updates(epochs, burn_in, every)
    assert trained.updates == epochs // every - (max(burn_in, 1) - 1) // every
    assert [epoch.number for epoch in trained.history if epoch.log_evidence is not None] == due
    for epoch in trained.history:
        untouched = bool((epoch.precision == 2.0).all()) and epoch.noise_precision == 1.0
        assert untouched == (epoch.number < due[0])


def test_no_update_at_all_is_said():
    model, loader = toy()
    with pytest.warns(UserWarning, match="none of the 3 epochs"):
        trained = train(model, loader, "gaussian", epochs=3, burn_in=4, progress=False)
    assert trained.updates == 0 == number_of_updates(3, 4, 1)
    assert trained.log_evidence is None and trained.epoch == 3
    assert bool((trained.prior.precision == 1.0).all())


def test_best_checkpoint_is_restored_with_its_precisions():
    model, loader = toy()

    def schedule(optimiser):  # far too large steps at the end, so that the last epoch is not the best
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: 1.0 if epoch < 20 else 30.0)

    trained = train(
        model, loader, Gaussian(1.0), epochs=25, learning_rate=0.05, schedule=schedule, structure="full",
        progress=False,
    )  # fmt: skip
    values = [epoch.log_evidence for epoch in trained.history]
    assert trained.log_evidence == max(values) and trained.epoch == 1 + values.index(max(values))
    assert trained.epoch < 25, "the test needs a run whose best epoch is not the last"
    best = trained.history[trained.epoch - 1]
    assert torch.equal(best.precision, trained.prior.precision)
    assert float(trained.likelihood.noise_precision) == best.noise_precision
    problem = build(trained.model, loader, trained.likelihood, Prior(trained.prior.precision, groups="layer"), "full")
    assert float(log_evidence(problem)) == pytest.approx(trained.log_evidence, rel=1e-10)
    assert not trained.model.training


def test_the_users_network_is_left_alone():
    model, loader = toy()
    before = copy.deepcopy(model.state_dict())
    trained = train(model, loader, "gaussian", epochs=2, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and trained.model is not model
    assert not torch.equal(trained.model[0].weight, model[0].weight)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_training_minimises_the_very_objective_of_the_evidence(outputs, temperature):
    # Full-batch gradient descent on a linear model ends at the closed-form mode, for any number of outputs.
    data = Regression(n=20, outputs=outputs, size=20)
    trained = train(
        data.model, data.loader, Gaussian(2.0), prior=Prior(3.0), epochs=400, burn_in=400, every=400, noise=False,
        temperature=temperature, structure="full", update="mackay", progress=False,
        optimiser=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )  # fmt: skip
    precision = torch.full((5 * outputs,), 3.0, dtype=F64)
    expected = data.optimum(precision, 2.0 / temperature)
    result = torch.cat([p.detach().reshape(-1) for p in trained.model.parameters()])
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-9)


def test_short_last_batches_weigh_what_they_hold():
    # One epoch of plain SGD, by hand: mean over the batch plus the prior over all N.
    data = Regression(n=20, outputs=2, size=12)
    by_hand = copy.deepcopy(data.model)
    for x, y in data.loader:
        parameters = list(by_hand.parameters())
        loss = 0.5 * 2.0 * (y - by_hand(x)).square().sum() / len(x)
        loss = loss + 0.5 * 3.0 * sum(p.square().sum() for p in parameters) / 20
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p -= 0.01 * g
    trained = train(
        data.model, data.loader, Gaussian(2.0), prior=Prior(3.0), epochs=1, structure="diagonal", progress=False,
        optimiser=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )  # fmt: skip
    for a, b in zip(trained.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("update", ["gradient", "mackay"])
def test_noise_and_prior_are_learnt(update):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.linspace(-2, 2, 60, dtype=F64)[:, None]
    y = torch.sin(2 * x) + 0.2 * randn(60, 1, seed=3)
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True, generator=generator(0))
    trained = train(
        model, loader, "gaussian", epochs=150, burn_in=30, every=10, learning_rate=0.03, update=update, progress=False
    )
    assert 0.15 < float(trained.likelihood.noise_precision) ** -0.5 < 0.27  # the truth is 0.2
    assert trained.log_evidence > next(e.log_evidence for e in trained.history if e.log_evidence is not None) + 10
    assert "noise precision" in str(trained) and f"epoch {trained.epoch} of 150" in str(trained)


def test_schedules_masks_and_curvature_loaders():
    model, loader = toy(outputs=2)
    seen = torch.rand(20, 2, generator=generator(1)) < 0.8
    masked = [(x, y.masked_fill(~m, float("nan")), m) for (x, y), m in zip(loader, seen.split(12), strict=True)]
    rates = []

    def schedule(optimiser):
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: rates.append(epoch) or 0.5**epoch)

    trained = train(
        model, masked, "gaussian", epochs=3, mask_of=lambda batch: batch[2], schedule=schedule, structure="diagonal",
        curvature_loader=masked[::-1], progress=False,
    )  # fmt: skip
    assert rates == [0, 1, 2, 3] and trained.updates == 3
    with pytest.raises(DataError, match="same"):
        train(model, loader, "gaussian", epochs=1, curvature_loader=loader[:1], progress=False)


def test_refusals():
    model, loader = toy()
    with pytest.raises(UnsupportedOperationError, match="weight_decay"):
        train(model, loader, "gaussian", optimiser=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1))
    with pytest.raises(UnsupportedOperationError, match="'gradient', 'mackay'"):
        train(model, loader, "gaussian", update="magic")
    with pytest.raises(DataError, match="every"):
        train(model, loader, "gaussian", every=0)
    with pytest.raises(DataError, match="one-shot"):
        train(model, iter(loader), "gaussian")
    with pytest.raises(DataError, match="no batches"):
        train(model, [], "gaussian")
    with pytest.raises(NumericalError, match="learning rate"):
        train(model, loader, "gaussian", optimiser=lambda p: torch.optim.SGD(p, lr=1e6), epochs=50, burn_in=51)
    normalised = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    with pytest.warns(UserWarning, match="BatchNorm"):
        train(
            normalised,
            loader,
            "gaussian",
            prior=Prior(groups="normalised"),
            epochs=1,
            structure="diagonal",
            progress=False,
        )
