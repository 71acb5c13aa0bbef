"""A node's HTTP responses: health for an orchestrator, metrics for Prometheus, nothing else.

The node's loop serves the port, so no client may cost the node much: only GET and HEAD, no bodies, short heads, few
connections. A connection without a complete request in time is closed. If there are too many connections, the one that was
silent for the longest is closed, so a client that asks every second keeps its connection.

Of aiohttp only the server is imported, not its framework for web applications.

No response shows the configuration, and none contains input of a client except the path in a 404.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import structlog
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from strandline.observe.collector import snapshot
from strandline.observe.health import Health
from strandline.protocol.log_limits import LineLimits, host_of, printable

logger = structlog.get_logger()

SERVER = "Strandline"
"""Replaces aiohttp's header with the versions of its parts."""
CONNECTIONS_MAX = 64
FIRST_REQUEST_S = 10.0
"""Time for a new connection to send a complete request."""
NEXT_REQUEST_S = 60.0
"""Time from one request to the next on the same connection, including the transfer of the response."""
HEAD_BYTES_MAX = 8192
GZIP_LEVEL = 1
"""Metrics are repetitive: the fastest level already compresses them to a tenth."""
PATHS = ("/health/live", "/health/ready", "/metrics")


class HttpServer:
    def __init__(self, health: Health, registry: CollectorRegistry, thread: Executor) -> None:
        self._health = health
        self._registry = registry
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._lines = LineLimits()
        self._scraping = asyncio.Lock()
        self._connections: dict[_Connection, None] = {}
        """Open connections, those silent for the longest time first."""
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        manager = Server(self._answer)
        self._server = await self._loop.create_server(lambda: _Connection(self, manager, self._loop), sock=listener)

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

    async def _answer(self, request: BaseRequest) -> Response:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        connection.expect_next(NEXT_REQUEST_S)
        self.on_request(connection)
        if request.method not in ("GET", "HEAD"):
            answer = _text("this port supports only GET and HEAD\n", 405, {"Allow": "GET, HEAD"})
        else:
            answer = await self._page_or_bug(request)
        if request.can_read_body or answer.status == 405:
            answer.force_close()  # a body is not read
        return answer

    async def _page_or_bug(self, request: BaseRequest) -> Response:
        try:
            return await self._metrics(request) if request.path == "/metrics" else self._page(request.path)
        except Exception:
            suppressed = self._lines.admit(request.path, self._loop.time())
            if suppressed is not None:
                logger.exception("http.failed", path=printable(request.path), **suppressed.fields)
            return _text("internal error; the node's log has the cause\n", 500)

    def on_bad_request(self, peer: str, reason: str) -> Response:
        """Respond to a peer that does not speak HTTP."""
        suppressed = self._lines.admit(host_of(peer), self._loop.time())
        if suppressed is not None:
            logger.warning("http.bad_request", peer=peer, reason=printable(reason), **suppressed.fields)
        answer = _text("the request is not valid HTTP\n", 400)
        answer.force_close()
        return answer

    def _page(self, path: str) -> Response:
        if path == "/health/live":
            return _json(*self._health.live())
        if path == "/health/ready":
            return _json(*self._health.ready())
        if path == "/":
            return _text(f"{self._health.name}, a {self._health.role} of Strandline\n\n" + "".join(f"{p}\n" for p in PATHS))
        return _text(f"there is no page {printable(path)}; the pages are {', '.join(PATHS)}\n", 404)

    async def _metrics(self, request: BaseRequest) -> Response:
        """Take the values on the event loop, and render them on a thread, because that takes longer. One scrape at a time."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        is_small_wanted = gzip_accepted(request.headers.get("Accept-Encoding", ""))
        async with self._scraping:
            body = await self._loop.run_in_executor(self._thread, _make_text, encode, snapshot(self._registry), is_small_wanted)
        headers = {"Content-Type": content_type, "Server": SERVER, "Vary": "Accept, Accept-Encoding"}
        return Response(body=body, headers=headers | ({"Content-Encoding": "gzip"} if is_small_wanted else {}))


def _make_text(encode: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry, is_small_wanted: bool) -> bytes:
    text = encode(registry)
    return gzip.compress(text, GZIP_LEVEL, mtime=0) if is_small_wanted else text


_SILENT = logging.getLogger("strandline.observe.aiohttp")
"""Discards aiohttp's own log lines: `on_bad_request` logs bad requests, and lost connections are not logged."""
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


class _Connection(RequestHandler):
    """aiohttp's request handler, with a deadline for the next complete request."""

    def __init__(self, server: HttpServer, manager: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=NEXT_REQUEST_S,
            access_log=None,  # type: ignore[arg-type]
            logger=_SILENT,
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

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Handle a request that aiohttp cannot parse; by default it logs a traceback for each."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response was already sent in part")
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return self._http_server.on_bad_request(f"{peer[0]}:{peer[1]}" if peer else "", message or repr(exc))

    def expect_next(self, timeout_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(timeout_s, self.abort)

    def abort(self) -> None:
        self._http_server.on_closed(self)
        if self.transport is not None:
            self.transport.abort()


def _json(ok: bool, document: Mapping[str, Any]) -> Response:
    body = json.dumps(document, ensure_ascii=False) + "\n"
    return Response(
        body=body.encode(),
        status=200 if ok else 503,
        headers={"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store", "Server": SERVER},
    )


def _text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text=text, status=status, headers={"Server": SERVER, **(headers or {})})
