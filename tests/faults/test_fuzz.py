"""2,000 calls with one or two spoilt arguments: right, or an error of ours; never a stranger's, never NaN.

Seeded, so that a failure is the same tomorrow. `python tests/faults/test_fuzz.py [CASES SEED [GROUP...]]` lists them,
with this number of cases for every call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import doors
import doors_models
import doors_uses
from bad_values import choose
from doors import Door

import marquis as mq

CASES, ALL_CASES, SEED, SECONDS, BYTES = 2, 6, 0, 60, 8 << 30
"""Cases for every call, of the fast test and of the slow one: 2,000 and more with some 440 calls; limits of a call."""
GROUPS = {**doors.GROUPS, **doors_models.GROUPS, **doors_uses.GROUPS}


@functools.cache
def doors_of(group: str) -> list[Door]:
    """Return the doors of a group; made when a test asks, since some of them train models."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return list(GROUPS[group]())


def tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Tensors of a result: in lists, dictionaries and the fields of our values, arrays and numbers among them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        yield torch.as_tensor(value)
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
def at_most(seconds: int, size: int) -> Iterator[None]:
    """Raise `TimeoutError` where a call does not end, and let it ask for at most `size` bytes of addresses.

    By the processor's clock, since machines are shared. Memory that is refused becomes torch's or Python's own error.
    """

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"does not end within {seconds} s of computing")

    before, limits = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(door: Door, chooser: random.Random) -> tuple[str, str | None]:
    """Run one spoilt call; returns its description and what is wrong with its end, if anything."""
    arguments = door.arguments()
    spoilt = chooser.sample(sorted(arguments), k=min(len(arguments), chooser.choice((1, 1, 1, 2))))
    text = []
    for name in spoilt:
        word, make = choose(chooser)
        arguments[name] = make(arguments[name])
        text.append(f"{name}={word}")
    described = f"{door.name}({', '.join(text)})"
    given = [t for t in tensors_in(arguments) if t.layout == torch.strided and t.device.type != "meta"]
    try:
        with at_most(SECONDS, BYTES):
            result = door.call(**arguments)
    except (mq.MarquisError, *door.foreign):
        return described, None
    except Exception as error:
        return described, f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    if any(t.layout is not torch.strided for t in tensors_in(result)):
        return described, "a sparse tensor in the result"
    floating = [t for t in tensors_in(result) if t.is_floating_point() and t.device.type != "meta"]
    passed_on = door.undefined or (door.linear and any(not bool(t.isfinite().all()) for t in given))
    if not passed_on and any(bool(t.isnan().any() if door.overflows else (~t.isfinite()).any()) for t in floating):
        return described, "NaN or infinity in the result"
    return described, None


def failures(cases: int, seed: int, entries: list[Door]) -> Iterator[str]:
    """Yield every case that did not end well; each door has its own numbers, so that a new one changes no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in entries:
            try:
                entry.call(**entry.arguments())
            except Exception as error:  # each spoilt call would only show the same
                yield f"{entry.name} unspoilt: {type(error).__name__}: {error}"
                continue
            for number in range(cases):
                described, problem = outcome(entry, random.Random(f"{seed}-{entry.name}-{number}"))
                if problem is not None:
                    yield f"{described}: {problem}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder of its own: a spoilt path may be a good one."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("group", GROUPS)
def test_unspoilt_calls_work(group):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in doors_of(group):
            entry.call(**entry.arguments())


@pytest.mark.parametrize("cases", [CASES, pytest.param(ALL_CASES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
def test_spoilt_calls_end_well(group, cases):
    wrong = list(failures(cases, SEED, doors_of(group)))
    assert not wrong, "\n".join(wrong)


def test_there_are_two_thousand_cases():
    assert ALL_CASES * sum(len(doors_of(group)) for group in GROUPS) >= 2000


if __name__ == "__main__":
    cases, seed = map(int, sys.argv[1:3] or (CASES, SEED))
    os.chdir(tempfile.mkdtemp())  # a spoilt path may be that of a file here
    for group in GROUPS:
        if not sys.argv[3:] or group in sys.argv[3:]:
            print(f"{group}: {len(doors_of(group))} calls", flush=True)
            for line in failures(cases, seed, doors_of(group)):
                print(line, flush=True)
