"""Restrict who may use the explorer over the network: hosts, origins, sizes, and headers of every response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_JSON, MOST_UPLOAD = 2**20, 200 * 2**20
"""Bytes of a question, and of an uploaded file."""
UPLOAD_PATH = "/api/second"

HEADERS = {
    # No script, style or request of another origin, whatever names of columns and files contain. A notebook on this
    # machine may show the page in a frame.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuse requests for other hosts or from other origins, and bodies that are too large.

    A page elsewhere whose name resolves to this machine (DNS rebinding) sends its own name as `Host`; a form or script
    elsewhere that posts here sends its own `Origin`.

    Args:
        app: What is protected.
        hosts: Values of `Host` that are allowed, such as `127.0.0.1:8765`.
    """

    def __init__(self, app: App, hosts: Iterable[str]) -> None:
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        named = [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in scope["headers"]]
        headers = dict(named)
        hosts = [value for key, value in named if key == "host"]
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            await _refuse(send, 403, "this address is not served; open the one that `marquis explore` printed")
            return
        if "origin" in headers and headers["origin"].lower() not in {f"http://{host}" for host in self.hosts}:
            await _refuse(send, 403, "requests from other pages are refused")
            return
        limit = MOST_UPLOAD if scope["path"] == UPLOAD_PATH else MOST_JSON
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            await _refuse(send, 413, _too_large(limit))
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, _limited(receive, limit), with_headers)


def _limited(receive: Receive, limit: int) -> Receive:
    """Return a receiver that stops at a number of bytes, for bodies that do not state their length."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return counted


def _too_large(limit: int) -> str:
    return f"the body exceeds {limit // 2**20} MB"


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(key.encode(), value.encode()) for key, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def allowed_hosts(host: str, port: int) -> set[str]:
    """Return the values of `Host` by which a server may be addressed."""
    names = {host, "localhost"} if host in ("127.0.0.1", "::1", "localhost") else {host}
    return {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names}
