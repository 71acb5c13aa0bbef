"""The name that a partition has inside the system: its topic's id and its number.

A topic's name can be given to another topic after the first one is deleted, the id cannot. Requests, images and logs are
therefore keyed by the id, and a request that names a deleted topic finds nothing (KIP-516)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.protocol.errors import BrokerError, ErrorCode

TopicIdPartition = tuple[bytes, int]
"""Topic id (16 bytes, as in `partition.metadata`) and partition number (from 0).

A plain tuple and not a class: one is created for each partition of each request, and used as a key."""


class NamesPartition(Protocol):
    """An item of a request that names one partition."""

    @property
    def topic_id(self) -> bytes: ...
    @property
    def partition(self) -> int: ...


def refuse_repeated(items: Sequence[NamesPartition]) -> None:
    """Raise `BrokerError(INVALID_REQUEST)` if a request names a partition more than once."""
    if len(items) > 1 and len({(item.topic_id, item.partition) for item in items}) != len(items):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the same partition twice in one request")
