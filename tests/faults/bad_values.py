"""Values that do not belong where they are put: what a fuzzer replaces a good argument by."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Make = Callable[[Any], Any]
"""From the good value to a bad one."""


def _like(change: Callable[[torch.Tensor], Any]) -> Make:
    """A change of a tensor; other values become a tensor first."""

    def make(good: Any) -> Any:
        tensor = good if isinstance(good, torch.Tensor) else torch.ones(4, 3)
        return change(tensor)

    return make


def _poisoned(value: float) -> Callable[[torch.Tensor], Any]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone().double()
        changed.view(-1)[:1] = value
        return changed

    return change


def _constant(value: Any) -> Make:
    return lambda good: value


class Strange:
    """An object of nobody's."""


TENSORS: dict[str, Make] = {
    "NaN": _like(_poisoned(float("nan"))),
    "infinity": _like(_poisoned(float("inf"))),
    "huge": _like(lambda t: t.double() * 1e200),
    "float64": _like(lambda t: t.double()),
    "float16": _like(lambda t: t.half()),
    "integers": _like(lambda t: t.long()),
    "booleans": _like(lambda t: t > 0),
    "complex": _like(lambda t: t.to(torch.complex64)),
    "one axis less": _like(lambda t: t[0] if t.dim() else t),
    "one axis more": _like(lambda t: t.unsqueeze(-1)),
    "one number": _like(lambda t: t.reshape(-1)[0] if t.numel() else t),
    "wider": _like(lambda t: torch.cat([t, t], dim=-1) if t.dim() else t),
    "empty": _like(lambda t: t[:0] if t.dim() else t),
    "one row": _like(lambda t: t[:1] if t.dim() else t),
    "fewer rows": _like(lambda t: t[:-1] if t.dim() else t),
    "sparse": _like(lambda t: t.to_sparse() if not t.is_sparse else t),
    "meta": _like(lambda t: t.to("meta")),
    "numpy": _like(lambda t: t.detach().cpu().numpy()),
    "list": _like(lambda t: t.tolist()),
    "requires grad": _like(lambda t: t.clone().requires_grad_() if t.is_floating_point() else t),
    "not contiguous": _like(lambda t: t.repeat_interleave(2, 0)[::2] if t.dim() else t),
}

VALUES: dict[str, Make] = {
    "None": _constant(None),
    "0": _constant(0),
    "-1": _constant(-1),
    "1e9": _constant(10**9),
    "2.5": _constant(2.5),
    "NaN (float)": _constant(float("nan")),
    "infinity (float)": _constant(float("inf")),
    "True": _constant(True),
    "empty string": _constant(""),
    "string": _constant("strange"),
    "long string": _constant("x" * 5000),
    "bytes": _constant(b"abc"),
    "dictionary": _constant({"a": 1}),
    "empty list": _constant([]),
    "list of None": _constant([None]),
    "object": lambda good: Strange(),
    "class": _constant(Strange),
    "function": _constant(lambda *arguments: None),
    "numpy number": _constant(np.float64(0.5)),
    "numpy array": lambda good: np.ones((4, 3)),
    "array of objects": lambda good: np.array([None, "a"], dtype=object),
    "path": _constant(Path("/proc/nowhere/at/all")),
    "module": lambda good: torch.nn.Linear(2, 2).eval(),
    "module without parameters": lambda good: torch.nn.ReLU().eval(),
    "generator object": lambda good: (value for value in ()),
    "iterator of None": lambda good: iter([None, None]),
    "complex number": _constant(1 + 2j),
}

EVERYTHING: dict[str, Make] = {**TENSORS, **VALUES}


def choose(chooser: random.Random) -> tuple[str, Make]:
    """One way to spoil an argument, by its name."""
    name = chooser.choice(sorted(EVERYTHING))
    return name, EVERYTHING[name]
