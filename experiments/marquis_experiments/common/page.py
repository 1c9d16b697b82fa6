"""Pages: Markdown templates whose placeholders are filled with tables and numbers of results.

`{{path}}` stands for a value, `{{path:.3f}}` for a formatted one; a path goes into dictionaries and lists by dots.
`{{#path}}...{{/path}}` is kept where the value is true, `{{^path}}...{{/path}}` where it is not, and
`{{*path}}...{{/path}}` is repeated for every item of a list, or for every value of a dictionary (`{{@}}` is its key);
inside, paths are looked up in the item (`{{.}}`) first. Sentences and tables belong into the template.

`python -m marquis_experiments.common.page [NAME...]` writes the committed pages from the committed results again, and
`--from FOLDER` first takes over results and pictures of a run.
With `--add` committed rows stay that the run, which goes on from them, has not come to.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

from marquis.errors import DataError
from marquis_experiments.common.metrics import standard_error

CHECKOUT = Path(__file__).parents[3]
RESULTS = CHECKOUT / "experiments" / "results"
"""Committed results, one JSON file per page."""
PAGES = CHECKOUT / "docs" / "experiments"
"""Committed pages and their pictures."""
INDEX = CHECKOUT / "docs" / "results.md"

Row = dict[str, Any]
"""A row of a study's results."""

_SECTION = re.compile(r"\{\{([#^*])([\w.@-]+)\}\}(\n?)(.*?)\{\{/\2\}\}(\n?)", re.DOTALL)
_VALUE = re.compile(r"\{\{([\w.@-]+)(?::([^}]*))?\}\}")


def fill(template: Path, values: Mapping[str, Any]) -> str:
    """Return the template's text with its placeholders filled.

    Raises:
        DataError: A placeholder has no value.
    """
    return _filled(template.read_text(encoding="utf-8"), [values], template)


def _filled(text: str, scopes: list[Any], template: Path) -> str:
    """Return text filled from the first scope that has the beginning of a path."""

    def look_up(path: str) -> Any:
        if path == ".":
            return scopes[0]
        first, *rest = path.split(".")
        for scope in scopes:
            try:
                value = _item(scope, first)
            except LookupError:
                continue
            try:
                for key in rest:
                    value = _item(value, key)
            except LookupError:
                break
            return value
        raise DataError(f"{template}: there is no value for {path!r}.")

    def section(match: re.Match[str]) -> str:
        kind, path, block, content, after = match.groups()
        value = look_up(path)
        if kind == "*":
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            parts = [_filled(content, [item, {"@": key}, *scopes], template) for key, item in items]
        else:
            parts = [_filled(content, scopes, template)] if bool(value) == (kind == "#") else []
        return "".join(parts) + ("" if block else after)  # tags on lines of their own take their line breaks along

    return _VALUE.sub(lambda match: format(look_up(match[1]), match[2] or ""), _SECTION.sub(section, text))


def _item(container: Any, key: str) -> Any:
    """Return an item of a dictionary by its key, or of a list by its number."""
    if isinstance(container, Mapping):
        return container[key]
    if isinstance(container, list | tuple) and key.isdigit():
        return container[int(key)]
    raise LookupError(key)


class Mean(list[float]):
    """Hold numbers that are written as their mean ± standard error; a single number has no error."""

    def __format__(self, spec: str) -> str:
        error = f" ± {standard_error(self):{spec}}" if len(self) > 1 else ""
        return f"{mean(self):{spec}}{error}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; the first column is text, the others are aligned to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, rule, *rows])


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """Return mean ± standard error; a single value has no error."""
    return f"{Mean(values):.{digits}f}"


def signed(values: Sequence[float], digits: int = 2) -> str:
    """Return a mean difference with its sign, and the standard error where there are several values."""
    return f"{'+' * (mean(values) >= 0)}{with_error(values, digits)}"


def judged(claims: Mapping[str, bool]) -> dict[str, Any]:
    """Return `holds` ("yes" or "no" for every claim) and the `verdict`, for a template."""
    return {"holds": {name: yes(claims[name]) for name in claims}, "verdict": verdict(*claims.values())}


def yes(holds: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if holds else "no"


def verdict(*claims: bool) -> str:
    """Return the page's verdict: "reproduced" if all claims hold, "not" if none does, else "partly"."""
    return "reproduced" if all(claims) else "partly" if any(claims) else "not"


def write_text(path: Path, text: str) -> Path:
    """Write a text file; its folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def main() -> None:
    """Write committed pages from committed results."""
    parser = argparse.ArgumentParser(description="Write committed pages from committed results.")
    parser.add_argument("names", nargs="*", help="Names of results; all by default.")
    parser.add_argument("--from", dest="folder", type=Path, help="Folder of a run (runs/NAME/SIZE) to take over.")
    parser.add_argument("--add", action="store_true", help="Keep committed rows that the run does not have.")
    options = parser.parse_args()
    for name in options.names or sorted(path.stem for path in RESULTS.glob("*.json")):
        if options.folder is not None:
            results = rounded(json.loads((options.folder / "results.json").read_text(encoding="utf-8")))
            if options.add:
                results = added(committed(name), results)
            write_text(RESULTS / f"{name}.json", json.dumps(results, separators=(",", ":")) + "\n")
            for picture in options.folder.glob("*.png"):
                shutil.copy(picture, PAGES / picture.name)
        print(write_text(PAGES / f"{name}.md", study_of(name).text(committed(name))))
    print(write_text(INDEX, index_text()))


def added(earlier: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with the rows of earlier ones that they do not have, list by list."""
    more = {
        part: [*results.get(part, []), *(row for row in rows if row not in results.get(part, []))]
        for part, rows in earlier.items()
        if isinstance(rows, list)
    }
    return {**results, **more}


def study_of(name: str) -> Any:
    """Return the study of committed results, by the checkout's own list: an installed copy's can be older."""
    project = (CHECKOUT / "experiments" / "pyproject.toml").read_text(encoding="utf-8")
    targets = dict(re.findall(r'^([\w-]+) = "(marquis_experiments\.[\w.]+):STUDY"$', project, re.MULTILINE))
    return import_module(targets[name.removesuffix("-full")]).STUDY


def index_text() -> str:
    """Return the index of results: every claim of the papers, filled from committed results and pages' verdicts."""
    template, every = Path(__file__).with_name("index.md"), {}
    for name in (path.stem for path in RESULTS.glob("*.json")):
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        every[name] = {"verdict": re.findall(r"^- \*\*Verdict:\*\* (\w+)$", page, re.MULTILINE)[0]}
        if set(re.findall(rf"\{{\{{[#^]?{name}\.(\w+)", template.read_text(encoding="utf-8"))) - {"verdict"}:
            results = committed(name)
            values = {**results, **study_of(name).values(results)}
            holds = {claim: {"yes": "reproduced", "no": "not"}[met] for claim, met in values.get("holds", {}).items()}
            every[name] = {**values, "holds": holds}
    return fill(template, every)


def rounded(value: Any) -> Any:
    """Return JSON values with floats of six significant digits, which pages need and pictures can be drawn from."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def committed(name: str) -> dict[str, Any]:
    """Return committed results; those called NAME-full are of study NAME at full size."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
