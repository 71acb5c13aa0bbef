"""The groups of one partition of `__consumer_offsets`, as the records say that the coordinator of a leader epoch has written.

A view is built from the records of a leader's log, in their order, and not from the coordinator's memory. It keeps the place of
each record in the log, because a record may be appended and never committed: `Entry` has its offset and leader epoch, and the
ghost of the partition has the committed log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    CommittedOffset,
    ConsumerGroupMetadataRecord,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    OffsetCommitRecord,
    PartitionEpochs,
    TargetAssignmentMetadataRecord,
)
from strandline.client.admin.classic_assignment import decode_assignment
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.invariants.session_ghosts import SessionsGhost

OffsetKey = tuple[str, str, int]
"""Group, topic and partition."""
LEFT = -1
"""The epoch in the history of a member from which on it is removed."""


class Entry(NamedTuple):
    """The place of a record in the log."""

    offset: int
    epoch: int


class MemberEntry(NamedTuple):
    """The content that an answer to a member may have from a record on: the member's epoch, and its partitions."""

    at: Entry
    epoch: int
    named: frozenset[TopicIdPartition]
    assignment: bytes | None = None
    """The assignment of a member of a classic group; None for a group of the newer protocol."""


class Stored(NamedTuple):
    at: Entry
    value: CommittedOffset | None
    since: float = 0.0
    """When it was appended, on the clock of the leader's loop."""


class InTransaction(NamedTuple):
    """An offset that a producer stores in its transaction."""

    producer_id: int
    record: OffsetCommitRecord


class Ended(NamedTuple):
    """The marker of a producer's transaction."""

    producer_id: int
    is_commit: bool


Written = GroupRecord | InTransaction | Ended


class GroupView:
    def __init__(self) -> None:
        self.offsets: dict[OffsetKey, list[Stored]] = {}
        """All records of each key, in the order of the log. An offset of a transaction counts as a record at its marker."""
        self.now = 0.0
        """The time of the record that is applied, on the clock of the leader's loop."""
        self._written_at: dict[OffsetKey, int] = {}
        """Key -> the offset at which the record of its newest committed offset is."""
        self._pending: dict[int, dict[OffsetKey, tuple[int, CommittedOffset | None]]] = {}
        """Producer id -> the offsets of its open transaction, with the places of their records."""
        self.current: dict[tuple[str, str], CurrentAssignmentValue] = {}
        """(group, member) -> its assignment, of the newer protocol."""
        self.classic: dict[str, ClassicGroupValue] = {}
        self.epochs: dict[str, int] = {}
        """Groups of the newer protocol -> the group epoch."""
        self.assignment_epochs: dict[str, int] = {}
        self.history: dict[tuple[str, str], list[MemberEntry]] = {}
        """(group, member) -> what a coordinator may have answered to it, in the order of the log."""
        self.owners: dict[tuple[str, TopicIdPartition], dict[str, None]] = {}
        """(group, partition) -> the members that own it, or still have to give it up."""
        self.shared: dict[tuple[str, TopicIdPartition], None] = {}
        """The partitions with several owners."""
        self.targets: dict[str, dict[str, None]] = {}
        """Group -> the members for which the leader has written targets, before its last append."""
        self.assigned: dict[str, tuple[float, int]] = {}
        """Group -> when the leader has computed its last target, on the clock of its loop, and the interval in effect."""
        self.deleted: list[str] = []
        """Groups in the order in which their last record was written; a group may be in it several times."""

    # -- records ------------------------------------------------------------------------------------------------------

    def apply(self, record: Written, at: Entry) -> None:
        match record:
            case OffsetCommitRecord():
                self._store(_key_of(record), record.value, at.offset, at)
            case InTransaction():
                self._pending.setdefault(record.producer_id, {})[_key_of(record.record)] = (at.offset, record.record.value)
            case Ended():
                for key, (offset, value) in self._pending.pop(record.producer_id, {}).items() if record.is_commit else ():
                    self._store(key, value, offset, at)
                self._pending.pop(record.producer_id, None)
            case CurrentAssignmentRecord():
                self._put_current(record, at)
            case MemberMetadataRecord(value=None):
                member = (record.group_id, record.member_id)
                self._own(member, None)
                self.history.setdefault(member, []).append(MemberEntry(at, LEFT, frozenset()))
            case GroupMetadataRecord():
                self._put_classic(record, at)
            case ConsumerGroupMetadataRecord():
                if record.value is None:
                    self._delete(record.group_id)
                else:
                    self.epochs[record.group_id] = record.value.epoch
            case TargetAssignmentMetadataRecord():
                epoch = 0 if record.value is None else record.value.assignment_epoch
                self.assignment_epochs[record.group_id] = epoch
            case _:
                pass

    def _store(self, key: OffsetKey, value: CommittedOffset | None, written_at: int, at: Entry) -> None:
        """The newest record counts: a marker does not undo a later commit."""
        if written_at > self._written_at.get(key, -1):
            self._written_at[key] = written_at
            self.offsets.setdefault(key, []).append(Stored(at, value, self.now))

    def _put_current(self, record: CurrentAssignmentRecord, at: Entry) -> None:
        member, value = (record.group_id, record.member_id), record.value
        self._own(member, value)
        if value is not None:
            self.history.setdefault(member, []).append(MemberEntry(at, value.member_epoch, frozenset(_keys(value.assigned))))

    def _own(self, member: tuple[str, str], value: CurrentAssignmentValue | None) -> None:
        group, member_id = member
        before = self.current.pop(member, None)
        for key in _owned(before):
            owners = self.owners.get((group, key), {})
            owners.pop(member_id, None)
            self._note_owners(group, key, owners)
        if value is not None:
            self.current[member] = value
        for key in _owned(value):
            owners = self.owners.setdefault((group, key), {})
            owners[member_id] = None
            self._note_owners(group, key, owners)

    def _note_owners(self, group: str, key: TopicIdPartition, owners: dict[str, None]) -> None:
        if len(owners) > 1:
            self.shared[group, key] = None
        else:
            self.shared.pop((group, key), None)

    def _put_classic(self, record: GroupMetadataRecord, at: Entry) -> None:
        if record.value is None:
            self.classic.pop(record.group_id, None)
            self.deleted.append(record.group_id)
            return
        self.classic[record.group_id] = record.value
        for member in record.value.members:
            entry = MemberEntry(at, record.value.generation_id, frozenset(), member.assignment)
            self.history.setdefault((record.group_id, member.member_id), []).append(entry)

    def _delete(self, group: str) -> None:
        self.epochs.pop(group, None)
        self.assignment_epochs.pop(group, None)
        self.deleted.append(group)

    # -- questions ----------------------------------------------------------------------------------------------------

    def newest(self, key: OffsetKey) -> CommittedOffset | None:
        stored = self.offsets.get(key)
        return None if not stored else stored[-1].value

    def below(self, key: OffsetKey, high_watermark: int) -> CommittedOffset | None:
        """The value of the last record below the high watermark."""
        for stored in reversed(self.offsets.get(key, ())):
            if stored.at.offset < high_watermark:
                return stored.value
        return None

    def stable(self, key: OffsetKey, since: float, high_watermark: int) -> list[CommittedOffset | None]:
        """The values below the high watermark that were the newest ones at this time or later; None: there was no offset."""
        stored = self.offsets.get(key, [])
        later = [each for each in stored if each.since >= since]
        before = [each.value for each in stored[: len(stored) - len(later)] if each.at.offset < high_watermark]
        return [before[-1] if before else None, *(each.value for each in later if each.at.offset < high_watermark)]

    def members(self, group: str) -> list[str]:
        return [member_id for name, member_id in self.current if name == group]

    def doubly_assigned(self, group: str) -> list[tuple[str, int]]:
        """Partitions that a classic group's record assigns to two of its members."""
        value = self.classic.get(group)
        if value is None or value.protocol_type != "consumer":
            return []
        seen: dict[tuple[str, int], None] = {}
        twice = []
        for member in value.members:
            for tp in decode_assignment(member.assignment):
                if (tp.topic, tp.partition) in seen:
                    twice.append((tp.topic, tp.partition))
                seen[tp.topic, tp.partition] = None
        return twice


class OffsetsGhost:
    """One partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], list[tuple[int, Written]]] = {}
        """(leader epoch, base offset) -> the records of each batch that a leader has written, with their offsets."""
        self.views: dict[int, GroupView] = {}
        """Leader epoch -> the view of its leader."""
        self.led: dict[int, int] = {}
        """Broker -> the last epoch in which it has led."""


class GroupsGhost:
    """All groups. Implements `cluster.groups.ledger.Coordinators`."""

    def __init__(self) -> None:
        self.sessions = SessionsGhost()
        self.received_at = 0.0
        """The arrival time of the request whose answer is being judged, on the clock of its broker's loop."""
        self.partitions: dict[TopicIdPartition, OffsetsGhost] = {}
        """The partitions of `__consumer_offsets`, by topic id and number."""
        self.incarnations: Counter[str] = Counter()
        self.answered: dict[tuple[str, str, TopicIdPartition], int] = {}
        """(group, member, partition) -> the committed offset in the last answer to the member."""
        self.doubtful: dict[tuple[str, str], bool] = {}
        """(group, member) of a live member that the coordinator may remove before the member can know -> whether it has done so.
        The reason: its connection was lost, or it has not given up partitions in time, or a new coordinator has a shorter
        session."""

    def of(self, key: TopicIdPartition) -> OffsetsGhost:
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = OffsetsGhost()
        return found


def _key_of(record: OffsetCommitRecord) -> OffsetKey:
    return record.group_id, record.topic, record.partition


def _owned(value: CurrentAssignmentValue | None) -> Iterator[TopicIdPartition]:
    if value is not None:
        yield from _keys(value.assigned)
        yield from _keys(value.pending_revocation)


def _keys(partitions: PartitionEpochs) -> Iterator[TopicIdPartition]:
    return ((topic_id, number) for topic_id, numbers in partitions.items() for number in numbers)
