"""The view of a group that the commands of `strandline group` print: its partitions with offsets, lag and owners. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.cli.amounts import counted
from strandline.protocol.errors import ErrorCode, StrandlineError

if TYPE_CHECKING:
    from strandline.client import GroupDescription, GroupLag, GroupMemberDescription, PartitionLag, TopicPartition

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
    "LEADER-EPOCH",
    "METADATA",
)
"""The names of kafka-consumer-groups.sh, in its order, and two more."""
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "EPOCH", "ASSIGNMENT")
STATE_COLUMNS = ("GROUP", "COORDINATOR", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS", "TYPE", "EPOCH")


@dataclass(frozen=True, slots=True)
class Place:
    """A partition for which a group has a committed offset, or which one of its members reads."""

    tp: TopicPartition
    lag: PartitionLag | None
    """None without a committed offset."""
    owner: GroupMemberDescription | None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator describes it, and how far it has read."""

    description: GroupDescription
    lag: GroupLag

    @property
    def group_id(self) -> str:
        return self.description.group_id

    @property
    def exists(self) -> bool:
        """Whether the coordinator knows the group. One that committed offsets without members is described as Empty."""
        return code_of(self.description.error) != ErrorCode.GROUP_ID_NOT_FOUND or bool(self.lag.partitions)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show of the group: its description, or committed offsets."""
        return self.description.error is None or bool(self.lag.partitions)

    @property
    def problems(self) -> list[str]:
        """Sentences about what is not known of the group."""
        if not self.exists:
            return [f"there is no group {self.group_id}"]
        errors = [error for error in (self.description.error, self.lag.error) if error is not None]
        found = [f"{self.group_id} is not known completely: {errors[0]}"] if errors else []
        silent = [str(tp) for tp, lag in sorted(self.lag.partitions.items()) if lag.lag is None]
        return found + ([f"{self.group_id}: the lag of {', '.join(silent)} is not known: no leader answered"] if silent else [])

    @property
    def places(self) -> list[Place]:
        """The partitions of the group, sorted."""
        owners = {tp: member for member in self.description.members for tp in member.assignment}
        return [Place(tp, self.lag.partitions.get(tp), owners.get(tp)) for tp in sorted({*owners, *self.lag.partitions})]

    def offset_rows(self) -> list[tuple[object, ...]]:
        """Rows of OFFSET_COLUMNS."""
        return [self._offset_row(place) for place in self.places]

    def _offset_row(self, place: Place) -> tuple[object, ...]:
        lag, owner = place.lag, place.owner
        return (
            self.group_id,
            place.tp.topic,
            place.tp.partition,
            lag.committed.offset if lag else "-",
            "-" if lag is None or lag.log_end_offset is None else lag.log_end_offset,
            "-" if lag is None or lag.lag is None else lag.lag,
            owner.member_id if owner else "-",
            owner.host if owner else "-",
            owner.client_id if owner else "-",
            lag.committed.leader_epoch if lag else None,
            lag.committed.metadata if lag else None,
        )

    def member_rows(self) -> list[tuple[object, ...]]:
        """Rows of MEMBER_COLUMNS."""
        return [
            (
                self.group_id,
                member.member_id,
                member.instance_id,
                member.host,
                member.client_id,
                len(member.assignment),
                member.member_epoch if member.member_epoch >= 0 else None,
                assignment_text(member.assignment),
            )
            for member in self.description.members
        ]

    def state_row(self) -> tuple[object, ...]:
        """A row of STATE_COLUMNS."""
        found = self.description
        epoch = found.group_epoch if found.group_epoch >= 0 else None
        return (found.group_id, found.coordinator, found.protocol, found.state, len(found.members), found.group_type, epoch)

    @property
    def summary(self) -> str:
        """The group in one line."""
        found = self.description
        members = counted(len(found.members), "member")
        by = f", assigned by {found.protocol}" if found.protocol else ""
        return (
            f"{found.group_id} is {found.state or 'unknown'}: {members}{by}, coordinator broker {found.coordinator}, "
            f"lag {self.lag.total}"
        )

    @property
    def document(self) -> dict[str, Any]:
        found = self.description
        return {
            "group_id": found.group_id,
            "state": found.state,
            "group_type": found.group_type,
            "coordinator": found.coordinator,
            "protocol": found.protocol,
            "group_epoch": found.group_epoch,
            "assignment_epoch": found.assignment_epoch,
            "lag": self.lag.total,
            "error": None if self.exists and found.error is None else str(found.error),
            "members": [_member_document(member) for member in found.members],
            "partitions": [_place_document(place) for place in self.places],
        }


def code_of(error: StrandlineError | None) -> ErrorCode | None:
    return getattr(error, "code", None)


def assignment_text(partitions: list[TopicPartition]) -> str:
    """The partitions as kafka-consumer-groups.sh prints them: orders(0,1),payments(2)."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return ",".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in by_topic.items())


def _member_document(member: GroupMemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "subscribed_topics": list(member.subscribed_topics),
        "pattern": member.pattern,
        "is_classic": member.is_classic,
        "assignment": [tp._asdict() for tp in sorted(member.assignment)],
        "target_assignment": [tp._asdict() for tp in sorted(member.target_assignment)],
    }


def _place_document(place: Place) -> dict[str, Any]:
    lag, owner = place.lag, place.owner
    return {
        **place.tp._asdict(),
        "committed_offset": lag.committed.offset if lag else None,
        "committed_leader_epoch": lag.committed.leader_epoch if lag else None,
        "metadata": lag.committed.metadata if lag else None,
        "log_end_offset": lag.log_end_offset if lag else None,
        "lag": lag.lag if lag else None,
        "member_id": owner.member_id if owner else None,
        "client_id": owner.client_id if owner else None,
        "host": owner.host if owner else None,
    }
