"""One real autoencoder, trained once."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from marquis.autoencoders import Autoencoder


@pytest.fixture(scope="session")
def digits():
    """A plain autoencoder trained on 1200 of scikit-learn's digits; training images, other images, their labels."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 6))
    decoder = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 64), nn.Unflatten(1, (1, 8, 8)))
    model = Autoencoder(encoder, decoder)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(300):
        loss = model.loss(x[torch.randint(1200, (128,))], None)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model, x[:1200], x[1200:], y[1200:]
