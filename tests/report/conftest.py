"""Small pictures: the tests look at what is in them, not at how sharp they are."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    monkeypatch.setattr("marquis.report.canvas.DPI", 50)
