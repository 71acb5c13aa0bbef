"""The producer's shell: takes batches from the partitions' queues, sends them to their leaders, and acts on answers.

No task and no future per batch: a queue that has something new is put into a set, one call at the end of the loop's
turn drains the set, and answers come back as plain calls.

- Requests to one broker form a *lane*; each carries at most one batch per partition, several partitions together.
- A batch that is not full goes as soon as its linger is over and its lane is idle; while requests are in flight it
  waits for the first answer, a millisecond at most. So one record alone is sent at once, and many make full batches.
- When a leader is gone the queue waits in `_stalled`, and metadata is asked again every 20-50 ms until there is one.
- When a request is not answered for a while, the others are asked for metadata: if the leader has moved away from a
  broker that hangs, the batches go to the new one at once. Idempotence makes that safe; without it we wait for the
  answer, or until the broker gives no sign of life at all (`client/cluster/links.py`).
- Of a named producer no row goes without the one before it: when a batch fails for good, all behind it in its partition
  do. When a broker says that its epoch is over, everything does: somebody else has the name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from strandline.client.cluster.cluster import MISSING_TOPIC_GRACE_MS, Cluster
from strandline.client.errors import (
    ClientClosed,
    ClientError,
    DeliveryFailed,
    DeliveryTimeout,
    ProducerFenced,
    UnknownTopic,
    describe,
)
from strandline.client.producer.batch import Batch
from strandline.client.producer.identity import ProducerIdentity
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import ERRORS, BrokerError, ErrorCode, StrandlineError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from strandline.client.options import ProducerOptions
    from strandline.client.producer.accumulator import Accumulator
    from strandline.protocol.rpc.connection import Connection

logger = get_logger(__name__)

GATHER_S = 0.001
"""How much longer than its linger a batch that is not full waits while its broker is busy."""
STALL_S = 0.5
"""A request that is older than this makes us look whether the leader has moved."""

_ROWS_ELSEWHERE = {
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "another attempt has written these rows meanwhile; written() tells where to go on",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "rows before these are not in the log; written() tells where to go on",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the log holds no row of this work epoch; written() tells where to go on",
}
"""What a named producer's owner has to know."""

PLACES_NAMED = 5
"""So many partitions are named when the producer stops with undelivered records."""

Attempt = tuple[Batch, int, bytes]
"""A batch, which attempt of it this is, and the topic id it was sent under."""


class Lane:
    """The way to one broker."""

    __slots__ = ("broker_id", "gather_timer", "requests", "waiting")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.requests: dict[int, float] = {}
        """Requests in flight, oldest first: number -> when it was sent."""
        self.waiting: dict[PartitionQueue, None] = {}
        """Queues that may have something for this broker, first come first served."""
        self.gather_timer: asyncio.TimerHandle | None = None


class Undelivered:
    """The records that a producer had not delivered when it stopped."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Records by partition; by topic while the topic's metadata is not known."""
        self.reason = ""
        """What stood against the oldest of them."""

    def add(self, place: str, records: int, reason: str) -> None:
        self.places[place] = self.places.get(place, 0) + records
        self.reason = self.reason or reason

    @property
    def records(self) -> int:
        return sum(self.places.values())

    def __str__(self) -> str:
        most = sorted(self.places.items(), key=lambda item: -item[1])
        named = ", ".join(f"{place}: {records}" for place, records in most[:PLACES_NAMED])
        rest = f", and {len(most) - PLACES_NAMED} more partitions" if len(most) > PLACES_NAMED else ""
        count = "1 record was" if self.records == 1 else f"{self.records} records were"
        return f"{count} not acknowledged ({named}{rest}); {self.reason}"


def _place(batch: Batch) -> str:
    return f"{batch.queue.topic}-{batch.queue.partition}"


def _stopped_before(batch: Batch) -> ClientClosed:
    return _stopped(_place(batch), may_be_written=batch.outstanding or batch.in_doubt)


def _stopped(place: str, *, may_be_written: bool) -> ClientClosed:
    fate = "it may be in the log" if may_be_written else "it was never sent, or every attempt was rejected"
    return ClientClosed(f"{place}: the producer stopped before the record was acknowledged; {fate}")


class Sender:
    def __init__(self, options: ProducerOptions, accumulator: Accumulator, cluster: Cluster) -> None:
        self._options = options
        self._accumulator = accumulator
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._linger_s = options.linger_ms / 1000
        self._acks = options.required_acks
        self._lanes: dict[int, Lane] = {}
        self._dirty: dict[PartitionQueue, None] = {}
        self._ready_lanes: dict[Lane, None] = {}
        self._stalled: dict[PartitionQueue, None] = {}
        """Queues without a leader that can be reached; looked at again after each refresh."""
        self._lingering: dict[PartitionQueue, Batch] = {}
        """Queues whose open batch is not due, in the order in which they will be."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_s = min(0.25, max(0.01, options.delivery_timeout_ms / 10_000))
        self._scheduled = False
        self._closed = False
        self._numbers = 0
        self._missing_since: dict[str, float] = {}
        self.room_waiters: dict[asyncio.Future[None], None] = {}
        self.counters = {"requests": 0, "batches": 0, "records": 0, "bytes": 0, "retries": 0, "failed_records": 0}
        self.last_error: str | None = None
        self.broken: DeliveryFailed | None = None
        """A bug of ours stopped the sender: nothing is sent any more."""
        self.refused: ClientError | None = None
        """Of a named producer: the cluster will not have it any more."""
        self.identity = ProducerIdentity(cluster, options, self._on_identity, self.refuse_all)
        cluster.listeners.append(self._on_cluster)

    # -- what makes it run --------------------------------------------------------------------------------------------

    def on_ready(self, queue: PartitionQueue) -> None:
        """The queue has something new."""
        self._dirty[queue] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._sweep_s, self._sweep)

    def on_parked(self, topic: str) -> None:
        """A record of a topic that is not known waits."""
        if self._cluster.want_topics([topic]) or self._cluster.cache.topics.get(topic) is None:
            self._cluster.request_refresh()
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._sweep_s, self._sweep)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._drain_dirty()
        except Exception as e:
            self._break_down(e)

    def _drain_dirty(self) -> None:
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        lanes, self._ready_lanes = self._ready_lanes, {}
        for queue in dirty:
            lane = self._lane_of(queue)
            if lane is not None:
                lane.waiting[queue] = None
                lanes[lane] = None
        for lane in lanes:
            self._drain_lane(lane, now)

    def _lane_of(self, queue: PartitionQueue) -> Lane | None:
        """The lane to the partition's leader; None: the queue was put aside until something changes."""
        if queue.failed is not None:
            self._fail_queue(queue, queue.failed)
            return None
        if queue.needs_producer_id:
            if not self.identity.known or self.identity.producer_id == queue.producer_id:
                self._stalled[queue] = None
                self.identity.request()
                return None
            queue.set_producer_id(self.identity.producer_id, self.identity.producer_epoch)
        leader_id = self._cluster.cache.leader(queue.topic, queue.partition)
        if leader_id < 0:
            self._stall(queue)
            return None
        lane = self._lanes.get(leader_id)
        if lane is None:
            lane = self._lanes[leader_id] = Lane(leader_id)
        return lane

    def _stall(self, queue: PartitionQueue) -> None:
        if queue.has_unsent():
            self._stalled[queue] = None
            self._cluster.request_refresh()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _drain_lane(self, lane: Lane, now: float) -> None:
        if not lane.waiting:
            return
        connection = self._cluster.connection(lane.broker_id)
        if connection is None:
            self._stall_lane(lane)
            return
        while lane.waiting and len(lane.requests) < self._options.max_in_flight_requests_per_connection:
            batches = self._collect(lane, now)
            if not batches:
                return
            self._send(lane, connection, batches, now)

    def _stall_lane(self, lane: Lane) -> None:
        link = self._cluster.link(lane.broker_id)
        if link is None or link.failures:
            self._cluster.request_refresh()
        self._stalled.update(lane.waiting)
        lane.waiting.clear()

    def _collect(self, lane: Lane, now: float) -> list[Batch]:
        """At most one batch of each waiting queue, up to `max_request_size`. A queue that gave one stays in line."""
        batches: list[Batch] = []
        room = self._options.max_request_size
        for queue in list(lane.waiting):
            if batches and queue.next_size_max() > room:
                break
            del lane.waiting[queue]
            if self._cluster.cache.leader(queue.topic, queue.partition) != lane.broker_id or queue.needs_producer_id:
                self.on_ready(queue)
                continue
            queue.set_topic_id(self._cluster.cache.topics[queue.topic].topic_id)
            batch = queue.take(now, self._partial_may_go(queue, lane, now))
            if batch is None:
                if queue.failed is not None:
                    self._fail_queue(queue, queue.failed)
                else:
                    self._wait_for_due(queue, lane, now)
                continue
            if not batch.closed:
                self._accumulator.on_closed(batch)
            assert batch.data is not None, "a batch that is sent is encoded"
            room -= len(batch.data)
            batches.append(batch)
            if queue.ready or queue.open is not None or len(queue.unresolved) > 1:
                lane.waiting[queue] = None
        return batches

    def _partial_may_go(self, queue: PartitionQueue, lane: Lane, now: float) -> bool:
        """Whether the open batch may be sent as it is."""
        batch = queue.open
        if batch is None:
            return False
        waited = now - batch.created_at
        return waited >= self._linger_s and (not lane.requests or waited >= self._linger_s + GATHER_S)

    def _wait_for_due(self, queue: PartitionQueue, lane: Lane, now: float) -> None:
        """Nothing of the queue may go now: see to it that it is looked at again. (An answer looks at its queues anyway.)"""
        if queue.retry_at > now and queue.has_unsent():
            self._loop.call_later(queue.retry_at - now, self.on_ready, queue)
        elif queue.open is not None and not queue.recovering:
            if now - queue.open.created_at < self._linger_s:
                self._lingering.setdefault(queue, queue.open)
                if self._linger_timer is None:
                    self._arm_linger(queue.open.created_at + self._linger_s)
            else:
                lane.waiting[queue] = None
                if lane.gather_timer is None:
                    lane.gather_timer = self._loop.call_later(GATHER_S, self._on_gathered, lane)

    def _arm_linger(self, due: float) -> None:
        self._linger_timer = self._loop.call_at(due, self._on_linger)

    def _on_linger(self) -> None:
        """The first lingering batches are due; those that were sent meanwhile are skipped."""
        self._linger_timer = None
        now = self._loop.time()
        while self._lingering:
            queue, batch = next(iter(self._lingering.items()))
            due = batch.created_at + self._linger_s
            if not batch.closed and due > now + 0.0005:
                self._arm_linger(due)
                return
            del self._lingering[queue]
            if queue.open is not None:
                self.on_ready(queue)

    def _on_gathered(self, lane: Lane) -> None:
        lane.gather_timer = None
        self._ready_lanes[lane] = None
        self._schedule()

    def _send(self, lane: Lane, connection: Connection, batches: list[Batch], now: float) -> None:
        topics = self._cluster.cache.topics
        attempts: list[Attempt] = []
        partitions: list[ProducePartition] = []
        records = []
        counters = self.counters
        for batch in batches:
            queue = batch.queue
            topic_id = topics[queue.topic].topic_id
            batch.last_broker_id = lane.broker_id
            attempts.append((batch, batch.attempts, topic_id))
            partitions.append(ProducePartition(topic_id, queue.partition))
            assert batch.data is not None, "a batch that is sent is encoded"
            records.append((batch.data,))
            counters["bytes"] += len(batch.data)
        counters["requests"] += 1
        counters["batches"] += len(batches)
        timeout_ms = self._options.request_timeout_ms
        body = ProduceRequest(None, self._acks, timeout_ms, partitions, [])
        if self._acks == 0:
            connection.send(PRODUCE, body, records, on_response=None)
            for batch in batches:
                self._acked(batch, -1, -1)
            return
        self._numbers += 1
        lane.requests[self._numbers] = now
        answer = partial(self._on_response, lane, self._numbers, attempts)
        connection.send(PRODUCE, body, records, on_response=answer, timeout_ms=timeout_ms)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _on_response(self, lane: Lane, number: int, attempts: list[Attempt], response: Message | Exception) -> None:
        del lane.requests[number]
        if self._closed:
            return
        if isinstance(response, ProduceResponse):
            answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
            for attempt in attempts:
                self._on_answer(attempt, answers.get((attempt[2], attempt[0].queue.partition)))
        else:
            code = response.code if isinstance(response, BrokerError) else ErrorCode.NETWORK_EXCEPTION
            self.last_error = str(response)
            for batch, number_of_attempt, _ in attempts:
                self._on_failed(batch, number_of_attempt, code, None)
        for batch, _, _ in attempts:
            queue = batch.queue
            if queue.open is not None or queue.ready or queue.unresolved:
                self._dirty[queue] = None
        self._ready_lanes[lane] = None
        self._schedule()

    def _on_answer(self, attempt: Attempt, answer: ProducePartitionResponse | None) -> None:
        batch, number, _ = attempt
        if answer is None:
            self._on_failed(batch, number, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer leaves the partition out")
            return
        code = answer.error_code
        if code == ErrorCode.NONE:
            if batch.attempts == number and not batch.done:
                self._acked(batch, answer.base_offset, answer.log_append_time_ms)
            return
        queue, leader = batch.queue, answer.current_leader
        if not self._cluster.cache.update_leader(queue.topic, queue.partition, leader.leader_id, leader.leader_epoch):
            self._forget_leader(batch, to_code(code))
        self._on_failed(batch, number, to_code(code), answer.error_message)

    def _forget_leader(self, batch: Batch, code: ErrorCode) -> None:
        if ERRORS[code].refresh_metadata and batch.last_broker_id is not None:
            self._cluster.cache.forget_leader(batch.queue.topic, batch.queue.partition, batch.last_broker_id)

    def _acked(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        batch.queue.on_acked(batch)
        batch.complete(base_offset, log_append_time_ms)
        self.counters["records"] += batch.count
        self._release(batch)

    def _on_failed(self, batch: Batch, number: int, code: ErrorCode, message: str | None) -> None:
        """One attempt failed; an answer to an attempt that no longer counts is nothing."""
        if batch.done or batch.attempts != number or not batch.outstanding:
            return
        now = self._loop.time()
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.queue.may_split(batch):
            self._accumulator.split(batch)
            self.counters["retries"] += 1
            return
        soon = ERRORS[code].refresh_metadata
        retry_at = now if soon else now + self._options.retry_backoff_ms / 1000
        if batch.queue.on_failed(batch, code, retry_at):
            self.counters["retries"] += 1
            if soon:
                self._cluster.request_refresh()
            if batch.queue.renumber:
                logger.warning("producer.epoch_bump", topic=batch.queue.topic, partition=batch.queue.partition, error=code.name)
            return
        if batch.queue.named:
            self._fail_named(batch, code, message, now)
        else:
            self._fail(batch, DeliveryFailed(describe(code, message), **self._facts(batch, now), code=code))

    def _fail_named(self, batch: Batch, code: ErrorCode, message: str | None, now: float) -> None:
        text, facts = describe(code, message), self._facts(batch, now)
        if code == ErrorCode.INVALID_PRODUCER_EPOCH:
            fenced = ProducerFenced(text, **facts, code=code)
            self._fail(batch, fenced)
            self.refuse_all(fenced)
            return
        if code in _ROWS_ELSEWHERE:
            text = f"{text}: {_ROWS_ELSEWHERE[code]}"
        error = DeliveryFailed(text, **facts, code=code)
        self._fail(batch, error)
        self._fail_rows_behind(batch, error)

    def _fail_rows_behind(self, batch: Batch, error: DeliveryFailed) -> None:
        """Rows of a named producer go one behind the other or not at all."""
        queue = batch.queue
        text = f"the rows before these were not delivered: {error}"
        self._fail_queue(queue, DeliveryFailed(text, topic=queue.topic, partition=queue.partition))

    def _fail_queue(self, queue: PartitionQueue, error: DeliveryFailed) -> None:
        queue.failed = error
        failed = [batch for batch in self._accumulator.incomplete if batch.queue is queue]
        for batch in failed:
            self._accumulator.give_up(batch)
            batch.fail(error)
            self._release(batch)
        if failed:
            self._tell_failed(queue, sum(batch.count for batch in failed), error)

    def _tell_failed(self, queue: PartitionQueue, records: int, error: Exception) -> None:
        self.counters["failed_records"] += records
        self.last_error = str(error)
        topic, partition = queue.topic, queue.partition
        logger.warning("producer.delivery_failed", topic=topic, partition=partition, records=records, reason=str(error))

    def refuse_all(self, error: ClientError) -> None:
        """The cluster will have nothing more of this named producer: all that waits fails, and whatever is handed over."""
        self.refused = error
        logger.warning("producer.refused", reason=f"{self._options.producer_name}: {error}")
        if self.broken is None:
            self._fail_all(lambda batch: error, lambda topic: error)

    def _facts(self, batch: Batch, now: float) -> dict[str, Any]:
        return {
            "topic": batch.queue.topic,
            "partition": batch.queue.partition,
            "broker_id": batch.last_broker_id,
            "attempts": batch.attempts,
            "elapsed_ms": (now - batch.created_at) * 1000,
        }

    def _fail(self, batch: Batch, error: ClientError | ClientClosed) -> None:
        """The batch is out of its queue already."""
        batch.fail(error)
        self._tell_failed(batch.queue, batch.count, error)
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        self._accumulator.release(batch)
        self.wake_room_waiter()

    def wake_room_waiter(self) -> None:
        """One of those who wait for room may try; it wakes the next one when it succeeds."""
        while self.room_waiters:
            waiter = next(iter(self.room_waiters))
            del self.room_waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                return

    # -- when something changes ---------------------------------------------------------------------------------------

    def _on_identity(self) -> None:
        self._restart_stalled()

    def _on_cluster(self) -> None:
        """Metadata was refreshed, or a connection made."""
        if self._closed:
            return
        cache, accumulator = self._cluster.cache, self._accumulator
        for name in [*accumulator.topics, *accumulator.parked]:
            info = cache.topics.get(name)
            if info is not None and info.partitions:
                accumulator.update_topic(name, max(info.partitions) + 1, info.available)
        if self._options.idempotent:
            self._leave_deposed_leaders()
        self._restart_stalled()

    def _leave_deposed_leaders(self) -> None:
        """Batches that wait for an answer of a broker that no longer leads go to the one that does."""
        cache = self._cluster.cache
        moved: dict[PartitionQueue, None] = {}
        for batch in self._accumulator.incomplete:
            if batch.outstanding and cache.leader(batch.queue.topic, batch.queue.partition) not in (-1, batch.last_broker_id):
                moved[batch.queue] = None
        for queue in moved:
            queue.abandon_attempts()
            self.on_ready(queue)

    def _restart_stalled(self) -> None:
        stalled, self._stalled = self._stalled, {}
        for queue in stalled:
            if queue.has_unsent():
                self.on_ready(queue)

    def _sweep(self) -> None:
        """Several times a second while anything waits: deadlines, missing topics, brokers that hang."""
        self._sweep_timer = None
        if self._closed:
            return
        try:
            self._sweep_all()
        except Exception as e:
            self._break_down(e)

    def _sweep_all(self) -> None:
        now = self._loop.time()
        late = self._accumulator.expired(now)
        for batch in late:
            reason = f"delivery_timeout_ms is over; {self._why_undelivered(batch)}"
            self._fail(batch, DeliveryTimeout(reason, **self._facts(batch, now), code=batch.last_code))
            self.on_ready(batch.queue)
        for batch in late:
            if isinstance(batch.error, DeliveryFailed) and batch.queue.named:
                self._fail_rows_behind(batch, batch.error)
        self._sweep_parked(now)
        self._sweep_missing(now)
        for lane in self._lanes.values():
            if lane.requests and now - next(iter(lane.requests.values())) > STALL_S:
                self._cluster.suspect(lane.broker_id)
        if self._accumulator.incomplete or self._accumulator.parked:
            self._sweep_timer = self._loop.call_later(self._sweep_s, self._sweep)

    def _why_undelivered(self, batch: Batch) -> str:
        """What stood against it, as far as we know."""
        if batch.last_code is not None:
            return f"last error: {describe(batch.last_code)}"
        leader_id = self._cluster.cache.leader(batch.queue.topic, batch.queue.partition)
        link = self._cluster.link(leader_id)
        for error in (link.last_error if link is not None else None, self._cluster.last_error, self.identity.last_error):
            if error is not None:
                return str(error)
        return "the partition has no leader" if leader_id < 0 else f"broker {leader_id} has not answered"

    def _sweep_parked(self, now: float) -> None:
        limit_ms = min(self._options.max_block_ms, self._options.delivery_timeout_ms)
        for name, lot in list(self._accumulator.parked.items()):
            missing = name in self._cluster.cache.failed
            after_ms = min(MISSING_TOPIC_GRACE_MS, limit_ms) if missing else limit_ms
            waited_ms = (now - lot.records[0].since) * 1000
            if waited_ms < after_ms:
                self._cluster.request_refresh()
                continue
            parked_before = max(now - after_ms / 1000, lot.records[0].since)
            error: StrandlineError
            if missing:
                error = self._cluster.unknown_topic(name, waited_ms)
            else:
                error = DeliveryTimeout(f"no metadata: {self._cluster.last_error}", topic=name, elapsed_ms=waited_ms)
            self.counters["failed_records"] += self._accumulator.fail_parked(name, error, parked_before)
            logger.warning("producer.delivery_failed", topic=name, reason=str(error))
            self.wake_room_waiter()

    def _sweep_missing(self, now: float) -> None:
        """A topic that was deleted under us: its records fail after a short grace, not after the delivery timeout."""
        missing = {queue.topic for queue in self._stalled} & set(self._cluster.cache.failed)
        self._missing_since = {name: self._missing_since.get(name, now) for name in sorted(missing)}
        for name, since in self._missing_since.items():
            if (now - since) * 1000 >= MISSING_TOPIC_GRACE_MS:
                for batch in [b for b in self._accumulator.incomplete if b.queue.topic == name]:
                    self._accumulator.give_up(batch)
                    self._fail(batch, UnknownTopic("the topic does not exist (any more)", **self._facts(batch, now)))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _break_down(self, bug: Exception) -> None:
        """Our own bug, in a place that no caller sees: everyone who waits is told, and nobody may wait here again."""
        logger.error("producer.broke_down", exc_info=bug)
        self.broken = DeliveryFailed(f"an error inside the producer, which is of no more use: {bug!r}")
        self._accumulator.bare_open.clear()
        for batch in list(self._accumulator.incomplete):
            if not batch.done:
                batch.fail(self.broken)
        for name in list(self._accumulator.parked):
            self._accumulator.fail_parked(name, self.broken)
        while self.room_waiters:
            self.wake_room_waiter()
        self._closed = True

    @property
    def in_flight(self) -> int:
        return sum(len(lane.requests) for lane in self._lanes.values())

    def give_up_all(self) -> Undelivered:
        """The producer stops: all waiting records fail, with an error that says whether the record may be in the log."""
        undelivered = Undelivered()
        if self.broken is not None:
            for batch in self._accumulator.incomplete:
                undelivered.add(_place(batch), len(batch), str(self.broken))
            return undelivered
        for name in self._accumulator.parked:
            reason = f"no metadata: {self._cluster.last_error}" if self._cluster.last_error else "no metadata yet"
            undelivered.add(name, len(self._accumulator.parked[name].records), reason)
        for batch in self._accumulator.incomplete:
            undelivered.add(_place(batch), len(batch), self._why_undelivered(batch))
        self._fail_all(_stopped_before, lambda topic: _stopped(topic, may_be_written=False))
        return undelivered

    def _fail_all(self, error_of: Callable[[Batch], BaseException], error_of_parked: Callable[[str], BaseException]) -> None:
        for name in list(self._accumulator.parked):
            self._accumulator.fail_parked(name, error_of_parked(name))
        for batch in list(self._accumulator.incomplete):
            error = error_of(batch)
            self._accumulator.give_up(batch)
            batch.fail(error)
            self._accumulator.release(batch)
        while self.room_waiters:
            self.wake_room_waiter()

    async def close(self) -> None:
        self._closed = True
        for timer in (self._linger_timer, self._sweep_timer, *(lane.gather_timer for lane in self._lanes.values())):
            if timer is not None:
                timer.cancel()
        if self._on_cluster in self._cluster.listeners:
            self._cluster.listeners.remove(self._on_cluster)
        await self.identity.close()
