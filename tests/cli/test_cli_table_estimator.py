"""The command on tables goes the way of `marquis.sklearn`: the same numbers for the same seed, and explanations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from marquis.cli.app import app
from marquis.data.value import held_out_rows
from marquis.run import Run
from marquis.run.training_data import load_rows
from marquis.sklearn import LaplacianAutoencoder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    table = load_wine(as_frame=True).data.iloc[:, :5]
    table.to_csv(folder / "wine.csv", index=False)
    missing = np.random.default_rng(0).random(table.shape) < 0.1
    table.mask(missing).to_csv(folder / "holes.csv", index=False)
    prediction = CliRunner().invoke(
        app,
        [
            "train",
            "lae",
            "--data",
            str(folder / "wine.csv"),
            "--out",
            str(folder / "run"),
            "--epochs",
            "1",
            "--no-report",
        ],
    )
    assert prediction.exit_code == 0, prediction.output
    return folder


def test_the_same_numbers_as_the_estimator(trained):
    out = trained / "filled.csv"
    prediction = CliRunner().invoke(
        app, ["impute", str(trained / "run"), str(trained / "holes.csv"), "--out", str(out)]
    )
    assert prediction.exit_code == 0, prediction.output
    rows = load_rows(Run.open(trained / "run").settings, "train").x.numpy()
    incomplete = pd.read_csv(trained / "holes.csv")
    expected = LaplacianAutoencoder(random_state=0).fit(rows).impute(incomplete.to_numpy())
    written = pd.read_csv(out)
    np.testing.assert_allclose(written[incomplete.columns], expected.mean, rtol=1e-10)
    for number, name in enumerate(incomplete):
        np.testing.assert_allclose(written[f"{name}_std"], expected.std[:, number], rtol=1e-10, atol=1e-12)


def test_explanations(trained):
    out = trained / "why.csv"
    prediction = CliRunner().invoke(
        app, ["score", str(trained / "run"), str(trained / "wine.csv"), "--explain", str(out), "--samples", "2"]
    )
    assert prediction.exit_code == 0, prediction.output
    written = pd.read_csv(out)
    assert list(written.columns) == ["row", "column", "value", "expected", "low", "high", "contribution"]
    rows = load_rows(Run.open(trained / "run").settings, "train").x.numpy()
    scores = LaplacianAutoencoder(random_state=0).fit(rows).score_samples(pd.read_csv(trained / "wine.csv").to_numpy())
    np.testing.assert_allclose(written.groupby("row")["contribution"].sum(), -scores, rtol=1e-8)


def test_text_columns_are_categories(tmp_path):
    source = np.random.default_rng(0)
    number = source.choice([-2.0, 2.0], size=120) + 0.5 * source.normal(size=120)
    table = pd.DataFrame({"a": number, "b": -number + 0.1 * source.normal(size=120)})
    table["sign"] = np.where(number > 0, "plus", "minus")
    incomplete = table.mask(source.random(table.shape) < 0.25)
    incomplete.to_csv(tmp_path / "mixed.csv", index=False)

    def invoke(*words):
        prediction = CliRunner().invoke(app, [str(word) for word in words])
        assert prediction.exit_code == 0, prediction.output

    run = tmp_path / "run"
    invoke("train", "lae", "--data", tmp_path / "mixed.csv", "--out", run, "--epochs", 1, "--no-report")
    assert Run.open(run).categories == {"sign": ("minus", "plus")}
    invoke("impute", run, tmp_path / "mixed.csv", "--out", tmp_path / "filled.csv")
    filled, hidden = pd.read_csv(tmp_path / "filled.csv"), incomplete["sign"].isna()
    assert list(filled.columns) == ["a", "b", "sign", "a_std", "b_std", "sign_std"]
    assert (filled["sign"] == table["sign"])[~hidden].all() and (filled["sign"] == table["sign"])[hidden].mean() > 0.9
    assert (filled["sign_std"] > 0).equals(hidden)

    read = pd.read_csv(tmp_path / "mixed.csv").astype({"sign": pd.CategoricalDtype(["minus", "plus"])})
    rows = np.flatnonzero(np.isin(np.arange(120), held_out_rows(120, 24)[0]))
    model = LaplacianAutoencoder(random_state=0).fit(read.iloc[rows].reset_index(drop=True))
    expected = model.impute(read)
    for name, values in (("a", expected.mean["a"]), ("sign_std", expected.std["sign"])):  # the estimator's own numbers
        np.testing.assert_allclose(filled[name].to_numpy(), values.to_numpy(), rtol=1e-10, atol=1e-12)

    invoke("score", run, tmp_path / "mixed.csv", "--explain", tmp_path / "why.csv", "--samples", 2)
    why = pd.read_csv(tmp_path / "why.csv")
    assert set(why["column"]) == {"a", "b", "sign"}
    assert set(why.loc[why["column"] == "sign", "expected"]) == {"minus", "plus"}
    other = incomplete.copy()
    other.loc[[3, 5], "sign"] = ["zero", "naught"]
    other.to_csv(tmp_path / "other.csv", index=False)
    with pytest.warns(UserWarning, match="naught, zero"):
        invoke("impute", run, tmp_path / "other.csv", "--out", tmp_path / "kept.csv")
    kept = pd.read_csv(tmp_path / "kept.csv")
    assert kept["sign"][[3, 5]].tolist() == ["zero", "naught"] and (kept["sign_std"][[3, 5]] == 0).all()
    with pytest.warns(UserWarning, match="naught, zero"):
        invoke("score", run, tmp_path / "other.csv", "--explain", tmp_path / "odd.csv", "--samples", 2)
    odd = pd.read_csv(tmp_path / "odd.csv").set_index(["row", "column"]).loc[(3, "sign")]
    terms = model.explain(read.assign(sign=other["sign"].astype("category"))).contributions
    assert odd["value"] == "zero" and odd["contribution"] == pytest.approx(terms[3, 2], rel=1e-9)
    assert terms[3, 2] > np.log(30)
    invoke("sample", run, "-n", 4, "--out", tmp_path / "new.csv")
    assert set(pd.read_csv(tmp_path / "new.csv")["sign"]) <= {"minus", "plus"}
    prediction = CliRunner().invoke(
        app, ["impute", str(run), str(tmp_path / "mixed.csv"), "--out", str(tmp_path / "x.npz")]
    )
    assert prediction.exit_code == 1 and "written as .csv or .parquet" in str(prediction.exception or prediction.output)


def test_pixels_that_make_an_image_an_outlier(tmp_path):
    def invoke(*words):
        prediction = CliRunner().invoke(app, [str(word) for word in words])
        assert prediction.exit_code == 0, prediction.output

    run, maps, scores = tmp_path / "run", tmp_path / "maps.npz", tmp_path / "scores.csv"
    invoke(
        "train", "lae", "--data", "digits", "--out", run, "--epochs", 1, "--limit", 100, "--width", 0.1, "--no-report"
    )
    options = ("--samples", 3, "--reference", 20, "--limit", 6)
    invoke("score", run, "digits", "--out", scores, "--explain", maps, *options)
    with np.load(maps) as held:
        assert held["contributions"].shape == held["x"].shape == held["low"].shape == (6, 1, 8, 8)
        assert (held["low"] < held["expected"]).all() and (held["expected"] < held["high"]).all()
        totals = held["contributions"].sum((1, 2, 3))
    np.testing.assert_allclose(totals, pd.read_csv(scores)["nll"].to_numpy(), rtol=1e-4)
    invoke("score", run, "digits", "--out", scores, "--force", "--explain", tmp_path / "maps.png", *options)
    assert (tmp_path / "maps.png").stat().st_size > 5000
