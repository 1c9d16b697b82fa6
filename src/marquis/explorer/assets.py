"""Read the files of the page, which are part of the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SCRIPTS = (
    "arrays.js",
    "dom.js",
    "palette.js",
    "state.js",
    "quantities.js",
    "latent-plane.js",
    "server-answers.js",
    "grid-geodesics.js",
    "export-answers.js",
    "pictures.js",
    "column-table.js",
    "map-points.js",
    "map-marks.js",
    "latent-map.js",
    "point-panel.js",
    "decode-panel.js",
    "roc-curve.js",
    "scores-panel.js",
    "missing-panel.js",
    "path-panel.js",
    "selection-panel.js",
    "map-colours.js",
    "save-view.js",
    "toolbar.js",
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
