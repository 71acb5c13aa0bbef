"""From where to where: what the options say about offsets and times, against what the log has. Pure.

An offset that was written down in an option must name every partition that is read: one that was forgotten would
otherwise begin wherever, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.options import EARLIEST, LATEST, Position, ReadOptions, Times
from strandline.protocol.errors import UsageError

Offsets = Mapping[TopicPartition, int]
LookUp = Callable[[Offsets], Mapping[TopicPartition, int | None]]
"""Timestamps -> the first offsets that are at least as young; None where there is none."""


def starts_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Where reading begins, in each of the partitions that are looked at. Timestamps go before offsets."""
    if options.starting_times is None:
        return of_position("startingOffsets", options.starting, latest, earliest, latest)
    times = times_of("startingOffsetsByTimestamp", options.starting_times, latest)
    return starting_at(at(times), times, latest, options.times_strategy)


def ends_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Where it ends."""
    if options.ending_times is None:
        return of_position("endingOffsets", options.ending, latest, earliest, latest)
    return or_end(at(times_of("endingOffsetsByTimestamp", options.ending_times, latest)), latest)


def or_end(found: Mapping[TopicPartition, int | None], latest: Offsets) -> dict[TopicPartition, int]:
    """The end, where nothing was found."""
    return {place: latest[place] if offset is None else offset for place, offset in found.items()}


def of_position(
    option: str, position: Position, places: Iterable[TopicPartition], earliest: Offsets, latest: Offsets
) -> dict[TopicPartition, int]:
    """An offset for each place. Raises UsageError when the option leaves one out, or names one that is not read."""
    if position == "earliest":
        return {place: earliest[place] for place in places}
    if position == "latest":
        return {place: latest[place] for place in places}
    written = _complete(option, position, places)
    return {place: {EARLIEST: earliest[place], LATEST: latest[place]}.get(n, n) for place, n in written.items()}


def times_of(option: str, times: Times, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """A timestamp (ms) for each place."""
    if isinstance(times, int):
        return dict.fromkeys(places, times)
    return _complete(option, times, places)


def starting_at(
    found: Mapping[TopicPartition, int | None], times: Offsets, latest: Offsets, strategy: str
) -> dict[TopicPartition, int]:
    """Where records are young enough. Where none is: UsageError, or with the strategy "latest" the end."""
    for place, offset in found.items():
        if offset is None and strategy == "error":
            raise UsageError(
                f"no record of {place} is as young as the starting timestamp {times[place]}; "
                "to start there at the end, set the option startingOffsetsByTimestampStrategy to latest"
            )
    return or_end(found, latest)


def _complete(
    option: str, written: Mapping[str, Mapping[int, int]], places: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    wanted = set(places)
    given = {TopicPartition(topic, p): number for topic, of_topic in written.items() for p, number in of_topic.items()}
    if missing := sorted(wanted - set(given)):
        raise UsageError(f"option {option} says nothing about {', '.join(map(str, missing))}")
    if extra := sorted(set(given) - wanted):
        raise UsageError(f"option {option} names {', '.join(map(str, extra))}, which is not read")
    return {place: given[place] for place in sorted(wanted)}
