"""The records that a producer had not delivered when it stopped: `Undelivered`, and the errors of their receipts."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.client.errors import ClientClosed
from strandline.client.producer.batch import Batch, BatchState

PARTITIONS_LISTED = 5
"""The text names at most this many partitions."""


@dataclass
class Undelivered:
    """The result of `Producer.stop`: the records that the producer accepted and that were not acknowledged. It is false if there
    are none. `str` of it is a sentence about the records that still waited."""

    by_partition: dict[str, int] = field(default_factory=dict)
    """Number of records that still waited when the producer stopped, by partition ("orders-0"), or by topic while the topic's
    metadata is not known."""
    may_be_written: int = 0
    """Number of these records that were sent and not answered, so that they may be in the log. The others are not."""
    reason: str = ""
    """Why the oldest of them was not delivered."""
    failed: int = 0
    """Number of records that failed before the producer stopped: rejected, or not acknowledged within `delivery_timeout_ms`.
    An OffsetConflict is an answer that the program has asked for, and does not count."""

    def add(self, partition: str, records: int, reason: str, *, may_be_written: bool) -> None:
        """Count records of a partition. Only the first reason is kept."""
        self.by_partition[partition] = self.by_partition.get(partition, 0) + records
        self.may_be_written += records if may_be_written else 0
        self.reason = self.reason or reason

    @property
    def records(self) -> int:
        """Number of records that still waited when the producer stopped."""
        return sum(self.by_partition.values())

    def __bool__(self) -> bool:
        return bool(self.by_partition or self.failed)

    def __str__(self) -> str:
        if not self.by_partition:
            return "no record waited"
        most = sorted(self.by_partition.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{partition}: {records}" for partition, records in most[:PARTITIONS_LISTED])
        rest = f", and {len(most) - PARTITIONS_LISTED} more partitions" if len(most) > PARTITIONS_LISTED else ""
        count = "1 record was" if self.records == 1 else f"{self.records} records were"
        return f"{count} not acknowledged ({listed}{rest}); {self.reason}"


def partition_of(batch: Batch) -> str:
    """The batch's partition as TOPIC-NUMBER."""
    return f"{batch.topic}-{batch.partition}"


def no_metadata(error: Exception | None) -> str:
    """Why a record of a topic without metadata is not delivered. `error`: of the last refresh; None if that did not fail."""
    return f"no metadata: {error}" if error else "no metadata yet"


def stopped_before(batch: Batch) -> ClientClosed:
    """The error of a batch that is not acknowledged when the producer stops."""
    return stopped(partition_of(batch), may_be_written=may_be_written(batch))


def may_be_written(batch: Batch) -> bool:
    """Whether a batch that is not acknowledged may be in the log."""
    return batch.state is BatchState.IN_FLIGHT or batch.in_doubt


def stopped(partition: str, *, may_be_written: bool) -> ClientClosed:
    """The error of a record whose producer stopped before it was acknowledged."""
    fate = "it may be in the log" if may_be_written else "it was never sent, or every attempt was rejected"
    return ClientClosed(f"{partition}: the producer stopped before the record was acknowledged; {fate}")
