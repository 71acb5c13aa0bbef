"""The brokers of the cluster: registration and its end, heartbeats, fencing, controlled shutdown.

A broker's states, and the heartbeat that changes them. "Caught up" means that the broker has applied its own registration
record. "Moved" means that it leads no partition, and has applied the records that moved its leaders away.

    fenced     --- caught up, no want_fence, no want_shut_down -------> unfenced
    unfenced   --- want_shut_down, leads partitions ------------------> shutting down (its leaders move, it leaves ISRs)
    unfenced   --- want_shut_down, leads none ------------------------> fenced, may stop now
    shutting down --- moved ------------------------------------------> fenced, may stop now
    any        --- want_fence, all disks failed, session timeout -----> fenced
    fenced     --- want_shut_down ------------------------------------> fenced, may stop now

Only an unfenced broker that is not shutting down may join an ISR or lead. The registration of a new process starts fenced,
with a new broker epoch (the offset of its record), and first removes the old process from all ISRs.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from strandline.controller.broker_sessions import BrokerSession, BrokerSessions
from strandline.controller.config_control import removal_of_broker_configs
from strandline.controller.decision import Cause, Decision, MaybeCause
from strandline.controller.metadata.cluster_describe import is_draining
from strandline.controller.metadata.directory_ids import UNASSIGNED, is_reserved
from strandline.controller.metadata.features import UnsupportedLevel, levels_of
from strandline.controller.metadata.image import BrokerRegistration, MetadataImage
from strandline.controller.metadata.records import (
    AnyRecord,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.replica_placer import UsableBroker
from strandline.controller.replication_control import (
    IsLossy,
    check_broker_epoch,
    drop_needless_elrs,
    elect_leaderless,
    leave_directories,
    remove_from_isrs,
    strike,
)
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import UnregisterBrokerRequest, UnregisterBrokerResponse
from strandline.protocol.messages.cluster import (
    LOSS_MAYBE,
    LOSS_YES,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    LossyPartitions,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.partitions import TopicIdPartition

FENCE, UNFENCE = 1, -1
TOPICS_NAMED_MAX = 10
"""The most topics that one error message names."""


class BrokerControlState(Enum):
    """The state of a broker as the active controller sees it; see the table at the top."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


_CAUSES: dict[BrokerControlState, Cause] = {
    BrokerControlState.FENCED: "broker_fenced",
    BrokerControlState.UNFENCED: "broker_unfenced",
    BrokerControlState.CONTROLLED_SHUTDOWN: "controlled_shutdown",
    BrokerControlState.SHUTDOWN_NOW: "controlled_shutdown",
}
"""The broker's next state -> the cause that is logged for the partitions that change."""


# -- registration -----------------------------------------------------------------------------------------------------


def register_broker(
    image: MetadataImage,
    index: PartitionIndex,
    sessions: BrokerSessions,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    now: float,
) -> Decision[BrokerRegistrationResponse]:
    """Register a process as a broker (KIP-631). It starts fenced, with a new broker epoch; the old process of this broker leaves
    all ISRs. If its logs may lack records, it leaves their ELRs as well, and is not elected before a leader has seen that it has
    caught up. The records of these changes precede the registration, so that no controller sees it without them (KAFKA-18106).
    If the same process registers again, its epoch and state stay.

    `next_offset` is the offset of the first record of this decision. Raises BrokerError INCONSISTENT_CLUSTER_ID,
    UNSUPPORTED_VERSION if the broker does not support the level of the metadata, DUPLICATE_BROKER_REGISTRATION while the session
    of another process lasts, and INVALID_REQUEST."""
    check_registration(image, sessions, request, cluster_id, now)
    existing = image.brokers.get(request.broker_id)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        return register_again(image, index, existing, sessions, request, now)
    is_lossy = _lossy_of_start(image, request) if image.feature_level else None
    records = remove_from_isrs(image, index, request.broker_id, is_lossy)
    broker_epoch = next_offset + len(records)
    records.append(_registration_record(request, broker_epoch, image.feature_level))
    sessions.touch(request.broker_id, broker_epoch, now)
    cause: Cause = "broker_registered" if is_lossy is None else "records_lost"
    return Decision(BrokerRegistrationResponse(0, broker_epoch), records, may_split=True, cause=cause)


def _lossy_of_start(image: MetadataImage, request: BrokerRegistrationRequest) -> IsLossy | None:
    """A function that returns whether a partition's log may lack records on a broker that starts; None if no log may.
    LOSS_UNKNOWN counts as no loss, because only versions that do not support the cluster's level send it."""
    was_replaced = _in_replaced_directory(image, request)
    if request.record_loss not in (LOSS_MAYBE, LOSS_YES):
        return was_replaced
    named = _named(request.lossy_partitions)
    if named is None:
        return lambda key: True
    return named if was_replaced is None else lambda key: named(key) or was_replaced(key)


def _in_replaced_directory(image: MetadataImage, request: BrokerRegistrationRequest) -> IsLossy | None:
    """A function that returns whether a partition was in a log directory that a new one has replaced; None if none was replaced.
    The broker itself may not know: an earlier start may have formatted the new directory and then failed to register. A directory
    that is only missing does not count, because it may return whole."""
    known = image.brokers.get(request.broker_id)
    dirs, before = set(request.log_dirs), set(known.log_dirs) if known is not None else set()
    if known is None or not before or not dirs - before:
        return None

    def was_replaced(key: TopicIdPartition) -> bool:
        partition = image.partition(key)
        directory = UNASSIGNED if partition is None else partition.directory_of(request.broker_id)
        return not before <= dirs if directory == UNASSIGNED else directory not in dirs

    return was_replaced


def _named(topics: list[LossyPartitions]) -> IsLossy | None:
    keys = {(topic.topic_id, index) for topic in topics for index in topic.partitions}
    return keys.__contains__ if keys else None


def check_registration(
    image: MetadataImage, sessions: BrokerSessions, request: BrokerRegistrationRequest, cluster_id: str, now: float
) -> None:
    """Raises INCONSISTENT_CLUSTER_ID, UNSUPPORTED_VERSION, INVALID_REQUEST, or DUPLICATE_BROKER_REGISTRATION while the session of
    another process with this id lasts."""
    if request.cluster_id != cluster_id:
        raise BrokerError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {request.broker_id} belongs to cluster {request.cluster_id!r}, this is cluster {cluster_id!r}",
        )
    supported = levels_of(request.features)
    if not supported.include(image.feature_level):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, str(UnsupportedLevel(image.feature_level, supported)))
    if request.broker_id < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{request.broker_id} is not a broker id")
    if request.incarnation_id == ZERO_UUID:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration needs an incarnation id")
    if not request.listeners or any(not listener.host or not listener.port for listener in request.listeners):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration needs at least one listener with host and port")
    if len({listener.name for listener in request.listeners}) != len(request.listeners):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration names a listener twice")
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration names a log directory twice: two have the same directory id")
    if any(is_reserved(each) for each in request.log_dirs):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration names a log directory with a reserved id")
    existing = image.brokers.get(request.broker_id)
    if existing is None or existing.incarnation_id == request.incarnation_id:
        return
    if sessions.is_live(existing.broker_id, existing.broker_epoch, now):
        raise BrokerError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is registered as broker {request.broker_id}, and its session has not ended; "
            "after a restart, retry until it has",
        )


def register_again(
    image: MetadataImage,
    index: PartitionIndex,
    existing: BrokerRegistration,
    sessions: BrokerSessions,
    request: BrokerRegistrationRequest,
    now: float,
) -> Decision[BrokerRegistrationResponse]:
    """The same process registers again, because the first response was lost or its address changed: epoch and state stay. A log
    directory that has failed since is no longer registered, so the broker now leaves the ISRs of its partitions there. If all
    directories have failed, the registration keeps them, and the next heartbeat fences the broker."""
    sessions.touch(existing.broker_id, existing.broker_epoch, now)
    failed = [each for each in existing.log_dirs if each not in request.log_dirs] if request.log_dirs else []
    record = msgspec.structs.replace(
        _registration_record(request, existing.broker_epoch, image.feature_level),
        fenced=existing.fenced,
        in_controlled_shutdown=existing.in_controlled_shutdown,
        log_dirs=tuple(request.log_dirs) or existing.log_dirs,
    )
    if RegisterBrokerRecord(**msgspec.structs.asdict(existing)) == record:
        return Decision(BrokerRegistrationResponse(0, existing.broker_epoch))
    moves = leave_directories(image, index, existing.broker_id, failed) if failed and not existing.fenced else []
    cause: MaybeCause = "log_dir_failed" if moves else ""
    return Decision(BrokerRegistrationResponse(0, existing.broker_epoch), [*moves, record], may_split=True, cause=cause)


def _registration_record(request: BrokerRegistrationRequest, broker_epoch: int, level: int) -> RegisterBrokerRecord:
    """The record of a registration that starts fenced, in the format of this level."""
    return RegisterBrokerRecord(
        request.broker_id,
        broker_epoch,
        request.incarnation_id,
        tuple(request.listeners),
        request.rack,
        log_dirs=tuple(request.log_dirs),
        features=tuple(request.features) if level else (),
        min_insync_replicas=request.min_insync_replicas if level else 0,
        cordoned_log_dirs=tuple(request.cordoned_log_dirs) if level else (),
    )


# -- unregistration ---------------------------------------------------------------------------------------------------


def unregister_broker(
    image: MetadataImage, index: PartitionIndex, sessions: BrokerSessions, request: UnregisterBrokerRequest, *, now: float
) -> Decision[UnregisterBrokerResponse]:
    """Remove the registration of a broker that has stopped for good (UnregisterBroker, KIP-631), and the configuration that was
    set for it. A process of the broker that starts later registers it again.

    The response has the error BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST while the broker is alive or hosts replicas. Kafka
    accepts both, although a live broker registers again at once, and replicas are left without a broker that could host them."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        text = f"broker {request.broker_id} is not registered"
        return Decision(UnregisterBrokerResponse(ErrorCode.BROKER_ID_NOT_REGISTERED, text))
    problem = _is_needed(image, index, sessions, broker, now)
    if problem is not None:
        return Decision(UnregisterBrokerResponse(ErrorCode.INVALID_REQUEST, f"broker {broker.broker_id} {problem}"))
    records: list[AnyRecord] = [UnregisterBrokerRecord(broker.broker_id, broker.broker_epoch)]
    return Decision(UnregisterBrokerResponse(0), records + removal_of_broker_configs(image, broker.broker_id))


def _is_needed(
    image: MetadataImage, index: PartitionIndex, sessions: BrokerSessions, broker: BrokerRegistration, now: float
) -> str | None:
    """Why the broker cannot be unregistered, as the end of a sentence; None if it can."""
    if not broker.fenced or sessions.is_live(broker.broker_id, broker.broker_epoch, now):
        return "is alive: stop it first, and retry when its session has ended"
    if not index.hosted_by(broker.broker_id):
        return None
    hosted: dict[str, int] = {}
    for topic in image.topics_by_id.values():
        count = sum(broker.broker_id in partition.replicas for partition in topic.partitions.values())
        if count:
            hosted[topic.name] = count
    named = [f"{name} ({count})" for name, count in sorted(hosted.items())]
    more = f" and {len(named) - TOPICS_NAMED_MAX} more topics" if len(named) > TOPICS_NAMED_MAX else ""
    of_topics = ", ".join(named[:TOPICS_NAMED_MAX]) + more
    return f"hosts {sum(hosted.values())} replicas, of {of_topics}: delete the topics or move the replicas first"


# -- heartbeats -------------------------------------------------------------------------------------------------------


def heartbeat(
    image: MetadataImage,
    index: PartitionIndex,
    sessions: BrokerSessions,
    request: BrokerHeartbeatRequest,
    *,
    committed_offset: int,
    now: float,
) -> Decision[BrokerHeartbeatResponse]:
    """Renew the broker's session, and change the broker's state if its heartbeat asks for that (KIP-631; the states are at the
    top).

    `committed_offset`: a broker may stop only after the records that move its leaders away are committed and applied. Raises
    BrokerError STALE_BROKER_EPOCH for a process that is not the registered one."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    broker = image.brokers[request.broker_id]
    session = sessions.touch(broker.broker_id, broker.broker_epoch, now)
    session.metadata_offset = max(session.metadata_offset, request.current_metadata_offset)
    current = current_state(broker)
    is_lossy = _named(request.lossy_partitions) if image.feature_level else None
    next_ = _next_state(broker, session, request, leads=index.led_by(broker.broker_id), committed_offset=committed_offset)
    failed = _newly_failed(broker, request)
    if failed and next_ is BrokerControlState.UNFENCED:
        # The broker must not lead in the failed directories: a later heartbeat unfences it, once its registration lacks them.
        next_ = current
    reply = BrokerHeartbeatResponse(
        0,
        is_caught_up=request.current_metadata_offset >= broker.broker_epoch,
        is_fenced=next_ in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=next_ is BrokerControlState.SHUTDOWN_NOW,
    )
    decision = Decision(reply)
    if next_ is BrokerControlState.UNFENCED and is_lossy is not None:
        next_, reply.is_fenced = current, current is BrokerControlState.FENCED  # The loss is recorded before the broker may lead.
    if next_ is not current:
        decision.records, decision.may_split = transition(image, index, broker, next_, is_lossy), True
        decision.cause = _CAUSES[next_]
    elif is_lossy is not None:
        decision.records, decision.cause = strike(image, index, broker.broker_id, is_lossy), "records_lost"
    if failed:
        moves = next_ is current and not broker.fenced  # in all other cases it leaves all ISRs, or has left them
        decision.records += _fail_dirs(image, index, broker, failed, is_lossy, with_moves=moves)
        decision.may_split, decision.cause = True, decision.cause or "log_dir_failed"
    decision.records += _cordon(image, broker, request)
    if next_ is BrokerControlState.SHUTDOWN_NOW:
        # The broker stops now: a new process of it need not wait for the session to end.
        sessions.remove(broker.broker_id)
    elif next_ is BrokerControlState.CONTROLLED_SHUTDOWN and session.shutdown_offset < 0:
        _remember_shutdown_offset(decision, session, image.offset)
    return decision


def _newly_failed(broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> tuple[bytes, ...]:
    """The log directories of the registration that have failed. Empty if all have failed: that fences the broker, and the
    registration keeps them."""
    failed = tuple(each for each in broker.log_dirs if each in request.offline_log_dirs)
    return () if failed == broker.log_dirs else failed


def _cordon(image: MetadataImage, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> list[AnyRecord]:
    """The change of the cordoned log directories, if the heartbeat names others than the registration."""
    named = request.cordoned_log_dirs
    if not image.feature_level or named is None or tuple(named) == broker.cordoned_log_dirs:
        return []
    return [BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, cordoned_log_dirs=tuple(named))]


def _fail_dirs(
    image: MetadataImage,
    index: PartitionIndex,
    broker: BrokerRegistration,
    failed: tuple[bytes, ...],
    is_lossy: IsLossy | None,
    *,
    with_moves: bool,
) -> list[AnyRecord]:
    """The records of a failure of log directories: first the partitions change, then the directories leave the registration
    (KAFKA-18106). If this last record is lost in a fail-over, the next heartbeat requests the change again."""
    online = tuple(each for each in broker.log_dirs if each not in failed)
    moves = leave_directories(image, index, broker.broker_id, failed, is_lossy) if with_moves else []
    return [*moves, BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, log_dirs=online)]


def _remember_shutdown_offset(decision: Decision[BrokerHeartbeatResponse], session: BrokerSession, last_offset: int) -> None:
    """Store the offset of the records that move the leaders: they are in this decision or, if an earlier controller wrote them
    before a fail-over, at or below `last_offset`."""

    def remember(offset: int) -> None:
        session.shutdown_offset = offset

    if decision.records:
        decision.on_appended = remember
    else:
        remember(last_offset)


def current_state(broker: BrokerRegistration) -> BrokerControlState:
    """The state in the broker's registration; never SHUTDOWN_NOW, which is only a next state."""
    if broker.fenced:
        return BrokerControlState.FENCED
    return BrokerControlState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerControlState.UNFENCED


def _next_state(
    broker: BrokerRegistration, session: BrokerSession, request: BrokerHeartbeatRequest, *, leads: int, committed_offset: int
) -> BrokerControlState:
    current = current_state(broker)
    disks_failed = bool(broker.log_dirs) and set(broker.log_dirs) <= set(request.offline_log_dirs)
    if current is BrokerControlState.FENCED:
        return _next_of_fenced(broker, request, disks_failed)
    if request.want_fence or disks_failed:
        return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
    if current is BrokerControlState.UNFENCED:
        if not request.want_shut_down:
            return BrokerControlState.UNFENCED
        return BrokerControlState.CONTROLLED_SHUTDOWN if leads else BrokerControlState.SHUTDOWN_NOW
    moved = not leads and 0 <= session.shutdown_offset <= min(committed_offset, session.metadata_offset)
    return BrokerControlState.SHUTDOWN_NOW if moved else BrokerControlState.CONTROLLED_SHUTDOWN


def _next_of_fenced(broker: BrokerRegistration, request: BrokerHeartbeatRequest, disks_failed: bool) -> BrokerControlState:
    if request.want_shut_down:
        return BrokerControlState.SHUTDOWN_NOW
    caught_up = request.current_metadata_offset >= broker.broker_epoch
    if request.want_fence or disks_failed or not caught_up:
        return BrokerControlState.FENCED
    return BrokerControlState.UNFENCED


def transition(
    image: MetadataImage,
    index: PartitionIndex,
    broker: BrokerRegistration,
    next_: BrokerControlState,
    is_lossy: IsLossy | None = None,
) -> list[AnyRecord]:
    """The records of the transition, in an order that is safe if a fail-over keeps only the first of them.

    Records that move leaders away come before the change of the broker's state, because the next heartbeat (or its absence)
    requests that change again. Elections come after it, because a new active controller completes them.
    """
    broker_id, broker_epoch = broker.broker_id, broker.broker_epoch
    if next_ is BrokerControlState.UNFENCED:
        unfence = BrokerRegistrationChangeRecord(broker_id, broker_epoch, fenced=UNFENCE)
        return [unfence, *elect_leaderless(image, index, broker_id), *drop_needless_elrs(image, index.with_elr())]
    if next_ is BrokerControlState.CONTROLLED_SHUTDOWN:
        begin = BrokerRegistrationChangeRecord(broker_id, broker_epoch, in_controlled_shutdown=1)
        return [*remove_from_isrs(image, index, broker_id, is_lossy), begin]
    return fence_broker(image, index, broker, is_lossy)


# -- fencing ----------------------------------------------------------------------------------------------------------


def fence_broker(
    image: MetadataImage, index: PartitionIndex, broker: BrokerRegistration, is_lossy: IsLossy | None = None
) -> list[AnyRecord]:
    """The records that fence a broker; none if it is fenced already. The partitions change before the broker is fenced, so at no
    point of the batch does a fenced broker lead."""
    if broker.fenced:
        return []
    moves = remove_from_isrs(image, index, broker.broker_id, is_lossy)
    return [*moves, BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, fenced=FENCE)]


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """The brokers that may get new replicas: all that are neither shutting down nor drained, and have a log directory that is not
    cordoned."""
    return [
        UsableBroker(b.broker_id, b.rack, b.fenced)
        for b in image.brokers.values()
        if not b.in_controlled_shutdown and not is_draining(image, b.broker_id) and not b.is_cordoned
    ]
