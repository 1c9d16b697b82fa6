"""Finished cells of an experiment's tables, one JSON file each, so that an interrupted run goes on where it stopped.

And what a run says on the way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marquis.io import atomic


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
    known = stored(folder, name, settings)
    if known is not None:
        return known
    wanted = json.loads(json.dumps(dict(settings)))
    result = json.loads(json.dumps(dict(compute())))
    write_json(folder / f"{name}.json", {"settings": wanted, "result": result})
    return {**wanted, **result}


def stored(folder: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cell if it was computed before with these settings, else None."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # cut short when the machine stopped
        return None
    wanted = json.loads(json.dumps(dict(settings)))
    return {**wanted, **known["result"]} if known.get("settings") == wanted else None


def timed_from_now(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say` with the seconds since this call in front of every text."""
    started = time.time()
    return lambda text: say(f"[{time.time() - started:5.0f} s] {text}")


def write_json(path: Path, value: Any) -> None:
    """Write all or nothing, to a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, value)
