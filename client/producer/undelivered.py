"""The records that a producer had not delivered when it stopped, as a text and as errors."""

from __future__ import annotations

from strandline.client.errors import ClientClosed
from strandline.client.producer.batch import Batch, BatchState

PARTITIONS_LISTED = 5
"""The text names at most so many partitions."""


class Undelivered:
    """Counts undelivered records by partition. `str` of it is a sentence about them."""

    def __init__(self) -> None:
        self.by_partition: dict[str, int] = {}
        """Number of records by partition; by topic while the topic's metadata is not known."""
        self.reason = ""
        """Why the oldest of them was not delivered."""

    def add(self, partition: str, records: int, reason: str) -> None:
        """Count records of a partition. Only the first reason is kept."""
        self.by_partition[partition] = self.by_partition.get(partition, 0) + records
        self.reason = self.reason or reason

    @property
    def records(self) -> int:
        """The number of undelivered records."""
        return sum(self.by_partition.values())

    def __str__(self) -> str:
        most = sorted(self.by_partition.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{partition}: {records}" for partition, records in most[:PARTITIONS_LISTED])
        rest = f", and {len(most) - PARTITIONS_LISTED} more partitions" if len(most) > PARTITIONS_LISTED else ""
        count = "1 record was" if self.records == 1 else f"{self.records} records were"
        return f"{count} not acknowledged ({listed}{rest}); {self.reason}"


def partition_of(batch: Batch) -> str:
    """The batch's partition as TOPIC-NUMBER."""
    return f"{batch.topic}-{batch.partition}"


def stopped_before(batch: Batch) -> ClientClosed:
    """The error of a batch that is not acknowledged when the producer stops."""
    return stopped(partition_of(batch), may_be_written=batch.state is BatchState.IN_FLIGHT or batch.in_doubt)


def stopped(partition: str, *, may_be_written: bool) -> ClientClosed:
    """The error of a record whose producer stopped before it was acknowledged."""
    fate = "it may be in the log" if may_be_written else "it was never sent, or every attempt was rejected"
    return ClientClosed(f"{partition}: the producer stopped before the record was acknowledged; {fate}")
