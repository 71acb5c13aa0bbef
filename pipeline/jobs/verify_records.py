"""Compares a lake, a copy or a ledger with brokers' segment files: the audit of `audit.py` without a cluster.

One replica represents the log of each partition: preferably one without a bad finding, then the one with the highest leader
epoch at its end, then the one with the highest end offset (an election has the same preference). `format("strandline.segments")`
reads its records up to the end of its last sound batch. So acknowledged records above the checkpointed high watermark count, too.
Records of open and aborted transactions do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.audit import HOUR_S, Job, check, run
from strandline.pipeline.jobs.audit_result import Audit
from strandline.pipeline.jobs.verify_folders import cleaned
from strandline.pipeline.jobs.verify_result import Partition, Replica
from strandline.pipeline.options import with_committed
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
    """Audits these topics; by default all topics that are not copies. Raises UsageError if the arguments cannot be compared."""
    logs = chosen(partitions)
    names = check(topics or sorted({tp.topic for tp in logs} - {*copies.values()}), lake, ledger, copies)
    return run(JobAtRest(spark, "", with_committed({}), names, HOUR_S, logs), lake, ledger, copies, is_complete)


def chosen(partitions: Sequence[Partition]) -> dict[TopicPartition, Replica]:
    """The replica that represents each partition's log. If topics have the same name, it is a replica of the topic id that most
    brokers have."""
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
    """An audit that reads segment files instead of asking brokers."""

    logs: Mapping[TopicPartition, Replica]

    def _bounds(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        return {
            tp: (max(replica.start, replica.log_start or 0), replica.end)
            for tp, replica in self.logs.items()
            if tp.topic in topics
        }

    def _log_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp].end for tp in tps}

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """The topics that a broker's cleaner has cleaned, according to its checkpoints."""
        folders = {Path(replica.path).parent for tp, replica in self.logs.items() if tp.topic in topics}
        return {topic for folder in folders for topic, _ in cleaned(folder)} & {*topics}

    def _read(
        self, topics: Sequence[str], bounds: Mapping[TopicPartition, tuple[int, int]], include_headers: bool = False
    ) -> DataFrame:
        """The records of sound batches. Damaged batches are missing here, and have findings of their own."""
        from pyspark.sql import functions as f

        columns = [*COLUMNS, *(["headers"] if include_headers else [])]
        wanted = [*columns, "isControl", "damage"]
        paths = [self.logs[tp].path for tp, (start, end) in bounds.items() if start < end]
        if paths:
            reader = self.spark.read.format("strandline.segments").option("rows", "record").options(**self.options)
            rows = reader.option("columns", ",".join(wanted)).load(paths)
        else:
            rows = self.spark.createDataFrame([], ddl("record", wanted))
        table = [(*tp, start, end) for tp, (start, end) in bounds.items()]
        limits = f.broadcast(self.spark.createDataFrame(table, "topic string, partition int, log_start bigint, log_end bigint"))
        inside = (f.col("offset") >= f.col("log_start")) & (f.col("offset") < f.col("log_end"))
        sound = rows.filter(f.col("damage").isNull() & ~f.col("isControl"))
        return sound.join(limits, ["topic", "partition"]).filter(inside).select(*columns)
