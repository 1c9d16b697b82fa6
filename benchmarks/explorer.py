"""Latency of answers and frames per second of the explorer, in headless Chromium.

`python -m benchmarks.explorer RUN [--sizes 1000 10000 60000]` prints two Markdown tables for a run of `marquis train`.
Frames are counted while the map is panned and zoomed for three seconds, one step per frame; the browser offers at most
60 per second. The browser shares the cores of this machine with the model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable

import httpx
import numpy as np
from playwright.sync_api import sync_playwright

from marquis.explorer import Server, Workspace

FRAMES = """
async (zooming) => {
  const map = marquis.maps[0], view = { ...map.view }, times = [], work = [];
  const drawn = map.frame.bind(map);
  map.frame = () => { const from = performance.now(); drawn(); work.push(performance.now() - from); };
  const end = performance.now() + 3000;
  for (let k = 0; performance.now() < end; k++) {
    if (zooming) map.zoom(k % 40 < 20 ? 1.04 : 1 / 1.04);
    else map.pan(view, 120 * Math.sin(k / 15), 80 * Math.sin(k / 11));
    times.push(await new Promise((done) => requestAnimationFrame(done)));
  }
  delete map.frame;
  map.setView(view);
  const timed = () => { const from = performance.now(); map.renderBase(); return performance.now() - from; };
  const again = [timed(), timed(), timed()];
  return [times, work, Math.min(...again)];
}
"""


def milliseconds(ask: Callable[[int], object], repeats: int) -> tuple[float, float, float]:
    """Median and 95 % quantile of the time of an answer, and mean time of the processor: server and client are one."""
    ask(0)
    times, busy = [], time.process_time()
    for k in range(repeats):
        started = time.perf_counter()
        ask(k)
        times.append(1000 * (time.perf_counter() - started))
    busy = time.process_time() - busy
    return statistics.median(times), float(np.quantile(times, 0.95)), 1000 * busy / repeats


def answers(workspace: Workspace, url: str) -> dict[str, tuple[float, float, float]]:
    """Times of the questions of the page, over HTTP."""
    session = workspace.sessions[0]
    rows = len(session.codes)
    with httpx.Client(base_url=url, timeout=120) as client:

        def post(name: str, **question: object) -> None:
            assert client.post(f"/api/{name}", json=question).status_code == 200

        def code(k: int) -> list[float]:
            return session.codes[k % rows].tolist()

        plane = {"origin": [0.0] * session.latent, "u": [1.0, 0.0], "v": [0.0, 1.0], "size": 40}
        return {
            "decode (mean, standard deviation, samples)": milliseconds(lambda k: post("decode", code=code(k)), 60),
            "explain a point": milliseconds(lambda k: post("explain", row=k % rows), 10),
            "impute the upper half": milliseconds(
                lambda k: post("impute", row=k % rows, missing=list(range(session.x[0].numel() // 2))), 5
            ),
            "order 50 neighbours along geodesics": milliseconds(lambda k: post("order", row=k % rows), 3),
            "geodesic between two points": milliseconds(lambda k: post("path", start=code(k), end=code(k + 7)), 3),
            "background: standard deviation, 40 x 40": milliseconds(
                lambda k: post("background", quantity="std", box=[-3 - k, 3, -3, 3], **plane), 3
            ),
            "background: volume, 40 x 40": milliseconds(
                lambda k: post("background", quantity="volume", box=[-3 - k, 3, -3, 3], **plane), 3
            ),
        }


def frames(url: str) -> dict[str, list[float]]:
    """Median frames per second while panning and zooming, script per frame, and drawing all points anew."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        page.wait_for_timeout(1500)
        rows = {}
        for name, zooming in (("pan", False), ("zoom", True)):
            times, work, again = page.evaluate(FRAMES, zooming)
            rows[name] = [1000 / float(np.median(np.diff(times))), float(np.median(work)), again]
        browser.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 60_000])
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| points | median fps, pan | median fps, zoom | script per frame, ms | all points anew, ms |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    first = None
    for size in options.sizes:
        workspace = Workspace([options.run], split="train", most=size)
        with Server(workspace) as server:
            rates = frames(server.url)
            first = first or answers(workspace, server.url)
        (pan, work, again), (zoom, _, _) = rates["pan"], rates["zoom"]
        print(f"| {len(workspace.points.rows):,} | {pan:.0f} | {zoom:.0f} | {work:.1f} | {again:.0f} |", flush=True)
    print("\n| request | processor ms | median ms | 95 % below |\n| --- | ---: | ---: | ---: |")
    for name, (median, most, busy) in (first or {}).items():
        print(f"| {name} | {busy:.0f} | {median:.0f} | {most:.0f} |")
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
