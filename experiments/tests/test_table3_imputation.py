"""The experiment `imputation` at its quick size, and what it is made of."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from marquis.autoencoders import Autoencoder, build
from marquis.tasks.imputation import impute
from marquis.tasks.masks import top_half
from marquis_experiments.common.images import Labelled
from marquis_experiments.laplacian_autoencoder.table3_imputation import study as imputation
from marquis_experiments.laplacian_autoencoder.table3_imputation.page import mce_by_chance, pooled, reached
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import (
    PUBLISHED,
    WEIGHTED,
    ImputationTask,
    Procedure,
)
from marquis_experiments.laplacian_autoencoder.table3_imputation.scores import (
    LEAST,
    class_shares,
    classified,
    nearest_by_observed,
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
    result = classified(versions, torch.tensor([0, 0, 1]), Flat().eval())
    assert result["accuracy"] == pytest.approx(2 / 3, rel=1e-12)
    assert result["confidence"] == pytest.approx((0.6 + 0.7 + 0.8) / 3, rel=1e-12)
    assert result["nll"] == pytest.approx(-(math.log(0.6) + math.log(0.3) + math.log(0.8)) / 3, rel=1e-12)
    assert result["several_classes"] == pytest.approx(1 / 3)  # only the first image changes its class
    gaps = [1 - 0.6, 0.7, 1 - 0.8]  # three bins of one image each
    assert result["ece"] == pytest.approx(sum(gaps) / 3, rel=1e-12)
    assert result["mce"] == pytest.approx(0.7, rel=1e-12)
    assert sum(result["bins"]["count"]) == 3 and result["bins"]["accuracy"][0] is None


def test_a_class_that_was_ruled_out_costs_a_finite_amount():
    sure = torch.tensor([[[[1000.0, -1000.0]]]], dtype=torch.float64).unsqueeze(0)
    assert classified(sure, torch.tensor([1]), Flat().eval())["nll"] == pytest.approx(-math.log(LEAST))


def test_neighbours_are_found_by_the_observed_pixels_only():
    training = torch.zeros(3, 1, 2, 1)
    training[:, 0, 1, 0] = torch.tensor([0.0, 1.0, 3.0])
    training[:, 0, 0, 0] = torch.tensor([9.0, -9.0, 0.9])  # would mislead a search by all pixels
    x = torch.tensor([[[[0.9], [0.9]]]])
    assert nearest_by_observed(x, training, top_half((1, 2, 1)), 2).tolist() == [[1, 0]]


def test_class_shares_by_hand():
    images = torch.stack([logits(0.9, 0.8), logits(0.7, 0.4)])
    result = class_shares(images, Flat().eval())
    assert result["shares"] == pytest.approx([0.75, 0.25])
    assert result["entropy_bits"] == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)), rel=1e-12)
    assert result["confidence"] == pytest.approx((0.9 + 0.8 + 0.7 + 0.6) / 4, rel=1e-12)


def test_pooled_bins_weigh_seeds_by_their_images():
    first = {"count": [1, 0, 0], "confidence": [0.2, None, None], "accuracy": [1.0, None, None]}
    second = {"count": [3, 0, 4], "confidence": [0.4, None, 0.9], "accuracy": [0.0, None, 0.5]}
    confidence, accuracy, share = pooled([first, second])
    assert confidence == pytest.approx([0.35, 0.9]) and accuracy == pytest.approx([0.25, 0.5])
    assert share == pytest.approx([0.5, 0.5])


def test_the_procedure_under_which_the_true_class_is_most_likely_is_chosen():
    tried = {name: {"put_back": {"nll": nll, "accuracy": 0.9}} for name, nll in (("a", 1.0), ("b", 0.5), ("c", 2.0))}
    assert imputation.most_likely(tried) == "b" and imputation.most_likely({}) is None


def test_published_and_weighted_imputation_are_those_of_the_library(plain):
    generator = torch.Generator().manual_seed(3)
    x, training = torch.rand(6, 1, 8, 8, generator=generator), torch.rand(9, 1, 8, 8, generator=generator)
    data, classifier = Labelled(x, torch.tensor([0, 1, 0, 1, 1, 1])), Flat().eval()
    task = ImputationTask(classifier, classifier, training, data, data)
    again = torch.Generator().manual_seed(0)
    theirs = impute(plain, x, top_half((1, 8, 8)), generator=again, batch_size=6, progress=False)
    assert torch.equal(task.fill_in(plain, x, PUBLISHED, 0).samples, theirs.samples)
    how = Procedure(WEIGHTED, 5, exponent=0.5, donors=7, networks=2)
    imputed = task.fill_in(plain, x, how, 0)
    observed = ~task.missing.expand_as(x)
    assert len(imputed.samples) == 5 and all(torch.equal(one[observed], x[observed]) for one in imputed.samples)


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
        for one in (row["published"]["put_back"], row["weighted"]["first"], row["published"]["reconstructions"]):
            assert one["ece"] <= one["rmsce"] + 1e-12 <= one["mce"] + 2e-12
        assert 0 < row["published"]["errors"]["missing"] < row["published"]["errors"]["all"]
        assert sum(row["weighted"]["first"]["bins"]["count"]) == 80
    assert results["references"]["classifier, complete image"]["accuracy"] > 0.5
    # a second run computes nothing anew
    monkeypatch.setattr(imputation.Bench, "_scores", None)
    monkeypatch.setattr(imputation.Bench, "_complete", None)
    imputation.STUDY.run("quick", tmp_path / "imputation", say=lambda _: None)
    assert json.loads((page.parent / "results.json").read_text()) == results
