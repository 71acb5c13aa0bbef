"""What the rest of the broker needs of its fetchers (`broker/replication/fetcher_manager.py`)."""

from __future__ import annotations

from typing import Protocol

from strandline.broker.partition.partition import Partition
from strandline.protocol.partitions import TopicIdPartition


class FetcherPort(Protocol):
    """Starts and stops the copying of partitions from their leaders."""

    def add(self, partition: Partition, leader_id: int) -> None:
        """Fetch the partition from this leader from now on, from its log end."""

    def remove(self, key: TopicIdPartition) -> None: ...

    def on_reader(self, key: TopicIdPartition) -> None:
        """A consumer has begun to read a partition that this broker follows: have its leader send the high watermark at once."""
