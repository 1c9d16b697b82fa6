"""Runs every inherited test on each of its class's output shapes."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.cls is not None and "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", metafunc.cls.shapes, ids=str)
