"""The experiments `fashion-classification` and `evidence-training` at their quick size, and what they are made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score, roc_curve
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error

from marquis.errors import DataError, NumericalError
from marquis.laplace import Laplace
from marquis.predictive import predict
from marquis.priors import Prior
from marquis_experiments.common import images
from marquis_experiments.common.images import Labelled, fitted_temperature, load_images
from marquis_experiments.common.networks import image_cnn, image_mlp
from marquis_experiments.common.training import Shuffled
from marquis_experiments.linearised_laplace import classifiers, evidence_training
from marquis_experiments.linearised_laplace.classifiers import Recipe, train_map
from marquis_experiments.linearised_laplace.fashion_classification import scores as fashion_scores
from marquis_experiments.linearised_laplace.fashion_classification import study as fashion_classification
from marquis_experiments.linearised_laplace.fashion_classification.page import LABELS
from marquis_experiments.linearised_laplace.fashion_classification.scores import linked, scored, with_multiple


def random_probs(n: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return (scale * torch.randn(n, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(1)


def test_scores_against_scikit_learn_and_torchmetrics():
    inside, outside = random_probs(397, 0), random_probs(300, 1, 2.0)  # no k/397 is a rate of the stored curve
    labels = torch.randint(10, (397,), generator=torch.Generator().manual_seed(2))
    result = scored(inside, outside, labels)
    outlier = np.r_[np.zeros(397), np.ones(300)]
    sure = torch.cat([inside, outside]).max(1).values.numpy()
    assert result["auroc"] == pytest.approx(roc_auc_score(outlier, -sure), abs=1e-12)
    entropies = torch.distributions.Categorical(probs=torch.cat([inside, outside])).entropy().numpy()
    assert result["auroc_entropy"] == pytest.approx(roc_auc_score(outlier, entropies), abs=1e-12)
    assert result["nll"] == pytest.approx(log_loss(labels.numpy(), inside.numpy(), labels=range(10)), abs=1e-12)
    theirs = multiclass_calibration_error(inside, labels, num_classes=10, n_bins=15, norm="l1")
    assert result["ece"] == pytest.approx(float(theirs), abs=1e-6)
    false, true, _ = roc_curve(outlier, -sure, drop_intermediate=False)
    at = np.searchsorted(false, np.linspace(0, 1, 101), side="right") - 1
    assert np.allclose(result["roc"], true[at])
    losses = -inside[torch.arange(397), labels].log()
    assert result["nll_error"] == pytest.approx(float(losses.std()) / 397**0.5)
    assert sum(result["histogram_outside"]) == 300 and sum(count for *_, count in result["reliability"]) == 397


def test_temperature_is_where_the_slope_of_the_nll_is_zero():
    generator = torch.Generator().manual_seed(0)
    outputs = 4 * torch.randn(300, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((outputs / 2.5).softmax(1), 1, generator=generator).squeeze(1)
    result = fitted_temperature(outputs, labels)
    log_t = torch.tensor(math.log(result), dtype=torch.float64, requires_grad=True)
    nn.functional.cross_entropy(outputs / log_t.exp(), labels).backward()
    assert abs(float(log_t.grad)) < 1e-10  # pyright: ignore[reportArgumentType]
    assert 1.8 < result < 3.5
    assert fitted_temperature(3 * outputs, labels) == pytest.approx(3 * result, rel=1e-9)
    assert fitted_temperature(outputs, outputs.argmax(1)) == pytest.approx(0.01)  # never wrong: as sure as allowed


@pytest.fixture(scope="module")
def small_posterior():
    torch.manual_seed(0)
    network = image_cnn((3, 4, 5), (6, 7), seed=1).double()
    x = torch.randn(12, 1, 28, 28, dtype=torch.float64)
    y = torch.arange(12) % 10
    prior = Prior(2.0, groups="layer")
    laplace = Laplace(network, "categorical", "kronecker", prior=prior).fit([(x, y)], progress=False)
    laplace.tune()
    return network, laplace, x


def test_links_are_those_of_predict(small_posterior):
    network, laplace, x = small_posterior
    predicted = predict(laplace.posterior, network, x[:5], laplace.likelihood)
    mean, covariances = predicted.mean, [predicted.covariance]
    result = linked(mean, covariances[0], 40)
    assert torch.allclose(result["probit"], laplace.predict(x[:5], link="probit").probs, rtol=1e-10)
    # The Monte-Carlo average by hand, for one image, from the same standard normal numbers.
    values, vectors = torch.linalg.eigh(covariances[0][3])
    z = torch.randn(40, 10, generator=torch.Generator().manual_seed(0)).double()
    draws = torch.stack([mean[3] + vectors @ (values.clamp(min=0).sqrt() * each) for each in z])
    assert torch.allclose(result["mc"][3], draws.softmax(1).mean(0), rtol=1e-10)


def test_a_multiple_of_the_prior_adds_to_the_precision(small_posterior):
    _, laplace, _ = small_posterior
    plain, multiplied = laplace.posterior.precision.diagonal(), with_multiple(laplace, 5.0).precision.diagonal()
    own = laplace.problem().grouped_prior
    assert torch.allclose(multiplied - plain, 4 * own.precision[own.index].to(plain), rtol=1e-8)
    assert with_multiple(laplace, 1.0) is laplace.posterior


def test_training_reaches_the_mode_of_the_penalised_loss():
    """A convex case: with no hidden layer the gradient of `loss + precision/2N |theta|^2` vanishes."""
    generator = torch.Generator().manual_seed(0)
    data = Labelled(torch.randn(40, 1, 28, 28, generator=generator), torch.arange(40) % 10)
    network, precision = image_mlp(()), 20.0
    train_map(network, data, precision, Recipe(400, 40, 0.02), 0)
    assert not network.training
    loss = nn.functional.cross_entropy(network(data.x), data.y)
    loss = loss + 0.5 * precision / 40 * sum(weight.square().sum() for weight in network.parameters())
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-4
    again = image_mlp(())
    train_map(again, data, precision, Recipe(400, 40, 0.02), 0)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


def test_training_that_diverges_says_so():
    data = Labelled(torch.full((4, 1, 28, 28), float("inf")), torch.arange(4))
    with pytest.raises(NumericalError, match="epoch 1"):
        train_map(image_mlp((3,)), data, 1.0, Recipe(1, 2), 0)


def test_learning_rate_rises_then_falls_to_nothing():
    factors = [Recipe(4).factor(step / 10) for step in range(41)]
    assert factors[0] == pytest.approx(0.2) and max(factors) > 0.85 and factors[-1] == pytest.approx(0, abs=1e-12)
    peak = factors.index(max(factors))
    assert factors[:peak] == sorted(factors[:peak]) and factors[peak:] == sorted(factors[peak:], reverse=True)


def test_every_pass_has_every_row_once_in_another_order():
    data = Labelled(torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10))
    batches = Shuffled(data.tensors, 4, seed=3)
    first, second = ([y for _, y in batches] for _ in range(2))
    assert [len(y) for y in first] == [4, 4, 2] and len(batches) == 3
    assert torch.cat(first).sort().values.tolist() == list(range(10))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()
    assert torch.cat([y for _, y in Shuffled(data.tensors, 4, seed=3)]).tolist() == torch.cat(first).tolist()


def test_flipped_images_are_mirrored_and_nothing_else():
    x = torch.arange(12.0).reshape(3, 1, 2, 2)
    data = Labelled(x, torch.arange(3))
    seen: dict[int, set[tuple[float, ...]]] = {y: set() for y in range(3)}
    whole = Shuffled(data.tensors, 3, 0, flip=True)
    for _ in range(20):
        for batch, labels in whole:
            for image, label in zip(batch, labels.tolist(), strict=True):
                seen[label].add(tuple(image.flatten().tolist()))
    for label in range(3):
        assert seen[label] == {tuple(x[label].flatten().tolist()), tuple(x[label].flip(2).flatten().tolist())}
    assert "flip" not in Recipe(2).described() and Recipe(2, flip=True).described()["flip"]


def test_rows_of_training_and_validation_are_apart_and_standardised():
    with pytest.raises(DataError, match="none are left for validation"):
        load_images("digits", 1438, 10, 10)
    data = load_images("digits", 100, 20, 30)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [100, 20, 30]
    assert data.train.x.shape == (100, 1, 28, 28)
    assert float(data.train.x.mean()) == pytest.approx(0, abs=0.05)
    assert torch.allclose(data.standardised(data.test.x * data.spread + data.centre), data.test.x, atol=1e-5)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Both experiments at their quick size on scikit-learn's digits, which are always there."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        real = images.load

        def only_digits(name, *given, **options):
            if name != "digits":
                raise DataError(f"{name} is not here")
            return real(name, *given, **options)

        patch.setattr(images, "load", only_digits)
        patch.setattr(fashion_scores, "load", only_digits)
        lines: list[str] = []
        pages = {
            "fashion": fashion_classification.STUDY.run("quick", out / "fashion-classification", None, lines.append),
            "evidence": evidence_training.STUDY.run("quick", out / "evidence-training", None, lines.append),
        }
        first = len(lines)
        weights = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
        fashion_classification.STUDY.run("quick", out / "fashion-classification", None, lines.append)
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == weights, "trained again"
        assert not any("posterior fitted" in line for line in lines[first:]), "fitted again"
    return out, pages


def test_quick_fashion_classification(quick):
    out, pages = quick
    results = json.loads((out / "fashion-classification" / "quick" / "results.json").read_text())
    assert set(results["rows"]) == set(LABELS)
    for row in results["rows"].values():
        assert 0 <= row["accuracy"] <= 1 and row["nll"] > 0 and 0 <= row["auroc"] <= 1
    assert results["rows"]["temperature"]["accuracy"] == results["rows"]["map"]["accuracy"]
    assert (results["data"], results["outside_data"]) == ("digits", "negatives")
    assert (pages["fashion"].parent / "fashion-classification.png").stat().st_size > 10_000


def test_quick_evidence_training_shares_the_network(quick):
    out, _ = quick
    results = json.loads((out / "evidence-training" / "quick" / "results.json").read_text())
    studies = {study["name"]: study for study in results["studies"]}
    assert list(studies) == results["planned"]
    other = json.loads((out / "fashion-classification" / "quick" / "results.json").read_text())
    study = studies["fashion-mnist-cnn"]
    assert study["rows"]["validated"]["nll"] == other["rows"]["map"]["nll"]
    assert study["rows"]["evidence"]["nll"] == other["rows"]["evidence-map"]["nll"]
    assert study["rows"]["ensemble"]["nll"] == other["rows"]["ensemble"]["nll"]
    assert len(list((out / "shared-networks").glob("digits-cnn-*-s0-*.safetensors"))) == 2  # the grid, once
    assert all(epoch["log_evidence"] is not None for epoch in study["history"]["epochs"])
    # Every method again with the second seed; "early" only where updates begin later, which no quick case does.
    trainings = [(row["name"], row["method"], row["seed"]) for row in results["seeds"]]
    assert trainings == [(name, method, 1) for name in studies for method in ("validated", "evidence")]
    second = {row["method"]: row["test"]["nll"] for row in results["seeds"] if row["name"] == "fashion-mnist-cnn"}
    assert all(second[method] != study["rows"][method]["nll"] for method in second)


def test_updates_from_the_first_epoch_are_a_row_where_they_begin_later(tmp_path):
    case = replace(classifiers.cases("quick")["mnist-mlp"], burn_in=2)
    data = load_images("digits", 60, 20, 20)
    run = evidence_training.STUDY.start("quick", tmp_path / "evidence-training", say=lambda _: None)
    rows = {m: evidence_training.one_training(run, case, data, 1.0, m, 1) for m in ("validated", "evidence", "early")}
    assert [rows[m]["study"]["burn_in"] for m in rows] == [2, 2, 1] and "precisions" not in rows["validated"]
    assert rows["early"]["test"]["nll"] != rows["evidence"]["test"]["nll"]
    late, early = (
        json.loads((run.shared / f"mnist-mlp-evidence-{m}-s1-history.json").read_text()) for m in ("evidence", "early")
    )
    assert late["result"]["epochs"][0]["log_evidence"] is None is not early["result"]["epochs"][0]["log_evidence"]


def test_differences_between_methods_are_paired_by_seed():
    first = {"name": "mnist-cnn", "rows": {"validated": {"nll": 0.3}, "evidence": {"nll": 0.2}}}
    more = [("evidence", 1, 0.5), ("validated", 2, 0.4), ("evidence", 2, 0.1), ("early", 0, 0.2)]
    seeds = [{"name": "mnist-cnn", "method": m, "seed": s, "test": {"nll": nll}} for m, s, nll in more]
    rows = evidence_training.by_seed(first, [*seeds, {**seeds[0], "name": "mnist-mlp"}])
    assert evidence_training.paired(rows, "evidence") == pytest.approx([0.1, 0.3])
    assert evidence_training.paired(rows, "early") == pytest.approx([0.1])


def test_the_network_with_evidence_is_trained_once_even_if_its_history_is_lost(tmp_path):
    study = classifiers.cases("quick")["mnist-mlp"]
    data = load_images("digits", 60, 20, 20)
    network, history = classifiers.with_evidence(tmp_path, data, study)
    (path,) = tmp_path.glob("*-history.json")
    path.unlink()
    again, same = classifiers.with_evidence(tmp_path, data, study)
    assert same == history and len(history["epochs"]) == study.recipe.epochs
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert history["epoch"] == max(
        range(1, len(history["epochs"]) + 1), key=lambda k: history["epochs"][k - 1]["log_evidence"]
    )
