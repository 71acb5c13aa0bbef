"""The Spark of `run.py`: `python job.py BOOTSTRAP FOLDER` writes and reads topics with its Kafka connector, and prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

ROWS = 2_000


def show(test: str, check: Callable[[], object]) -> None:
    """Run a check that returns True, or what it saw instead."""
    try:
        seen = check()
    except Exception as e:
        seen = f"{type(e).__name__}: {e}"
    print(json.dumps({"test": test, "end": "passed" if seen is True else "failed", "why": str(seen)[:500]}), flush=True)


def main(bootstrap: str, folder: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", os.environ["CONNECTOR_JARS"])
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.log.level", "WARN").getOrCreate()
    kafka = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(ROWS).select(col("id").cast("string").alias("key"), col("id").cast("string").alias("value"))
    expected = {str(number) for number in range(ROWS)}

    def read(topic: str, **options: str) -> list[Any]:
        frame = spark.read.format("kafka").options(**kafka, subscribe=topic, **options).load()
        return frame.selectExpr("CAST(value AS STRING) value", "partition", "offset").collect()

    def write_batch() -> bool:
        rows.write.format("kafka").options(**kafka, topic="from_spark").save()
        return True

    def read_batch() -> object:
        values = [row.value for row in read("from_spark")]
        return sorted(values) == sorted(expected) or f"{len(values)} rows, {len(set(values))} different ones"

    def read_a_range() -> object:
        ends = {"from_spark": {"0": 10}}
        starts = {"from_spark": {"0": 3}}
        seen = read("from_spark", startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends))
        return [row.offset for row in seen] == list(range(3, 10)) or seen

    def read_by_time() -> object:
        return read("from_spark", startingTimestamp="4102444800000", startingOffsetsByTimestampStrategy="latest") == []

    def stream() -> object:
        source = spark.readStream.format("kafka").options(
            **kafka, subscribe="from_spark", startingOffsets="earliest", maxOffsetsPerTrigger="700"
        )
        writer = source.load().writeStream.format("kafka").options(**kafka, topic="streamed")
        for _ in range(2):  # the second run begins at the checkpoint, and finds nothing
            query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
            query.awaitTermination(120)
            query.stop()
        values = [row.value for row in read("streamed")]
        return sorted(values) == sorted(expected) or f"{len(values)} rows, {len(set(values))} different ones"

    def stream_new_rows() -> object:
        seen: list[str] = []
        source = spark.readStream.format("kafka").options(**kafka, subscribe="from_spark", startingOffsets="latest").load()
        query = source.writeStream.foreachBatch(
            lambda frame, _: seen.extend(bytes(row.value).decode() for row in frame.collect())
        )
        running = query.trigger(processingTime="200 milliseconds").start()
        running.processAllAvailable()
        rows.limit(50).write.format("kafka").options(**kafka, topic="from_spark").save()
        for _ in range(50):
            running.processAllAvailable()
            if len(seen) >= 50:
                break
        running.stop()
        return len(seen) == 50 or len(seen)

    show("writes_a_batch", write_batch)
    show("reads_a_batch", read_batch)
    show("reads_a_range_of_offsets", read_a_range)
    show("reads_by_time", read_by_time)
    show("streams_with_a_checkpoint", stream)
    show("streams_new_rows", stream_new_rows)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
