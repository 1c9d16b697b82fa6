"""New data from codes near those of known data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from marquis.autoencoders import Autoencoder, EnsembleAutoencoder, LaplacianAutoencoder
from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Gaussian
from marquis.tasks.generation import near, sample


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=source(seed))


def identity() -> nn.Linear:
    layer = nn.Linear(3, 3, bias=False).double()
    layer.weight.data = torch.eye(3, dtype=torch.float64)
    return layer


class TestNear:
    def test_by_hand(self):
        codes, n = numbers(50, 3) @ torch.diag(torch.tensor([1.0, 3.0, 0.1], dtype=torch.float64)), 7
        result = near(codes, n, source(1))
        again = source(1)
        rows = torch.randint(50, (n,), generator=again)
        e = torch.randn(n, 3, dtype=torch.float64, generator=again)
        mean, covariance = codes.mean(0), torch.cov(codes.T, correction=0)
        h = (4 / (5 * 50)) ** (1 / 7)
        values, vectors = torch.linalg.eigh(covariance)
        steps = e @ (vectors * values.sqrt()).T
        expected = mean + (codes[rows] - mean + h * steps) / (1 + h**2) ** 0.5
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)

    def test_mean_and_covariance_stay_and_groups_too(self):
        codes = torch.cat([numbers(2000, 2), numbers(1000, 2, seed=1) + 10])
        result = near(codes, 200_000, source(2))
        torch.testing.assert_close(result.mean(0), codes.mean(0), rtol=0.01, atol=0)
        torch.testing.assert_close(torch.cov(result.T), torch.cov(codes.T), rtol=0.01, atol=0)
        between = ((result > 4) & (result < 6)).all(1).double().mean()
        assert between < 0.01  # a Gaussian fitted to these codes has 9 % of them there
        assert float((result[:, 0] > 5).double().mean()) == pytest.approx(1 / 3, abs=0.01)

    def test_fewer_codes_than_numbers_in_a_code(self):
        codes = numbers(3, 5)
        result = near(codes, 4, source())
        assert result.shape == (4, 5) and bool(result.isfinite().all())
        plane = torch.linalg.matrix_rank(torch.cat([codes, result]) - codes.mean(0), rtol=1e-8)
        assert plane == 2  # no step leaves the plane of the codes
        assert torch.equal(near(codes[:1], 2), codes[:1].expand(2, 5))


class TestSample:
    def test_a_network_that_changes_nothing_gives_new_codes(self):
        x = numbers(200, 3)
        model = Autoencoder(identity(), identity(), Gaussian(4.0))
        made = sample(model, x, 2000, generator=source(), progress=False)
        assert made.shape == (2000, 3)
        torch.testing.assert_close(made.std(0), x.std(0), rtol=0.1, atol=0)
        noisy = sample(model, x, 2000, noise=True, generator=source(), progress=False)
        torch.testing.assert_close(noisy.var(0), x.var(0) + 0.25, rtol=0.1, atol=0)

    def test_members_of_an_ensemble_decode_their_own_codes(self):
        x, pairs = numbers(100, 3), []
        for scale in (1.0, 1000.0):  # the same data by other codes: decoded by each other they would be far away
            encoder, decoder = identity(), identity()
            encoder.weight.data *= scale
            decoder.weight.data /= scale
            pairs.append(Autoencoder(encoder, decoder))
        made = sample(EnsembleAutoencoder.of(pairs), x, 500, generator=source(), progress=False)
        torch.testing.assert_close(made.std(0), x.std(0), rtol=0.15, atol=0)

    def test_networks_take_turns_and_a_seed_repeats(self):
        lae = LaplacianAutoencoder(identity(), identity(), num_data=50, posterior_temperature=1.0, generator=source())
        x = numbers(50, 3)
        lae.loss(x, None)
        same = torch.zeros(1, 3, dtype=torch.float64)  # one code: what differs are the networks, and the noise
        made = sample(lae, same + 1, 12, networks=4, generator=source(3), progress=False)
        assert len({tuple(row) for row in made.tolist()}) == 4
        assert torch.equal(made, sample(lae, same + 1, 12, networks=4, generator=source(3), progress=False))

    def test_many_at_a_time_and_arrays(self):
        model = Autoencoder(identity(), identity())
        made = sample(model, numbers(10, 3).numpy(), 9, batch_size=2, generator=source(), progress=False)
        assert made.shape == (9, 3) and made.dtype == torch.float64

    def test_members_are_mixed_and_codes_may_be_images(self):
        pairs = []
        for shift in (0.0, 100.0):
            decoder = nn.Linear(3, 3).double()
            decoder.weight.data, decoder.bias.data = torch.eye(3).double(), torch.full((3,), shift).double()
            pairs.append(Autoencoder(identity(), decoder))
        made = sample(EnsembleAutoencoder.of(pairs), numbers(20, 3), 40, generator=source(), progress=False)
        far = (made > 50).all(1)
        assert int(far.sum()) == 20 and 3 < int(far[:20].sum()) < 17
        images = Autoencoder(nn.Conv2d(1, 2, 3, 2, 1), nn.ConvTranspose2d(2, 1, 4, 2, 1))
        assert sample(images, torch.rand(9, 1, 8, 8), 5, progress=False).shape == (5, 1, 8, 8)

    def test_refused(self):
        model = Autoencoder(identity(), identity())
        with pytest.raises(UnsupportedOperationError, match="Bernoulli"):
            sample(Autoencoder(identity(), identity(), "bernoulli"), numbers(4, 3).sigmoid(), 2, noise=True)
        with pytest.raises(DataError, match="n is 0"):
            sample(model, numbers(4, 3), 0)
        with pytest.raises(DataError, match=r"\[5\] each"):
            sample(model, np.zeros((4, 5)), 2, progress=False)
        with pytest.raises(UnsupportedOperationError, match="encode"):
            sample(nn.Linear(2, 2), numbers(4, 2), 2)
