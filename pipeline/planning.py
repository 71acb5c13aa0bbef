"""Chooses the ranges of offsets that a batch reads, and splits them. Pure.

A **range** is a part of one partition, the offsets `[start, end)`. The rules are those of Spark's Kafka connector: the partitions
share a limit (`maxOffsetsPerTrigger`) in proportion to their available offsets, and `minPartitions` splits the largest ranges
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.offsets import NO_EPOCH, UNKNOWN_ID, ReadPosition, ReadPositions


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets `start` to `end` (exclusive) of one partition, read by one task. Spark pickles it."""

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int = NO_EPOCH
    """Leader epoch of the record before `start`; -1: not known."""
    topic_id: bytes = UNKNOWN_ID
    """Id of the topic to read. A topic that was recreated under the same name has other records at these offsets."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, and so the largest possible number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def limited(start: ReadPositions, available: ReadPositions, most: int) -> ReadPositions:
    """The end positions of a batch of about `most` offsets, shared among the partitions in proportion to what is available. Every
    partition with new offsets gets at least one, so the total may exceed `most` a little."""
    sizes = {tp: max(0, end.offset - start[tp].offset) for tp, end in available.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(available)
    shares = {tp: size * most / total for tp, size in sizes.items()}
    taken = {tp: max(floor(share), min(sizes[tp], 1)) for tp, share in shares.items()}
    _hand_out_rest(taken, shares, sizes, most - sum(taken.values()))
    return {tp: _advance(start[tp], end, taken[tp]) for tp, end in available.items()}


def _hand_out_rest(
    taken: dict[TopicPartition, int], shares: Mapping[TopicPartition, float], sizes: Mapping[TopicPartition, int], rest: int
) -> None:
    """Distributes the offsets that rounding left over, first to the partitions that rounding cut most."""
    for tp in sorted(taken, key=lambda p: (taken[p] - shares[p], p)):
        if rest <= 0:
            return
        if taken[tp] < sizes[tp]:
            taken[tp] += 1
            rest -= 1


def _advance(start: ReadPosition, end: ReadPosition, count: int) -> ReadPosition:
    """The position `count` offsets after `start`, at most `end`: the log of a recreated topic may end before `start`. Between
    the two the leader epoch is not known."""
    if start.offset + count >= end.offset:
        return end
    return ReadPosition(start.offset + count, start.leader_epoch if count == 0 else NO_EPOCH, end.topic_id)


def split(ranges: Sequence[Range], min_pieces: int = 0, max_size: int | None = None) -> list[Range]:
    """Cuts ranges into pieces, in the order of the log: at most `max_size` offsets each, and at least `min_pieces` pieces if
    there are as many offsets. Empty ranges are dropped."""
    pieces = [r for r in ranges if r.size > 0]
    if max_size is not None:
        pieces = [piece for r in pieces for piece in _cut(r, ceil(r.size / max_size))]
    if not pieces or len(pieces) >= min_pieces:
        return pieces
    return [piece for r, count in zip(pieces, _counts(pieces, min_pieces), strict=True) for piece in _cut(r, count)]


def _counts(ranges: Sequence[Range], wanted: int) -> list[int]:
    """The number of pieces of each range, `wanted` in total. Each further piece goes to the range whose pieces are largest."""
    counts = [1] * len(ranges)
    for _ in range(wanted - len(ranges)):
        largest = max(range(len(ranges)), key=lambda i: ranges[i].size / counts[i])
        if ranges[largest].size <= counts[largest]:
            break
        counts[largest] += 1
    return counts


def _cut(whole: Range, count: int) -> Iterable[Range]:
    """Cuts a range into pieces whose sizes differ by at most one offset."""
    size = whole.size
    bounds = [whole.start + size * i // count for i in range(count + 1)]
    for start, end in pairwise(bounds):
        is_first = start == whole.start
        yield replace(whole, start=start, end=end, leader_epoch=whole.leader_epoch if is_first else NO_EPOCH)
