"""Opens segment files for reading. A broker that runs may delete them at any moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.pipeline.segments.walk import Read
from strandline.protocol.errors import StrandlineError


class SegmentMissing(StrandlineError):
    """A segment file was deleted or became unreadable after the read was planned."""

    def __init__(self, path: str, reason: str | None) -> None:
        super().__init__(
            f"segment {path} cannot be read: {reason}; if a broker deletes segments while they are read, set the option "
            "ignoreMissingFiles to true, or read a copy of the directory"
        )


@contextmanager
def opened(path: str) -> Iterator[Read]:
    """Opens a file; yields a function that reads from it, each time into the same buffer. Raises SegmentMissing if the file
    cannot be opened or read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise SegmentMissing(path, e.strerror) from None
    buffer = bytearray()

    def read(position: int, size: int) -> memoryview:
        nonlocal buffer
        if size > len(buffer):
            buffer = bytearray(size)
        view, got = memoryview(buffer)[:size], 0
        while got < size:
            try:
                more = os.preadv(fd, [view[got:]], position + got)
            except OSError as e:
                raise SegmentMissing(path, e.strerror) from None
            if not more:
                break
            got += more
        return view[:got].toreadonly()

    try:
        yield read
    finally:
        os.close(fd)
