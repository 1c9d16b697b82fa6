"""The files of the page, which lie in the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SCRIPTS = (
    "arrays.js",
    "dom.js",
    "palette.js",
    "state.js",
    "plane.js",
    "live.js",
    "grid.js",
    "saved.js",
    "pictures.js",
    "points.js",
    "map.js",
    "here.js",
    "point.js",
    "roc.js",
    "scores.js",
    "missing.js",
    "film.js",
    "selection.js",
    "main.js",
)
"""The scripts, each after those that it imports: an export joins them in this order."""
ASSETS = {"style.css": "text/css; charset=utf-8", **{name: "text/javascript; charset=utf-8" for name in SCRIPTS}}


@cache
def asset(name: str) -> str:
    """Return the text of a file of the page; `name` is `index.html` or one of `ASSETS`."""
    if name != "index.html" and name not in ASSETS:
        raise KeyError(name)
    return (files("marquis.explorer") / "page" / name).read_text(encoding="utf-8")
