"""Sessions: groups the clicks in a topic into visits, and writes the visits to another topic. A stream with a watermark.

    python examples/pipeline/sessionisation.py sample                           # writes clicks of three users to the topic clicks
    python examples/pipeline/sessionisation.py run --checkpoint /tmp/sessions   # writes visits to the topic sessions

A visit is a series of clicks of one user without a break of half an hour. The stream writes a visit when the watermark has passed
its end: no later click can extend it, so it is final and written only once. A click that is later than the watermark is dropped.
The checkpoint contains the open visits, the watermark and the offsets, so a restarted run continues. A shuffle produces the
visits, and it guarantees no order of rows: docs/spark.md says how the sink handles a repeated task.
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
    """Read the clicks as columns user, page and timestamp. A click's time is its record's timestamp."""
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
    """Group clicks into visits. The key of each record is the user, the value the visit as JSON."""
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
    """Process the available records and end. With `seconds`, run a batch in this interval for ever."""
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


# -- sample data ------------------------------------------------------------------------------------------------------

SAMPLE = [
    ("alice", "/", 0),
    ("bob", "/tea", 2),
    ("alice", "/tea", 12),
    ("alice", "/pay", 15),
    ("carol", "/", 20),
    ("bob", "/", 50),
]
"""User, page, and minutes after noon."""


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
    parser.add_argument("--continuous", type=float, metavar="SECONDS", help="keep running, with a batch in this interval")
    given = parser.parse_args()
    if given.what == "sample":
        asyncio.run(prepare(given.bootstrap_servers, given.clicks, given.sessions))
        # A click a day later moves the watermark past all visits of the first day.
        asyncio.run(send(given.bootstrap_servers, given.clicks, [*SAMPLE, ("dave", "/", 24 * 60)]))
        return
    spark = spark_session("sessions", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    query = sessionise(spark, given.bootstrap_servers, given.clicks, given.sessions, given.checkpoint, given.continuous)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
