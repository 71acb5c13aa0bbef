"""`format("strandline")`: what Spark finds, and from which it makes readers and writers.

    spark.read.format("strandline").option("bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

An installed package is found without registration (`pyspark_strandline`). Where it is shipped with a job instead:
`spark.dataSource.register(StrandlineDataSource)`.

Spark asks in processes of its own, new ones for each query: what only a sink needs (pyarrow's functions) is imported for sinks.
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
