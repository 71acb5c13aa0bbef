"""The interface of the fetchers for the rest of the broker (`broker/replication/fetcher_manager.py` implements it)."""

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
        """Called when a consumer begins to read a partition that this broker follows. From now on, the leader sends a new high
        watermark at once (KIP-392)."""
