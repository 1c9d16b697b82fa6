"""Locate and check data sets, for `marquis data list` and `marquis data check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marquis.data.registry import SETS, NamedSet, find_set
from marquis.data.search import find_file
from marquis.errors import DataError


@dataclass(frozen=True)
class Status:
    """Describe where one split of one set lies.

    Attributes:
        name: Name of the set.
        split: `"train"`, `"test"`, or `"all"` where all splits are in one file.
        folder: The folder that has it; None if none has.
        advice: How to get it, if no folder has it.
        problem: What is wrong with it, after a check; empty if it is right.
    """

    name: str
    split: str
    folder: str | None
    advice: str = ""
    problem: str = ""


def statuses(name: str | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[Status]:
    """Return where each split of each set lies, without reading it."""
    sets = [find_set(name)] if name else list(SETS.values())
    splits = {named: list(dict.fromkeys(known.split for known in named.files)) or ["all"] for named in sets}
    return [_locate(named, split, data_dir) for named in sets for split in splits[named]]


def check(name: str | None = None, data_dir: str | os.PathLike[str] | None = None) -> Iterator[Status]:
    """Read every set that is there as `load` would: SHA-256, header, shape; images of CelebA are decoded."""
    return (_checked(status, data_dir) for status in statuses(name, data_dir))


def _checked(status: Status, data_dir: str | os.PathLike[str] | None) -> Status:
    """Load a split that is there, and return its status with the problem, if there is one."""
    from marquis.data import load

    if status.folder is None:
        return status
    try:
        load(status.name, status.split, data_dir, download=False)
    except DataError as problem:
        return Status(status.name, status.split, status.folder, problem=str(problem))
    return status


def _locate(named: NamedSet, split: str, data_dir: str | os.PathLike[str] | None) -> Status:
    """Return where a split of a set lies, or how to get it."""
    if named.reader == "digits":
        return Status(named.name, split, "scikit-learn")
    if named.reader == "celeba":
        from marquis.data.celeba import find_official

        official = find_official(data_dir)
        if official is not None:
            return Status(named.name, split, str(official))
    paths = [find_file(named, known, data_dir) for known in named.files_of(split)]
    present: list[Path] = [path for path in paths if path is not None]
    if len(present) == len(paths):
        return Status(named.name, split, str(present[0].parent))
    advice = f"get it by `marquis data fetch {named.name}`" if named.addresses else named.by_hand
    return Status(named.name, split, None, advice)
