"""From bytes to frames, without a socket: provides the buffer for incoming bytes, and returns the frames that they complete.

While it waits for the head of a frame, the reader provides a **scratch** buffer. All connections of a server, or of a client's
loop, share it, because it is empty again before the next connection reads. Small frames are copied out of it. A frame that is
not complete in it gets a buffer of exactly its size, and its remaining bytes are received directly into that buffer, so that
large frames are not copied.

    scratch   | head | small frame | head | small frame | head | start of a big f|
    own                                                        | start of a big f|............... rest ....|

Every frame is returned as a bytearray of its own: record batches in it are stamped in place and outlive the connection.

Limits: a frame's length is checked before anything is allocated, and the buffer of a very large frame grows only with the bytes
that arrive, so that a claimed length alone costs no memory.
"""

from __future__ import annotations

from strandline.protocol.errors import PeerError
from strandline.protocol.frames import LENGTH

_SMALL_WINDOW = 4096
"""Size of the scratch window after a large frame, so that only a little of the next large frame must be copied."""
_LARGE_WINDOW = 65536
"""Size of the scratch window while many small frames arrive, for fewer system calls."""
_BIG_FRAME = 32768
_EAGER_ALLOCATION_MAX = 4 * 1024 * 1024
_HEAD_SIZE = LENGTH.size

_TLS_HANDSHAKE = 0x16
_TLS_RECORDS = (0x160300, 0x160301, 0x160302, 0x160303, 0x150300, 0x150301, 0x150302, 0x150303)
"""The first three bytes of a TLS handshake or alert. The next one is the upper half of a length."""


class SpeaksTls(PeerError):
    """The peer's first bytes are those of a TLS handshake."""


class Scratch:
    """The buffer into which heads and small frames are received."""

    __slots__ = ("buffer", "view")

    def __init__(self) -> None:
        self.buffer = bytearray(_LARGE_WINDOW)
        self.view = memoryview(self.buffer)


class FrameReader:
    """The incoming bytes of one connection. Call `get_buffer`, `received`, then `next_frame` until it returns None (or
    `hold`)."""

    __slots__ = (
        "_end",
        "_filled",
        "_frame",
        "_head",
        "_length",
        "_scratch",
        "_source",
        "_start",
        "_view",
        "_window",
        "frame_bytes_max",
    )

    def __init__(self, frame_bytes_max: int, scratch: Scratch | None = None) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._scratch = scratch or Scratch()
        self._source = self._scratch.buffer
        """The buffer with the unread bytes, between `_start` and `_end`: the scratch, or the copy that `hold` made."""
        self._start = self._end = 0
        self._head = b""
        """An incomplete head, carried over to the next read."""
        self._frame: bytearray | None = None
        """The frame being received: `_filled` of its `_length` bytes have arrived."""
        self._view = self._scratch.view
        self._length = self._filled = 0
        self._window = _SMALL_WINDOW

    @property
    def is_mid_frame(self) -> bool:
        """True while an incomplete frame has been received."""
        return self._frame is not None or bool(self._head)

    @property
    def has_unread(self) -> bool:
        """True if bytes follow the frame that `next_frame` has returned."""
        return self._start < self._end

    def begun_frame(self) -> tuple[int, bytes]:
        """The length of the large frame being received, and its second byte, which names the API; (0, b"") without one."""
        if self._frame is None:
            return 0, b""
        return self._length, bytes(self._frame[1 : min(2, self._filled)])

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes."""
        if self._frame is not None:
            return self._view[self._filled :]
        carried = len(self._head)
        if carried:
            self._scratch.buffer[:carried] = self._head
        return self._scratch.view[carried : self._window]

    def received(self, size: int) -> None:
        """Account for `size` bytes that were put into the buffer of `get_buffer`."""
        if self._frame is not None:
            self._filled += size
            if self._filled == len(self._frame) < self._length:
                self._grow()
            return
        self._start = 0
        self._end = len(self._head) + size
        if self._end == self._window:
            self._window = _LARGE_WINDOW
        self._head = b""

    def next_frame(self) -> bytearray | None:
        """The next complete frame, without its length field; None if there is none. Raises `PeerError` if a length is out of
        bounds."""
        if self._frame is not None:
            if self._filled < self._length:
                return None
            frame, self._frame, self._view = self._frame, None, self._scratch.view
            return frame
        start = self._start
        body = start + _HEAD_SIZE
        if body > self._end:
            self._carry_over()
            return None
        length: int = LENGTH.unpack_from(self._source, start)[0]
        if not 0 < length <= self.frame_bytes_max:
            raise _length_error(length, self.frame_bytes_max)
        end = body + length
        if end <= self._end:
            self._start = end
            return self._source[body:end]
        self._begin_own(length)
        return None

    def begin_with(self, first: bytes) -> None:
        """Take the first bytes of a connection, which were received elsewhere."""
        self._source = bytearray(first)
        self._start, self._end = 0, len(first)

    def hold(self) -> None:
        """Copy the unread bytes out of the scratch, because the caller stops taking frames and other connections use the
        scratch."""
        if self._source is self._scratch.buffer:
            self._source = self._source[self._start : self._end]
            self._start, self._end = 0, len(self._source)

    def _carry_over(self) -> None:
        if self._start < self._end:
            self._head = bytes(self._source[self._start : self._end])
        self._source = self._scratch.buffer
        self._start = self._end = 0

    def _begin_own(self, length: int) -> None:
        begun = memoryview(self._source)[self._start + _HEAD_SIZE : self._end]
        self._frame = bytearray(min(length, max(_EAGER_ALLOCATION_MAX, len(begun) + 1)))
        self._frame[: len(begun)] = begun
        self._view = memoryview(self._frame)
        self._length, self._filled = length, len(begun)
        self._source = self._scratch.buffer
        self._start = self._end = 0
        self._window = _SMALL_WINDOW if length >= _BIG_FRAME else self._window

    def _grow(self) -> None:
        assert self._frame is not None
        larger = bytearray(min(self._length, 2 * len(self._frame)))
        larger[: self._filled] = self._view
        self._frame, self._view = larger, memoryview(larger)


def _length_error(length: int, length_max: int) -> PeerError:
    if length >> 8 in _TLS_RECORDS:
        text = "the peer speaks TLS, and this end does not (security_protocol)"
        return SpeaksTls(text) if length >> 24 == _TLS_HANDSHAKE else PeerError(text)
    return PeerError(f"a frame claims {length} bytes; between 1 and {length_max} are accepted")
