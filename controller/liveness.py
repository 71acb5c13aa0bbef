"""Detects dead brokers: by the session timer, and faster by a probe when the connection of a broker breaks.

With the session timeout alone, the partitions of a killed broker have no leader for seconds. But when a process dies, the
kernel closes its connections at once. So when the connection that carried a broker's heartbeats breaks, the controller
probes the broker's own listener:

    it answers, with the incarnation id of its registration  -> alive: the session timeout decides
    it accepts the connection and does not answer            -> the process may be stopped: the session timeout decides
    it refuses, or another incarnation answers               -> dead: fence it after a short grace, unless it is back
    it accepts and closes the connection                     -> it may be dying: probe once more after the grace
    its host cannot be reached: silence, no route, no name   -> it depends on how the connection was lost

If the *peer closed* the connection (a FIN or RST arrived), the network was up a moment ago and the process gave up the
connection. A broker that then neither returns within the grace nor can be reached is gone together with its host (a removed
container loses its address and name): it is fenced after a second probe. If the connection was lost by a timeout, that proves
no more than the missing heartbeats do: the session timeout decides.

A wrong decision costs a leader election, but never a record. A fenced broker that is alive is out of all ISRs and leads no
partition in the new leader epochs, so a record that it still accepts is never acknowledged with acks=all. Its next heartbeat
unfences it.

A new active controller has no connections yet. It waits a moment for each broker to connect, then probes those that did not.
So it also detects a broker that died together with the last controller. It does not know how the connections of these brokers
were lost; but a broker whose host name stays unknown is fenced before its session ends. The session that it grants to each
unfenced broker proves nothing: if another process tries to register with the id of a broker that has not connected, it probes
that broker again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Protocol

from strandline.controller.controller import Controller
from strandline.controller.metadata.image import BrokerRegistration
from strandline.protocol.apis import API_VERSIONS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc.dial import is_unknown_host
from strandline.protocol.security.client_security import NO_SECURITY, SecurityOf, without_security

logger = get_logger(__name__)

PROBE_CONNECT_MS = 150
"""Timeout of the connection attempt. The kernel of a live host accepts at once, however busy the process is."""
PROBE_LOGIN_MS = 1000
"""Timeout of the connection attempt if it includes TLS or SASL, for which the process itself has to answer several times."""
PROBE_ANSWER_MS = 1000
LATE_S = 0.02
"""If a timer fires later than this, the process or the whole machine was paused."""
NAME_GONE_MS = 500
"""A new active controller fences a broker that has not connected, and whose host name has been unknown for this time."""


class Probe(Enum):
    """The result of a probe. The value is the end of the reason that is logged."""

    ALIVE = "alive"
    DEAD = "its port refuses connections"
    DYING = "its port accepts and closes connections"
    SILENT = "its port accepts connections and does not answer"
    UNREACHABLE = "its host cannot be reached"
    NAME_GONE = "its host name is unknown"


_GONE = frozenset({Probe.UNREACHABLE, Probe.NAME_GONE})


class Tagged(Protocol):
    """A server connection; `tag` is the broker id whose heartbeats it carries."""

    tag: Any
    closed_by_peer: bool


class BrokerLiveness:
    """Detects brokers that fail: by the end of their sessions, and earlier by broken connections and probes."""

    def __init__(
        self,
        controller: Controller,
        *,
        grace_ms: int,
        session_timeout_ms: int,
        probe: Callable[[BrokerRegistration], Awaitable[Probe]],
    ) -> None:
        self._controller = controller
        self._grace_s = grace_ms / 1000
        self._session_timeout_s = session_timeout_ms / 1000
        self._probe = probe
        self._connections: dict[int, Tagged] = {}
        """Broker id -> the connection that last carried a heartbeat of its current incarnation."""
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0
        """When the timer is due. If it fires much later, this process was paused."""
        self._was_late = False
        """The timer has fired late, and was started once more to wait for delayed heartbeats."""
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._contested: dict[int, None] = {}
        """Brokers that are being probed because another process has tried to register with their id."""

    # -- from the server --

    def on_active(self) -> None:
        """Start the timer of the sessions, and probe the unfenced brokers that have sent no heartbeat by the end of a grace:
        their heartbeat connections led to another controller."""
        self._arm()
        for broker in self._controller.image.brokers.values():
            if not broker.fenced:
                self._spawn(self._look_for(broker))

    def on_inactive(self) -> None:
        """Stop the timer and all probes, and forget the connections."""
        self._connections.clear()
        self._was_late = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks):
            task.cancel()
        self._contested.clear()

    async def stop(self) -> None:
        self.on_inactive()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_heartbeat(self, connection: Tagged, broker_id: int, broker_epoch: int) -> None:
        """A heartbeat arrived; it counts if it is of the registered incarnation."""
        active = self._controller.active
        if active is None or active.sessions.get(broker_id, broker_epoch) is None:
            return
        if self._connections.get(broker_id) is not connection:
            connection.tag = broker_id
            self._connections[broker_id] = connection
        self._arm()

    def on_connection_lost(self, connection: Tagged) -> None:
        """If the connection carried the heartbeats of a broker with a session, probe the broker, and fence it if its process has
        ended."""
        broker_id = connection.tag
        if broker_id is None or self._connections.get(broker_id) is not connection:
            return
        del self._connections[broker_id]
        broker = self._controller.image.brokers.get(broker_id)
        active = self._controller.active
        # A broker without a session was fenced, or has announced its shutdown.
        if broker is not None and active is not None and active.sessions.get(broker_id, broker.broker_epoch):
            self._spawn(self._suspect(broker, closed_by_peer=connection.closed_by_peer))

    def on_duplicate(self, broker_id: int) -> None:
        """A registration was refused, because another process is registered with this id and has a session. If the registered
        process has not connected to this controller, it may have died before this controller became active: `on_leader` starts a
        session for every unfenced broker. So it is probed, and again as long as the new process retries, because one probe may
        come too early."""
        broker = self._controller.image.brokers.get(broker_id)
        if broker is not None and self._is_away(broker) and broker_id not in self._contested:
            self._contested[broker_id] = None
            self._spawn(self._contest(broker))

    # -- sessions --

    def _arm(self) -> None:
        """Start the timer for the first deadline. One timer serves all sessions, because renewals only postpone deadlines."""
        active = self._controller.active
        if self._timer is not None or active is None:
            return
        deadline = active.sessions.next_deadline()
        if deadline is not None:
            self._arm_at(deadline)

    def _arm_at(self, when: float) -> None:
        self._planned = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        controller = self._controller
        active = controller.active
        late_s = controller.now() - self._planned
        if active is not None and late_s > self._session_timeout_s / 2:
            # This process was stopped, and heartbeats may lie unread in its sockets.
            late_ms = round(late_s * 1000)
            logger.warning("controller.sessions_extended", late_ms=late_ms, reason="the controller itself was paused")
            live = [(session.broker_id, session.broker_epoch) for session in active.sessions.all()]
            active.sessions.restart(live, controller.now())
        elif active is not None and late_s > LATE_S and not self._was_late:
            # The length of the pause is unknown. Brokers that were paused as well send a heartbeat at once.
            self._was_late = True
            self._arm_at(controller.now() + self._session_timeout_s / 8)
            return
        self._was_late = False
        controller.fence_expired()
        self._arm()

    # -- the fast path --

    async def _look_for(self, broker: BrokerRegistration) -> None:
        """Probe a broker that has not connected to this new active controller. If the broker is only slow, the probe finds it
        alive, and has cost one connection."""
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() + NAME_GONE_MS / 1000
        await asyncio.sleep(self._grace_s)
        if not self._is_away(broker) or await self._suspect(broker, closed_by_peer=False) is not Probe.NAME_GONE:
            return
        await asyncio.sleep(max(0.0, patience_ends - loop.time()))
        if self._is_away(broker) and await self._probe(broker) is Probe.NAME_GONE:
            self._fence(broker, Probe.NAME_GONE)

    async def _contest(self, broker: BrokerRegistration) -> None:
        """Probe the broker, and then no more for a grace, however often the other process retries."""
        try:
            await self._suspect(broker, closed_by_peer=False)
            await asyncio.sleep(self._grace_s)
        finally:
            self._contested.pop(broker.broker_id, None)

    async def _suspect(self, broker: BrokerRegistration, *, closed_by_peer: bool) -> Probe:
        """Probe the broker, and fence it if it is dead and has not returned within the grace.

        `closed_by_peer` is false if its connection was lost by a timeout, or if there was none."""
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + self._grace_s
        found = await self._probe(broker)
        gone = _GONE if closed_by_peer else frozenset()
        if found is Probe.DEAD or found is Probe.DYING or found in gone:
            await asyncio.sleep(max(0.0, grace_ends - loop.time()))
            if found is not Probe.DEAD and self._is_away(broker):
                found = await self._probe(broker)
            if found is Probe.DEAD or found in gone:
                self._fence(broker, found)
        return found

    def _fence(self, broker: BrokerRegistration, found: Probe) -> None:
        if self._is_away(broker):
            reason = f"it has no connection to this controller, and {found.value}"
            self._controller.fence(broker.broker_id, broker.broker_epoch, reason)

    def _is_away(self, broker: BrokerRegistration) -> bool:
        """Whether the same incarnation is still registered, and no live connection carries its heartbeats."""
        now_registered = self._controller.image.brokers.get(broker.broker_id)
        same = now_registered is not None and now_registered.broker_epoch == broker.broker_epoch
        return self._controller.active is not None and same and broker.broker_id not in self._connections

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[object]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            logger.error("controller.probe_failed", exc_info=task.exception())


async def probe_broker(broker: BrokerRegistration, to_listener: SecurityOf = without_security) -> Probe:
    """Connect to the listener that the other brokers use (the first of the registration), and compare the incarnation ids."""
    from strandline.protocol.rpc.connection import Connection

    endpoint = broker.endpoint()
    if endpoint is None:
        return Probe.SILENT
    try:
        security = to_listener(endpoint.name)
        timeout_ms = PROBE_CONNECT_MS if security is NO_SECURITY else PROBE_LOGIN_MS
        connection = await Connection.connect(
            endpoint.host, endpoint.port, client_id="controller-probe", connect_timeout_ms=timeout_ms, security=security
        )
    except BrokerError as e:
        if e.code != ErrorCode.NETWORK_EXCEPTION:
            return Probe.SILENT  # A process answered, and did not accept this controller.
        return _no_connection(e.__cause__)
    try:
        answer = await connection.request(
            API_VERSIONS, ApiVersionsRequest("strandline-controller", ""), timeout_ms=PROBE_ANSWER_MS
        )
    except BrokerError as e:
        return Probe.DYING if e.code == ErrorCode.NETWORK_EXCEPTION else Probe.SILENT
    finally:
        connection.close()
    if not isinstance(answer, ApiVersionsResponse) or answer.incarnation_id != broker.incarnation_id:
        return Probe.DEAD
    return Probe.ALIVE


def _no_connection(cause: BaseException | None) -> Probe:
    if isinstance(cause, ConnectionRefusedError):
        return Probe.DEAD  # The host answered that no process listens on the port.
    return Probe.NAME_GONE if is_unknown_host(cause) else Probe.UNREACHABLE
