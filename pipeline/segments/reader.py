"""Reads segments for Spark: the driver plans ranges of the files, and each task reads its ranges.

Spark also creates readers in short-lived processes, new ones for each query. So modules that only a task needs (pyarrow, the
client) are imported when a task reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from strandline.pipeline.segments.options import SegmentOptions
from strandline.pipeline.segments.plan import Part, plan

if TYPE_CHECKING:
    import pyarrow


class PartsPartition(InputPartition):
    """The input of one Spark task: ranges of one or more segment files."""

    def __init__(self, value: list[Part]) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return f"PartsPartition({[(part.file.path, *part.range[:2]) for part in self.value]})"


class SegmentsReader(DataSourceReader):
    """Spark's `DataSourceReader` for segment files: plans the tasks, and reads one task."""

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        # Spark needs at least one task.
        return [PartsPartition(parts) for parts in plan(self._planned())] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from strandline.pipeline.segments.task import read_part

        for part in partition.value or ():
            yield from read_part(part, self._options)

    def _planned(self) -> SegmentOptions:
        return self._options
