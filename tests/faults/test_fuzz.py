"""2,000 calls with one or two spoilt arguments: right, or an error of ours; never a stranger's, never NaN.

Seeded, so that a failure is the same tomorrow. `python tests/faults/test_fuzz.py [CASES] [SEED] [DOOR...]` lists them.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from bad_values import choose
from doors import Door, all_doors

import marquis as mq

CASES, SEED, SECONDS = 2000, 0, 60
DOORS = all_doors()


def tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Tensors of a result: in lists, dictionaries and the fields of our values."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif isinstance(value, mq.structures.Structure):
        yield from value.tensors()
    elif depth and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None), depth - 1)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` where a call does not end; by the processor's clock, since machines are shared."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"does not end within {seconds} s of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(door: Door, chooser: random.Random) -> tuple[str, str | None]:
    """Run one spoilt call; returns its description and what is wrong with its end, if anything."""
    arguments = door.arguments()
    spoilt = chooser.sample(sorted(arguments), k=min(len(arguments), chooser.choice((1, 1, 1, 2))))
    words = []
    for name in spoilt:
        word, make = choose(chooser)
        arguments[name] = make(arguments[name])
        words.append(f"{name}={word}")
    described = f"{door.name}({', '.join(words)})"
    try:
        with at_most(SECONDS):
            result = door.call(**arguments)
    except (mq.MarquisError, *door.foreign):
        return described, None
    except Exception as error:
        return described, f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    floating = [t for t in tensors_in(result) if t.is_floating_point() and t.device.type != "meta"]
    if any(bool(t.isnan().any() if door.overflows else (~t.isfinite()).any()) for t in floating):
        return described, "NaN or infinity in the result"
    return described, None


def failures(cases: int, seed: int, doors: list[Door]) -> list[tuple[str, str]]:
    """Every case that did not end well."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(cases):
            chooser = random.Random(f"{seed}-{number}")
            described, problem = outcome(doors[number % len(doors)], chooser)
            if problem is not None:
                found.append((described, problem))
    return found


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder of its own: a spoilt path may be a good one."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_the_unspoilt_call_works(door):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        door.call(**door.arguments())


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_spoilt_calls_end_well(door):
    wrong = failures(-(-CASES // len(DOORS)), SEED, [door])
    assert not wrong, "\n".join(f"{described}: {problem}" for described, problem in wrong)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    named = [door for door in DOORS if sys.argv[3:] == [] or any(word in door.name for word in sys.argv[3:])]
    listed = failures(*(numbers + [CASES, SEED][len(numbers) :]), named)
    for described, problem in listed:
        print(f"{described}: {problem}")
    print(f"{len(listed)} failures")
