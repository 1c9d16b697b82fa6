"""The command on tables goes the way of `marquis.sklearn`: the same numbers for the same seed, and explanations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from marquis.cli.app import app
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
    said = CliRunner().invoke(
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
    assert said.exit_code == 0, said.output
    return folder


def test_the_same_numbers_as_the_estimator(trained):
    out = trained / "filled.csv"
    said = CliRunner().invoke(app, ["impute", str(trained / "run"), str(trained / "holes.csv"), "--out", str(out)])
    assert said.exit_code == 0, said.output
    rows = load_rows(Run.open(trained / "run").settings, "train").x.numpy()
    holes = pd.read_csv(trained / "holes.csv")
    expected = LaplacianAutoencoder(random_state=0).fit(rows).impute(holes.to_numpy())
    written = pd.read_csv(out)
    np.testing.assert_allclose(written[holes.columns], expected.mean, rtol=1e-10)
    for number, name in enumerate(holes):
        np.testing.assert_allclose(written[f"{name}_std"], expected.std[:, number], rtol=1e-10, atol=1e-12)


def test_explanations(trained):
    out = trained / "why.csv"
    said = CliRunner().invoke(
        app, ["score", str(trained / "run"), str(trained / "wine.csv"), "--explain", str(out), "--samples", "2"]
    )
    assert said.exit_code == 0, said.output
    written = pd.read_csv(out)
    assert list(written.columns) == ["row", "column", "value", "expected", "low", "high", "contribution"]
    rows = load_rows(Run.open(trained / "run").settings, "train").x.numpy()
    scores = LaplacianAutoencoder(random_state=0).fit(rows).score_samples(pd.read_csv(trained / "wine.csv").to_numpy())
    np.testing.assert_allclose(written.groupby("row")["contribution"].sum(), -scores, rtol=1e-8)
