"""The decisions of transaction coordinators and the markers that leaders have appended, read from the records of the logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.broker.transactions.states import Transaction
from strandline.protocol.partitions import TopicIdPartition


class Decision(NamedTuple):
    """A record of a coordinator, and its place in the log."""

    key: TopicIdPartition
    epoch: int
    offset: int
    value: Transaction


class Marker(NamedTuple):
    epoch: int
    """The leader epoch in which it was appended."""
    offset: int
    producer_epoch: int
    is_commit: bool


@dataclass(slots=True)
class TransactionsGhost:
    decisions: dict[int, list[Decision]] = field(default_factory=dict)
    """Producer id -> the records about it, in the order in which leaders appended them."""
    by_id: dict[str, list[Decision]] = field(default_factory=dict)
    """Transactional id -> its records."""
