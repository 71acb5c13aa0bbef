"""A decision of the active controller: the records to write, and the reply to send once they are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from strandline.controller.metadata.records import AnyRecord

R = TypeVar("R")

Cause = Literal[
    "broker_fenced",
    "broker_registered",
    "broker_unfenced",
    "controlled_shutdown",
    "directory_assigned",
    "election_completed",
    "leader_proposed",
    "leaders_balanced",
    "log_dir_failed",
    "min_isr_lowered",
    "partitions_added",
    "preferred_election",
    "reassignment_requested",
    "records_lost",
    "topic_created",
    "unclean_election",
    "unclean_recovery",
]
"""Why a decision changes partitions. docs/logs.md explains each one, and the metric of elections counts each one."""
MaybeCause = Cause | Literal[""]
"""Empty if a decision changes no partition."""


@dataclass(slots=True)
class Decision(Generic[R]):
    """A decision changes no state by itself, except the brokers' sessions. The state changes when its records are applied."""

    reply: R
    records: list[AnyRecord] = field(default_factory=list)
    """Written as one atomic batch, unless `may_split`. A decision without records only reads."""
    on_appended: Callable[[int], None] | None = None
    """Called with the offset of the last record, after all records were appended and applied."""
    may_split: bool = False
    """The records may be written as several batches, because a decision about all partitions of a broker may exceed the largest
    batch of the quorum. After a fail-over only the first of these batches may exist: a later decision must complete the rest."""
    cause: MaybeCause = ""
    """Used only in the log and the metrics."""
