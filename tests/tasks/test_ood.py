"""Scores of one pass, typicality from both sides, the combined score, and the table against scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy_models import LinearModel, projector

from marquis.autoencoders import Autoencoder
from marquis.errors import DataError
from marquis.tasks import ood
from marquis.tasks.ranking import auroc


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, width: int = 8, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, width, generator=seeded(seed), dtype=torch.float64)


def test_scores_are_those_of_the_draws():
    model, _ = projector(scale=0.1)
    x = normal(6)
    result = ood.scores(model, x, 7, generator=seeded())
    prediction = model.reconstruct(x, 7, generator=ood.SameSeed(model, seeded()).generator(), keep=True)
    samples, codes = prediction.samples, prediction.latent.samples
    assert result["error"] == pytest.approx((samples - x).square().sum(2).mean(0), rel=1e-12)
    assert result["nll"] == pytest.approx(-prediction.log_prob, rel=1e-12)
    assert result["output_variance"] == pytest.approx(samples.var(0).sum(1), rel=1e-12)
    assert result["output_std"] == pytest.approx(samples.std(0).sum(1), rel=1e-12)
    assert result["total_variance"] == pytest.approx(samples.var(0).sum(1) + 8, rel=1e-12)
    assert result["latent_variance"] == pytest.approx(codes.var(0).sum(1), rel=1e-12)
    assert result["latent_std"] == pytest.approx(codes.std(0).sum(1), rel=1e-12)
    expected = -2 * prediction.expected_log_prob - 8 * math.log(2 * math.pi)  # unit noise: the paper's score and -log p
    assert result["error"] == pytest.approx(expected, rel=1e-12)


def test_all_data_meet_the_same_draws_however_they_are_cut():
    model, _ = projector(scale=0.1)
    x = normal(10)
    whole = ood.scores(model, x, 5, generator=seeded())
    loader = DataLoader(TensorDataset(x, torch.arange(10)), batch_size=4)
    for other in (
        ood.scores(model, x, 5, generator=seeded(), batch_size=3),
        ood.scores(model, loader, 5, generator=seeded()),
        ood.scores(model, (part for part in x.split(7)), 5, generator=seeded()),
    ):
        for name, score in whole.items():
            assert other[name] == pytest.approx(score, rel=1e-12), name
    changed = ood.scores(model, x, 5, generator=seeded(1))
    assert not torch.allclose(changed["output_variance"], whole["output_variance"], rtol=1e-3)


def test_missing_entries_are_left_out_of_the_error():
    model = Autoencoder(nn.Linear(3, 1), nn.Linear(1, 3), missing=True).double()
    x = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 5.0, 2.0]], dtype=torch.float64)
    result = ood.scores(model, x)
    output = model.decoder(model.encoder(x.nan_to_num(0.0)))
    squares = (output - x).square().nan_to_num(0.0).sum(1)
    assert result["error"] == pytest.approx(squares.detach(), rel=1e-12)
    constant = 0.5 * math.log(2 * math.pi) * torch.tensor([2.0, 3.0], dtype=torch.float64)  # observed entries only
    assert result["nll"] == pytest.approx(squares.detach() / 2 + constant, rel=1e-12)


def test_typicality_of_the_mean_is_zero_and_both_sides_count():
    train = torch.tensor([1.0, 2.0, 6.0])
    assert ood.typicality(torch.tensor([3.0, 1.0, 5.0]), train).tolist() == [0.0, 2.0, 2.0]
    with pytest.raises(DataError, match="training data"):
        ood.typicality(train, torch.zeros(0))


def test_too_good_to_be_true_is_found_by_typicality_only():
    # A zero reconstruction: the error of x is |x|². Half of the outside is nearer to it than the inside, half farther.
    model = LinearModel(torch.zeros(1, 20, dtype=torch.float64), torch.zeros(20, 1, dtype=torch.float64))
    inside, train = normal(200, 20, 2), normal(200, 20, 3)
    outside = normal(200, 20, 4) * torch.tensor([0.1, 3.0]).repeat(100).unsqueeze(1)
    table = ood.evaluate(model, inside, outside, train, 1).table
    assert table["error"]["auroc"] == pytest.approx(0.5, abs=1e-12)
    assert table["typicality"]["auroc"] > 0.95
    shrunk = ood.evaluate(model, inside, 0.1 * inside, train, 1).table
    assert shrunk["error"]["auroc"] == 0.0  # reported as it is, not flipped
    assert shrunk["typicality"]["auroc"] > 0.95


def test_table_against_scikit_learn_and_the_raw_scores():
    model, _ = projector(scale=0.2)
    result = ood.evaluate(
        model, normal(40, seed=5), 1.5 * normal(40, seed=6), normal(50, seed=7), 5, generator=seeded()
    )
    truth = [0] * 40 + [1] * 40
    for name, row in result.table.items():
        score = torch.cat([result.in_distribution[name], result.out_of_distribution[name]])
        assert row["auroc"] == pytest.approx(roc_auc_score(truth, score), rel=1e-12)
        assert row["aupr"] == pytest.approx(average_precision_score(truth, score), rel=1e-12)
        curve = result.roc(name)
        assert row["fpr95"] == float(curve.false_positive_rate[curve.true_positive_rate >= 0.95][0])
        assert f"{name:<18} {row['auroc']:7.4f}" in str(result)
        assert result.train[name].shape == (50,)
    assert result.samples == 5
    assert str(result).startswith("40 in-distribution, 40 OOD, 5 sample(s)")
    assert result.train["typicality"] == pytest.approx(ood.typicality(result.train["error"], result.train["error"]))
    assert result.in_distribution["typicality_nll"] == pytest.approx(
        (result.train["nll"].mean() - result.in_distribution["nll"]).abs()
    )
    again = ood.evaluate(model, normal(40, seed=5), 1.5 * normal(40, seed=6), normal(50, seed=7), 5, generator=seeded())
    assert again.table == result.table


def test_an_ensemble_is_the_mixture_of_all_networks():
    """By hand from all draws of both: mean error, log of the mean density, mean of the variances within each."""
    models = [projector(scale=scale, seed=seed)[0] for scale, seed in ((0.1, 0), (0.3, 5))]
    sets = {"in_distribution": normal(6), "out_of_distribution": normal(7, seed=2) + 1, "train": normal(9, seed=3)}
    options = {"samples": 5, "generator": seeded()}
    results = [ood.evaluate(model, *sets.values(), **options | {"generator": seeded()}) for model in models]
    result = ood.ensemble(results)
    by_hand: dict[str, dict[str, torch.Tensor]] = {}
    for name, x in sets.items():
        message = [m.reconstruct(x, 5, generator=ood.SameSeed(m, seeded()).generator(), keep=True) for m in models]
        samples = torch.cat([one.samples for one in message])
        log_prob = -0.5 * (samples - x).square().sum(2) - 4 * math.log(2 * math.pi)
        by_hand[name] = {
            "error": (samples - x).square().sum(2).mean(0),
            "nll": -(log_prob.logsumexp(0) - math.log(10)),
            "output_variance": sum(one.samples.var(0).sum(1) for one in message) / 2,
            "latent_variance": sum(one.latent.samples.var(0).sum(1) for one in message) / 2,
        }
    typical = by_hand["train"]["error"].mean()
    for name in sets:
        for score, expected in by_hand[name].items():
            assert getattr(result, name)[score] == pytest.approx(expected, rel=1e-10), score
        assert getattr(result, name)["typicality"] == pytest.approx((by_hand[name]["error"] - typical).abs(), rel=1e-9)
        joined = ood.combined(by_hand[name], by_hand["train"])
        assert getattr(result, name)["combined"] == pytest.approx(joined, rel=1e-9)
    assert result.samples == 10 and result.table["nll"]["auroc"] == auroc(
        by_hand["in_distribution"]["nll"], by_hand["out_of_distribution"]["nll"]
    )
    alone = ood.ensemble(results[:1])
    for score, values in results[0].out_of_distribution.items():
        assert alone.out_of_distribution[score] == pytest.approx(values, rel=1e-12)
    with pytest.raises(DataError, match="no results"):
        ood.ensemble([])
    fewer = ood.evaluate(models[0], sets["in_distribution"][:4], sets["out_of_distribution"], sets["train"], **options)
    with pytest.raises(DataError, match="4, 6 samples"):
        ood.ensemble([results[0], fewer])


def test_histogram_shares_its_edges():
    model, _ = projector(scale=0.2)
    result = ood.evaluate(model, normal(30, seed=5), 3 * normal(20, seed=6), normal(30, seed=7), 3)
    edges, inside, outside = result.histogram("nll", 8)
    assert (int(inside.sum()), int(outside.sum()), len(edges)) == (30, 20, 9)
    both = torch.cat([result.in_distribution["nll"], result.out_of_distribution["nll"]])
    assert (edges[0], edges[-1]) == (both.min(), both.max())
    first = (result.out_of_distribution["nll"] < edges[1]).sum()
    assert outside[0] == first
    with pytest.raises(DataError, match="no score 'entropy'; there are error"):
        result.histogram("entropy")
    with pytest.raises(DataError, match="bins is 0"):
        result.histogram("nll", 0)


def test_combined_by_hand():
    train = {
        "a": torch.arange(1.0, 11.0),  # the 90 % quantile is 9, the mean excess over it 1
        "b": torch.tensor([10.0] * 6 + [20.0] * 4),  # nothing lies above the quantile: 10 takes its place, excess 10
        "c": torch.ones(10),
    }
    parts = {
        "a": torch.tensor([0.0, 2.5, 9.0, 10.0, 12.0]),
        "b": torch.tensor([10.0, 10.0, 0.0, 15.0, 40.0]),
        "c": torch.ones(5),
    }
    of_a = [0, -math.log(9 / 11), -math.log(3 / 11), -math.log(2 / 11) + 1, -math.log(2 / 11) + 3]
    of_b = [0, 0, 0, -math.log(5 / 11) + 0.5, -math.log(5 / 11) + 3]
    assert ood.combined(parts, train, ("a",)).tolist() == pytest.approx(of_a)
    assert ood.combined(parts, train, ("b",)).tolist() == pytest.approx(of_b)
    both = [(a + b) / 2 for a, b in zip(of_a, of_b, strict=True)]
    assert ood.combined(parts, train, ("a", "b", "c")).tolist() == pytest.approx(both)  # c does not vary: left out
    assert ood.combined(parts, train, ("c",)).tolist() == [0] * 5


def test_combined_ignores_units_and_follows_each_part():
    train = {"a": normal(30, 1, 1)[:, 0], "b": normal(30, 1, 2)[:, 0]}
    parts = {"a": normal(9, 1, 3)[:, 0], "b": normal(9, 1, 4)[:, 0]}
    before = ood.combined(parts, train, ("a", "b"))
    scaled = ood.combined({**parts, "a": 1e3 * parts["a"] - 7}, {**train, "a": 1e3 * train["a"] - 7}, ("a", "b"))
    assert scaled == pytest.approx(before, rel=1e-9)
    assert (ood.combined({**parts, "a": parts["a"] + 5}, train, ("a", "b")) > before).all()


def test_combined_does_not_saturate_beyond_the_training_data():
    train, inside, outside = (
        {"a": torch.arange(100.0)},
        {"a": 2 * torch.arange(100.0)},
        {"a": 210 + torch.arange(100.0)},
    )
    scores = [ood.combined(part, train, ("a",)) for part in (inside, outside)]
    assert auroc(*scores) == 1.0
    rising = ood.combined({"a": torch.linspace(-10, 300, 500)}, train, ("a",))
    assert (rising.diff() >= 0).all()
    assert (rising.diff()[200:] > 0).all()


def test_combined_wants_scores_that_are_there():
    parts = {"a": torch.arange(3.0)}
    for of in (("b",), ()):
        with pytest.raises(DataError, match="needs scores that are there"):
            ood.combined(parts, parts, of)
    with pytest.raises(DataError, match="'a' is empty or NaN"):
        ood.combined(parts, {"a": torch.tensor([torch.nan])}, ("a",))


def test_plain_autoencoder_on_digits(digits):
    model, train, inside, _ = digits
    outside = inside.flatten(2)[..., torch.randperm(64, generator=seeded())].view_as(
        inside
    )  # the same pixels, elsewhere
    result = ood.evaluate(model, inside, outside, train[:500])
    assert result.samples == 1
    for name in ("error", "nll", "typicality", "combined"):
        assert result.table[name]["auroc"] > 0.95
    assert result.table["nll"]["auroc"] == pytest.approx(result.table["error"]["auroc"], abs=1e-4)  # fixed noise
    assert result.table["latent_variance"] == {
        "auroc": 0.5,
        "aupr": 0.5 * 2 * len(outside) / (2 * len(outside)),
        "fpr95": 1,
    }
    assert not result.varies("output_variance")
    lines = {line.split()[0]: line.split()[1:] for line in str(result).splitlines()}
    assert lines["output_variance"] == ["-", "-", "-"]
    assert "cannot tell" in str(result)


def test_bad_data_are_refused():
    model, _ = projector()
    x = normal(4)
    for nothing in (x[:0], [], [x[:0]]):
        with pytest.raises(DataError, match="there are no data"):
            ood.scores(model, nothing)
    with pytest.raises(DataError, match=r"out-of-distribution data have shape \[2, 4\] each, the training data \[8\]"):
        ood.evaluate(model, x, x.view(4, 2, 4), x)
    with pytest.raises(DataError, match="a batch has shape"):
        ood.scores(model, [x, x.view(4, 2, 4)])
    with pytest.raises(DataError, match="at least one entry per sample"):
        ood.scores(model, x[0])
    with pytest.raises(DataError, match="batch_size is 0"):
        ood.scores(model, x, batch_size=0)
    with pytest.raises(DataError, match="got str"):
        ood.scores(model, ["x"])
    with pytest.raises(DataError, match="4 of 4 values of 'error' are not finite"):
        ood.scores(model, x * torch.inf)


def test_deprecated_names_still_work():
    model, _ = projector(scale=0.2)
    options = {"train": normal(9, seed=3), "samples": 2, "progress": False}
    with pytest.warns(DeprecationWarning, match="in_distribution="):
        result = ood.evaluate(model, inside=normal(6), outside=normal(7, seed=2), generator=seeded(), **options)
    for old, new in (("inside", "in_distribution"), ("outside", "out_of_distribution"), ("draws", "samples")):
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(result, old) is getattr(result, new)
    with pytest.warns(DeprecationWarning, match="ensemble"):
        assert ood.together([result]).table.keys() == result.table.keys()
    with pytest.warns(DeprecationWarning, match="in_scores="):
        assert auroc(inside=torch.zeros(2), outside=torch.ones(3)) == 1
