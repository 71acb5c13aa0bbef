"""The progress of a consumer in one partition: its position, and the records that it has fetched. Pure.

Two offsets matter. `position` is the next record that the program gets. `fetch_offset` is the next one to ask a broker for; it is
ahead of the position by the records in the buffer. A seek moves both and empties the buffer. A response counts only if its fetch
asked for the present `fetch_offset`, so late responses need no other bookkeeping.

A partition is fetched (`is_fetchable`) if it is in the state FETCHING (fetch_state.py), is not paused, has not failed, is not
backing off, and its buffer is not full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sized
from typing import TypeVar

from strandline.client.consumer.aborted import AbortedTransactions
from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.fetch_buffer import FetchBuffer, RawBatch, end_of_unreadable
from strandline.client.consumer.fetch_state import AwaitReset, Failure, FetchState
from strandline.client.consumer.records import AnyRecord, TopicPartition, Undecodable
from strandline.client.errors import ClientError, CorruptRecords, TopicAuthorizationFailed, UnknownTopic
from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.messages.data import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, AbortedTransaction
from strandline.protocol.records.batch import BatchHeader, Buffer, check_crc, corrupt

Rows = TypeVar("Rows", bound=Sized)
DecoderOf = Callable[[TopicPartition, Buffer, int, BatchHeader, int], Rows]
"""Partition, buffer, position of the batch in it, header, first wanted offset -> the rows from that offset on."""
Decoder = DecoderOf[list[AnyRecord]]

EARLIEST, LATEST = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

_FETCHING = FetchState.FETCHING


class OpenBatch:
    """A batch that is returned record by record."""

    __slots__ = ("end_offset", "records", "source")

    def __init__(self, records: list[AnyRecord], source: RawBatch | None, end_offset: int) -> None:
        self.records = records
        """The decoded records. Those from the position on were not returned yet."""
        self.source = source
        """The batch, which is no longer in the buffer. None: the batch is still the first in the buffer, because a later record
        of it cannot be deserialized."""
        self.end_offset = end_offset
        """The position after `records`. It may be more than one above the last record's offset, because compaction removes
        records."""


class PartitionState:
    """One assigned partition of a consumer: its position, its buffer, and whether it may be fetched."""

    __slots__ = (
        "_aborted",
        "_buffer",
        "_checks_crcs",
        "_epoch",
        "_failed",
        "_fetch_end",
        "_is_paused",
        "_missing_since",
        "_open",
        "_position",
        "_skips",
        "cursor",
        "failure",
        "fetch_state",
        "highwater",
        "is_held",
        "key",
        "last_stable_offset",
        "leader_epoch",
        "lookup_error",
        "lookup_failures",
        "paused",
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
        reset: int | None = None,
    ) -> None:
        """`failed`: the failed states of the consumer, to which this one adds itself. `skips` returns whether to continue after a
        batch that cannot be read. `reset`: the timestamp (or EARLIEST, LATEST) that selects the first position; None: a seek
        selects it."""
        self.tp = tp
        self.key = (topic_id, tp.partition)
        self._failed = failed
        self._skips = skips
        self._checks_crcs = checks_crcs
        self.fetch_state: FetchState | AwaitReset = FetchState.INITIALIZING if reset is None else AwaitReset(reset)
        """INITIALIZING and AwaitReset: there is no position, and the buffer is empty. The others: there is a position."""
        self.failure: Failure | None = None
        """Not None exactly while this state is in `failed`, or was abandoned with a failure."""
        self.paused = False
        """The program gets no records, and none are fetched; fetched records are kept. True while the program has paused the
        partition, and while it is held."""
        self._is_paused = False
        """The program has paused the partition."""
        self.is_held = False
        """Its records may not be returned now: a rebalance of the group is in progress, or the membership is in doubt."""
        self.retry_at = 0.0
        """Nothing is fetched before this time, on the loop's clock, because the last fetch failed."""
        self.lookup_failures = 0
        """Look-ups or validations of the present position that failed in a row."""
        self.lookup_error: StrandlineError | None = None
        """Why the last of them failed; None if none did."""
        self._missing_since: float | None = None
        """When the cluster was first seen not to know the topic or partition, or to have another topic with the name, on the
        loop's clock; None while the cluster knows it."""
        self._position = -1
        """The next offset that the program gets, if `cursor` is None; -1 while there is no position."""
        self._epoch = -1
        """The leader epoch of the last record before `_position`; -1 if it is not known."""
        self.cursor: AnyRecord | None = None
        """The last record that `async for` or a limited call returned. The position is after it. None: `_position` counts."""
        self.leader_epoch = -1
        """The leader epoch of the newest metadata, which each fetch contains; -1 before the first metadata."""
        self.highwater = -1
        """The high watermark of the newest response; -1 before the first. The program gets only records below it (with
        `read_committed`, below the last stable offset)."""
        self.last_stable_offset = -1
        """The last stable offset of the newest response; -1 before the first."""
        self._fetch_end: int | None = None
        """No fetch begins at this offset or after it; None: there is no bound."""
        self._buffer = FetchBuffer()
        """The batches that are not decoded yet. Their end is `fetch_offset`, which is never before the position."""
        self._aborted: AbortedTransactions | None = None
        """The aborted transactions in the buffer; None if there was never one."""
        self._open: OpenBatch | None = None
        """The batch that is returned record by record. Its records are before all of `_buffer`, unless its source is still the
        first batch there."""
        self.version = 0
        """Changes whenever a call other than the running `async for` changes which record is next."""

    @property
    def topic_id(self) -> bytes:
        """The id of the topic whose log is read. Another topic may get its name."""
        return self.key[0]

    # -- position -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset of the next record that the program gets; -1 while it is not known."""
        return self._position if self.cursor is None else self.cursor.offset + 1

    @property
    def position_epoch(self) -> int:
        """The leader epoch of the last record before the position; -1 if it is not known."""
        return self._epoch if self.cursor is None else self.cursor.leader_epoch

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Continue at `offset`. `epoch`: the leader epoch of the record before it; -1 if that is not known."""
        if offset == self.position and self.failure is None and self.fetch_state is _FETCHING:
            return  # The position does not change: keep the buffer.
        self._restart_at(offset, epoch, _FETCHING)

    def reset_to(self, timestamp: int) -> None:
        """Drop the position, and look up another one by this timestamp (or EARLIEST, LATEST)."""
        self._restart_at(-1, -1, AwaitReset(timestamp))

    def _restart_at(self, offset: int, epoch: int, fetch_state: FetchState | AwaitReset) -> None:
        self._position, self._epoch, self.cursor = offset, epoch, None
        self.fetch_state = fetch_state
        self._clear_failure()
        self._empty()

    def drop_prefetched(self) -> bool:
        """Empty the buffer, and fetch again from the position. Returns whether the buffer had something."""
        had_some = self.fetch_offset != self.position
        self._settle()
        self._empty()
        return had_some

    def _settle(self) -> None:
        """Move `_position` behind the record of `cursor`, and clear `cursor`."""
        self._position, self._epoch, self.cursor = self.position, self.position_epoch, None

    def _empty(self) -> None:
        self.version += 1
        self._open = None
        self._buffer.restart(self._position, self._epoch)

    def _advance(self, offset: int, epoch: int) -> None:
        """All records before `offset` were returned, and no batch is open."""
        self._position, self._epoch, self.cursor = offset, epoch, None
        self._open = None

    # -- failures, pauses, and the partition's topic --------------------------------------------------------------------

    @property
    def error(self) -> StrandlineError | None:
        """Why the partition cannot be read any further; None if it can."""
        return None if self.failure is None else self.failure.error

    def fail(self, error: StrandlineError) -> None:
        """The partition cannot be read any further, until a seek. A call that returns records raises `error`."""
        self.failure = Failure(error)
        self._failed[self] = None

    def _clear_failure(self) -> None:
        self.failure = None
        self._failed.pop(self, None)

    @property
    def is_paused_by_program(self) -> bool:
        """Whether the program has paused the partition."""
        return self._is_paused

    def pause(self) -> None:
        """Return no records, and fetch none, until `resume`."""
        self._is_paused = self.paused = True
        self.version += 1

    def resume(self) -> None:
        """End a pause of the program."""
        self._is_paused, self.paused = False, self.is_held

    def hold(self) -> None:
        """Return no records, and fetch none, until `release`, even if the program resumes the partition."""
        self.is_held = self.paused = True
        self.version += 1

    def release(self) -> None:
        """End a hold."""
        self.is_held, self.paused = False, self._is_paused

    def on_maybe_allowed(self) -> bool:
        """Clear the error of a principal without the right to read the topic, because the right may have been granted since.
        Returns whether there was such an error; if so, the leader must be asked again."""
        if not isinstance(self.error, TopicAuthorizationFailed):
            return False
        self._clear_failure()
        return True

    def on_missing(self, now: float) -> float:
        """The cluster does not know the partition's log at `now` (on the loop's clock). Returns for how many milliseconds it has
        not known it."""
        if self._missing_since is None:
            self._missing_since = now
        return (now - self._missing_since) * 1000

    def on_found(self) -> bool:
        """The cluster knows the partition's log. Returns whether that has cleared an error."""
        self._missing_since = None
        if not isinstance(self.error, (UnknownTopic, TopicAuthorizationFailed)):
            return False
        self._clear_failure()
        return True

    def abandon(self) -> None:
        """The partition is no longer read. A request that is still in flight for it reports no errors."""
        self.version += 1
        self._failed.pop(self, None)
        self._failed = {}

    # -- fetching -----------------------------------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """The offset at which the next fetch begins; -1 while there is no position."""
        return self._buffer.end_offset

    @property
    def fetch_epoch(self) -> int:
        """The leader epoch of the last record before `fetch_offset`; -1 if it is not known."""
        return self._buffer.end_epoch

    @property
    def buffered_bytes(self) -> int:
        """The size of the batches that were fetched and not decoded yet."""
        return self._buffer.bytes

    def is_fetchable(self, now: float, buffer_bytes_max: int) -> bool:
        """Whether records may be fetched at `now` (on the loop's clock). A buffer with `buffer_bytes_max` bytes is full."""
        return (
            self.fetch_state is _FETCHING
            and self.failure is None
            and not self.paused
            and self._buffer.bytes < buffer_bytes_max
            and self.retry_at <= now
            and (self._fetch_end is None or self._buffer.end_offset < self._fetch_end)
        )

    @property
    def needs_position(self) -> bool:
        """Whether the leader must be asked about the position before anything is fetched."""
        fetch_state = self.fetch_state
        return fetch_state is FetchState.AWAIT_VALIDATION or type(fetch_state) is AwaitReset

    def on_lookup_failed(self, error: StrandlineError) -> None:
        """A look-up or validation of the position has failed. The leader is asked again."""
        self.lookup_failures += 1
        self.lookup_error = error

    def on_lookup_settled(self) -> None:
        """The position is known, or the partition has failed for good."""
        self.lookup_failures = 0
        self.lookup_error = None

    def back_off(self, until: float) -> None:
        """Fetch nothing before `until`, on the loop's clock."""
        self.retry_at = until

    def stop_fetching_at(self, offset: int | None) -> None:
        """Begin no fetch at this offset or after it. None: fetch without a bound."""
        self._fetch_end = offset

    def on_leader(self, leader_epoch: int) -> None:
        """The metadata names this leader epoch. If it is new, the position must be validated once (KIP-320)."""
        if leader_epoch != self.leader_epoch:
            if self.leader_epoch >= 0 and self.fetch_epoch >= 0:
                self.fetch_state = FetchState.AWAIT_VALIDATION
            self.leader_epoch = leader_epoch

    def on_validated(self) -> None:
        """The leader's log holds the record before `fetch_offset`, or the epoch of that record is not known: the partition may be
        fetched."""
        if self.fetch_state is FetchState.AWAIT_VALIDATION:
            self.fetch_state = _FETCHING

    def on_end_offsets(self, high_watermark: int, last_stable_offset: int) -> None:
        """A fetch response contains these offsets. Consumers may read below the first; with `read_committed`, below the
        second."""
        self.highwater, self.last_stable_offset = high_watermark, last_stable_offset

    def on_fetched(self, records: Buffer) -> None:
        """Put fetched batches into the buffer. The first one may begin before `fetch_offset`. If none of them can be read, the
        state fails with CorruptRecords."""
        try:
            self._buffer.add(records)
        except BrokerError as e:
            self.fail(self._corrupt(e, self.fetch_offset, -1))

    def on_aborted(self, transactions: list[AbortedTransaction]) -> None:
        """Note the aborted transactions of a response, whose records are not returned. Must be called before `on_fetched`."""
        if self._aborted is None:
            self._aborted = AbortedTransactions()
        self._aborted.add(transactions)

    def _is_aborted(self, header: BatchHeader) -> bool:
        return self._aborted is not None and header.is_transactional and self._aborted.has(header)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def has_buffered(self) -> bool:
        """Whether there are fetched batches, which may have records for the program."""
        return self._open is not None or bool(self._buffer)

    def rest(self, decode: Decoder) -> list[AnyRecord]:
        """The next records, all of one batch. The position does not move. Empty if nothing is buffered. ClientError if the next
        record cannot be deserialized."""
        while True:
            opened = self._open
            if opened is not None:
                if self.cursor is not None:
                    first = bisect_right(opened.records, self.cursor.offset, key=_offset)
                    self._settle()
                    opened.records = opened.records[first:]
                if opened.records:
                    return opened.records
                self.finish()
            elif not self._buffer:
                return []
            else:
                self._open_next(decode)

    def _open_next(self, decode: Decoder) -> None:
        first = self._buffer.first
        try:
            records = self._decode_next(decode)
        except Undecodable as e:
            if not e.records:
                raise ClientError(str(e), topic=self.tp.topic, partition=self.tp.partition) from e
            self._open = OpenBatch(e.records, None, e.offset)
            return
        if records:
            self._open = OpenBatch(records, first, first[2].next_offset)

    @property
    def opened(self) -> OpenBatch | None:
        """The batch whose records `rest` has returned; None if there is none."""
        return self._open

    def catch_up(self, opened: OpenBatch | None, before: AnyRecord | None, record: AnyRecord) -> bool:
        """Move the position after `record`, up to which a program on another thread has iterated over the records of `opened`.
        `before`: the record of the previous call; None for the first one. Returns False, and changes nothing, if the position
        was moved since."""
        if self._open is not opened or self.cursor is not before:
            return False
        self.cursor = record
        return True

    def finish(self) -> None:
        """All records of the open batch were returned: the position is after the batch."""
        opened = self._open
        assert opened is not None, "`rest` has returned its records"
        epoch = opened.records[-1].leader_epoch if opened.records else self.position_epoch
        self._advance(opened.end_offset, epoch)

    def pull(self, decode: Decoder, limit: int) -> list[AnyRecord]:
        """Return up to `limit` records (the rest of one batch, or a part of it), and move the position after them."""
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
        if self._open is not None:
            self._close(self._open)
        return self._buffer.first[2] if self._buffer else None

    def _close(self, opened: OpenBatch) -> None:
        """Put a batch that is being read record by record back into the buffer. The position stays."""
        self._settle()
        self.version += 1
        if opened.source is not None:
            self._buffer.put_back(opened.source)
        self._open = None

    def pull_batch(self, decode: DecoderOf[FetchedBatch]) -> FetchedBatch | None:
        """Return the next batch, or the rest of it, and move the position. None if it has no rows for the program or is
        corrupt."""
        header = self.next_header()
        if header is None:
            return None
        batch = self._decode_next(decode)
        if batch is not None:
            self.version += 1
            self._advance(header.next_offset, batch.leader_epoch)
        return batch

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _decode_next(self, decode: DecoderOf[Rows]) -> Rows | None:
        """The rows of the first batch from the position on. None if the batch has no rows for the program or was skipped as
        corrupt (the position has moved after it), or if it is corrupt (the state has failed and its buffer is empty)."""
        self._settle()
        buf, pos, header = first = self._buffer.first
        rows: Rows | None = None
        try:
            if not header.is_control and header.record_count and not self._is_aborted(header):
                rows = decode(self.tp, buf, pos, header, self._position)
            elif self._checks_crcs and not check_crc(buf, pos, header.size):
                corrupt(f"the batch at offset {header.base_offset} fails its checksum")
        except BrokerError as e:
            if not self._skip_unreadable(first, e):
                return None
        self._buffer.remove_first()
        if rows is None or not len(rows):
            self._advance(header.next_offset, header.leader_epoch)
            return None
        return rows

    def _skip_unreadable(self, batch: RawBatch, cause: BrokerError) -> bool:
        """Skip a batch that cannot be read, or fail. Returns whether the batch ends where its header says, and is still the first
        of the buffer; otherwise the buffer has changed already."""
        header = batch[2]
        after = end_of_unreadable(batch, self.highwater)
        error = self._corrupt(cause, header.base_offset, after - 1 if after >= 0 else -1)
        if after < 0 or not self._skips(error):
            self.drop_prefetched()
            self.fail(error)
            return False
        if after != header.next_offset:
            self._continue_behind(batch, after)
            return False
        return True

    def _continue_behind(self, batch: RawBatch, after: int) -> None:
        """Buffer the response of a skipped batch again from behind it, because the batches that follow were selected by the wrong
        end offset in its header."""
        buf, pos, header = batch
        self._position, self._epoch = max(after, self._position), header.leader_epoch
        self._empty()
        self._buffer.skip(header, after)
        self.on_fetched(memoryview(buf)[pos + header.size :])

    def _corrupt(self, cause: BrokerError, first_offset: int, last_offset: int) -> CorruptRecords:
        topic, partition = self.tp
        reason = cause.message or cause.code.name
        return CorruptRecords(
            reason, topic=topic, partition=partition, first_offset=first_offset, last_offset=last_offset, code=cause.code
        )


def _offset(record: AnyRecord) -> int:
    return record.offset
