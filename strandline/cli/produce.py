"""`strandline produce`: each line of standard input becomes a record. A line is sent as soon as it is there."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, new_app, note, run

if TYPE_CHECKING:
    from strandline.client import Producer
    from strandline.client.receipts import Receipt

app = new_app()

CHUNK = 1 << 18
WAITING_MAX = 50_000
"""Receipts that are kept before the oldest are awaited: an error is told soon, and memory stays bounded."""


class Acks(StrEnum):
    all = "all"
    one = "1"
    none = "0"


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands before it is the key; a line without it has none.")
    ] = None,
    acks: Annotated[Acks, typer.Option(help="Which replicas acknowledge.")] = Acks.all,
    partition: Annotated[int | None, typer.Option(help="Send everything to this partition.", min=0)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send the lines of standard input as records. Ends when the last one is acknowledged."""
    required: Literal["all", 0, 1] = "all" if acks is Acks.all else 1 if acks is Acks.one else 0
    count = run(_produce(bootstrap, topic, key_separator.encode() if key_separator else None, required, partition))
    note(f"{count} record{'' if count == 1 else 's'} sent to {topic}")


async def _produce(bootstrap: str, topic: str, separator: bytes | None, acks: Literal["all", 0, 1], partition: int | None) -> int:
    from strandline.client import Producer

    count = 0
    waiting: deque[Receipt] = deque()
    async with Producer(
        bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS, acks=acks, linger_ms=2, batch_size=65_536
    ) as producer:
        async for lines in _lines():
            for line in lines:
                waiting.append(await _send(producer, topic, line, separator, partition))
            count += len(lines)
            while len(waiting) > WAITING_MAX:
                await waiting.popleft()
        for receipt in waiting:
            await receipt
    return count


async def _send(producer: Producer, topic: str, line: bytes, separator: bytes | None, partition: int | None) -> Receipt:
    if separator is None or separator not in line:
        return await producer.send(topic, line, partition=partition)
    key, _, value = line.partition(separator)
    return await producer.send(topic, value, key=key, partition=partition)


async def _lines() -> AsyncIterator[list[bytes]]:
    """Lines of standard input as they come, without their ends. A thread waits: it may be a file, a pipe or a terminal."""
    rest = b""
    while chunk := await asyncio.to_thread(os.read, sys.stdin.fileno(), CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]
