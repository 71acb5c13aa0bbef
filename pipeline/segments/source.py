"""`format("strandline.segments")`: the class that Spark looks up. It checks the options and creates the reader (`reader.py`).

Spark does not pass the columns that a query needs to a Python source. So the user selects them, with the option `columns` or with
a schema.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from strandline.pipeline.segments.columns import columns_of, ddl
from strandline.pipeline.segments.options import SegmentOptions, segment_options
from strandline.pipeline.segments.reader import SegmentsReader
from strandline.protocol.errors import UsageError


class SegmentsDataSource(DataSource):
    """Spark's `DataSource` for segment files. The package's docstring lists the options.

    `schema` and `reader` raise UsageError, with the option's name, for an unknown option or a wrong value."""

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
    """Raises UsageError if a column of the user's schema has another type than in `columns.py`, or differs in case."""
    types = columns_of(options.rows)
    for field, name in zip(schema.fields, options.columns, strict=True):
        if field.name != name:
            raise UsageError(f"the schema names a column {field.name}, which is spelled {name}")
        if field.dataType.simpleString() != types[name]:
            raise UsageError(f"column {name} has the type {types[name]}, not {field.dataType.simpleString()} as in the schema")
