"""The Laplacian autoencoder whose decoder predicts the noise of every entry."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import marquis as mq
from marquis.autoencoders import LaplacianAutoencoder, fit_in_memory
from marquis.autoencoders.kinds import ModelSpec
from marquis.autoencoders.learnt_variance import PredictedNoise
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.saving import load, save


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def networks():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Sequential(
            nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 3)
        )


def noisy_rows(count: int, seed: int = 0) -> torch.Tensor:
    """Rows on a curve, with noise of standard deviation .02 below its middle and .5 above it."""
    t = torch.rand(count, 1, generator=gen(seed)) * 2 - 1
    noise = torch.randn(count, 3, generator=gen(seed + 1)) * torch.where(t > 0, 0.5, 0.02)
    return torch.cat([2 * t, t, -t], 1) + noise


def test_curvature_over_all_weights_is_the_fisher_by_a_dense_jacobian():
    """`Σ Jᵀ diag(e^-s, 1/2) J` over encoder and both decoders, in float64."""
    encoder, decoder = networks()
    model = LaplacianAutoencoder(
        encoder, decoder, "heteroscedastic", num_data=12, structure="full", estimator="exact", initial=1e-12,
        curvature_at="mean", forgetting=1.0, posterior_temperature=1.0, generator=gen(),
    ).double()  # fmt: skip
    x = torch.randn(12, 3, dtype=torch.float64, generator=gen(1))
    joined = EncoderDecoder(model.encoder, model.decoder)
    params = {name: value.detach().clone() for name, value in joined.named_parameters()}
    model.objective(x, x, None)
    assert any("log_sigma" in name for name in params) and any("encoder" in name for name in params)
    jacobian = jacrev(lambda p: functional_call(joined, p, (x,)))(params)
    dense = torch.cat([jacobian[name].reshape(12, 6, -1) for name in params], 2)
    log_variance = joined(x).detach()[:, 3:]
    fisher = torch.cat([(-log_variance).exp(), torch.full_like(log_variance, 0.5)], 1)
    expected = torch.einsum("noi,no,noj->ij", dense, fisher, dense) + torch.eye(dense.shape[2], dtype=torch.float64)
    result = model.posterior().precision.to_dense()
    assert len(result) == sum(value.numel() for value in params.values())
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-9)


def test_noise_that_differs_between_rows_is_found_and_saved(tmp_path):
    train, test = noisy_rows(400), noisy_rows(400, 10)
    spec = ModelSpec("lae", (3,), 1, architecture="dense", likelihood="heteroscedastic", lr=1e-2)
    density = {}
    for likelihood in ("gaussian", "heteroscedastic"):
        one = ModelSpec("lae", (3,), 1, architecture="dense", likelihood=likelihood, lr=1e-2)
        model = one.build(0)
        fit_in_memory(model, train, max_epochs=60, batch_size=50, generator=gen(1))
        density[likelihood] = float(model.reconstruct(test, 20, generator=gen(3)).log_prob.mean())
    assert isinstance(model.decoder, PredictedNoise)
    result = model.reconstruct(test, 20, generator=gen(3))
    assert result.mean.shape == test.shape == result.noise_variance.shape
    noise = result.noise_variance.mean(1).sqrt()
    loud = test[:, 0] - test[:, 2] > 0.6
    assert float(noise[loud].median()) > 2 * float(noise[test[:, 0] < -0.6].median())
    assert density["heteroscedastic"] > density["gaussian"] + 0.3
    save(tmp_path / "x.safetensors", model, spec)
    again, _ = load(tmp_path / "x.safetensors")
    assert torch.equal(again.reconstruct(test, 20, generator=gen(3)).log_prob, result.log_prob)


def test_only_the_laplacian_autoencoder_has_it_and_objects_keep_the_decoder():
    with pytest.raises(mq.DataError, match="ae-variance predicts its noise"):
        ModelSpec("ae", (3,), 1, likelihood="heteroscedastic")
    encoder, _ = networks()
    decoder = nn.Linear(1, 6)
    assert LaplacianAutoencoder(encoder, decoder, mq.Heteroscedastic()).decoder is decoder
