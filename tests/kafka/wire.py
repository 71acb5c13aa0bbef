"""A small client of Kafka's protocol: it sends one request in a named version, and returns the fields of the response.

    async with KafkaWire(host, port) as wire:
        answer = await wire.call(3, 12, {"topics": None, ...})

The fields of a request are those of its schema (`schemas.request(key, version).struct`); the ones with a default may be missing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from strandline.broker.kafka.codec import Fields, skip_tagged
from strandline.broker.kafka.schemas import Schemas

_API_VERSIONS = 18
_SCHEMAS = Schemas()


class KafkaWire:
    """One connection. Every wait ends after `timeout_s`."""

    def __init__(self, host: str, port: int, *, client_id: str | None = "wire", timeout_s: float = 10.0) -> None:
        self._address = host, port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._next_id = 0
        self._sent: dict[int, tuple[int, int]] = {}
        """Correlation id -> API and version of the requests without an answer."""

    @classmethod
    def at(cls, address: str, **options: Any) -> Self:
        """A client for `host:port`. If there are several, separated by commas, it uses the first one."""
        host, _, port = address.partition(",")[0].rpartition(":")
        return cls(host, int(port), **options)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.wait_for(asyncio.open_connection(*self._address), self._timeout_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def call(self, api_key: int, version: int, fields: dict[str, Any] | None = None) -> Fields:
        """Send a request, and return its response. Raises ConnectionError if the server closes the connection instead."""
        self.send(api_key, version, fields)
        return await self.receive()

    def send(self, api_key: int, version: int, fields: dict[str, Any] | None = None) -> int:
        """Send a request without waiting. Returns its correlation id."""
        number = self._next_id = self._next_id + 1
        self._sent[number] = api_key, version
        self.send_frame(request_frame(api_key, version, number, self._client_id, fields or {}))
        return number

    def send_frame(self, frame: bytes) -> None:
        """Send a frame: its length, then these bytes."""
        self.send_bytes(len(frame).to_bytes(4, "big", signed=True) + frame)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    async def receive(self) -> Fields:
        """Receive the next response. Responses arrive in the order of the requests that have one."""
        frame = await self.receive_frame()
        number = int.from_bytes(frame[:4], "big")
        assert number in self._sent, f"a response to request {number}, which has none to come"
        return response_fields(*self._sent.pop(number), frame)

    async def receive_frame(self) -> bytes:
        """Receive the next frame, without its length. Raises ConnectionError at the end of the stream."""
        try:
            async with asyncio.timeout(self._timeout_s):
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the server has closed the connection") from None

    async def is_closed(self) -> bool:
        """Whether the server closes the connection before the timeout, without another byte."""
        try:
            return not await asyncio.wait_for(self._reader.read(1), self._timeout_s)
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str | None, fields: dict[str, Any]) -> bytes:
    """The frame of a request, without its length."""
    codec = _SCHEMAS.request(api_key, version)
    out = bytearray()
    out += api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big")
    name = None if client_id is None else client_id.encode()
    out += b"\xff\xff" if name is None else len(name).to_bytes(2, "big") + name
    if codec.is_flexible:
        out.append(0)
    codec.write(out, fields)
    return bytes(out)


def response_fields(api_key: int, version: int, frame: bytes) -> Fields:
    """The fields of a response's frame, which must end where its schema says."""
    codec = _SCHEMAS.response(api_key, version)
    at = 4
    if codec.is_flexible and api_key != _API_VERSIONS:
        at = skip_tagged(frame, at)
    fields, end = codec.read(frame, at)
    assert end == len(frame), f"API {api_key} version {version}: {len(frame) - end} bytes behind the response"
    return fields
