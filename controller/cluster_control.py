"""Which brokers there are and how they are: registration, heartbeats, fencing, controlled shutdown.

A broker's states, and the heartbeat that leads on (want_fence, want_shut_down; "caught up": it has applied its own
registration record; "moved": it leads nothing, and it has applied the records that moved its leaders away):

    fenced     --- caught up, wants neither --------------------------> unfenced
    unfenced   --- wants to shut down, leads something ---------------> shutting down (its leaders move, it leaves ISRs)
    unfenced   --- wants to shut down, leads nothing -----------------> fenced, may stop now
    shutting down --- moved ------------------------------------------> fenced, may stop now
    any        --- wants to be fenced, all disks failed, silence -----> fenced
    fenced     --- wants to shut down --------------------------------> fenced, may stop now

Only an unfenced broker that is not shutting down may join an ISR or lead. A registration by a new process starts
fenced, with a new broker epoch (the offset of its record), and first takes the old process out of all ISRs.
"""

from __future__ import annotations

from enum import Enum

from strandline.controller.broker_sessions import BrokerSession, BrokerSessions
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import BrokerRegistration, MetadataImage
from strandline.controller.metadata.records import AnyRecord, BrokerRegistrationChangeRecord, RegisterBrokerRecord
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.replica_placer import UsableBroker
from strandline.controller.replication_control import check_broker_epoch, elect_leaderless, remove_from_isrs
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from strandline.protocol.messages.common import ZERO_UUID

FENCE, UNFENCE = 1, -1


class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


_CAUSES = {
    BrokerControlState.FENCED: "broker_fenced",
    BrokerControlState.UNFENCED: "broker_unfenced",
    BrokerControlState.CONTROLLED_SHUTDOWN: "controlled_shutdown",
    BrokerControlState.SHUTDOWN_NOW: "controlled_shutdown",
}
"""Of a broker's next state: why partitions change by it."""


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
    """`next_offset`: where the first record of this decision will be written."""
    _check_registration(image, sessions, request, cluster_id, now)
    existing = image.brokers.get(request.broker_id)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        return _register_again(existing, sessions, request, now)
    records = remove_from_isrs(image, index, request.broker_id)
    broker_epoch = next_offset + len(records)
    records.append(_registration_record(request, broker_epoch, fenced=True, in_controlled_shutdown=False))
    sessions.touch(request.broker_id, broker_epoch, now)
    return Decision(BrokerRegistrationResponse(0, broker_epoch), records, may_split=True, cause="broker_registered")


def _check_registration(
    image: MetadataImage, sessions: BrokerSessions, request: BrokerRegistrationRequest, cluster_id: str, now: float
) -> None:
    if request.cluster_id != cluster_id:
        raise BrokerError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {request.broker_id} belongs to cluster {request.cluster_id!r}, this is cluster {cluster_id!r}",
        )
    if request.broker_id < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{request.broker_id} is not a broker id")
    if request.incarnation_id == ZERO_UUID:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration needs an incarnation id")
    if not request.listeners or any(not listener.host or not listener.port for listener in request.listeners):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration needs at least one listener with host and port")
    if len({listener.name for listener in request.listeners}) != len(request.listeners):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a registration names a listener twice")
    existing = image.brokers.get(request.broker_id)
    if existing is None or existing.incarnation_id == request.incarnation_id:
        return
    if sessions.is_live(existing.broker_id, existing.broker_epoch, now):
        raise BrokerError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is registered as broker {request.broker_id} and its session lives; "
            "after a restart this passes by itself once the session is over",
        )


def _register_again(
    existing: BrokerRegistration, sessions: BrokerSessions, request: BrokerRegistrationRequest, now: float
) -> Decision[BrokerRegistrationResponse]:
    """The same process once more (its first answer was lost, or its address changed): epoch and state stay."""
    sessions.touch(existing.broker_id, existing.broker_epoch, now)
    record = _registration_record(
        request, existing.broker_epoch, fenced=existing.fenced, in_controlled_shutdown=existing.in_controlled_shutdown
    )
    unchanged = (existing.listeners, existing.rack, existing.log_dirs) == (record.listeners, record.rack, record.log_dirs)
    return Decision(BrokerRegistrationResponse(0, existing.broker_epoch), [] if unchanged else [record])


def _registration_record(
    request: BrokerRegistrationRequest, broker_epoch: int, *, fenced: bool, in_controlled_shutdown: bool
) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        request.broker_id,
        broker_epoch,
        request.incarnation_id,
        tuple(request.listeners),
        request.rack,
        fenced,
        in_controlled_shutdown,
        tuple(request.log_dirs),
    )


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
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    broker = image.brokers[request.broker_id]
    session = sessions.touch(broker.broker_id, broker.broker_epoch, now)
    session.metadata_offset = max(session.metadata_offset, request.current_metadata_offset)
    current = current_state(broker)
    next_ = _next_state(broker, session, request, leads=index.led_by(broker.broker_id), committed_offset=committed_offset)
    reply = BrokerHeartbeatResponse(
        0,
        is_caught_up=request.current_metadata_offset >= broker.broker_epoch,
        is_fenced=next_ in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=next_ is BrokerControlState.SHUTDOWN_NOW,
    )
    decision = Decision(reply)
    if next_ is not current:
        decision.records, decision.may_split = _transition(image, index, broker, next_), True
        decision.cause = _CAUSES[next_]
    if next_ is BrokerControlState.SHUTDOWN_NOW:
        # It says that it stops: its successor need not wait for the session to run out.
        sessions.remove(broker.broker_id)
    elif next_ is BrokerControlState.CONTROLLED_SHUTDOWN and session.shutdown_offset < 0:
        _remember_shutdown_offset(decision, session, image.offset)
    return decision


def _remember_shutdown_offset(decision: Decision[BrokerHeartbeatResponse], session: BrokerSession, last_offset: int) -> None:
    """The moves are in this decision's batch; or, after a fail-over, in what an earlier controller wrote."""

    def remember(offset: int) -> None:
        session.shutdown_offset = offset

    if decision.records:
        decision.on_appended = remember
    else:
        remember(last_offset)


def current_state(broker: BrokerRegistration) -> BrokerControlState:
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


def _transition(
    image: MetadataImage, index: PartitionIndex, broker: BrokerRegistration, next_: BrokerControlState
) -> list[AnyRecord]:
    """In an order of which a first part does no harm, and leads to the rest of it.

    What moves leaders away comes before the change of the broker's state, which the next heartbeat (or its absence) asks
    for again. Elections come after it: a new active controller completes them.
    """
    broker_id, broker_epoch = broker.broker_id, broker.broker_epoch
    if next_ is BrokerControlState.UNFENCED:
        unfence = BrokerRegistrationChangeRecord(broker_id, broker_epoch, fenced=UNFENCE)
        return [unfence, *elect_leaderless(image, index, broker_id)]
    if next_ is BrokerControlState.CONTROLLED_SHUTDOWN:
        begin = BrokerRegistrationChangeRecord(broker_id, broker_epoch, in_controlled_shutdown=1)
        return [*remove_from_isrs(image, index, broker_id), begin]
    return fence_broker(image, index, broker)


# -- fencing ----------------------------------------------------------------------------------------------------------


def fence_broker(image: MetadataImage, index: PartitionIndex, broker: BrokerRegistration) -> list[AnyRecord]:
    """Partitions first, then the fence: after no record of the batch is a fenced broker a leader."""
    if broker.fenced:
        return []
    moves = remove_from_isrs(image, index, broker.broker_id)
    return [*moves, BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, fenced=FENCE)]


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """Brokers that may get replicas: all but those that are shutting down."""
    return [UsableBroker(b.broker_id, b.rack, b.fenced) for b in image.brokers.values() if not b.in_controlled_shutdown]
