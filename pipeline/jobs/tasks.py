"""Work of our own in tasks of Spark, whose rows are a DataFrame: `rows_of(spark, work, schema)`.

Each piece of work is a task; it is pickled, and its `run` yields Arrow batches on an executor. This is a private data source,
`strandline-tasks`: `mapInArrow` would do as well, but imports pandas in each worker, and RDDs are not available with Spark
Connect.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

NAME = "strandline-tasks"


class Work(Protocol):
    """Plain values: it is pickled."""

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        """Batches of exactly the types that Spark has for the schema."""


def rows_of(spark: SparkSession, work: Sequence[Work], schema: str) -> DataFrame:
    """What these tasks yield; none of them begins before the frame is used, and each runs again whenever it is."""
    if not work:
        return spark.createDataFrame([], schema)
    from strandline.pipeline.spark import register_sources

    register_sources(spark, TaskDataSource)
    packed = base64.b64encode(pickle.dumps(list(work))).decode()
    return spark.read.format(NAME).schema(schema).option("work", packed).load()


class TaskDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> TaskReader:
        return TaskReader(str(self.options["work"]))


class TaskReader(DataSourceReader):
    def __init__(self, packed: str) -> None:
        self._packed = packed

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(work) for work in pickle.loads(base64.b64decode(self._packed))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return partition.value.run()  # type: ignore[no-any-return]
