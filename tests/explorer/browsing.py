"""A browser for tests of the explorer's page, and how to find one's way on it."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PACKAGES = all(importlib.util.find_spec(name) for name in ("fastapi", "playwright"))
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or not PACKAGES, reason="needs chromium (apt-get install chromium), fastapi and playwright"
)


class Visit:
    """A page with what it asked for and complained about."""

    def __init__(self, browser: Any, url: str, width: int = 1280, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True, **options)
        self.page, self.url = self.context.new_page(), url
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("request", self._asked)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url.split("#")[0], "data:", "blob:")):
            self.foreign.append(request.url)

    def at(self, row: int, number: int = 0) -> tuple[float, float]:
        """Return where a point is on the screen."""
        box = self.page.locator("canvas.map").nth(number).bounding_box()
        x, y = self.page.evaluate(
            "([m, i]) => { const map = marquis.maps[m], v = map.toScreen(); return [v.x(map.xs[i]), v.y(map.ys[i])]; }",
            [number, row],
        )
        return box["x"] + x, box["y"] + y

    def choose(self, row: int, number: int = 0) -> None:
        place = None
        while place != (place := self.at(row, number)):  # a legend that arrives late moves the map
            self.page.wait_for_timeout(50)
        self.page.mouse.click(*place)

    def drag(self, *places: tuple[float, float]) -> None:
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place, steps=4)
        self.page.mouse.up()

    def marks(self, name: str, number: int = 0) -> Any:
        return self.page.evaluate(f"marquis.maps[{number}].marks.{name} ?? null")


def isolated(codes: np.ndarray) -> list[int]:
    """Return rows, the farthest from their nearest neighbours first: a click there can mean no other."""
    distance = np.linalg.norm(codes[:, None, :2] - codes[None, :, :2], axis=2) + np.diag(np.full(len(codes), np.inf))
    return list(np.argsort(-distance.min(1)))


def checked(visit: Visit) -> Iterator[Visit]:
    """Yield a visit, and demand that it ends without a complaint and without a request to another host."""
    yield visit
    visit.context.close()
    assert visit.complaints == [] and visit.foreign == []


def until(true: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
