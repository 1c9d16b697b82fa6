"""Details of the page in a real browser: withdrawn questions, thumbnails, scales, labels, categories, dropped files."""

from __future__ import annotations

import base64
import io
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from browsing import Visit, checked, isolated, needs_browser, until
from PIL import Image
from sklearn.datasets import load_wine

from marquis.explorer import explore

pytestmark = needs_browser


def test_questions_are_withdrawn_when_the_mouse_has_moved_on(visit: Visit):
    page, withdrawn, requested = visit.page, [], []
    page.on("requestfailed", lambda request: withdrawn.append(request.url))
    page.on("request", lambda request: "decode" in request.url and requested.append(request.post_data_json["code"]))
    page.route("**/api/decode", lambda route: (time.sleep(0.15), route.continue_()))
    x, y = visit.at(3)
    for step in range(8):
        page.mouse.move(x + 8 * step, y)
        page.wait_for_timeout(30)
    page.wait_for_selector("#decode figure canvas")
    until(lambda: withdrawn)
    assert all(url.endswith("/api/decode") for url in withdrawn)
    code = page.evaluate("marquis.maps[0].marks.cursor")
    assert requested[-1] == code  # what is shown belongs to where the mouse rests
    page.click("#tab-scores")
    page.wait_for_timeout(300)
    before = len(requested)
    page.mouse.move(x, y)
    page.wait_for_timeout(300)
    assert len(requested) == before  # nobody looks at the panel
    page.click("#tab-decode")
    until(lambda: len(requested) == before + 1)  # now somebody does


def test_the_map_stays_where_it_is_when_its_background_arrives(visit: Visit):
    """A legend that appears late would shift the points under a click."""
    page, held = visit.page, []
    page.route("**/api/background", lambda route: held.append(route))
    canvas = page.locator("canvas.map").first
    page.reload()
    page.wait_for_selector("html[data-ready]")
    until(lambda: held)
    before = canvas.bounding_box()
    held.pop().continue_()
    until(lambda: page.evaluate("marquis.maps[0].backgroundScale !== null"))
    assert canvas.bounding_box() == before


def test_a_moving_map_is_not_drawn_anew(visit: Visit):
    """While one pans and zooms a bitmap moves, so that many points stay smooth; it is drawn anew at rest."""
    page = visit.page
    page.wait_for_timeout(500)
    counts = page.evaluate(
        """async () => {
        const map = marquis.maps[0], view = { ...map.view }, drawn = map.renderBase.bind(map);
        let count = 0;
        map.rest = 2000; // however slow this machine is
        map.renderBase = () => { count++; drawn(); };
        for (let k = 0; k < 12; k++) {
          if (k % 2) map.zoom(1.05);
          else map.pan(view, 5 * k, k);
          await new Promise((done) => requestAnimationFrame(done));
        }
        const moving = count;
        await new Promise((done) => setTimeout(done, 4000));
        return [moving, count];
        }"""
    )
    assert counts == [0, 1]


def test_thumbnails_appear_when_zoomed_in(browser, digits_run):
    from marquis.explorer import Server, Workspace

    with Server(Workspace([digits_run], split="all", most=500, progress=False)) as server:
        visit = Visit(browser, server.url)
        page = visit.page
        drawn = "marquis.thumbnails.main.sheets.size"
        assert page.evaluate(drawn) == 0
        for _ in range(5):
            page.click("#zoom-in")
        until(lambda: page.evaluate(drawn) > 0)
        page.wait_for_timeout(600)
        shown = page.evaluate("marquis.maps[0].base.toDataURL()")
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1]))).convert("RGB")).astype(int)
        grey = (np.ptp(pixels, axis=2) == 0) & (pixels[..., 0] > 60) & (pixels[..., 0] < 200)
        assert grey.mean() > 0.005  # digits in grey, which nothing else on the map is
        visit.context.close()
        assert visit.complaints == [] and visit.foreign == []


def test_standard_deviations_share_one_scale(visit: Visit, workspace):
    page, session = visit.page, workspace.sessions[0]
    names = []
    for row in (3, 40):
        page.mouse.move(*visit.at(row))
        page.wait_for_timeout(500)
        names.append(page.locator("#decode figure canvas").nth(1).get_attribute("aria-label"))
    assert names[0] == names[1] and "standard deviation, from 0 (dark)" in names[0]
    inside = np.concatenate([session.decode(code)["std"].ravel() for code in session.codes[:40]])
    assert 0.3 * np.quantile(inside, 0.99) < session.std_scale < 20 * np.quantile(inside, 0.99)


def test_a_label_of_the_legend_is_highlighted_and_listed(visit: Visit, workspace):
    page = visit.page
    page.click("#legend button:has-text('3')")
    bright = page.evaluate("[...marquis.maps[0].dimmed.keys()].filter((k) => !marquis.maps[0].dimmed[k])")
    assert bright == np.flatnonzero(np.asarray(workspace.points.labels) == 3).tolist()
    page.click("#tab-selection")
    assert page.locator("#selection-count").inner_text() == f"{len(bright)} rows with label 3"
    assert page.locator("#selection .row-button").count() == min(32, len(bright))
    page.click("#legend button:has-text('3')")
    assert page.evaluate("marquis.maps[0].dimmed") is None


def test_painting_over_hidden_pixels_restores_them(visit: Visit):
    page = visit.page
    visit.choose(5)
    page.click("#tab-missing")
    page.wait_for_selector("#paint")
    page.click("#missing button:has-text('hide top')")
    hidden = "JSON.parse(decodeURIComponent(location.hash.slice(1))).missing?.length ?? 0"
    until(lambda: page.evaluate(hidden) == 32)
    page.wait_for_selector("#missing .samples canvas:nth-child(8)")
    box = page.locator("#paint").bounding_box()
    visit.drag((box["x"] + 5, box["y"] + 5), (box["x"] + box["width"] - 5, box["y"] + 5))
    until(lambda: page.evaluate(hidden) == 24)
    bottom = box["y"] + box["height"] - 5
    visit.drag((box["x"] + 5, bottom), (box["x"] + box["width"] - 5, bottom))
    until(lambda: page.evaluate(hidden) == 32)


def test_an_estimator_with_categories_and_missing_values(browser, tmp_path):
    from marquis.explorer import Server, Workspace
    from marquis.sklearn import LaplacianAutoencoder

    wine = load_wine(as_frame=True)
    X: pd.DataFrame = wine.data.iloc[:, :4].mask(np.random.RandomState(0).rand(178, 4) < 0.1)  # pyright: ignore
    X["kind"] = pd.Categorical(np.where(wine.target == 0, "red", "white"))  # pyright: ignore
    estimator = LaplacianAutoencoder(max_iter=5, samples=5, random_state=0).fit(X)
    shown = Workspace([estimator], X, progress=False)
    with Server(shown) as server:
        visits = checked(Visit(browser, server.url))
        visit = next(visits)
        page = visit.page
        page.select_option("#colour", "column:4")
        assert [text.strip() for text in page.locator("#legend li").all_inner_texts()] == ["kind", "red", "white"]
        complete = X.notna().all(axis=1).to_numpy()
        session = shown.sessions[0]
        codes = session.codes if session.latent == 2 else session.codes @ session.principal[1].T
        row = next(int(k) for k in isolated(codes) if complete[k])
        visit.choose(row)
        page.wait_for_selector("#point tbody tr:nth-child(5)")
        assert X["kind"][row] in page.locator("#point table").inner_text()
        page.click("#tab-missing")
        page.locator("#missing input[type=checkbox]").last.click()
        page.wait_for_selector("#missing table[aria-label=Imputations] tbody tr")
        assert page.locator("#missing tbody td").first.inner_text() in ("red", "white")
        # a file with the columns in another order and one more: matched by name, categories by their names
        X.assign(other=1.0)[["other", "kind", *X.columns[:4][::-1]]].to_csv(tmp_path / "same.csv", index=False)
        page.click("#tab-scores")
        page.set_input_files("#second-file", tmp_path / "same.csv")
        page.wait_for_selector("#roc canvas")
        np.testing.assert_allclose(shown.second[1][0]["codes"], session.codes, atol=1e-6)
        X.drop(columns="alcohol").to_csv(tmp_path / "less.csv", index=False)
        page.set_input_files("#second-file", tmp_path / "less.csv")
        page.wait_for_selector("#status.wrong:has-text('no column')")
        visit.complaints.clear()  # the browser itself notes the status 400
        assert list(visits) == []


def test_a_dropped_file_and_the_threshold_on_the_roc_curve(visit: Visit, workspace):
    page, buffer = visit.page, io.BytesIO()
    noisy = workspace.points.rows[:30] + 0.2 * np.random.RandomState(0).randn(30, 1, 8, 8).astype(np.float32)
    np.save(buffer, noisy)
    page.click("#tab-scores")
    page.evaluate(
        """(text) => {
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), dropped = new DataTransfer();
        dropped.items.add(new File([bytes], "noisy.npy"));
        const drop = new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true });
        document.querySelector(".drop").dispatchEvent(drop);
        }""",
        base64.b64encode(buffer.getvalue()).decode(),
    )
    page.wait_for_selector("#roc canvas")
    page.locator("#threshold").evaluate("s => { s.value = 300; s.dispatchEvent(new Event('input')); }")
    scores = [workspace.sessions[0].scores["combined"], workspace.second[1][0]["scores"]["combined"]]
    low, high = min(score.min() for score in scores), max(np.sort(score)[int(0.995 * len(score))] for score in scores)
    over = [(score > low + 0.3 * (high - low)).sum() for score in scores]
    shown = page.locator("#flagged-count").inner_text()
    assert f"{over[0]} of 150 rows" in shown and f"{over[1]} of 30 of noisy.npy" in shown
    workspace.second = None


def test_scores_of_either_model(compared: Visit, pair):
    page = compared.page
    page.click("#tab-scores")
    page.select_option("#score-model", "1")
    page.select_option("#score", "error")
    page.locator("#threshold").evaluate("s => { s.value = 500; s.dispatchEvent(new Event('input')); }")
    scores = pair.sessions[1].scores["error"]
    limit = scores.min() + 0.5 * (np.sort(scores)[int(0.995 * len(scores))] - scores.min())
    assert f"{(scores > limit).sum()} of {len(scores)}" in page.locator("#flagged-count").inner_text()
    for number in (0, 1):
        faint = np.array(page.evaluate(f"[...marquis.maps[{number}].dimmed]"))
        np.testing.assert_array_equal(faint == 0, scores > limit)


def test_the_saved_image_has_the_legend(visit: Visit, tmp_path):
    with visit.page.expect_download() as saved:
        visit.page.click("#png")
    saved.value.save_as(tmp_path / "map.png")
    image = np.asarray(Image.open(tmp_path / "map.png").convert("RGB")).astype(int)
    box = visit.page.locator("canvas.map").bounding_box()
    assert image.shape[1] == pytest.approx(box["width"], abs=2) and image.shape[0] > box["height"] + 60
    below = image[round(box["height"]) + 30 :].reshape(-1, 3)
    for colour in ([63, 144, 218], [255, 169, 14], [189, 31, 1]):  # swatches of the labels
        assert (np.abs(below - colour).max(1) < 3).sum() > 50


def test_a_notebook_shows_the_page_in_a_frame(browser, workspace, monkeypatch):
    """A notebook on this machine, by its name localhost, may show the page that 127.0.0.1 serves in a frame."""
    frames = []
    shell = type("ZMQInteractiveShell", (), {})()
    parts = {"IFrame": lambda url, **options: (url, options), "display": frames.append}
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(**parts))
    server = explore(workspace.sessions[0].explored.model, workspace.points.rows[:30])
    assert server is not None and [url for url, _ in frames] == [server.url]

    class Notebook(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f'<iframe src="{frames[0][0]}" width="1100" height="700"></iframe>'.encode())

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with server, HTTPServer(("127.0.0.1", 0), Notebook) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(f"http://localhost:{notebook.server_port}/")
        page.frame_locator("iframe").locator("html[data-ready]").wait_for()
        page.frame_locator("iframe").locator("canvas.map").hover()
        page.frame_locator("iframe").locator("#decode figure canvas").first.wait_for()
        page.close()
        notebook.shutdown()
