"""Serving Fetch: one read path for followers and consumers.

A request updates its session (`fetch_session.py`). Then the handler visits the session's dirty partitions: it checks the epoch
and position that the client named, records a follower's progress, and reads what the client may see, as long as the response has
room. The first partition with records gives at least one batch, however large, so that no client is stuck.

The response is sent at once if the visit has found enough bytes, an error or a divergence, or if the request does not wait.
Otherwise the request is parked on its session until a partition moves, and the dirty partitions are visited again. Only the
arrival of the request records a follower's progress, never a later visit: the follower did not fetch at that moment.

A consumer that names its rack may be sent to another replica, in that rack (`replica_selector.py`). Such an answer has no records
for the partition, and does not wait. A follower serves such a consumer up to its own high watermark.

A consumer that reads committed records only (isolation level 1) gets those below the last stable offset, and with them the
aborted transactions that have records among them, which it drops. That offset moves only when the high watermark does.

With an authorizer, each visit checks whether the consumer may read the topic: a session names its partitions once, and a right
may be withdrawn at any time.

A read that would block on the disk is not done here. A thread brings the page into the cache, and then the visit is repeated with
every check. Meanwhile no other request waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strandline.broker.disk_work import RunBlocking
from strandline.broker.fetch.fetch_session import NO_SESSION, FetchSession, FetchSessionCache, SessionPartition
from strandline.broker.fetch.replica_selector import ReplicaSelector
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import DelayedOperation, Purgatory
from strandline.broker.replication.throttle import CHUNK_S
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset
from strandline.protocol.messages.data import AbortedTransaction, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import Buffer, ColdRead, DiskError
from strandline.storage.log.log import Log

logger = get_logger(__name__)

READ_COMMITTED = 1
"""The isolation level of consumers that see no record of an open or aborted transaction."""
WAIT_MS_MAX = 300_000
"""The longest wait, even if the request allows more. The broker detects that a client has disconnected only when a partition
moves, or at the end of the wait."""


class ReadersRight(Protocol):
    """The rights of the consumer that has sent a request (`broker/security/reading.py`)."""

    def check(self, topic_id: bytes) -> None:
        """Raises TOPIC_AUTHORIZATION_FAILED or UNKNOWN_TOPIC_ID if the consumer may not read the topic."""


ReadersRights = Callable[[ServerRequest], ReadersRight]


class Answer:
    """A response that is being built. The session does not change before it is sent."""

    __slots__ = ("cold", "cold_key", "is_urgent", "quiet", "records", "responses", "seen", "size", "throttle_cost_s")

    def __init__(self) -> None:
        self.responses: list[FetchPartitionResponse] = []
        self.records: list[list[Buffer]] = []
        """One entry for each of `responses`."""
        self.seen: list[tuple[SessionPartition, int, bool]] = []
        """For each of `responses`: its session entry, its size in bytes, and whether to visit the partition again before it
        moves."""
        self.quiet: list[SessionPartition] = []
        """Visited partitions that had no news and need no other visit before they move."""
        self.size = 0
        self.throttle_cost_s = 0.0
        """The cost of its throttled records, in seconds (`broker/replication/throttle.py`)."""
        self.is_urgent = False
        """Whether the answer must not wait, because it has an error, a divergence or an offset that the client needs at once."""
        self.cold: ColdRead | None = None
        """The first read that would have blocked on the disk."""
        self.cold_key: TopicIdPartition | None = None

    @property
    def is_only_cold(self) -> bool:
        """Whether there are records to read, but all of them are on the disk."""
        return self.cold is not None and self.size == 0 and not self.is_urgent


class Fetch(DelayedOperation):
    """One fetch request, from its arrival until the broker responds."""

    __slots__ = (
        "_counted",
        "_is_full",
        "_max_bytes",
        "_min_bytes",
        "_reads_committed",
        "_warmed",
        "handler",
        "request",
        "session",
    )

    def __init__(self, handler: FetchHandler, request: ServerRequest, session: FetchSession, is_full: bool) -> None:
        super().__init__()
        body = request.body
        assert isinstance(body, FetchRequest)
        self.handler = handler
        self.request = request
        self.session = session
        self._is_full = is_full
        """Whether the answer lists every partition of the session, changed or not."""
        self._max_bytes = min(max(0, body.max_bytes), handler.response_bytes_max)
        self._min_bytes = min(max(0, body.min_bytes), max(1, self._max_bytes))
        """The `min_bytes` of the request, but not more than `max_bytes`, which counts as at least 1 here: a fetch with
        `max_bytes` 0 also waits for one batch."""
        self._reads_committed = body.isolation_level == READ_COMMITTED
        self._warmed: TopicIdPartition | None = None
        """The partition whose bytes were brought into the page cache for this request: reading it may block now."""
        self._counted: dict[TopicIdPartition, tuple[int, int]] = {}
        """Partition -> (the offset up to which its bytes were counted, their number)."""

    def limit_bytes(self, max_bytes: int) -> None:
        """Limit the answer to this many bytes, but not to less than one batch. Called before `begin`."""
        self._max_bytes = min(self._max_bytes, max_bytes)
        self._min_bytes = min(self._min_bytes, max(1, self._max_bytes))

    def begin(self, max_wait_ms: int) -> None:
        """Answer at once, or park the request for at most `max_wait_ms`."""
        answer = self._collect(arrival=True)
        if answer.is_only_cold:
            self.session.forget_quiet(answer.quiet)
            self._warm_up(answer)
        elif self._is_enough(answer) or max_wait_ms == 0 or not self.session.partitions or self._has_more(answer):
            self.is_completed = True
            self.reply(answer)
        else:
            self.session.forget_quiet(answer.quiet)
            self._park(max_wait_ms)

    def _is_enough(self, answer: Answer) -> bool:
        return answer.size >= self._min_bytes or answer.is_urgent

    def _has_more(self, answer: Answer) -> bool:
        """Whether the partitions have enough records, although the answer has fewer: the next batch does not fit, or is on the
        disk."""
        return self._min_bytes > 1 and answer.size > 0 and self._has_counted_enough()

    def _park(self, max_wait_ms: int) -> None:
        self.session.parked = self
        self.handler.purgatory.park(self, max_wait_ms)

    # -- what ends it -------------------------------------------------------------------------------------------------

    def try_complete(self) -> None:
        """Called when a partition of the session moved: visit the dirty partitions again, and respond if the result is enough."""
        if self.is_completed or (self._min_bytes > 1 and not self._has_counted_enough()):
            return
        if self.request.connection.closed:
            self._leave()
            self._part()
            return
        answer = self._collect(arrival=False)
        if answer.is_only_cold:
            self._leave()
            self._warm_up(answer)
        elif self._is_enough(answer) or self._has_more(answer):
            self._leave()
            self.reply(answer)
        else:
            self.session.forget_quiet(answer.quiet)

    def on_complete(self) -> None:
        """Respond with the records that are available now, because the wait is over, the session ends, or its next request has
        arrived."""
        self.reply(self._collect(arrival=False))

    def on_expiration(self) -> None:
        metrics = self.handler.directory.metrics
        if self.session.is_follower:
            metrics.expired_follower_fetches += 1
        else:
            metrics.expired_consumer_fetches += 1
        self.on_complete()

    def _warm_up(self, answer: Answer) -> None:
        """All records to read are on the disk: bring the first of them into the page cache, then visit again."""
        assert answer.cold is not None
        self.is_completed = False
        self.session.parked = self
        self._warmed = answer.cold_key
        self.handler.warm_up(answer.cold, self._on_warm)

    def _on_warm(self) -> None:
        if not self.is_completed:
            self._leave()
            self.reply(self._collect(arrival=False))

    # -- visiting partitions ------------------------------------------------------------------------------------------

    def _collect(self, arrival: bool) -> Answer:
        """Visit the dirty partitions. `arrival`: this visit is the arrival of the request, and records a follower's progress."""
        answer = Answer()
        is_follower, reading = self.session.is_follower, self.handler.reading
        rights = None if reading is None or is_follower else reading(self.request)
        for cached in list(self.session.dirty.values()):
            try:
                if rights is not None:
                    rights.check(cached.key[0])
                partition = cached.partition or self._attach(cached)
                if is_follower:
                    self.visit_for_follower(cached, partition, answer, arrival)
                else:
                    self.visit_for_consumer(cached, partition, answer)
            except BrokerError as e:
                self.add_error(cached, self.handler.failures.code_of(cached.key, e), answer)
            except DiskError as e:
                self.handler.failures.on_disk_error(e)
                self.add_error(cached, ErrorCode.KAFKA_STORAGE_ERROR, answer)
        return answer

    def _attach(self, cached: SessionPartition) -> Partition:
        partition = self.handler.directory.partition(cached.key)
        cached.attach(partition)
        if self.session.rack_id and partition.leader_state is None:
            self.handler.on_reader(cached.key)
        return partition

    def visit_for_follower(self, cached: SessionPartition, partition: Partition, answer: Answer, arrival: bool) -> None:
        """Record the follower's progress if its request arrives now, and add records up to the log end to the answer."""
        session, leader_state, log_ = self.session, partition.leader_state, partition.log
        epoch, offset = cached.current_leader_epoch, cached.fetch_offset
        if leader_state is None or leader_state.epoch != epoch:
            leader_state = partition.leading_follower(epoch)
        replica = leader_state.replicas.get(session.replica_id) or leader_state.replica(session.replica_id)
        diverging = None
        if cached.last_fetched_epoch != epoch or not log_.log_start_offset <= offset <= log_.log_end_offset:
            diverging = partition.divergence(offset, cached.last_fetched_epoch)
        if arrival and diverging is None:
            known = session if session.id else None
            leader_state.on_follower_fetch(replica, offset, cached.log_start_offset, session.replica_epoch, known)
        # A follower outside the ISR is visited with each fetch: this one may let it join.
        look_again = session.replica_id not in leader_state.isr.isr
        if leader_state.throttled and leader_state.is_throttled(session.replica_id):
            self._add_throttled(cached, partition, leader_state, diverging, answer)
        else:
            self._add(cached, partition, log_.log_end_offset, diverging, look_again, answer)

    def _add_throttled(
        self,
        cached: SessionPartition,
        partition: Partition,
        leader_state: LeaderState,
        diverging: EpochEndOffset | None,
        answer: Answer,
    ) -> None:
        """Add records for a replica that a reassignment with a throttle adds, if the throttle permits. If not, the records are
        left out, and do not complete a parked request: the follower gets them with a fetch after this long poll (KIP-73)."""
        handler, before = self.handler, answer.size
        is_open = not handler.directory.sending.is_exceeded(handler.now()) and answer.throttle_cost_s < CHUNK_S
        end = partition.log.log_end_offset if is_open else cached.fetch_offset
        self._add(cached, partition, end, diverging, True, answer)
        answer.throttle_cost_s += (answer.size - before) / leader_state.throttle_rate

    def visit_for_consumer(self, cached: SessionPartition, partition: Partition, answer: Answer) -> None:
        """Add what a consumer may see of the partition to the answer: records below the high watermark, or below the last stable
        offset if it reads committed records only."""
        partition.check_leader_epoch(cached.current_leader_epoch)
        if partition.leader_state is None:
            partition.check_serves_readers(self.session.rack_id)
        diverging = partition.divergence(cached.fetch_offset, cached.last_fetched_epoch)
        if diverging is None and self.session.rack_id and self.maybe_nominate(cached, partition, answer):
            return
        self._add(cached, partition, self._readable_end(partition), diverging, False, answer)

    def _readable_end(self, partition: Partition) -> int:
        return partition.log.last_stable_offset if self._reads_committed else partition.log.high_watermark

    def maybe_nominate(self, cached: SessionPartition, partition: Partition, answer: Answer) -> bool:
        """If this broker leads and another replica should serve the consumer, answer with its id, without records and at once
        (KIP-392). Returns whether it did."""
        handler, leader_state = self.handler, partition.leader_state
        if handler.selector is None or leader_state is None:
            return False
        selected = handler.selector(leader_state, cached.fetch_offset, self.session.rack_id, handler.directory.rack_of)
        if selected is None:
            return False
        high_watermark = partition.log.high_watermark
        start = partition.log.log_start_offset
        stable = partition.log.last_stable_offset
        response = FetchPartitionResponse(cached.key[0], cached.key[1], 0, high_watermark, stable, start)
        response.preferred_read_replica = selected
        answer.responses.append(response)
        answer.records.append([])
        answer.seen.append((cached, 0, True))  # A consumer that stays in spite of the nomination must not wait for a new record.
        answer.is_urgent = True
        partition.metrics.nominations += 1
        return True

    def _add(
        self,
        cached: SessionPartition,
        partition: Partition,
        end: int,
        diverging: EpochEndOffset | None,
        look_again: bool,
        answer: Answer,
    ) -> None:
        """Read up to `end`, and add the partition to the answer if there is any news."""
        log_ = partition.log
        buffers: list[Buffer] = []
        size = 0
        if diverging is not None:
            answer.is_urgent = True
        elif cached.fetch_offset < end:
            look_again = True
            buffers, size = self._read(cached, partition, end, answer)
        high_watermark, start = log_.high_watermark, log_.log_start_offset
        if start > cached.log_start_offset and self.session.is_follower and cached.is_start_news(start):
            answer.is_urgent = True  # DeleteRecords waits until the follower has moved its log start
        elif cached.has_readers and cached.is_high_watermark_news_for_readers(high_watermark):
            answer.is_urgent = True  # consumers wait at the follower
        if not (
            size
            or self._is_full
            or high_watermark != cached.sent_high_watermark
            or start != cached.sent_log_start_offset
            or diverging is not None
        ):
            if not look_again:
                answer.quiet.append(cached)
            return
        stable = log_.last_stable_offset
        response = FetchPartitionResponse(cached.key[0], cached.key[1], 0, high_watermark, stable, start)
        if size and self._reads_committed and not self.session.is_follower:
            response.aborted_transactions = _aborted(log_, cached.fetch_offset, buffers)
        if log_.tombstones_removed_below and self.session.is_follower:
            # Read after the records, so that each tombstone that they lack lies below it.
            response.tombstones_removed_below = min(log_.tombstones_removed_below, log_.log_end_offset)
        if diverging is not None:
            response.diverging_epoch = diverging
        answer.responses.append(response)
        answer.records.append(buffers)
        answer.seen.append((cached, size, look_again))
        answer.size += size

    def add_error(self, cached: SessionPartition, code: ErrorCode, answer: Answer) -> None:
        """Answer for one partition with an error."""
        leader = self.handler.directory.current_leader(cached.key) if code in _LEADER_HELPS else CurrentLeader()
        answer.responses.append(FetchPartitionResponse(cached.key[0], cached.key[1], code, current_leader=leader))
        answer.records.append([])
        answer.seen.append((cached, 0, True))
        answer.is_urgent |= code != cached.sent_error

    def _read(self, cached: SessionPartition, partition: Partition, end: int, answer: Answer) -> tuple[list[Buffer], int]:
        room = self._max_bytes - answer.size
        if answer.size and room <= 0:
            return [], 0
        may_block = not self.handler.has_threads or cached.key == self._warmed
        wanted = cached.max_bytes if cached.max_bytes < room else room
        partition.metrics.fetches += 1
        try:
            read = partition.log.read(cached.fetch_offset, wanted, end, min_one=not answer.size, may_block=may_block)
        except ColdRead as e:
            if answer.cold is None:
                answer.cold, answer.cold_key = e, cached.key
            return [], 0
        return read.buffers, read.size

    def _has_counted_enough(self) -> bool:
        """Whether the dirty partitions may have `min_bytes` now. Each byte is counted once, however often the partitions move."""
        total = 0
        for cached in self.session.dirty.values():
            partition = cached.partition
            if partition is None or cached.current_leader_epoch not in (-1, partition.leader_epoch):
                return True
            end = partition.log.log_end_offset if self.session.is_follower else self._readable_end(partition)
            offset, size = self._counted.get(cached.key, (cached.fetch_offset, 0))
            if offset < end and size < cached.max_bytes:
                try:
                    size += partition.log.read(offset, cached.max_bytes, end, may_block=False).size
                except (BrokerError, DiskError, ColdRead):
                    return True
                self._counted[cached.key] = (end, size)
            total += min(size, cached.max_bytes)
        return total >= self._min_bytes or not total

    # -- answering ----------------------------------------------------------------------------------------------------

    def reply(self, answer: Answer) -> None:
        """Send the answer, and remember in the session which offsets and errors it has."""
        session = self.session
        session.forget_quiet(answer.quiet)
        for response, (cached, size, look_again) in zip(answer.responses, answer.seen, strict=True):
            cached.on_answer(response, size, look_again)
            if size or response.error_code:
                self._count(cached, size, response.error_code)
        if answer.throttle_cost_s:
            self.handler.directory.sending.record(answer.throttle_cost_s, self.handler.now())
        if answer.cold is not None:
            self.handler.warm_up(answer.cold, None)
        self._part()
        self.request.reply(FetchResponse(0, 0, session.id, answer.responses, []), answer.records)

    def leave_session_unchanged(self) -> int:
        """Leave the session as it is, because an empty response is sent instead of an answer. Returns the session id for this
        response: 0 after a full fetch, whose response would have to list every partition, so its session ends."""
        session = self.session
        self._part()
        if self._is_full and session.id:
            self.handler.sessions.remove(session.id)
            return NO_SESSION
        return session.id

    def _count(self, cached: SessionPartition, size: int, error_code: int) -> None:
        partition = cached.partition
        metrics = self.handler.directory.metrics.departed if partition is None else partition.metrics
        if error_code:
            metrics.fetches += 1
            metrics.failed_fetches += 1
        elif self.session.is_follower:
            metrics.replication_bytes_out += size
            if partition is not None and partition.leader_state is not None and partition.leader_state.adding_replicas:
                partition.leader_state.count_reassignment_bytes(self.session.replica_id, size)
        else:
            metrics.bytes_out += size
            if self.session.rack_id and partition is not None and partition.leader_state is None:
                metrics.follower_bytes_out += size

    def _part(self) -> None:
        session = self.session
        if session.parked is self:
            session.parked = None
        if not session.id:
            session.close()


def _aborted(log: Log, offset: int, buffers: list[Buffer]) -> list[AbortedTransaction] | None:
    """The aborted transactions that have records in these buffers, which were read at `offset`; None if there are none."""
    end = offset
    for _, header in iter_headers(buffers[-1]):
        end = header.next_offset
    found = log.aborted_transactions(offset, end)
    return [AbortedTransaction(*transaction[:3]) for transaction in found] or None


MakeFetch = Callable[["FetchHandler", ServerRequest, FetchSession, bool], Fetch]


class FetchHandler:
    """Answers Fetch requests of a broker."""

    def __init__(
        self,
        directory: PartitionDirectory,
        failures: LogFailures,
        sessions: FetchSessionCache,
        purgatory: Purgatory,
        now: Callable[[], float],
        *,
        response_bytes_max: int,
        run_blocking: RunBlocking | None = None,
        selector: ReplicaSelector | None = None,
        on_reader: Callable[[TopicIdPartition], None] = lambda key: None,
        reading: ReadersRights | None = None,
    ) -> None:
        """`reading`: returns the rights of the consumer that has sent a request; None: every consumer may read everything."""
        self.directory = directory
        self.failures = failures
        self.sessions = sessions
        self.purgatory = purgatory
        self.response_bytes_max = response_bytes_max
        """The largest response, even if the request allows more; a single batch may exceed it."""
        self.selector = selector
        """Selects the replica that a consumer with a rack reads from; None: consumers read from leaders."""
        self.on_reader = on_reader
        """Called when a consumer begins to read a partition that this broker follows."""
        self.has_threads = run_blocking is not None
        self.reading = reading
        self.now = now
        self.make_fetch: MakeFetch = Fetch
        """Creates the operation of a request: `LimitedFetch` while consumers have quotas (`broker/quotas/limited_fetch.py`)."""
        self._run_blocking = run_blocking
        self._warming: set[tuple[str, int]] = set()
        """(file, position) of the reads that a thread is bringing into the page cache."""

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, FetchRequest)
        try:
            session, is_full = self.sessions.session_for(body, self.now(), request.principal)
        except BrokerError as e:
            if e.code == ErrorCode.INVALID_REQUEST:
                raise
            request.reply(FetchResponse(0, e.code, 0, [], []))
            return
        self.make_fetch(self, request, session, is_full).begin(min(body.max_wait_ms, WAIT_MS_MAX))

    def warm_up(self, cold: ColdRead, then: Callable[[], None] | None) -> None:
        """Bring a range of a file into the page cache on a thread, then call `then` on the loop.

        Without `then`, nothing is done if a thread is reading that range already."""
        assert self._run_blocking is not None
        cold_range = (cold.path, cold.position)
        if then is None and cold_range in self._warming:
            return
        self._warming.add(cold_range)

        def done() -> None:
            # If warming up failed, the read that follows fails with the same error.
            self._warming.discard(cold_range)
            if then is not None:
                then()

        self._run_blocking(cold.warm, done)


_LEADER_HELPS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""Errors whose response names the current leader, which saves the client a metadata request (KIP-951)."""
