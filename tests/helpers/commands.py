"""For the tests of the commands: run one, settings that make a training short, and what bad input must look like."""

from __future__ import annotations

import pytest

from marquis.cli import main

SMALL = ("--width", "0.125", "--epochs", "2", "--limit", "120", "--batch-size", "64", "--no-report")
ONE_EPOCH = tuple("1" if word == "2" else word for word in SMALL)


def exit_code(*words: object) -> int:
    """Of the command in this process."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code or 0  # type: ignore[return-value]


def one_line(said: tuple[int, str, str], *texts: str) -> None:
    """An error of one line, with these texts in it."""
    code, _, err = said
    assert code == 2, said
    assert err.startswith("marquis: error: ") and err.count("\n") == 1, err
    assert all(text in err for text in texts), err
