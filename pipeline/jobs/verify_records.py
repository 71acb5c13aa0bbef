"""A lake, a copy or a ledger against the logs as they lie on the disk: the comparison of `audit.py`, without a broker.

Of each partition one replica stands for the log: one without a finding if there is one, and of these the one that an election
would prefer, with the highest leader epoch at its end and then the most records. Its records are read by
`format("strandline.segments")`, up to the end of its last sound batch: an acknowledged record that is in no checkpoint's high
watermark yet is there, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.audit import HOUR_S, Job, check, run
from strandline.pipeline.jobs.audit_result import Audit
from strandline.pipeline.jobs.verify_result import Partition, Replica
from strandline.pipeline.segments.columns import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


def compare(
    spark: SparkSession,
    partitions: Sequence[Partition],
    topics: Sequence[str],
    lake: str | os.PathLike[str] | None,
    ledger: Sequence[str | os.PathLike[str]],
    copies: Mapping[str, str],
    is_complete: bool,
) -> Audit:
    """What an audit of these topics finds; without any, of all that are no copies. UsageError for what cannot be compared."""
    logs = chosen(partitions)
    names = check(topics or sorted({place.topic for place in logs} - {*copies.values()}), lake, ledger, copies)
    return run(JobAtRest(spark, "", {}, names, HOUR_S, logs), lake, ledger, copies, is_complete)


def chosen(partitions: Sequence[Partition]) -> dict[TopicPartition, Replica]:
    """The replica that stands for each partition's log. Of several topics of one name it is the one that most brokers have."""
    logs: dict[TopicPartition, Replica] = {}
    for partition in partitions:
        replicas = sorted(partition.replicas, key=lambda one: _rank(one, partition))
        if replicas:
            logs.setdefault(TopicPartition(partition.topic, partition.partition), replicas[-1])
    return logs


def _rank(replica: Replica, partition: Partition) -> tuple[bool, int, int]:
    is_sound = not any(one.is_bad and replica.broker in one.brokers for one in partition.findings)
    return is_sound, replica.epochs[-1][0] if replica.epochs else -1, replica.end


@dataclass(frozen=True, slots=True)
class JobAtRest(Job):
    """An audit that reads segment files."""

    logs: Mapping[TopicPartition, Replica]

    def _bounds(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        return {
            place: (max(replica.start, replica.log_start or 0), replica.end)
            for place, replica in self.logs.items()
            if place.topic in topics
        }

    def _read(
        self, topics: Sequence[str], bounds: Mapping[TopicPartition, tuple[int, int]], include_headers: bool = False
    ) -> DataFrame:
        """Sound records only: what is damaged is missing here, and a finding of its own."""
        from pyspark.sql import functions as f

        columns = [*COLUMNS, *(["headers"] if include_headers else [])]
        wanted = [*columns, "isControl", "damage"]
        paths = [self.logs[place].path for place, (start, end) in bounds.items() if start < end]
        if paths:
            reader = self.spark.read.format("strandline.segments").option("rows", "record")
            rows = reader.option("columns", ",".join(wanted)).load(paths)
        else:
            rows = self.spark.createDataFrame([], ddl("record", wanted))
        table = [(*place, start, end) for place, (start, end) in bounds.items()]
        limits = f.broadcast(self.spark.createDataFrame(table, "topic string, partition int, log_start bigint, log_end bigint"))
        inside = (f.col("offset") >= f.col("log_start")) & (f.col("offset") < f.col("log_end"))
        sound = rows.filter(f.col("damage").isNull() & ~f.col("isControl"))
        return sound.join(limits, ["topic", "partition"]).filter(inside).select(*columns)
