"""Sends HTTP requests by hand, so that tests can also send malformed ones."""

from __future__ import annotations

import asyncio
import json
import zlib
from contextlib import suppress
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        if self.headers.get("content-encoding") == "gzip":
            return zlib.decompress(self.body, 31).decode()
        return self.body.decode()


async def ask(port: int, path: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Answer:
    """Send one request on a new connection; returns the response."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}"
    head += f"Content-Length: {len(body)}\r\n\r\n" if body else "\r\n"
    return parse(await exchange(port, head.encode() + body))


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes, and read until the server closes the connection."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            return await read_to_the_end(reader)
        finally:
            writer.close()


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes or resets the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            data += piece
    return data


def parse(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value.strip() for name, value in pairs}, body)
