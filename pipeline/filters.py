"""Turns the filters that Spark pushes down (on topic, partition, offset and timestamp) into bounds of the read. Pure.

Spark pushes filters only if `spark.sql.python.filterPushdown.enabled` is on. Filters on topic, partition and offset are applied
exactly, so Spark need not check them again. A filter on the timestamp only moves the start offset, and Spark still checks every
row: the log finds the first record that is at least as young, but timestamps after that record need not be in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from strandline.client.consumer.records import TopicPartition


@dataclass(slots=True)
class Bounds:
    """The topics, partitions, offsets and times that the filters leave to read."""

    topics: set[str] | None = None
    """None: all topics."""
    partitions: set[int] | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    """Timestamp in ms since the epoch: the query needs no older record. None: no bound."""

    def wants(self, tp: TopicPartition) -> bool:
        in_topics = self.topics is None or tp.topic in self.topics
        return in_topics and (self.partitions is None or tp.partition in self.partitions)

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """The part of the offsets `start` to `end` that lies within the bounds."""
        start = max(start, self.start)
        return start, max(start, end if self.end is None else min(end, self.end))

    # -- applying filters ---------------------------------------------------------------------------------------------

    def take(self, each: Filter) -> bool:
        """Narrows the bounds by a filter. True if the bounds are exact, so that Spark need not check the filter."""
        column, value = getattr(each, "attribute", ()), getattr(each, "value", None)
        if column == ("topic",):
            return self._take_set("topics", each, value)
        if column == ("partition",):
            return self._take_set("partitions", each, value)
        if column == ("offset",) and type(value) is int:
            return self.take_offset(each, value)
        if column == ("timestamp",) and isinstance(value, datetime):
            self._take_time(each, value)
        return False

    def _take_set(self, name: str, each: Filter, value: Any) -> bool:
        if type(each) not in (EqualTo, In):
            return False
        allowed = {value} if type(each) is EqualTo else set(value)
        known = getattr(self, name)
        setattr(self, name, allowed if known is None else known & allowed)
        return True

    def take_offset(self, each: Filter, value: int) -> bool:
        """Narrows the offsets by a comparison with `value`. False if `each` is not a comparison that bounds them."""
        least = {GreaterThan: value + 1, GreaterThanOrEqual: value, EqualTo: value}.get(type(each))
        end = {LessThan: value, LessThanOrEqual: value + 1, EqualTo: value + 1}.get(type(each))
        if least is not None:
            self.start = max(self.start, least)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)
        return least is not None or end is not None

    def _take_time(self, each: Filter, value: datetime) -> None:
        if type(each) in (GreaterThan, GreaterThanOrEqual, EqualTo):
            since_ms = int(value.timestamp() * 1000)
            self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)


def take_all(filters: Iterable[Filter], bounds: Bounds) -> list[Filter]:
    """Narrows the bounds by these filters and returns those that Spark must still check."""
    return [each for each in filters if not bounds.take(each)]
