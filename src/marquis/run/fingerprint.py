"""Whether the user's own training data are still those that a run was trained on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from marquis.data.registry import SETS


def fingerprint(data: str) -> str | None:
    """SHA-256 of a file's content, of a folder's names and sizes; None for named sets, which have their own.

    Held-out rows are chosen by their number in the file: a row more, and rows that were trained on would be held out.
    Cost: the file is read once, of a folder nothing but its lists.
    """
    path = Path(data)
    if data in SETS or not path.exists():
        return None
    digest = hashlib.sha256()
    if path.is_file():
        with open(path, "rb") as file:
            for part in iter(lambda: file.read(1 << 20), b""):
                digest.update(part)
        return digest.hexdigest()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            found = Path(folder) / name
            digest.update(f"{found.relative_to(path).as_posix()} {found.stat().st_size}\n".encode())
    return digest.hexdigest()
