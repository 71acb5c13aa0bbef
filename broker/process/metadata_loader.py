"""How a broker learns what the cluster agreed on: it follows the metadata log as an observer of the quorum.

A broker keeps no metadata log of its own. At its start it fetches everything (a snapshot first, if the log was cleaned
behind one), and it tells nobody before it has caught up with the quorum's high watermark, its own registration
included: acting on history would make it a leader of long ago. From then on each step of the high watermark becomes
one delta for the listeners.

`QuorumObserver` is the core. Rules:

- Only records below the high watermark are applied. What is above waits, in bytes, and is dropped again when the leader
  says that its history is another one. A divergence *below* what was applied can not be: it is our bug or their disk.
- Whoever answers a fetch without an error is the leader. Others name it (`current_leader`), as far as they know; a
  smaller epoch than the one known is news from the past and is ignored.
- A voter that does not answer is left for the next one. That the others still name it for this epoch, as they do until
  they have elected a new leader, is no reason to wait for it again before they have been asked once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.log_fetch import is_next_chunk, metadata_answer, metadata_fetch_request, truncation_offset
from strandline.controller.metadata.records import AnyRecord, decode_record
from strandline.controller.metadata.voters import Voter
from strandline.protocol.apis import FETCH, FETCH_SNAPSHOT
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError, StrandlineError, UsageError, to_code
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import FetchSnapshotRequest, FetchSnapshotResponse
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, Message, SnapshotId
from strandline.protocol.messages.data import FetchResponse
from strandline.protocol.records.batch import BatchHeader, check_crc, iter_headers
from strandline.protocol.records.reader import decode_batch
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.dial import is_unreachable

logger = get_logger(__name__)

WAIT_MS_MAX = 500
BYTES_MAX = 8 << 20
REQUEST_TIMEOUT_MS = 500
"""On top of the long poll: a controller that is silent for longer is left for another one. A broker that has lost the
active controller finds the next one well within its session, which begins anew there."""
CONNECT_TIMEOUT_MS = 500
RETRY_BACKOFF_MS = 20
RETRY_BACKOFF_MS_MAX = 250


class _Waiting(NamedTuple):
    """A fetched batch above the high watermark."""

    header: BatchHeader
    data: bytes


class _Download:
    """A snapshot on its way."""

    def __init__(self, snapshot_id: SnapshotId) -> None:
        self.id = snapshot_id
        self.data = bytearray()


class QuorumObserver:
    """The core: what to ask of whom, and what the answers make of the image. No clock, no socket."""

    def __init__(self, *, broker_id: int, cluster_id: str, voter_ids: Sequence[int]) -> None:
        self._broker_id = broker_id
        self.cluster_id = cluster_id
        self._voter_ids = list(voter_ids)
        self._next_voter = broker_id % len(self._voter_ids)
        """Whom to ask when no leader is known; the brokers start with different ones."""
        self.leader_id: int | None = None
        self.epoch = -1
        """The largest quorum epoch heard of; `leader_id` is the leader of this epoch."""
        self._silent_leader: tuple[int, int] | None = None
        """The leader, and its epoch, that did not answer when it was asked last."""
        self.image = MetadataImage.EMPTY
        """Everything applied, caught up or not."""
        self._waiting: list[_Waiting] = []
        self._fetch_offset = 0
        self._last_epoch = -1
        """The epoch of the last batch fetched."""
        self._download: _Download | None = None
        self.high_watermark = -1

    @property
    def caught_up(self) -> bool:
        """Everything that is known to be committed was applied."""
        return 0 <= self.high_watermark <= self.image.offset + 1

    def target(self) -> int:
        """The voter to ask next."""
        return self.leader_id if self.leader_id is not None else self._voter_ids[self._next_voter]

    def request(self) -> tuple[int, Message]:
        """The api key and the request for `target()`."""
        if self._download is not None:
            return FETCH_SNAPSHOT, FetchSnapshotRequest(
                replica_id=self._broker_id,
                cluster_id=self.cluster_id,
                max_bytes=BYTES_MAX,
                current_leader_epoch=self.epoch,
                snapshot_id=self._download.id,
                position=len(self._download.data),
            )
        return FETCH, metadata_fetch_request(
            replica_id=self._broker_id,
            cluster_id=self.cluster_id,
            leader_epoch=self.epoch,
            fetch_offset=self._fetch_offset,
            last_fetched_epoch=self._last_epoch,
            log_start_offset=-1,
            wait_ms_max=WAIT_MS_MAX,
            bytes_max=BYTES_MAX,
        )

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_failure(self, voter_id: int) -> None:
        """No answer: try another voter."""
        if voter_id == self.leader_id:
            self.leader_id = None
            self._silent_leader = (voter_id, self.epoch)
        self._next_voter = (self._voter_ids.index(voter_id) + 1) % len(self._voter_ids)

    def on_fetch(self, voter_id: int, response: FetchResponse) -> MetadataDelta | None:
        """What the answer committed, as one delta. Raises `BrokerError` with a code that no other voter would heal."""
        if response.error_code:
            self._on_error(voter_id, to_code(response.error_code), CurrentLeader())
            return None
        answer = metadata_answer(response)
        if answer is None:
            raise PeerError(f"controller {voter_id} answered a fetch of one partition with {len(response.partitions)}")
        if answer.error_code:
            self._on_error(voter_id, to_code(answer.error_code), answer.current_leader)
            return None
        self._on_leader(voter_id, answer.current_leader.leader_epoch)
        if answer.snapshot_id.end_offset >= 0:
            self._start_download(answer.snapshot_id)
            return None
        if answer.diverging_epoch.epoch >= 0:
            self._truncate(answer.diverging_epoch)
            return None
        self._take_batches(response.records[0])
        self.high_watermark = max(self.high_watermark, answer.high_watermark)
        return self._apply_committed()

    def on_fetch_snapshot(self, voter_id: int, response: FetchSnapshotResponse) -> MetadataDelta | None:
        """One more piece; the last one makes the image and returns what it changes."""
        code, download = to_code(response.error_code), self._download
        if code or download is None:
            self._download = None
            if code not in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
                self._on_error(voter_id, code, CurrentLeader(response.leader_id, response.leader_epoch))
            return None
        if not is_next_chunk(response, download.id, len(download.data)):
            self._download = None
            raise PeerError(f"controller {voter_id} sent another chunk of the snapshot than the requested one")
        download.data += response.records[0]
        return self._install(download) if len(download.data) >= response.size else None

    def _on_leader(self, voter_id: int, epoch: int) -> None:
        self.leader_id = voter_id
        self._silent_leader = None
        self.epoch = max(self.epoch, epoch)

    def _on_error(self, voter_id: int, code: ErrorCode, hint: CurrentLeader) -> None:
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise BrokerError(code)
        self.on_failure(voter_id)
        if hint.leader_epoch >= self.epoch:
            self.epoch = hint.leader_epoch
            is_news = (hint.leader_id, hint.leader_epoch) != self._silent_leader
            self.leader_id = hint.leader_id if is_news and hint.leader_id in self._voter_ids else None

    # -- the log ------------------------------------------------------------------------------------------------------

    def _take_batches(self, records: memoryview) -> None:
        for position, header in iter_headers(records):
            if header.base_offset != self._fetch_offset:
                raise PeerError(f"a metadata batch starts at {header.base_offset}, not at {self._fetch_offset}")
            if not check_crc(records, position, header.size):
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the metadata batch at offset {header.base_offset} is damaged")
            self._waiting.append(_Waiting(header, bytes(records[position : position + header.size])))
            self._fetch_offset = header.last_offset + 1
            self._last_epoch = header.leader_epoch

    def _truncate(self, diverging: EpochEndOffset) -> None:
        """Drop what waits and is not in the leader's log; the next fetch goes on from there."""
        applied = self.image.offset + 1
        if diverging.end_offset < applied:
            raise InternalError(
                f"the quorum's log ends epoch {diverging.epoch} at {diverging.end_offset}, but {applied} was committed"
            )
        offset = truncation_offset(*self._end_offset_for_epoch(diverging.epoch), diverging)
        while self._waiting and self._waiting[-1].header.last_offset >= offset:
            self._waiting.pop()
        self._last_epoch, self._fetch_offset = self._end_offset_for_epoch(diverging.epoch)

    def _end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` that was fetched or applied, and its end."""
        headers = (waiting.header for waiting in reversed(self._waiting))
        last = next((header for header in headers if header.leader_epoch <= epoch), None)
        return (self.image.epoch, self.image.offset + 1) if last is None else (last.leader_epoch, last.last_offset + 1)

    def _apply_committed(self) -> MetadataDelta | None:
        records: list[AnyRecord] = []
        count = 0
        for waiting in self._waiting:
            if waiting.header.last_offset >= self.high_watermark:
                break
            count += 1
            records += _records_of(waiting.header, waiting.data)
        if not count:
            return None
        last = self._waiting[count - 1].header
        del self._waiting[:count]
        delta = self.image.apply(records, last.last_offset, last.leader_epoch)
        self.image = delta.image
        return delta

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _start_download(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id.end_offset <= self.image.offset + 1:
            raise InternalError(f"the quorum offers a snapshot up to {snapshot_id.end_offset}, behind {self.image.offset + 1}")
        logger.info("metadata.snapshot_requested", metadata_offset=snapshot_id.end_offset, controller_epoch=snapshot_id.epoch)
        self._download = _Download(snapshot_id)

    def _install(self, download: _Download) -> MetadataDelta:
        self._download = None
        records: list[AnyRecord] = []
        for position, header in iter_headers(download.data):
            records += _records_of(header, memoryview(download.data)[position : position + header.size])
        end = download.id.end_offset
        image = MetadataImage.from_records(records, end - 1, download.id.epoch)
        delta = self.image.delta_to(image)
        self.image = image
        self._waiting.clear()
        self._fetch_offset, self._last_epoch = end, download.id.epoch
        self.high_watermark = max(self.high_watermark, end)
        return delta


def _records_of(header: BatchHeader, data: bytes | memoryview) -> list[AnyRecord]:
    """The metadata records of a batch; a control batch has none."""
    if header.is_control:
        return []
    try:
        return [decode_record(record.value) for record in decode_batch(data, 0, header) if record.value is not None]
    except PeerError as e:
        # Its checksum is right and it is committed: every voter has this very record.
        raise InternalError(f"the metadata cannot be followed beyond offset {header.base_offset}: {e}") from None


# -- the shell --------------------------------------------------------------------------------------------------------


class MetadataListener(Protocol):
    def __call__(self, delta: MetadataDelta) -> None: ...


class MetadataLoader:
    """The shell: one task, one connection to one voter at a time; publishes deltas, in order, once each."""

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        voters: Sequence[Voter],
        on_fatal: Callable[[StrandlineError], None],
    ) -> None:
        self._observer = QuorumObserver(broker_id=broker_id, cluster_id=cluster_id, voter_ids=[v.id for v in voters])
        self._voters = {voter.id: voter for voter in voters}
        self._cluster_id = cluster_id
        self._client_id = f"broker-{broker_id}-metadata"
        self._on_fatal = on_fatal
        self.image = MetadataImage.EMPTY
        """What was published last."""
        self.published = asyncio.Event()
        """Set with the first publication."""
        self._publish_from: int | None = None
        """The first publication holds at least this offset; None: not allowed yet."""
        self.listeners: list[MetadataListener] = []
        self.on_controller_changed: list[Callable[[], None]] = []
        self.listener_errors = 0
        self.controller_changes = 0
        self._waiters: dict[asyncio.Future[None], Callable[[MetadataImage], bool]] = {}
        self._connection: Connection | None = None
        self._connected_to: int | None = None
        self.heard_at = -1.0
        """When the newest question was *asked* to which the leader's answer has been published, as far as that is allowed:
        the image shows everything that was committed then."""
        self._deaf: set[int] = set()
        """Voters where, since the last connection, the newest attempt found nobody: refused, or no such name."""
        self._limits = LineLimits()
        self._task: asyncio.Task[None] | None = None

    def use_cluster(self, cluster_id: str) -> None:
        """Before `start`: the cluster's id, for a broker that had to ask for it."""
        self._cluster_id = self._observer.cluster_id = cluster_id

    @property
    def controller(self) -> tuple[Voter, int] | None:
        """The active controller and its epoch, as far as is known."""
        leader_id = self._observer.leader_id
        return None if leader_id is None else (self._voters[leader_id], self._observer.epoch)

    @property
    def nobody_listens(self) -> bool:
        """Not one voter is there: their hosts refuse connections, or have no name any more. Silence is not meant."""
        return len(self._deaf) == len(self._voters)

    @property
    def high_watermark(self) -> int:
        """Of the metadata log, as it was told last; -1 before."""
        return self._observer.high_watermark

    @property
    def epoch(self) -> int:
        """The largest quorum epoch heard of."""
        return self._observer.epoch

    @property
    def lag(self) -> int:
        """Entries that are known to be committed and were not acted on."""
        return max(0, self._observer.high_watermark - 1 - self.image.offset)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata-follower")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop_connection()
        for future in self._waiters:
            future.cancel()

    def allow_publication(self, offset: int) -> None:
        """Publish once the image has this offset, that of the broker's own registration.

        Before it, the image may still show what an earlier process of this broker was: a leader, with another disk.
        """
        self._publish_from = offset
        self._maybe_publish(None)

    async def wait_for(self, condition: Callable[[MetadataImage], bool], timeout_s: float) -> bool:
        """Until a published image fulfils the condition; False when it did not in time."""
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
            except Exception as e:
                # A broker that goes on with the metadata of this moment for ever looks alive, and is not.
                logger.exception("metadata.loading_failed")
                self._on_fatal(e if isinstance(e, StrandlineError) else InternalError(f"following the metadata failed: {e!r}"))
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
        # A large image over a thin line is no silence.
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
                    voter.host, voter.port, client_id=self._client_id, connect_timeout_ms=CONNECT_TIMEOUT_MS
                )
            except BrokerError as e:
                (self._deaf.add if is_unreachable(e.__cause__) else self._deaf.discard)(voter_id)
                raise
            self._deaf.clear()
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
