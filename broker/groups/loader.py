"""Reads the records of one partition of `__consumer_offsets` into a new shard. `ShardLoader` reads the log; this class replays
it.

Nearly all records are commits of offsets, and the newest one of each group and partition supersedes the others. So the loader
first collects the committed ones by their keys, as bytes; when it has read the log, it decodes the newest ones:

    log        a=1  b=1  group  a=2  a=3  b=2 | a=4        the high watermark is at |
    replayed   group ............................ a=3  a=4  b=2

No other record depends on an offset, and compaction may have removed the superseded ones anyway. An uncommitted record is
replayed at once, after the newest committed one of its key. A log with many keys is replayed in parts, which bounds the memory.

The loader replays offsets in transactions, and markers, when it reads them; before each, it replays the newest commits of the
same keys. So commits and offsets of transactions are replayed in the order of the log, which decides which of them is in force.

A record of an unknown type (of share or streams groups, or of a later version) is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from strandline.broker.coordination.loader import ShardLoader
from strandline.broker.groups.records.codec import UnknownRecordType, decode_record
from strandline.broker.groups.records.offset_commits import OFFSET_COMMIT_TYPES, decode_offset_commit, only_record
from strandline.broker.groups.shard import GroupShard
from strandline.broker.partition.leader_state import LeaderState
from strandline.protocol.records.batch import CONTROL_MASK, HEADER_SIZE, NO_PRODUCER_ID, TRANSACTIONAL_MASK, BatchHeader, Buffer
from strandline.protocol.records.marker import read_marker
from strandline.protocol.records.reader import Columns, decode_columns

SLICE_OFFSETS = 150
"""Newest offsets that a slice replays: a quarter of a millisecond of work."""
NEWEST_MAX = 20_000
"""The number of offsets that the loader collects before it replays them. A dict that grew to a million offsets would block the
event loop whenever Python enlarges it."""


class GroupLoader(ShardLoader[GroupShard]):
    """The load of one shard."""

    def __init__(self, leader_state: LeaderState, shard: GroupShard, **options: Any) -> None:
        """The options are those of a `ShardLoader`."""
        super().__init__(leader_state, shard, **options)
        self._newest: dict[bytes, bytes | None] = {}
        """Key -> value of the newest OffsetCommit record that is read, committed, and not replayed."""
        self._left: Iterator[tuple[bytes, bytes | None]] | None = None
        """The entries of `_newest` that are still to be replayed; None while the log is read."""
        self._in_transactions: dict[int, dict[bytes, None]] = {}
        """Producer id -> the keys of its pending offsets."""

    # -- reading the log ----------------------------------------------------------------------------------------------

    def begin_slice(self, high_watermark: int) -> None:
        self.shard.offsets.on_high_watermark(high_watermark)

    def read_batch(self, buffer: Buffer, position: int, header: BatchHeader, high_watermark: int) -> None:
        if not header.record_count:
            return
        if header.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK):
            self._read_special(buffer, position, header)
            return
        is_committed = header.next_offset <= high_watermark
        if is_committed and self._collect_only_record(buffer, position, header):
            return
        columns = decode_columns(buffer, position, header, check_crc=False)
        if not (is_committed and self._collect(columns)):
            self._replay_batch(columns, high_watermark)

    def end_slice(self) -> None:
        if len(self._newest) >= NEWEST_MAX or (self._newest and self.next_offset >= self.end_offset):
            self._left = iter(self._newest.items())

    def _collect_only_record(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Collect the record of a batch that holds one commit; False if it holds something else."""
        if header.record_count > 1 or header.attributes:
            return False
        record = only_record(bytes(buffer[position + HEADER_SIZE : position + header.size]))
        if record is None or record[0][:2] not in OFFSET_COMMIT_TYPES:
            return False
        self._newest[record[0]] = record[1]
        self.records += 1
        return True

    def _collect(self, columns: Columns) -> bool:
        """Collect the records of a batch that holds commits; False if it holds something else, too."""
        keys = columns.keys
        if keys is None or not all(key is not None and key[:2] in OFFSET_COMMIT_TYPES for key in keys):
            return False
        self._newest.update(zip(keys, columns.values, strict=True))  # type: ignore[arg-type]
        self.records += len(keys)
        return True

    def _replay_batch(self, columns: Columns, high_watermark: int) -> None:
        """Replay a batch that holds records of several types, or uncommitted ones."""
        keys = columns.keys if columns.keys is not None else [None] * len(columns.values)
        for offset, key, value in zip(columns.offsets(), keys, columns.values, strict=True):
            if key is None or key[:2] not in OFFSET_COMMIT_TYPES:
                self._replay(key, value, offset)
            elif offset < high_watermark:
                self._newest[key] = value
                self.records += 1
            else:
                self._replay_newest(key)
                self._replay(key, value, offset)

    def _replay(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        try:
            record = decode_record(key, value)
        except UnknownRecordType:
            self.skipped += 1
            return
        self.shard.replay(record, offset, producer_id)
        self.records += 1

    # -- transactions -------------------------------------------------------------------------------------------------

    def _read_special(self, buffer: Buffer, position: int, header: BatchHeader) -> None:
        """Replay a batch of a transaction, or a marker. Other control batches mean nothing here."""
        if not header.is_control:
            self._replay_pending(decode_columns(buffer, position, header, check_crc=False), header.producer_id)
        elif header.is_transactional:
            marker = read_marker(buffer, position, header)
            if marker is not None:
                for key in self._in_transactions.pop(header.producer_id, ()):
                    self._replay_newest(key)
                self.shard.replay_marker(header.producer_id, marker.is_commit, header.last_offset)

    def _replay_pending(self, columns: Columns, producer_id: int) -> None:
        keys = columns.keys if columns.keys is not None else [None] * len(columns.values)
        for offset, key, value in zip(columns.offsets(), keys, columns.values, strict=True):
            if key is not None and key[:2] in OFFSET_COMMIT_TYPES:
                self._replay_newest(key)
                self._in_transactions.setdefault(producer_id, {})[key] = None
            self._replay(key, value, offset, producer_id)

    def _replay_newest(self, key: bytes) -> None:
        """Replay the newest commit of this key now, if it is not replayed yet."""
        if key in self._newest:
            self._replay_committed(key, self._newest.pop(key))

    # -- the newest offsets -------------------------------------------------------------------------------------------

    @property
    def is_replaying(self) -> bool:
        return self._left is not None

    def replay_slice(self) -> None:
        assert self._left is not None
        slice_ = list(islice(self._left, SLICE_OFFSETS))
        for key, value in slice_:
            self._replay_committed(key, value)
        if len(slice_) < SLICE_OFFSETS:
            self._newest, self._left = {}, None

    def _replay_committed(self, key: bytes, value: bytes | None) -> None:
        self.shard.offsets.replay_committed(decode_offset_commit(key, value))
