"""The documentation's examples run, its pages are all reachable, and it needs nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASKS = [page for page in PAGES if page.parent.name in {"howto", "gallery"} and page.name != "index.md"]
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ \t]*$", re.MULTILINE | re.DOTALL
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(text: str) -> list[str]:
    """The runnable blocks, each after so many empty lines that tracebacks show the page's line numbers."""
    blocks = []
    for match in FENCE.finditer(text):
        if match["info"].strip() == "python":
            line = text.count("\n", 0, match.start("code"))
            blocks.append("\n" * line + textwrap.dedent(match["code"]))
    return blocks


def run_blocks(text: str, name: str) -> dict[str, Any]:
    """Run a page's blocks one after the other, as a reader would type them, and return the names they leave."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(text):
        exec(compile(block, name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page.read_text())], ids=lambda page: name_of(page)
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = run_blocks(page.read_text(), name_of(page))
    if page.name == "README.md":  # its first network is a trained one
        images = names["test"]
        assert (names["model"](images.x).argmax(1) == images.y).float().mean() > 0.9


def test_a_wrong_example_is_found_with_its_line():
    page = "text\n\n```python\nx = 1\n```\n\n"
    page += "```{.python .no-run}\nboom\n```\n\n    ```python\n    x / 0\n    ```\n"
    with pytest.raises(ZeroDivisionError) as caught:
        run_blocks(page, "page.md")
    assert caught.traceback[-1].lineno + 1 == 12  # pytest counts lines from 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fences_that_the_site_would_not_render(page):
    # "```python no-run" is no fence for mkdocs; write "```{.python .no-run}".
    infos = [match["info"] for match in FENCE.finditer(page.read_text())]
    assert not [info for info in infos if re.match(r"\w+ +[^=]+$", info)]


def test_every_page_is_in_the_navigation_or_in_the_index_of_results():
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    listed = set(re.findall(r"[\w/.-]+\.md", navigation))
    index = (ROOT / "docs/results.md").read_text()
    results = set(re.findall(r"\]\(((?:experiments|benchmarks)/[\w/.-]+\.md)\)", index))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}
    assert pages == listed | results
    assert {page.split("/")[0] for page in results} == {"experiments", "benchmarks"}


@pytest.mark.parametrize("page", TASKS, ids=lambda page: name_of(page))
def test_every_task_draws_the_picture_that_its_page_shows(page):
    text = page.read_text()
    assert re.findall(r"savefig\(\"([^\"]+)\"", text) == [f"{page.stem}.png"]
    assert f"](../assets/gallery/{page.stem}.png)" in text
    gallery = (ROOT / "docs/gallery/index.md").read_text()
    assert f"](../assets/gallery/{page.stem}.png)]({os.path.relpath(page, ROOT / 'docs/gallery')})" in gallery


def test_equations_are_numbered_in_order():
    for page in (ROOT / "docs/method").glob("*.md"):
        numbers = re.findall(r"\\tag\{(\d+)\}", page.read_text())
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)], page.name


def lower_bounds() -> dict[str, str]:
    """The oldest versions that pyproject.toml allows, Python among them."""
    text = (ROOT / "pyproject.toml").read_text()
    required = text.split("\ndependencies = [")[1].split("\n]")[0]
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)', required))
    return bounds | {"python": re.findall(r'requires-python = ">=([\d.]+)"', text)[0]}


def test_installation_page_and_packaging_agree_on_the_oldest_versions():
    page = (ROOT / "docs/installation.md").read_text()
    names = {"Python": "python", "PyTorch": "torch", "NumPy": "numpy", "Lightning": "lightning"}
    stated = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    bounds = lower_bounds()
    assert {names.get(name, name): version for name, version in stated.items()}.items() <= bounds.items()
    assert {"Python", "PyTorch"} <= set(stated)


def test_the_installation_page_lists_every_extra():
    section = re.split(r"^\[(.*)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    extras = re.findall(r"^(\w+) = \[", section[section.index("project.optional-dependencies") + 1], re.MULTILINE)
    page = (ROOT / "docs/installation.md").read_text()
    assert {"explore", "dev"} <= set(extras) == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_the_oldest_versions_are_what_the_workflow_installs():
    bounds = lower_bounds()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert set(pinned) == set(bounds) - {"python"}
    assert all(f"{version}.".startswith(f"{bounds[name]}.") for name, version in pinned.items())
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert f'python: "{bounds["python"]}", constraints: constraints-oldest.txt' in workflow


def test_the_site_asks_nobody_else():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings


def test_pictures_are_there_and_described():
    for page in PAGES:
        for description, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text()):
            assert description, f"{name_of(page)}: {target} has no description"
            assert (page.parent / target).is_file(), f"{name_of(page)}: {target} is missing"


@pytest.mark.parametrize(
    ("example", "small", "printed", "pictures"),
    [
        (
            "laplacian_digits.py",  # what `make demo` runs
            ["--epochs", "1", "--width", "0.1"],
            "AUROC of sideways by code variance",
            {"latent", "posterior", "reconstructions", "training", "variances"},
        ),
        ("digits.py", ["--epochs", "2", "--hidden", "6"], "kronecker, exact", {"digits", "entropy"}),
    ],
)
def test_examples_write_a_report_that_needs_no_other_file(example, small, printed, pictures, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "examples" / example), *small, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    report = (out / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == len(pictures)
    assert not re.search(r'(src|href)="(?!data:)', report)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    beside = {"explorer.html"} if example == "laplacian_digits.py" else set()
    assert {path.name for path in out.iterdir()} == {"report.html", "report"} | beside
    assert {path.stem for path in (out / "report").iterdir()} == pictures


def test_the_demo_is_the_example_that_is_tested():
    assert "$(BIN)/python examples/laplacian_digits.py --out runs/demo" in (ROOT / "Makefile").read_text()
