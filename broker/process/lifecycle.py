"""The broker's standing in the cluster: registered, fenced or not, and on its way out.

    UNREGISTERED -> FENCED -> RUNNING -> LEAVING -> gone
          ^------------+---------+         (want_shut_down until the controller lets go)

Each process draws an incarnation id and registers with it; the controller gives it a broker epoch, and refuses another
live process with the same broker id. A fenced broker leads nothing; it is unfenced by the first heartbeat that tells
that it has applied its own registration. If the controller forgets the registration, the broker registers again, with
the same incarnation id.

Heartbeats go out at an interval, and at once when something changed: nobody waits for the next tick to be unfenced, or
to be let go. The core says what to do next; the shell does it. A heartbeat that is not answered for a while is given up
long before the session ends, and with it a connection that leads nowhere.

A broker that leads with a damaged log steps back: it asks to be fenced, so that others lead, and to be unfenced again at
once. Its damaged replicas are then followers outside of the ISR, and are repaired.

A broker that leaves waits for the controllers as long as there are any: when nobody listens at their addresses, or no
active one has answered for a while, all are leaving, or it is cut off, and it goes without being let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import cast

from strandline.broker.process.controller_channel import Channel
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.protocol.apis import BROKER_HEARTBEAT, BROKER_REGISTRATION
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, UsageError, to_code
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from strandline.protocol.messages.common import Listener

logger = get_logger(__name__)

RETRY_MS = 50
"""Between attempts to register, to be unfenced, to be let go."""
LEAVING_RETRY_MS = 10
LEAVING_UNHEARD_MS = 2000
"""A leaving broker that no active controller has answered for so long waits no longer."""
HEARTBEATS_PER_SESSION = 3
"""A heartbeat that is not answered in this part of the session is given up, and the next one begins."""


class State(Enum):
    UNREGISTERED = "unregistered"
    FENCED = "fenced"
    RUNNING = "running"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a broker registers with."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    """The advertised ones; first the one that brokers use among themselves, at which the controllers knock, too."""
    rack: str | None
    log_dirs: tuple[bytes, ...]
    previous_broker_epoch: int
    """That of the last clean shutdown on this data directory; -1 after an unclean one."""


class LifecycleCore:
    """The state machine. No clock, no socket; durations are handed in as seconds since the first attempt."""

    def __init__(self, identity: Identity, *, heartbeat_interval_ms: int, session_timeout_ms: int) -> None:
        self.identity = identity
        self._interval_ms = heartbeat_interval_ms
        self._session_timeout_ms = session_timeout_ms
        self.state = State.UNREGISTERED
        self.broker_epoch = -1
        """The offset of our registration record; -1 before the first registration."""
        self.wants_to_leave = False
        self.may_leave = False
        """The controller said so: it has moved what we led."""
        self.wants_step_down = False
        """Wants to be fenced, until it was."""
        self.offline_log_dirs: tuple[bytes, ...] = ()
        self._duplicate_since_s: float | None = None
        """Since when every answer to our registration is that another process holds the broker id."""

    # -- registration -------------------------------------------------------------------------------------------------

    def registration(self) -> BrokerRegistrationRequest:
        identity = self.identity
        return BrokerRegistrationRequest(
            broker_id=identity.broker_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=list(identity.listeners),
            rack=identity.rack,
            log_dirs=list(identity.log_dirs),
            previous_broker_epoch=identity.previous_broker_epoch,
        )

    def on_registration(self, response: BrokerRegistrationResponse, waited_s: float) -> StrandlineError | None:
        """The controller's answer; returns the error that makes it pointless to go on."""
        code = to_code(response.error_code)
        if code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self._duplicate_since_s = None
        if code == ErrorCode.NONE:
            self.broker_epoch, self.wants_step_down = response.broker_epoch, False
            self.state = State.LEAVING if self.wants_to_leave else State.FENCED
            return None
        identity = self.identity
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            # The other process may be dead, and its session about to end: then the next attempts succeed. The session
            # counts from when this controller became active; the time that we waited for it does not.
            if self._duplicate_since_s is None:
                self._duplicate_since_s = waited_s
            if (waited_s - self._duplicate_since_s) * 1000 <= self._session_timeout_ms + 2 * self._interval_ms:
                return None
            return UsageError(
                f"another live process is registered as broker {identity.broker_id} in cluster {identity.cluster_id!r}: "
                "stop it, or give this one another node.id"
            )
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return UsageError(
                f"the controllers belong to another cluster than {identity.cluster_id!r} (config cluster.id): "
                "check controller.quorum.voters"
            )
        error = BrokerError(code, response.error_message)
        return None if error.retriable or code == ErrorCode.UNKNOWN_SERVER_ERROR else UsageError(f"registration refused: {error}")

    def on_registration_lost(self, stale_epoch: int) -> None:
        """A request with this epoch was told that the registration is over."""
        if stale_epoch == self.broker_epoch:
            self.state = State.UNREGISTERED

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def heartbeat(self, metadata_offset: int) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self.identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=metadata_offset,
            want_fence=self.wants_step_down or metadata_offset < self.broker_epoch,
            want_shut_down=self.wants_to_leave,
            offline_log_dirs=list(self.offline_log_dirs),
        )

    def on_heartbeat(self, sent: BrokerHeartbeatRequest, response: BrokerHeartbeatResponse) -> None:
        code = to_code(response.error_code)
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self.on_registration_lost(sent.broker_epoch)
        elif code or sent.broker_epoch != self.broker_epoch or self.state is State.UNREGISTERED:
            return
        elif self.wants_to_leave:
            self.state = State.LEAVING
            self.may_leave = self.may_leave or response.should_shut_down
        else:
            self.state = State.FENCED if response.is_fenced else State.RUNNING
            self.wants_step_down = self.wants_step_down and not (sent.want_fence and response.is_fenced)

    def pause_ms(self, caught_up: bool) -> int:
        """How long the next heartbeat may wait if nothing happens."""
        if self.wants_to_leave and not self.may_leave:
            return LEAVING_RETRY_MS
        return RETRY_MS if self.state is State.FENCED and caught_up else self._interval_ms


class BrokerLifecycle:
    """The shell: one task that registers, then sends heartbeats until it is stopped."""

    def __init__(
        self,
        identity: Identity,
        *,
        channel: Channel,
        metadata_offset: Callable[[], int],
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        registration_timeout_ms: int,
        on_fatal: Callable[[StrandlineError], None],
        nobody_listens: Callable[[], bool] = lambda: False,
    ) -> None:
        """`nobody_listens`: not one controller is there (`broker/process/metadata_loader.py`)."""
        self.core = LifecycleCore(identity, heartbeat_interval_ms=heartbeat_interval_ms, session_timeout_ms=session_timeout_ms)
        self._broker_id = identity.broker_id
        self._channel = channel
        self._metadata_offset = metadata_offset
        self._heartbeat_timeout_ms = max(1, session_timeout_ms // HEARTBEATS_PER_SESSION)
        self._nobody_listens = nobody_listens
        self._answered_at = 0.0
        """When an active controller last answered a heartbeat."""
        self._registration_timeout_ms = registration_timeout_ms
        self._on_fatal = on_fatal
        self.registered = asyncio.Event()
        self.ready = asyncio.Event()
        """Set while the broker is unfenced, as the controller and the broker's own image say."""
        self._image = MetadataImage.EMPTY
        self._replaced = False
        """Final: what was said of this broker id since is not about us."""
        self._may_leave = asyncio.Event()
        self._limits = LineLimits()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def broker_epoch(self) -> int:
        return self.core.broker_epoch

    @property
    def incarnation_id(self) -> bytes:
        return self.core.identity.incarnation_id

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker-lifecycle")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- what changed -------------------------------------------------------------------------------------------------

    def on_metadata(self, delta: MetadataDelta) -> None:
        """A heartbeat at once when our own registration changed: to be unfenced, or to be let go."""
        self._image = delta.image
        if self._broker_id in delta.changed_brokers:
            self._update_ready()
            self._wake.set()
        elif self.core.state is State.FENCED and delta.before.offset < self.broker_epoch <= delta.image.offset:
            self._wake.set()

    def is_replaced(self, image: MetadataImage) -> bool:
        """Whether another process has taken the broker id after us: from then on the metadata speaks of that one."""
        broker = image.brokers.get(self._broker_id)
        newer = broker is not None and broker.broker_epoch > self.broker_epoch and broker.incarnation_id != self.incarnation_id
        if newer and not self._replaced:
            self._replaced = True
            self.registered.clear()
            self.ready.clear()
            self._on_fatal(
                UsageError(
                    f"another process has registered as broker {self._broker_id} while this one was not heard of: "
                    "stop one of them, or give it another node.id"
                )
            )
        return self._replaced

    def on_log_dir_offline(self, directory_id: bytes) -> None:
        self.core.offline_log_dirs = (directory_id,)
        self._wake.set()

    def step_down(self) -> None:
        """Let others lead what we lead, and leave the ISRs; then come back."""
        core = self.core
        if core.state is State.RUNNING and not core.wants_step_down:
            core.wants_step_down = True
            logger.warning("broker.step_down_requested", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
            self._wake.set()

    async def leave(self, timeout_ms: int) -> bool:
        """Controlled shutdown: ask to be let go; False when the controller did not in time, or there is none to ask."""
        self.core.wants_to_leave = True
        self._wake.set()
        loop = asyncio.get_running_loop()
        since, deadline = loop.time(), loop.time() + timeout_ms / 1000
        while not self._may_leave.is_set() and loop.time() < deadline:
            unheard_s = loop.time() - max(since, self._answered_at)
            if self._nobody_listens() or unheard_s > LEAVING_UNHEARD_MS / 1000:
                logger.info("broker.handover_abandoned", broker_epoch=self.broker_epoch, unheard_ms=round(unheard_s * 1000))
                break
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + RETRY_MS / 1000)):
                    await self._may_leave.wait()
            except TimeoutError:
                pass
        return self._may_leave.is_set()

    async def renew(self, stale_epoch: int) -> None:
        """Returns once the broker is registered, after a request with `stale_epoch` was told that this is over."""
        self.core.on_registration_lost(stale_epoch)
        if self.core.state is State.UNREGISTERED:
            self.registered.clear()
            self._wake.set()
        await self.registered.wait()

    def _update_ready(self) -> None:
        broker = self._image.brokers.get(self._broker_id)
        unfenced_in_image = broker is not None and broker.broker_epoch == self.broker_epoch and not broker.fenced
        if self.core.state is State.RUNNING and unfenced_in_image:
            if not self.ready.is_set():
                logger.info("broker.unfenced", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
            self.ready.set()
        else:
            if self.ready.is_set() and not self.core.wants_to_leave:
                logger.warning("broker.fenced", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
            self.ready.clear()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self.core.state is State.UNREGISTERED and not await self._register():
                return
            await self._beat()
            self._update_ready()
            if self.core.may_leave:
                return
            if self.core.state is State.UNREGISTERED:
                continue
            await self._sleep(self.core.pause_ms(self._metadata_offset() >= self.broker_epoch))

    async def _sleep(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _register(self) -> bool:
        """Until the controller took us. False: never, and the broker was told why."""
        self.registered.clear()
        self.ready.clear()
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            problem = await self._register_once(start)
            if problem is not None:
                self._on_fatal(problem)
                return False
            if self.core.state is not State.UNREGISTERED:
                logger.info("broker.registered", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
                self.registered.set()
                return True
            await asyncio.sleep(RETRY_MS / 1000)

    async def _register_once(self, start: float) -> StrandlineError | None:
        timeout_ms = self._registration_timeout_ms
        try:
            response = await self._channel.request(BROKER_REGISTRATION, self.core.registration(), timeout_ms)
        except BrokerError as e:
            response = BrokerRegistrationResponse(e.code, error_message=e.message)
        waited_s = asyncio.get_running_loop().time() - start
        problem = self.core.on_registration(cast(BrokerRegistrationResponse, response), waited_s)
        if problem is None and self.core.state is State.UNREGISTERED and self.broker_epoch < 0 and waited_s * 1000 >= timeout_ms:
            code = to_code(cast(BrokerRegistrationResponse, response).error_code)
            return UsageError(f"the broker could not register with a controller for {timeout_ms / 1000:g} s ({code.name})")
        return problem

    async def _beat(self) -> None:
        """One heartbeat. No answer is no news: the next one comes soon."""
        request = self.core.heartbeat(self._metadata_offset())
        try:
            response = await self._channel.request(BROKER_HEARTBEAT, request, self._heartbeat_timeout_ms)
            self._answered_at = asyncio.get_running_loop().time()
        except BrokerError as e:
            suppressed = self._limits.admit(e.code.name, asyncio.get_running_loop().time())
            if suppressed is not None:
                logger.info("broker.heartbeat_failed", error=e.code.name, reason=printable(e), **suppressed.fields)
            response = BrokerHeartbeatResponse(e.code)
            if not e.retriable:
                await asyncio.sleep(RETRY_MS / 1000)
        self.core.on_heartbeat(request, cast(BrokerHeartbeatResponse, response))
        if self.core.may_leave:
            self._may_leave.set()
