"""The export: one file with all it needs, modules in the order of their imports, and the wheel's files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from marquis.errors import DataError
from marquis.explorer import explore, export_page
from marquis.explorer.assets import ASSETS, SCRIPTS, asset
from marquis.explorer.export import joined_scripts, page_with
from marquis.explorer.json_arrays import packed
from marquis.explorer.thumbnails import sheet_png


def test_every_script_is_listed_after_those_it_imports(repository):
    folder = repository / "src" / "marquis" / "explorer" / "page"
    assert {path.name for path in folder.iterdir()} == {"index.html", *ASSETS}
    for number, name in enumerate(SCRIPTS):
        imported = re.findall(r'^import [^;]* from "\./([\w.-]+)";$', asset(name), flags=re.MULTILINE)
        assert set(imported) <= set(SCRIPTS[:number]), name
        assert len(imported) == asset(name).count("\nimport "), "an import in a form that the export does not know"
    assert not re.search(r"^(import|export) ", joined_scripts(), flags=re.MULTILINE)


def test_names_cannot_leave_the_data(tmp_path):
    page = page_with({"about": {"columns": ["</script><script>alert(1)</script>"]}})
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    held = re.search(r'id="saved">(.*?)</script>', page, flags=re.DOTALL)
    assert held and json.loads(held[1])["about"]["columns"] == ["</script><script>alert(1)</script>"]


def test_the_command_writes_a_page_and_not_over_a_file(marquis, digits_run, tmp_path):
    path = tmp_path / "page.html"
    code, out, _ = marquis("explore", digits_run, "--rows", 30, "--export", path)
    assert code == 0 and "written" in out and path.stat().st_size < 3e6
    assert "http-equiv" in path.read_text() and "/page/" not in path.read_text()
    assert marquis("explore", digits_run, "--export", path)[0] == 2
    assert marquis("explore", digits_run, "--export", tmp_path / "page.pdf")[0] == 2
    assert marquis("explore", tmp_path)[0] == 2


def test_explore_exports_any_model(workspace, tmp_path):
    model = workspace.sessions[0].explored.model
    explore(model, workspace.points.rows[:20], labels=list("ab" * 10), export=tmp_path / "page.html")
    assert '"label_names":["a","b"]' in (tmp_path / "page.html").read_text()
    with pytest.raises(DataError, match=r"\.html"):
        export_page(workspace, tmp_path / "page.txt")


def test_explore_serves_in_a_thread(workspace):
    httpx = pytest.importorskip("httpx")
    model = workspace.sessions[0].explored.model
    server = explore(model, workspace.points.rows[:20], block=False, open_browser=False)
    assert server is not None
    assert httpx.get(f"{server.url}api/about").json()["rows"] == 20
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_arrays_on_the_wire_and_sheets():
    import base64
    import io

    from PIL import Image

    held = packed({"a": np.array([[1.5, np.nan]]), "b": np.float64("inf"), "c": np.array([True]), "d": np.int64(3)})
    assert np.frombuffer(base64.b64decode(held["a"]["data"]), "<f4")[0] == 1.5 and held["a"]["shape"] == [1, 2]
    assert held["b"] is None and held["d"] == 3 and held["c"]["type"] == "u1"
    images = np.random.RandomState(0).rand(40, 1, 4, 5)
    sheet = np.asarray(Image.open(io.BytesIO(sheet_png(images, 0, 1))))
    assert sheet.shape == (8, 160)
    np.testing.assert_array_equal(sheet[4:8, 5:10], (images[33, 0] * 255).round())
