"""Reports of real small models: images and tables, codes of two and five numbers, with and without uncertainty."""

from __future__ import annotations

import math

import pytest
import torch
from report_models import TINY, finished_run, rows, trained, write_csv
from test_page import assert_self_contained

from marquis.errors import DataError, MarquisError
from marquis.report import write_comparison, write_report
from marquis.report.study import CODE, HELD_OUT, OUTPUT, study
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc

SHAPE = (1, 4, 4)


def pictures(path):
    return sorted(result.stem for result in path.with_suffix("").iterdir())


def test_numbers_are_those_of_the_protocol():
    model, x = trained("laplacian")[0], rows(SHAPE, 30, seed=5)
    other = rows(SHAPE, 20, seed=6) * 3
    result = study(model, x, torch.arange(4), out_of_distribution={"other": other}, effort=TINY, seed=3)
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(3)))
    prediction, outside = (model.reconstruct(d, 4, generator=torch.Generator().manual_seed(seed)) for d in (x, other))
    variance = [part.variance.double().flatten(1).mean(1) for part in (prediction, outside)]
    expected = {
        "log-likelihood": prediction.log_prob.mean(),
        "squared error": (prediction.mean - x).square().flatten(1).sum(1).mean(),
        "90% coverage": coverage(prediction.mean, prediction.total_variance, x, [0.9])[0.9],
        OUTPUT: prediction.variance.mean(),
        CODE: prediction.latent.variance.mean(),
        f"AUROC of other by {OUTPUT}": auroc(*variance),
        "effective temperature": model.effective_temperature,
    }
    for name, value in expected.items():
        assert result.numbers[name] == pytest.approx(float(value), rel=1e-5), name
    assert result.samples == 4
    torch.testing.assert_close(result.examples.mean, prediction.mean[:4])
    torch.testing.assert_close(result.variances[CODE][HELD_OUT], prediction.latent.variance.double().mean(1))
    assert len(result.variances[OUTPUT]["other"]) == 20


def test_what_means_nothing_is_not_a_number():
    x = rows(SHAPE, 20)
    plain = study(trained("plain")[0], x, torch.arange(2), out_of_distribution={"other": x}, effort=TINY).numbers
    assert plain[OUTPUT] == plain[CODE] == 0
    assert math.isnan(plain[f"AUROC of other by {OUTPUT}"])
    assert plain["AUROC of other by squared error"] == 0.5
    pixels = study(trained("laplacian", likelihood="bernoulli")[0], x, torch.arange(2), effort=TINY).numbers
    assert math.isnan(pixels["90% coverage"])  # zeros and ones have no interval
    assert pixels[OUTPUT] > 0


def test_models_side_by_side(tmp_path):
    models = {"<b>Laplacian</b>": trained("laplacian"), "plain": trained("plain"), "VAE": trained("variational")}
    x = rows(SHAPE, 60, seed=5)
    result = write_comparison(
        {name: model for name, (model, _) in models.items()},
        x,
        torch.arange(60) % 3,
        tmp_path / "new" / "folder",
        {name: history for name, (_, history) in models.items()},
        classes=["<script>alert(1)</script>", "$x^{", "_hidden"],
        out_of_distribution={"brighter & <i>": 2 * x},
        effort=TINY,
    )
    page = assert_self_contained(result.path.read_text(encoding="utf-8"))
    assert pictures(result.path) == ["latent", "posterior", "reconstructions", "training", "variances"]
    assert "<b>Laplacian</b>" in page.text and "brighter & <i>" in page.text
    assert "plain: a single network, without variance" in page.text
    assert "on 40 held-out samples" in page.text  # no more than the effort allows
    assert set(result.table) == set(models)
    assert all(math.isfinite(row["log-likelihood"]) for row in result.table.values())


def test_models_without_uncertainty_history_or_labels(tmp_path):
    result = write_comparison({"plain": trained("plain", (5,))[0]}, rows((5,)), None, tmp_path, effort=TINY)
    assert_self_contained(result.path.read_text(encoding="utf-8"))
    assert pictures(result.path) == ["latent", "reconstructions"]


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 6)])
def test_other_shapes(shape, tmp_path):
    result = write_comparison({"post-hoc": trained("posthoc", shape)[0]}, rows(shape), None, tmp_path, effort=TINY)
    assert_self_contained(result.path.read_text(encoding="utf-8"))
    assert pictures(result.path) == ["latent", "posterior", "reconstructions", "variances"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": {}}, "no models"),
        ({"labels": torch.zeros(3).long()}, "40 data but 3 labels"),
        ({"labels": torch.zeros(40, 2).long()}, r"classes are one integer per sample"),
        ({"history": {"other": []}}, "not one of the models"),
        ({"data": torch.zeros(0, *SHAPE)}, "at least one"),
        ({"outside": {"odd": torch.zeros(4, 7)}}, "same shape"),
        ({"models": {"module": torch.nn.Linear(2, 2)}}, "no method"),
    ],
)
def test_wrong_input_is_refused_and_nothing_written(change, message, tmp_path):
    passed = {"models": {"plain": trained("plain")[0]}, "data": rows(SHAPE), "labels": None, "out": tmp_path / "out"}
    with pytest.raises(MarquisError, match=message):
        write_comparison(**{**passed, **change}, effort=TINY)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "latent"), [("lae", 2), ("ae", 5)])
def test_report_of_a_run_on_images(kind, latent, tmp_path):
    run = finished_run(tmp_path / "run", model=kind, data="digits", latent=latent, limit=120)
    path = write_report(run.path, effort=TINY)
    assert path == run.path / "report.html"
    page = assert_self_contained(path.read_text(encoding="utf-8"))
    expected = ["latent", "reconstructions", "training"]
    assert pictures(path) == sorted([*expected, "posterior", "variances"] if kind == "lae" else expected)
    assert ("first two principal axes" in page.text) == (latent == 5)
    assert f"{kind} on digits" in page.text and "40 test rows" in page.text


def test_report_of_a_run_on_a_table_is_in_its_units(tmp_path):
    csv = write_csv(tmp_path / "a & <b>.csv")
    run = finished_run(tmp_path / "run", model="lae-posthoc", data=str(csv))
    (run.path / "summary.json").write_text('{"<i>note</i>": 1.5}')
    page = assert_self_contained(write_report(run.path, effort=TINY).read_text(encoding="utf-8"))
    assert "lae-posthoc on a & <b>" in page.text and "<i>note</i>" in page.text
    assert "in the units of the data" in page.text and "mean 0 and standard deviation 1" in page.text


def test_report_of_a_run_that_is_not_over_or_not_there(tmp_path):
    run = finished_run(tmp_path / "run", model="ae", data="digits", limit=60)
    (run.path / "summary.json").write_text("not JSON")
    write_report(run.path, effort=TINY)  # a damaged summary is left out
    run.model_path.unlink()
    with pytest.raises(DataError, match="no finished model"):
        write_report(run.path)
    with pytest.raises(DataError, match="not a run"):
        write_report(tmp_path)
