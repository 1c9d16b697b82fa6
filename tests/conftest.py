"""Shared by every test: one thread per worker, where the repository is, and the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports torch: two test workers on two cores, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def marquis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run the command in an empty folder; gives exit code, output and errors."""
    from helpers.commands import exit_code

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = exit_code(*words)
        return code, *capsys.readouterr()

    return call
