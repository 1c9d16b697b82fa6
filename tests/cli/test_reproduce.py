"""`marquis reproduce`: experiments found by entry points, listed, run, and missed with directions."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marquis.cli import reproduce
from marquis.errors import DataError

MODULE = '''"""The study `first`: A table of numbers.

More about it.
"""

CALLS = []


def run(size, out, data_dir, say, go_on):
    CALLS.append((size, out, data_dir, go_on))
    say("one line of progress")
    return out / size / "page.md"
'''


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple]:
    """Two experiments of one module that records its calls, and no others."""
    (tmp_path / "recorded_experiment.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded_experiment", raising=False)
    entries = [EntryPoint(name, "recorded_experiment", reproduce.GROUP) for name in ("second", "first")]
    monkeypatch.setattr(reproduce, "entry_points", lambda group: entries if group == reproduce.GROUP else [])
    return entries[0].load().CALLS


def command(*words: str):
    return CliRunner().invoke(reproduce.app, list(words))


def test_without_a_name_experiments_are_listed_with_their_summaries(calls):
    result = command()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "first   A table of numbers.",
        "second  The study `first`: A table of numbers.",
    ]
    assert not calls


@pytest.mark.parametrize(("flags", "size"), [((), "default"), (("--quick",), "quick"), (("--full",), "full")])
def test_a_named_experiment_runs_at_the_size_of_its_flag(calls, flags, size):
    result = command("first", *flags, "--data-dir", "somewhere")
    assert result.exit_code == 0
    assert calls == [(size, Path("runs/first"), Path("somewhere"), False)]
    assert result.stdout.splitlines() == ["one line of progress", f"written: runs/first/{size}/page.md"]


def test_committed_rows_count_as_computed_only_on_demand(calls):
    assert command("first", "--continue").exit_code == 0
    assert calls == [("default", Path("runs/first"), None, True)]


def test_both_flags_are_refused(calls):
    assert command("first", "--quick", "--full").exit_code == 2
    assert not calls


def test_an_unknown_name_names_the_close_one_and_all(calls):
    with pytest.raises(DataError, match=r"Did you mean 'first'.*'first', 'second'"):
        reproduce.find("frist")


def test_without_experiments_the_installation_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reproduce, "entry_points", lambda group: [])
    with pytest.raises(DataError, match=r"pip install \./experiments"):
        reproduce.find("logistic")
