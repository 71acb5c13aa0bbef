"""How far a consumer has read one partition, and what it has fetched of it. Pure.

Two offsets matter. `position` is the next record that the program gets. `fetch_offset` is the next one to ask a broker for; it is
ahead of the position by the records in the buffer. A seek moves both and empties the buffer. A response counts only if its fetch
asked for the present `fetch_offset`, so late responses need no other bookkeeping.

A partition is fetched (`is_fetchable`) if it has a position that was validated against the current leader's epochs (KIP-320), is
not paused, has not failed, and its buffer is not full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sized
from typing import TypeVar

from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.records import ConsumerRecord, TopicPartition, Undecodable
from strandline.client.errors import ClientError, CorruptRecords, UnknownTopic
from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.messages.data import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from strandline.protocol.records.batch import BatchHeader, Buffer, check_crc, corrupt, iter_headers, read_header

Rows = TypeVar("Rows", bound=Sized)
DecoderOf = Callable[[TopicPartition, Buffer, int, BatchHeader, int], Rows]
"""Partition, buffer, position in it, header, first offset that is wanted -> the rows from there on."""
Decoder = DecoderOf[list[ConsumerRecord]]

EARLIEST, LATEST = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class PartitionState:
    __slots__ = (
        "_after",
        "_batches",
        "_checks_crcs",
        "_epoch",
        "_failed",
        "_opened",
        "_position",
        "_records",
        "_skipped",
        "_skips",
        "asking",
        "buffered_bytes",
        "cursor",
        "error",
        "error_was_raised",
        "fetch_epoch",
        "fetch_offset",
        "fetch_until",
        "highwater",
        "key",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "missing_since",
        "needs_validation",
        "paused",
        "reset",
        "retry_at",
        "tp",
        "version",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: bytes,
        failed: dict[PartitionState, None],
        skips: Callable[[CorruptRecords], bool],
        checks_crcs: bool = True,
    ) -> None:
        self.tp = tp
        self._failed = failed
        self._skips = skips
        """Says whether to continue after a batch that cannot be read."""
        self._checks_crcs = checks_crcs
        self._skipped = (-1, -1)
        """First offset and real end of the last skipped batch whose header claims another end. Brokers may send it again."""
        self.key = (topic_id, tp.partition)
        self._position = -1
        self._epoch = -1
        """The leader epoch of the last record before the position; -1 if it is not known."""
        self.cursor: ConsumerRecord | None = None
        """The last record that `async for` or a limited call returned, if it is at or after `_position`."""
        self.fetch_offset = -1
        """-1 while there is no position."""
        self.fetch_until: int | None = None
        """No fetch begins at this offset or after it; None: there is no bound."""
        self.fetch_epoch = -1
        """The epoch of the last record before `fetch_offset`."""
        self.leader_epoch = -1
        """The leader epoch of the newest metadata, which fetches name."""
        self.reset: int | None = None
        """The timestamp (or EARLIEST, LATEST) by which the position must be looked up; None: it need not."""
        self.needs_validation = False
        """The leader changed, and the position must be validated against its log (KIP-320)."""
        self.asking = False
        """A request about the position is in flight."""
        self.paused = False
        self.error: StrandlineError | None = None
        """Why it cannot be read any further; a seek clears it."""
        self.error_was_raised = False
        self.retry_at = 0.0
        self.missing_since: float | None = None
        """Since when the cluster does not know the topic or partition, or has another topic with the name, on the loop's
        clock."""
        self.highwater = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.buffered_bytes = 0
        self.version = 0
        """Changes whenever another call than a running `async for` changes which record is next."""
        self._batches: deque[tuple[Buffer, int, BatchHeader]] = deque()
        """Batches that were fetched and not decoded yet: buffer, position in it, header."""
        self._records: list[ConsumerRecord] = []
        """Records that are decoded and not all returned yet: those from the position on are next."""
        self._opened: tuple[Buffer, int, BatchHeader] | None = None
        """The batch that all of `_records` come from; None if it is still the first of `_batches`."""
        self._after = -1
        """The position after `_records`: the end of the batch, whose last records compaction may have removed."""

    @property
    def topic_id(self) -> bytes:
        """Id of the topic whose log this is. Another topic may get its name."""
        return self.key[0]

    # -- position -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._position if self.cursor is None else self.cursor.offset + 1

    @property
    def position_epoch(self) -> int:
        return self._epoch if self.cursor is None else self.cursor.leader_epoch

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Continue at `offset`. `epoch`: the leader epoch of the record before it, if that is known."""
        if offset == self.position and self.error is None and self.reset is None and not self.needs_validation:
            return  # It is the position already: the buffer is kept.
        self._position, self._epoch, self.cursor = offset, epoch, None
        self.reset, self.needs_validation = None, False
        self._heal()
        self._empty()

    def reset_to(self, timestamp: int) -> None:
        """Have the position looked up by this timestamp."""
        self._position, self._epoch, self.cursor = -1, -1, None
        self.reset, self.needs_validation = timestamp, False
        self._heal()
        self._empty()

    def drop_prefetched(self) -> bool:
        """Empty the buffer, and fetch again from the position. Returns whether the buffer had something."""
        had_some = self.fetch_offset != self.position
        self._settle()
        self._empty()
        return had_some

    def _settle(self) -> None:
        self._position, self._epoch, self.cursor = self.position, self.position_epoch, None

    def _empty(self) -> None:
        self.version += 1
        self._batches.clear()
        self._records, self._opened = [], None
        self.buffered_bytes = 0
        self.fetch_offset, self.fetch_epoch = self._position, self._epoch

    def fail(self, error: StrandlineError) -> None:
        self.error, self.error_was_raised = error, False
        self._failed[self] = None

    def _heal(self) -> None:
        self.error, self.error_was_raised = None, False
        self._failed.pop(self, None)

    def on_missing(self, now: float) -> float:
        """The cluster does not know its log. Returns for how many milliseconds it has not."""
        if self.missing_since is None:
            self.missing_since = now
        return (now - self.missing_since) * 1000

    def on_found(self) -> bool:
        """The cluster knows its log. Returns whether that has cleared an error."""
        self.missing_since = None
        if not isinstance(self.error, UnknownTopic):
            return False
        self._heal()
        return True

    def abandon(self) -> None:
        """It is no longer read. A request that is still in flight for it reports no errors."""
        self.version += 1
        self._failed.pop(self, None)
        self._failed = {}

    # -- fetching -----------------------------------------------------------------------------------------------------

    def is_fetchable(self, now: float, buffer_bytes_max: int) -> bool:
        return (
            self.fetch_offset >= 0
            and (self.fetch_until is None or self.fetch_offset < self.fetch_until)
            and not self.paused
            and self.error is None
            and self.reset is None
            and not self.needs_validation
            and self.buffered_bytes < buffer_bytes_max
            and self.retry_at <= now
        )

    def on_leader(self, leader_epoch: int) -> None:
        """The metadata names this leader epoch. If it is a new one, the position must be validated once (KIP-320)."""
        if leader_epoch != self.leader_epoch:
            if self.leader_epoch >= 0 and self.fetch_epoch >= 0:
                self.needs_validation = True
            self.leader_epoch = leader_epoch

    def on_fetched(self, records: Buffer) -> None:
        """Put fetched batches into the buffer. The first one may begin before `fetch_offset`."""
        try:
            for pos, header in iter_headers(records):
                if header.next_offset <= self.fetch_offset or self._was_skipped(header):
                    continue
                self._batches.append((records, pos, header))
                self.buffered_bytes += header.size
                self.fetch_offset, self.fetch_epoch = header.next_offset, header.leader_epoch
        except BrokerError as e:
            if not self._batches:
                self.fail(self._corrupt(e, self.fetch_offset, -1))

    def _was_skipped(self, header: BatchHeader) -> bool:
        first_offset, after = self._skipped
        return header.base_offset == first_offset and self.fetch_offset >= after

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def has_buffered(self) -> bool:
        return bool(self._records or self._batches)

    def rest(self, decode: Decoder) -> list[ConsumerRecord]:
        """The next records, of one batch, without moving the position. Empty if nothing is buffered."""
        while True:
            if self._records:
                if self.cursor is not None:
                    first = bisect_right(self._records, self.cursor.offset, key=_offset)
                    self._settle()
                    self._records = self._records[first:]
                if self._records:
                    return self._records
                self.finish()
            elif not self._batches:
                return []
            else:
                self._decode_records(decode)

    def _decode_records(self, decode: Decoder) -> None:
        first = self._batches[0]
        try:
            records = self._decode_next(decode)
        except Undecodable as e:
            if not e.records:
                raise ClientError(str(e), topic=self.tp.topic, partition=self.tp.partition) from e
            self._records, self._after = e.records, e.offset
            return
        if records:
            self._records, self._opened = records, first

    def _decode_next(self, decode: DecoderOf[Rows]) -> Rows | None:
        """The rows of the first batch from the position on. None if the batch has no rows for the program or was skipped as
        corrupt (the position has moved after it), or if it is corrupt (the state has failed and its buffer is empty)."""
        self._settle()
        buf, pos, header = self._batches[0]
        rows: Rows | None = None
        try:
            if not header.is_control and header.record_count:
                rows = decode(self.tp, buf, pos, header, self._position)
            elif self._checks_crcs and not check_crc(buf, pos, header.size):
                corrupt(f"the batch at offset {header.base_offset} fails its checksum")
        except BrokerError as e:
            after = self._end_of_unreadable(buf, pos, header)
            error = self._corrupt(e, header.base_offset, after - 1 if after >= 0 else -1)
            if after < 0 or not self._skips(error):
                self.drop_prefetched()
                self.fail(error)
                return None
            if after != header.next_offset:
                self._continue_behind(buf, pos, header, after)
                return None
        self._batches.popleft()
        self.buffered_bytes -= header.size
        self._after = header.next_offset
        if rows is None or not len(rows):
            self.finish(header.leader_epoch)
            return None
        return rows

    def _end_of_unreadable(self, buf: Buffer, pos: int, header: BatchHeader) -> int:
        """The offset after a batch that cannot be read; -1 if it is not known. If the checksum is wrong, the damage may be in the
        header itself, and trusting a wrong end would skip batches that can be read. So the base offset of the batch behind it
        counts. If none was fetched with it, the header must be consistent in itself and with the high watermark."""
        if check_crc(buf, pos, header.size):
            return header.next_offset
        behind = pos + header.size
        try:
            following = read_header(buf, behind)
            if following.base_offset > header.base_offset and check_crc(buf, behind, following.size):
                return following.base_offset
        except BrokerError:
            pass
        is_plausible = header.record_count == header.last_offset_delta + 1 and header.next_offset <= self.highwater
        return header.next_offset if is_plausible else -1

    def _continue_behind(self, buf: Buffer, pos: int, header: BatchHeader, after: int) -> None:
        """The batches after the skipped one were buffered by the wrong end in its header: buffer the rest of its response
        again."""
        self._skipped = (header.base_offset, after)
        self._position, self._epoch = max(after, self._position), header.leader_epoch
        self._empty()
        self.on_fetched(memoryview(buf)[pos + header.size :])

    def _corrupt(self, cause: BrokerError, first_offset: int, last_offset: int) -> CorruptRecords:
        topic, partition = self.tp
        reason = cause.message or cause.code.name
        return CorruptRecords(
            reason, topic=topic, partition=partition, first_offset=first_offset, last_offset=last_offset, code=cause.code
        )

    def finish(self, epoch: int | None = None) -> None:
        """All of `_records` were returned: the position is after their batch."""
        if epoch is None:
            epoch = self._records[-1].leader_epoch if self._records else self.position_epoch
        self._position, self._epoch, self.cursor = self._after, epoch, None
        self._records, self._opened = [], None

    def pull(self, decode: Decoder, limit: int) -> list[ConsumerRecord]:
        """Return up to `limit` records, the rest of one batch or a part of it, and move the position after them."""
        records = self.rest(decode)
        if not records:
            return records
        self.version += 1
        if len(records) <= limit:
            self.finish()
            return records
        self.cursor = records[limit - 1]
        return records[:limit]

    def next_header(self) -> BatchHeader | None:
        """The header of the batch that `pull_batch` would return next; None if nothing is buffered."""
        if self._records:
            self._close_records()
        return self._batches[0][2] if self._batches else None

    def _close_records(self) -> None:
        """Put a batch that is being read record by record back into the buffer. The position stays."""
        self._settle()
        self.version += 1
        if self._opened is not None:
            self._batches.appendleft(self._opened)
            self.buffered_bytes += self._opened[2].size
        self._records, self._opened = [], None

    def pull_batch(self, decode: DecoderOf[FetchedBatch]) -> FetchedBatch | None:
        """Return the next batch, or the rest of it, and move the position. None if it has no rows for the program or is
        corrupt."""
        if self.next_header() is None:
            return None
        batch = self._decode_next(decode)
        if batch is not None:
            self.version += 1
            self.finish(batch.leader_epoch)
        return batch


def _offset(record: ConsumerRecord) -> int:
    return record.offset
