"""Filters that Spark hands over, as bounds of what is read: on topic, partition, offset and timestamp. Pure.

Spark asks only where `spark.sql.python.filterPushdown.enabled` is on. A filter is taken over for good when reading it
from the log is exact (topic, partition, offset). One on the timestamp only spares reading, and Spark goes on checking it:
the log finds the first record that is at least as young, and what comes behind that one need not be in order.
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
    """What is left to read of every partition."""

    topics: set[str] | None = None
    """None: all."""
    partitions: set[int] | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    """Nothing that is older is asked for."""

    def wants(self, place: TopicPartition) -> bool:
        in_topics = self.topics is None or place.topic in self.topics
        return in_topics and (self.partitions is None or place.partition in self.partitions)

    def clip(self, start: int, end: int) -> tuple[int, int]:
        start = max(start, self.start)
        return start, max(start, end if self.end is None else min(end, self.end))

    # -- taking over --------------------------------------------------------------------------------------------------

    def take(self, each: Filter) -> bool:
        """Whether Spark need not check it any more."""
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
        """Narrow the offsets by a comparison with `value`. False: `each` is no comparison that does."""
        least = {GreaterThan: value + 1, GreaterThanOrEqual: value, EqualTo: value}.get(type(each))
        behind = {LessThan: value, LessThanOrEqual: value + 1, EqualTo: value + 1}.get(type(each))
        if least is not None:
            self.start = max(self.start, least)
        if behind is not None:
            self.end = behind if self.end is None else min(self.end, behind)
        return least is not None or behind is not None

    def _take_time(self, each: Filter, value: datetime) -> None:
        if type(each) in (GreaterThan, GreaterThanOrEqual, EqualTo):
            since_ms = int(value.timestamp() * 1000)
            self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)


def take_all(filters: Iterable[Filter], bounds: Bounds) -> list[Filter]:
    """Those that Spark must go on checking."""
    return [each for each in filters if not bounds.take(each)]
