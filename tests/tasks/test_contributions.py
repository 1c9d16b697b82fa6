"""Contributions of entries add up to outlier scores, and single out the entry that is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from test_geometry import uncertain
from torch import nn
from toy_models import LinearModel

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder
from marquis.errors import MarquisError
from marquis.tasks import ood
from marquis.tasks.contributions import EXPLAINED, nll_contributions


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("score", EXPLAINED)
def test_contributions_add_up_to_the_score(score: str):
    model, x = uncertain(), 3 * torch.randn(7, 5, dtype=torch.float64)
    parts = ood.contributions(model, x, 12, score=score, generator=seeded(), batch_size=3)
    assert parts.shape == x.shape
    torch.testing.assert_close(parts.sum(1), ood.scores(model, x, 12, generator=seeded())[score], rtol=1e-12, atol=1e-9)


def test_likelihood_contributions_are_the_integral():
    model, x = uncertain(), 3 * torch.randn(4, 5, dtype=torch.float64)
    density = model.entry_log_probs(x, 12, generator=seeded())
    t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000  # a rule of another kind
    w = torch.softmax(t[:, None, None] * density.sum(2), 1)
    expected = -torch.einsum("qsb,sbd->bd", w, density) / len(t)
    torch.testing.assert_close(nll_contributions(model, x, 12, seeded()), expected, rtol=1e-5, atol=1e-5)


def test_a_single_network_has_the_plain_summands():
    torch.manual_seed(0)
    model = Autoencoder(nn.Linear(5, 2).double(), nn.Linear(2, 5).double()).eval()
    x = torch.randn(3, 5, dtype=torch.float64)
    expected = 0.5 * (model(x) - x).square() + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(ood.contributions(model, x, 9).detach(), expected.detach())


def test_missing_entries_contribute_nothing_and_the_sum_still_holds():
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(5, 2).double(), nn.Linear(2, 5).double()
    model = LaplacianAutoencoder(encoder, decoder, num_data=9, missing=True).eval()
    x = torch.randn(6, 5, dtype=torch.float64)
    x[::2, 3] = torch.nan
    for score in ("nll", "error"):
        parts = ood.contributions(model, x, 8, score=score, generator=seeded())
        assert bool((parts[::2, 3] == 0).all()) and bool((parts[1::2, 3] != 0).all())
        torch.testing.assert_close(parts.sum(1), ood.scores(model, x, 8, generator=seeded())[score])


def test_the_entry_that_was_spoilt_contributes_most():
    model, x = uncertain(), torch.zeros(1, 5, dtype=torch.float64)
    x[0, 2] = 40.0
    assert int(ood.contributions(model, x, 20, generator=seeded()).argmax()) == 2


def test_models_of_the_protocol_have_errors_and_no_likelihood_of_entries():
    model = LinearModel(torch.eye(2, 3).double(), torch.eye(3, 2).double(), scale=0.1)
    x = torch.randn(4, 3, dtype=torch.float64)
    parts = ood.contributions(model, x, 6, score="error", generator=seeded())
    torch.testing.assert_close(parts.sum(1), ood.scores(model, x, 6, generator=seeded())["error"])
    with pytest.raises(MarquisError, match="score='error'"):
        ood.contributions(model, x, 6)
    with pytest.raises(MarquisError, match="score"):
        ood.contributions(model, x, 6, score="latent_std")
