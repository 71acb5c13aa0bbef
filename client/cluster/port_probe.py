"""Finds out which protocol a port speaks, so that an error can say so.

The handshake with a port that does not belong to a broker fails with an error that explains nothing. A wrong port in
`bootstrap_servers` often belongs to a web server, to a TLS listener or to Kafka. The first two can be recognised by their answer
to an HTTP request. If the server closes the connection instead, the probe sends the first message of a TLS handshake, and after
that the first request of a Kafka client.
"""

from __future__ import annotations

import asyncio
from struct import pack
from typing import cast

from strandline.protocol.rpc.dial import dial

PROBE_TIMEOUT_MS = 500
_HTTP = b"HEAD / HTTP/1.0\r\n\r\n"
KAFKA_QUESTION = pack(">ihhih", 10, 18, 0, 7, -1)
"""ApiVersions in version 0: size, key, version, correlation id 7, and no client id."""
_KAFKA_ANSWER = pack(">i", 7)
KAFKA = "Kafka's protocol"


def _client_hello() -> bytes:
    """The first message of a TLS 1.2 handshake (RFC 5246, 7.4.1.2). It is the same each time: nothing is encrypted with it."""
    extensions = (
        b"\x00\x0a\x00\x06\x00\x04\x00\x1d\x00\x17"  # supported_groups: x25519, secp256r1
        b"\x00\x0b\x00\x02\x01\x00"  # ec_point_formats: uncompressed
        b"\x00\x0d\x00\x0a\x00\x08\x04\x03\x08\x04\x04\x01\x08\x07"  # signature_algorithms: ECDSA, RSA-PSS, RSA, Ed25519
    )
    suites = b"\xc0\x2b\xc0\x2f\xc0\x2c\xc0\x30"  # ECDHE with ECDSA or RSA, AES-GCM
    body = b"\x03\x03" + bytes(32) + b"\x00" + _sized(suites) + b"\x01\x00" + _sized(extensions)
    return b"\x16\x03\x01" + _sized(b"\x01\x00" + _sized(body))


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


class _Probe(asyncio.Protocol):
    """Sends a question, and takes the first bytes of the answer. A web server answers an HTTP request in HTTP, a TLS port with an
    alert or not at all, a Kafka broker not at all; the last two may close the connection."""

    def __init__(self, question: bytes, first_bytes: asyncio.Future[bytes]) -> None:
        self._question = question
        self._first_bytes = first_bytes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._question)

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
    """The protocol that the server at this port speaks: "HTTP", "TLS" or KAFKA. None if it answers in none of them. Each question
    may take PROBE_TIMEOUT_MS."""
    answer = await _answer(host, port, _HTTP)
    if answer is not None and answer.startswith((b"HTTP/", b"<")):
        return "TLS" if b"HTTPS" in answer[:400] else "HTTP"
    if answer == b"":
        answer = await _answer(host, port, _client_hello())
    if answer is not None and answer[:2] in (b"\x15\x03", b"\x16\x03"):
        return "TLS"
    answer = await _answer(host, port, KAFKA_QUESTION) if answer == b"" else None
    return KAFKA if answer is not None and answer[4:8] == _KAFKA_ANSWER else None


async def _answer(host: str, port: int, question: bytes) -> bytes | None:
    """The first bytes of the answer; empty if the server has closed the connection, None if it cannot be reached or does not
    answer in time."""
    first_bytes: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    probe: _Probe | None = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_MS / 1000):
            probe = await dial(lambda: _Probe(question, first_bytes), host, port, drop=_Probe.abort)
            return await first_bytes
    except (OSError, TimeoutError):
        return None
    finally:
        if probe is not None:
            probe.abort()
