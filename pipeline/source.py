"""`format("strandline")`: the data source that Spark finds, and which creates the readers and writers.

    spark.read.format("strandline").option("bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

Spark finds an installed package without registration (`pyspark_strandline`). A package that is shipped with a job is registered
with `strandline.pipeline.spark.register(spark)`, or with `spark.dataSource.register(StrandlineDataSource)`.

Spark creates readers and writers in short-lived processes, new ones for each query. So modules that only the sink needs
(pyarrow's functions) are imported when a sink is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from strandline.pipeline.batch_reader import BatchReader, FilteringBatchReader
from strandline.pipeline.options import read_options, write_options
from strandline.pipeline.schema import read_schema
from strandline.pipeline.stream_reader import StreamReader

if TYPE_CHECKING:
    from strandline.pipeline.sink import BatchSink, StreamSink


class StrandlineDataSource(DataSource):
    """Topics as a source and a sink, in batches and streams. docs/spark.md lists the options and columns.

    Each method raises UsageError, with the option's name and its legal values, if an option is unknown or has a wrong value."""

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> str:
        return read_schema(str(self.options.get("includeHeaders", "false")).strip().lower() == "true")

    def reader(self, schema: StructType) -> BatchReader:
        options = read_options(self.options, is_stream=False)
        return (FilteringBatchReader if options.push_filters else BatchReader)(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(read_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from strandline.pipeline.sink import BatchSink

        return BatchSink(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from strandline.pipeline.sink import StreamSink

        return StreamSink(write_options(self.options), schema)
