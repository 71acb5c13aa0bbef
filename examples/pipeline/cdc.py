"""Change data capture: builds a database table from the changes in a topic, incrementally.

    python examples/pipeline/cdc.py sample                           # writes inserts, updates and deletes to the topic customers
    python examples/pipeline/cdc.py run --snapshot /tmp/customers    # shows the current rows

A change is a record. Its key is the row's primary key, and its value describes the change in Debezium's form:

    {"op": "c", "after": {"id": 1, "name": "Ada", "city": "London"}}        created; "u": updated; "r": read at the beginning
    {"op": "d", "after": null}                                              deleted; a record without a value may follow

The last change of a row determines the row, so `materialize` does the main work: each run reads the records since the last run
and writes a new version of the snapshot beside the version that readers use. `table` then extracts the rows from the changes.
Schedule `run` as often as the table should be updated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from strandline.client import Admin, NewTopic, Producer
from strandline.pipeline.jobs.materialize import Materialized, materialize, read_snapshot
from strandline.pipeline.spark import spark_session

CUSTOMER = "id long, name string, city string"


def update(spark: SparkSession, servers: str, topic: str, snapshot: str) -> Materialized:
    """Update the snapshot. Raises an error for a change without a key, because it belongs to no row."""
    return materialize(spark, servers, topic, snapshot, without_key="refuse")


def table(spark: SparkSession, snapshot: str, columns: str) -> DataFrame:
    """Return the current rows, with the time of their last change."""
    change = f.from_json(f.col("value").cast("string"), f"op string, after struct<{_fields(columns)}>")
    changes = read_snapshot(spark, snapshot).select(change.alias("change"), f.col("timestamp").alias("changed_at"))
    return changes.where("change.op <> 'd'").select("change.after.*", "changed_at")


def _fields(columns: str) -> str:
    """Convert `id long, name string` to the syntax inside a struct: `id: long, name: string`."""
    return ", ".join(": ".join(column.split(maxsplit=1)) for column in columns.split(","))


# -- sample data ------------------------------------------------------------------------------------------------------

ADA, BOB, EVE = ({"id": 1, "name": "Ada", "city": "London"}, {"id": 2, "name": "Bob", "city": "Paris"},
                 {"id": 3, "name": "Eve", "city": "Rome"})  # fmt: skip
SAMPLE: list[tuple[int, dict[str, Any] | None]] = [
    (1, {"op": "c", "after": ADA}),
    (2, {"op": "c", "after": BOB}),
    (2, {"op": "u", "after": {**BOB, "city": "Lyon"}}),
    (3, {"op": "c", "after": EVE}),
    (1, {"op": "d", "after": None}),
    (1, None),
]
"""Primary key and change. None is the record without a value that Debezium sends after a delete."""


async def send(servers: str, topic: str, sample: list[tuple[int, dict[str, Any] | None]]) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for key, change in sample:
            await producer.send(topic, None if change is None else json.dumps(change).encode(), key=b"%d" % key)


async def prepare(servers: str, topic: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        if topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, partitions=2)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a table from its changes in a topic.")
    parser.add_argument("what", choices=["sample", "run"])
    parser.add_argument("--bootstrap-servers", default=os.environ.get("STRANDLINE_BOOTSTRAP", "127.0.0.1:9092"))
    parser.add_argument("--topic", default="customers")
    parser.add_argument("--snapshot", default="customers")
    given = parser.parse_args()
    if given.what == "sample":
        asyncio.run(prepare(given.bootstrap_servers, given.topic))
        asyncio.run(send(given.bootstrap_servers, given.topic, SAMPLE))
        return
    spark = spark_session("cdc", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    done = update(spark, given.bootstrap_servers, given.topic, given.snapshot)
    print(f"version {done.version}: {done.records} changes read")
    table(spark, given.snapshot, CUSTOMER).orderBy("id").show()
    spark.stop()


if __name__ == "__main__":
    main()
