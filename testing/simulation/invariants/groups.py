"""I36, I37, I38: the owners of a group's partitions, the commits that count, and the answers of the coordinator.

The log decides: the records that the leader of a partition of `__consumer_offsets` appends are decoded here, and applied to a
view (`group_views.py`) of that leader epoch. The coordinator's memory is compared only at rest (I40, `group_memory.py`).

- **I36 ownership**, in the coordinator's records: no partition of a group has two owners after any append; the epoch of a group
  rises, and its assignment epoch is not above it; a group is of one type. In responses: a heartbeat or a SyncGroup response
  gives a member only an epoch and an assignment from a committed record. (In the actions of members: `cluster/groups/ledger.py`.)
- **I37 commits**: a member's commit is accepted only if the member exists in that epoch, and no other member owns the partition;
  it is not below the offset that is already stored. An acknowledged commit is committed in the log.
- **I38 answers**: an OffsetFetch response contains, for each partition, the last offset below the high watermark, and nothing
  above it; it is not sent before the leader knows which records are committed.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from strandline.broker.coordination.partitioning import partition_of
from strandline.broker.groups.records.codec import UnknownRecordType, decode_record
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    GroupMetadataRecord,
    GroupRecord,
    OffsetCommitRecord,
)
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol.messages import groups as messages
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import BatchHeader
from strandline.protocol.records.marker import is_marker, read_marker
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants import group_sessions
from strandline.testing.simulation.invariants.group_views import (
    LEFT,
    Ended,
    Entry,
    GroupView,
    InTransaction,
    MemberEntry,
    Written,
)

if TYPE_CHECKING:
    from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost

LEFT_FOR_A_MOMENT = -2


def is_offsets(partition: PartitionGhost) -> bool:
    return partition.topic == OFFSETS_TOPIC


# -- appends ----------------------------------------------------------------------------------------------------------


def on_leader(ghosts: Ghosts, replica: ReplicaGhost, epoch: int) -> None:
    """A leader begins: build its view from the log that it has."""
    partition, view = replica.partition, GroupView()
    known = ghosts.groups.of(partition.key)
    for batch_epoch, batch in partition.tree.walk(replica.path, 0, replica.path.end):
        for offset, record in known.batches.get((batch_epoch, batch.base), ()):
            view.apply(record, Entry(offset, batch_epoch))
    known.views[epoch], known.led[replica.node] = view, epoch


def remember(ghosts: Ghosts, replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader]) -> None:
    """Remember the records of batches that were appended to the log of a replica, or may have been."""
    known, position = ghosts.groups.of(replica.partition.key).batches, 0
    for header in headers:
        key = (header.leader_epoch, header.base_offset)
        if key not in known:
            known[key] = list(_written(records[position : position + header.size], header))
        position += header.size


def _written(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, Written]]:
    """The content of a batch, with offsets: its records, the offsets that a transaction commits, or a transaction's marker."""
    if header.is_control:
        marker = read_marker(batch, 0, header) if is_marker(header) else None
        if marker is not None:
            yield header.base_offset, Ended(header.producer_id, marker.is_commit)
        return
    for offset, record in _decoded(batch, header.base_offset):
        if header.is_transactional and isinstance(record, OffsetCommitRecord):
            yield offset, InTransaction(header.producer_id, record)
        else:
            yield offset, record


def _decoded(batch: Buffer, base: int) -> Iterator[tuple[int, GroupRecord]]:
    for number, record in enumerate(iter_records(batch)):
        key = None if record.key is None else bytes(record.key)
        try:
            yield base + number, decode_record(key, None if record.value is None else bytes(record.value))
        except UnknownRecordType:
            continue


def on_appended(ghosts: Ghosts, replica: ReplicaGhost, headers: Sequence[BatchHeader]) -> None:
    """I36, for batches that a leader has appended."""
    known = ghosts.groups.of(replica.partition.key)
    view = known.views.get(headers[0].leader_epoch)
    if view is None:
        return
    touched: dict[str, None] = {}
    written: list[GroupRecord] = []
    view.now = _loop_time()
    for header in headers:
        for offset, record in known.batches[header.leader_epoch, header.base_offset]:
            if isinstance(record, (InTransaction, Ended)):
                view.apply(record, Entry(offset, header.leader_epoch))
                continue
            _check_epoch(replica, view, record)
            deleted = len(view.deleted)
            view.apply(record, Entry(offset, header.leader_epoch))
            ghosts.groups.incarnations.update(view.deleted[deleted:])
            if not isinstance(record, OffsetCommitRecord):
                touched[record.group_id] = None
                written.append(record)
    _check_owners(ghosts, replica, view, touched)
    group_sessions.on_appended(ghosts, replica, view, written)


def _check_epoch(replica: ReplicaGhost, view: GroupView, record: GroupRecord) -> None:
    """The epochs of a group, and the generations of a classic one, do not decrease."""
    if record.value is None:
        return
    before, after = -1, -1
    if isinstance(record, ConsumerGroupMetadataRecord):
        before, after = view.epochs.get(record.group_id, -1), record.value.epoch
    elif isinstance(record, GroupMetadataRecord) and record.group_id in view.classic:
        before, after = view.classic[record.group_id].generation_id, record.value.generation_id
    if after < before:
        text = f"broker {replica.node} lowers the epoch of group {record.group_id} from {before} to {after}"
        raise replica.partition.violation("I36", text, replica.node)


def _check_owners(ghosts: Ghosts, replica: ReplicaGhost, view: GroupView, touched: Iterable[str]) -> None:
    partition = replica.partition
    for group, key in view.shared:
        owners, name = " and ".join(sorted(view.owners[group, key])), f"{ghosts.topic_name(key[0])}-{key[1]}"
        text = f"the records of broker {replica.node} let {owners} own {name}"
        raise partition.violation("I36", f"group {group}: {text}", replica.node)
    for group in touched:
        problem = _problem_of(view, group)
        if problem:
            raise partition.violation("I36", f"group {group}: broker {replica.node} has written {problem}", replica.node)


def _problem_of(view: GroupView, group: str) -> str:
    if view.assignment_epochs.get(group, 0) > view.epochs.get(group, 0):
        return f"the assignment epoch {view.assignment_epochs[group]}, above the group epoch {view.epochs.get(group, 0)}"
    if group in view.classic and group in view.epochs:
        return "records of both types"
    twice = view.doubly_assigned(group)
    return f"an assignment in which {twice} have two owners" if twice else ""


# -- commits ----------------------------------------------------------------------------------------------------------


def on_commit_decided(
    ghosts: Ghosts, node: int, request: messages.OffsetCommitRequest, records: Sequence[OffsetCommitRecord]
) -> None:
    """I37: the coordinator is about to store these offsets."""
    replica, view = _coordinator(ghosts, node, request.group_id)
    if replica is None or view is None or request.generation_id_or_member_epoch < 0:
        return
    ids = {ghosts.topic_name(p.topic_id): p.topic_id for p in request.partitions}
    for record in records:
        key = (ids[record.topic], record.partition)
        problem = _commit_problem(view, request, key) or _regression(replica, view, record)
        if problem:
            commit = f"group {request.group_id}: broker {node} accepts the commit of {request.member_id} in epoch "
            what = f"{request.generation_id_or_member_epoch} for {record.topic}-{record.partition}, but {problem}"
            raise replica.partition.violation("I37", f"{commit}{what}", node)


def _commit_problem(view: GroupView, request: messages.OffsetCommitRequest, key: TopicIdPartition) -> str:
    group, member_id, epoch = request.group_id, request.member_id, request.generation_id_or_member_epoch
    others = [owner for owner in view.owners.get((group, key), ()) if owner != member_id]
    if others:
        return f"{others[0]} owns the partition"
    if group in view.classic:
        value = view.classic[group]
        if all(member.member_id != member_id for member in value.members) or value.generation_id != epoch:
            return f"the group is in generation {value.generation_id}, with other members"
        return ""
    current = view.current.get((group, member_id))
    if current is None:
        return "the group has no such member"
    if epoch > current.member_epoch:
        return f"the member is in epoch {current.member_epoch}"
    since = {**current.assigned.get(key[0], {}), **current.pending_revocation.get(key[0], {})}.get(key[1])
    if epoch < current.member_epoch and (since is None or since > epoch):
        return f"the member is in epoch {current.member_epoch}, and owns the partition since epoch {since}"
    return ""


def _regression(replica: ReplicaGhost, view: GroupView, record: OffsetCommitRecord) -> str:
    before, after = view.newest((record.group_id, record.topic, record.partition)), record.value
    if before is None or after is None or replica.partition.loss_permitted or before.topic_id != after.topic_id:
        return ""
    return f"{before.offset} is stored already, and {after.offset} is less" if after.offset < before.offset else ""


# -- answers ----------------------------------------------------------------------------------------------------------


def on_answer(ghosts: Ghosts, node: int, request: Any, response: Any, received_at: float = 0.0) -> None:
    """I36, I37, I38 for a response that is sent. `received_at`: when the request arrived, on the clock of the broker's loop."""
    ghosts.groups.received_at = received_at
    check = _CHECKS.get(type(response))
    if check is None or getattr(response, "error_code", None):
        return
    group = request.groups[0].group_id if isinstance(response, messages.OffsetFetchResponse) else request.group_id
    replica, view = _coordinator(ghosts, node, group)
    if replica is not None and view is not None and not replica.partition.loss_permitted:
        check(ghosts, replica, view, request, response)


def _coordinator(ghosts: Ghosts, node: int, group: str) -> tuple[ReplicaGhost | None, GroupView | None]:
    """The replica of the group's partition on this broker, and the view of the last epoch in which it has led."""
    topic = ghosts.metadata.image.topic(OFFSETS_TOPIC)
    if topic is None:
        return None, None
    partition = ghosts.partitions.get((bytes(topic.topic_id), partition_of(group, len(topic.partitions))))
    if partition is None or node not in partition.replicas:
        return None, None
    known = ghosts.groups.of(partition.key)
    return partition.replicas[node], known.views.get(known.led.get(node, -1))


def _loop_time() -> float:
    """The time of the process that runs now."""
    loop = asyncio._get_running_loop()
    return 0.0 if loop is None else loop.time()


def _is_committed(replica: ReplicaGhost, at: Entry) -> bool:
    return replica.partition.committed.holds(at.offset, at.epoch)


def _check_member_entry(
    replica: ReplicaGhost, view: GroupView, member: tuple[str, str], fits: Callable[[MemberEntry], bool], what: str
) -> None:
    """I36: the epoch and the assignment in a response are those that a committed record gives to the member."""
    known = [entry for entry in view.history.get(member, ()) if fits(entry)]
    if not any(_is_committed(replica, entry.at) for entry in reversed(known)):
        why = "is only in an uncommitted record" if known else "is in no record"
        text = f"group {member[0]}: broker {replica.node} answers the member {member[1]} with {what}, which {why}"
        raise replica.partition.violation("I36", text, replica.node)


def _check_heartbeat(
    ghosts: Ghosts,
    replica: ReplicaGhost,
    view: GroupView,
    request: messages.ConsumerGroupHeartbeatRequest,
    response: messages.ConsumerGroupHeartbeatResponse,
) -> None:
    epoch, member = response.member_epoch, (request.group_id, request.member_id)
    if request.member_epoch == 0 or not ghosts.groups.doubtful.get(member):  # one that waited may be answered after the removal
        ghosts.groups.doubtful.pop(member, None)
    if epoch == LEFT_FOR_A_MOMENT:
        return
    if response.assignment is None:
        what = "its removal" if epoch == LEFT else f"the epoch {epoch}"
        _check_member_entry(replica, view, member, lambda entry: entry.epoch == epoch, what)
        return
    assigned = frozenset((topic.topic_id, number) for topic in response.assignment for number in topic.partitions)
    _check_member_entry(
        replica,
        view,
        member,
        lambda entry: entry.epoch == epoch and entry.named == assigned,
        f"the epoch {epoch} with the partitions {sorted(number for _, number in assigned)}",
    )


def _check_sync(
    ghosts: Ghosts,
    replica: ReplicaGhost,
    view: GroupView,
    request: messages.SyncGroupRequest,
    response: messages.SyncGroupResponse,
) -> None:
    generation, member = request.generation_id, (request.group_id, request.member_id)
    _check_member_entry(
        replica,
        view,
        member,
        lambda entry: entry.epoch == generation and entry.assignment in (None, response.assignment),
        f"its assignment in generation {generation}",
    )


def _check_committed(
    ghosts: Ghosts,
    replica: ReplicaGhost,
    view: GroupView,
    request: messages.OffsetCommitRequest,
    response: messages.OffsetCommitResponse,
) -> None:
    wanted = {(p.topic_id, p.partition): p.committed_offset for p in request.partitions}
    for answer in response.partitions:
        if answer.error_code:
            continue
        topic, offset = ghosts.topic_name(answer.topic_id), wanted[answer.topic_id, answer.partition]
        stored = view.offsets.get((request.group_id, topic, answer.partition), ())
        if not any(s.value is not None and s.value.offset == offset and _is_committed(replica, s.at) for s in stored):
            text = (
                f"group {request.group_id}: broker {replica.node} acknowledges the offset {offset} of {topic}-{answer.partition}"
            )
            raise replica.partition.violation("I37", f"{text}, and no committed record has it", replica.node)


def _check_fetched(
    ghosts: Ghosts,
    replica: ReplicaGhost,
    view: GroupView,
    request: messages.OffsetFetchRequest,
    response: messages.OffsetFetchResponse,
) -> None:
    group, asked = response.groups[0], request.groups[0]
    if len(response.groups) > 1 or group.error_code or replica.log is None:
        return  # The answers for several groups were created at several moments.
    high_watermark = replica.log.high_watermark
    _check_is_known(replica, high_watermark, group.group_id)
    for answer in group.partitions:
        if answer.error_code:
            continue
        topic = ghosts.topic_name(answer.topic_id)
        key = (group.group_id, topic, answer.partition)
        values = [view.below(key, high_watermark)]
        if request.require_stable:  # the newest one when it was asked for, and committed since
            values = view.stable(key, ghosts.groups.received_at, high_watermark)
        expected = [-1 if v is None or v.topic_id not in (answer.topic_id, ZERO_UUID) else v.offset for v in values]
        if answer.committed_offset not in expected:
            text = (
                f"group {group.group_id}: broker {replica.node} answers the offset {answer.committed_offset} of "
                f"{topic}-{answer.partition}, but below the high watermark {high_watermark} it is "
                f"{' or '.join(map(str, expected))}"
            )
            raise replica.partition.violation("I38", text, replica.node)
        if asked.member_id:
            place = (answer.topic_id, answer.partition)
            ghosts.groups.answered[group.group_id, asked.member_id, place] = answer.committed_offset


def _check_is_known(replica: ReplicaGhost, high_watermark: int, group: str) -> None:
    """Violation if the high watermark is below the start of the leader's epoch: then the leader cannot know what is committed."""
    leader_state = None if replica.live is None else replica.live.leader_state
    if leader_state is not None and high_watermark < leader_state.epoch_start_offset:
        text = (
            f"group {group}: broker {replica.node} answers committed offsets with the high watermark {high_watermark}, below the "
            f"start of its epoch, {leader_state.epoch_start_offset}"
        )
        raise replica.partition.violation("I38", text, replica.node)


_CHECKS: dict[type, Callable[..., None]] = {
    messages.ConsumerGroupHeartbeatResponse: _check_heartbeat,
    messages.SyncGroupResponse: _check_sync,
    messages.OffsetCommitResponse: _check_committed,
    messages.OffsetFetchResponse: _check_fetched,
}
ANSWERS = frozenset(_CHECKS)
"""The types of the responses that are judged."""


# -- queries ----------------------------------------------------------------------------------------------------------


def committed(ghosts: Ghosts, group: str, key: TopicIdPartition) -> int:
    """The committed offset of a group; -1 if there is none."""
    topic = ghosts.metadata.image.topic(OFFSETS_TOPIC)
    partition = (
        None if topic is None else ghosts.partitions.get((bytes(topic.topic_id), partition_of(group, len(topic.partitions))))
    )
    if partition is None or partition.registration is None:
        return -1
    view = ghosts.groups.of(partition.key).views.get(partition.registration.leader_epoch)
    value = None if view is None else view.below((group, ghosts.topic_name(key[0]), key[1]), partition.committed.end)
    return -1 if value is None or value.topic_id not in (key[0], ZERO_UUID) else value.offset
