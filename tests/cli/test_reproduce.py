"""`marquis reproduce`: experiments found by entry points, listed, run, and missed with directions."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from marquis.cli import reproduce
from marquis.errors import DataError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Two experiments of a module that records its calls, and no others."""
    made: list[tuple] = []

    def run(size: str, out: Path, data_dir: Path | None, say) -> Path:
        made.append((size, out, data_dir))
        say("one line of progress")
        return out / size / "page.md"

    module = ModuleType("recorded_experiments")
    module.FIRST = SimpleNamespace(title="A first table", run=run)  # pyright: ignore[reportAttributeAccessIssue]
    module.SECOND = SimpleNamespace(title="A second one", run=run)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "recorded_experiments", module)
    entries = [
        EntryPoint("second", "recorded_experiments:SECOND", reproduce.GROUP),
        EntryPoint("first", "recorded_experiments:FIRST", reproduce.GROUP),
    ]
    monkeypatch.setattr(reproduce, "entry_points", lambda group: entries if group == reproduce.GROUP else [])
    return made


def command(*words: str):
    return CliRunner().invoke(reproduce.app, list(words))


def test_without_a_name_experiments_are_listed_with_their_titles(calls):
    result = command()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["first   A first table", "second  A second one"]
    assert not calls


@pytest.mark.parametrize(("flags", "size"), [((), "default"), (("--quick",), "quick"), (("--full",), "full")])
def test_a_named_experiment_runs_at_the_size_of_its_flag(calls, flags, size):
    result = command("first", *flags, "--data-dir", "somewhere")
    assert result.exit_code == 0
    assert calls == [(size, Path("runs/first"), Path("somewhere"))]
    assert result.stdout.splitlines() == ["one line of progress", f"written: runs/first/{size}/page.md"]


def test_both_flags_are_refused(calls):
    assert command("first", "--quick", "--full").exit_code == 2
    assert not calls


def test_an_unknown_name_names_the_close_one_and_all(calls):
    with pytest.raises(DataError, match="did you mean 'first'.*first, second"):
        reproduce.find("frist")


def test_without_experiments_the_installation_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reproduce, "entry_points", lambda group: [])
    with pytest.raises(DataError, match=r"pip install \./experiments"):
        reproduce.find("logistic")
