"""I40: the memory of a coordinator agrees with its log, and with the logs of all replicas.

Checked at rest. The log of the leader is loaded once more, into a new shard, as by a coordinator that takes over: the groups and
offsets must be those in the memory of the present coordinator. Each follower's log, which its own cleaner has cleaned, is applied
record by record and must give the same result: so groups and offsets that were deleted or have expired are gone on all replicas.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from strandline.broker.groups.classic.group import ClassicGroup, State
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.loader import GroupLoader
from strandline.broker.groups.records.codec import UnknownRecordType, decode_record
from strandline.broker.groups.shard import GroupShard
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import NO_PRODUCER_ID, BatchHeader, iter_headers
from strandline.protocol.records.marker import is_marker, read_marker
from strandline.protocol.records.reader import iter_records

if TYPE_CHECKING:
    from strandline.storage.log.log import Log
    from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost

Signature = dict[str, Any]
READ_BYTES = 1 << 20
REBALANCES = "a rebalance"
"""The signature of a classic group that has members that are in no record yet: it is not compared."""


def check(ghosts: Ghosts) -> None:
    for partition in [ghosts.partitions[key] for key in ghosts.groups.partitions]:
        if not partition.is_deleted and not partition.loss_permitted and partition.registration is not None:
            _check_partition(partition)


def _check_partition(partition: PartitionGhost) -> None:
    registration = partition.registration
    assert registration is not None
    leader = partition.replicas.get(registration.leader)
    active = None if leader is None or leader.process is None else _shard_of(leader, partition.key[1])
    if leader is None or active is None or leader.damage is not None:
        return
    assert leader.log is not None
    assert leader.process is not None
    config = leader.process.server.opened.groups.config
    memory = _signature(active.shard, leader.log.high_watermark)
    loaded = _loaded(active, GroupShard(config, Random(0), active.shard.image))
    if loaded is None:
        return
    _compare(partition, leader, memory, _signature(loaded, leader.log.high_watermark), "a load of its log")
    for node, replica in partition.replicas.items():
        if replica is not leader and replica.is_live and replica.log is not None and replica.damage is None:
            replayed = _replayed(GroupShard(config, Random(0), active.shard.image), replica.log)
            if replayed is not None:
                signature = _signature(replayed, replica.log.high_watermark)
                _compare(partition, leader, memory, signature, f"the log of broker {node}")


def _shard_of(leader: ReplicaGhost, number: int) -> Any:
    """The loaded shard of the coordinator; None if the broker does not coordinate the partition, or is still loading it."""
    opened = getattr(leader.process and leader.process.server, "opened", None)
    active = None if opened is None else opened.groups.shards.get(number)
    return active if active is not None and active.is_current and active.loader is None else None


def _compare(partition: PartitionGhost, leader: ReplicaGhost, memory: Signature, other: Signature, what: str) -> None:
    for name in sorted({*memory, *other}):
        ours, theirs = memory.get(name), other.get(name)
        if ours != theirs and ours is not REBALANCES:
            text = f"the coordinator on broker {leader.node} has {name} as {ours}, but {what} says {theirs}"
            raise partition.violation("I40", text, leader.node)


def _loaded(active: Any, shard: GroupShard) -> GroupShard | None:
    """Load the log of the present coordinator into the new shard, as a coordinator that takes over does. None if the log has
    damaged bytes that were not read before."""
    steps, ends = deque[Callable[[], None]](), list[Exception | None]()
    state, call_soon = active.leader_state, steps.append
    GroupLoader(state, shard, is_current=lambda: True, call_soon=call_soon, run_blocking=None, on_end=ends.append).start()
    while steps:
        steps.popleft()()
    if isinstance(ends[0], BrokerError) and ends[0].code is ErrorCode.CORRUPT_MESSAGE:
        return None
    if ends != [None]:
        raise AssertionError(f"the log of {active.partition!r} cannot be loaded: {ends}")
    return shard


def _replayed(shard: GroupShard, log: Log) -> GroupShard | None:
    """The new shard, with every record of this log applied, one after the other. None if the log has damaged bytes."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            read = log.read(offset, READ_BYTES, log.log_end_offset)
        except BrokerError:
            return None
        batches = b"".join(bytes(buffer) for buffer in read.buffers)
        for position, header in iter_headers(batches):
            _replay_batch(shard, batches[position : position + header.size], header)
            offset = header.next_offset
    return shard


def _replay_batch(shard: GroupShard, batch: bytes, header: BatchHeader) -> None:
    if header.is_control:
        marker = read_marker(batch, 0, header) if is_marker(header) else None
        if marker is not None:
            shard.replay_marker(header.producer_id, marker.is_commit, header.base_offset)
        return
    for record in iter_records(batch) if header.record_count else ():
        _replay(shard, record, header.producer_id if header.is_transactional else NO_PRODUCER_ID)


def _replay(shard: GroupShard, record: Any, producer_id: int) -> None:
    key = None if record.key is None else bytes(record.key)
    with contextlib.suppress(UnknownRecordType):
        decoded = decode_record(key, None if record.value is None else bytes(record.value))
        shard.replay(decoded, record.offset, producer_id)


# -- what is compared -------------------------------------------------------------------------------------------------


def _signature(shard: GroupShard, high_watermark: int) -> Signature:
    """The groups and offsets of a shard, by the names that a violation shows."""
    shard.offsets.on_high_watermark(high_watermark)
    found: Signature = {}
    for group in shard.groups:
        if isinstance(group, ConsumerGroup):
            found[f"group {group.group_id}"] = _of_newer(group)
        elif isinstance(group, ClassicGroup):
            is_settled = group.state in (State.STABLE, State.EMPTY)
            found[f"group {group.group_id}"] = _of_classic(group) if is_settled else REBALANCES
    for group_id in shard.offsets.groups_with_offsets():
        found[f"offsets of {group_id}"] = {(o.topic, o.partition): o.value for o in shard.offsets.offsets_of(group_id)}
    return found


def _of_newer(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "epoch": group.epoch,
        "metadata_hash": group.metadata_hash,
        "assignment_epoch": group.assignment_epoch,
        "assignment_timestamp": group.assignment_timestamp,
        "members": group.members,
        "static_members": group.static_members,
        "targets": {member_id: target for member_id, target in group.targets.items() if target},
        "resolved": group.resolved,
        "owners": group.owners,
        "topic_counts": dict(group.topic_counts),
        "regex_counts": dict(group.regex_counts),
    }


def _of_classic(group: ClassicGroup) -> dict[str, Any]:
    members: Iterable[Any] = group.members.values()
    return {
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": {member.member_id: (member.instance_id, member.assignment) for member in members},
    }
