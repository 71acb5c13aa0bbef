"""The offsets of groups in two views: after all records, and as far as the records are committed.

A record of `__consumer_offsets` at or above the high watermark may still be lost when the leader changes. A decision uses the
newest values, as every decision of a shard does. An answer about offsets uses the committed values, because a later coordinator
may not have the others. So the table keeps the value before each uncommitted record until the high watermark passes that record:

    high watermark 41      record 40: 700    record 41: 800    record 42: deleted
                           earlier values:   700               800
                           newest: none      committed: 700, the oldest of the earlier values

There are as many earlier values as uncommitted records. The loader sets the high watermark before it replays, so the table keeps
no earlier values for the records below it.

The record of a transaction changes neither view; it waits in `pending` (`PendingOffsets`). The transaction's marker changes both,
as a record at the offset of the marker would: the values are committed when the high watermark has passed the marker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from strandline.broker.groups.pending_offsets import PendingOffsets
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord

OffsetsByPartition = Mapping[int, CommittedOffset]
_NONE: Mapping[str, OffsetsByPartition] = {}
_NEWEST = 2**63
"""Above all log offsets."""


class GroupOffset(NamedTuple):
    """An offset of a group, and its partition."""

    topic: str
    partition: int
    value: CommittedOffset


class OffsetTable:
    """The offset of each group, topic and partition, in both views."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        """Group -> topic -> partition -> offset, after all records. No dict in it is empty."""
        self._earlier: dict[str, dict[tuple[str, int], deque[CommittedOffset | None]]] = {}
        """Group -> (topic, partition) -> the value before each of its uncommitted records, the oldest first; None: no offset. One
        for each entry of `_uncommitted`; none of the dicts and deques in it is empty."""
        self._uncommitted: deque[tuple[int, str, tuple[str, int]]] = deque()
        """Log offset, group, topic and partition of the records at or above the high watermark, in the order of the log."""
        self._high_watermark = 0
        self._count = 0
        """The number of entries of `_newest`."""
        self.pending = PendingOffsets()

    def __len__(self) -> int:
        """The number of newest offsets."""
        return self._count

    # -- change -------------------------------------------------------------------------------------------------------

    def replay(self, record: OffsetCommitRecord, log_offset: int) -> None:
        """Apply a record. If a tombstone finds no offset, compaction has removed it, and nothing changes (KAFKA-17306)."""
        if self.pending:
            self.pending.supersede((record.group_id, record.topic, record.partition), log_offset)
        self._change(record.group_id, record.topic, record.partition, record.value, log_offset)

    def replay_committed(self, record: OffsetCommitRecord) -> None:
        """Apply a record below the high watermark. It need not be the next record of the log, but no later record of its key may
        have been applied before, pending ones included."""
        group_id, topic, partition, value = record.group_id, record.topic, record.partition, record.value
        if self.pending:
            self.pending.supersede((group_id, topic, partition), _NEWEST)
        if value is not None or partition in self._newest.get(group_id, _NONE).get(topic, ()):
            self._put(group_id, topic, partition, value)

    def replay_pending(self, record: OffsetCommitRecord, log_offset: int, producer_id: int) -> None:
        """Apply a record of a transaction."""
        if record.value is None:
            self.replay(record, log_offset)  # no coordinator writes tombstones in a transaction; they would take effect at once
        else:
            self.pending.add(producer_id, (record.group_id, record.topic, record.partition), record.value, log_offset)

    def replay_marker(self, producer_id: int, is_commit: bool, log_offset: int) -> int:
        """Apply the end of a producer's transaction. Returns the number of its pending offsets that are committed."""
        taken = self.pending.take(producer_id)
        for key, (record_offset, value) in taken if is_commit else ():
            self.pending.supersede(key, record_offset)
            self._change(*key, value, log_offset)
        return len(taken) if is_commit else 0

    def _change(self, group_id: str, topic: str, partition: int, value: CommittedOffset | None, log_offset: int) -> None:
        """Set or remove a value. If the record of this change may still be lost, the previous value is kept, too."""
        before = self._newest.get(group_id, _NONE).get(topic, {}).get(partition)
        if log_offset >= self._high_watermark:
            earlier = self._earlier.setdefault(group_id, {})
            earlier.setdefault((topic, partition), deque()).append(before)
            self._uncommitted.append((log_offset, group_id, (topic, partition)))
        if value is not None or before is not None:
            self._put(group_id, topic, partition, value)

    def _put(self, group_id: str, topic: str, partition: int, value: CommittedOffset | None) -> None:
        """Set the newest value; None removes one that exists."""
        if value is not None:
            of_topic = self._newest.setdefault(group_id, {}).setdefault(topic, {})
            self._count += partition not in of_topic
            of_topic[partition] = value
        else:
            self._count -= 1
            self._remove(group_id, topic, partition)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._newest[group_id]
        del topics[topic][partition]
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._newest[group_id]

    def on_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark, and drop the value before each record that is committed now."""
        self._high_watermark = high_watermark
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] < high_watermark:
            _, group_id, key = uncommitted.popleft()
            earlier = self._earlier[group_id]
            earlier[key].popleft()
            if not earlier[key]:
                del earlier[key]
            if not earlier:
                del self._earlier[group_id]

    # -- after all records --------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Collection[str]:
        """The ids of groups that have an offset after all records."""
        return self._newest.keys()

    def topics(self, group_id: str) -> Mapping[str, OffsetsByPartition]:
        """The newest offsets of a group, by topic."""
        return self._newest.get(group_id, _NONE)

    def all_newest(self, group_id: str) -> list[GroupOffset]:
        """The newest offsets of a group, by topic and partition."""
        topics = self.topics(group_id)
        return [GroupOffset(topic, n, topics[topic][n]) for topic in sorted(topics) for n in sorted(topics[topic])]

    def newest(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._newest.get(group_id, _NONE).get(topic, {}).get(partition)

    # -- as far as the records are committed --------------------------------------------------------------------------

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The value of the position's last record below the high watermark; None without such a record, or after a tombstone."""
        earlier = self._earlier.get(group_id)
        if earlier is not None and (topic, partition) in earlier:
            return earlier[(topic, partition)][0]
        return self.newest(group_id, topic, partition)

    def all_committed(self, group_id: str) -> list[GroupOffset]:
        """The committed values of a group, by topic and partition."""
        values = {(topic, partition): value for topic, of in self.topics(group_id).items() for partition, value in of.items()}
        for key, earlier in self._earlier.get(group_id, {}).items():
            if earlier[0] is None:
                values.pop(key, None)
            else:
                values[key] = earlier[0]
        return [GroupOffset(*key, values[key]) for key in sorted(values)]
