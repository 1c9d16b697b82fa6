"""The study `batchnorm-evidence`: its closed forms against the library, and a quick run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian
from marquis_experiments.linearised_laplace.batchnorm_evidence import NOISE, STUDY, draw_data, train


def test_quick_run_agrees_with_the_library(tmp_path: Path):
    page = STUDY.run("quick", out=tmp_path, say=lambda text: None)
    results = json.loads((page.parent / "results.json").read_text())
    row, settings = results["rows"][0], results["settings"]
    x, y = draw_data(128, 0, gap=False)
    network = train(0, settings["hidden"], settings["epochs"], x, y)
    laplace = Laplace(network, Gaussian(1 / NOISE**2), "full", prior=1.0).fit([(x, y)], progress=False)
    at_one = next(point for point in row["sweep"] if abs(point["precision"] - 1) < 1e-9)
    constant = -len(x) / 2 * math.log(2 * math.pi * NOISE**2)
    assert abs(float(laplace.log_evidence()) - constant - at_one["naive"]) < 1e-6 * abs(at_one["naive"])
    tuned = laplace.tune("adapted", noise=False)
    chosen = row["chosen"]["adapted"]["precision"]
    assert chosen / 10**0.25 < float(laplace.prior.precision) < chosen * 10**0.25, tuned  # the sweep's own step
    assert chosen > row["chosen"]["naive"]["precision"]
