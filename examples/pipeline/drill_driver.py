"""Spark's driver in the drill: one session, two streams, from the same topic into a lake and into another topic.

Nothing here knows that it will be killed. What it takes to go on is in the two checkpoints, in the lake's manifests, and in the
names under which the sink's tasks write.
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
"""For JVMs that live for seconds. What the environment says of the driver's goes for the executors', too."""
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "20",  # Each worker that is killed is a failure of its task.
    "spark.deploy.maxExecutorRetries": "-1",  # Else Spark gives an application up that lost ten executors.
    "spark.sql.shuffle.partitions": "2",
}
MAX_OFFSETS = 20_000
"""Of a batch: small ones, so that there is always a batch to be killed in."""


def copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: Path, drain: bool) -> StreamingQuery:
    """A topic into another one. It comes straight from the log, without a shuffle: a task that is run again brings the same rows
    in the same order, so `rowOrder=stable` is true."""
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
    """Both; to `drain` is to bring what is left, and to end."""
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
    spark.streams.awaitAnyTermination()  # Raises what ended it: the supervisor starts us again.
    spark.stop()


if __name__ == "__main__":
    main()
