"""Finds out which protocol a port speaks, so that an error can say so.

The handshake with a port that is no broker's fails with an error that explains nothing. A wrong port in `bootstrap_servers` often
belongs to a web server or to a TLS listener, and both can be recognised by what they answer to an HTTP request.
"""

from __future__ import annotations

import asyncio
from typing import cast

from strandline.protocol.rpc.dial import dial

PROBE_TIMEOUT_MS = 500


class _Probe(asyncio.Protocol):
    """Sends an HTTP request: a web server answers in HTTP, a TLS port with an alert, a Kafka broker not at all."""

    def __init__(self, first_bytes: asyncio.Future[bytes]) -> None:
        self._first_bytes = first_bytes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(b"HEAD / HTTP/1.0\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        if not self._first_bytes.done():
            self._first_bytes.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._first_bytes.done():
            self._first_bytes.set_result(b"")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def protocol_of(host: str, port: int) -> str | None:
    """The protocol that the server at this port speaks: "HTTP" or "TLS". None if it answers in neither within
    PROBE_TIMEOUT_MS."""
    first_bytes: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    probe: _Probe | None = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_MS / 1000):
            probe = await dial(lambda: _Probe(first_bytes), host, port, drop=_Probe.abort)
            answer = await first_bytes
    except (OSError, TimeoutError):
        return None
    finally:
        if probe is not None:
            probe.abort()
    if answer.startswith((b"HTTP/", b"<")):
        return "TLS" if b"HTTPS" in answer[:400] else "HTTP"
    return "TLS" if answer[:2] in (b"\x15\x03", b"\x16\x03") else None
