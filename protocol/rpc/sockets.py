"""What server and client connections share about sockets: options, names of peers, and how loudly bad ones are logged."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from typing import Any

from strandline.protocol.log_limits import LineLimits, host_of, printable
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

_KEEPALIVE_IDLE_S = 10
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3
_UNACKNOWLEDGED_MS_MAX = 30_000
"""Bytes that the peer's kernel does not acknowledge, or has no room for, end the connection after this (a pulled cable,
a stopped process). On Linux this also takes the place of the number of keepalive probes."""

_BYTES_ACKED_AT = 120
"""In Linux' `struct tcp_info`, since 4.1."""


def tune_socket(transport: asyncio.BaseTransport) -> None:
    """No delay for small writes, and a vanished peer is noticed in half a minute. Not every transport has a socket."""
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
    """How much of what was sent the peer's kernel has acknowledged (TCP_INFO, `tcpi_bytes_acked`); 0 where nobody can say."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO") or sys.platform != "linux":
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 8)
    except OSError:
        return 0
    return int.from_bytes(info[_BYTES_ACKED_AT:], sys.byteorder) if len(info) == _BYTES_ACKED_AT + 8 else 0


def pauses_late(transport: asyncio.BaseTransport) -> bool:
    """asyncio's own transports, from Python 3.12 on, do not look at the high mark of their buffer in `writelines`, so the
    protocol is not told to pause. Setting the limits again makes them look. uvloop looks by itself."""
    return sys.version_info >= (3, 12) and type(transport).__module__.startswith("asyncio.")


def describe_peer(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "?")


def describe_os_error(e: Exception) -> str:
    """What the system says; the event loops word it differently."""
    if isinstance(e, OSError) and not isinstance(e, socket.gaierror) and e.errno:
        return os.strerror(e.errno)
    return getattr(e, "strerror", None) or str(e)


def describe_connect_error(host: str, port: int, e: Exception) -> str:
    """Why no connection came about. A name that leads nowhere is another matter than a host where nobody listens."""
    if isinstance(e, (socket.gaierror, UnicodeError)):
        return f"cannot resolve {host}:{port} ({describe_os_error(e)})"
    return f"could not connect to {host}:{port}: {describe_os_error(e)}"


def describe_bind_error(host: str, port: int, e: OSError) -> str:
    """Why a server cannot listen. The event loops put their own words around the system's."""
    if isinstance(e, socket.gaierror):
        return f"cannot listen on {host}:{port}: cannot resolve {host} ({describe_os_error(e)})"
    return f"cannot listen on {host}:{port}: {describe_os_error(e)}"


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class BadPeers:
    """The lines about peers that misbehave: one per host and minute, however hard it tries (`protocol/log_limits.py`)."""

    def __init__(self) -> None:
        self._limits = LineLimits()
        self.closed_count = 0
        self.refused_count = 0

    def closed(self, peer: str, now: float, reason: str, client_id: str | None = None) -> None:
        """We end the connection."""
        self.closed_count += 1
        suppressed = self._limits.admit(host_of(peer), now)
        if suppressed is not None:
            logger.warning(
                "peer.closed", peer=peer, client_id=printable(client_id), reason=printable(reason), **suppressed.fields
            )

    def refused(self, peer: str, now: float, reason: str, client_id: str | None = None) -> None:
        """What was asked is malformed; the connection lives on."""
        self.refused_count += 1
        suppressed = self._limits.admit(host_of(peer), now)
        if suppressed is not None:
            logger.warning(
                "peer.refused", peer=peer, client_id=printable(client_id), reason=printable(reason), **suppressed.fields
            )

    def sweep(self, now: float) -> None:
        """Those who have been quiet for a minute: how much was left out, or a storm would look like one bad connection."""
        for host, suppressed in self._limits.due(now):
            logger.warning("peer.errors_suppressed", peer=host, **suppressed.fields)
