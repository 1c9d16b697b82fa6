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

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, build, for_data, linearised
from marquis.tasks.ood import OodResult, evaluate, scores
from marquis.tasks.ranking import auroc
from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.laplacian_autoencoder.describe import label
from marquis_experiments.laplacian_autoencoder.figure9_ood import rows as ood_rows
from marquis_experiments.laplacian_autoencoder.figure9_ood import study as ood
from marquis_experiments.laplacian_autoencoder.figure9_ood.layers import by_layer
from marquis_experiments.laplacian_autoencoder.figure9_ood.page import PAPER, numbers, standard_error_of_auroc
from marquis_experiments.laplacian_autoencoder.figure9_ood.rows import (
    SHUFFLED,
    Job,
    Sizes,
    is_there,
    load_scores,
    one_row,
    rows_of_one_model,
    save_scores,
)
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, Place, Recipe, model


@pytest.fixture(scope="module")
def trained() -> tuple[LaplacianAutoencoder, torch.Tensor]:
    """A small float64 Laplacian autoencoder after a few steps, and data."""
    x = torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoder, decoder = for_data((1, 4, 4), 2, 0.1, seed=0)
    source = torch.Generator().manual_seed(1)
    options = {"num_data": 64, "generator": source, "posterior_temperature": 1.0}
    own = LaplacianAutoencoder(encoder.double(), decoder.double(), **options)
    optimiser = torch.optim.Adam(own.parameters(), 1e-2)
    for batch in x.split(16) * 5:
        optimiser.zero_grad()
        own.loss(batch, None).backward()
        optimiser.step()
    return own.eval(), x


def test_layers_one_by_one_against_draws_made_by_hand(trained):
    own, x = trained
    inside, outside = x[:20], 2 * x[20:40]
    rows = by_layer(own, inside, outside, 6, torch.Generator().manual_seed(3))
    said = {(row["what"], row["scale"]): row for row in rows}
    layers = [name.removesuffix(".weight") for name, _ in own.named_parameters() if name.endswith(".weight")]
    assert set(said) == {("all", 1.0), ("all", 0.1), ("all", 10.0), *((layer, 1.0) for layer in layers)}

    both, generator = torch.cat([inside, outside]), torch.Generator().manual_seed(3)
    draws = [own.online.draw(generator) for _ in range(6)]
    layer = "encoder." + layers[0].partition(".")[2]
    for key, moved in ((("all", 1.0), ""), ((layer, 1.0), layer + ".")):
        codes, outputs = [], []
        for draw in draws:
            place = own.draw_at({name: value for name, value in draw.items() if name.startswith(moved)})
            codes.append(place.encode(both).detach())
            outputs.append(place.decode(codes[-1]).mean.detach())
        for part, drawn in (("latent", codes), ("output", outputs)):
            variance = torch.stack(drawn).var(0).flatten(1).sum(1)
            assert said[key][f"{part}_inside"] == pytest.approx(float(variance[:20].mean()), rel=1e-9)
            assert said[key][f"{part}_outside"] == pytest.approx(float(variance[20:].mean()), rel=1e-9)
            assert said[key][f"{part}_auroc"] == pytest.approx(auroc(variance[:20], variance[20:]), abs=1e-12)


def test_small_deviations_of_single_layers_add_up(trained):
    """Two-sided: at the posterior's own scale the sum misses, since the network is not linear."""
    own, x = trained
    rows = by_layer(own, x[:20], x[20:40], 1000, torch.Generator().manual_seed(0))
    single = sum(row["output_inside"] for row in rows if row["what"] != "all")
    linear = next(row for row in rows if row["what"] == "all" and row["scale"] == 0.1)["output_inside"] / 0.01
    hot = next(row for row in rows if row["what"] == "all" and row["scale"] == 10.0)["output_inside"] / 100
    assert single == pytest.approx(linear, rel=0.15)
    assert abs(hot / linear - 1) > 0.3


def test_a_decoders_layer_cannot_move_the_code(trained):
    own, x = trained
    rows = by_layer(own, x[:10], x[10:20], 3, torch.Generator().manual_seed(0))
    for row in rows:
        if row["what"].startswith("decoder"):
            assert row["latent_inside"] == row["latent_outside"] == 0 and row["latent_auroc"] == 0.5
            assert row["output_inside"] > 0


def test_shuffled_images_keep_their_pixels():
    images = Images.load(TASK_RECIPES["quick"])
    found = ood_rows.ood_images(SHUFFLED, images, 30, None)
    x = images.test[:30].x
    assert found.shape == x.shape and not torch.equal(found, x)
    assert torch.equal(found.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


def test_histograms_hold_every_image():
    generator = torch.Generator().manual_seed(0)
    scores = [{"output_variance": torch.rand(n, generator=generator) ** 6} for n in (70, 50)]
    result = OodResult(scores[0], scores[1], scores[0], {"output_variance": {}}, 5)
    found = ood_rows._histogram(result, "output_variance")
    assert sum(found["inside"]) == 70 and sum(found["outside"]) == 50


def test_the_column_of_a_decoder_that_predicts_its_noise():
    table = {"output_variance": {"auroc": 0.1}, "total_variance": {"auroc": 0.9}}
    rows = [{"key": key, "failed": None, "table": table} for key in ("vae", "dropout")]
    assert numbers(rows, "vae", "output_variance") == [0.9] and numbers(rows, "dropout", "output_variance") == [0.1]
    assert set(PAPER) <= set(ood.MODELS)
    for size in ("quick", "default", "full"):
        for training in ood.STUDY.settings(size).trainings:
            assert len({label(key) for key in training.models}) == len(training.models)


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
    assert "layers" in main[ood.MODELS.index("online-sketched")]
    assert "output_variance" not in main[0]["table"] and "output_variance" in main[-1]["table"]
    for name in ("ood-digits-shuffled.png", "ood-digits-shuffled-histograms.png"):
        assert name in page.read_text() and (page.parent / name).stat().st_size > 5000
    stamps = {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
    ood.STUDY.run("quick", tmp_path / "ood", say=lambda _: None)
    assert stamps and all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_an_interrupted_run_reports_the_rows_that_it_has(tmp_path: Path, monkeypatch):
    tiny = Recipe("digits", 96, 1, "dense", 0.1, batch=32)
    training = ood.Training(tiny, (SHUFFLED,), 1, models=("online-sketched", "vae"))
    settings = {"trainings": (training,), "sizes": Sizes(20, 20, 3, 3, 3, 10)}

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
    sizes = Sizes(20, 20, 3, 3, 3, 10)
    groups = [[Job("main", tiny, key, 1, SHUFFLED)] for key in ("ae", "online-sketched")]
    two, one = (Place(tmp_path / name, tmp_path / f"{name}-networks", None) for name in ("two", "one"))
    said: list[str] = []
    run_in_processes(rows_of_one_model, [(two, sizes, group) for group in groups], said.append, workers=2)
    assert len(said) == 2 and {text.split(", ")[2] for text in said} == {"ae", "online-sketched"}
    for (job,) in groups:
        assert is_there(two, sizes, job) and not is_there(two, replace(sizes, rows=21), job)
        there, here = (one_row(place, sizes, job) for place in (two, one))
        for score, row in here["table"].items():
            for measure, value in row.items():
                assert there["table"][score][measure] == pytest.approx(value, abs=0.005), (score, measure)
        assert there["error"] == pytest.approx(here["error"], rel=1e-4)


def test_a_posterior_read_at_another_temperature_belongs_to_the_same_training(tmp_path):
    read, key = ood.READ_WARMER, ood.FACTORED
    tiny = Recipe("digits", 96, 2, "dense", 0.1, batch=32)
    (group,) = ood.jobs(ood.Training(tiny, (SHUFFLED,), 1, models=(key, read)))
    place, sizes = Place(tmp_path / "rows", tmp_path / "networks", None), Sizes(20, 20, 40)
    assert [job.key for job in group] == [key, read]
    own, warmer = (one_row(place, sizes, job) for job in group)
    assert len(list(place.shared.glob("*.safetensors"))) == 1
    assert own["error"] < warmer["error"]  # ten times the variance of the weights
    images = Images.load(tiny)
    trained = model(place.shared, key, 0, tiny, images).require()
    assert isinstance(trained, LaplacianAutoencoder) and trained.online is not None
    trained.online.settings = replace(trained.online.settings, posterior_temperature=1.0)
    by_hand = scores(trained, images.test[:20].x, 40, generator=torch.Generator().manual_seed(5), progress=False)
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
        found = scores(by_hand, images.test[:20].x, 40, generator=torch.Generator().manual_seed(0), progress=False)
        assert straight["error"] == pytest.approx(float(found["error"].mean()), rel=1e-4)  # the same draws
        assert straight["table"]["latent_variance"] != own["table"]["latent_variance"]
    assert Job("main", tiny, ood.JOINED_TANGENTS, 0, SHUFFLED).trained_as == ood.FACTORED
    plain = model(place.shared, "ae", 0, tiny, images).require()
    assert ood_rows.read_as(plain, "ae") is plain


def test_trainings_together_are_the_trainings_of_the_rows_beside(tmp_path):
    joined, (key, count) = ood.JOINED, ood_rows.TOGETHER[ood.JOINED]
    tiny = Recipe("digits", 96, 2, "dense", 0.1, batch=32)
    training = ood.Training(tiny, (SHUFFLED,), count, again=(key,), models=(key, joined))
    groups = ood.jobs(training)
    assert [[job.key for job in group] for group in groups] == [[key]] * count + [[joined]]
    place, sizes = Place(tmp_path / "rows", tmp_path / "networks", None), Sizes(20, 20, 4)
    row = one_row(place, sizes, groups[-1][0])
    assert len(list(place.shared.glob("*.safetensors"))) == count and row["draws"] == 4 * count
    singly = [one_row(place, sizes, group[0]) for group in groups[:-1]]
    assert row["error"] == pytest.approx(sum(one["error"] for one in singly) / count, rel=1e-6)
    assert row["error"] not in [one["error"] for one in singly]
    assert len(list(place.shared.glob("*.safetensors"))) == count  # nothing was trained twice


def test_trainings_together_are_judged_by_kept_scores_and_asked_again_only_without_them(tmp_path, monkeypatch):
    joined, (key, count) = ood.JOINED_TANGENTS, ood_rows.TOGETHER[ood.JOINED_TANGENTS]
    tiny = Recipe("digits", 96, 2, "dense", 0.1, batch=32)
    training = ood.Training(tiny, (SHUFFLED,), count, again=(key,), models=(key, joined))
    *single, (together,) = ood.jobs(training)
    place, sizes = Place(tmp_path / "rows", tmp_path / "networks", None), Sizes(20, 20, 4)
    for (job,) in single:
        one_row(place, sizes, job)
    asked = []

    def counting(*arguments, **options):
        asked.append(arguments)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(ood_rows.ood, "evaluate", counting)
    row = one_row(place, sizes, together)
    assert not asked
    (place.folder / f"{together.name}.json").unlink()
    (lost,) = single[1]
    (place.folder / f"{lost.name}.safetensors").write_bytes(b"cut short")
    again = one_row(place, sizes, together)
    assert len(asked) == 1 and again["table"] == row["table"]


def test_scores_are_kept_with_what_they_depend_on(tmp_path):
    plain = Autoencoder(*build((1, 8, 8), 2, width=0.25))
    x = torch.rand(12, 1, 8, 8)
    found = evaluate(plain, x[:4], x[4:8], x[8:], progress=False)
    save_scores(tmp_path / "new", "row", {"seed": 1, "layers": (2, 3)}, found)
    same = load_scores(tmp_path / "new", "row", {"seed": 1, "layers": (2, 3)})
    assert same is not None and same.table == found.table and same.samples == found.samples
    for part in ("in_distribution", "out_of_distribution", "train"):
        ours, theirs = getattr(same, part), getattr(found, part)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert load_scores(tmp_path / "new", "row", {"seed": 2, "layers": (2, 3)}) is None
    assert load_scores(tmp_path / "new", "other", {"seed": 1, "layers": (2, 3)}) is None


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
