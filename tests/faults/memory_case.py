"""Measure one curvature call in a fresh process: prints the planned and the measured bytes as JSON.

`python memory_case.py NETWORK STRUCTURE ESTIMATOR [LIMIT]`; measured is the growth of the resident set (Linux).
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.curvature import ggn, plan
from marquis.errors import MemoryBudgetError, UnsupportedOperationError


class Words(nn.Module):
    """An encoder transformer that classifies sequences."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.words = nn.Embedding(500, width)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x)).mean(1))


def network(name: str) -> tuple[nn.Module, Tensor, str]:
    torch.manual_seed(0)
    if name == "dense":
        sizes = (784, 512, 64, 2, 64, 512, 784)
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
        return nn.Sequential(*layers[:-1]), torch.randn(1024, 784), "gaussian"
    if name == "convolutional":
        encoder = (nn.Conv2d(1, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 32, 3, 2, 1), nn.Tanh(), nn.Flatten())
        decoder = (nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(16, 1, 4, 2, 1))
        middle = (nn.Linear(1568, 8), nn.Linear(8, 1568), nn.Unflatten(1, (32, 7, 7)))
        return nn.Sequential(*encoder, *middle, *decoder), torch.randn(256, 1, 28, 28), "gaussian"
    if name == "lenet":
        first = (nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh())
        last = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh())
        return nn.Sequential(*first, *last, nn.Linear(84, 10)), torch.randn(512, 1, 28, 28), "categorical"
    return Words(), torch.randint(0, 500, (160, 16)), "categorical"


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(name: str, structure: str, estimator: str, limit: int | None) -> dict[str, Any]:
    model, x, likelihood = network(name)
    model.eval()
    if limit is not None:
        x = x[:4]
    try:
        planned = plan(model, x, likelihood, structure, estimator, memory_limit=limit).total_bytes
        ggn(model, x[:3], likelihood, structure, estimator)  # captures, and loads what torch loads on first use
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        before = resident("VmRSS")
        result = ggn(model, x, likelihood, structure, estimator, memory_limit=limit)
        measured = resident("VmHWM") - before
    except (MemoryBudgetError, UnsupportedOperationError) as error:
        return {"refused": str(error)}
    return {"planned": planned, "measured": measured, "result": result.nbytes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    words = sys.argv[1:]
    print(json.dumps(measure(*words[:3], int(words[3]) if len(words) > 3 else None)))  # type: ignore[call-arg]
