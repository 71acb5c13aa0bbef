"""The reader that accepts filters. It is a class of its own: Spark rejects a reader with `pushFilters` if pushdown is off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import Filter

from strandline.pipeline.filters import Bounds
from strandline.pipeline.segments.layout import METADATA_TOPIC
from strandline.pipeline.segments.options import SegmentOptions
from strandline.pipeline.segments.reader import SegmentsReader


class FilteringSegmentsReader(SegmentsReader):
    """Skips files and ranges that cannot have a wanted row. Spark still applies every filter to each row, so a range without a
    wanted row may be read, but no row is lost."""

    def __init__(self, options: SegmentOptions) -> None:
        super().__init__(options)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            take(each, self._bounds)
        return filters

    def _planned(self) -> SegmentOptions:
        return narrowed(self._options, self._bounds)


def take(each: Filter, bounds: Bounds) -> None:
    """Narrows the bounds by a filter. A filter on `baseOffset` or `lastOffset` counts as one on the offsets of the batch."""
    column, value = getattr(each, "attribute", ()), getattr(each, "value", None)
    if column in (("topic",), ("partition",)):
        bounds.take(each)
    elif column in (("offset",), ("baseOffset",), ("lastOffset",)) and type(value) is int:
        bounds.take_offset(each, value)


def narrowed(options: SegmentOptions, bounds: Bounds) -> SegmentOptions:
    """The options, with their topics, partitions and offsets reduced to those that lie within the bounds."""
    topics, partitions, end = options.topics, options.partitions, options.end_offset
    if bounds.topics is not None:
        topics = (topics & bounds.topics) if topics else frozenset(bounds.topics - {METADATA_TOPIC})
    if bounds.partitions is not None:
        partitions = (partitions & bounds.partitions) if partitions else frozenset(bounds.partitions)
    if bounds.end is not None:
        end = bounds.end if end is None else min(end, bounds.end)
    return replace(
        options, topics=topics, partitions=partitions, start_offset=max(options.start_offset, bounds.start), end_offset=end
    )
