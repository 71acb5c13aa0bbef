"""`format("strandline.segments")`: the data source that Spark finds. It checks the options and creates the reader (`reader.py`).

Spark does not tell a Python source which columns a query needs. So the option `columns`, or a schema that the user gives, selects
the columns to read.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from strandline.pipeline.segments.columns import columns_of, ddl
from strandline.pipeline.segments.options import SegmentOptions, segment_options
from strandline.pipeline.segments.reader import SegmentsReader
from strandline.protocol.errors import UsageError


class SegmentsDataSource(DataSource):
    """Segment files of brokers as a table, read without a broker. The package's docstring lists the options."""

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
    """Raises UsageError if a column of the user's schema has another type than ours, or is spelled in another case."""
    types = columns_of(options.rows)
    for field, name in zip(schema.fields, options.columns, strict=True):
        if field.name != name:
            raise UsageError(f"the column is {name}, and the schema says {field.name}")
        if field.dataType.simpleString() != types[name]:
            raise UsageError(f"column {name} is {types[name]}, and the schema says {field.dataType.simpleString()}")
