"""Studies are registered, and the committed pages are their templates filled from the committed results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from marquis.errors import DataError
from marquis_experiments.common.cells import write_json
from marquis_experiments.common.page import (
    CHECKOUT,
    INDEX,
    PAGES,
    RESULTS,
    Mean,
    added,
    committed,
    fill,
    index_text,
    study_of,
    verdict,
    write_text,
)
from marquis_experiments.common.study import SIZES, Run, Settings, Study

# Read from the file: the metadata of an installed copy can be older.
PROJECT = (CHECKOUT / "experiments" / "pyproject.toml").read_text(encoding="utf-8")
TARGETS = dict(re.findall(r'^([\w-]+) = "(marquis_experiments\.[\w.]+:\w+)"$', PROJECT, re.MULTILINE))
COMMITTED = sorted(path.stem for path in RESULTS.glob("*.json"))


def study(name: str) -> Study:
    return study_of(name)


def test_index_is_its_template_filled_from_the_committed_results():
    assert INDEX.read_text(encoding="utf-8") == index_text()


def test_rows_that_a_run_has_not_reached_stay():
    earlier = {"size": "full", "settings": {"seeds": 2}, "rows": [{"seed": 0, "x": 1.0}, {"seed": 2, "x": 3.0}]}
    run = {"size": "full", "settings": {"seeds": 3}, "rows": [{"seed": 0, "x": 1.0}, {"seed": 1, "x": 2.0}]}
    both = added(earlier, run)
    assert [row["seed"] for row in both["rows"]] == [0, 1, 2] and both["settings"] == {"seeds": 3}
    assert len(run["rows"]) == 2 and added({"size": "full", "old": [1]}, run)["old"] == [1]


@pytest.mark.parametrize("name", TARGETS)
def test_study_has_its_name_and_three_sizes(name: str):
    assert study(name).name == name
    keys = [set(study(name).settings(size)) for size in SIZES]
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize("name", TARGETS)
def test_study_has_a_committed_page(name: str):
    assert name in COMMITTED


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_page_is_its_template_filled_from_the_committed_results(name: str):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page == study(name).text(committed(name))


@pytest.mark.parametrize("name", COMMITTED)
def test_page_answers_first(name: str):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    answer, _ = page.split("\n## Details\n")
    lines = answer.split("\n")
    labels = [line.split(":**")[0] for line in lines[2:7]]
    assert labels == [f"- **{label}" for label in ("Claim", "Run", "Result", "Verdict", "Command")]
    assert re.fullmatch(r"- \*\*Verdict:\*\* (reproduced|partly|not)", lines[5])
    assert len(re.findall(r"^\| ---", answer, re.MULTILINE)) == 1
    pictures = re.findall(r"\]\(([\w.-]+\.png)\)", page)
    assert answer.count(".png)") <= 3
    assert sum(line.startswith("|") for line in lines) <= 22  # at most twenty rows
    assert len([word for line in lines if not line.startswith("|") for word in line.split()]) <= 200
    assert all(not line or line.startswith(("|", "![")) for line in lines[7:])
    for picture in pictures:
        assert (PAGES / picture).is_file()


def test_placeholders(tmp_path: Path):
    template = tmp_path / "page.md"
    block = "{{#yes}}\nshown {{a.b}}\n{{/yes}}\n{{^yes}}\nhidden\n{{/yes}}\n"
    template.write_text("# T\n{{a.b:.2f}} {{rows.1}}\n" + block + "end{{#yes}}!{{/yes}}\n")
    values = {"a": {"b": 0.5}, "rows": [1, 2], "yes": True}
    assert fill(template, values) == "# T\n0.50 2\nshown 0.5\nend!\n"
    assert fill(template, {**values, "yes": False}) == "# T\n0.50 2\nhidden\nend\n"
    with pytest.raises(DataError, match=r"a\.b"):
        fill(template, {"rows": [1, 2], "yes": True})


def test_loops(tmp_path: Path):
    template = tmp_path / "page.md"
    template.write_text("{{*rows}}\n| {{@}} | {{x:.1f}} | {{y}} |{{*more}} {{0}}{{/more}}\n{{/rows}}\nend\n")
    values = {
        "y": 3,
        "rows": {"a": {"x": 1.0, "more": [[7, 8], [9]]}, "b": {"x": Mean([1.0, 3.0]), "y": 4, "more": []}},
    }
    assert fill(template, values) == "| a | 1.0 | 3 | 7 9\n| b | 2.0 ± 1.0 | 4 |\nend\n"


def test_verdict_needs_every_claim():
    assert (verdict(True, True), verdict(True, False), verdict(False)) == ("reproduced", "partly", "not")


def test_settings():
    settings = Settings(a=1, b=2)
    assert settings.a == 1 and settings.replace(a=3).a == 3 and settings.a == 1
    assert settings.only("b") == {"b": 2} == settings.without("a")
    with pytest.raises(AttributeError, match="called 'c'"):
        settings.c  # noqa: B018


@pytest.mark.parametrize("name", COMMITTED)
def test_index_of_results_has_the_verdict(name: str):
    index = INDEX.read_text(encoding="utf-8")
    (line,) = [line for line in index.split("## Pages")[1].splitlines() if f"(experiments/{name}.md)" in line]
    result = re.search(r"^- \*\*Verdict:\*\* (\w+)$", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert result is not None and result[1] in line.split("|")[-2]


def test_a_run_that_continues_computes_only_what_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    computed: list[int] = []

    def measure(run: Run) -> dict[str, Any]:
        def row(seed: int) -> dict[str, Any]:
            computed.append(seed)
            return {"value": 10 + seed}

        kept = {"seed": 0, "epochs": run.settings.epochs}
        other = run.cell("other", kept, lambda: {"value": "of another kind, with the settings of a row"})
        assert other["value"] != "committed"
        key = run.settings.only("epochs")
        return {"rows": [run.cell(f"s{s}", {"seed": s, **key}, lambda s=s: row(s), "rows") for s in range(3)]}

    template = write_text(tmp_path / "page.md", "{{rows.0.value}} {{rows.1.value}} {{rows.2.value}}")
    some = Study("some", template, measure, lambda results: {}, default={"epochs": 2})
    monkeypatch.setattr("marquis_experiments.common.page.RESULTS", tmp_path)
    monkeypatch.setattr("marquis_experiments.common.study.RESULTS", tmp_path)
    rows = [{"seed": 0, "epochs": 2, "value": "committed"}, {"seed": 1, "epochs": 9, "value": "of other settings"}]
    write_json(tmp_path / "some.json", {"rows": rows})
    page = some.run(out=tmp_path / "first", say=lambda text: None, go_on=True)
    assert page.read_text() == "committed 11 12" and computed == [1, 2]
    page = some.run(out=tmp_path / "second", say=lambda text: None)
    assert page.read_text() == "10 11 12" and computed == [1, 2, 0, 1, 2]
    write_json(tmp_path / "some.json", {"rows": rows[:1] * 2})  # which of the two is meant is not known
    assert some.start(out=tmp_path / "third", go_on=True).stored("s0", rows[0], "rows") is None
