"""The active controller is the only writer: it decides on its newest image, appends, applies, and replies after the commit.

    request -> decide(image) -> records, reply -> quorum.append -> apply to its own image at once
                                                                -> reply once the records are committed

The next decision sees the effect of the one before without waiting for its commit; only the replies wait. A decision without
records reads an image that may hold uncommitted changes, so its reply waits for their commit as well. A controller that stops
being active rejects the waiting requests with NOT_CONTROLLER and goes back to the committed image. (The next controller may
still commit their records; the client finds out when it retries.) Standby controllers replay only committed records.

This module has no `await`: a decision and its append are one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from strandline.controller.broker_sessions import BrokerSessions
from strandline.controller.change_log_lines import log_changes
from strandline.controller.cluster_control import fence_broker
from strandline.controller.decision import Decision, MaybeCause
from strandline.controller.metadata.features import SUPPORTED, Levels, decode_records
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.records import AnyRecord, FeatureLevelRecord, encode_record
from strandline.controller.metrics import ControllerMetrics
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.raft.listener import QuorumWriter
from strandline.controller.replication_control import elect_leaderless
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId

logger = get_logger(__name__)

R = TypeVar("R")

BATCH_BYTES = 1024 * 1024
"""The size of a batch of a decision that may be split; far below the quorum's limit (`batch_bytes_max`)."""


class ActivityTimer(Protocol):
    """A part of the shell whose timer runs while this controller is active."""

    def on_active(self) -> None:
        """This controller has become active."""

    def on_inactive(self) -> None:
        """This controller is no longer active, or its process stops."""


class ActiveState:
    """State that only an active controller has, beside the image. It is dropped when the controller resigns."""

    def __init__(self, epoch: int, writer: QuorumWriter, image: MetadataImage, session_timeout_s: float) -> None:
        self.epoch = epoch
        self.writer = writer
        self.index = PartitionIndex(image)
        """The index of `Controller.image`, always up to date."""
        self.sessions = BrokerSessions(session_timeout_s)

    @property
    def next_offset(self) -> int:
        """The offset of the first record of the next decision."""
        return self.writer.log_end_offset


class _Waiting(NamedTuple):
    offset: int
    """The reply may be sent when this offset is committed."""
    on_reply: Callable[[Any], None]
    reply: Any


class Controller:
    """Decides by `submit`. Decisions read `image` and `active`; of these they change only the brokers' sessions."""

    def __init__(self, *, node_id: int, session_timeout_ms: int, now: Callable[[], float], levels: Levels = SUPPORTED) -> None:
        """`levels`: the levels of the metadata that this controller supports."""
        self.node_id = node_id
        self.now = now
        self.levels = levels
        self.image = MetadataImage.EMPTY
        """The newest image. On the active controller it may be ahead of `committed`."""
        self.committed = MetadataImage.EMPTY
        self.committed_offset = -1
        """The last committed offset; >= `committed.offset`, because it also counts the quorum's own records."""
        self.active: ActiveState | None = None
        self.leader_id: int | None = None
        self.metrics = ControllerMetrics()
        self.timers: list[ActivityTimer] = []
        """Started, in this order, when this controller has become active, and stopped when it has resigned."""
        self.on_configs_changed: list[Callable[[], None]] = []
        """Called when this controller, while it is active, has changed a configuration in its image."""
        self.on_delta: Callable[[MetadataDelta], None] = lambda delta: None
        """Called with each batch that this controller has written, after it was applied."""
        self._session_timeout_s = session_timeout_ms / 1000
        self._uncommitted: deque[MetadataImage] = deque()
        """The images after each own append that is not committed yet, in order."""
        self._waiting: deque[_Waiting] = deque()
        """The replies that wait for a commit, in order of their offsets."""

    # -- writing ------------------------------------------------------------------------------------------------------

    def submit(self, decide: Callable[[ActiveState], Decision[R]], on_reply: Callable[[R | BrokerError], None]) -> None:
        """Decide now. `on_reply` is called exactly once, at once or later, with the reply or the error."""
        try:
            active = self.require_active()
            decision = decide(active)
            offset = self._write(active, decision) if decision.records else self.image.offset
        except BrokerError as e:
            on_reply(e)
            return
        if offset <= self.committed_offset:
            on_reply(decision.reply)
        else:
            self._waiting.append(_Waiting(offset, on_reply, decision.reply))

    def require_active(self) -> ActiveState:
        """The state of the active controller. Raises BrokerError NOT_CONTROLLER, with the active node if it is known."""
        if self.active is None:
            raise self.not_controller()
        return self.active

    def not_controller(self) -> BrokerError:
        """The error for requests that only the active controller may answer."""
        leader = "the active one is unknown" if self.leader_id in (None, -1, self.node_id) else f"node {self.leader_id} is"
        return BrokerError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} is not the active controller; {leader}")

    def _write(self, active: ActiveState, decision: Decision[Any]) -> int:
        encoded = _encode(decision.records, self.image.feature_level)
        start = last_offset = 0
        for end in _ends_of_batches(encoded) if decision.may_split else (len(encoded),):
            last_offset = self._write_batch(active, decision.records[start:end], encoded[start:end], decision.cause)
            start = end
        if decision.on_appended is not None:
            decision.on_appended(last_offset)
        return last_offset

    def _write_batch(self, active: ActiveState, records: Sequence[AnyRecord], encoded: Sequence[bytes], cause: MaybeCause) -> int:
        last_offset = active.next_offset + len(records) - 1
        # Applied before the append: a record that contradicts the image must never reach the log.
        delta = self.image.apply(records, last_offset, active.epoch)
        appended = active.writer.append(encoded, active.epoch)
        if appended != last_offset:
            # The broker epochs in the batch are wrong. Write no more; replay committed records like a standby controller.
            self.on_resign(active.epoch)
            raise InternalError(f"a batch was expected to end at metadata offset {last_offset}, but ends at {appended}")
        self.image = delta.image
        active.index.apply(delta)
        self.metrics.on_delta(delta, cause)
        log_changes(delta, cause)
        if last_offset > self.committed_offset:
            self._uncommitted.append(delta.image)
        else:
            self.committed = delta.image
        if delta.changed_configs:
            for notify in self.on_configs_changed:
                notify()
        self.on_delta(delta)
        return last_offset

    # -- brokers that fall silent ---------------------------------------------------------------------------------------

    def fence(self, broker_id: int, broker_epoch: int, reason: str) -> None:
        """End the session of this incarnation, and remove the broker from all ISRs. No effect if a newer one is registered."""
        active = self.active
        broker = self.image.brokers.get(broker_id)
        if active is None or broker is None or broker.broker_epoch != broker_epoch:
            return
        last_heard = active.sessions.last_heard(broker_id, broker_epoch)
        active.sessions.remove(broker_id)
        if broker.fenced:
            return
        now = self.now()
        connection_lost = self.metrics.silent_since.pop(broker_id, None)
        silent_since = now if connection_lost is None else connection_lost
        heard_until = last_heard if connection_lost is None else connection_lost
        silent_ms = None if heard_until is None else round((now - heard_until) * 1000)
        self.metrics.fenced_brokers += 1
        logger.warning("broker.fencing", broker_id=broker_id, broker_epoch=broker_epoch, reason=reason, silent_ms=silent_ms)

        def on_reply(reply: BrokerError | None) -> None:
            if reply is None:
                self.metrics.failover.observe(self.now() - silent_since)
            else:
                logger.error("broker.fencing_failed", broker_id=broker_id, broker_epoch=broker_epoch, reason=str(reply))

        def fencing(_: ActiveState) -> Decision[None]:
            return Decision(None, fence_broker(self.image, active.index, broker), may_split=True, cause="broker_fenced")

        self.submit(fencing, on_reply)

    def fence_expired(self) -> None:
        """Fence every broker whose session has timed out."""
        if self.active is not None:
            for session in self.active.sessions.expired(self.now()):
                self.metrics.expired_sessions += 1
                self.fence(session.broker_id, session.broker_epoch, "its session timed out")

    # -- notifications of the quorum (QuorumListener) -------------------------------------------------------------------

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """Apply a committed batch. A standby controller applies it to its image; the active one has applied it when it was
        written, and now sends the replies that waited for it."""
        self.committed_offset = max(self.committed_offset, last_offset)
        if self.active is None:
            decoded = decode_records(records, self.levels)
            self.committed = self.image = self.committed.apply(decoded, last_offset, epoch).image
            return
        while self._uncommitted and self._uncommitted[0].offset <= last_offset:
            self.committed = self._uncommitted.popleft()
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].offset <= self.committed_offset:
            done = waiting.popleft()
            done.on_reply(done.reply)

    def on_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> None:
        """Replace the whole state of this standby controller by the snapshot. Raises InternalError if the controller is
        active."""
        if self.active is not None:
            raise InternalError("the quorum asked an active controller to load a snapshot")
        decoded = decode_records(records, self.levels)
        offset = snapshot_id.end_offset - 1
        self.committed = self.image = MetadataImage.from_records(decoded, offset, snapshot_id.epoch)
        self.committed_offset = offset

    def snapshot_records(self) -> Iterable[bytes]:
        """The records of the committed image. They may be read later, because images do not change."""
        level = self.committed.feature_level
        return (encode_record(record, level) for record in self.committed.to_records())

    def on_leader(self, epoch: int, writer: QuorumWriter) -> None:
        """Become active. Every record that was committed before this epoch has been handed over."""
        self.leader_id = self.node_id
        self.active = ActiveState(epoch, writer, self.image, self._session_timeout_s)
        # Connections that broke while another controller was active do not count.
        self.metrics.silent_since.clear()
        # It is unknown since when a broker has been silent: each unfenced one gets a whole session. A fenced one stays fenced
        # until its next heartbeat.
        unfenced = [(b.broker_id, b.broker_epoch) for b in self.image.brokers.values() if not b.fenced]
        self.active.sessions.restart(unfenced, self.now())
        logger.info("controller.activated", node_id=self.node_id, controller_epoch=epoch, metadata_offset=self.image.offset)
        self._set_first_level()
        self._complete_elections(self.active)
        for timer in self.timers:
            timer.on_active()

    def _set_first_level(self) -> None:
        """A new cluster begins at the highest level that its first active controller supports. Metadata without a level is that
        of an older version, and stays at level 0 until it is upgraded."""
        level = self.levels.highest
        if not (self.image.is_blank and level):
            return

        def on_reply(reply: BrokerError | None) -> None:
            if reply is not None:
                logger.warning("controller.first_level_failed", reason=str(reply))

        self.submit(lambda _: Decision(None, [FeatureLevelRecord(METADATA_VERSION, level)]), on_reply)

    def _complete_elections(self, active: ActiveState) -> None:
        """Elect leaders for the partitions without one: the last controller may have written only a part of a split decision."""

        def on_reply(reply: BrokerError | None) -> None:
            if reply is not None:
                logger.warning("controller.elections_failed", reason=str(reply))

        def completion(_: ActiveState) -> Decision[None]:
            return Decision(None, elect_leaderless(self.image, active.index), may_split=True, cause="election_completed")

        self.submit(completion, on_reply)

    def on_resign(self, epoch: int) -> None:
        """Become a standby controller: return to the committed image, and answer every waiting request with NOT_CONTROLLER. Their
        records may still become committed."""
        if self.active is None:
            return
        self.active = None
        self.leader_id = None
        self.image = self.committed
        self._uncommitted.clear()
        refused, self._waiting = self._waiting, deque()
        logger.info("controller.resigned", node_id=self.node_id, controller_epoch=epoch, refused=len(refused))
        for timer in self.timers:
            timer.on_inactive()
        error = self.not_controller()
        for waiting in refused:
            waiting.on_reply(error)

    def on_leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.metrics.new_active_controllers += leader_id is not None and leader_id >= 0


def _encode(records: Sequence[AnyRecord], level: int) -> list[bytes]:
    """The records in the format of this level, and those after a FeatureLevelRecord in the format of its level."""
    encoded = []
    for record in records:
        if isinstance(record, FeatureLevelRecord):
            level = record.feature_level
        encoded.append(encode_record(record, level))
    return encoded


def _ends_of_batches(encoded: Sequence[bytes]) -> Iterator[int]:
    """Split the records into batches of about `BATCH_BYTES` at most; yields the end of each batch, as an exclusive index."""
    size = 0
    for index, record in enumerate(encoded):
        if size >= BATCH_BYTES:
            yield index
            size = 0
        size += len(record)
    yield len(encoded)
