"""The page is one file that obeys nothing in its texts and asks nobody for anything."""

from __future__ import annotations

import base64
from html.parser import HTMLParser

import pytest

from marquis.errors import DataError
from marquis.report import Page
from marquis.report.canvas import new_figure
from marquis.report.html import cell

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'too' <img src=x onerror=y> \x00 \udcff"
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and keeps what matters."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def assert_self_contained(text: str) -> Reader:
    reader = read(text)
    tags = [tag for tag, _ in reader.seen]
    assert not {"script", "link", "iframe", "object", "embed", "form"} & set(tags)
    for tag, attributes in reader.seen:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "href" not in attributes
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,")
            assert attributes["alt"]
    assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
    return reader


def small_figure():
    figure = new_figure(1, 1)
    figure.subplots().plot([0, 1])
    return figure


def test_page_is_self_contained_and_escapes_everything(tmp_path):
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.table([HOSTILE, "b"], [[HOSTILE, HOSTILE]])
    page.figure("one", small_figure(), HOSTILE)
    path = page.write(tmp_path / "report.html")
    reader = assert_self_contained(path.read_text(encoding="utf-8"))
    assert [tag for tag, _ in reader.seen].count("img") == 1
    assert reader.text.count("<script>alert(1)</script>") == 8  # title twice, heading, text, three cells, caption
    picture = next(attributes for tag, attributes in reader.seen if tag == "img")
    assert "<img src=x onerror=y>" in str(picture["alt"])
    embedded = base64.b64decode(str(picture["src"]).split(",")[1])
    assert embedded == (tmp_path / "report" / "one.png").read_bytes()
    assert embedded.startswith(b"\x89PNG")


def test_page_suits_dark_screens_and_forbids_scripts():
    text = Page("title").html()
    assert "prefers-color-scheme: dark" in text
    policy = next(a["content"] for tag, a in read(text).seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = Page("old").write(tmp_path / "report.html")
    page = Page("new")
    monkeypatch.setattr(page, "html", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(path)
    assert "old" in path.read_text()
    assert sorted(result.name for result in tmp_path.iterdir()) == ["report", "report.html"]


@pytest.mark.parametrize("name", ["../evil", "a b", "", "A"])
def test_picture_names_cannot_leave_the_folder(name):
    with pytest.raises(DataError, match="names"):
        Page("title").figure(name, small_figure(), "caption")


def test_pictures_have_different_names_and_rows_the_same_length():
    page = Page("title")
    page.figure("one", small_figure(), "caption")
    with pytest.raises(DataError, match="different names"):
        page.figure("one", small_figure(), "caption")
    with pytest.raises(DataError, match="as many cells"):
        page.table(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (float("nan"), "–"), (0.123456, "0.1235"), (12345.6, "12,346"), (1e9, "1e+09"), (7, "7"), ("a", "a")],
)
def test_cells(value, shown):
    assert cell(value) == shown
