"""Noticing dead brokers: the session timer, and the fast path for a process that was killed.

The session timeout alone leaves a killed broker's partitions without a leader for seconds. But when a process dies, the
kernel closes its connections at once. So when the connection that carried a broker's heartbeats breaks, the controller
knocks at the broker's own door:

    it answers, with the incarnation id of its registration  -> it lives; leave it to the session timeout
    it is accepted and not answered                          -> something holds the port and stands still: session timeout
    refused, or another incarnation answers                  -> dead: fence it after a short grace, unless it is back
    accepted and closed again                                -> perhaps just dying: look once more after the grace
    no way to its host: silence, no route, no such name      -> it depends on how the connection was lost

How it was lost: *closed by the peer* (its FIN or RST came), it proves that the network was up a moment ago and that the
process let go of it. A broker that then is neither back within the grace nor to be reached is gone together with its
host (a container takes its address and its name with it): it is fenced, after a second look. Lost by a time-out, it
proves nothing that the silence of the heartbeats does not: the session timeout decides.

Being wrong here costs a leader election, never a record: a fenced broker that lives is out of the ISRs and leads nothing
in the new leader epochs, so what it still takes is never acknowledged with acks=all, and its next heartbeat unfences it.

A new active controller has no connections yet. It gives each broker a moment to come to it, then knocks at the doors of
those that did not: a broker that died together with the last controller is noticed too. Of these it does not know how
they fell silent; but one whose very name is gone for a while is not awaited for a whole session.
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

logger = get_logger(__name__)

PROBE_CONNECT_MS = 150
"""A living host's kernel accepts at once, however busy the process is."""
PROBE_ANSWER_MS = 1000
LATE_S = 0.02
"""A timer that fires so late fires after a standstill, of this process or of the whole machine."""
NAME_GONE_MS = 500
"""A broker that a new active controller never heard of and whose name is gone for so long is not awaited longer."""


class Probe(Enum):
    ALIVE = "alive"
    DEAD = "its port refuses us"
    DYING = "its port accepts and closes"
    SILENT = "its port accepts and does not answer"
    UNREACHABLE = "there is no way to its host"
    NAME_GONE = "its name does not exist any more"


_GONE = frozenset({Probe.UNREACHABLE, Probe.NAME_GONE})


class Tagged(Protocol):
    """A server connection; `tag` is the broker id whose heartbeats it carries."""

    tag: Any
    closed_by_peer: bool


class BrokerLiveness:
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
        """Broker id -> the connection that last carried a heartbeat of its present incarnation."""
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0
        """When the timer should fire; firing much later means that this process stood still."""
        self._was_late = False
        """The timer fired late, and the brokers were given a moment."""
        self._tasks: dict[asyncio.Task[object], None] = {}

    # -- from the server --

    def on_active(self) -> None:
        self._arm()
        for broker in self._controller.image.brokers.values():
            if not broker.fenced:
                self._spawn(self._look_for(broker))

    def on_inactive(self) -> None:
        self._connections.clear()
        self._was_late = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        self.on_inactive()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_heartbeat(self, connection: Tagged, broker_id: int, broker_epoch: int) -> None:
        """A sign of life was heard; it counts when it is from the registered incarnation."""
        active = self._controller.active
        if active is None or active.sessions.get(broker_id, broker_epoch) is None:
            return
        if self._connections.get(broker_id) is not connection:
            connection.tag = broker_id
            self._connections[broker_id] = connection
        self._arm()

    def on_connection_lost(self, connection: Tagged) -> None:
        broker_id = connection.tag
        if broker_id is None or self._connections.get(broker_id) is not connection:
            return
        del self._connections[broker_id]
        broker = self._controller.image.brokers.get(broker_id)
        active = self._controller.active
        # Without a session there is nothing to end: the broker was fenced, or has told us that it stops.
        if broker is not None and active is not None and active.sessions.get(broker_id, broker.broker_epoch):
            self._spawn(self._suspect(broker, let_go=connection.closed_by_peer))

    # -- sessions --

    def _arm(self) -> None:
        """One timer for all sessions; it fires at the first deadline, which renewals only ever move away."""
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
            # This process was stopped: heartbeats may lie unread in the sockets. Silence was ours, not theirs.
            late_ms = round(late_s * 1000)
            logger.warning("controller.sessions_extended", late_ms=late_ms, reason="the controller itself stood still")
            live = [(session.broker_id, session.broker_epoch) for session in active.sessions.all()]
            active.sessions.restart(live, controller.now())
        elif active is not None and late_s > LATE_S and not self._was_late:
            # How long the standstill was cannot be told from this. Who was stopped with us tells at once that it is back.
            self._was_late = True
            self._arm_at(controller.now() + self._session_timeout_s / 8)
            return
        self._was_late = False
        controller.fence_expired()
        self._arm()

    # -- the fast path --

    async def _look_for(self, broker: BrokerRegistration) -> None:
        """A broker that is only slow to come is found alive: to knock too early costs a connection, no more."""
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() + NAME_GONE_MS / 1000
        await asyncio.sleep(self._grace_s)
        if not self._is_away(broker) or await self._suspect(broker, let_go=False) is not Probe.NAME_GONE:
            return
        await asyncio.sleep(max(0.0, patience_ends - loop.time()))
        if self._is_away(broker) and await self._probe(broker) is Probe.NAME_GONE:
            self._fence(broker, Probe.NAME_GONE)

    async def _suspect(self, broker: BrokerRegistration, *, let_go: bool) -> Probe:
        """Find out, and fence the broker if it is dead and has not come back. `let_go`: it closed its connection itself."""
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + self._grace_s
        found = await self._probe(broker)
        gone = _GONE if let_go else frozenset()
        if found is Probe.DEAD or found is Probe.DYING or found in gone:
            await asyncio.sleep(max(0.0, grace_ends - loop.time()))
            if found is not Probe.DEAD and self._is_away(broker):
                found = await self._probe(broker)
            if found is Probe.DEAD or found in gone:
                self._fence(broker, found)
        return found

    def _fence(self, broker: BrokerRegistration, found: Probe) -> None:
        if self._is_away(broker):
            self._controller.fence(broker.broker_id, broker.broker_epoch, f"its connection broke, and {found.value}")

    def _is_away(self, broker: BrokerRegistration) -> bool:
        """Still the same incarnation, and no heartbeat on a living connection since."""
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


async def probe_broker(broker: BrokerRegistration) -> Probe:
    """Knock at the door that the other brokers use (a registration names it first), and compare incarnation ids."""
    from strandline.protocol.rpc.connection import Connection

    endpoint = broker.endpoint()
    if endpoint is None:
        return Probe.SILENT
    try:
        connection = await Connection.connect(
            endpoint.host, endpoint.port, client_id="controller-probe", connect_timeout_ms=PROBE_CONNECT_MS
        )
    except BrokerError as e:
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
        return Probe.DEAD  # The host answered that nobody listens there.
    return Probe.NAME_GONE if is_unknown_host(cause) else Probe.UNREACHABLE
