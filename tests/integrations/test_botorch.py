"""The adapter to BoTorch, with the real library."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.errors import DataError, UnsupportedOperationError

pytest.importorskip("botorch")
from botorch.acquisition import LogExpectedImprovement, qExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.models.transforms.outcome import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from marquis.integrations.botorch import LaplaceModel, fit_network

warnings.filterwarnings("ignore", category=DeprecationWarning)


def fitted(outputs=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, outputs)).double()
    x = torch.rand(15, 2, dtype=torch.float64)
    y = torch.stack([(x.sum(1) * (k + 2)).sin() for k in range(outputs)], 1)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(300):
        loss = (model(x) - y).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    la = mq.Laplace(model.eval(), "gaussian", "full").fit([(x, y)], progress=False)
    la.tune()
    return la, x, y


@pytest.mark.parametrize("outputs", [1, 3])
def test_posterior_is_the_joint_prediction_of_every_batch(outputs):
    la, _, _ = fitted(outputs)
    inputs = torch.rand(2, 5, 4, 2, dtype=torch.float64)
    posterior = LaplaceModel(la, outputs).posterior(inputs)
    assert posterior.mean.shape == (2, 5, 4, outputs) and posterior.variance.shape == (2, 5, 4, outputs)
    noisy = LaplaceModel(la, outputs).posterior(inputs, observation_noise=True)
    for i in range(2):
        prediction = la.predict(inputs[i, 3], joint=True)
        torch.testing.assert_close(posterior.mean[i, 3], prediction.mean)
        torch.testing.assert_close(posterior.distribution.covariance_matrix[i, 3], prediction.covariance)
        torch.testing.assert_close(noisy.variance[i, 3], prediction.total_variance)
    samples = posterior.rsample(torch.Size([7]))
    assert samples.shape == (7, 2, 5, 4, outputs)
    if outputs == 3:
        part = LaplaceModel(la, 3).posterior(inputs, output_indices=[2, 0])
        torch.testing.assert_close(part.mean, posterior.mean[..., [2, 0]])
        torch.testing.assert_close(part.variance, posterior.variance[..., [2, 0]])


def test_samples_have_the_joint_covariance_and_gradients():
    la, _, _ = fitted()
    inputs = torch.rand(1, 2, 2, dtype=torch.float64).requires_grad_()
    sampler = SobolQMCNormalSampler(torch.Size([4096]), seed=0)
    samples = sampler(LaplaceModel(la).posterior(inputs))[:, 0, :, 0]
    torch.testing.assert_close(samples.T.cov(), la.predict(inputs[0], joint=True).covariance, rtol=0.05, atol=1e-4)
    read = lambda x: SobolQMCNormalSampler(torch.Size([3]), seed=0)(LaplaceModel(la).posterior(x))  # noqa: E731
    assert torch.autograd.gradcheck(read, inputs)


def test_acquisition_functions_run_and_find_the_best_point_of_a_grid():
    la, _, y = fitted()
    transform = Standardize(1)
    transform(y)
    model = LaplaceModel(la)
    acquisition = LogExpectedImprovement(model, best_f=y.max())
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    torch.manual_seed(0)
    candidate, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=3, raw_samples=32)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 15, dtype=torch.float64)] * 2)
    assert float(value) >= float(acquisition(grid.unsqueeze(1)).max()) - 1e-6
    assert ((candidate >= 0) & (candidate <= 1)).all()
    several, _, _ = fitted(3)
    objective = GenericMCObjective(lambda samples, X=None: samples.sum(-1))
    joint = qExpectedImprovement(LaplaceModel(several, 3), best_f=0.0, objective=objective)
    assert joint(torch.rand(2, 2, 2, dtype=torch.float64)).shape == (2,)
    rescaled = LaplaceModel(la, outcome_transform=transform).posterior(grid[:4])
    torch.testing.assert_close(rescaled.mean, la.predict(grid[:4]).mean * y.std() + y.mean())


def test_other_likelihoods_and_output_counts_are_refused():
    la, x, _ = fitted(3)
    with pytest.raises(DataError, match="3 outputs"):
        LaplaceModel(la).posterior(x)
    classes = mq.Laplace(la.model, "categorical").fit([(x, torch.zeros(15, dtype=torch.long))], progress=False)
    with pytest.raises(UnsupportedOperationError, match="regression"):
        LaplaceModel(classes)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_network_of_few_points_follows_the_function_and_knows_where_it_does_not(outputs):
    torch.manual_seed(0)
    x = torch.rand(25, 2, dtype=torch.float64)
    truth = lambda x: 50 + 10 * torch.stack([(4 * x.sum(1) + k).sin() for k in range(outputs)], 1)  # noqa: E731
    model = fit_network(x, truth(x), restarts=1)
    new = torch.rand(400, 2, dtype=torch.float64)
    posterior = model.posterior(new)
    assert posterior.mean.shape == (400, outputs)
    errors = posterior.mean - truth(new)
    assert errors.square().mean() < 0.05 * truth(new).var()
    far = torch.rand(50, 2, dtype=torch.float64) + 2
    assert model.posterior(far).variance.mean() > 10 * model.posterior(x).variance.mean()
    assert torch.isfinite(posterior.rsample(torch.Size([2]))).all()  # 400 points: the joint covariance is singular


def test_the_network_of_the_best_restart_is_kept():
    torch.manual_seed(1)
    x = torch.rand(12, 2, dtype=torch.float64)
    model = fit_network(x, (5 * x).sin().sum(1, keepdim=True), restarts=3, rounds=1)
    laplace = model.laplace
    for name, weight in laplace.model.named_parameters():
        assert torch.equal(laplace.posterior.mean[name], weight)
    again = mq.Laplace(laplace.model, laplace.likelihood, "lowrank", prior=float(laplace.prior.precision)).fit(
        [(x, model.outcome_transform((5 * x).sin().sum(1, keepdim=True))[0])], progress=False
    )
    torch.testing.assert_close(again.log_evidence(), laplace.log_evidence())


def test_networks_of_no_points_are_refused():
    x = torch.rand(5, 2, dtype=torch.float64)
    for inputs, targets in ((x, x[:, 0]), (x, x[:4]), (x[:1], x[:1])):
        with pytest.raises(DataError, match="at least two points"):
            fit_network(inputs, targets)
    with pytest.raises(DataError, match="restarts is 0"):
        fit_network(x, x, restarts=0)
