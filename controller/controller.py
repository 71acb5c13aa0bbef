"""The active controller is the only writer: it decides on its newest image, writes, applies, and answers when committed.

    request -> decide(image) -> records, reply -> quorum.append -> apply to the own image at once
                                                                -> reply once the records are committed

The next decision sees the effect of the one before without waiting for its commit; only answers wait. A decision
without records is a reading of an image that may hold uncommitted changes, so its answer waits for those too. A
controller that stops being active refuses what waits with NOT_CONTROLLER (its records may still be committed by the
next one; the asker finds out) and goes back to the committed image. Standby controllers replay committed records only.

There is no `await` in here: a decision and its append are one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from strandline.controller.broker_sessions import BrokerSessions
from strandline.controller.change_lines import tell_changes
from strandline.controller.cluster_control import fence_broker
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, decode_record, encode_record
from strandline.controller.metrics import ControllerMetrics
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.replication_control import elect_leaderless
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId

logger = get_logger(__name__)

R = TypeVar("R")

BATCH_BYTES = 1024 * 1024
"""Of a decision that may be split, so much goes into one batch: far less than the quorum takes (`batch_bytes_max`)."""


class QuorumWriter(Protocol):
    """What the controller needs of the quorum (`controller/raft`)."""

    @property
    def log_end_offset(self) -> int: ...

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        """One atomic batch; its last offset. NOT_CONTROLLER when this node does not lead in `epoch`."""
        ...


class ActiveState:
    """What only an active controller has, beside the image: gone when it resigns."""

    def __init__(self, epoch: int, image: MetadataImage, session_timeout_s: float) -> None:
        self.epoch = epoch
        self.index = PartitionIndex(image)
        """Fits `Controller.image` at any time."""
        self.sessions = BrokerSessions(session_timeout_s)


class _Waiting(NamedTuple):
    offset: int
    """The reply may leave when this is committed."""
    on_reply: Callable[[Any], None]
    reply: Any


class Controller:
    """`image`, `active` and `next_offset` are for decisions, which change nothing; see `submit`."""

    def __init__(self, *, node_id: int, session_timeout_ms: int, now: Callable[[], float]) -> None:
        self.node_id = node_id
        self.now = now
        self.quorum: QuorumWriter | None = None
        """Set once, before the quorum starts; the two need each other."""
        self.image = MetadataImage.EMPTY
        """The newest image; while active it may be ahead of `committed`."""
        self.committed = MetadataImage.EMPTY
        self.committed_offset = -1
        """>= committed.offset; also counts records that are not ours (the quorum's own)."""
        self.active: ActiveState | None = None
        self.leader_id: int | None = None
        self.metrics = ControllerMetrics()
        self.on_active: Callable[[], None] | None = None
        """For the shell: timers may start, or must stop."""
        self.on_inactive: Callable[[], None] | None = None
        self._session_timeout_s = session_timeout_ms / 1000
        self._uncommitted: deque[MetadataImage] = deque()
        """Images of own appends that are not committed yet, in order."""
        self._waiting: deque[_Waiting] = deque()
        """By offset, never decreasing."""

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Where the first record of the next decision will be."""
        assert self.quorum is not None
        return self.quorum.log_end_offset

    def submit(self, decide: Callable[[ActiveState], Decision[R]], on_reply: Callable[[R | BrokerError], None]) -> None:
        """Decide now; `on_reply` is called once, later or at once, with the reply or the error."""
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
        if self.active is None:
            raise self.not_controller()
        return self.active

    def not_controller(self) -> BrokerError:
        leader = "no other is known" if self.leader_id in (None, -1, self.node_id) else f"node {self.leader_id} is"
        return BrokerError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} is not the active controller; {leader}")

    def _write(self, active: ActiveState, decision: Decision[Any]) -> int:
        encoded = [encode_record(record) for record in decision.records]
        start = last_offset = 0
        for end in _ends_of_batches(encoded) if decision.may_split else (len(encoded),):
            last_offset = self._write_batch(active, decision.records[start:end], encoded[start:end], decision.cause)
            start = end
        if decision.on_appended is not None:
            decision.on_appended(last_offset)
        return last_offset

    def _write_batch(self, active: ActiveState, records: Sequence[AnyRecord], encoded: Sequence[bytes], cause: str) -> int:
        assert self.quorum is not None
        last_offset = self.next_offset + len(records) - 1
        # Applied first, installed last: a record that contradicts the image must never reach the log.
        delta = self.image.apply(records, last_offset, active.epoch)
        appended = self.quorum.append(encoded, active.epoch)
        if appended != last_offset:
            # Broker epochs in the batch are wrong. Write nothing more; what is committed comes back as to any standby.
            self.on_resign(active.epoch)
            raise InternalError(f"a batch was expected to end at metadata offset {last_offset}, it ends at {appended}")
        self.image = delta.image
        active.index.apply(delta)
        self.metrics.on_delta(delta)
        tell_changes(delta, cause)
        if last_offset > self.committed_offset:
            self._uncommitted.append(delta.image)
        else:
            self.committed = delta.image
        return last_offset

    # -- brokers that fall silent ---------------------------------------------------------------------------------------

    def fence(self, broker_id: int, broker_epoch: int, reason: str) -> None:
        """End the session of this incarnation and take it out of all ISRs; nothing if a newer one registered."""
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
                logger.error("broker.not_fenced", broker_id=broker_id, broker_epoch=broker_epoch, reason=str(reply))

        def fencing(_: ActiveState) -> Decision[None]:
            return Decision(None, fence_broker(self.image, active.index, broker), may_split=True, cause="broker_fenced")

        self.submit(fencing, on_reply)

    def fence_expired(self) -> None:
        """Fence every broker whose session is over."""
        if self.active is not None:
            for session in self.active.sessions.expired(self.now()):
                self.metrics.expired_sessions += 1
                self.fence(session.broker_id, session.broker_epoch, "its session timed out")

    # -- what the quorum tells (QuorumListener) -------------------------------------------------------------------------

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.committed_offset = max(self.committed_offset, last_offset)
        if self.active is None:
            decoded = [decode_record(record) for record in records]
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
        if self.active is not None:
            raise InternalError("an active controller was told to load a snapshot")
        decoded = (decode_record(record) for record in records)
        offset = snapshot_id.end_offset - 1
        self.committed = self.image = MetadataImage.from_records(decoded, offset, snapshot_id.epoch)
        self.committed_offset = offset

    def snapshot_records(self) -> Iterable[bytes]:
        """The committed image; safe to iterate over later, images do not change."""
        return map(encode_record, self.committed.to_records())

    def on_leader(self, epoch: int) -> None:
        """Called when everything before this epoch is committed and was delivered."""
        self.leader_id = self.node_id
        self.active = ActiveState(epoch, self.image, self._session_timeout_s)
        # A connection that broke while another was active has told nothing of its broker.
        self.metrics.silent_since.clear()
        # Nobody knows since when they are silent: each gets a whole session. The fenced ones wait for their heartbeat.
        unfenced = [(b.broker_id, b.broker_epoch) for b in self.image.brokers.values() if not b.fenced]
        self.active.sessions.restart(unfenced, self.now())
        logger.info("controller.active", node_id=self.node_id, controller_epoch=epoch, metadata_offset=self.image.offset)
        self._complete_elections(self.active)
        if self.on_active is not None:
            self.on_active()

    def _complete_elections(self, active: ActiveState) -> None:
        """Of what an unfenced broker may lead, the last controller may have written a part only, in its last moment."""

        def on_reply(reply: BrokerError | None) -> None:
            if reply is not None:
                logger.warning("controller.elections_not_completed", reason=str(reply))

        def completion(_: ActiveState) -> Decision[None]:
            return Decision(None, elect_leaderless(self.image, active.index), may_split=True, cause="election_completed")

        self.submit(completion, on_reply)

    def on_resign(self, epoch: int) -> None:
        if self.active is None:
            return
        self.active = None
        self.leader_id = None
        self.image = self.committed
        self._uncommitted.clear()
        refused, self._waiting = self._waiting, deque()
        logger.info("controller.resigned", node_id=self.node_id, controller_epoch=epoch, refused=len(refused))
        if self.on_inactive is not None:
            self.on_inactive()
        error = self.not_controller()
        for waiting in refused:
            waiting.on_reply(error)

    def on_leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.metrics.new_active_controllers += leader_id is not None and leader_id >= 0


def _ends_of_batches(encoded: Sequence[bytes]) -> Iterator[int]:
    """Where to cut so that no batch has many more than `BATCH_BYTES`."""
    size = 0
    for index, record in enumerate(encoded):
        if size >= BATCH_BYTES:
            yield index
            size = 0
        size += len(record)
    yield len(encoded)
