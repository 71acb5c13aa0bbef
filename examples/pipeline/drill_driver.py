"""Spark's driver in the drill: one session with two streams, from the same topic into a lake and into another topic.

The program does not prepare for its death. The state that a restart needs is in the two checkpoints, in the lake's manifests,
and in the producer names of the sink's tasks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUICK = os.environ.get("SPARK_SUBMIT_OPTS") or "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for JVMs that live for seconds. SPARK_SUBMIT_OPTS of the environment applies to driver and executors."""
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "20",  # Each killed worker counts as a failure of its task.
    "spark.deploy.maxExecutorRetries": "-1",  # By default Spark fails an application that lost ten executors.
    "spark.sql.shuffle.partitions": "2",
}
MAX_OFFSETS = 20_000
"""Offsets per batch: batches are small, so that kills hit running batches."""


def copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: Path, drain: bool) -> StreamingQuery:
    """Copy one topic into another. The rows come straight from the log, without a shuffle: a repeated task has the same rows in
    the same order, so `rowOrder=stable` holds."""
    rows = (
        spark.readStream.format("strandline")
        .option("bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(MAX_OFFSETS))
        .option("minPartitions", "4")
        .load()
        .select("key", "value")
    )
    writer = (
        rows.writeStream.format("strandline")
        .option("bootstrap.servers", servers)
        .option("topic", target)
        .option("rowOrder", "stable")
        .option("checkpointLocation", str(checkpoint))
    )
    return (writer.trigger(availableNow=True) if drain else writer.trigger(processingTime="1 second")).start()


def streams(
    spark: SparkSession, servers: str, source: str, target: str, folder: Path, drain: bool = False
) -> list[StreamingQuery]:
    """Start both streams. With `drain` they process the remaining records and end."""
    trigger = "available-now" if drain else 1.0
    return [
        offload(spark, servers, source, folder / "lake", trigger=trigger, max_offsets_per_trigger=MAX_OFFSETS),
        copy(spark, servers, source, target, folder / "copy-checkpoint", drain),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--copy", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", required=True)
    given = parser.parse_args()
    spark = spark_session("drill", given.master, CONF)
    streams(spark, given.servers, given.topic, given.copy, given.folder)
    spark.streams.awaitAnyTermination()  # Raises the error that ended a query; the drill then restarts this process.
    spark.stop()


if __name__ == "__main__":
    main()
