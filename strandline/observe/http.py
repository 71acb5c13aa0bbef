"""A node's HTTP port: bound before anything else, served from the first connection on.

The socket is bound and listens before the node's loop runs, so that a port in use is reported at once and in one sentence.
aiohttp and prometheus_client cost a third of a node's memory and much of its start-up, and many nodes (in tests, on a
laptop) never receive a request. So they are imported when the first connection arrives. The import runs on a thread, to
keep the loop free; the connection waits in the backlog meanwhile.

The responses are in `pages.py`. Only `pages.py` and `collector.py` import the two packages.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import structlog

from strandline.controller.metadata.node_config import parse_address
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from strandline.observe.health import Health
    from strandline.observe.loop_lag import LoopLag
    from strandline.observe.pages import HttpServer

    MakeRegistry = Callable[..., CollectorRegistry]

logger = structlog.get_logger()

BACKLOG = 128


def bind(listener: str) -> socket.socket | None:
    """The listening socket of `http.listener`; None if it is empty. Raises UsageError if the address cannot be bound."""
    if not listener:
        return None
    host, port = parse_address(listener)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        server = socket.socket(family, kind, protocol)
    except OSError as e:
        raise _cannot_listen(listener, e) from None
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as e:
        server.close()
        raise _cannot_listen(listener, e) from None
    return server


def _cannot_listen(listener: str, error: OSError) -> UsageError:
    # A resolver's error numbers are its own; those of the system get the system's text, in lower case like ours.
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    return UsageError(f"cannot listen on {listener} for HTTP (http.listener): {(reason or str(error)).lower()}")


class HttpPort:
    """Owns the socket from `start` to `stop`."""

    def __init__(self, listener: socket.socket, health: Health, server: Any, loop_lag: LoopLag) -> None:
        self._socket = listener
        self._health = health
        self._server = server
        self._loop_lag = loop_lag
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="http")
        """A thread of its own: if a disk hangs, all of the loop's threads may wait for it, and health must still respond."""
        self._opening: asyncio.Task[None] | None = None
        self._pages: HttpServer | None = None

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Accept connections from now on. Returns at once."""
        self._loop.add_reader(self._socket.fileno(), self._on_first_connection)

    def _on_first_connection(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._opening = self._loop.create_task(self._open(), name="http")

    async def _open(self) -> None:
        try:
            pages, make_registry = await self._loop.run_in_executor(self._thread, _import)
            registry = make_registry(self._health.role, self._server, loop_lag=self._loop_lag)
            self._pages = pages(self._health, registry, self._thread)
            await self._pages.start(self._socket)
        except Exception:
            # The node works without HTTP. The socket is closed, so that clients are refused and do not wait for ever.
            logger.exception("http.unavailable", listener=self.address)
            self._socket.close()

    async def stop(self) -> None:
        if self._opening is None:
            self._loop.remove_reader(self._socket.fileno())
        else:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._pages is not None:
            await self._pages.stop()
        self._socket.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _import() -> tuple[type[HttpServer], MakeRegistry]:
    from strandline.observe.collector import make_registry
    from strandline.observe.pages import HttpServer

    return HttpServer, make_registry
