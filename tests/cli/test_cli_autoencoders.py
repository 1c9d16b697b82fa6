"""`marquis train` and the commands that read what it leaves: end to end on real data, and all that can be wrong."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from helpers.commands import ONE_EPOCH, SMALL, exit_code, one_line, write_config
from marquis import report
from marquis.autoencoders import ModelSpec, linearised
from marquis.autoencoders.epoch_table import read_rows
from marquis.data import load
from marquis.errors import DataError
from marquis.run import Run, Scaling, TrainingSettings, training_data
from marquis.run.settings import steps_between
from marquis.tasks import ood
from marquis.tasks.batches import SameSeed


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Finished runs that the tests copy or read: a Laplacian autoencoder on digits, and one on a table with holes."""
    folder = tmp_path_factory.mktemp("kept")
    wine = load_wine(as_frame=True).frame.drop(columns="target").iloc[:, :6]  # type: ignore[union-attr]
    wine.columns = list("abcdef")
    wine["constant"] = 7.0
    incomplete = wine.mask(np.random.RandomState(0).rand(*wine.shape) < 0.05)
    incomplete["constant"] = 7.0
    wine.to_csv(folder / "complete.csv", index=False)
    incomplete.to_csv(folder / "wine.csv", index=False)
    commands = [
        ("train", "lae", "--data", "digits", "--out", folder / "digits", *SMALL),
        ("train", "lae", "--data", folder / "wine.csv", "--out", folder / "wine", "--latent", "1", *SMALL),
    ]
    for text in commands:
        assert exit_code(*text) == 0
    return folder


@pytest.fixture
def digits(kept, tmp_path):
    return Path(shutil.copytree(kept / "digits", tmp_path / "digits-run"))


@pytest.fixture
def wine(kept, tmp_path):
    return Path(shutil.copytree(kept / "wine", tmp_path / "wine-run"))


# ---- train


def test_what_a_run_leaves(digits):
    names = {path.name for path in digits.iterdir()} - {"tensorboard", "report", "report.html"}
    expected = {"config.json", "metrics.csv", "checkpoints", "model.safetensors", "summary.json"}
    assert expected <= names and not [name for name in names if name.startswith(".")]
    summary = json.loads((digits / "summary.json").read_text())
    assert summary["training rows"] == 108 and summary["epochs"] == 2 and summary["held-out rows"] == 359
    assert len(read_rows(digits / "metrics.csv")) == 2
    run = Run.open(digits)
    assert run.settings.model == "lae" and run.spec.shape == (1, 8, 8) and run.spec.options == {}
    assert run.model().online.num_data == 108  # type: ignore[union-attr]


def test_a_run_that_is_there_is_kept_resumed_or_replaced(marquis, digits):
    before = (digits / "model.safetensors").read_bytes()
    (digits / "notes.txt").write_text("mine")
    one_line(marquis("train", "lae", "--data", "digits", "--out", digits), "--resume", "--force")
    one_line(marquis("train", "lae", "--out", digits, "--resume", "--lr", "0.5"), "--lr 0.5", "0.001")
    code, out, _ = marquis("train", "lae", "--out", digits, "--resume", "--no-report")
    assert code == 0 and "validation loss" in out and (digits / "model.safetensors").read_bytes() == before
    code, _, _ = marquis("train", "lae", "--out", digits, "--resume", "--epochs", "3", "--no-report")
    assert code == 0 and len(read_rows(digits / "metrics.csv")) == 3
    code, _, _ = marquis("train", "ae", "--data", "digits", "--out", digits, "--force", *SMALL)
    assert code == 0 and Run.open(digits).settings.model == "ae"
    assert len(read_rows(digits / "metrics.csv")) == 2 and (digits / "notes.txt").read_text() == "mine"


def test_epochs_in_two_sessions_are_epochs_in_one(marquis, digits, tmp_path):
    text = ["3" if word == "2" else word for word in SMALL]
    assert marquis("train", "lae", "--data", "digits", "--out", tmp_path / "whole", *text)[0] == 0
    assert marquis("train", "lae", "--out", digits, "--resume", "--epochs", "3", "--no-report")[0] == 0
    assert (digits / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_the_report_is_the_last_thing(marquis, kept, digits, monkeypatch):
    monkeypatch.setattr(report, "write_report", lambda path: path / "page")
    code, out, _ = marquis("train", "lae", "--out", digits, "--resume")
    assert code == 0 and out.rstrip().endswith(f"report: {digits / 'page'}")

    def fails(path):
        raise DataError("no pictures today")

    monkeypatch.setattr(report, "write_report", fails)
    code, _, err = marquis("train", "lae", "--out", digits, "--resume")
    assert code == 0 and err.splitlines()[-1] == "no report: no pictures today"


def test_every_other_kind_trains(marquis):
    for kind in ("lae-posthoc", "ae-variance", "vae", "dropout", "ensemble", "bbb"):
        code, out, err = marquis("train", kind, "--data", "digits", *ONE_EPOCH, "--limit", "40")
        assert code == 0, err
        assert f"runs/{kind}-digits" in out.replace("\n", "")
    assert marquis("sample", "runs/vae-digits", "-n", "3", "--out", "v.png")[0] == 0


def test_presets_likelihoods_and_architectures_arrive(marquis):
    options = ("--preset", "paper-code", "--architecture", "dense", "--likelihood", "bernoulli", "--lr", "0.002")
    assert marquis("train", "lae", "--data", "digits", "--out", "r", *options, *ONE_EPOCH)[0] == 0
    run = Run.open("r")
    assert run.spec.options == {"preset": "paper-code"} and run.spec.likelihood == "bernoulli" and run.spec.lr == 0.002
    assert run.model().online.settings.factor == 0.5  # type: ignore[union-attr]


def test_structure_and_temperature_arrive(marquis):
    text = [*ONE_EPOCH, "--structure", "kronecker", "--temperature", "0.1"]
    for kind in ("lae", "lae-posthoc"):
        more = ("--posterior-temperature", "0.3") if kind == "lae-posthoc" else ()
        code, _, err = marquis("train", kind, "--data", "digits", "--out", kind, *text, "--limit", "40", *more)
        assert code == 0, err
        assert ("--posterior-temperature" in err) == (kind == "lae")  # the deprecated name, where it is one
    online = Run.open("lae").model().online  # type: ignore[union-attr]
    assert (online.structure, online.settings.posterior_temperature, online.settings.every) == ("kronecker", 0.1, 1)
    laplace = Run.open("lae-posthoc").model().laplace  # type: ignore[union-attr]
    assert (laplace.temperature, laplace.posterior_temperature) == (0.1, 0.3)
    assert type(Run.open("lae-posthoc").model().posterior.precision).__name__ == "Kronecker"  # type: ignore[union-attr]


def test_data_are_loaded_and_the_model_is_built_once(marquis, monkeypatch):
    calls: list[str] = []

    def counting(name, function):
        def call(*args, **options):
            calls.append(f"{name} {args[1]}" if name == "load" else name)
            return function(*args, **options)

        return call

    monkeypatch.setattr(training_data, "load", counting("load", training_data.load))
    monkeypatch.setattr(ModelSpec, "build", counting("build", ModelSpec.build))
    assert marquis("train", "lae", "--data", "digits", "--out", "once", *ONE_EPOCH)[0] == 0
    assert sorted(calls) == ["build", "load test", "load train"]
    calls.clear()
    assert marquis("train", "lae", "--out", "once", "--epochs", "2", "--no-report", "--resume")[0] == 0
    assert sorted(calls) == ["build", "load test", "load train"]


def test_short_epochs_have_curvature_more_often():
    result = {rows: steps_between(rows, 100) for rows in (1, 999, 1999, 2000, 19_999, 20_000, 10**6)}
    assert list(result.values()) == [1, 1, 1, 2, 19, 20, 20]
    kronecker = TrainingSettings("lae", "x", batch_size=100, options={"structure": "kronecker"})
    assert kronecker.model_options(10_000) == {"structure": "kronecker", "every": 10}
    for other in (TrainingSettings("lae", "x"), TrainingSettings("lae", "x", options={"structure": "diagonal"})):
        assert "every" not in other.model_options(20_000)
    posthoc = TrainingSettings("lae-posthoc", "x", options={"structure": "kronecker"})
    assert "every" not in posthoc.model_options(20_000)


def test_a_run_from_before_structure_and_temperature_opens(marquis, digits):
    path = digits / "config.json"
    held = json.loads(path.read_text())
    assert held["settings"].pop("options") == {}
    write_config(digits, held)
    assert Run.open(digits).settings.options == {}
    assert marquis("evaluate", digits, "--samples", "3")[0] == 0


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("lea", "--data", "digits"), ("lea", "Did you mean 'lae'")),
        (("lae",), ("--data",)),
        (("lae", "--data", "digit"), ("digit",)),
        (("lae", "--data", "nowhere.csv"), ("nowhere.csv", "does not exist")),
        (("lae", "--data", "digits", "--likelihood", "poisson"), ("poisson", "bernoulli")),
        (("lae", "--data", "digits", "--architecture", "big"), ("big", "convolutional")),
        (("lae", "--data", "digits", "--architecture", "mnist-dense"), ("mnist-dense", "[1, 8, 8]")),
        (("lae", "--data", "digits", "--latent", "0"), ("latent", "at least 1")),
        (("lae", "--data", "digits", "--width", "-1"), ("width",)),
        (("lae", "--data", "digits", "--epochs", "0"), ("epochs",)),
        (("lae", "--data", "digits", "--lr", "0"), ("lr",)),
        (("lae", "--data", "digits", "--batch-size", "0"), ("batch-size",)),
        (("lae", "--data", "digits", "--limit", "0"), ("limit",)),
        (("lae", "--data", "digits", "--seed", "-1"), ("seed",)),
        (("lae", "--data", "digits", "--preset", "papers"), ("papers", "paper-code")),
        (("vae", "--data", "digits", "--preset", "paper"), ("--preset", "lae")),
        (("vae", "--data", "digits", "--structure", "kronecker"), ("--structure", "lae-posthoc")),
        (("ae", "--data", "digits", "--temperature", "0.1"), ("--temperature", "lae-posthoc")),
        (("lae", "--data", "digits", "--structure", "lowrank"), ("lowrank", "kronecker")),
        (("lae", "--data", "digits", "--posterior-temperature", "-1"), ("temperature", "-1")),
        (("lae", "--data", "digits", "--target", "a"), ("target", "does not apply")),
        (("lae", "--out", "nothing", "--resume"), ("nothing", "not a run")),
    ],
)
def test_bad_options_are_one_line(marquis, words, texts):
    one_line(marquis("train", *words), *texts)
    assert not Path("runs").exists() and not Path("nothing").exists()


def test_folders_that_are_not_runs_are_left_alone(marquis):
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    for extra in ((), ("--force",)):
        one_line(marquis("train", "ae", "--data", "digits", "--out", "full", *extra), "not a run")
    one_line(marquis("train", "ae", "--data", "digits", "--out", "full/mine.txt"), "is a file")
    assert Path("full/mine.txt").read_text() == "mine"
    code, _, err = marquis("train", "ae", "--data", "digits", "--out", "x", "--resume", "--force")
    assert code == 2 and "choose one" in err


def test_a_damaged_configuration_is_one_line(marquis, digits):
    path = digits / "config.json"
    held = json.loads(path.read_text())
    for text in ("{", "[]", json.dumps({**held, "version": 9}), json.dumps({**held, "settings": {}})):
        path.write_text(text)
        one_line(marquis("train", "lae", "--out", digits, "--resume"), "config")


def test_ctrl_c_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "marquis", "train", "ae", "--data", "digits", "--out", "r", "--epochs", "100000"]
    command += ["--patience", "100000", "--width", "0.125", "--limit", "64"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job has it switched off
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "r/checkpoints/last.ckpt").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "resume with: marquis train ae --out r --resume" in err and "Traceback" not in err
    assert len(read_rows(tmp_path / "r/metrics.csv")) >= 1


# ---- evaluate, sample, embed, score, impute: images


def test_evaluate(marquis, digits, tmp_path):
    code, out, _ = marquis("evaluate", digits, "--samples", "3")
    assert code == 0 and "held-out log-likelihood" in out
    one_line(marquis("evaluate", digits, "--samples", "3"), "--force")
    np.savez(tmp_path / "noise.npz", x=np.random.RandomState(0).rand(40, 1, 8, 8).astype(np.float32))
    code, out, _ = marquis("evaluate", digits, "--ood", tmp_path / "noise.npz", "--samples", "3")
    assert code == 0 and "AUROC" in out and "40 in-distribution, 40 OOD" in out
    table = json.loads((digits / "ood-noise.json").read_text())["table"]
    assert table["nll"]["auroc"] > 0.95  # noise is not a digit, and the likelihood says so after two epochs
    assert Image.open(digits / "ood-noise.png").size[0] > 1000
    np.savez(tmp_path / "large.npz", x=np.zeros((4, 1, 9, 9), np.float32))
    one_line(marquis("evaluate", digits, "--ood", tmp_path / "large.npz"), "9x9", "8x8")
    one_line(marquis("evaluate", digits, "--ood", "fashion-mnits"), "fashion-mnits")
    one_line(marquis("evaluate", tmp_path), "not a run")


def test_sample(marquis, digits):
    assert marquis("sample", digits, "-n", "5", "--out", "s.npz")[0] == 0
    first = np.load("s.npz")["x"]
    assert first.shape == (5, 1, 8, 8) and np.isfinite(first).all()
    one_line(marquis("sample", digits, "-n", "5", "--out", "s.npz"), "--force")
    assert marquis("sample", digits, "-n", "5", "--out", "s.npz", "--force")[0] == 0
    assert np.array_equal(np.load("s.npz")["x"], first)
    assert marquis("sample", digits, "-n", "5", "--out", "s.png")[0] == 0
    assert Image.open("s.png").size == (3 * 58, 2 * 58)
    one_line(marquis("sample", digits, "--out", "s.csv"), ".png", ".npz")
    one_line(marquis("sample", digits, "--out", "nowhere/s.npz"), "nowhere")
    one_line(marquis("sample", digits, "-n", "0", "--out", "t.npz"), "-n 0")


def test_embed(marquis, digits):
    assert marquis("embed", digits, "digits", "--out", "e.csv", "--samples", "4")[0] == 0
    with open("e.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["z1", "z2", "z1_std", "z2_std", "label"] and len(rows) == 359
    assert marquis("embed", digits, "digits", "--out", "e.npz", "--samples", "4", "--limit", "7")[0] == 0
    arrays = np.load("e.npz")
    assert arrays["mean"].shape == (7, 2) and (arrays["std"] > 0).all()
    assert arrays["mean"][:, 0] == pytest.approx([float(row["z1"]) for row in rows[:7]])
    model, x = Run.open(digits).model(), load("digits", "test").x[:7]
    mean = model.encode(x, 400, generator=torch.Generator().manual_seed(5)).mean
    error = arrays["std"] * np.sqrt(1 / 4 + 1 / 400)  # of the mean of four draws, by its own standard deviation
    assert (np.abs(arrays["mean"] - mean.numpy()) < 12 * error).all()


def test_score(marquis, digits):
    noise = np.random.RandomState(0).rand(3, 1, 8, 8).astype(np.float32)
    mixed = np.concatenate([load("digits", "test").x[100:110].numpy(), noise])
    np.savez("mixed.npz", x=mixed)
    code, out, _ = marquis("score", digits, "mixed.npz", "--out", "s.csv", "--samples", "3")
    assert code == 0 and "13 rows" in out
    result = pd.read_csv("s.csv")
    assert list(result)[:2] == ["combined", "p_value"] and len(result) == 13
    assert (result["nll"][10:].min() > result["nll"][:10]).all()
    run = Run.open(digits)
    run.data_module.setup()
    parts = (torch.tensor(mixed), run.data_module.train.x, run.data_module.test.x)  # type: ignore[union-attr]
    generator = torch.Generator()
    ours, trained, inside = (ood.scores(run.model(), x, 3, generator=generator.manual_seed(0)) for x in parts)
    for number, score in enumerate(ood.combined(ours, trained)):
        above = sum(float(score) <= float(other) for other in ood.combined(inside, trained))
        assert result["p_value"][number] == pytest.approx((1 + above) / 360, rel=1e-9)


def test_the_linearised_network_at_temperature_one(marquis, digits):
    few = ("--samples", "5", "--limit", "8")
    for text in ((), ("--linearised",)):
        assert marquis("embed", digits, "digits", "--out", f"{len(text)}.npz", *few, *text)[0] == 0
    own, straight = (np.load(name)["std"] for name in ("0.npz", "1.npz"))
    assert (straight > 3 * own).all()  # trained at temperature 0.01: ten times the deviation, and chance
    trained, x = Run.open(digits).model(), load("digits", "test").x[:8]
    model = linearised(trained, "laplace")  # the Laplace posterior, whatever the temperature of training
    same = SameSeed(model, torch.Generator().manual_seed(0)).generator()
    np.testing.assert_allclose(straight, model.encode(x, 5, generator=same).std, rtol=1e-4)
    for text in (
        ("score", digits, "digits", "--out", "s.csv"),
        ("evaluate", digits),
        ("evaluate", digits, "--ood", "digits"),
    ):
        code, _, err = marquis(*text, *few, "--linearised")
        assert code == 0, err
    assert (digits / "evaluation-linearised.json").is_file() and (digits / "ood-digits-linearised.png").is_file()
    assert marquis("train", "vae", "--data", "digits", "--out", "v", *ONE_EPOCH, "--limit", "40")[0] == 0
    one_line(marquis("embed", "v", "digits", "--out", "v.csv", "--linearised"), "'vae'", "no Laplace posterior", "lae")


def test_results_of_both_readings_lie_side_by_side_and_go_with_the_run(marquis, tmp_path):
    text = ("--data", "digits", "--out", tmp_path / "r", *ONE_EPOCH, "--limit", "40")
    assert marquis("train", "lae", *text)[0] == 0
    few = ("digits", "--samples", "2", "--limit", "4")
    for command, name in (("score", "scores"), ("embed", "codes")):
        for more, ending in (((), ""), (("--linearised",), "-linearised")):
            assert marquis(command, tmp_path / "r", *few, *more)[0] == 0
            assert (tmp_path / "r" / f"{name}-digits{ending}.csv").is_file()
    kept = [tmp_path / "r" / name for name in ("evaluation-notes.json", "thesis.txt")]
    gone = [
        tmp_path / "r" / name for name in ("evaluation.json", "evaluation-linearised.json", "ood-x-linearised.json")
    ]
    for path in (*kept, *gone):
        path.write_text("{}")
    assert marquis("train", "ae", *text, "--force")[0] == 0
    assert all(path.is_file() for path in kept) and not any(path.exists() for path in gone)


def test_impute_images(marquis, digits):
    assert marquis("impute", digits, "digits", "--hide", "top", "--limit", "4", "--out", "i.npz")[0] == 0
    arrays, x = np.load("i.npz"), load("digits", "test").x[:4].numpy()
    assert arrays["samples"].shape == (25, 4, 1, 8, 8) and arrays["missing"][:, :, :4].all()
    assert np.array_equal(arrays["x"][:, :, 4:], x[:, :, 4:]) and not arrays["std"][:, :, 4:].any()
    assert (arrays["std"][:, :, :4] > 0).all()
    assert marquis("impute", digits, "digits", "--hide", "left", "--limit", "4", "--out", "i.png")[0] == 0
    one_line(marquis("impute", digits, "digits", "--out", "j.npz"), "nothing is missing", "--hide")
    one_line(marquis("impute", digits, "digits", "--hide", "middle", "--out", "j.npz"), "middle")


def test_image_folders(marquis, digits):
    Path("pictures").mkdir()
    for number, image in enumerate(load("digits", "test").stored[:3]):
        Image.fromarray((image[0].numpy() * 255).astype(np.uint8)).save(f"pictures/{number}.png")
    assert marquis("embed", digits, "pictures", "--out", "p.csv", "--samples", "2")[0] == 0
    assert len(pd.read_csv("p.csv")) == 3


# ---- tables


def test_a_table_is_scaled_and_may_have_holes(wine, kept):
    run = Run.open(wine)
    assert run.spec.missing == "mask" and run.columns == (*"abcdef", "constant")
    x = run.data_module
    x.setup()
    held = torch.cat([x.train.x, x.validation.x])  # type: ignore[union-attr]
    assert held.isnan().any() and held.nanmean(0).abs().max() < 1e-5
    assert float(run.scaling.scale[6]) == 1.0  # type: ignore[union-attr]


def test_scaling_goes_there_and_back():
    x = torch.tensor([[1.0, 5.0], [float("nan"), 5.0], [3.0, 5.0]], dtype=torch.float64)
    scaling = Scaling.of(x)
    assert scaling.mean.tolist() == [2.0, 5.0] and scaling.scale.tolist() == [1.0, 1.0]
    again = Scaling.from_json(json.loads(json.dumps(scaling.as_json())))
    torch.testing.assert_close(again.unscaled(again.scaled(x)), x, equal_nan=True)


def test_impute_tables(marquis, wine, kept):
    passed = pd.read_csv(kept / "wine.csv")
    for name in ("f.csv", "f.parquet"):
        assert marquis("impute", wine, kept / "wine.csv", "--out", name, "--samples", "4")[0] == 0
    filled = pd.read_csv("f.csv")
    incomplete = passed.isna()
    with_holes = [name for name in passed if incomplete[name].any()]
    assert list(filled) == [*passed, *(f"{name}_std" for name in with_holes)]
    assert filled[list(passed)].notna().all().all()
    for name in passed:
        seen = ~incomplete[name]
        assert np.array_equal(filled[name][seen], passed[name][seen])
        if name in with_holes:
            std = filled[f"{name}_std"]
            assert (std[seen] == 0).all() and (std[incomplete[name]] > 0).all()
            # in the column's own units, not in those of the network
            scale = float(passed[name].std())
            assert ((filled[name][incomplete[name]] - passed[name].mean()).abs() < 6 * scale).all()
            assert (std[incomplete[name]] < 6 * scale).all() and (std[incomplete[name]] > 0.02 * scale).all()
    pd.testing.assert_frame_equal(pd.read_parquet("f.parquet"), filled)


def test_columns_are_found_by_name(marquis, wine, kept):
    table = pd.read_csv(kept / "complete.csv")
    table.to_csv("in-order.csv", index=False)
    table[list(table)[::-1]].to_csv("reversed.csv", index=False)
    for name in ("in-order", "reversed"):
        assert marquis("embed", wine, f"{name}.csv", "--out", f"{name}-codes.csv", "--samples", "3")[0] == 0
    assert Path("in-order-codes.csv").read_text() == Path("reversed-codes.csv").read_text()
    table.drop(columns="c").to_csv("less.csv", index=False)
    table.assign(more=1.0).to_csv("more.csv", index=False)
    one_line(marquis("embed", wine, "less.csv", "--out", "x.csv"), "less.csv", "lacks c")
    one_line(marquis("score", wine, "more.csv", "--out", "x.csv"), "more.csv", "more")
    np.save("narrow.npy", np.zeros((5, 3)))
    one_line(marquis("impute", wine, "narrow.npy", "--out", "x.csv"), "3 columns", "7 columns")
    table.assign(c="red").to_csv("words.csv", index=False)
    one_line(marquis("score", wine, "words.csv", "--out", "x.csv"), "'c'", "not numeric")
    one_line(marquis("impute", wine, "in-order.csv", "--out", "x.csv"), "nothing is missing")
    one_line(marquis("impute", wine, "in-order.csv", "--out", "x.txt"), ".csv", ".npz")
    one_line(marquis("embed", wine, "digits", "--out", "x.csv"), "8x8", "7 columns")
    assert not Path("x.csv").exists()


def test_sample_and_score_tables(marquis, wine, kept):
    assert marquis("sample", wine, "-n", "6", "--out", "s.csv")[0] == 0
    drawn, table = pd.read_csv("s.csv"), pd.read_csv(kept / "complete.csv")
    assert list(drawn) == list(table) and len(drawn) == 6
    assert ((drawn - table.mean()).abs() < 10 * table.std() + 1e-3 + 10 * (table.std() == 0)).all().all()
    assert marquis("score", wine, kept / "complete.csv", "--out", "s.parquet", "--samples", "3")[0] == 0
    assert len(pd.read_parquet("s.parquet")) == len(table)


def test_a_column_set_apart(marquis, kept):
    shutil.copy(kept / "complete.csv", "t.csv")
    assert marquis("train", "ae", "--data", "t.csv", "--target", "a", "--out", "r", *ONE_EPOCH)[0] == 0
    assert Run.open("r").columns == (*"bcdef", "constant")
    assert marquis("embed", "r", "t.csv", "--out", "e.csv", "--samples", "1")[0] == 0
    one_line(marquis("train", "ae", "--data", "t.csv", "--target", "zz", "--out", "q"), "zz")


def test_a_column_without_values(marquis):
    pd.DataFrame({"a": np.arange(20.0), "b": [np.nan] * 20}).to_csv("t.csv", index=False)
    one_line(marquis("train", "ae", "--data", "t.csv", "--out", "r"), "'b'", "no values")


def test_an_unfinished_run_says_how_to_finish_it(marquis, digits):
    os.remove(digits / "model.safetensors")
    one_line(marquis("sample", digits, "--out", "s.npz"), "no finished model", "--resume")
