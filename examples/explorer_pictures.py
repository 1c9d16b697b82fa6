"""Draw the pictures of docs/explorer.md: every panel of the explorer, for a run on digits and one on a table.

`python examples/explorer_pictures.py DIGITS-LAE DIGITS-VAE TABLE` takes three folders of runs, made by
`marquis train lae --data digits --latent 2 --epochs 60`, the same with `vae`, and
`marquis train lae --data wine.csv --target cultivar --latent 3` on scikit-learn's wine.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from marquis.explorer import Server, Workspace

PLACE = "([m, i]) => { const map = marquis.maps[m], v = map.toScreen(); return [v.x(map.xs[i]), v.y(map.ys[i])]; }"


class Camera:
    """A page of the explorer, and where its pictures go."""

    def __init__(self, browser: Any, url: str, out: Path, prefix: str) -> None:
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 860})
        self.out, self.prefix = out, prefix
        self.page.set_default_timeout(120_000)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def at(self, row: int, number: int = 0) -> tuple[float, float]:
        """Return where a point is on the screen."""
        box = self.page.locator("canvas.map").nth(number).bounding_box()
        assert box is not None
        x, y = self.page.evaluate(PLACE, [number, row])
        return box["x"] + x, box["y"] + y

    def take(self, name: str) -> None:
        """Write a picture."""
        self.page.wait_for_timeout(800)
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        image.save(self.out / f"{self.prefix}-{name}.webp", quality=85, method=6)

    def tab(self, name: str) -> None:
        """Open a panel."""
        self.page.click(f"#tab-{name}")

    def background(self, name: str) -> None:
        """Choose the background and wait for it."""
        self.page.select_option("#background", name)
        self.page.wait_for_selector("figcaption .ramp.field")

    def point(self, row: int) -> None:
        """Select a point and wait for its neighbours along geodesics."""
        self.page.click("[data-mode=inspect]")
        self.page.mouse.click(*self.at(row))
        self.page.wait_for_selector("#point h4:has-text('along geodesics')")

    def threshold(self, step: int) -> None:
        """Move the threshold of the score."""
        self.tab("scores")
        self.page.locator("#threshold").evaluate(f"s => {{ s.value = {step}; s.dispatchEvent(new Event('input')); }}")

    def path(self, first: int, second: int) -> None:
        """Interpolate between two points, and stop in the middle."""
        self.page.click("[data-mode=path]")
        for row in (first, second):
            self.page.mouse.click(*self.at(row))
        self.page.wait_for_selector("#path figure canvas, #path table")
        self.page.locator("#path input").evaluate("s => { s.value = 16; s.dispatchEvent(new Event('input')); }")

    def lasso(self, row: int) -> None:
        """Draw around a point."""
        x, y = self.at(row)
        self.page.click("[data-mode=lasso]")
        self.page.mouse.move(x + 90, y)
        self.page.mouse.down()
        for angle in np.linspace(0, 2 * np.pi, 30):
            self.page.mouse.move(x + 90 * np.cos(angle), y + 70 * np.sin(angle))
        self.page.mouse.up()


def far_apart(codes: np.ndarray) -> tuple[int, int]:
    """Return two points whose codes are far from each other, and each on the edge of the data."""
    first = int(((codes - codes.mean(0)) ** 2).sum(1).argmax())
    return first, int(((codes - codes[first]) ** 2).sum(1).argmax())


def panels(camera: Camera, session: Any, hide: str) -> None:
    """Take every panel of one model."""
    codes = session.codes if session.latent == 2 else (session.codes - session.principal[0]) @ session.principal[1].T
    outlier, central = int(session.scores["nll"].argmax()), int(((codes - codes.mean(0)) ** 2).sum(1).argmin())
    camera.background("std")
    camera.page.mouse.move(*camera.at(central))
    camera.page.wait_for_selector("#decode canvas, #decode table")
    camera.take("decode")
    camera.point(outlier)
    camera.take("point")
    camera.tab("missing")
    camera.page.locator(hide).first.click()
    camera.page.wait_for_selector("#missing .samples canvas, #missing table")
    camera.take("missing")
    camera.threshold(500)
    camera.take("scores")
    camera.page.click("#scores button:has-text('clear')")
    camera.background("volume")
    camera.path(*far_apart(codes))
    camera.take("path")
    camera.lasso(central)
    camera.take("selection")


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs=3, help="digits by lae, digits by vae, a table by lae")
    parser.add_argument("--out", type=Path, default=Path("docs/assets/explorer"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    digits, vae, table = options.runs
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        workspace = Workspace([digits])
        workspace.set_second(type(workspace.points)(np.rot90(workspace.points.rows, axes=(2, 3)), None, "sideways.npz"))
        with Server(workspace) as server:
            camera = Camera(browser, server.url, options.out, "digits")
            panels(camera, workspace.sessions[0], "#missing button:has-text('hide top')")
            camera = Camera(browser, f"{server.url}#%7B%22theme%22%3A%22dark%22%7D", options.out, "digits")
            for _ in range(4):
                camera.page.click("#zoom-in")
            camera.page.mouse.move(400, 300)
            camera.take("thumbnails")
        with Server(Workspace([digits, vae])) as server:
            camera = Camera(browser, server.url, options.out, "digits")
            camera.background("total_std")
            camera.page.mouse.move(*camera.at(12))
            camera.page.wait_for_selector("#decode section:last-child canvas")
            camera.take("two-models")
        workspace = Workspace([table], split="all")
        with Server(workspace) as server:
            camera = Camera(browser, server.url, options.out, "table")
            panels(camera, workspace.sessions[0], "#missing input[type=checkbox]:not(:checked)")
        browser.close()


if __name__ == "__main__":
    main()
