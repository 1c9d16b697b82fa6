"""Calibration of classes (hand examples, torchmetrics) and of intervals (exact quantiles)."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torchmetrics.functional.classification import multiclass_calibration_error

from marquis.errors import DataError
from marquis.tasks import calibration


def binary(confidence: list[float], dtype=torch.float64) -> torch.Tensor:
    first = torch.tensor(confidence, dtype=dtype)
    return torch.stack([first, 1 - first], 1)


def random_answers(seed: int, n: int = 400, classes: int = 5):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (n,), generator=generator)


def test_hand_example_with_three_bins():
    # all first class; bins (0, 1/3], (1/3, 2/3], (2/3, 1]
    probs = binary([0.6, 0.6, 0.8, 0.8, 0.9, 1.0])
    labels = torch.tensor([0, 1, 0, 0, 1, 0])
    result = calibration.reliability(probs, labels, 3)
    assert result.count.tolist() == [0, 2, 4]
    assert result.confidence[1:].tolist() == pytest.approx([0.6, 0.875])
    assert result.accuracy[1:].tolist() == pytest.approx([0.5, 0.75])
    assert result.confidence.isnan().tolist() == result.accuracy.isnan().tolist() == [True, False, False]
    # in double precision: weights that were divided as integers were only good to seven digits
    assert result.ece == pytest.approx(2 / 6 * 0.1 + 4 / 6 * 0.125, rel=1e-12)
    assert result.mce == pytest.approx(0.125, rel=1e-12)
    assert result.rmsce == pytest.approx((2 / 6 * 0.1**2 + 4 / 6 * 0.125**2) ** 0.5, rel=1e-12)
    assert "0.667 to 1.000        4  0.875   0.750" in str(result)
    assert "0.000 to 0.333        0      -       -" in str(result)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_torchmetrics_agrees(seed, bins):
    probs, labels = random_answers(seed)
    for ours, norm in (
        (calibration.expected_calibration_error, "l1"),
        (calibration.root_mean_square_calibration_error, "l2"),
        (calibration.maximum_calibration_error, "max"),
    ):
        theirs = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins, norm=norm)
        assert ours(probs, labels, bins) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_order_of_the_three_errors(seed):
    result = calibration.reliability(*random_answers(seed))
    assert 0 < result.ece < result.rmsce < result.mce


def test_perfectly_calibrated_set_has_no_error():
    probs = binary([0.6] * 5 + [0.8] * 5 + [1.0] * 3)
    labels = torch.tensor([0, 0, 0, 1, 1] + [0, 0, 0, 0, 1] + [0] * 3)
    result = calibration.reliability(probs, labels)
    assert max(result.ece, result.rmsce, result.mce) == pytest.approx(0, abs=1e-15)


def test_one_bin_compares_the_averages():
    probs, labels = random_answers(3)
    accuracy, confidence = (probs.argmax(1) == labels).double().mean(), probs.max(1).values.mean()
    assert calibration.expected_calibration_error(probs, labels, 1) == pytest.approx(
        float((accuracy - confidence).abs())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_are_closed_on_the_right(dtype):
    for bins in (5, 10, 20, 100):
        for edge in range(bins // 2 + 1, bins + 1):
            result = calibration.reliability(binary([edge / bins], dtype), torch.tensor([0]), bins)
            assert result.count.nonzero().item() == edge - 1


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (binary([0.6, 0.7]), torch.tensor([0]), "labels"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "n at least 1"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0, 1]), "probabilities"),
        (torch.tensor([[3.0, -1.0]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[0.9, 0.9]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[torch.nan, 0.9]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[1, 0]]), torch.tensor([0]), "softmax"),
        (binary([0.6]), torch.tensor([2]), "from 0 to 1"),
        (binary([0.6]), torch.tensor([-1]), "from 0 to 1"),
        (binary([0.6]), torch.tensor([0.0]), "integers"),
    ],
)
def test_bad_probabilities_are_refused(probs, labels, message):
    with pytest.raises(DataError, match=message):
        calibration.reliability(probs, labels)


def test_no_bins_are_refused():
    with pytest.raises(DataError, match="bins is 0"):
        calibration.reliability(*random_answers(0), 0)


# Means with variances


def normal_quantiles(n: int = 2000) -> torch.Tensor:
    """A deterministic stand-in for n normal draws: share p of them lies within the central interval of level p."""
    return torch.tensor(stats.norm.ppf((torch.arange(n, dtype=torch.float64) + 0.5) / n))


def test_coverage_of_exact_quantiles_and_of_overconfidence():
    mean, std = torch.linspace(-3, 3, 2000, dtype=torch.float64), 2.5
    target = mean + std * normal_quantiles()
    honest = calibration.coverage(mean, torch.full_like(mean, std**2), target)
    assert honest == {level: pytest.approx(level, abs=1e-3) for level in calibration.LEVELS}
    proud = calibration.coverage(mean, torch.full_like(mean, (std / 2) ** 2), target)
    for level in calibration.LEVELS:
        assert proud[level] == pytest.approx(2 * stats.norm.cdf(stats.norm.ppf((1 + level) / 2) / 2) - 1, abs=1e-3)


def test_missing_targets_are_left_out():
    target = torch.tensor([0.0, torch.nan, 100.0])
    assert calibration.coverage(torch.zeros(3), torch.ones(3), target, [0.9]) == {0.9: 0.5}
    curve = calibration.error_against_variance(torch.zeros(3), torch.ones(3), target, 1)
    assert (curve.squared_error.item(), curve.count.item()) == (5000.0, 2)
    assert calibration.sample_coverage(torch.tensor([[-1.0] * 3, [1.0] * 3]), target, [0.3]) == {0.3: 0.5}


def test_coverage_of_draws():
    draws = torch.arange(1.0, 10.0).unsqueeze(1)  # nine: the central 80 % is their range, 60 % the second to the eighth
    for target, inside in ((0.9, (0, 0)), (1.5, (1, 0)), (8.0, (1, 1)), (8.1, (1, 0))):
        result = calibration.sample_coverage(draws, torch.tensor([target]), [0.8, 0.6])
        assert (result[0.8], result[0.6]) == inside
    between = calibration.sample_coverage(draws, torch.tensor([1.51]), [0.7])  # halfway between first and second
    assert between == {0.7: 1.0}
    assert calibration.sample_coverage(draws, torch.tensor([1.49]), [0.7]) == {0.7: 0.0}
    assert calibration.sample_coverage(draws, torch.tensor([9.0]), [0.99]) == {0.99: 1.0}  # never more than the range


def test_exchangeable_draws_cover_as_promised():
    # every position of one of ten values among the other nine, once: exact, no chance involved
    values = torch.arange(10.0)
    target = values
    draws = torch.stack([values[values != v] for v in values], 1)
    assert calibration.sample_coverage(draws, target, [0.8, 0.6, 0.4]) == pytest.approx({0.8: 0.8, 0.6: 0.6, 0.4: 0.4})


def test_error_against_variance_by_hand():
    variance = torch.tensor([4.0, 1.0, 2.0, 3.0, 0.5])
    error = torch.tensor([2.0, 1.0, -1.0, 2.0, 0.0])
    curve = calibration.error_against_variance(error, variance, torch.zeros(5), 2)
    assert curve.variance.tolist() == pytest.approx([3.5 / 3, 3.5])
    assert curve.squared_error.tolist() == pytest.approx([2 / 3, 4.0])
    assert curve.count.tolist() == [3, 2]


def test_sharpness_is_the_width_of_the_interval():
    variance = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    low, high = stats.norm.interval(0.9)
    assert calibration.sharpness(variance) == pytest.approx(2 * (high - low), rel=1e-12)
    with pytest.raises(DataError, match="negative"):
        calibration.sharpness(-variance)
    with pytest.raises(DataError, match="level is 1"):
        calibration.sharpness(variance, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2), torch.ones(3), torch.zeros(2)), "one shape"),
        ((torch.zeros(2), -torch.ones(2), torch.zeros(2)), "not negative"),
        ((torch.zeros(2) / 0, torch.ones(2), torch.zeros(2)), "finite"),
        ((torch.zeros(0), torch.ones(0), torch.zeros(0)), "no target"),
        ((torch.zeros(2), torch.ones(2), torch.full((2,), torch.nan)), "no target"),
    ],
)
def test_bad_intervals_are_refused(arguments, message):
    for measure in (calibration.coverage, calibration.error_against_variance):
        with pytest.raises(DataError, match=message):
            measure(*arguments)


def test_bad_levels_bins_and_draws_are_refused():
    three = torch.zeros(3), torch.ones(3), torch.zeros(3)
    for levels in ([], [0.0], [0.5, 1.0]):
        with pytest.raises(DataError, match="levels"):
            calibration.coverage(*three, levels)
        with pytest.raises(DataError, match="levels"):
            calibration.sample_coverage(torch.zeros(2, 3), torch.zeros(3), levels)
    for bins in (0, 4):
        with pytest.raises(DataError, match="bins"):
            calibration.error_against_variance(*three, bins)
    for samples in (torch.zeros(1, 3), torch.zeros(5, 2), torch.zeros(3)):
        with pytest.raises(DataError, match="samples"):
            calibration.sample_coverage(samples, torch.zeros(3))
    with pytest.raises(DataError, match="no target"):
        calibration.sample_coverage(torch.zeros(2, 1), torch.tensor([torch.nan]))
    one_is_nan = torch.tensor([[-1.0, -1.0], [torch.nan, 1.0]])
    with pytest.raises(DataError, match="samples must not be NaN"):
        calibration.sample_coverage(one_is_nan, torch.zeros(2), [0.3])
    assert calibration.sample_coverage(one_is_nan, torch.tensor([torch.nan, 0.0]), [0.3]) == {0.3: 1.0}
