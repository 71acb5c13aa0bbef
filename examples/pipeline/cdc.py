"""Change data capture: the changes of a database's table, from a topic, as the table itself. Incremental.

    python examples/pipeline/cdc.py sample                           # inserts, updates and deletes, into the topic customers
    python examples/pipeline/cdc.py run --snapshot /tmp/customers    # and the rows that there are now

A change is a record whose key is the row's primary key, and whose value says what happened to it, as Debezium would:

    {"op": "c", "after": {"id": 1, "name": "Ada", "city": "London"}}        created; "u": updated; "r": read at the beginning
    {"op": "d", "after": null}                                              deleted; a record without a value may follow

The last change of a row is all that there is to know about it, so this is `materialize`: each run reads what came since the
last one, and makes a version of the snapshot beside the one that readers are reading. What is left is to take the rows out of
the changes. Run it from a schedule, as often as the table should be fresh.
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
    """Bring the snapshot up to date. A change without a key belongs to no row: better no table than a wrong one."""
    return materialize(spark, servers, topic, snapshot, without_key="refuse")


def table(spark: SparkSession, snapshot: str, columns: str) -> DataFrame:
    """The rows that there are, with the time of their last change."""
    change = f.from_json(f.col("value").cast("string"), f"op string, after struct<{_fields(columns)}>")
    changes = read_snapshot(spark, snapshot).select(change.alias("change"), f.col("timestamp").alias("changed_at"))
    return changes.where("change.op <> 'd'").select("change.after.*", "changed_at")


def _fields(columns: str) -> str:
    """`id long, name string` as it stands inside of a struct."""
    return ", ".join(": ".join(column.split(maxsplit=1)) for column in columns.split(","))


# -- something to try it with -----------------------------------------------------------------------------------------

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
"""Primary key and change; None: Debezium's record without a value, behind a delete."""


async def send(servers: str, topic: str, sample: list[tuple[int, dict[str, Any] | None]]) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for key, change in sample:
            await producer.send(topic, None if change is None else json.dumps(change).encode(), key=b"%d" % key)


async def prepare(servers: str, topic: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        if topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, partitions=2)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Changes of a table as the table.")
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
