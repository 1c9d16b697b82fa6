"""The experiment `imputation` at its quick size, and what it is made of."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from marquis.autoencoders import Autoencoder, build
from marquis.errors import DataError
from marquis.tasks.masks import top_half
from marquis_experiments.common.images import Labelled
from marquis_experiments.laplacian_autoencoder.table3_imputation import study as imputation
from marquis_experiments.laplacian_autoencoder.table3_imputation.page import mce_by_chance, reached
from marquis_experiments.laplacian_autoencoder.table3_imputation.pictures import pooled
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import (
    TRAINING,
    WEIGHTED,
    Judge,
    Procedure,
    filled_in,
)
from marquis_experiments.laplacian_autoencoder.table3_imputation.scores import (
    LEAST,
    class_shares,
    classified,
    nearest_by_observed,
    scores,
    scores_in_parts,
)


class Flat(nn.Module):
    """Reads the logits off the first two pixels."""

    def forward(self, x):
        return x.flatten(1)[:, :2]


def logits(*probs: float) -> torch.Tensor:
    return torch.tensor([probs, [1 - p for p in probs]], dtype=torch.float64).log().T.reshape(-1, 1, 1, 2)


@pytest.fixture(scope="module")
def plain() -> Autoencoder:
    return Autoencoder(*build((1, 8, 8), latent=2, width=0.1, seed=0)).eval()


def test_scores_of_the_mean_softmax_by_hand():
    # two versions of three images; mean probabilities of class 0: 0.6, 0.3, 0.2
    versions = torch.stack([logits(0.9, 0.4, 0.1), logits(0.3, 0.2, 0.3)])
    found = classified(versions, torch.tensor([0, 0, 1]), Flat().eval())
    assert found["accuracy"] == pytest.approx(2 / 3, rel=1e-12)
    assert found["confidence"] == pytest.approx((0.6 + 0.7 + 0.8) / 3, rel=1e-12)
    assert found["nll"] == pytest.approx(-(math.log(0.6) + math.log(0.3) + math.log(0.8)) / 3, rel=1e-12)
    assert found["several_classes"] == pytest.approx(1 / 3)  # only the first image changes its class
    gaps = [1 - 0.6, 0.7, 1 - 0.8]  # three bins of one image each
    assert found["ece"] == pytest.approx(sum(gaps) / 3, rel=1e-12)
    assert found["mce"] == pytest.approx(0.7, rel=1e-12)
    assert sum(found["bins"]["count"]) == 3 and found["bins"]["accuracy"][0] is None


def test_a_class_that_was_ruled_out_costs_a_finite_amount():
    sure = torch.tensor([[[[1000.0, -1000.0]]]], dtype=torch.float64).unsqueeze(0)
    assert classified(sure, torch.tensor([1]), Flat().eval())["nll"] == pytest.approx(-math.log(LEAST))


def test_starting_from_training_images_equals_imputation_from_each_of_them(plain):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, 1, 8, 8, generator=generator)
    training = torch.rand(9, 1, 8, 8, generator=generator)
    missing = top_half((1, 8, 8))
    found = filled_in(plain, x, missing, Procedure(TRAINING, 3, 2, 2), training, torch.Generator().manual_seed(0))
    again = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for version in range(3):
            image = torch.where(missing, training[torch.randint(9, (4,), generator=again)], x)
            image = plain.decoder(plain.encoder(image))
            for _ in range(2):
                image = plain.decoder(plain.encoder(torch.where(missing, image, x)))
            assert torch.allclose(found.reconstructions[version], image, rtol=1e-5, atol=1e-6)
            assert torch.equal(found.samples[version][~missing.expand_as(x)], x[~missing.expand_as(x)])
    assert float(found.std[..., :4, :].mean()) > 0  # a plain autoencoder has versions that differ
    assert len(filled_in(plain, x, missing, Procedure("noise", 3), training, again).samples) == 1  # and here only one


def test_starts_are_where_they_should_be_and_unknown_ones_refused(plain):
    x, training = torch.rand(2, 1, 8, 8), torch.rand(5, 1, 8, 8)
    missing = top_half((1, 8, 8))
    upper = missing.expand_as(x)
    black = filled_in(plain, x, missing, Procedure("black"), training, torch.Generator())
    assert float(black.filled[upper].abs().max()) == 0
    average = filled_in(plain, x, missing, Procedure("mean image"), training, torch.Generator())
    assert torch.equal(average.filled[upper], training.mean(0).expand_as(x)[upper])
    with pytest.raises(DataError, match="no start is called 'grey'"):
        filled_in(plain, x, missing, Procedure("grey"), training, torch.Generator())


def test_neighbours_are_found_by_the_observed_pixels_only():
    training = torch.zeros(3, 1, 2, 1)
    training[:, 0, 1, 0] = torch.tensor([0.0, 1.0, 3.0])
    training[:, 0, 0, 0] = torch.tensor([9.0, -9.0, 0.9])  # would mislead a search by all pixels
    x = torch.tensor([[[[0.9], [0.9]]]])
    assert nearest_by_observed(x, training, top_half((1, 2, 1)), 2).tolist() == [[1, 0]]


def test_class_shares_by_hand():
    images = torch.stack([logits(0.9, 0.8), logits(0.7, 0.4)])
    found = class_shares(images, Flat().eval())
    assert found["shares"] == pytest.approx([0.75, 0.25])
    assert found["entropy_bits"] == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)), rel=1e-12)
    assert found["confidence"] == pytest.approx((0.9 + 0.8 + 0.7 + 0.6) / 4, rel=1e-12)
    assert found["several_classes"] == 0.5


def test_pooled_bins_weigh_seeds_by_their_images():
    first = {"count": [1, 0, 0], "confidence": [0.2, None, None], "accuracy": [1.0, None, None]}
    second = {"count": [3, 0, 4], "confidence": [0.4, None, 0.9], "accuracy": [0.0, None, 0.5]}
    confidence, accuracy, share = pooled([first, second])
    assert confidence == pytest.approx([0.35, 0.9]) and accuracy == pytest.approx([0.25, 0.5])
    assert share == pytest.approx([0.5, 0.5])


def test_procedures_are_chosen_by_the_likelihood_of_the_class_with_and_without_weights():
    options = [Procedure(), Procedure("black"), *(Procedure(WEIGHTED, exponent=e) for e in (0.1, 0.2))]
    likely = {"put_back": {"nll": 0.5, "accuracy": 0.1}}
    found = {option.name: {"put_back": {"nll": 1.0, "accuracy": 0.9}} for option in options}
    found |= {options[1].name: likely, options[2].name: likely}
    assert imputation.chosen({"procedures": found}, options, "own") == options[1].name
    assert imputation.chosen({"procedures": found}, options, "weighted") == options[2].name
    assert imputation.chosen({"procedures": {}}, options, "own") is None
    assert len({option.name for option in options}) == 4


def test_parts_meet_the_same_networks_and_add_up(plain):
    generator = torch.Generator().manual_seed(3)
    x, training = torch.rand(6, 1, 8, 8, generator=generator), torch.rand(9, 1, 8, 8, generator=generator)
    data, classifier = Labelled(x, torch.tensor([0, 1, 0, 1, 1, 1])), Flat().eval()
    judge = Judge(classifier, classifier, training, data, data, data)
    how = Procedure(WEIGHTED, 5, exponent=0.5, donors=7, networks=2)
    parts = scores_in_parts(plain, data, how, judge, 0, 4)
    whole = scores_in_parts(plain, data, how, judge, 0, 6)
    assert whole["put_back"] == whole["first"]
    first = Labelled(x[:4], data.y[:4])
    assert parts["first"] == scores_in_parts(plain, first, how, judge, 0, 4)["put_back"]
    second = filled_in(plain, x[4:], judge.missing, how, training, torch.Generator().manual_seed(0))
    alone = scores(second, x[4:], data.y[4:], classifier)
    begun = scores_in_parts(plain, first, how, judge, 0, 4)
    for name in ("accuracy", "nll", "confidence"):
        together = (4 * begun["put_back"][name] + 2 * alone["put_back"][name]) / 6
        assert parts["put_back"][name] == pytest.approx(together, rel=1e-6)
    for name in ("coverage", "spread"):
        assert parts[name] == pytest.approx((4 * begun[name] + 2 * alone[name]) / 6, rel=1e-6)
    away = (4 * begun["errors"]["missing"] + 2 * alone["errors"]["missing"]) / 6
    assert parts["errors"]["missing"] == pytest.approx(away, rel=1e-6)


def test_accuracy_has_to_be_large_and_calibration_errors_small():
    assert reached("accuracy", 0.53) and not reached("accuracy", 0.52)
    assert reached("mce", 0.16) and not reached("mce", 0.17)


def test_mce_of_a_perfectly_calibrated_classifier():
    one = {"count": [1, 0], "confidence": [0.5, None], "accuracy": [1.0, None]}
    assert mce_by_chance(one) == pytest.approx(0.5)  # a single image is a half away either way
    two = {"count": [2, 0], "confidence": [0.5, None], "accuracy": [1.0, None]}
    assert mce_by_chance(two) == pytest.approx(0.25, abs=0.02)  # 0, 1, 1, 2 of two are right
    many = {"count": [10**8, 10**8], "confidence": [0.2, 0.9], "accuracy": [0.2, 0.9]}
    assert mce_by_chance(many) < 1e-3


def test_quick_run_end_to_end(tmp_path, monkeypatch):
    page = imputation.STUDY.run("quick", tmp_path / "imputation", say=lambda _: None)
    text = page.read_text()
    for name in ("imputation", "imputation-own", "imputation-reliability", "imputation-generated"):
        assert (page.parent / f"{name}.png").stat().st_size > 5000 and f"({name}.png)" in text
    results = json.loads((page.parent / "results.json").read_text())
    assert {row["key"] for row in results["rows"]} == {"ae", "vae", "online-sketched"}
    assert "nan" not in text.lower().split()
    for row in results["rows"]:
        ways = [row[way]["put_back"] for way in ("published", "own", "weighted")]
        for one in (*ways, row["weighted"]["first"], row["published"]["reconstructions"]):
            assert one["ece"] <= one["rmsce"] + 1e-12 <= one["mce"] + 2e-12
        assert 0 < row["published"]["errors"]["missing"] < row["published"]["errors"]["all"]
        images = 120 if row["key"] == "online-sketched" else 80
        assert sum(row["weighted"]["put_back"]["bins"]["count"]) == images
        assert sum(row["weighted"]["first"]["bins"]["count"]) == 80
    assert results["references"]["classifier, complete image"]["accuracy"] > 0.5
    # a second run computes nothing anew
    monkeypatch.setattr(imputation.Bench, "_scores", None)
    monkeypatch.setattr(imputation, "scores_in_parts", None)
    monkeypatch.setattr(imputation.Bench, "_complete", None)
    imputation.STUDY.run("quick", tmp_path / "imputation", say=lambda _: None)
    assert json.loads((page.parent / "results.json").read_text()) == results
