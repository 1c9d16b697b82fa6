"""Whatever is typed: one line and an exit code that says whose fault it was; never a traceback."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from command_lines import commands, make_files, random_line

from marquis.cli.app import main

CASES, REAL_PROCESSES = 300, 30
ALLOWED = {0, 1, 2}


def lines(count: int, files: list[str], seed: int = 0) -> list[list[str]]:
    known = commands()
    return [random_line(random.Random(f"{seed}-{number}"), known, files) for number in range(count)]


def problem_with(code: object, errors: str) -> str | None:
    """What is wrong with how a command ended."""
    if "Traceback" in errors:
        return "a traceback"
    if code not in ALLOWED:
        return f"exit code {code!r}"
    if code in (1, 2) and not errors.strip():
        return "it failed without a word"
    if code == 2 and not (errors.startswith("marquis: error: ") and errors.count("\n") == 1):
        return f"not one line: {errors!r:.200}"
    if not all(c.isprintable() for line in errors.splitlines() for c in line):
        return f"characters that a terminal obeys: {errors!r:.200}"
    return None


@pytest.mark.parametrize("part", range(10))
def test_random_command_lines_in_one_process(part, tmp_path, monkeypatch, capsys):
    files = make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    wrong = []
    for text in lines(CASES, files)[part::10]:
        try:
            main(text)
            code: object = None
        except SystemExit as end:
            code = end.code
        except BaseException as error:  # anything that reaches the shell as a traceback
            code = f"{type(error).__name__}: {error}"[:200]
        errors = capsys.readouterr().err
        if problem := problem_with(code, errors):
            wrong.append(f"{text!r:.300}: {problem}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_random_command_lines_as_processes(tmp_path):
    files = make_files(tmp_path)
    environment = {**os.environ, "MARQUIS_OFFLINE": "1"}
    wrong = []
    for text in lines(REAL_PROCESSES, files, seed=1):
        if any("\0" in word for word in text):
            continue
        command = [sys.executable.encode(), b"-m", b"marquis", *(os.fsencode(word) for word in text)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
        if problem := problem_with(ended.returncode, ended.stderr.decode(errors="replace")):
            wrong.append(f"{text!r:.300}: {problem}")
    assert not wrong, "\n".join(wrong)
