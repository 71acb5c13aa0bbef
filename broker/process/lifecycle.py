"""The shell of a broker's life cycle: one task that registers with the controller and then sends heartbeats until it is stopped.

`LifecycleCore` (`lifecycle_core.py`) decides what to send next, and what a response changes. Heartbeats are sent at an interval,
and at once after a change: a broker does not wait for the next interval to be unfenced or to be granted its shutdown. A heartbeat
without a response times out long before the session ends.

A broker that stops waits until the controller has moved its leaders. But if no controller listens at its address, or no active
controller has responded for `SHUTDOWN_UNHEARD_MS`, all nodes are stopping or this one is cut off: it stops without a handover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from strandline.broker.process.controller_channel import Channel
from strandline.broker.process.lifecycle_core import RETRY_MS, Identity, LifecycleCore, State
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.protocol.apis import BROKER_HEARTBEAT, BROKER_REGISTRATION
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, UsageError, to_code
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import (
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
)
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

SHUTDOWN_UNHEARD_MS = 2000
"""How long a stopping broker keeps asking for permission while no active controller responds."""
HEARTBEATS_PER_SESSION = 3
"""A heartbeat times out after the session timeout divided by this, and the next one is sent."""


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
        no_controller_listens: Callable[[], bool] = lambda: False,
    ) -> None:
        """`no_controller_listens`: whether every controller refuses connections (`MetadataLoader.no_controller_listens`)."""
        self.core = LifecycleCore(identity, heartbeat_interval_ms=heartbeat_interval_ms, session_timeout_ms=session_timeout_ms)
        self._broker_id = identity.broker_id
        self._channel = channel
        self._metadata_offset = metadata_offset
        self._heartbeat_timeout_ms = max(1, session_timeout_ms // HEARTBEATS_PER_SESSION)
        self._no_controller_listens = no_controller_listens
        self._answered_at = 0.0
        """When an active controller last answered a heartbeat, by the loop's time."""
        self._registration_timeout_ms = registration_timeout_ms
        self._on_fatal = on_fatal
        self.registered = asyncio.Event()
        self.ready = asyncio.Event()
        """Set while the broker is unfenced, both by the controller's last answer and in the broker's own metadata image."""
        self._image = MetadataImage.EMPTY
        self._replaced = False
        """Another process has taken the broker id: newer metadata about this id concerns that process. Never reset."""
        self._shutdown_granted = asyncio.Event()
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
        """Send a heartbeat at once if our own registration changed, so that the broker is unfenced or granted its shutdown
        soon."""
        self._image = delta.image
        if self._broker_id in delta.changed_brokers:
            self._update_ready()
            self._wake.set()
        elif self.core.state is State.FENCED and delta.before.offset < self.broker_epoch <= delta.image.offset:
            self._wake.set()

    def is_replaced(self, image: MetadataImage) -> bool:
        """Whether another process has registered with this broker id after us. From then on, metadata about the id concerns that
        process."""
        broker = image.brokers.get(self._broker_id)
        newer = broker is not None and broker.broker_epoch > self.broker_epoch and broker.incarnation_id != self.incarnation_id
        if newer and not self._replaced:
            self._replaced = True
            self.registered.clear()
            self.ready.clear()
            self._on_fatal(
                UsageError(
                    f"another process has registered as broker {self._broker_id}, "
                    "while the controllers had no contact with this one: stop one of them, or give it another node.id"
                )
            )
        return self._replaced

    def on_log_dir_offline(self, directory_id: bytes) -> None:
        self.core.offline_log_dirs += (directory_id,)
        self._wake.set()

    def on_cordoned(self, directory_ids: tuple[bytes, ...]) -> None:
        """Report to the controller that exactly these log directories are cordoned: they get no new replicas."""
        if directory_ids != self.core.cordoned_log_dirs:
            self.core.cordoned_log_dirs = directory_ids
            self._wake.set()

    def report_loss(self, key: TopicIdPartition) -> None:
        """Report to the controller that the log of this partition lacks records or has damaged ones: this replica must not be
        elected before it has caught up."""
        self.core.lossy[key] = None
        self._wake.set()

    def step_down(self) -> None:
        """Ask to be fenced, so that other replicas lead and this broker leaves the ISRs; then ask to be unfenced again."""
        core = self.core
        if core.state is State.RUNNING and not core.wants_step_down:
            core.wants_step_down = True
            logger.warning("broker.step_down_requested", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
            self._wake.set()

    async def controlled_shutdown(self, timeout_ms: int) -> bool:
        """Controlled shutdown: ask the controller to move this broker's leaders, and wait until it has.

        False if it did not within `timeout_ms`, or if no controller listens or responds (`SHUTDOWN_UNHEARD_MS`)."""
        self.core.wants_shutdown = True
        self._wake.set()
        loop = asyncio.get_running_loop()
        since, deadline = loop.time(), loop.time() + timeout_ms / 1000
        while not self._shutdown_granted.is_set() and loop.time() < deadline:
            unheard_s = loop.time() - max(since, self._answered_at)
            if self._no_controller_listens() or unheard_s > SHUTDOWN_UNHEARD_MS / 1000:
                logger.info("broker.handover_abandoned", broker_epoch=self.broker_epoch, unheard_ms=round(unheard_s * 1000))
                break
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + RETRY_MS / 1000)):
                    await self._shutdown_granted.wait()
            except TimeoutError:
                pass
        return self._shutdown_granted.is_set()

    async def renew(self, stale_epoch: int) -> None:
        """Register again after a request with `stale_epoch` was refused with STALE_BROKER_EPOCH. Returns once registered."""
        self.core.on_registration_lost(stale_epoch)
        if self.core.state is State.UNREGISTERED:
            self.registered.clear()
            self._wake.set()
        await self.registered.wait()

    def is_unfenced_in(self, image: MetadataImage) -> bool:
        """Whether this process is unfenced, according to an image."""
        broker = image.brokers.get(self._broker_id)
        return broker is not None and broker.broker_epoch == self.broker_epoch and not broker.fenced

    def _update_ready(self) -> None:
        if self.core.state is State.RUNNING and self.is_unfenced_in(self._image):
            if not self.ready.is_set():
                logger.info("broker.unfenced", broker_id=self._broker_id, broker_epoch=self.broker_epoch)
            self.ready.set()
        else:
            if self.ready.is_set() and not self.core.wants_shutdown:
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
            if self.core.is_shutdown_granted:
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
        """Try to register until the controller accepts. False if it never will; then `on_fatal` was called with the reason."""
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
        code = to_code(cast(BrokerRegistrationResponse, response).error_code)
        problem = self.core.on_registration(cast(BrokerRegistrationResponse, response), waited_s)
        if problem is None and self.core.state is State.UNREGISTERED and self.broker_epoch < 0 and waited_s * 1000 >= timeout_ms:
            return self.core.on_registration_timeout(timeout_ms, code)
        if problem is None and code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self._log_duplicate()
        return problem

    def _log_duplicate(self) -> None:
        """Log why the start takes long: another process with this broker id has a session, and may be alive or dead."""
        suppressed = self._limits.admit("duplicate", asyncio.get_running_loop().time())
        if suppressed is not None:
            logger.info("broker.duplicate_id_found", broker_id=self._broker_id, **suppressed.fields)

    async def _beat(self) -> None:
        """Send one heartbeat, and take its response. A heartbeat without a response changes nothing."""
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
        if self.core.is_shutdown_granted:
            self._shutdown_granted.set()
