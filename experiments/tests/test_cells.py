"""Cells of a study: damaged ones are computed again with a warning, and one run at a time writes to a folder."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import pytest

from marquis.errors import StorageError
from marquis.io.lock import exclusive
from marquis_experiments.common.cells import cell, stored
from marquis_experiments.common.study import Study

SETTINGS = {"seed": 3, "sizes": (2, 4), "rate": 0.1}
RESULT = {"error": 0.25, "rows": [1, 2, None]}


def computed(folder: Path) -> dict:
    return cell(folder, "a", SETTINGS, lambda: RESULT)


def test_one_flipped_bit_is_computed_again(tmp_path):
    expected = computed(tmp_path)
    path, chooser = tmp_path / "a.json", random.Random(0)
    raw = path.read_bytes()
    refused = 0
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << chooser.randrange(8)]) + raw[place + 1 :])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = stored(tmp_path, "a", SETTINGS)
        assert found in (None, expected)  # white space only
        assert found is not None or "is computed again" in str(said[0].message)
        refused += found is None
    assert refused > len(raw) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert computed(tmp_path) == expected
    assert path.read_bytes() == raw


def test_cells_of_before_are_read(tmp_path):
    expected = computed(tmp_path)
    plain = {"settings": json.loads(json.dumps(SETTINGS)), "result": RESULT}
    (tmp_path / "a.json").write_text(json.dumps(plain))
    assert cell(tmp_path, "a", SETTINGS, lambda: pytest.fail("computed again")) == expected
    assert stored(tmp_path, "a", {**SETTINGS, "seed": 4}) is None


def test_the_second_run_in_a_folder_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("{{number}}")
    study = Study("tiny", page, lambda run: run.cell("a", SETTINGS, lambda: RESULT), lambda results: {"number": 1})
    assert study.run("quick", tmp_path / "out").read_text().strip() == "1"
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with exclusive(tmp_path / "out/quick", "another run of this study"):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool, pytest.raises(StorageError, match="another run of this study"):
            pool.submit(study.run, "quick", tmp_path / "out").result()
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
