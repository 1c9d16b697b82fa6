"""Download files with a progress bar and a check of their SHA-256; none is left half-written under its real name."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import sys
import urllib.request
from pathlib import Path

from marquis.data.files import check_sha256, gunzip, read_bytes
from marquis.data.registry import KnownFile, NamedSet
from marquis.data.search import download_folder, find_file, missing_files_error
from marquis.errors import DataError

TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16


def downloads_forbidden() -> bool:
    """Return whether `$MARQUIS_OFFLINE` forbids downloads."""
    return os.environ.get("MARQUIS_OFFLINE", "").lower() not in ("", "0", "false", "no")


def find_or_download(
    named: NamedSet,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
) -> list[Path]:
    """Return the paths of all files of a split, after downloading those that are in no place we look.

    Raises:
        DataError: If a file is nowhere and cannot be downloaded.
    """
    files = named.files_of(split)
    missing = [known for known in files if find_file(named, known, data_dir) is None]
    if missing and not (download and named.addresses):
        raise missing_files_error(named, missing, data_dir)
    if missing and downloads_forbidden():
        raise missing_files_error(named, missing, data_dir, "$MARQUIS_OFFLINE forbids downloading.")
    for position, known in enumerate(missing):
        try:
            fetch_file(known, named.addresses, download_folder(named, data_dir))
        except DataError as problem:
            raise missing_files_error(named, missing[position:], data_dir, f"{problem}.") from problem
    paths = [find_file(named, known, data_dir) for known in files]
    return [path for path in paths if path is not None]


def fetch_file(known: KnownFile, addresses: tuple[str, ...], folder: Path) -> Path:
    """Download one file from the first address that has the right one, into `folder`.

    The bytes go to a temporary file in the same folder, which gets its real name only after its SHA-256
    passed the check; on any failure or interruption the temporary file is removed.

    Raises:
        DataError: If no address gave the right file; the message says what each did.
    """
    target = folder / known.name
    part = folder / f".{known.name}.{os.getpid()}.{secrets.token_hex(4)}.part"
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for address in addresses:
            url = address + known.name
            try:
                _copy_from(url, part)
                packed = read_bytes(part)
                check_sha256(packed, gunzip(packed, url), known, url)
            except (OSError, http.client.HTTPException, ValueError) as problem:
                failures.append(f"{url}: {getattr(problem, 'reason', None) or problem}")
                continue
            os.replace(part, target)
            return target
    except OSError as problem:
        raise DataError(
            f"cannot write to {folder}: {problem.strerror or problem}; give another data folder"
        ) from problem
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    raise DataError("download failed: " + "; ".join(failures))


def _copy_from(url: str, part: Path) -> None:
    """Copy an address into a file, with a progress bar on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    request = urllib.request.Request(url, headers={"User-Agent": "marquis"})
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response,
        part.open("wb") as file,
        Progress(*columns, transient=True, disable=sys.stderr is None or not sys.stderr.isatty()) as progress,
    ):
        promised = response.headers.get("Content-Length")
        total = int(promised) if promised and promised.isdigit() else None
        task = progress.add_task(url.rpartition("/")[2], total=total)
        received = 0
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            received += len(chunk)
            progress.advance(task, len(chunk))
    if total is not None and received != total:
        raise OSError(f"the connection ended after {received} of {total} bytes")
