"""The plain loop: the same step, schedule and stopping rule as under Lightning, and entries hidden from the encoder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from marquis.autoencoders import KINDS, Autoencoder, LaplacianAutoencoder, ModelSpec, fit, fit_in_memory
from marquis.autoencoders.base import VALIDATION_SAMPLES, VALIDATION_SEED
from marquis.autoencoders.loop import hidden_entries
from marquis.data import DataModule
from marquis.errors import DataError, NumericalError


def rows(count: int, columns: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def laplacian(columns: int = 3, **options) -> LaplacianAutoencoder:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(columns, 2).double(), nn.Linear(2, columns).double()
    return LaplacianAutoencoder(encoder, decoder, generator=torch.Generator().manual_seed(1), **options)


@pytest.mark.parametrize("kind", ["ae", "lae", "bbb"])
def test_the_loop_and_lightning_train_alike(kind, tmp_path):
    """All rows in every batch: the order within it is all that differs, and so is rounding."""
    data = DataModule("digits", limit=100, batch_size=200, seed=3)
    data.setup()
    options = {"estimator": "exact"} if kind == "lae" else {}
    spec = ModelSpec(kind, (1, 8, 8), 2, width=0.125, lr=0.1, options=options)
    one, two = spec.build(0).double(), spec.build(0).double()
    under_lightning = fit(one, _Double(data), tmp_path, max_epochs=25, patience=12, progress=False, tensorboard=False)
    assert data.validation is not None
    x, validation = data.train.x.double(), data.validation.x.double()
    generator = torch.Generator().manual_seed(0)
    in_memory = fit_in_memory(two, x, validation, max_epochs=25, batch_size=200, patience=12, generator=generator)
    assert (in_memory.epochs, in_memory.best_epoch) == (under_lightning.epochs, under_lightning.best_epoch)
    assert in_memory.best_loss == pytest.approx(under_lightning.best_loss, rel=1e-6)
    for before, after in zip(under_lightning.rows, in_memory.rows, strict=True):
        assert after["validation_loss"] == pytest.approx(before["validation_loss"], rel=1e-6)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], value, rtol=1e-5, atol=1e-8)


class _Double(DataModule):
    """The rows of another module in double precision."""

    def __init__(self, inner: DataModule) -> None:
        super().__init__("digits")
        self.inner = inner

    def setup(self, stage=None):
        """Nothing to load."""

    def _loader(self, x):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.double()), batch_size=200)

    def train_dataloader(self):
        return self._loader(self.inner.train.x)

    def val_dataloader(self):
        assert self.inner.validation is not None
        return self._loader(self.inner.validation.x)


def test_training_goes_back_to_the_best_epoch(monkeypatch):
    """Validation losses by a script: the twin stops after the best epoch of its own accord."""

    def trained(losses, **options):
        script = iter(losses)
        monkeypatch.setattr(LaplacianAutoencoder, "validation_loss", lambda *_: (torch.tensor(next(script)), None))
        model, source = laplacian(estimator="exact", lr=0.05), torch.Generator().manual_seed(1)
        options = {"batch_size": 16, "mask_fraction": 0.2, "generator": source, **options}
        return model, fit_in_memory(model, rows(60), rows(6, seed=1), tolerance=1e-3, **options)

    best, _ = trained([3.0, 1.0], max_epochs=2, patience=9)
    back, result = trained([3.0, 1.0, 2.0, 0.9999, 1.5, 0.0], max_epochs=9, patience=3)  # 0.9999 is within tolerance
    assert (result.epochs, result.best_epoch, result.best_loss, result.stopped_early) == (5, 1, 1.0, True)
    assert back.online is not None and best.online is not None
    for name, value in best.state_dict().items():
        assert torch.equal(value, back.state_dict()[name])
    assert back.online.state.noise_precision == best.online.state.noise_precision
    assert torch.equal(back.posterior().precision.diagonal(), best.posterior().precision.diagonal())
    further, _ = trained([3.0, 1.0, 0.5], max_epochs=3, patience=9)
    assert not all(torch.equal(value, further.state_dict()[name]) for name, value in best.state_dict().items())


def test_validation_loss_is_the_expected_negative_log_likelihood_of_observed_entries():
    x = rows(7)
    x[0, 1] = x[3, 0] = x[3, 2] = x[6] = torch.nan
    model = laplacian(num_data=40, missing=True)
    model.training_loss(x)  # so that there is some curvature and some noise
    seen = ~x.isnan()
    seen[1, 1] = seen[2, 0] = False
    source = torch.Generator().manual_seed(VALIDATION_SEED)
    log_prob, mean = torch.zeros(7, dtype=torch.float64), torch.zeros_like(x)
    assert model.online is not None
    for _ in range(VALIDATION_SAMPLES):
        weights = model.online.draw(source)
        z = torch.where(seen, x, 0) @ weights["encoder.weight"].T + weights["encoder.bias"]
        f = z @ weights["decoder.weight"].T + weights["decoder.bias"]
        each = torch.distributions.Normal(f, model.online.state.noise_precision**-0.5).log_prob(x.nan_to_num(0.0))
        log_prob += torch.where(x.isnan(), 0.0, each).sum(1) / VALIDATION_SAMPLES
        mean += f / VALIDATION_SAMPLES
    loss, error = model.validation_loss(x, seen)
    assert float(loss) == pytest.approx(float(-log_prob.mean()), rel=1e-10)
    assert float(error) == pytest.approx(float((mean - x).square().nan_to_num(0.0).sum() / 7), rel=1e-10)
    assert float(model.validation_loss(x)[0]) != float(loss)  # the encoder sees more


def test_hidden_entries_are_a_share_that_differs_between_rows():
    x = torch.ones(400, 500, dtype=torch.float64)
    share = hidden_entries(x, 0.2, torch.Generator().manual_seed(0)).double().mean(1)
    assert float(share.mean()) == pytest.approx(0.2, abs=0.02)
    assert float(share.std()) == pytest.approx(0.4 / 12**0.5, rel=0.1)  # uniform from 0 to 0.4
    assert float(share.max()) < 0.5 and bool((x == 1).all())
    assert hidden_entries(torch.ones(5, 1, 4, 4), 0.5, None).shape == (5, 1, 4, 4)


def test_the_encoder_sees_zeros_and_on_demand_where_they_are():
    x, seen = rows(50, 6) + 3, torch.rand(50, 6, generator=torch.Generator().manual_seed(1)) < 0.7
    plain, both = (Autoencoder(nn.Identity(), nn.Identity(), missing=missing) for missing in (True, "mask"))
    inputs = plain._visible(x, None, seen)
    assert torch.equal(inputs, seen * x) and torch.equal(plain._visible(x, seen, None), x)
    assert torch.equal(both._visible(x, None, seen), torch.cat([inputs, seen.to(x.dtype)], 1))
    assert torch.equal(both.inputs(x, None), torch.cat([x, torch.ones_like(x)], 1))


def test_hidden_entries_are_reconstructed_all_the_same():
    """The gradient of a decoder's bias sees every observed target, whatever the encoder sees."""
    x, seen = rows(8), torch.zeros(8, 3, dtype=torch.bool)
    torch.manual_seed(0)
    model = Autoencoder(nn.Linear(3, 2).double(), nn.Linear(2, 3).double())
    model.training_loss(x, seen).backward()
    assert torch.equal(model.encoder.weight.grad, torch.zeros(2, 3, dtype=torch.float64))
    expected = (model.decoder(model.encoder(torch.zeros_like(x))) - x).mean(0)
    torch.testing.assert_close(model.decoder.bias.grad, expected.detach())


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "lae-posthoc"])
def test_every_kind_learns(kind):
    model = ModelSpec(kind, (4,), 2, width=0.25, lr=0.01).build(0).double()
    x = rows(64, 2) @ rows(2, 4, seed=5)
    result = fit_in_memory(model, x, rows(16, 2, 7) @ rows(2, 4, seed=5), max_epochs=8, batch_size=16)
    assert result.epochs == 8 and result.rows[-1]["train_loss"] < result.rows[0]["train_loss"]
    assert result.best_loss == min(row["validation_loss"] for row in result.rows)


def test_without_validation_rows_and_with_wrong_ones():
    lines: list[str] = []
    result = fit_in_memory(laplacian(), rows(20), max_epochs=2, batch_size=7, report=lines.append)
    assert (result.epochs, result.best_epoch, result.best_loss, result.stopped_early) == (2, 1, None, False)
    assert len(lines) == 2 and "train_loss" in lines[0]
    with pytest.raises(NumericalError, match="diverged"):
        fit_in_memory(Autoencoder(nn.Linear(3, 2).double(), nn.Linear(2, 3).double(), lr=1e200), rows(20))
    for wrong in ({"max_epochs": 0}, {"batch_size": 0}, {"patience": 0}):
        with pytest.raises(DataError, match=r"is 0 .* from 1"):
            fit_in_memory(laplacian(), rows(20), **wrong)


def test_the_learning_rate_of_forgetting_is_the_present_one():
    model = laplacian(forgetting="learning-rate", lr=0.25)
    assert model.learning_rate == 0.25
    fit_in_memory(model, rows(20), max_epochs=1, batch_size=20)
    model._optimiser.param_groups[0]["lr"] = 0.125  # type: ignore[union-attr]
    assert model.learning_rate == 0.125


def test_validation_of_a_diverged_model_is_nan():
    model = Autoencoder(nn.Linear(3, 2).double(), nn.Linear(2, 3).double())
    with torch.no_grad():
        model.encoder.weight.fill_(torch.inf)
    loss, error = model.validation_loss(rows(20))
    assert loss.isnan() and error.isnan()
