"""A world of its own for each test: no data folders, an empty cache, and a tiny data set with a local address."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marquis.data.registry import SETS, KnownFile, NamedSet

SHARED = Path(os.environ.get("MARQUIS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")

NO_ADDRESS = "http://127.0.0.1:9/"  # the discard port: nobody answers


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No test sees, or writes to, the data folders of whoever runs it."""
    for name in ("MARQUIS_DATA", "MARQUIS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    empty = tmp_path / "cwd"
    empty.mkdir()
    monkeypatch.chdir(empty)


@pytest.fixture
def shared() -> Path:
    """The folder of real data sets; tests that need it are skipped where it is not."""
    if not (SHARED / "mnist").is_dir():
        pytest.skip(f"needs the real data sets in {SHARED} (or in $MARQUIS_DATA)")
    return SHARED


def idx_bytes(array: np.ndarray) -> bytes:
    """Write idx, independently of the reader: big-endian, byte elements."""
    assert array.dtype == np.uint8
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


class TinySet:
    """Six training and four test images of 3x2 pixels, in the registry as `tiny`."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.arrays: dict[str, np.ndarray] = {}
        files = []
        for split, prefix, count in (("train", "train", 6), ("test", "t10k", 4)):
            for kind, shape in (("images-idx3", (count, 3, 2)), ("labels-idx1", (count,))):
                name = f"{prefix}-{kind}-ubyte.gz"
                self.arrays[name] = random.integers(0, 256 if "images" in kind else 10, shape, dtype=np.uint8)
                content = idx_bytes(self.arrays[name])
                files.append(KnownFile(name, split, shape, hashlib.sha256(content).hexdigest()))
        self.named = NamedSet("tiny", "tiny", "idx", "6 + 4 images 1x3x2", "none", tuple(files), (NO_ADDRESS,))

    def content(self, name: str) -> bytes:
        return idx_bytes(self.arrays[name])

    def packed(self, name: str) -> bytes:
        return gzip.compress(self.content(name))

    def write_to(self, folder: Path, *, packed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.arrays:
            if packed:
                (folder / name).write_bytes(self.packed(name))
            else:
                (folder / name.removesuffix(".gz")).write_bytes(self.content(name))
        return folder

    def at(self, *addresses: str) -> NamedSet:
        """The same set with other addresses, put into the registry."""
        SETS["tiny"] = self.named = replace(self.named, addresses=addresses)
        return self.named


@pytest.fixture
def tiny(monkeypatch) -> TinySet:
    tiny = TinySet()
    monkeypatch.setitem(SETS, "tiny", tiny.named)
    return tiny


class Server:
    """A web server on this machine, whose answers a test decides."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                outer.requests.append(name)
                if name not in outer.files:
                    self.send_error(404)
                    return
                body = outer.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: outer.cut_after])

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()
