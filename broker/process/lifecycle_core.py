"""The state of a broker's membership in the cluster: unregistered, fenced, running, or in controlled shutdown.

    UNREGISTERED -> FENCED -> RUNNING -> SHUTTING_DOWN -> stopped
          ^------------+---------+           (want_shut_down in each heartbeat until the controller grants it)

Each process generates an incarnation id and registers with it. The controller gives it a broker epoch, and refuses a second live
process with the same broker id. A fenced broker leads nothing; the controller unfences it at the first heartbeat that shows that
the broker has applied its own registration. If the registration is lost, the broker registers again, with the same incarnation
id (KIP-631).

A broker that leads with a damaged log steps down: it asks to be fenced, so that other replicas lead, and to be unfenced again at
once. Its damaged replicas are then followers outside of the ISR, and are repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from strandline.controller.metadata.features import SUPPORTED, Levels
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, UsageError, to_code
from strandline.protocol.messages.cluster import (
    LOSS_MAYBE,
    LOSS_NO,
    LOSS_YES,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    LossyPartitions,
)
from strandline.protocol.messages.common import Listener
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.log_dir import RecordLoss

RETRY_MS = 50
"""The pause between attempts to register, and between heartbeats of a broker that waits to be unfenced."""
SHUTDOWN_RETRY_MS = 10
"""The pause between heartbeats of a broker that waits for its controlled shutdown to be granted."""

DUPLICATE_SESSIONS = 3
"""How many session timeouts a broker waits while another process is registered with its id, usually its own dead predecessor. One
may not be enough if all nodes start at once: a controller that is paused or replaced grants that one a whole session again."""


class State(Enum):
    """The states of a broker's membership in the cluster, from unregistered to shutting down. The module's docstring draws the
    transitions."""

    UNREGISTERED = "unregistered"
    FENCED = "fenced"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"


@dataclass(frozen=True, slots=True)
class Identity:
    """The fixed data that a broker sends when it registers: ids, listeners, rack and log directories."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    """The advertised listeners. The first one is for traffic between brokers; the controllers use it to see if the broker
    lives."""
    rack: str | None
    log_dirs: tuple[bytes, ...]
    """The ids of the directories that were online at the start."""
    previous_broker_epoch: int
    """The broker epoch of the last clean shutdown on this data directory; -1 after an unclean one (KIP-966)."""
    levels: Levels = SUPPORTED
    """The levels of the metadata that the broker supports."""
    loss: RecordLoss | None = None
    """The records that the logs may have lost before this process started; None if none."""
    min_insync_replicas: int = 0
    """The broker's own `min.insync.replicas`."""


class LifecycleCore:
    """The state machine. No clock, no socket: `waited_s` is handed in as seconds since the first attempt to register."""

    def __init__(self, identity: Identity, *, heartbeat_interval_ms: int, session_timeout_ms: int) -> None:
        self.identity = identity
        self._interval_ms = heartbeat_interval_ms
        self._session_timeout_ms = session_timeout_ms
        self.state = State.UNREGISTERED
        self.broker_epoch = -1
        """The offset of our registration record; -1 before the first registration."""
        self.wants_shutdown = False
        self.is_shutdown_granted = False
        """Whether the controller has moved the leaders of this broker."""
        self.wants_step_down = False
        """Whether each heartbeat asks for this broker to be fenced. Reset once the controller has fenced it."""
        self.offline_log_dirs: tuple[bytes, ...] = ()
        """The log directories that have failed in this process."""
        self.cordoned_log_dirs: tuple[bytes, ...] = ()
        """The log directories that get no new replicas, in the order of the configuration."""
        self.lossy: dict[TopicIdPartition, None] = {}
        """Partitions whose log was found to lack records or to have damaged ones, until a heartbeat has reported them."""
        self._duplicate_since_s: float | None = None
        """`waited_s` from which on every answer has been DUPLICATE_BROKER_REGISTRATION; None if the last answer was another."""

    # -- registration -------------------------------------------------------------------------------------------------

    def registration(self) -> BrokerRegistrationRequest:
        identity = self.identity
        return BrokerRegistrationRequest(
            broker_id=identity.broker_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=list(identity.listeners),
            rack=identity.rack,
            log_dirs=[each for each in identity.log_dirs if each not in self.offline_log_dirs],
            previous_broker_epoch=identity.previous_broker_epoch,
            features=list(identity.levels.features),
            record_loss=_loss_code(identity.loss),
            lossy_partitions=_by_topic(() if identity.loss is None else identity.loss.partitions),
            min_insync_replicas=identity.min_insync_replicas,
            cordoned_log_dirs=list(self.cordoned_log_dirs),
        )

    def on_registration(self, response: BrokerRegistrationResponse, waited_s: float) -> StrandlineError | None:
        """Take the controller's answer. Returns the error if it is pointless to try again, otherwise None."""
        code = to_code(response.error_code)
        if code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self._duplicate_since_s = None
        if code == ErrorCode.NONE:
            self.broker_epoch, self.wants_step_down = response.broker_epoch, False
            # The controllers know of the loss now. From here on, a leader decides when a replica has caught up.
            self.identity = replace(self.identity, loss=None)
            self.state = State.SHUTTING_DOWN if self.wants_shutdown else State.FENCED
            return None
        identity = self.identity
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            # The other process may be dead and its session about to end: then a later attempt succeeds. The session counts
            # from the moment when this controller became active, so the time spent waiting for a controller does not count.
            # A controller that was paused or replaced in between grants a whole session again, which is not visible here.
            if self._duplicate_since_s is None:
                self._duplicate_since_s = waited_s
            patience_ms = DUPLICATE_SESSIONS * self._session_timeout_ms + 2 * self._interval_ms
            return None if (waited_s - self._duplicate_since_s) * 1000 <= patience_ms else self._duplicate()
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return UsageError(
                f"the controllers belong to another cluster than {identity.cluster_id!r} (config cluster.id): "
                "check controller.quorum.voters"
            )
        if code == ErrorCode.UNSUPPORTED_VERSION and response.error_message:
            return UsageError(response.error_message)
        error = BrokerError(code, response.error_message)
        return None if error.retriable or code == ErrorCode.UNKNOWN_SERVER_ERROR else UsageError(f"registration refused: {error}")

    def on_registration_timeout(self, timeout_ms: int, code: ErrorCode) -> StrandlineError:
        """The error of a broker that could not register in this time. `code`: the last answer."""
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return self._duplicate()
        return UsageError(f"the broker could not register with a controller for {timeout_ms / 1000:g} s ({code.name})")

    def _duplicate(self) -> StrandlineError:
        identity = self.identity
        return UsageError(
            f"another live process is registered as broker {identity.broker_id} in cluster {identity.cluster_id!r}: "
            "stop it, or give this one another node.id"
        )

    def on_registration_lost(self, stale_epoch: int) -> None:
        """The controller refused a request with this broker epoch: the registration is over."""
        if stale_epoch == self.broker_epoch:
            self.state = State.UNREGISTERED

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def heartbeat(self, metadata_offset: int) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self.identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=metadata_offset,
            want_fence=self.wants_step_down or metadata_offset < self.broker_epoch,
            want_shut_down=self.wants_shutdown,
            offline_log_dirs=list(self.offline_log_dirs),
            lossy_partitions=_by_topic(self.lossy),
            cordoned_log_dirs=list(self.cordoned_log_dirs),
        )

    def on_heartbeat(self, sent: BrokerHeartbeatRequest, response: BrokerHeartbeatResponse) -> None:
        code = to_code(response.error_code)
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self.on_registration_lost(sent.broker_epoch)
            return
        if code or sent.broker_epoch != self.broker_epoch or self.state is State.UNREGISTERED:
            return
        for topic in sent.lossy_partitions:
            for partition in topic.partitions:
                self.lossy.pop((topic.topic_id, partition), None)
        if self.wants_shutdown:
            self.state = State.SHUTTING_DOWN
            self.is_shutdown_granted = self.is_shutdown_granted or response.should_shut_down
        else:
            self.state = State.FENCED if response.is_fenced else State.RUNNING
            self.wants_step_down = self.wants_step_down and not (sent.want_fence and response.is_fenced)

    def pause_ms(self, caught_up: bool) -> int:
        """Time until the next heartbeat in ms, if no event makes one due earlier."""
        if self.wants_shutdown and not self.is_shutdown_granted:
            return SHUTDOWN_RETRY_MS
        return RETRY_MS if self.state is State.FENCED and caught_up else self._interval_ms


def _loss_code(loss: RecordLoss | None) -> int:
    if loss is None:
        return LOSS_NO
    return LOSS_YES if loss.is_certain else LOSS_MAYBE


def _by_topic(keys: Iterable[TopicIdPartition]) -> list[LossyPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(keys):
        topics.setdefault(topic_id, []).append(partition)
    return [LossyPartitions(topic_id, partitions) for topic_id, partitions in topics.items()]
