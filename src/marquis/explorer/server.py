"""Run the explorer's server: in the foreground until Ctrl-C, or in a thread."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from typing import Any

from marquis.errors import DataError, StorageError, UnsupportedOperationError
from marquis.explorer.workspace import Workspace

INSTALL = "the explorer's server needs FastAPI, uvicorn and python-multipart: pip install 'marquis[explore]'"
STARTING = 30.0
"""Seconds after which a server that has not started is given up."""


class Server:
    """Serve one workspace; `url` is its address.

    Args:
        workspace: What to show.
        port: Port to listen on; 0 takes a free one.
        host: Address of this machine to bind to, by default reachable from this machine only.

    Raises:
        UnsupportedOperationError: The packages of `marquis[explore]` are not installed.
        DataError: The host is no single address of this machine.
        StorageError: The port is taken.
    """

    def __init__(self, workspace: Workspace, port: int = 0, host: str = "127.0.0.1") -> None:
        try:
            import python_multipart  # noqa: F401  # FastAPI asks for it only when a form arrives
            import uvicorn

            from marquis.explorer.api import make_app
            from marquis.explorer.safety import Guard, allowed_hosts
        except ImportError as problem:
            raise UnsupportedOperationError(f"{INSTALL} ({problem})") from problem
        self._socket = _bound_socket(host, port)
        self.port = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/"
        app: Any = Guard(make_app(workspace), allowed_hosts(host, self.port))  # type: ignore[arg-type]
        options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
        self._server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, lifespan="off", **options))
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until Ctrl-C, and then return."""
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it anew once it has closed all connections
            self._server.run(sockets=[self._socket])

    def start(self) -> Server:
        """Serve in a thread until `close`; returns when the server is ready, itself."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        end = time.monotonic() + STARTING
        while not self._server.started:
            if time.monotonic() > end or not self._thread.is_alive():
                raise StorageError(f"the server at {self.url} did not start")
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
        self._socket.close()

    def __enter__(self) -> Server:
        return self if self._thread else self.start()

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url})"


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to one address of this machine."""
    name = "127.0.0.1" if host == "localhost" else host
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise DataError(f"host {host!r}: an address of this machine is needed, such as 127.0.0.1") from None
    if address.is_unspecified or address.is_multicast:
        raise DataError(f"host {host}: name one address of this machine, so that requests for others can be refused")
    if not 0 <= port < 2**16:
        raise DataError(f"port {port}: from 1 to 65535, or 0 for a free one")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so named, asyncio sends without delay
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((str(address), port))
    except OSError as problem:
        bound.close()
        raise StorageError(f"{host}, port {port} cannot be opened: {problem.strerror}; choose another --port") from None
    return bound
