"""The producer's shell: takes batches from the partitions' queues, sends them to the leaders, and acts on the responses.

There is no task and no future per batch. A queue with a new or changed batch is put into a set, one call in the next iteration of
the event loop drains the set, and responses arrive as plain calls.

- A request carries at most one batch per partition, and batches of several partitions together.
- A batch that is not full is sent when its linger has passed and no request to its broker is in flight. While requests are in
  flight it waits for the first response, a millisecond at most. So a single record is sent at once, and many make full batches.
- When a partition has no leader its queue waits in `_stalled`, and metadata is refreshed every 20 ms, later every 50 and 250 ms
  (`client/cluster/refresh_gap.py`), until it has one.
- When a request is not answered for a while, other brokers are asked for metadata. If the leader has moved away from a broker
  that hangs, the batches are sent to the new leader at once. Idempotence makes that safe. Without it the producer waits for the
  response, or until the connection is given up (`client/cluster/connection_state.py`).
- When a batch of a named producer fails for good, all later batches of its partition fail. When a broker rejects the producer's
  epoch, all records fail, because a newer producer has the name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from strandline.client.cluster.cluster import STALL_S, Cluster
from strandline.client.cluster.metadata_updater import DENIED_GRACE_MS, MISSING_TOPIC_GRACE_MS
from strandline.client.errors import (
    AuthenticationFailed,
    ClientError,
    DeliveryFailed,
    DeliveryTimeout,
    UnknownTopic,
    delivery_failed,
    describe,
)
from strandline.client.producer.batch import Batch, BatchState
from strandline.client.producer.broker_queue import BrokerQueue
from strandline.client.producer.failures import DeliveryFailures
from strandline.client.producer.identity import ProducerIdentity
from strandline.client.producer.partition_queue import PartitionQueue, QueueState
from strandline.client.producer.record_errors import InvalidRecords
from strandline.client.producer.room import RoomWaiters
from strandline.client.producer.undelivered import Undelivered, no_metadata
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

CONCURRENT_RETRY_S = 0.01
"""The pause after CONCURRENT_TRANSACTIONS: the markers of the producer's previous transaction are not written yet."""
GATHER_S = 0.001
"""Seconds that a batch that is not full waits beyond its linger while its broker is busy."""

Attempt = tuple[PartitionQueue, Batch, int, bytes]
"""A queue, its batch, the number of the batch's attempt, and the topic id in the request."""


class Sender:
    """Sends the accumulator's batches to the leaders of their partitions, until each is acknowledged or has failed."""

    def __init__(self, options: ProducerOptions, accumulator: Accumulator, cluster: Cluster) -> None:
        self._options = options
        self._accumulator = accumulator
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._linger_s = options.linger_ms / 1000
        self._acks = options.required_acks
        self._brokers: dict[int, BrokerQueue] = {}
        self._dirty: dict[PartitionQueue, None] = {}
        """Queues with a new or changed batch."""
        self._ready_brokers: dict[BrokerQueue, None] = {}
        """Brokers to which a request may be sent, because a response has arrived or a batch has waited long enough."""
        self._stalled: dict[PartitionQueue, None] = {}
        """Queues whose leader is not known or cannot be reached, or that wait for a producer id. They are checked again after
        each refresh."""
        self._lingering: dict[PartitionQueue, Batch] = {}
        """Queues whose open batch still lingers, and that batch, in the order in which the lingers end."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_s = min(0.25, max(0.01, options.delivery_timeout_ms / 10_000))
        self._scheduled = False
        self._closed = False
        self._numbers = 0
        self._missing_since: dict[str, float] = {}
        """Topics of stalled queues that the cluster does not know, and the time when that was first seen, on the loop's clock."""
        self._refusal: AuthenticationFailed | None = None
        """The last authentication error with which waiting records have failed; None if the cluster accepts the client."""
        self._counters = {"requests": 0, "batches": 0, "records": 0, "bytes": 0, "retries": 0, "conflicts": 0}
        self.room = RoomWaiters()
        self.failures = DeliveryFailures(options, accumulator, cluster, self.room)
        self.identity = ProducerIdentity(
            cluster, options, self._restart_stalled, self.failures.reject_all, self.failures.fail_denied
        )
        cluster.listeners.add(self._on_cluster)

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def on_ready(self, queue: PartitionQueue) -> None:
        """The queue has a new or changed batch: check it in the next iteration of the event loop."""
        self._dirty[queue] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._sweep_s, self._sweep)

    def on_parked(self, topic: str) -> None:
        """A record was parked, because its topic's metadata is not known: request the metadata."""
        if self._cluster.metadata.want_topics([topic]) or self._cluster.cache.topics.get(topic) is None:
            self._cluster.metadata.request_refresh()
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

    def _break_down(self, bug: Exception) -> None:
        self._closed = True
        self.failures.break_down(bug)

    def _drain_dirty(self) -> None:
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        brokers, self._ready_brokers = self._ready_brokers, {}
        for queue in dirty:
            broker = self._leader_of(queue)
            if broker is not None:
                broker.waiting[queue] = None
                brokers[broker] = None
        for broker in brokers:
            self._drain_broker(broker, now)

    def _leader_of(self, queue: PartitionQueue) -> BrokerQueue | None:
        """The partition's leader. None if nothing can be sent now, because the queue has failed, or waits in `_stalled`."""
        if queue.failed is not None:
            self.failures.fail_queue(queue, queue.failed)
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
        broker = self._brokers.get(leader_id)
        if broker is None:
            broker = self._brokers[leader_id] = BrokerQueue(leader_id, self._options.max_in_flight_requests_per_connection)
        return broker

    def _stall(self, queue: PartitionQueue) -> None:
        if queue.has_unsent():
            self._stalled[queue] = None
            self._cluster.metadata.request_refresh()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _drain_broker(self, broker: BrokerQueue, now: float) -> None:
        if not broker.waiting:
            return
        connection = self._cluster.connections.to(broker.broker_id)
        if connection is None:
            self._cluster.refresh_if_unreachable(broker.broker_id)
            self._stalled.update(broker.waiting)
            broker.waiting.clear()
            return
        while broker.waiting and len(broker.requests) < broker.in_flight_max:
            batches = self._collect(broker, now)
            if not batches:
                return
            self._send(broker, connection, batches, now)

    def _collect(self, broker: BrokerQueue, now: float) -> list[tuple[PartitionQueue, Batch]]:
        """Take at most one batch of each waiting queue, up to `max_request_size`. A queue that may have more batches keeps
        waiting."""
        batches: list[tuple[PartitionQueue, Batch]] = []
        room = self._options.max_request_size
        for queue in list(broker.waiting):
            if batches and queue.next_size_max() > room:
                break
            del broker.waiting[queue]
            if self._cluster.cache.leader(queue.topic, queue.partition) != broker.broker_id or queue.needs_producer_id:
                self.on_ready(queue)
                continue
            topic_id = self._cluster.cache.topics[queue.topic].topic_id
            queue.set_topic_id(topic_id)
            batch = self._accumulator.take(queue, now, self._partial_may_go(queue, broker, now), broker.broker_id)
            if batch is None:
                if queue.failed is not None:
                    self.failures.fail_queue(queue, queue.failed)
                else:
                    self._wait_until_due(queue, broker, now)
                continue
            if batch.topic_id in (b"", topic_id):
                assert batch.data is not None, "a batch that is sent is encoded"
                room -= len(batch.data)
                batches.append((queue, batch))
            else:
                self._on_other_topic(queue, batch, broker.broker_id, now)
            if queue.may_have_more():
                broker.waiting[queue] = None
        return batches

    def _on_other_topic(self, queue: PartitionQueue, batch: Batch, broker_id: int, now: float) -> None:
        """The batch expects an offset of a topic that, by the metadata, no longer has the name. The batch fails. The metadata
        itself may be out of date, so the next batch waits for a refresh."""
        queue.on_condition_failed(batch)
        self._cluster.cache.forget_leader(queue.topic, queue.partition, broker_id)
        text = "the topic was deleted and recreated, and the expected offset is one of the deleted log; nothing was written"
        self.failures.fail_rejected(queue, batch, ErrorCode.UNKNOWN_TOPIC_ID, text, now)
        if not queue.idle:
            self.on_ready(queue)

    def _partial_may_go(self, queue: PartitionQueue, broker: BrokerQueue, now: float) -> bool:
        """Whether the open batch may be sent as it is."""
        batch = queue.open
        if batch is None:
            return False
        waited = now - batch.created_at
        return waited >= self._linger_s and (not broker.requests or waited >= self._linger_s + GATHER_S)

    def _wait_until_due(self, queue: PartitionQueue, broker: BrokerQueue, now: float) -> None:
        """No batch of the queue may be sent now: set a timer for the end of its retry pause or linger. (Each response checks the
        queue anyway.)"""
        if queue.retry_at > now and queue.has_unsent():
            self._loop.call_later(queue.retry_at - now, self.on_ready, queue)
        elif queue.open is not None and queue.state is QueueState.SENDING:
            if now - queue.open.created_at < self._linger_s:
                self._lingering.setdefault(queue, queue.open)
                if self._linger_timer is None:
                    self._arm_linger(queue.open.created_at + self._linger_s)
            else:
                broker.waiting[queue] = None
                if broker.gather_timer is None:
                    broker.gather_timer = self._loop.call_later(GATHER_S, self._on_gathered, broker)

    def _arm_linger(self, due: float) -> None:
        self._linger_timer = self._loop.call_at(due, self._on_linger)

    def _on_linger(self) -> None:
        """One or more lingers have ended: check these queues. Batches that were sent meanwhile are skipped."""
        self._linger_timer = None
        now = self._loop.time()
        while self._lingering:
            queue, batch = next(iter(self._lingering.items()))
            due = batch.created_at + self._linger_s
            if batch.state is BatchState.OPEN and due > now + 0.0005:
                self._arm_linger(due)
                return
            del self._lingering[queue]
            if queue.open is not None:
                self.on_ready(queue)

    def _on_gathered(self, broker: BrokerQueue) -> None:
        broker.gather_timer = None
        self._ready_brokers[broker] = None
        self._schedule()

    def _send(self, broker: BrokerQueue, connection: Connection, batches: list[tuple[PartitionQueue, Batch]], now: float) -> None:
        topics = self._cluster.cache.topics
        attempts: list[Attempt] = []
        partitions: list[ProducePartition] = []
        records = []
        counters = self._counters
        for queue, batch in batches:
            topic_id = topics[queue.topic].topic_id
            attempts.append((queue, batch, batch.attempts, topic_id))
            partitions.append(ProducePartition(topic_id, queue.partition, *batch.conditions))
            assert batch.data is not None, "a batch that is sent is encoded"
            records.append((batch.data,))
            counters["bytes"] += len(batch.data)
        counters["requests"] += 1
        counters["batches"] += len(batches)
        timeout_ms = self._options.request_timeout_ms
        body = ProduceRequest(self._options.transactional_id, self._acks, timeout_ms, partitions, [])
        if self._acks == 0:
            connection.send(PRODUCE, body, records, on_response=None)
            for queue, batch in batches:
                self._acked(queue, batch, -1, -1)
            return
        self._numbers += 1
        broker.requests[self._numbers] = now
        on_response = partial(self._on_response, broker, self._numbers, attempts)
        connection.send(PRODUCE, body, records, on_response=on_response, timeout_ms=timeout_ms)

    # -- responses ----------------------------------------------------------------------------------------------------

    def _on_response(self, broker: BrokerQueue, number: int, attempts: list[Attempt], response: Message | Exception) -> None:
        del broker.requests[number]
        if self._closed:
            return
        if isinstance(response, ProduceResponse):
            answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
            for attempt in attempts:
                self._on_answer(attempt, answers.get((attempt[3], attempt[0].partition)))
            if response.throttle_time_ms:
                self._on_throttled(broker, response.throttle_time_ms)
        else:
            code = response.code if isinstance(response, BrokerError) else ErrorCode.NETWORK_EXCEPTION
            self.failures.last_error = str(response)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                self._on_old_broker(attempts)
            for queue, batch, attempt_number, _ in attempts:
                self._on_failed(queue, batch, attempt_number, code, None)
        for queue, _, _, _ in attempts:
            if not queue.idle:
                self._dirty[queue] = None
        self._ready_brokers[broker] = None
        self._schedule()

    def _on_throttled(self, broker: BrokerQueue, throttle_ms: int) -> None:
        """Send the broker nothing for this long: it throttles the client because of a quota, and reads nothing meanwhile."""
        until = self._cluster.throttles.on_throttled(broker.broker_id, throttle_ms, self._loop.time())
        broker.in_flight_max = 0
        if broker.throttle_timer is not None:
            broker.throttle_timer.cancel()
        broker.throttle_timer = self._loop.call_at(until, self._on_throttle_ended, broker)

    def _on_throttle_ended(self, broker: BrokerQueue) -> None:
        broker.throttle_timer = None
        broker.in_flight_max = self._options.max_in_flight_requests_per_connection
        self._ready_brokers[broker] = None
        self._schedule()

    def _on_answer(self, attempt: Attempt, answer: ProducePartitionResponse | None) -> None:
        queue, batch, number, _ = attempt
        if answer is None:
            text = "the response does not contain the partition"
            self._on_failed(queue, batch, number, ErrorCode.UNKNOWN_SERVER_ERROR, text)
            return
        code = answer.error_code
        if code == ErrorCode.NONE:
            if batch.attempts == number and not batch.done:
                self._acked(queue, batch, answer.base_offset, answer.log_append_time_ms)
            return
        if code == ErrorCode.UNEXPECTED_LOG_END:
            self._on_conflict(queue, batch, number, answer.log_end_offset)
            return
        if code == ErrorCode.FENCED_TOKEN:
            self._on_fenced(queue, batch, number, answer.fencing_token)
            return
        leader = answer.current_leader
        if not self._cluster.cache.update_leader(queue.topic, queue.partition, leader.leader_id, leader.leader_epoch):
            self._forget_leader(batch, to_code(code))
        self._on_failed(queue, batch, number, to_code(code), answer.error_message, InvalidRecords.of(answer))

    def _on_old_broker(self, attempts: list[Attempt]) -> None:
        """A broker of an older version has rejected a request with conditions that it does not know. Batches with fencing tokens
        fail; if there are none, those with expected offsets, which exist for longer. The other batches are sent again."""
        refused = [attempt for attempt in attempts if attempt[1].conditions.fencing_token >= 0]
        what = "fencing tokens (fencing_token)"
        if not refused:
            refused = [attempt for attempt in attempts if attempt[1].conditions.expected_offset >= 0]
            what = "conditional appends (expect_offset)"
        for queue, batch, number, _ in refused:
            text = f"the broker is of an older version, which has no {what}"
            self._on_failed(queue, batch, number, ErrorCode.UNSUPPORTED_VERSION, text)
        for queue, batch, number, _ in attempts if refused else ():
            self._on_failed(queue, batch, number, ErrorCode.NETWORK_EXCEPTION, None)

    def _on_conflict(self, queue: PartitionQueue, batch: Batch, number: int, log_end_offset: int) -> None:
        if not batch.expects(number):
            return
        if log_end_offset < batch.conditions.expected_offset and not batch.is_end_doubted:
            batch.is_end_doubted = True
            self._forget_leader(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._on_failed(queue, batch, number, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            return
        self._counters["conflicts"] += 1
        queue.on_condition_failed(batch)
        self.failures.fail_conflict(batch, log_end_offset, self._loop.time())

    def _on_fenced(self, queue: PartitionQueue, batch: Batch, number: int, highest_token: int) -> None:
        if batch.expects(number):
            queue.on_condition_failed(batch)
            self.failures.fail_fenced(batch, highest_token, self._loop.time())

    def _forget_leader(self, batch: Batch, code: ErrorCode) -> None:
        if ERRORS[code].refresh_metadata and batch.last_broker_id is not None:
            self._cluster.cache.forget_leader(batch.topic, batch.partition, batch.last_broker_id)

    def _acked(self, queue: PartitionQueue, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        queue.on_acked(batch)
        batch.complete(base_offset, log_append_time_ms)
        self._counters["records"] += batch.count
        self._accumulator.release(batch)
        self.room.wake_next()

    def _on_failed(
        self,
        queue: PartitionQueue,
        batch: Batch,
        number: int,
        code: ErrorCode,
        message: str | None,
        invalid: InvalidRecords | None = None,
    ) -> None:
        """One attempt failed. The failure of an abandoned attempt is ignored."""
        if not batch.expects(number):
            return
        now = self._loop.time()
        if code == ErrorCode.MESSAGE_TOO_LARGE and queue.may_split(batch):
            self._accumulator.split(queue, batch)
            self._counters["retries"] += 1
            return
        soon = ERRORS[code].refresh_metadata
        pause_s = CONCURRENT_RETRY_S if code == ErrorCode.CONCURRENT_TRANSACTIONS else self._options.retry_backoff_ms / 1000
        retry_at = now if soon else now + pause_s
        if not queue.on_failed(batch, code, retry_at):
            self.failures.fail_rejected(queue, batch, code, message, now, invalid)
            return
        self._counters["retries"] += 1
        if soon:
            self._cluster.metadata.request_refresh()
        if queue.state is QueueState.RENUMBERING:
            logger.warning("producer.epoch_bumped", topic=queue.topic, partition=queue.partition, error=code.name)

    # -- changes of the cluster ---------------------------------------------------------------------------------------

    def _on_cluster(self) -> None:
        """Metadata was refreshed, or a connection was opened or lost."""
        if self._closed:
            return
        try:
            self._on_change()
        except Exception as e:
            self._break_down(e)

    def _on_change(self) -> None:
        self._fail_if_refused()
        cache, accumulator = self._cluster.cache, self._accumulator
        for name in [*accumulator.topics, *accumulator.parked]:
            info = cache.topics.get(name)
            if info is not None and info.partitions:
                accumulator.update_topic(name, max(info.partitions) + 1, info.available)
        if self._options.idempotent:
            self._leave_deposed_leaders()
        self._restart_stalled()

    def _fail_if_refused(self) -> None:
        """Fail all waiting records after each attempt in which the cluster has rejected the client's authentication. Later
        records cause another attempt."""
        refusal = self._cluster.refusal
        if refusal is not None and refusal is not self._refusal:
            self.failures.fail_denied(refusal)
        self._refusal = refusal

    def _leave_deposed_leaders(self) -> None:
        """Send batches that wait for the response of a former leader to the present leader."""
        cache = self._cluster.cache
        moved: dict[PartitionQueue, None] = {}
        for batch, queue in self._accumulator.incomplete.items():
            if batch.state is BatchState.IN_FLIGHT and cache.leader(queue.topic, queue.partition) not in (
                -1,
                batch.last_broker_id,
            ):
                moved[queue] = None
        for queue in moved:
            queue.abandon_attempts()
            self.on_ready(queue)

    def _restart_stalled(self) -> None:
        stalled, self._stalled = self._stalled, {}
        for queue in stalled:
            if queue.has_unsent():
                self.on_ready(queue)

    # -- several times a second ---------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Check deadlines, missing topics, and brokers that do not respond. Repeated while records wait."""
        self._sweep_timer = None
        if self._closed:
            return
        try:
            self._sweep_all()
        except Exception as e:
            self._break_down(e)

    def _sweep_all(self) -> None:
        now = self._loop.time()
        self._sweep_expired(now)
        self._sweep_parked(now)
        self._sweep_missing(now)
        for broker in self._brokers.values():
            self._cluster.suspect_if_stalled(broker.broker_id, broker.waits_since(), STALL_S)
        if self._accumulator.incomplete or self._accumulator.parked:
            self._sweep_timer = self._loop.call_later(self._sweep_s, self._sweep)

    def _sweep_expired(self, now: float) -> None:
        late = self._accumulator.expired(now)
        for queue, batch in late:
            self.failures.fail_expired(batch, self._why_undelivered(batch), now)
            self.on_ready(queue)
        for queue, batch in late:
            if queue.named and isinstance(batch.error, DeliveryFailed):
                self.failures.fail_rows_behind(queue, batch.error)

    def _why_undelivered(self, batch: Batch) -> str:
        """The last known obstacle to the batch's delivery."""
        if batch.last_code is not None:
            return f"last error: {describe(batch.last_code)}"
        leader_id = self._cluster.cache.leader(batch.topic, batch.partition)
        cluster = self._cluster
        for error in (cluster.connections.last_error_of(leader_id), cluster.metadata.last_error, self.identity.last_error):
            if error is not None:
                return str(error)
        return "the partition has no leader" if leader_id < 0 else f"broker {leader_id} has not answered"

    def _sweep_parked(self, now: float) -> None:
        limit_ms = min(self._options.max_block_ms, self._options.delivery_timeout_ms)
        for name, lot in list(self._accumulator.parked.items()):
            missing = name in self._cluster.cache.failed
            after_ms = min(self._grace_ms(name), limit_ms) if missing else limit_ms
            oldest = lot.records[0].since
            waited_ms = (now - oldest) * 1000
            if waited_ms < after_ms:
                self._cluster.metadata.request_refresh()
                continue
            error: StrandlineError
            if missing:
                error = self._cluster.cache.unknown_topic(name, waited_ms)
            else:
                reason = no_metadata(self._cluster.metadata.last_error)
                error = DeliveryTimeout(reason, topic=name, elapsed_ms=waited_ms)
            self.failures.fail_parked(name, error, max(now - after_ms / 1000, oldest))

    def _sweep_missing(self, now: float) -> None:
        """Fail the records of a deleted topic after MISSING_TOPIC_GRACE_MS instead of the delivery timeout."""
        missing = {queue.topic for queue in self._stalled} & set(self._cluster.cache.failed)
        self._missing_since = {name: self._missing_since.get(name, now) for name in sorted(missing)}
        for name, since in self._missing_since.items():
            if (now - since) * 1000 >= self._grace_ms(name):
                self.failures.fail_topic(name, self._missing_error_of(name), now)

    def _grace_ms(self, topic: str) -> int:
        """Milliseconds that a topic may be missing before its records fail. DENIED_GRACE_MS if the principal may not describe it,
        because one fresh answer settles that."""
        return DENIED_GRACE_MS if self._cluster.cache.is_denied(topic) else MISSING_TOPIC_GRACE_MS

    def _missing_error_of(self, topic: str) -> Callable[[dict[str, Any]], ClientError]:
        if self._cluster.cache.is_denied(topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return lambda facts: delivery_failed(describe(code), **facts, code=code)
        return lambda facts: UnknownTopic("the topic does not exist, or was deleted", **facts)

    # -- the end ------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and the number of requests in flight."""
        in_flight = sum(len(broker.requests) for broker in self._brokers.values())
        throttles = self._cluster.throttles.metrics("produce", self._counters["requests"])
        counters = {**self._counters, **throttles, "failed_records": self.failures.failed_records}
        return {**counters, "requests_in_flight": in_flight}

    def stop(self) -> Undelivered:
        """Fail all waiting records. Returns their numbers by partition, and the reason."""
        return self.failures.stop(self._why_undelivered)

    async def close(self) -> None:
        """Cancel all timers, and ignore later responses. The caller has failed the waiting records (`stop`)."""
        self._closed = True
        of_brokers = [timer for broker in self._brokers.values() for timer in (broker.gather_timer, broker.throttle_timer)]
        for timer in (self._linger_timer, self._sweep_timer, *of_brokers):
            if timer is not None:
                timer.cancel()
        self._cluster.listeners.remove(self._on_cluster)
        await self.identity.close()
