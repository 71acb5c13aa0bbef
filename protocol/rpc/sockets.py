"""Sockets, as server and client connections share them: options, descriptions of peers and errors, log lines about bad peers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.protocol.log_limits import LineLimits, host_of, printable
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

_KEEPALIVE_IDLE_S = 10
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3
_UNACKNOWLEDGED_MS_MAX = 30_000
"""The kernel ends the connection if the peer's kernel does not acknowledge bytes, or has no room for them, for so long (a pulled
cable, a stopped process). On Linux this also replaces the number of keepalive probes."""

_BYTES_ACKED_AT = 120
"""Position of `tcpi_bytes_acked` in Linux' `struct tcp_info`, since 4.1."""


def tune_socket(transport: asyncio.BaseTransport) -> None:
    """Send small writes without delay, and detect a vanished peer within half a minute. Does nothing for transports without a TCP
    socket."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS_MAX),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def acknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Return how many sent bytes the peer's kernel has acknowledged (TCP_INFO, `tcpi_bytes_acked`); 0 if the system does not
    report it."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO") or sys.platform != "linux":
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 8)
    except OSError:
        return 0
    return int.from_bytes(info[_BYTES_ACKED_AT:], sys.byteorder) if len(info) == _BYTES_ACKED_AT + 8 else 0


def pauses_late(transport: asyncio.BaseTransport) -> bool:
    """Return True for asyncio's own transports from Python 3.12 on: their `writelines` does not check the high-water mark, so
    `pause_writing` is not called. Setting the limits again makes them check. uvloop checks by itself."""
    return sys.version_info >= (3, 12) and type(transport).__module__.startswith("asyncio.")


def describe_peer(transport: asyncio.BaseTransport) -> str:
    """The peer's address as `host:port`, or `?` if it is not known."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "?")


def plain_host(host: str) -> str:
    """The host as rules name it: without the prefix that a dual-stack socket gives to IPv4 addresses (`::ffff:1.2.3.4`)."""
    return host.removeprefix("::ffff:") if "." in host else host


def describe_os_error(e: Exception) -> str:
    """The operating system's text of an error, because asyncio and uvloop word it differently."""
    if isinstance(e, OSError) and not isinstance(e, socket.gaierror) and e.errno:
        return os.strerror(e.errno)
    return getattr(e, "strerror", None) or str(e)


def describe_connect_error(host: str, port: int, e: Exception) -> str:
    """Why a connection attempt failed: the name cannot be resolved, or the host does not accept the connection."""
    if isinstance(e, (socket.gaierror, UnicodeError)):
        return f"cannot resolve {host}:{port} ({describe_os_error(e)})"
    return f"could not connect to {host}:{port}: {describe_os_error(e)}"


@contextmanager
def bind_errors(host: str, port: int) -> Iterator[None]:
    """Raise UsageError for an OSError: the server cannot listen on this address, for the reason that the system names."""
    try:
        yield
    except socket.gaierror as e:
        raise UsageError(f"cannot listen on {host}:{port}: cannot resolve {host} ({describe_os_error(e)})") from e
    except OSError as e:
        raise UsageError(f"cannot listen on {host}:{port}: {describe_os_error(e)}") from e


async def start_serving(listener: asyncio.Server) -> None:
    """Accept connections on a bound address. Raises OSError if another process accepts them there.

    uvloop hides this error: it closes the socket, and its `start_serving` returns as if all were well. The socket has no
    descriptor then."""
    await listener.start_serving()
    if any(each.fileno() < 0 for each in listener.sockets):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def open_files_max() -> int:
    """The process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class BadPeers:
    """Logs peers that misbehave, at most one line per host and minute (`protocol/log_limits.py`), and counts all cases."""

    def __init__(self) -> None:
        self._limits = LineLimits()
        self._failed_logins = LineLimits()
        """Limits the lines about failed logins. It is separate, so that a bad request of the same host does not suppress them."""
        self.authenticated_count = 0
        self.authentication_failed_count = 0
        self.closed_count = 0
        self.refused_count = 0

    def closed(self, peer: str, now: float, reason: str, client_id: str | None = None) -> None:
        """Log that this process closes the peer's connection."""
        self.closed_count += 1
        suppressed = self._limits.admit(host_of(peer), now)
        if suppressed is not None:
            logger.warning(
                "peer.closed", peer=peer, client_id=printable(client_id), reason=printable(reason), **suppressed.fields
            )

    def refused(self, peer: str, now: float, reason: str, client_id: str | None = None) -> None:
        """Log that a malformed request was refused; the connection stays open."""
        self.refused_count += 1
        suppressed = self._limits.admit(host_of(peer), now)
        if suppressed is not None:
            logger.warning(
                "peer.refused", peer=peer, client_id=printable(client_id), reason=printable(reason), **suppressed.fields
            )

    def authentication_failed(
        self, peer: str, now: float, reason: str, *, mechanism: str | None = None, user: str | None = None
    ) -> None:
        """Log that a peer failed to authenticate. `mechanism`: the SASL mechanism, or TLS. `user`: the name that it claimed."""
        self.authentication_failed_count += 1
        suppressed = self._failed_logins.admit(host_of(peer), now)
        if suppressed is not None:
            logger.warning(
                "connection.authentication_failed",
                peer=peer,
                mechanism=mechanism,
                user=None if user is None else printable(user),
                reason=printable(reason),
                **suppressed.fields,
            )

    def sweep(self, now: float) -> None:
        """Log the counts of suppressed lines of peers that have been silent for a minute, so that a storm does not look like one
        bad connection."""
        for limits in (self._limits, self._failed_logins):
            for host, suppressed in limits.due(now):
                logger.warning("peer.errors_suppressed", peer=host, **suppressed.fields)
