"""The decisions of the group coordinator's cores: records to append, and replies to send once these are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.records.types import GroupRecord
from strandline.protocol.errors import BrokerError


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client of a request, and the time of the request."""

    asker: Asker
    client_id: str
    client_host: str
    now: float
    """The loop's time in seconds, for deadlines."""
    now_ms: int
    """The wall clock, for timestamps in records."""


class Removal(StrEnum):
    """The reason why offsets are deleted."""

    DELETION = "deletion"
    """An operator has deleted them, or their group."""
    EXPIRATION = "expiration"
    TOPIC_DELETION = "topic_deletion"


class Removed(NamedTuple):
    """A member that a decision removes, for the log."""

    group_id: str
    member_id: str
    reason: str


class InTransaction(NamedTuple):
    """The producer to whose transaction the records of a decision belong."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Result:
    """A decision. Nothing has changed yet, except a core's own state that is in no record.

    The shell appends `records` as one batch, lets the shard replay them, calls `on_append`, and sends all replies when the high
    watermark has passed all records that the shard has replayed. If the append fails, no record is replayed; the shell calls
    `on_append` with the error, and each asker in `replies` gets the error instead of its reply."""

    records: list[GroupRecord] = field(default_factory=list)
    replies: Replies = field(default_factory=list)
    on_append: Callable[[BrokerError | None], Replies] | None = None
    """Changes state that is in no record. Called once: with None after the replay, or with the error of the append. Returns
    further replies, which are also sent after a failed append."""
    removal: Removal = Removal.DELETION
    """The reason for the deletions of offsets in `records`."""
    removed: list[Removed] = field(default_factory=list)
    transaction: InTransaction | None = None
    """The transaction to which `records` belong; None: no transaction."""
