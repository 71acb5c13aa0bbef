"""What a node answers over HTTP: health for an orchestrator, metrics for Prometheus, nothing else.

The node's loop serves this too, so the port must never cost the node much, whoever connects to it: only GET and HEAD, no
bodies, short heads, few connections. A connection that has not brought a whole request in time is closed, and when there
are too many, the one that has been silent for the longest goes: those who ask every second are never the victims.

Nothing of the configuration is shown, and nothing that a client sends ends up in an answer but the path in a 404.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from strandline.observe.health import Health

CONNECTIONS_MAX = 64
FIRST_REQUEST_S = 10.0
"""A new connection has so long to bring a whole request."""
NEXT_REQUEST_S = 60.0
"""From one request to the next on the same connection, the time to take the answer included."""
HEAD_BYTES_MAX = 8192
PATHS = ("/health/live", "/health/ready", "/metrics")


class HttpServer:
    def __init__(self, health: Health, server: Any) -> None:
        self._health = health
        self._registry = _registry(health.role, server)
        self._connections: dict[_Connection, None] = {}
        """Open ones, the longest silent first."""
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        manager = web.Server(self._answer)  # type: ignore[arg-type]  # our handler is not of a web.Application
        self._server = await loop.create_server(lambda: _Connection(self, manager, loop), sock=listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    # -- connections --------------------------------------------------------------------------------------------------

    def on_open(self, connection: _Connection) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            next(iter(self._connections)).abort()
        self._connections[connection] = None

    def on_request(self, connection: _Connection) -> None:
        if self._connections.pop(connection, 0) is None:
            self._connections[connection] = None

    def on_closed(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        connection.expect_next(NEXT_REQUEST_S)
        self.on_request(connection)
        if request.method not in ("GET", "HEAD"):
            answer = _text("only GET and HEAD are answered here\n", 405, {"Allow": "GET, HEAD"})
            answer.force_close()
            return answer
        answer = self._page(request)
        if request.can_read_body:
            answer.force_close()
        return answer

    def _page(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path == "/health/live":
            return _json(*self._health.live())
        if path == "/health/ready":
            return _json(*self._health.ready())
        if path == "/metrics":
            return self._metrics(request)
        if path == "/":
            return _text(f"{self._health.name}, a {self._health.role} of Strandline\n\n" + "".join(f"{p}\n" for p in PATHS))
        return _text(f"nothing is served at {path!r}; there are {', '.join(PATHS)}\n", 404)

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        answer = web.Response(body=encode(self._registry), headers={"Content-Type": content_type})
        answer.enable_compression()  # if the client takes it
        return answer


class _Connection(web.RequestHandler):
    """aiohttp's, with a deadline by which the next whole request must be here."""

    def __init__(self, server: HttpServer, manager: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=NEXT_REQUEST_S,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            lingering_time=0,
        )
        self._http_server = server
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._http_server.on_open(self)
        self.expect_next(FIRST_REQUEST_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._http_server.on_closed(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def expect_next(self, timeout_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(timeout_s, self.abort)

    def abort(self) -> None:
        self._http_server.on_closed(self)
        if self.transport is not None:
            self.transport.abort()


def _registry(role: str, server: Any) -> CollectorRegistry:
    try:
        from strandline.observe.collector import make_registry
    except ImportError:
        return CollectorRegistry()
    return make_registry(role, server)


def _json(ok: bool, document: Mapping[str, Any]) -> web.Response:
    body = json.dumps(document, ensure_ascii=False) + "\n"
    return web.Response(
        body=body.encode(),
        status=200 if ok else 503,
        headers={"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"},
    )


def _text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(text=text, status=status, headers=headers)
