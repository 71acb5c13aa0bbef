"""Sessions: clicks of a topic, gathered into visits, into another topic. A stream with a watermark.

    python examples/pipeline/sessionisation.py sample                              # clicks of three users, into the topic clicks
    python examples/pipeline/sessionisation.py run --checkpoint /tmp/sessions      # and visits into the topic sessions

A visit is what a user clicks without a break of half an hour. It is written when the watermark has passed its end, so that no
click can come that would make it longer: then it is final, and never written again. A click that comes later than the
watermark is too late, and left out. The open visits, the watermark and the offsets are in the checkpoint; a run that is
started again goes on. Visits come out of a shuffle, where the order of rows is not promised: docs/spark.md says what the sink
makes of a task that has to be run again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from strandline.client import Admin, NewTopic, Producer
from strandline.pipeline.spark import spark_session

CLICK = "user string, page string"
GAP, LATE = "30 minutes", "10 minutes"
MINUTE_MS = 60_000
NOON_MS = 1_735_732_800_000


def clicks(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """user, page, timestamp. The time of a click is its record's."""
    records = (
        spark.readStream.format("strandline")
        .option("bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), CLICK).alias("click"), "timestamp").select(
        "click.*", "timestamp"
    )


def visits(clicks: DataFrame) -> DataFrame:
    """As records: the key is the user, the value what is known of the visit, in JSON."""
    gathered = (
        clicks.withWatermark("timestamp", LATE)
        .groupBy(f.session_window("timestamp", GAP), "user")
        .agg(
            f.count("*").alias("clicks"),
            f.max("timestamp").alias("last_click"),
            f.min_by("page", "timestamp").alias("first_page"),
        )
    )
    visit = f.struct(f.col("session_window.start").alias("begin"), "last_click", "first_page", "clicks")
    return gathered.select(f.col("user").alias("key"), f.to_json(visit).alias("value"))


def sessionise(spark: SparkSession, servers: str, source: str, to: str, checkpoint: str, seconds: float | None) -> StreamingQuery:
    """What there is, or with `seconds` a batch every so many seconds."""
    writer = (
        visits(clicks(spark, servers, source))
        .writeStream.format("strandline")
        .outputMode("append")
        .option("bootstrap.servers", servers)
        .option("topic", to)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if seconds is None else {"processingTime": f"{seconds:g} seconds"}
    return writer.trigger(**trigger).start()


# -- something to try it with -----------------------------------------------------------------------------------------

SAMPLE = [
    ("alice", "/", 0),
    ("bob", "/tea", 2),
    ("alice", "/tea", 12),
    ("alice", "/pay", 15),
    ("carol", "/", 20),
    ("bob", "/", 50),
]
"""user, page, minutes after noon."""


async def send(servers: str, topic: str, sample: list[tuple[str, str, int]]) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for user, page, minute in sample:
            value = json.dumps({"user": user, "page": page}).encode()
            await producer.send(topic, value, key=user.encode(), timestamp_ms=NOON_MS + minute * MINUTE_MS)


async def prepare(servers: str, *topics: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        known = await admin.list_topics()
        await admin.create_topics([NewTopic(topic, partitions=2) for topic in topics if topic not in known])


def main() -> None:
    parser = argparse.ArgumentParser(description="Clicks into visits.")
    parser.add_argument("what", choices=["sample", "run"])
    parser.add_argument("--bootstrap-servers", default=os.environ.get("STRANDLINE_BOOTSTRAP", "127.0.0.1:9092"))
    parser.add_argument("--clicks", default="clicks")
    parser.add_argument("--sessions", default="sessions")
    parser.add_argument("--checkpoint", default="checkpoint")
    parser.add_argument("--continuous", type=float, metavar="SECONDS", help="go on, with a batch every so many seconds")
    given = parser.parse_args()
    if given.what == "sample":
        asyncio.run(prepare(given.bootstrap_servers, given.clicks, given.sessions))
        # A day later somebody clicks again: the watermark passes all that was open at noon.
        asyncio.run(send(given.bootstrap_servers, given.clicks, [*SAMPLE, ("dave", "/", 24 * 60)]))
        return
    spark = spark_session("sessions", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    query = sessionise(spark, given.bootstrap_servers, given.clicks, given.sessions, given.checkpoint, given.continuous)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
