"""Finished cells of a study's tables, one JSON file each, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marquis.errors import DataError
from marquis.io import atomic, checksum
from marquis.io.atomic import make_folder

VERSION = 2
"""Cells without a version are of before and carry no checksum."""


def cell(
    folder: Path, name: str, settings: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what `compute` returns, from the folder if it was computed before with the same settings.

    Args:
        folder: Folder of the cells.
        name: Name of the cell's file, without suffix.
        settings: All that the result depends on, as JSON values; a cell with other settings is computed again.
        compute: Function that returns JSON values.

    Returns:
        The settings and the result in one dictionary.
    """
    previous = stored(folder, name, settings)
    if previous is not None:
        return previous
    identity = json_values(settings)
    result = json_values(compute())
    keep(folder, name, identity, result)
    return {**identity, **result}


def keep(folder: Path, name: str, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Write a finished cell with a checksum; its folder is made if it does not exist."""
    make_folder(folder)
    sealed = {"version": VERSION, "settings": dict(settings), "result": dict(result)}
    checksum.write_json(folder / f"{name}.json", sealed)


def stored(folder: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the cell if it was computed before with these settings, else None; warns of a damaged one."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        previous = checksum.read_json(path, unsealed=(None,))
        found, result = previous["settings"], dict(previous["result"])
    except (DataError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"{path} cannot be used ({error}) and is computed again.", stacklevel=2)
        return None
    identity = json_values(settings)
    return {**identity, **result} if found == identity else None


def committed_row(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the only row of committed results that has all these settings, else None.

    Args:
        rows: Rows of cells of one kind: all have the same settings' names.
        settings: All that the result depends on.
    """
    identity = json_values(settings)
    matching = [row for row in rows if all(name in row and row[name] == value for name, value in identity.items())]
    return dict(matching[0]) if len(matching) == 1 else None


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON reads them back: tuples become lists, keys become strings."""
    return json.loads(json.dumps(dict(values)))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; its folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, value)
