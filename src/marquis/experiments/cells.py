"""Finished cells of an experiment's tables, one JSON file each, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def cell(
    folder: Path, name: str, settings: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """What `compute` returns, from the folder if it was computed before with the same settings.

    Args:
        folder: Where the cells lie.
        name: Name of the file, without suffix.
        settings: All that the result depends on, as JSON values; a stored cell with other settings is computed anew.
        compute: Returns JSON values.

    Returns:
        The settings and the result in one dictionary.
    """
    path = folder / f"{name}.json"
    wanted = json.loads(json.dumps(dict(settings)))
    if path.is_file():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # cut short when the machine stopped
            known = {}
        if known.get("settings") == wanted:
            return {**wanted, **known["result"]}
    result = dict(compute())
    write_json(path, {"settings": wanted, "result": result})
    return {**wanted, **json.loads(json.dumps(result))}


def write_json(path: Path, value: Any) -> None:
    """Write all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
