"""How a broker gets the cluster's metadata (Kafka's MetadataLoader): it follows the metadata log and publishes deltas.

Nothing is published before the broker has caught up with the quorum's high watermark, its own registration included: acting on
history would make it the leader of partitions that it lost long ago. From then on each step of the high watermark becomes one
delta for the listeners.

`QuorumObserver` (`quorum_observer.py`) decides what to ask and what to make of the answers; the shell here owns the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from strandline.broker.process.quorum_observer import WAIT_MS_MAX, QuorumObserver
from strandline.controller.metadata.features import SUPPORTED, Levels, UnsupportedLevel
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError, StrandlineError, UsageError
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import FetchSnapshotResponse
from strandline.protocol.messages.data import FetchResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.dial import is_unreachable
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

REQUEST_TIMEOUT_MS = 500
"""Added to the wait of the long poll. With it, a broker that has lost the active controller finds the next one well within its
session."""
CONNECT_TIMEOUT_MS = 500
LOGIN_TIMEOUT_MS = 2000
"""The connect timeout with TLS or SASL, for which the controller's process has to answer, not only its kernel."""
RETRY_BACKOFF_MS = 20
RETRY_BACKOFF_MS_MAX = 250


class MetadataListener(Protocol):
    """Is called with each published delta, in order."""

    def __call__(self, delta: MetadataDelta) -> None: ...


class MetadataLoader:
    """Follows the metadata log with one task and one connection to one voter at a time. Publishes each delta once, in order."""

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        voters: Sequence[Voter],
        on_fatal: Callable[[StrandlineError], None],
        levels: Levels = SUPPORTED,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        voter_ids = [voter.id for voter in voters]
        self._observer = QuorumObserver(broker_id=broker_id, cluster_id=cluster_id, voter_ids=voter_ids, levels=levels)
        self._voters = {voter.id: voter for voter in voters}
        self._cluster_id = cluster_id
        self._client_id = f"broker-{broker_id}-metadata"
        self._security = security
        self._connect_timeout_ms = CONNECT_TIMEOUT_MS if security is NO_SECURITY else LOGIN_TIMEOUT_MS
        self._on_fatal = on_fatal
        self.image = MetadataImage.EMPTY
        """The image of the last publication."""
        self.published = asyncio.Event()
        """Set with the first publication."""
        self._publish_from: int | None = None
        """The offset that the first publication must include; None while publication is not allowed yet."""
        self.listeners: list[MetadataListener] = []
        self.on_controller_changed: list[Callable[[], None]] = []
        self.listener_errors = 0
        self.controller_changes = 0
        self._waiters: dict[asyncio.Future[None], Callable[[MetadataImage], bool]] = {}
        self._connection: Connection | None = None
        self._connected_to: int | None = None
        self.heard_at = -1.0
        """When the newest fetch that the leader has answered was *sent* (loop time). If publication is allowed, the image shows
        everything that was committed at that time."""
        self._unreachable: set[int] = set()
        """Voters that refused the newest attempt to connect, or whose name was not found. A connection to any voter clears it."""
        self._limits = LineLimits()
        self._task: asyncio.Task[None] | None = None

    def use_cluster(self, cluster_id: str) -> None:
        """Set the cluster id that the controllers have answered. Called before `start`."""
        self._cluster_id = self._observer.cluster_id = cluster_id

    @property
    def controller(self) -> tuple[Voter, int] | None:
        """The active controller and its epoch; None if it is not known."""
        leader_id = self._observer.leader_id
        return None if leader_id is None else (self._voters[leader_id], self._observer.epoch)

    @property
    def no_controller_listens(self) -> bool:
        """Whether every voter refuses connections or has a name that cannot be resolved. A silent voter counts as listening."""
        return len(self._unreachable) == len(self._voters)

    @property
    def high_watermark(self) -> int:
        """The newest known high watermark of the metadata log; -1 before the first answer."""
        return self._observer.high_watermark

    @property
    def epoch(self) -> int:
        """The largest known quorum epoch."""
        return self._observer.epoch

    @property
    def lag(self) -> int:
        """The number of records that are known to be committed and were not published yet."""
        return max(0, self._observer.high_watermark - 1 - self.image.offset)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata-loader")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop_connection()
        for future in self._waiters:
            future.cancel()

    def allow_publication(self, offset: int) -> None:
        """Allow publication once the image includes this offset, that of the broker's own registration.

        An older image may still name an earlier process of this broker as a leader, with another disk.
        """
        self._publish_from = offset
        self._maybe_publish(None)

    async def wait_for(self, condition: Callable[[MetadataImage], bool], timeout_s: float) -> bool:
        """Wait until a published image fulfils the condition. False if none did within `timeout_s`."""
        if condition(self.image):
            return True
        future = asyncio.get_running_loop().create_future()
        self._waiters[future] = condition
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(future, None)
        return True

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_ms, loop = RETRY_BACKOFF_MS, asyncio.get_running_loop()
        while True:
            before, asked_at = self.controller, loop.time()
            voter_id = self._observer.target()
            try:
                delta = await self._ask(voter_id)
            except (BrokerError, PeerError) as e:
                if isinstance(e, BrokerError) and e.code == ErrorCode.INCONSISTENT_CLUSTER_ID:
                    self._on_fatal(_wrong_cluster(self._voters[voter_id], self._cluster_id))
                    return
                suppressed = self._limits.admit(str(voter_id), loop.time())
                if suppressed is not None:
                    logger.info("metadata.voter_failed", voter_id=voter_id, reason=printable(e), **suppressed.fields)
                self._observer.on_failure(voter_id)
                self._drop_connection()
                delta = None
            except UnsupportedLevel as e:
                self._on_fatal(e)
                return
            except Exception as e:
                # If the loop went on, the broker would look alive, but would keep this metadata for ever.
                logger.exception("metadata.loading_failed")
                text = f"the metadata log could not be followed: {e!r}"
                self._on_fatal(e if isinstance(e, StrandlineError) else InternalError(text))
                return
            if self.controller != before:
                self._notify_controller_changed()
            if delta is not None or self._observer.caught_up:
                self._maybe_publish(delta)
            if self._observer.leader_id == voter_id and self._observer.caught_up:
                self.heard_at = asked_at
            if self._observer.leader_id is None:
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, RETRY_BACKOFF_MS_MAX)
            else:
                backoff_ms = RETRY_BACKOFF_MS

    async def _ask(self, voter_id: int) -> MetadataDelta | None:
        connection = await self._connection_to(voter_id)
        api_key, request = self._observer.request()
        # The timeout counts silence, because a large snapshot over a slow line takes long.
        response = await connection.request(api_key, request, timeout_ms=WAIT_MS_MAX + REQUEST_TIMEOUT_MS, of_silence=True)
        if isinstance(response, FetchSnapshotResponse):
            return self._observer.on_fetch_snapshot(voter_id, response)
        assert isinstance(response, FetchResponse)
        return self._observer.on_fetch(voter_id, response)

    async def _connection_to(self, voter_id: int) -> Connection:
        if self._connection is not None and (self._connection.closed or self._connected_to != voter_id):
            self._drop_connection()
        if self._connection is None:
            voter = self._voters[voter_id]
            try:
                self._connection = await Connection.connect(
                    voter.host,
                    voter.port,
                    client_id=self._client_id,
                    connect_timeout_ms=self._connect_timeout_ms,
                    security=self._security,
                )
            except BrokerError as e:
                (self._unreachable.add if is_unreachable(e.__cause__) else self._unreachable.discard)(voter_id)
                raise
            self._unreachable.clear()
            self._connected_to = voter_id
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _notify_controller_changed(self) -> None:
        controller = self.controller
        controller_id = -1 if controller is None else controller[0].id
        self.controller_changes += controller is not None
        logger.info("metadata.controller_changed", controller_id=controller_id, controller_epoch=self._observer.epoch)
        for callback in self.on_controller_changed:
            callback()

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _maybe_publish(self, delta: MetadataDelta | None) -> None:
        if self.published.is_set():
            if delta is not None:
                self._publish(delta)
        elif self._publish_from is not None and self._publish_from <= self._observer.image.offset and self._observer.caught_up:
            self.published.set()
            logger.info("metadata.caught_up", metadata_offset=self._observer.image.offset)
            self._publish(self.image.delta_to(self._observer.image))

    def _publish(self, delta: MetadataDelta) -> None:
        self.image = delta.image
        for listener in self.listeners:
            try:
                listener(delta)
            except Exception:
                self.listener_errors += 1
                logger.exception("metadata.listener_failed", metadata_offset=delta.image.offset)
        for future, condition in list(self._waiters.items()):
            if not future.done() and condition(self.image):
                future.set_result(None)


def _wrong_cluster(voter: Voter, cluster_id: str) -> UsageError:
    return UsageError(
        f"controller {voter.id} at {voter.host}:{voter.port} belongs to another cluster than {cluster_id!r} "
        "(config cluster.id): check controller.quorum.voters"
    )
