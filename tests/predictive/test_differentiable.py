"""Predictions with gradients to the inputs, against finite differences and the ordinary closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.errors import UnsupportedOperationError


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", params=["full", "kronecker", "diagonal", "lowrank", "subnetwork"])
def la(request):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double().eval()
    x = torch.randn(20, 3, dtype=torch.float64)
    y = torch.sin(x[:, :2])
    parameters = mq.Subnetwork(by="random", size=9) if request.param == "subnetwork" else "all"
    structure = "full" if request.param == "subnetwork" else request.param
    return mq.Laplace(model, "gaussian", structure, parameters=parameters).fit([(x, y)], progress=False)


READINGS = {
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "covariance": lambda p: p.covariance,
    "samples": lambda p: p.sample(4, seeded(1)),
}


@pytest.mark.parametrize("what", READINGS)
@pytest.mark.parametrize("joint", [False, True])
def test_values_are_those_of_the_closed_form_and_gradients_those_of_finite_differences(la, what, joint):
    x = torch.randn(3, 3, dtype=torch.float64, generator=seeded(2)).requires_grad_()
    read = READINGS[what]
    value = read(la.predict(x, joint=joint, differentiable=True))
    plain = read(la.predict(x, joint=joint))
    torch.testing.assert_close(value, plain)
    assert value.requires_grad and not plain.requires_grad
    assert torch.autograd.gradcheck(lambda inputs: read(la.predict(inputs, joint=joint, differentiable=True)), x)


def test_class_probabilities_have_gradients_and_the_rest_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
    x = torch.randn(12, 2, dtype=torch.float64)
    la = mq.Laplace(model, "categorical").fit([(x, torch.arange(12) % 3)], progress=False)
    inputs = x[:2].clone().requires_grad_()
    for link in (None, "bridge"):
        assert torch.autograd.gradcheck(lambda v: la.predict(v, link=link, differentiable=True).probs, inputs)  # noqa: B023
    for options in ({"method": "sampled"}, {"method": "linearised-samples"}, {"link": "mc"}):
        with pytest.raises(UnsupportedOperationError, match="differentiable"):
            la.predict(inputs, differentiable=True, **options)
    assert all(p.grad is None for p in model.parameters())
