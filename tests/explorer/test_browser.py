"""The page in a real browser: every panel, an export opened from disk without a network, and hostile names."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from browsing import Visit, isolated, needs_browser, until

from conftest import HOSTILE

pytestmark = needs_browser


def test_hover_decodes_with_eight_samples(visit: Visit):
    visit.page.mouse.move(*visit.at(3))
    visit.page.wait_for_selector("#decode .samples canvas:nth-child(8)")
    assert visit.page.locator("#decode figure canvas").count() == 2
    before = visit.page.locator("#decode figure canvas").first.evaluate("c => c.toDataURL()")
    x, y = visit.at(3)
    visit.page.mouse.move(x + 150, y + 100)
    until(lambda: visit.page.locator("#decode figure canvas").first.evaluate("c => c.toDataURL()") != before)


def test_click_explains_a_point(visit: Visit, workspace):
    row = int(isolated(workspace.sessions[0].codes)[0])
    visit.choose(row)
    visit.page.wait_for_selector("#point h4:has-text('along geodesics')")
    assert visit.page.locator("#point figure canvas").count() == 5
    assert visit.page.locator("#point h2").inner_text().startswith(f"row {row} (")
    assert visit.marks("row") == row
    assert visit.marks("neighbours") == list(workspace.sessions[0].explain(row)["neighbours"])
    assert visit.marks("ellipse") is not None
    near = visit.page.locator("#point .row-button").first
    near.click()
    until(lambda: visit.marks("row") == int(workspace.sessions[0].explain(row)["neighbours"][0]))


def test_colour_background_axes_and_the_copied_link(visit: Visit, browser, served):
    page = visit.page
    plain = page.evaluate("Array.from(marquis.maps[0].colours.slice(0, 20))")
    page.select_option("#colour", "score:latent_std")
    assert page.evaluate("Array.from(marquis.maps[0].colours.slice(0, 20))") != plain
    assert page.locator("figcaption .ramp.sequential").count() == 1
    for quantity in ("density", "volume", "total_std", "std"):
        page.select_option("#background", quantity)
        page.wait_for_selector("figcaption .ramp.field")
    page.select_option("#axis-x", "p0")
    visit.choose(7)
    page.wait_for_selector("#point figure canvas")
    page.click("#theme")
    page.wait_for_timeout(300)
    again = Visit(browser, page.url)
    again.page.wait_for_selector("#point figure canvas")
    assert again.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.page.input_value("#colour") == "score:latent_std"
    assert again.page.input_value("#background") == "std" and again.page.input_value("#axis-x") == "p0"
    assert again.page.locator("#point h2").inner_text() == page.locator("#point h2").inner_text()
    again.context.close()
    assert not again.complaints


def test_brush_and_threshold_are_linked_to_the_map(visit: Visit, workspace):
    page = visit.page
    page.click("#tab-scores")
    page.select_option("#score", "error")
    box = page.locator("canvas.histogram").bounding_box()
    y = box["y"] + 40
    visit.drag((box["x"] + 0.5 * box["width"], y), (box["x"] + box["width"] - 1, y))
    scores = workspace.sessions[0].scores["error"]
    middle = (scores.min() + np.sort(scores)[int(0.995 * len(scores))]) / 2
    bright = page.evaluate("[...marquis.maps[0].dimmed.keys()].filter((k) => !marquis.maps[0].dimmed[k])")
    assert 0 < len(bright) < len(scores) / 2
    assert (scores[bright] > middle * 0.95).all()
    page.click("#scores button:has-text('clear')")
    page.locator("#threshold").evaluate("s => { s.value = 600; s.dispatchEvent(new Event('input')); }")
    shown = page.locator("#flagged-count").inner_text()
    limit = scores.min() + 0.6 * (np.sort(scores)[int(0.995 * len(scores))] - scores.min())
    assert f"{(scores > limit).sum()} of {len(scores)}" in shown
    assert page.locator("#flagged .row-button").count() == min(16, (scores > limit).sum())


def test_upload_of_a_second_data_set_and_of_nonsense(visit: Visit, workspace, tmp_path: Path):
    page = visit.page
    page.click("#tab-scores")
    (tmp_path / "nonsense.csv").write_text("a,b\n1,2\n")
    page.set_input_files("#second-file", tmp_path / "nonsense.csv")
    page.wait_for_selector("#status.wrong:has-text('nonsense.csv')")
    visit.complaints.clear()  # the browser itself notes the status 400
    noisy = workspace.points.rows[:40] + 0.15 * np.random.RandomState(0).randn(40, 1, 8, 8).astype(np.float32)
    np.savez(tmp_path / "noisy.npz", x=noisy)
    page.set_input_files("#second-file", tmp_path / "noisy.npz")
    page.wait_for_selector("#roc canvas")
    for score in ("combined", "latent_std"):
        page.select_option("#score", score)
        expected = workspace.second[1][0]["roc"][score]["auroc"]
        assert 0.5 < expected < 1 and page.locator("#roc tr.chosen td").inner_text() == f"{expected:.3f}"
    assert page.evaluate("marquis.maps[0].extra[0].length") == 40
    workspace.second = None


def test_painting_a_mask_imputes(visit: Visit):
    page = visit.page
    visit.choose(5)
    page.wait_for_selector("#point figure canvas")
    page.click("#tab-missing")
    page.wait_for_selector("#paint")
    box = page.locator("#paint").bounding_box()
    visit.drag((box["x"] + 30, box["y"] + 30), (box["x"] + 150, box["y"] + 60))
    page.wait_for_selector("#missing .samples canvas:nth-child(8)")
    assert page.locator("#missing figure canvas").count() == 2
    page.click("#missing button:has-text('hide top')")
    page.wait_for_timeout(200)
    page.wait_for_selector("#missing .samples canvas:nth-child(8)")


def test_lasso_table_csv_and_png(visit: Visit, workspace, tmp_path: Path):
    page = visit.page
    page.click("[data-mode=lasso]")
    box = page.locator("canvas.map").bounding_box()
    left, top, right, bottom = box["x"] + 5, box["y"] + 5, box["x"] + box["width"] / 2, box["y"] + box["height"] - 5
    visit.drag((left, top), (right, top), (right, bottom), (left, bottom))
    page.wait_for_selector("#selection tbody tr")
    codes, edge = workspace.sessions[0].codes, page.evaluate("marquis.maps[0].view.a")
    inside = np.flatnonzero(codes[:, 0] < edge)
    with page.expect_download() as saved:
        page.click("#csv")
    saved.value.save_as(tmp_path / "selection.csv")
    rows = list(csv.DictReader((tmp_path / "selection.csv").open()))
    assert {int(row["row"]) for row in rows} == set(inside.tolist())
    assert float(rows[0]["nll"]) == pytest.approx(workspace.sessions[0].scores["nll"][int(rows[0]["row"])], rel=1e-5)
    with page.expect_download() as saved:
        page.click("#png")
    saved.value.save_as(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def between(visit: Visit, rows: tuple[int, int]) -> None:
    visit.page.click("[data-mode=path]")
    for row in rows:
        visit.choose(row)
    visit.page.wait_for_selector("#path figure canvas, #path table")
    assert "geodesic" in visit.page.locator("#path").inner_text()


def test_geodesic_as_a_film(visit: Visit, workspace):
    first, second = map(int, isolated(workspace.sessions[0].codes)[:2])
    between(visit, (first, second))
    curves = visit.marks("curves")
    assert [len(curve["codes"]) for curve in curves] == [33, 33]
    expected = workspace.sessions[0].path(*np.round(workspace.sessions[0].codes[[first, second]], 4))
    np.testing.assert_allclose(curves[0]["codes"], expected["geodesic"]["codes"], atol=0.02)
    start = visit.marks("cursor")
    visit.page.click("#play")
    until(lambda: visit.marks("cursor") != start)
    visit.page.click("#play")


def test_two_models_share_selection_and_cursors(compared: Visit, pair):
    page = compared.page
    row = int(isolated(pair.sessions[1].codes)[0])
    compared.page.mouse.move(*compared.at(row, 1))
    page.wait_for_selector("#decode section:nth-of-type(1) figure canvas")
    page.wait_for_selector("#decode section:nth-of-type(2) figure canvas")
    np.testing.assert_allclose(compared.marks("cursor", 0), pair.sessions[0].codes[row], atol=1e-4)
    assert page.locator("#decode section:nth-of-type(2) .samples canvas").count() == 0  # one network has no samples
    compared.choose(row, 1)
    page.wait_for_selector("#point section:nth-of-type(2) figure canvas")
    until(lambda: compared.marks("row", 0) == compared.marks("row", 1) == row)


def test_a_table_with_a_hostile_column(of_table: Visit, table):
    page = of_table.page
    row = int(isolated(table.sessions[0].codes @ table.sessions[0].principal[1].T)[0])
    of_table.choose(row)
    page.wait_for_selector("#point tbody tr:nth-child(5)")
    assert HOSTILE in page.locator("#point table").inner_text()
    assert page.evaluate("window.hacked") is None
    page.select_option("#colour", "column:1")
    page.click("#tab-missing")
    page.locator("#missing input[type=checkbox]:not(:checked)").first.click()
    page.wait_for_selector("#missing table[aria-label=Imputations] tbody tr")
    page.click("summary")
    page.locator("#sliders input").first.evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
    page.mouse.move(*of_table.at(3))
    page.click("#tab-decode")
    page.wait_for_selector("#decode table")


def test_keyboard_labels_and_small_screens(browser, served):
    visit = Visit(browser, served, width=1024, color_scheme="dark")
    page = visit.page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1024
    page.locator("canvas.map").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#decode figure canvas")
    page.keyboard.press("+")
    page.keyboard.press("0")
    page.locator("#tab-decode").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-point").get_attribute("aria-selected") == "true"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, canvas')]
        .filter((e) => e.offsetParent && !(e.innerText || e.getAttribute('aria-label') || e.labels?.length || e.title))
        .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    visit.context.close()
    assert visit.complaints == []


def test_a_failing_request_leaves_the_page_usable(visit: Visit):
    page = visit.page
    page.route("**/api/explain", lambda route: route.fulfill(status=400, json={"error": "a clear line"}))
    visit.choose(2)
    page.wait_for_selector("#status.wrong:has-text('a clear line')")
    page.route("**/api/explain", lambda route: route.abort())
    visit.choose(9)
    page.wait_for_selector("#status.wrong:has-text('does not answer')")
    page.unroute("**/api/explain")
    visit.choose(4)
    page.wait_for_selector("#point figure canvas")
    visit.complaints.clear()  # the browser itself notes failed requests


@pytest.mark.parametrize("kind", ["workspace", "table"])
def test_an_export_opens_from_disk_without_a_network(browser, kind: str, request, tmp_path: Path):
    from marquis.explorer import export_page

    shown = request.getfixturevalue(kind)
    path = export_page(shown, tmp_path / "page.html")
    assert path.stat().st_size < 20e6
    visit = Visit(browser, path.as_uri(), offline=True)
    page, session = visit.page, shown.sessions[0]
    page.mouse.move(*visit.at(3))
    page.wait_for_selector("#decode figure canvas" if kind == "workspace" else "#decode table")
    page.select_option("#background", "std")
    row = int(isolated(session.codes if session.latent == 2 else session.codes @ session.principal[1].T)[0])
    visit.choose(row)
    page.wait_for_selector("#point figure canvas:nth-child(1)" if kind == "workspace" else "#point table")
    assert visit.marks("neighbours") == list(session.explain(row)["neighbours"])
    between(visit, (row, 8))
    page.click("#tab-missing")
    assert "needs the model" in page.locator("#missing").inner_text()
    assert page.evaluate("window.hacked") is None
    visit.context.close()
    assert visit.complaints == [] and visit.foreign == []
