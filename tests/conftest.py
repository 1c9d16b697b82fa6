"""Shared by every test: one thread per worker, and a note of where the repository is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports torch: two test workers on two cores, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent
