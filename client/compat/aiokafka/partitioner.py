"""The partitioner of aiokafka 0.14: murmur2 of the key as in Kafka's Java client, and a random partition without one."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.client.producer.partitioner import partition_for_key
from strandline.protocol.doors import real_doors


class DefaultPartitioner:
    """The partitioner of aiokafka, for programs that call it. As the option `partitioner` of the producer, it selects this
    client's own partitioner, which chooses the same partition for a key, and is sticky for records without a key (KIP-480)."""

    def __init__(self) -> None:
        self._random = real_doors().random

    def __call__(self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]) -> int:
        if key is None:
            return self._random.choice(available or all_partitions)
        return all_partitions[partition_for_key(key, len(all_partitions))]


__all__ = ["DefaultPartitioner"]
