"""The report shows what `marquis evaluate --ood` found, and survives damaged files."""

from __future__ import annotations

import json

import pytest
from report_models import TINY, finished_run, write_csv
from test_page import assert_self_contained
from typer.testing import CliRunner

from marquis.cli.app import app
from marquis.report import write_report
from marquis.report.html import Page
from marquis.report.ood_section import MEANINGS, add_ood
from marquis.tasks import ood

RESULT = {
    "in_distribution": 7,
    "out_of_distribution": 5,
    "samples": 3,
    "table": {"nll": {"auroc": 0.8125, "aupr": 0.7, "fpr95": 0.25}},
}


def test_the_table_is_shown_and_explained(tmp_path):
    (tmp_path / "ood-other.json").write_text(json.dumps(RESULT))
    page = Page("run")
    add_ood(page, tmp_path)
    html = page.html()
    for text in ("other: 5 OOD rows against 7 held-out rows", "0.8125", MEANINGS["nll"], "0.5 is chance"):
        assert text in html


def test_nothing_without_results_and_a_warning_for_damaged_ones(tmp_path):
    page = Page("run")
    add_ood(page, tmp_path)
    assert page.parts == []
    for content in ("{", "[]", json.dumps({**RESULT, "table": {"nll": {"auroc": "x"}}})):
        (tmp_path / "ood-bad.json").write_text(content)
        with pytest.warns(UserWarning, match="leaves out"):
            add_ood(page, tmp_path)
    assert page.parts == []


def test_every_score_has_a_meaning():
    names = {*ood.DERIVED, *ood.COMBINED_OF}
    assert names <= set(MEANINGS)


def test_evaluating_writes_the_report_anew(tmp_path):
    csv, other = write_csv(tmp_path / "table.csv"), write_csv(tmp_path / "o<b>ther.csv")
    run = finished_run(tmp_path / "run", model="lae", data=str(csv))
    write_report(run.path, effort=TINY)
    prediction = CliRunner().invoke(app, ["evaluate", str(run.path), "--ood", str(other), "--samples", "3"])
    assert prediction.exit_code == 0, prediction.output
    page = run.path / "report.html"
    assert_self_contained(page.read_text())
    assert "o&lt;b&gt;ther: 12 OOD rows against 12 held-out rows" in page.read_text()
    assert (run.path / "report" / "ood-1-o-b-ther.png").is_file()
