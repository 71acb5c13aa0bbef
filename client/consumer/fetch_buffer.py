"""The batches of one partition that a consumer has fetched, and not decoded yet. Pure.

The buffer knows where it ends, because that is where the next fetch begins. A response may begin with a batch that starts before
that offset (brokers send whole batches), and may end in the middle of one.
"""

from __future__ import annotations

from collections import deque

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import BatchHeader, Buffer, check_crc, iter_headers, read_header

RawBatch = tuple[Buffer, int, BatchHeader]
"""The response that holds the batch, the batch's position in it, and its header."""


class FetchBuffer:
    """Fetched batches in offset order, and the offset after the last of them."""

    __slots__ = ("_batches", "_skipped", "bytes", "end_epoch", "end_offset")

    def __init__(self) -> None:
        self._batches: deque[RawBatch] = deque()
        """The batches, in offset order and without an overlap."""
        self.bytes = 0
        """The sum of the sizes of the batches, as they are in the log."""
        self.end_offset = -1
        """The offset after the last batch, or that of the last `restart`; -1 while the partition has no position."""
        self.end_epoch = -1
        """The leader epoch of the record before `end_offset`; -1 if it is not known."""
        self._skipped = (-1, -1)
        """First offset and real end of the last batch that was skipped and whose header has a wrong end. Brokers may send it
        again."""

    def __bool__(self) -> bool:
        """Whether there is a batch to decode."""
        return bool(self._batches)

    @property
    def first(self) -> RawBatch:
        """The batch that is decoded next. The buffer must not be empty."""
        return self._batches[0]

    def restart(self, offset: int, epoch: int) -> None:
        """Drop all batches. The next fetch begins at `offset`; `epoch` is the leader epoch of the record before it."""
        self._batches.clear()
        self.bytes = 0
        self.end_offset, self.end_epoch = offset, epoch

    def add(self, records: Buffer) -> None:
        """Append the batches of a response, except those that end before the buffer does. BrokerError (CORRUPT_MESSAGE) if the
        response cannot be divided into batches, and the buffer has none to return before that."""
        try:
            for pos, header in iter_headers(records):
                if header.next_offset <= self.end_offset or self._was_skipped(header):
                    continue
                self._batches.append((records, pos, header))
                self.bytes += header.size
                self.end_offset, self.end_epoch = header.next_offset, header.leader_epoch
        except BrokerError:
            if not self._batches:
                raise

    def remove_first(self) -> None:
        """Take out the first batch, because it was decoded."""
        self.bytes -= self._batches.popleft()[2].size

    def put_back(self, batch: RawBatch) -> None:
        """Put a batch that was taken out in front of the others."""
        self._batches.appendleft(batch)
        self.bytes += batch[2].size

    def skip(self, header: BatchHeader, end_offset: int) -> None:
        """Ignore this batch from now on: it cannot be read, and its real end is `end_offset`, whatever its header says."""
        self._skipped = (header.base_offset, end_offset)

    def _was_skipped(self, header: BatchHeader) -> bool:
        first_offset, end_offset = self._skipped
        return header.base_offset == first_offset and self.end_offset >= end_offset


def end_of_unreadable(batch: RawBatch, high_watermark: int) -> int:
    """The offset after a batch that cannot be read; -1 if it is not known.

    If the checksum is wrong, the damage may be in the header itself, and trusting a wrong end would skip batches that can be
    read. So the batch ends at the base offset of the batch behind it. If none was fetched with it, the header must be consistent
    in itself and with the high watermark."""
    buf, pos, header = batch
    if check_crc(buf, pos, header.size):
        return header.next_offset
    behind = pos + header.size
    try:
        following = read_header(buf, behind)
        if following.base_offset > header.base_offset and check_crc(buf, behind, following.size):
            return following.base_offset
    except BrokerError:
        pass
    is_plausible = header.record_count == header.last_offset_delta + 1 and header.next_offset <= high_watermark
    return header.next_offset if is_plausible else -1
