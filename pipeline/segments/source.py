"""What Spark finds under `format("strandline.segments")`, and the reader that it makes of it.

Spark prunes no columns of Python sources, so the option `columns`, or a schema that the user gives, says which are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from strandline.pipeline.filters import Bounds
from strandline.pipeline.segments.columns import columns_of, ddl
from strandline.pipeline.segments.layout import METADATA_TOPIC
from strandline.pipeline.segments.options import SegmentOptions, segment_options
from strandline.pipeline.segments.task import Part, plan, read_part
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow


class SegmentsDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "strandline.segments"

    def schema(self) -> str:
        options = segment_options(self.options)
        return ddl(options.rows, options.columns)

    def reader(self, schema: StructType) -> SegmentsReader:
        options = segment_options(self.options, schema.names)
        check_types(schema, options)
        return (FilteringSegmentsReader if options.push_filters else SegmentsReader)(options)


def check_types(schema: StructType, options: SegmentOptions) -> None:
    """UsageError for a column of a schema of the user's that has another type."""
    types = columns_of(options.rows)
    for field, name in zip(schema.fields, options.columns, strict=True):
        if field.dataType.simpleString() != types[name]:
            raise UsageError(f"column {name} is {types[name]}, and the schema says {field.dataType.simpleString()}")


class PartsPartition(InputPartition):
    """A task of Spark: ranges of segment files."""

    def __init__(self, value: list[Part]) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return f"PartsPartition({[(part.file.path, *part.range[:2]) for part in self.value]})"


class SegmentsReader(DataSourceReader):
    def __init__(self, options: SegmentOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        # Spark wants at least one task.
        return [PartsPartition(parts) for parts in plan(self._planned())] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for part in partition.value or ():
            yield from read_part(part, self._options)

    def _planned(self) -> SegmentOptions:
        return self._options


class FilteringSegmentsReader(SegmentsReader):
    """Of its own, because Spark refuses a reader that takes filters where they are switched off.

    Filters prune files and ranges; Spark goes on checking them on every row, so that it does not matter how exactly.
    """

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
    """Narrow the bounds by a filter. A batch between two offsets has its first and its last offset between them."""
    column, value = getattr(each, "attribute", ()), getattr(each, "value", None)
    if column in (("topic",), ("partition",)):
        bounds.take(each)
    elif column in (("offset",), ("baseOffset",), ("lastOffset",)) and type(value) is int:
        bounds._take_offset(each, value)


def narrowed(options: SegmentOptions, bounds: Bounds) -> SegmentOptions:
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
