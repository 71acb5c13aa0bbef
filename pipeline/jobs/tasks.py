"""Runs pieces of work in Spark tasks and returns their rows as a DataFrame: `rows_of(spark, work, schema)`.

Each piece of work is pickled and becomes one task, whose `run` yields Arrow batches on an executor. This is a private data
source, `strandline-tasks`: `mapInArrow` would also work, but imports pandas in each worker, and RDDs are not available with
Spark Connect.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.errors import PySparkAttributeError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

NAME = "strandline-tasks"


class Work(Protocol):
    """A piece of work. Spark pickles it, so it holds plain values."""

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        """Yields batches with exactly the Arrow types that Spark uses for the schema."""


def rows_of(spark: SparkSession, work: Sequence[Work], schema: str) -> DataFrame:
    """The rows that these tasks yield. The tasks run when the frame is used, and again at each further use."""
    if not work:
        return spark.createDataFrame([], schema)
    from strandline.pipeline.spark import register_sources

    register_sources(spark, TaskDataSource)
    packed = base64.b64encode(pickle.dumps(list(work))).decode()
    return spark.read.format(NAME).schema(schema).option("work", packed).load()


def slots(spark: SparkSession, otherwise: int = 8) -> int:
    """How many tasks run at the same time. Spark Connect does not say how many: there it is `otherwise`."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        return otherwise


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
