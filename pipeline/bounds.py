"""Computes the offsets at which a read starts and ends, from the options on offsets and timestamps. Pure.

An option that lists offsets must list every partition that is read: a user would not notice a default for a forgotten one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.options import EARLIEST, LATEST, Position, ReadOptions, Times
from strandline.protocol.errors import UsageError

Offsets = Mapping[TopicPartition, int]
LookUp = Callable[[Offsets], Mapping[TopicPartition, int | None]]
"""Maps each partition's timestamp (ms) to the offset of the first record that is at least as young; None: no such record."""


def starts_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """The start offset of each partition of `latest`. Options on timestamps take precedence over `startingOffsets`."""
    if options.starting_times is None:
        return of_position("startingOffsets", options.starting, latest, earliest, latest)
    times = times_of("startingOffsetsByTimestamp", options.starting_times, latest)
    return starting_at(at(times), times, latest, options.times_strategy)


def ends_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """The end offset (exclusive) of each partition. Options on timestamps take precedence over `endingOffsets`."""
    if options.ending_times is None:
        return of_position("endingOffsets", options.ending, latest, earliest, latest)
    return or_end(at(times_of("endingOffsetsByTimestamp", options.ending_times, latest)), latest)


def or_end(found: Mapping[TopicPartition, int | None], latest: Offsets) -> dict[TopicPartition, int]:
    """The offsets that were found; the end of the log for partitions without one."""
    return {tp: latest[tp] if offset is None else offset for tp, offset in found.items()}


def of_position(
    option: str, position: Position, tps: Iterable[TopicPartition], earliest: Offsets, latest: Offsets
) -> dict[TopicPartition, int]:
    """An offset for each partition. Raises UsageError if the option omits one of them, or lists one that is not read."""
    if position == "earliest":
        return {tp: earliest[tp] for tp in tps}
    if position == "latest":
        return {tp: latest[tp] for tp in tps}
    written = _complete(option, position, tps)
    return {tp: {EARLIEST: earliest[tp], LATEST: latest[tp]}.get(n, n) for tp, n in written.items()}


def times_of(option: str, times: Times, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """A timestamp (ms) for each partition. Raises UsageError as `of_position` does."""
    if isinstance(times, int):
        return dict.fromkeys(tps, times)
    return _complete(option, times, tps)


def starting_at(
    found: Mapping[TopicPartition, int | None], times: Offsets, latest: Offsets, strategy: str
) -> dict[TopicPartition, int]:
    """The first offset that is young enough. If a partition has none: UsageError, or with the strategy "latest" its end."""
    for tp, offset in found.items():
        if offset is None and strategy == "error":
            raise UsageError(
                f"no record of {tp} is as young as the starting timestamp {times[tp]}; "
                "to start there at the end, set the option startingOffsetsByTimestampStrategy to latest"
            )
    return or_end(found, latest)


def _complete(option: str, written: Mapping[str, Mapping[int, int]], tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    wanted = set(tps)
    given = {TopicPartition(topic, p): number for topic, of_topic in written.items() for p, number in of_topic.items()}
    if missing := sorted(wanted - set(given)):
        raise UsageError(f"option {option} lacks {', '.join(map(str, missing))}")
    if extra := sorted(set(given) - wanted):
        raise UsageError(f"option {option} names {', '.join(map(str, extra))}, which is not read")
    return {tp: given[tp] for tp in sorted(wanted)}
