"""Every page of the documentation that a source file cites is there, and so is the section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ["src", "experiments", "tests", "docs", "examples", "benchmarks"]
CITATION = re.compile(r"\bdocs/([\w/-]+)\.md(?:#([\w-]+))?")
# Continuations such as `docs/method/online.md#presets, #checks` are not followed: cite each section in full.


def files() -> list[Path]:
    """The files in which a citation may stand: sources, tests and pages, but not results."""
    inside = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in {".py", ".md", ".toml"}]
    return sorted([*inside, *ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "mkdocs.yml"])


def anchors(page: str) -> set[str]:
    """The anchors that mkdocs gives to a page's headings; code blocks have none."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    slugs: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading)).strip().lower()
        slugs.append(re.sub(r"[-\s]+", "-", plain))
    return set(slugs)


def missing_targets(text: str, root: Path = ROOT) -> list[str]:
    """The citations in a text whose page or section does not exist."""
    missing = []
    for match in CITATION.finditer(text):
        page = root / "docs" / f"{match[1]}.md"
        if not page.is_file() or (match[2] and match[2] not in anchors(page.read_text())):
            missing.append(match[0])
    return missing


@pytest.mark.parametrize("room", [*ROOMS, "."])
def test_cited_pages_and_sections_exist(room):
    wrong = {}
    for path in files():
        first = path.relative_to(ROOT).parts[0]
        if (first if first in ROOMS else ".") == room and path != Path(__file__):
            missing = missing_targets(path.read_text(encoding="utf-8"))
            if missing:
                wrong[str(path.relative_to(ROOT))] = missing
    assert not wrong


def test_no_file_cites_pages_outside_the_repository():
    outside = re.compile(r"\b(?:methods|peers|engine-notes|speed-notes|house)\.md\b")
    cited = {str(path.relative_to(ROOT)): outside.findall(path.read_text(encoding="utf-8")) for path in files()}
    assert not {name: names for name, names in cited.items() if names and name != "tests/test_references.py"}


def test_a_wrong_citation_is_noticed(tmp_path):
    page = tmp_path / "docs" / "method" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Page\n\n## Sums, not `means`\n\n```\n# not a heading\n```\n")
    cited = "docs/method/page.md, docs/method/page.md#sums-not-means, "
    wrong = ["docs/method/page.md#not-a-heading", "docs/method/page.md#sums", "docs/method/other.md"]
    assert missing_targets(cited + ", ".join(wrong), tmp_path) == wrong
