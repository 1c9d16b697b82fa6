"""For the tests of the commands: run one, settings that make a training short, and what bad input must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marquis.cli import main

SMALL = ("--width", "0.125", "--epochs", "2", "--limit", "120", "--batch-size", "64", "--no-report")
ONE_EPOCH = tuple("1" if word == "2" else word for word in SMALL)


def exit_code(*words: object) -> int:
    """Of the command in this process."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code or 0  # type: ignore[return-value]


def write_config(run: Path | str, held: Mapping[str, Any]) -> None:
    """Write a run's configuration as version 0.1.0 did, which knew no checksums."""
    old = {**{name: value for name, value in held.items() if name != "sha256"}, "version": 1}
    (Path(run) / "config.json").write_text(json.dumps(old))


def one_line(said: tuple[int, str, str], *texts: str, exit_code: int = 2) -> None:
    """An error of one line, with these texts in it."""
    code, _, err = said
    assert code == exit_code, said
    assert err.startswith("marquis: error: ") and err.count("\n") == 1, err
    assert all(text in err for text in texts), err
