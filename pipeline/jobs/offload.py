"""Offload: copies topics into a lake of Parquet files, each record once (`lake.py` says what readers may rely on), or into a
Delta table (`delta_offload.py`).

The stream has no shuffle, so a task writes the range that it reads, in the order of the log, and the driver handles no data that
grows with the topic. Spark's checkpoint holds the progress, and the lake's manifests list the finished batches. Both must be
kept: without its checkpoint an offload begins at the first record, and the lake rejects records that it has. A Delta table needs
no checkpoint to continue.

Records of aborted transactions are left out (`isolation.level=read_committed`), because a lake does not say which ones they are.
An open transaction makes the offload wait in front of its first record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from strandline.pipeline.jobs.lake import CHECKPOINT, check_topic
from strandline.pipeline.jobs.lake_folder import check_is_no_delta, local_path
from strandline.pipeline.options import with_committed
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Format = Literal["parquet", "delta"]

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
MAX_OFFSETS_PER_TRIGGER = 5_000_000
"""The default size of a batch, and so the most work that is repeated after a crash."""


def offload(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str] = (),
    root: str | os.PathLike[str] = "lake",
    *,
    format: Format = "parquet",
    pattern: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    trigger: Literal["available-now"] | float = "available-now",
    max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER,
    include_headers: bool = False,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Starts the query that copies the topics, and returns it.

    With the trigger "available-now" the query ends when it has read the records that existed at its start; with a number it keeps
    running, with a batch every so many seconds. `options` are those of the source (docs/spark.md). A second offload into the same
    lake needs a `checkpoint` of its own. With the format "delta", `root` is a table, and the session needs Delta
    (`delta.delta_session`). Raises UsageError for contradicting arguments."""
    check(topics, pattern, root, format)
    own = _source_options(servers, topics, pattern, max_offsets_per_trigger, include_headers)
    source = with_committed({**own, **(options or {})})
    columns = (*COLUMNS, *(["headers"] if include_headers else []))
    if format == "delta":
        from strandline.pipeline.jobs import delta_offload
        from strandline.pipeline.jobs.delta import delta_errors

        writer = delta_offload.writer(spark, root, checkpoint, source, columns)
        with delta_errors():
            return _started(writer, trigger)
    return _started(_lake_writer(spark, local_path(root), checkpoint, source, columns), trigger)


def _lake_writer(
    spark: SparkSession,
    folder: Path,
    checkpoint: str | os.PathLike[str] | None,
    source: Mapping[str, str],
    columns: Sequence[str],
) -> DataStreamWriter:
    from strandline.pipeline.jobs.lake_sink import NAME, LakeDataSource
    from strandline.pipeline.spark import register_sources

    register_sources(spark, LakeDataSource)
    writer = _rows(spark, source, columns).writeStream.format(NAME)
    return writer.option("path", str(folder)).option("checkpointLocation", str(local_path(checkpoint or folder / CHECKPOINT)))


def _started(writer: DataStreamWriter, trigger: Literal["available-now"] | float) -> StreamingQuery:
    if trigger == "available-now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{float(trigger):g} seconds").start()


def check(topics: str | Sequence[str], pattern: str | None, root: str | os.PathLike[str], format: str = "parquet") -> None:
    """Checks the arguments before Spark is started. Raises UsageError."""
    if format not in get_args(Format):
        raise UsageError(f"the format must be {' or '.join(get_args(Format))}, not {format!r}")
    if bool(topics) == bool(pattern):
        raise UsageError("say what to offload: topics by name, or a pattern; exactly one of the two")
    if format == "delta":
        from strandline.pipeline.jobs.delta_offload import check_is_no_lake

        check_is_no_lake(root)
    else:
        for name in _names(topics):
            check_topic(name)
        check_is_no_delta(local_path(root), "give a lake of Parquet files a folder of its own, or offload with the format delta")


def _names(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)


def _source_options(
    servers: str, topics: str | Sequence[str], pattern: str | None, most: int, include_headers: bool
) -> dict[str, str]:
    return {
        "bootstrap.servers": servers,
        **({"subscribePattern": pattern} if pattern else {"subscribe": ",".join(_names(topics))}),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(most),
        "includeHeaders": str(include_headers).lower(),
    }


def _rows(spark: SparkSession, options: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    reader = spark.readStream.format("strandline")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load().select(*columns)
