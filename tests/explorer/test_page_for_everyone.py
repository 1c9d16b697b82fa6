"""The page for everyone: colours, contrast, keyboard, screen readers, and addresses that somebody cut short."""

from __future__ import annotations

import itertools
import json
import re
from urllib.parse import quote

import numpy as np
import pytest
from browsing import Visit, needs_browser, until

from marquis.explorer.assets import asset

# Simulated dichromacy (Machado, Oliveira and Fernandes 2009, severity 1), applied to linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def linear(colour: str) -> np.ndarray:
    """Return linear RGB of "#rrggbb"."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIELAB coordinates (D65) of linear RGB."""
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ rgb.clip(0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_classes_stay_apart(vision: str):
    colours = re.findall(r"#\w{6}", re.search(r"CLASSES = \[(.*)\]", asset("palette.js"))[1])
    assert len(colours) == 10
    seen = [lab(np.asarray(VISION[vision]) @ linear(colour)) for colour in colours]
    closest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert closest > 14  # CIE76; matplotlib's ten colours reach 4.6 for protanopia


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme: str):
    rules = re.search(rf'data-theme="{theme}"\] {{(.*?)}}', asset("style.css"), flags=re.DOTALL)[1]
    of = dict(re.findall(r"--([\w-]+): (#\w{6});", rules))
    for text, paper in itertools.product(("ink", "soft", "accent", "wrong", "path"), ("paper", "panel", "raised")):
        light, dark = sorted((linear(of[name]) @ LUMINANCE + 0.05 for name in (text, paper)), reverse=True)
        assert light / dark >= 4.5, (text, paper)  # WCAG 2 level AA


@needs_browser
def test_screen_readers_are_told_everything(visit: Visit):
    tree = visit.page.locator("body").aria_snapshot()
    named = [
        'heading "', 'combobox "Colour"', 'combobox "Background"', 'combobox "Horizontal axis"',
        'button "inspect" [pressed]',
        'button "Zoom in"', 'application "Map of codes', 'tab "Decode" [selected]', 'tab "Missing values"', "status",
        'tabpanel "Decode"', 'list "Legend"', 'button "help"',
    ]  # fmt: skip
    assert [name for name in named if name not in tree] == []
    visit.choose(3)
    visit.page.wait_for_selector("#point h4:has-text('along geodesics')")
    panel = visit.page.locator("#point").aria_snapshot()
    assert 'img "contribution to the score, from' in panel and re.search(r'button "row \d+ \(label', panel)


@needs_browser
def test_everything_by_keyboard(visit: Visit):
    page = visit.page
    page.locator("canvas.map").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#status:has-text('code ')")
    page.wait_for_selector("#decode figure canvas")
    page.keyboard.press("Shift+?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.locator("#tab-decode").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.select_option("#score", "error")
    page.locator("[aria-label='Brush from']").fill("1")
    page.keyboard.press("Tab")
    until(lambda: page.evaluate("marquis.maps[0].dimmed !== null"))
    page.locator("#scores button:has-text('list these rows')").press("Enter")
    listed = page.locator("#selection-count").inner_text()
    bright = page.evaluate("[...marquis.maps[0].dimmed].filter((faint) => !faint).length")
    assert listed.startswith(f"{bright} rows") and "brush" in listed
    page.locator("#selection tbody tr").first.press("Enter")
    until(lambda: visit.marks("row") is not None)
    page.locator("#legend button").first.press("Enter")
    assert page.evaluate("document.activeElement.ariaPressed") == "true"  # the legend is new, the focus stays


@needs_browser
@pytest.mark.parametrize(
    "state",
    [
        "%7B%22tab%22", "{]", "[]", "null",
        {"tab": "nowhere", "mode": 3, "theme": None, "row": "x", "views": [{"a": None}, 1]},
        {"lasso": {"map": 7, "polygon": 3}}, {"lasso": {"map": 1, "polygon": [[0, 0], [1, 0], [1, 1]]}},
        {"colour": "score:unheard", "background": "unheard", "axes": ["z9", "p9"], "score": "unheard", "scoreModel": 1},
        {"colour": "column:3", "row": 10**9, "data": "second", "missing": [10**9], "tab": "missing", "label": 99},
        {"ends": [[[0, 0, 0]], [[1, 1, 1]]], "tab": "path"},
        {"__proto__": {"row": 1}, "sliders": {"0": "x"}, "brush": [1], "threshold": "high"},
    ],
)  # fmt: skip
def test_a_broken_address_leaves_the_page_usable(browser, served, state):
    text = state if isinstance(state, str) else quote(json.dumps(state))
    visit = Visit(browser, f"{served}#{text}")
    visit.choose(3)
    visit.page.wait_for_selector("#point h2:has-text('row 3')", state="attached")
    visit.context.close()
    assert [line for line in visit.complaints if "400" not in line] == []  # the browser notes refused codes
