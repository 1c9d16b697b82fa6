"""Inputs that were accepted silently are refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.errors import MarquisError
from marquis.tasks.calibration import reliability

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 1, 0, 1, 0])


def fit(likelihood: str, y: torch.Tensor) -> mq.Laplace:
    return mq.Laplace(nn.Linear(3, 2).eval(), likelihood).fit([(X, y)], progress=False)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        ("gaussian", torch.zeros(6, 2, dtype=torch.complex64)),
        ("categorical", LABELS + 0.9),
        ("categorical", torch.eye(2)[LABELS]),
        ("bernoulli", torch.full((6, 2), 2.0)),
    ],
    ids=["complex targets", "class 0.9", "one-hot labels", "Bernoulli label 2"],
)
def test_targets_that_cannot_be_meant(likelihood, y):
    with pytest.raises(MarquisError):
        fit(likelihood, y)


def test_numbers_that_cannot_be_meant():
    for num_data in (float("nan"), -1, 0, "4"):
        with pytest.raises(MarquisError):
            mq.OnlineLaplace(nn.Linear(3, 2), "gaussian", num_data=num_data)  # type: ignore[arg-type]
    la = fit("categorical", LABELS)
    for count in (-1, 10**9):
        with pytest.raises(MarquisError):
            la.sample(count)
    for bins in (10**9, 0, -1):
        with pytest.raises(MarquisError):
            reliability(torch.full((6, 2), 0.5), LABELS, bins)
