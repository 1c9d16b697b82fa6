"""Every model of `mq.autoencoders`, and nothing that lacks the methods, goes through the same functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from marquis import autoencoders as ae
from marquis import tasks
from marquis.errors import UnsupportedOperationError
from marquis.tasks import imputation, ood, semi_supervised

SHAPE = (1, 4, 4)


def images(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def posterior() -> ae.BaseAutoencoder:
    plain = ae.Autoencoder(*ae.build(SHAPE, 2, 0.05, seed=0))
    return ae.fit_posthoc(plain, images(20, 0).split(10), tune=False)


MODELS = {
    "plain": (lambda: ae.Autoencoder(*ae.build(SHAPE, 2, 0.05, seed=0)), 1),
    "bernoulli": (lambda: ae.Autoencoder(*ae.build(SHAPE, 2, 0.05, seed=0), "bernoulli"), 1),
    "ensemble": (lambda: ae.EnsembleAutoencoder(*ae.build(SHAPE, 2, 0.05, seed=0), members=3, seed=0), 3),
    "dropout": (lambda: ae.DropoutAutoencoder(*ae.build(SHAPE, 2, 0.2, seed=0)), 4),
    "learnt variance": (lambda: ae.LearntVarianceAutoencoder(*ae.build(SHAPE, 2, 0.05, seed=0)), 1),
    "variational": (lambda: ae.VariationalAutoencoder(*ae.build(SHAPE, 2, 0.05, seed=0)), 4),
    "mean field": (lambda: ae.MeanFieldAutoencoder(*ae.build(SHAPE, 2, 0.05, seed=0), num_data=20), 4),
    "posterior": (posterior, 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_tasks_on(name):
    make, draws = MODELS[name]
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    x, generator = images(12, 1), torch.Generator().manual_seed(0)
    result = ood.evaluate(model, x, 1 - x, images(15, 2), samples=4, generator=generator)
    assert result.samples == draws
    assert result.varies("output_variance") == result.varies("latent_variance") == (draws > 1)
    filled = imputation.impute(model, x, imputation.top_half(SHAPE), samples=4, averaged=4, generator=generator)
    assert filled.samples.shape == (draws, *x.shape)
    assert filled.averaged == draws
    assert torch.equal(filled.mean[..., 2:, :], x[..., 2:, :])
    assert not filled.samples.requires_grad
    assert imputation.generate(model, 2, SHAPE, samples=4, generator=generator).samples.shape == (draws, 2, *SHAPE)
    few = semi_supervised.evaluate(model, x, torch.arange(12) % 2, [1, 3], copies=4, repetitions=1)
    assert few.copies == draws
    assert model.training  # as it was
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_claimed_noise_counts_in_the_total_only():
    result = ood.evaluate(MODELS["learnt variance"][0](), images(5, 0), images(5, 1), images(5, 2))
    assert result.varies("total_variance")
    assert not result.varies("output_variance")


def test_double_precision_stays_double():
    model = ae.Autoencoder(*ae.build(SHAPE, 2, 0.05, seed=0)).double()
    assert imputation.generate(model, 1, SHAPE).mean.dtype == torch.float64
    assert ood.scores(model, images(2, 0).double())["error"].dtype == torch.float64


def test_models_without_the_methods_are_refused():
    network, x = nn.Linear(3, 3), torch.zeros(4, 3)
    for call in (
        lambda: ood.scores(network, x),
        lambda: ood.evaluate(network, x, x, x),
        lambda: imputation.impute(network, x),
        lambda: imputation.generate(network, 2, (3,)),
        lambda: semi_supervised.embed(network, x),
        lambda: semi_supervised.evaluate(network, x, torch.arange(4) % 2, [1]),
    ):
        with pytest.raises(UnsupportedOperationError, match=r"Linear has no method.*Autoencoder\(encoder, decoder\)"):
            call()


def test_modules_come_when_asked_for():
    assert tasks.ood is ood
    with pytest.raises(AttributeError, match="no attribute 'outliers'; it offers: calibration, "):
        tasks.outliers  # noqa: B018
