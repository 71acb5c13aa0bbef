"""Liveness and readiness of a node, for an orchestrator's probes.

Live: the event loop responds, and the node has not failed. A node that recovers its logs for an hour is live all that
time, because a restart would only begin the recovery again.

Ready: clients and other nodes can rely on the node. Each role has a list of checks, in the order in which a start fulfils
them, so the first check that fails names what the node waits for. A check is a plain function of a snapshot of the node's
state (`BrokerState`, `ControllerState`). `read_broker` and `read_controller` take the snapshot at any moment of a server's
life, before its `start` and after its `stop` too.

A broker without contact to the controllers does not learn that it was fenced. So the checks use the age of its metadata:
when it is older than the session timeout, the controllers have fenced the broker.

A warning is about something that an operator should change, but that does not make the node less ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from strandline.broker.partition.partition import Partition
    from strandline.broker.process.server import BrokerServer
    from strandline.controller.leader_balance import LateReturn
    from strandline.controller.server import ControllerServer
    from strandline.observe.loop_lag import LoopLag

METADATA_RECORDS_BEHIND_MAX = 1000
"""The largest lag of a ready controller's log behind the offset that it knows to be committed."""
WARNINGS_MAX = 10
METADATA_AGE_MS_MIN = 2000
"""Lower bound of the age limit, however short the session is: a long poll returns only twice a second."""


class Check(NamedTuple):
    name: str
    ok: bool
    detail: str
    """The state in words, whether the check passes or not."""


class BrokerState(NamedTuple):
    """A snapshot of the state that decides a broker's readiness. The defaults are those of a process that just started."""

    data_dirs: tuple[str, ...] = ()
    cluster_id: str = ""
    """Empty while the broker asks the controllers for it."""
    logs: int = 0
    """The number of logs in the data directories."""
    logs_recovered: int = 0
    recovered: bool = False
    """True when all logs are open."""
    offline_dirs: tuple[tuple[str, str], ...] = ()
    """Path and reason of each data directory that is offline."""
    registered: bool = False
    broker_epoch: int = -1
    caught_up: bool = False
    """True when the broker has applied metadata at least once."""
    metadata_offset: int = -1
    metadata_age_ms: float = 0
    """The age of the broker's metadata: it may not know of records committed since."""
    metadata_age_ms_max: float = METADATA_AGE_MS_MIN
    unfenced: bool = False
    future_timestamps: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition and timestamp (ms) of each log whose oldest segment is kept by a timestamp in the future."""
    uncleanable: tuple[tuple[str, int, str], ...] = ()
    """Topic, partition and reason of each log that could not be compacted."""


class ControllerState(NamedTuple):
    """A snapshot of the state that decides a controller's readiness."""

    cluster_id: str = ""
    """Empty while the controllers agree on it."""
    listening: bool = False
    address: str = ""
    node_id: int = -1
    leader_id: int = -1
    """The active controller; -1 if unknown."""
    epoch: int = 0
    has_vote: bool = False
    """False while a voter with a lost disk recovers its state (`controller/raft/voter_recovery.py`)."""
    unheard: tuple[int, ...] = ()
    """The other voters whose state this node needs before it may vote."""
    follows: bool = False
    """True if the controller leads, or has received a response from the leader."""
    log_end_offset: int = 0
    high_watermark: int = 0
    """The leader's high watermark, as far as this node knows it."""
    late_returns: tuple[LateReturn, ...] = ()
    """Brokers that have waited for their leaders for long; only on the active controller."""


# -- checks -----------------------------------------------------------------------------------------------------------


def broker_checks(state: BrokerState) -> list[Check]:
    return [_cluster_id(state), _recovery(state), _log_dirs(state), _registered(state), _metadata(state), _unfenced(state)]


def _cluster_id(state: BrokerState | ControllerState) -> Check:
    return Check("cluster_id", bool(state.cluster_id), state.cluster_id or "not known yet; asks the controllers")


def _recovery(state: BrokerState) -> Check:
    if state.recovered:
        return Check("recovery", True, f"{_count(state.logs, 'log')} open")
    return Check("recovery", False, f"{state.logs_recovered} of {_count(state.logs, 'log')} recovered")


def _log_dirs(state: BrokerState) -> Check:
    if not state.recovered:
        return Check("log_dirs", False, "not open yet")
    offline = [f"{path} is offline: {reason}" for path, reason in state.offline_dirs]
    online = [f"{path} is online" for path in state.data_dirs if path not in dict(state.offline_dirs)]
    return Check("log_dirs", bool(online), "; ".join(offline + online))


def _registered(state: BrokerState) -> Check:
    if state.registered:
        return Check("registered", True, f"broker epoch {state.broker_epoch}")
    return Check("registered", False, "no controller has accepted the registration yet")


def _metadata(state: BrokerState) -> Check:
    if not state.caught_up:
        return Check("metadata", False, "has not caught up with the metadata log yet")
    detail = f"at offset {state.metadata_offset}, as of {state.metadata_age_ms / 1000:.1f} s ago"
    if state.metadata_age_ms > state.metadata_age_ms_max:
        return Check("metadata", False, f"{detail}: no active controller has responded since; this broker may have been fenced")
    return Check("metadata", True, detail)


def _unfenced(state: BrokerState) -> Check:
    return Check(
        "unfenced", state.unfenced, "as its own metadata says" if state.unfenced else "the controllers have not unfenced it"
    )


def broker_warnings(state: BrokerState) -> list[str]:
    """One sentence per data directory that is offline while others serve, and per log that grows because of a timestamp in the
    future, or because it cannot be compacted. Of both kinds of logs, at most ten are named, and the others are counted."""
    return [
        *_offline_dirs(state),
        *_some([_future_timestamp(*one) for one in state.future_timestamps], "with a timestamp in the future"),
        *_some([_uncleanable(*one) for one in state.uncleanable], "that cannot be compacted"),
    ]


def _offline_dirs(state: BrokerState) -> list[str]:
    if len(state.offline_dirs) == len(state.data_dirs):
        return []  # a check says so
    return [
        f"data directory {path} is offline, and its replicas are not served: {reason}; repair the disk, then restart the broker"
        for path, reason in state.offline_dirs
    ]


def _some(named: list[str], what: str, noun: str = "log") -> list[str]:
    more = len(named) - WARNINGS_MAX
    return [*named[:WARNINGS_MAX], f"{_count(more, f'more {noun}')} {what}"] if more > 0 else named


def _uncleanable(topic: str, partition: int, reason: str) -> str:
    return (
        f"{topic}-{partition} is not compacted and grows: {reason}; restart the broker to try again, or, if another replica is "
        "in sync, remove this replica's directory while the broker is stopped, so that it is fetched again"
    )


def _future_timestamp(topic: str, partition: int, timestamp_ms: int) -> str:
    return (
        f"{topic}-{partition}: retention.ms deletes nothing, because a record in the oldest segment has the timestamp "
        f"{timestamp_ms} ({_date(timestamp_ms)}); delete old records with `strandline topic trim` or retention.bytes, and keep "
        "message.timestamp.after.max.ms low, which refuses such records"
    )


def _date(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"


def controller_checks(state: ControllerState) -> list[Check]:
    listening = f"on {state.address}" if state.listening else "not yet"
    return [
        _cluster_id(state),
        Check("listening", state.listening, listening),
        _active_controller(state),
        _metadata_log(state),
        _vote(state),
    ]


def controller_warnings(state: ControllerState) -> list[str]:
    """One sentence per broker that has waited for its leaders for long, at most ten."""
    return _some([_late_return(late) for late in state.late_returns], "that wait for their leaders", "broker")


def _late_return(late: LateReturn) -> str:
    return (
        f"broker {late.broker_id} does not lead {_count(late.partitions, 'partition')} whose preferred replica it is, for "
        f"{_count(round(late.waits_s / 60), 'minute')}: {late.reason}; `strandline elect --preferred --all` moves those leaders "
        "that may move now"
    )


def _active_controller(state: ControllerState) -> Check:
    if state.leader_id < 0:
        return Check("active_controller", False, "none is known")
    who = "this one" if state.leader_id == state.node_id else f"controller {state.leader_id}"
    return Check("active_controller", True, f"{who}, epoch {state.epoch}")


def _metadata_log(state: ControllerState) -> Check:
    if not state.follows:
        return Check("metadata_log", False, "has not fetched from an active controller")
    behind = max(0, state.high_watermark - state.log_end_offset)
    detail = f"ends at offset {state.log_end_offset}, {_count(behind, 'record')} behind what is committed"
    return Check("metadata_log", behind <= METADATA_RECORDS_BEHIND_MAX, detail)


def _vote(state: ControllerState) -> Check:
    if state.has_vote:
        return Check("vote", True, "takes part in elections")
    waits = f"waits for the state of {', '.join(map(str, state.unheard))}" if state.unheard else "waits for an active controller"
    return Check("vote", False, f"starts with an empty disk, and {waits}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- what the checks look at ------------------------------------------------------------------------------------------


def read_broker(server: BrokerServer, now: float) -> BrokerState:
    config, lifecycle, metadata = server.config, server.lifecycle, server.metadata
    if not server.has_logs:
        return BrokerState(config.data_dirs)
    tasks = server.log_manager_tasks
    log_dirs = server.log_dirs
    return BrokerState(
        data_dirs=config.data_dirs,
        cluster_id=config.cluster_id,
        logs=tasks.logs,
        logs_recovered=tasks.logs_recovered,
        recovered=tasks.recovered,
        offline_dirs=() if log_dirs is None else tuple(log_dirs.offline.items()),
        registered=lifecycle.registered.is_set(),
        broker_epoch=lifecycle.broker_epoch,
        caught_up=metadata.published.is_set(),
        metadata_offset=metadata.image.offset,
        metadata_age_ms=(now - metadata.heard_at) * 1000,
        metadata_age_ms_max=max(config.broker_session_timeout_ms, METADATA_AGE_MS_MIN),
        unfenced=lifecycle.ready.is_set(),
        future_timestamps=tuple(_future_timestamps(server.replicas.partitions.values())),
        uncleanable=tuple((each.topic, each.partition, each.reason) for each in server.log_cleaner.uncleanable_now()),
    )


def _future_timestamps(partitions: Iterable[Partition]) -> Iterator[tuple[str, int, int]]:
    for partition in partitions:
        if partition.log.future_timestamp_ms >= 0:
            yield partition.topic, partition.key[1], partition.log.future_timestamp_ms


def read_controller(server: ControllerServer) -> ControllerState:
    known = ControllerState(server.cluster_id or "", server.listening, f"{server.config.listeners[0].host}:{server.port}")
    if server.opened is None:  # the metadata log is not open yet
        return known
    quorum = server.opened.quorum
    state = quorum.node.state
    return known._replace(
        node_id=server.config.node_id,
        leader_id=quorum.leader_id,
        epoch=quorum.epoch,
        follows=quorum.is_leader or state.hears_leader,
        log_end_offset=quorum.log_end_offset,
        high_watermark=state.known_high_watermark,
        has_vote=state.recovery is None,
        late_returns=tuple(server.opened.leader_balancer.late()),
        unheard=() if state.recovery is None else tuple(sorted(state.recovery.unanswered)),
    )


# -- a node's answers -------------------------------------------------------------------------------------------------


class Health:
    """Answers the liveness and readiness requests of one node, from the start of its process to its end."""

    def __init__(self, name: str, role: str, server: Any, loop_lag: LoopLag) -> None:
        self.name = name
        self.role = role
        self.stopping = ""
        """The reason why the node stops; empty while it does not."""
        self._server = server
        self._lag = loop_lag

    def on_stopping(self, reason: str) -> None:
        self.stopping = reason

    def live(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether the node is live, and the JSON document of the response."""
        reason = self._failure()
        answer = {"status": "failed" if reason else "live", "node": self.name, "role": self.role}
        return not reason, answer | ({"reason": reason} if reason else {})

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        checks = [self._running(), *self._checks()]
        ok = all(check.ok for check in checks)
        return ok, {
            "status": "ready" if ok else "not ready",
            "node": self.name,
            "role": self.role,
            "checks": [check._asdict() for check in checks],
            "warnings": self._warnings(),
            "event_loop_lag_ms": round(self._lag.recent_max_s * 1000),
        }

    def _failure(self) -> str:
        failure = getattr(self._server, "failure", None)
        return str(failure.result()) if failure is not None and failure.done() and not failure.cancelled() else ""

    def _running(self) -> Check:
        reason = self._failure() or (f"is stopping: {self.stopping}" if self.stopping else "")
        return Check("running", not reason, reason or "neither failed nor stopping")

    def _warnings(self) -> list[str]:
        if self.role == "broker":
            return broker_warnings(read_broker(self._server, self._lag.now()))
        return controller_warnings(read_controller(self._server))

    def _checks(self) -> list[Check]:
        if self.role == "broker":
            return broker_checks(read_broker(self._server, self._lag.now()))
        return controller_checks(read_controller(self._server))
