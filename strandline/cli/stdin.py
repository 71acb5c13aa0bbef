"""Standard input as lines, for an event loop. A daemon thread reads files, pipes and terminals alike, so a read that waits
for a person does not delay the end of the command."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque

from strandline.protocol.errors import UsageError

CHUNK = 1 << 18
CHUNKS_AHEAD = 2
"""At most this many unprocessed chunks are read ahead, which bounds the memory."""


class Lines:
    """Splits chunks into lines without their newlines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """The pieces of the last, incomplete line."""
        self.rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk."""
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        self.rest_bytes += len(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others]
        last = lines.pop()
        self._rest, self.rest_bytes = [last], len(last)
        return lines

    def end(self) -> list[bytes]:
        """The last line, if no newline ended it."""
        return [b"".join(self._rest)] if self.rest_bytes else []


class StandardInput:
    """The chunks of standard input, for one event loop."""

    def __init__(self) -> None:
        if sys.stdin is None:
            raise UsageError("standard input is closed; pipe the records into this command, or type them")
        self._descriptor = sys.stdin.fileno()
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[bytes | OSError] = deque()
        self._arrived = asyncio.Event()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """Return the next chunk; it is empty at the end. Raises OSError if standard input cannot be read."""
        while not self._chunks:
            self._arrived.clear()
            await self._arrived.wait()
        chunk = self._chunks.popleft()
        self._room.release()
        if isinstance(chunk, OSError):
            raise OSError(chunk.errno, chunk.strerror, "standard input")
        return chunk

    def _read(self) -> None:
        """Read chunks; runs in the thread."""
        chunk: bytes | OSError = b" "
        while chunk and not isinstance(chunk, OSError):
            self._room.acquire()
            try:
                chunk = os.read(self._descriptor, CHUNK)
            except OSError as e:
                chunk = e
            try:
                self._loop.call_soon_threadsafe(self._on_chunk, chunk)
            except RuntimeError:
                return  # the loop is closed: the command has ended

    def _on_chunk(self, chunk: bytes | OSError) -> None:
        self._chunks.append(chunk)
        self._arrived.set()
