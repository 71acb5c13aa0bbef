"""What Spark finds under `format("strandline.segments")`, and the reader that it makes of it.

Spark prunes no columns of Python sources, so the option `columns`, or a schema that the user gives, says which are read.

Spark asks in processes of its own, new ones for each query: what only a task needs (pyarrow, the client) is imported for tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.pipeline.segments.columns import columns_of, ddl
from strandline.pipeline.segments.options import SegmentOptions, segment_options
from strandline.pipeline.segments.plan import Part, plan
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
        if options.push_filters:
            from strandline.pipeline.segments.filtering import FilteringSegmentsReader

            return FilteringSegmentsReader(options)
        return SegmentsReader(options)


def check_types(schema: StructType, options: SegmentOptions) -> None:
    """UsageError for a column of a schema of the user's that has another type, or that is spelled in another case."""
    types = columns_of(options.rows)
    for field, name in zip(schema.fields, options.columns, strict=True):
        if field.name != name:
            raise UsageError(f"the column is {name}, and the schema says {field.name}")
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
        from strandline.pipeline.segments.task import read_part

        for part in partition.value or ():
            yield from read_part(part, self._options)

    def _planned(self) -> SegmentOptions:
        return self._options
