"""The experiment `ood` at its quick size, and what it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marquis.autoencoders import LaplacianAutoencoder, linearised
from marquis.tasks.ood import OodResult, scores
from marquis.tasks.ranking import auroc
from marquis_experiments.common.metrics import standard_error_of_auroc
from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.laplacian_autoencoder.describe import label
from marquis_experiments.laplacian_autoencoder.figure9_ood import page as ood_page
from marquis_experiments.laplacian_autoencoder.figure9_ood import rows as ood_rows
from marquis_experiments.laplacian_autoencoder.figure9_ood import study as ood
from marquis_experiments.laplacian_autoencoder.figure9_ood.page import PANELS, PAPER, auroc_table
from marquis_experiments.laplacian_autoencoder.figure9_ood.rows import (
    SHUFFLED,
    Job,
    Sizes,
    is_there,
    one_row,
    rows_of_one_model,
)
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, Place, Recipe, model


def test_shuffled_images_keep_their_pixels():
    images = Images.load(TASK_RECIPES["quick"])
    result = ood_rows.ood_images(SHUFFLED, images, 30, None)
    x = images.test[:30].x
    assert result.shape == x.shape and not torch.equal(result, x)
    assert torch.equal(result.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


def test_histograms_hold_every_image():
    generator = torch.Generator().manual_seed(0)
    scores = [{"output_variance": torch.rand(n, generator=generator) ** 6} for n in (70, 50)]
    result = OodResult(scores[0], scores[1], scores[0], {"output_variance": {}}, 5)
    actual = ood_rows._histogram(result, "output_variance")
    assert sum(actual["inside"]) == 70 and sum(actual["outside"]) == 50


def test_output_variance_means_the_same_in_table_and_picture(monkeypatch, tmp_path):
    """The VAE's column used to have the total variance, its curve and legend the variance over samples."""
    table = {name: {"auroc": area} for name, area in (("output_variance", 0.1), ("total_variance", 0.9))}
    table["latent_variance"] = {"auroc": 0.3}
    other = {"failed": None, "table": table, "roc": {name: [[0, 1], [0, 1]] for name in PANELS}, "train_seconds": 1.0}
    rows = [{"key": key, "error": 1.0, **other} for key in ("vae", "dropout")]
    pictures = []
    monkeypatch.setattr(ood_page.Figure, "save", lambda figure, path: pictures.append(figure))
    ood_page.draw_curves(tmp_path / "x.png", rows)
    legends = [text.get_text() for text in pictures[0].axes[0].get_legend().get_texts()]
    assert pictures[0].axes[0].get_title() == ood_page.SCORES["output_variance"] and legends[0].endswith(": 0.10")
    header, _, *lines = [line.strip("| ").split(" | ") for line in auroc_table(rows, PAPER, 500).splitlines()]
    vae, dropout = (dict(zip(header, line, strict=True)) for line in lines)
    said = "0.100 ± 0.010", "0.900 ± 0.010"  # one training: the error is that over test images
    assert vae["output variance"] == said[0] and vae["total variance"] == f"{said[1]} (0.46)"  # the paper's: with noise
    assert dropout["output variance"] == f"{said[0]} (0.08)" and dropout["total variance"] == said[1]
    assert set(PAPER) <= set(ood.MODELS)
    for size in ("quick", "default", "full"):
        for training in ood.STUDY.settings(size).trainings:
            assert len({label(key) for key in training.models}) == len(training.models)


def test_a_model_is_only_better_by_two_standard_errors():
    images = ood_page.error_of([0.9], 500)
    assert images == standard_error_of_auroc(0.9, 500) and ood_page.error_of([0.8, 1.0], 500) == pytest.approx(0.1)
    assert ood_page.clearly_above([0.95], [0.9], 500) and not ood_page.clearly_above([0.92], [0.9], 500)
    assert not ood_page.clearly_above([0.85, 1.0], [0.85], 500)  # two trainings that differ
    assert not ood_page.clearly_above([0.9], [0.95], 500)


def test_standard_error_of_an_auroc_against_simulation():
    generator = torch.Generator().manual_seed(0)
    inside, outside = (shift + torch.randn(2000, 100, generator=generator) for shift in (0.0, 1.5))
    # Hanley and McNeil's formula is exact for exponential scores, and close for Gaussian ones.
    areas = torch.tensor([auroc(a, b) for a, b in zip(inside, outside, strict=True)])
    assert float(areas.std()) == pytest.approx(standard_error_of_auroc(float(areas.mean()), 100), rel=0.1)


def test_quick_run_resumes(tmp_path: Path):
    page = ood.STUDY.run("quick", tmp_path / "ood", say=lambda _: None)
    results = json.loads((page.parent / "results.json").read_text())
    main = [row for row in results["rows"] if row["part"] == "main"]
    assert [row["key"] for row in main] == list(ood.MODELS) and results["wanted"] == len(results["rows"])
    assert "output_variance" not in main[0]["table"] and "output_variance" in main[-1]["table"]
    for name in ("ood-digits-shuffled.png", "ood-digits-shuffled-histograms.png"):
        assert name in page.read_text() and (page.parent / name).stat().st_size > 5000
    stamps = {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
    ood.STUDY.run("quick", tmp_path / "ood", say=lambda _: None)
    assert stamps and all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_an_interrupted_run_reports_the_rows_that_it_has(tmp_path: Path, monkeypatch):
    tiny = Recipe("digits", 96, 1, "dense", 0.1, batch=32)
    training = ood.Training(tiny, (SHUFFLED,), 1, models=("online-sketched", "vae"))
    settings = {"trainings": (training,), "sizes": Sizes(20, 20, 3, 3)}

    def interrupt(place, sizes, job, *rest):
        if job.key == "vae":
            raise KeyboardInterrupt
        return one_row(place, sizes, job, *rest)

    monkeypatch.setattr(ood, "one_row", interrupt)
    page = ood.STUDY.run("quick", tmp_path / "ood", say=lambda _: None, settings=settings)
    results = json.loads((page.parent / "results.json").read_text())
    assert [row["key"] for row in results["rows"]] == ["online-sketched"] and results["wanted"] == 2
    assert "1 rows are there, 1 have not been run" in page.read_text()


def test_two_cores_compute_the_rows_that_one_would(tmp_path):
    tiny = Recipe("digits", 96, 1, "dense", 0.1, batch=32)
    sizes = Sizes(20, 20, 3, 3)
    groups = [[Job("main", tiny, key, 1, SHUFFLED)] for key in ("ae", "online-sketched")]
    two, one = (Place(tmp_path / name, tmp_path / f"{name}-networks", None) for name in ("two", "one"))
    lines: list[str] = []
    run_in_processes(rows_of_one_model, [(two, sizes, group) for group in groups], lines.append, workers=2)
    assert len(lines) == 2 and {text.split(", ")[2] for text in lines} == {"ae", "online-sketched"}
    for (job,) in groups:
        assert is_there(two, sizes, job) and not is_there(two, replace(sizes, rows=21), job)
        there, here = (one_row(place, sizes, job) for place in (two, one))
        for score, row in here["table"].items():
            for measure, value in row.items():
                assert there["table"][score][measure] == pytest.approx(value, abs=0.005), (score, measure)
        assert there["error"] == pytest.approx(here["error"], rel=1e-4)


def test_a_posterior_read_at_another_temperature_belongs_to_the_same_training(tmp_path):
    read, key = ood.AT_ONE, ood.FACTORED
    tiny = Recipe("digits", 96, 2, "dense", 0.1, batch=32)
    (group,) = ood.jobs(ood.Training(tiny, (SHUFFLED,), 1, models=(key, read)))
    place, sizes = Place(tmp_path / "rows", tmp_path / "networks", None), Sizes(20, 20, 200)
    assert [job.key for job in group] == [key, read]
    own, warmer = (one_row(place, sizes, job) for job in group)
    assert len(list(place.shared.glob("*.safetensors"))) == 1
    assert own["error"] < warmer["error"]  # ten times the variance of the weights
    images = Images.load(tiny)
    trained = model(place.shared, key, 0, tiny, images).require()
    assert isinstance(trained, LaplacianAutoencoder) and trained.online is not None
    trained.online.settings = replace(trained.online.settings, posterior_temperature=1.0)
    by_hand = scores(trained, images.test[:20].x, 200, generator=torch.Generator().manual_seed(5), progress=False)
    assert warmer["error"] == pytest.approx(float(by_hand["error"].mean()), rel=0.05)
    assert own["error"] < 0.9 * warmer["error"]


def test_linearised_rows_train_nothing_and_are_the_tangent_at_temperature_one(tmp_path):
    tiny = Recipe("digits", 96, 2, "dense", 0.1, batch=32)
    place, sizes, images = Place(tmp_path / "rows", tmp_path / "networks", None), Sizes(20, 20, 40), Images.load(tiny)
    for read, temperature in ((ood.TANGENT, 1.0), (ood.DEFAULT_TANGENT, 1.0), (ood.POSTHOC_TANGENT, None)):
        key = Job("main", tiny, read, 0, SHUFFLED).trained_as
        (group,) = ood.jobs(ood.Training(tiny, (SHUFFLED,), 1, models=(key, read)))
        before = len(list(place.shared.glob("*.safetensors")))
        own, straight = (one_row(place, sizes, job) for job in group)
        assert len(list(place.shared.glob("*.safetensors"))) <= before + 2  # post hoc: the plain one, too
        trained = model(place.shared, key, 0, tiny, images).require()
        by_hand = linearised(trained, temperature)
        result = scores(by_hand, images.test[:20].x, 40, generator=torch.Generator().manual_seed(0), progress=False)
        assert straight["error"] == pytest.approx(float(result["error"].mean()), rel=1e-4)  # the same draws
        assert straight["table"]["latent_variance"] != own["table"]["latent_variance"]
    plain = model(place.shared, "ae", 0, tiny, images).require()
    assert ood_rows.model_of_row(plain, "ae") is plain


def test_an_error_in_one_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        run_in_processes(divmod, [(1, 0), (1, 0)], workers=2)


def test_workers_end_with_whoever_started_them(tmp_path):
    """Also where that is killed without a chance to say goodbye."""
    (tmp_path / "beating.py").write_text(
        "import pathlib, time\n"
        "from marquis_experiments.common.parallel import run_in_processes as run_in_processes\n"
        "def alive(number):\n"
        "    for beat in range(6000):\n"
        "        pathlib.Path(f'worker-{number}').write_text(str(beat))\n"
        "        time.sleep(0.1)\n"
        "if __name__ == '__main__':\n"
        "    run_in_processes(alive, [(0,), (1,)], workers=2)\n"
    )
    started = subprocess.Popen([sys.executable, "beating.py"], cwd=tmp_path)

    def until(condition, tries):
        for _ in range(tries):
            if condition():
                return True
            time.sleep(0.2)
        return False

    files = [tmp_path / f"worker-{number}" for number in range(2)]
    try:
        assert until(lambda: all(file.exists() and file.read_text() for file in files), 1500)
    finally:
        started.kill()
        started.wait()

    def silent():
        before = [file.read_text() for file in files]
        time.sleep(2)
        return before == [file.read_text() for file in files]

    assert until(silent, 30)  # a minute; left alone they would go on for ten
