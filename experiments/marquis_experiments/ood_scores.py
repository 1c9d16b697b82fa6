"""Scores of all images, kept beside the rows of `ood`: to judge trainings together, none of them is asked again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.tasks.ood import OodResult

KIND = "ood-scores"
SETS = ("inside", "outside", "train")


def keep(folder: Path, name: str, settings: Mapping[str, Any], found: OodResult) -> None:
    """Write what `ood.evaluate` said of a model, with the settings that it depends on."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{part}.{score}": value for part in SETS for score, value in getattr(found, part).items()}
    header = {"settings": dict(settings), "table": found.table, "draws": found.draws}
    save_tensors(folder / f"{name}.safetensors", KIND, header, tensors)


def kept(folder: Path, name: str, settings: Mapping[str, Any]) -> OodResult | None:
    """What was kept with the same settings; None if there is nothing, or a file that was damaged."""
    try:
        _, header, tensors = load_tensors(folder / f"{name}.safetensors", (KIND,))
    except DataError:
        return None
    if header["settings"] != json.loads(json.dumps(dict(settings))):
        return None
    inside, outside, train = (split_prefix(tensors, f"{part}.") for part in SETS)
    return OodResult(inside, outside, train, header["table"], header["draws"])
