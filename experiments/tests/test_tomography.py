"""The tomography study: one small run from data to page, and its tables where cells are missing."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from marquis_experiments.tomography.data import rectangles
from marquis_experiments.tomography.problems import NAMES, problem
from marquis_experiments.tomography.study import STUDY, collect, jobs_of
from marquis_experiments.tomography.tables import values

DATA = Path(os.environ.get("MARQUIS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.mark.skipif(not (DATA / "kmnist").is_dir(), reason="needs KMNIST: set MARQUIS_DATA")
def test_a_small_run_writes_its_page_and_resumes(tmp_path):
    small = {"steps": 15, "channels": 4}
    lines = []
    page = STUDY.run("quick", tmp_path, DATA, lines.append, settings=small)
    text = page.read_text()
    assert "evidence per block, TV-PredCP" in text and "constant noise" in text
    assert (page.parent / "tomography.png").is_file() and (page.parent / "tomography-complexity.png").is_file()
    run = STUDY.start("quick", tmp_path, DATA, settings=small)
    results = {"size": "quick", **collect(run)}
    row = results["linearised"][0]
    assert set(row["rows"]) == {"block", "predcp", "tangent", "constant_tuned", "constant_1"}
    assert math.isfinite(row["rows"]["predcp"]["log_density"])
    assert values(results)["images"] == 1
    times = [path.stat().st_mtime_ns for path in run.cells.glob("*.json")]
    STUDY.run("quick", tmp_path, DATA, lines.append, settings=small)
    assert times == [path.stat().st_mtime_ns for path in run.cells.glob("*.json")]


def test_sizes():
    assert len(jobs_of(STUDY.start("quick", "x"))) == 1
    default = jobs_of(STUDY.start("default", "x"))
    names = [job[0].__name__ for job in default]
    assert (
        names.count("one_character") == 10 + 10 + 8 + 20 + 10
        and names.count("one_design") == 20
        and names.count("one_slice") == 4
    )
    full = jobs_of(STUDY.start("full", "x"))
    assert sum(job[0].__name__ == "one_character" and job[1] == "linearised" for job in full) == 400
    assert sum(job[0].__name__ == "one_slice" for job in full) == 5 + 4


def test_data_and_problems_are_what_they_say():
    image = rectangles(3)
    assert image.shape == (28, 28) and 0 <= float(image.min()) < float(image.max()) <= 1
    assert torch.equal(image, rectangles(3)) and not torch.equal(image, rectangles(4))
    for name in NAMES:
        measurement = problem(name)
        assert measurement.forward(image).shape == measurement.data_shape
