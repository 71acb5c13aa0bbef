"""The lag of the groups of this broker, in records and in seconds: the core of `lag_monitor.py`.

The lag in records is the high watermark of the partition's leader minus the committed offset, as every client counts it, and not
below 0. The lag in seconds is the age of the oldest committed record that the group has not read; 0 if there is none, and None if
that record has no timestamp, or its timestamp must be looked up again. The coordinator knows the committed offsets and asks the
leaders for the rest (DescribeOffsetLag).

A round measures all offsets, in parts. When it ends, its results replace those of the previous round:

- If a leader does not answer, the last measurements of its partitions stay for `KEEP_S` seconds. They are dropped then, because a
  number that no longer changes looks like a true one. They are not dropped sooner, because a series that ends and begins at every
  failover resets the alerts on it.
- Only the largest lags are kept, at most as many as the configuration says, because each is two series of a scrape.

A timestamp is looked up once: as long as a group stands still, the record that it has to read next stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappush, heappushpop
from typing import NamedTuple

from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.protocol.messages.data import OffsetLagPartition, OffsetLagPartitionResponse
from strandline.protocol.partitions import TopicIdPartition

KEEP_S = 60.0
UNKNOWN_MS = -1

Key = tuple[str, str, int]
"""Group, topic and partition."""
Questions = dict[int, dict[TopicIdPartition, OffsetLagPartition]]
"""Leader -> partition -> the offsets to look up there."""
Answers = Mapping[TopicIdPartition, OffsetLagPartitionResponse]


class Position(NamedTuple):
    """A committed offset of a group, and the number of the group's partition of `__consumer_offsets`."""

    group_id: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    shard: int

    @property
    def key(self) -> Key:
        return self.group_id, self.topic, self.partition


class OffsetLag(NamedTuple):
    """The lag of a group in one partition, when it was measured."""

    position: Position
    records: int
    seconds: float | None
    unread_from: int
    """The offset at which the unread records begin: the committed offset, or the log start offset if that is higher."""
    oldest_ms: int
    """The timestamp of the first unread record; UNKNOWN_MS if there is none, or if it must be looked up again."""
    measured_at: float
    """The time of the measurement, on the loop's clock."""


class _Round:
    """The measurements of a round that has not ended."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, Key, OffsetLag]] = []
        """The largest lags so far, the smallest of them first."""
        self.omitted = 0
        self.unknown = 0


class LagTable:
    """The results of the last round, and the round that is under way."""

    def __init__(self, series_max: int) -> None:
        self.series_max = series_max
        """The maximum number of lags that a round keeps."""
        self.lags: dict[Key, OffsetLag] = {}
        """The largest lags of the last round, the largest first."""
        self.omitted = 0
        """The number of smaller lags that the last round left out."""
        self.unknown = 0
        """The number of offsets that the last round could not measure."""
        self.complete_at: float | None = None
        """When the last round ended, on the loop's clock; None before the first one."""
        self._round = _Round()

    def begin(self) -> None:
        """Begin a round, and drop the measurements of one that did not end."""
        self._round = _Round()

    def questions(self, positions: Iterable[Position], image: MetadataImage) -> Questions:
        """The requests to the leaders that are necessary to measure these positions. A partition without a leader is left out."""
        wanted: dict[int, dict[TopicIdPartition, dict[int, None]]] = {}
        for position in positions:
            key = (position.topic_id, position.partition)
            registration = image.partition(key)
            if registration is not None and registration.leader != NO_LEADER:
                offsets = wanted.setdefault(registration.leader, {}).setdefault(key, {})
                if self._must_look_up(position):
                    offsets[position.offset] = None
        return {leader: {key: _asked(key, image, offsets) for key, offsets in of.items()} for leader, of in wanted.items()}

    def _must_look_up(self, position: Position) -> bool:
        known = self.lags.get(position.key)
        return known is None or known.position != position or known.oldest_ms == UNKNOWN_MS

    def measure(self, positions: Iterable[Position], asked: Questions, answers: Answers, now: float, now_ms: int) -> None:
        """Measure positions by the answers of their leaders, and add the lags to the round. `now`: the loop's time; `now_ms`: the
        wall clock."""
        offsets = {key: question.offsets for of_leader in asked.values() for key, question in of_leader.items()}
        for position in positions:
            key = (position.topic_id, position.partition)
            answer = answers.get(key)
            if answer is None or answer.error_code:
                self._miss(position, now)
            else:
                looked_up = dict(zip(offsets[key], answer.timestamps, strict=False))
                self._add(self._lag(position, answer, looked_up, now, now_ms))

    def _lag(
        self, position: Position, answer: OffsetLagPartitionResponse, looked_up: Mapping[int, int], now: float, now_ms: int
    ) -> OffsetLag:
        end, unread_from = answer.high_watermark, max(position.offset, answer.log_start_offset)
        records = max(0, end - position.offset)
        if unread_from >= end:
            return OffsetLag(position, records, 0.0, unread_from, UNKNOWN_MS, now)
        oldest_ms = looked_up.get(position.offset)
        if oldest_ms is None:
            # The timestamp of the last round is still valid, unless that record was deleted meanwhile. Then the next round looks
            # up the timestamp of the record that is now the first.
            known = self.lags.get(position.key)
            oldest_ms = known.oldest_ms if known is not None and known.unread_from == unread_from else UNKNOWN_MS
        seconds = None if oldest_ms == UNKNOWN_MS else max(0, now_ms - oldest_ms) / 1000
        return OffsetLag(position, records, seconds, unread_from, oldest_ms, now)

    def _miss(self, position: Position, now: float) -> None:
        self._round.unknown += 1
        known = self.lags.get(position.key)
        if known is not None and now - known.measured_at <= KEEP_S:
            self._add(known)

    def _add(self, lag: OffsetLag) -> None:
        heap, entry = self._round.heap, (lag.records, lag.position.key, lag)
        if len(heap) < self.series_max:
            heappush(heap, entry)
        else:
            self._round.omitted += 1
            if heap:
                heappushpop(heap, entry)

    def publish(self, now: float) -> None:
        """End the round, which has measured all offsets: its results replace those of the previous round."""
        largest_first = sorted(self._round.heap, key=lambda entry: (-entry[0], entry[1]))
        self.lags = {key: lag for _, key, lag in largest_first}
        self.omitted, self.unknown, self.complete_at = self._round.omitted, self._round.unknown, now
        self.begin()

    def clear(self) -> None:
        """Drop all results, because the rounds have ended."""
        self.lags, self.omitted, self.unknown, self.complete_at = {}, 0, 0, None
        self.begin()


def _asked(key: TopicIdPartition, image: MetadataImage, offsets: Iterable[int]) -> OffsetLagPartition:
    registration = image.partition(key)
    assert registration is not None
    return OffsetLagPartition(*key, registration.leader_epoch, list(offsets))
