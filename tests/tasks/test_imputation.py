"""The two stages against alternating projections in closed form; errors by three definitions; refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy_models import LinearModel, projector

from marquis.errors import DataError, UnsupportedOperationError
from marquis.tasks import imputation

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def case(n: int = 5, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, width, generator=seeded(3), dtype=F64)
    missing = torch.rand(n, width, generator=seeded(4)) < 0.4
    assert missing.any()
    assert not missing.all(1).any()
    return x, missing


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_projector_gives_alternating_projections(rounds):
    model, p = projector()
    x, missing = case()
    result = imputation.impute(model, x, missing, samples=1, averaged=1, rounds=rounds, generator=seeded())
    start = torch.where(missing, imputation.minmax_noise(x, seeded()), x)
    assert torch.equal(result.filled, start)
    for row in range(len(x)):
        hide = torch.diag(missing[row].double())
        step, constant = p @ hide, p @ (x[row] * ~missing[row])
        powers = [torch.linalg.matrix_power(step, j) for j in range(rounds + 1)]
        closed = powers[rounds] @ p @ start[row] + sum(power @ constant for power in powers[:rounds])
        assert result.reconstructions[0, row] == pytest.approx(closed, rel=1e-10, abs=1e-12)
    other = imputation.impute(model, x, missing, samples=1, averaged=1, rounds=rounds + 1, generator=seeded())
    assert not torch.allclose(other.reconstructions, result.reconstructions, rtol=1e-6)  # rounds do something


def test_without_rounds_the_first_answers_stand():
    model, _ = projector(scale=0.3)
    x, missing = case()
    result = imputation.impute(model, x, missing, samples=4, rounds=0, fill=0.5, generator=seeded())
    start = torch.where(missing, 0.5, x)
    prediction = model.reconstruct(start, 4, generator=seeded(), keep=True)
    assert torch.equal(result.reconstructions, prediction.samples) and result.averaged == 1
    assert torch.equal(result.samples, torch.where(missing, prediction.samples, x))
    assert not result.within_variance.any()
    assert [call[:2] for call in model.calls] == [("reconstruct", 4)] * 2


def test_holes_can_be_left_to_the_model():
    """It is given NaN, once; what it answers goes the usual way from there."""

    class Knowing(LinearModel):
        def reconstruct(self, x, *args, **options):
            self.holes = [*getattr(self, "holes", []), x.isnan()]
            return super().reconstruct(x.nan_to_num(0.25), *args, **options)

    x, missing = case()
    options = {"samples": 3, "averaged": 2, "rounds": 2}
    plain, knowing = projector(scale=0.3)[0], projector(scale=0.3)[0]
    knowing.__class__ = Knowing
    expected = imputation.impute(plain, x, missing, fill=0.25, generator=seeded(), **options)
    result = imputation.impute(knowing, x, missing, fill="missing", generator=seeded(), **options)
    assert torch.equal(result.samples, expected.samples)
    assert torch.equal(knowing.holes[0], missing) and not any(
        bool(incomplete.any()) for incomplete in knowing.holes[1:]
    )
    assert torch.equal(result.filled, torch.where(missing, 0.0, x))


def test_fill_may_be_an_array_of_numpy():
    model, _ = projector(scale=0.3)
    x, missing = case()
    means = torch.linspace(-1, 1, x.shape[1], dtype=F64)
    expected = imputation.impute(model, x, missing, samples=2, fill=means, generator=seeded())
    for fill in (means.numpy(), means.tolist()):
        result = imputation.impute(model, x, missing, samples=2, fill=fill, generator=seeded())
        assert torch.equal(result.samples, expected.samples)


def test_many_rounds_recover_what_lies_in_the_range():
    model, p = projector(rank=2)
    x = torch.rand(3, 8, generator=seeded(), dtype=F64) @ p
    missing = torch.zeros(8, dtype=torch.bool)
    missing[:3] = True
    result = imputation.impute(model, x, missing, samples=1, averaged=1, rounds=2000)
    assert result.mean == pytest.approx(x, abs=1e-8)
    once = imputation.impute(model, x, missing, samples=1, averaged=1)
    assert (once.mean - x).abs().max() > 1e-3


def test_observed_entries_are_identical_and_go_into_the_second_stage():
    model, _ = projector(scale=0.3)
    x, missing = case()
    result = imputation.impute(model, x, missing, samples=4, averaged=3, rounds=2, generator=seeded())
    assert all(torch.equal(sample[~missing], x[~missing]) for sample in result.samples)
    assert torch.equal(result.samples[:, missing], result.reconstructions[:, missing])
    assert not torch.equal(result.reconstructions[:, ~missing], result.samples[:, ~missing])
    assert [call[:2] for call in model.calls] == [("reconstruct", 4)] + [("reconstruct", 3)] * 8
    assert torch.equal(model.calls[0][2], result.filled)
    for _, _, went_in in model.calls[1:]:
        assert torch.equal(went_in[~missing], x[~missing])
        assert not torch.equal(went_in[missing], result.filled[missing])
    assert len({float(s[missing].sum()) for s in result.samples}) == 4  # different answers


def test_without_variance_it_is_deterministic():
    model, _ = projector()
    x, missing = case()
    one = imputation.impute(model, x, missing, samples=1, averaged=1, fill=0.5)
    many = imputation.impute(model, x, missing, samples=3, averaged=4, fill=0.5, generator=seeded(9))
    assert many.mean == pytest.approx(one.mean, rel=1e-12)
    assert float(many.variance.max()) < 1e-30
    assert torch.equal(one.variance, torch.zeros_like(x))
    assert torch.equal(one.samples, imputation.impute(model, x, missing, samples=1, averaged=1, fill=0.5).samples)


def test_mean_and_variances():
    model, _ = projector(scale=0.3)
    model.noise_variance = 0.25
    x, missing = case()
    result = imputation.impute(model, x, missing, samples=4, averaged=3, generator=seeded(), fill=0.5)
    generator = seeded()
    first = model.reconstruct(result.filled, 4, generator=generator, keep=True).samples
    second = [model.reconstruct(torch.where(missing, v, x), 3, generator=generator) for v in first]
    means = torch.where(missing, torch.stack([s.mean for s in second]), x)
    assert result.mean == pytest.approx(means.mean(0), rel=1e-12)
    assert result.std == pytest.approx(means.std(0), rel=1e-12, abs=1e-15)
    within = torch.stack([s.variance for s in second]).mean(0)
    total = torch.where(missing, means.var(0) + within * 2 / 3 + 0.25, 0.0)
    assert result.total_variance == pytest.approx(total, rel=1e-12)
    assert (result.averaged, float(result.total_variance[~missing].max())) == (3, 0.0)


def test_total_variance_is_unbiased_where_it_can_be_known():
    # x^(i) = a_i fill and xhat^(i) = mean_j b_ij a_i fill with b, a = 1 ± s: nested effects, enumerated exactly.
    # Var(b a) = (1 + s²)² - 1. The expectation of the estimator over all draws must be that.
    s, fill = 0.5, 2.0
    signs = torch.tensor([-1.0, 1.0], dtype=F64)
    values = []
    for first in torch.cartesian_prod(signs, signs):  # S1 = 2
        for inner in torch.cartesian_prod(*[signs] * 4).view(-1, 2, 2):  # S2 = 2 for each
            draws = (1 + s * inner) * (1 + s * first[:, None]) * fill
            zero = torch.zeros(1, 1, dtype=F64)
            versions = draws.mean(1).view(2, 1, 1)
            within = draws.var(1).mean().view(1, 1)
            values.append(
                imputation.Imputation(versions, versions, zero == 0, zero, within, zero, averaged=2).total_variance
            )
    assert float(torch.stack(values).mean()) == pytest.approx(((1 + s * s) ** 2 - 1) * fill**2, rel=1e-12)


def test_batches_do_not_change_the_answer():
    model, _ = projector()
    x, missing = case()
    whole = imputation.impute(model, x, missing, fill=0.1)
    cut = imputation.impute(model, x, missing, fill=0.1, batch_size=2)
    assert cut.reconstructions == pytest.approx(whole.reconstructions, rel=1e-12)
    assert cut.noise_variance == pytest.approx(whole.noise_variance)


def test_masks_nan_one_for_all_and_fill():
    model, _ = projector()
    x, missing = case()
    incomplete = torch.where(missing, torch.nan, x)
    by_nan = imputation.impute(model, incomplete, fill=0.5)
    assert torch.equal(by_nan.samples, imputation.impute(model, x, missing, fill=0.5).samples)
    assert torch.equal(by_nan.missing, missing)
    assert torch.equal(incomplete.isnan(), missing)  # the user's data are as they were
    same = imputation.impute(model, x, missing[0], fill=torch.arange(8.0))
    each = imputation.impute(model, x, missing[0].repeat(5, 1), fill=torch.arange(8.0).repeat(5, 1))
    assert torch.equal(same.samples, each.samples)
    assert torch.equal(same.filled[:, missing[0]], torch.arange(8.0, dtype=F64)[missing[0]].repeat(5, 1))
    nothing = imputation.impute(model, x)  # a complete table stays as it is, to the last bit
    assert torch.equal(nothing.mean, x)
    assert torch.equal(nothing.total_variance, torch.zeros_like(x))


def test_top_half():
    mask = imputation.top_half((1, 28, 28))
    assert mask[:, :14].all()
    assert not mask[:, 14:].any()
    with pytest.raises(DataError, match="height and width"):
        imputation.top_half((3,))


def test_noise_fills_the_unit_interval_of_each_datum():
    noise = imputation.minmax_noise(torch.zeros(6, 1, 4, 4), seeded())
    assert torch.equal(noise.flatten(1).min(1).values, torch.zeros(6))
    assert torch.equal(noise.flatten(1).max(1).values, torch.ones(6))
    assert noise.shape == (6, 1, 4, 4)
    assert len(noise.flatten(1).unique(dim=0)) == 6


def test_generation_is_imputation_of_everything():
    model, _ = projector(scale=0.2)
    model.encoder, model.decoder = model.encoder.float(), model.decoder.float()
    options = {"samples": 4, "averaged": 2}
    result = imputation.generate(model, 3, (8,), **options, generator=seeded())
    everything = torch.ones(8, dtype=torch.bool)
    same = imputation.impute(model, torch.zeros(3, 8), everything, **options, generator=seeded())
    assert result.samples.shape == (4, 3, 8)
    assert torch.equal(result.samples, result.reconstructions)
    assert torch.equal(result.samples, same.samples)
    assert result.missing.all()
    with pytest.raises(DataError, match="n is 0"):
        imputation.generate(model, 0, (8,))


# Errors


def test_three_definitions_by_hand():
    model, _ = projector(scale=0.3)
    x, missing = case()
    result = imputation.impute(model, x, missing, samples=4, averaged=2, generator=seeded())
    errors = imputation.errors(result, x)
    r, m = result.reconstructions, missing.double()
    assert errors.all == pytest.approx((r - x).square().sum(2).mean(0), rel=1e-12)
    assert errors.missing == pytest.approx(((r - x).square() * m).sum(2).mean(0), rel=1e-12)
    assert errors.published == pytest.approx((r - result.filled).square().sum(2).mean(0), rel=1e-12)
    assert errors.all_of_mean == pytest.approx((r.mean(0) - x).square().sum(1), rel=1e-12)
    assert errors.missing_of_mean == pytest.approx(((r.mean(0) - x).square() * m).sum(1), rel=1e-12)
    assert errors.published_of_mean == pytest.approx((r.mean(0) - result.filled).square().sum(1), rel=1e-12)
    spread = r.var(0, correction=0).sum(1)  # the identity of docs/method/autoencoders.md#predictions-from-samples
    assert errors.all == pytest.approx(errors.all_of_mean + spread, rel=1e-12)
    assert errors.summary()["missing"] == pytest.approx(float(errors.missing.mean()))


def test_published_definition_measures_the_noise():
    model = LinearModel(torch.zeros(1, 8, dtype=F64), torch.zeros(8, 1, dtype=F64))
    x, missing = case()
    result = imputation.impute(model, x, missing, generator=seeded())
    errors = imputation.errors(result, x)
    assert errors.published == pytest.approx(result.filled.square().sum(1), rel=1e-12)
    assert errors.all == pytest.approx(x.square().sum(1), rel=1e-12)
    perfect = LinearModel(torch.eye(8, dtype=F64), torch.eye(8, dtype=F64))
    unchanged = imputation.errors(imputation.impute(perfect, x, missing, generator=seeded()), x)
    assert unchanged.published == pytest.approx(torch.zeros(5, dtype=F64), abs=1e-28)  # leaving the noise is "perfect"
    assert (unchanged.missing > 0).all()  # it is not


def test_errors_want_the_complete_original():
    model, _ = projector()
    x, missing = case()
    result = imputation.impute(model, x, missing)
    with pytest.raises(DataError, match=r"the original has shape \[4, 8\]"):
        imputation.errors(result, x[:4])
    with pytest.raises(DataError, match="complete"):
        imputation.errors(result, torch.where(missing, torch.nan, x))


# Classifier


def test_probabilities_are_averaged_not_logits():
    classifier = nn.Linear(8, 3).double().eval()
    versions = 5 * torch.randn(4, 6, 8, generator=seeded(), dtype=F64)
    probs = imputation.class_probabilities(classifier, versions)
    expected = torch.stack([classifier(v).softmax(1) for v in versions]).mean(0)
    assert probs == pytest.approx(expected.detach(), rel=1e-12)
    assert probs.sum(1) == pytest.approx(torch.ones(6, dtype=F64))
    assert not torch.allclose(probs, classifier(versions.mean(0)).softmax(1), rtol=1e-2)
    assert not probs.requires_grad


def test_classifier_must_be_in_evaluation_mode():
    classifier = nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))
    versions = torch.zeros(2, 4, 8)
    with pytest.raises(UnsupportedOperationError, match=r"Sequential is in training mode.*classifier.eval\(\)"):
        imputation.class_probabilities(classifier, versions)
    classifier.eval()
    imputation.class_probabilities(classifier, versions)
    classifier[1].train()  # one forgotten layer is enough
    with pytest.raises(UnsupportedOperationError, match="training mode"):
        imputation.class_probabilities(classifier, versions)
    with pytest.raises(DataError, match=r"\[S1, B, ...\]"):
        imputation.class_probabilities(classifier.eval(), versions[0])


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": torch.zeros(5, 8)}, "must be boolean"),
        ({"missing": torch.zeros(5, 8, dtype=torch.uint8)}, "must be boolean"),
        ({"missing": torch.zeros(4, 8, dtype=torch.bool)}, r"mask has shape \[4, 8\], the data \[5, 8\]"),
        ({"missing": torch.zeros(5, dtype=torch.bool)}, "mask has shape"),
        ({"fill": "zeros"}, "fill='zeros'"),
        ({"fill": torch.zeros(3)}, r"fill has shape \[3\]"),
        ({"fill": float("nan"), "missing": torch.ones(5, 8, dtype=torch.bool)}, "fill itself"),
        ({"samples": 0}, "samples is 0"),
        ({"averaged": 0}, "averaged is 0"),
        ({"samples": 2.0}, r"samples is 2.0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"rounds": 0.5}, r"rounds is 0.5"),
    ],
)
def test_bad_options_are_refused(options, message):
    model, _ = projector()
    with pytest.raises(DataError, match=message):
        imputation.impute(model, case()[0], **options)


def test_bad_data_are_refused():
    model, _ = projector()
    x, missing = case()
    for data in (x.long(), x[0], x[:0]):
        with pytest.raises(DataError, match="floating-point data"):
            imputation.impute(model, data)
    with pytest.raises(DataError, match="calls observed are NaN"):
        imputation.impute(model, torch.where(missing, torch.nan, x), ~missing)
    with pytest.raises(DataError, match="calls observed are NaN or infinite"):
        imputation.impute(model, x / 0)
    with pytest.raises(DataError, match="two entries"):
        imputation.impute(model, x[:, :1])


def test_plain_autoencoder_fills_digits(digits):
    model, _, x, _ = digits
    mask = imputation.top_half(x.shape[1:])
    result = imputation.impute(model, x, mask, rounds=10, generator=seeded())
    assert result.samples.shape == (1, *x.shape)  # one network, one answer
    noise = (result.filled - x).square().flatten(1).sum(1)
    errors = imputation.errors(result, x)
    assert float(errors.missing.mean()) < 0.5 * float(noise.mean())
    assert torch.equal(result.mean[..., 4:, :], x[..., 4:, :])
    assert imputation.generate(model, 2, (1, 8, 8)).mean.shape == (2, 1, 8, 8)
