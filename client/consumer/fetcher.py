"""The consumer's shell: keeps the buffer of each assigned partition filled ahead of its reader.

There is one *main* fetch per broker: incremental (KIP-227), long-polling, for all partitions that the broker leads. A partition
that needs records while the main fetch waits at the broker (its buffer was emptied, or it was sought or resumed) does not wait
for it: an *extra* fetch without a session asks for the partition, which joins the main fetch later.

A consumer with a rack may read a partition from another replica than the leader (`preferred_replicas.py`): then it belongs to the
main fetch of that broker. For some time after such a replica has failed, an extra fetch without the rack id asks the leader for
the partition, so that it does not name the replica again.

Partitions that changed are put into a set, and one call per iteration of the event loop checks them. An idle consumer costs one
waiting request per broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable
from functools import partial
from typing import Any

from strandline.client.cluster.cluster import STALL_S, Cluster
from strandline.client.consumer.broker_fetches import BrokerFetches, SentFetch
from strandline.client.consumer.fetch_session import FetchPlan
from strandline.client.consumer.offset_fetcher import OffsetFetcher, truncated
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.preferred_replicas import LEADER, PreferredReplicas
from strandline.client.consumer.records import TopicPartition
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import OffsetOutOfRange, TopicAuthorizationFailed, describe, request_failed
from strandline.client.options import ConsumerOptions
from strandline.protocol.apis import FETCH
from strandline.protocol.errors import ERRORS, BrokerError, ErrorCode, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)


FETCH_GRACE_MS = 5_000
"""A fetch fails if its broker has been silent for this long beyond `fetch_max_wait_ms`."""
DENIED_RETRY_S = 1.0
"""Seconds before the next fetch of a partition whose topic the principal may not read."""
PAUSE_S = 0.2
"""If a timer fires later than planned by more than this (seconds), the event loop was blocked, and the sockets may hold responses
that were not read."""
LOOK_AGAIN_S = 5.0
"""Seconds without a record of any partition after which the metadata is refreshed. Otherwise the consumer could wait for ever for
a leader that is cut off from the other brokers and has not noticed it; their metadata names the new leader."""


class Fetcher:
    """Sends fetches to the leaders of the subscription's partitions, and puts the responses into their buffers."""

    def __init__(self, options: ConsumerOptions, cluster: Cluster, subscription: Subscription) -> None:
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._isolation = int(options.isolation_level == "read_committed")
        self._rack = options.client_rack or ""
        timeout_ms = options.request_timeout_ms
        self._max_wait_ms = min(options.fetch_max_wait_ms, max(timeout_ms - FETCH_GRACE_MS, timeout_ms // 2))
        """How long a broker may hold a fetch back: it answers before the request times out."""
        self._brokers: dict[int, BrokerFetches] = {}
        self._session_of: dict[TopicIdPartition, BrokerFetches] = {}
        """The broker whose session holds the partition."""
        self._dirty: dict[PartitionState, None] = {}
        self._stalled: dict[PartitionState, None] = {}
        self._scheduled = False
        self._closed = False
        self._waiters: list[asyncio.Future[bool]] = []
        """Calls that wait for records; the result is whether there may be some."""
        self._ready: dict[PartitionState, None] = {}
        """States with something in their buffers, in the order in which they are served."""
        self.last_fetch_at = self._seen_data_at = self._loop.time()
        self._watch_timer: asyncio.Handle | None = None
        self._watch_at = 0.0
        """When the timer is due, on the loop's clock."""
        self.counters = {"fetches": 0, "fetched_bytes": 0, "fetched_bytes_from_followers": 0, "fetch_errors": 0}
        self._preferred: PreferredReplicas[TopicIdPartition] = PreferredReplicas(
            options.metadata_max_age_ms / 1000, options.retry_backoff_ms / 1000
        )
        self._looked_again_at = self.last_fetch_at
        """When the metadata was last refreshed because a preferred replica was silent, on the loop's clock."""
        self.offset_fetcher = OffsetFetcher(options, cluster, subscription, self.check_soon, self.wake, self.on_denied)
        cluster.listeners.add(self.on_cluster)

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def check_soon(self, state: PartitionState) -> None:
        """Something about the partition changed: check soon whether and where it must be fetched."""
        self._dirty[state] = None
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def on_cluster(self) -> None:
        """Metadata was refreshed, or a connection was opened or lost."""
        for state in self._subscription.states.values():
            self.update_leader(state)
        stalled, self._stalled = self._stalled, {}
        for state in stalled:
            self.check_soon(state)

    def update_leader(self, state: PartitionState) -> None:
        """Take over the partition's leader from the metadata."""
        cache = self._cluster.cache
        info = cache.partition(*state.tp) if cache.is_current(state.tp.topic, state.topic_id) else None
        if info is not None and info.leader_id >= 0 and info.leader_epoch != state.leader_epoch:
            state.on_leader(info.leader_epoch)
            self._preferred.drop(state.key)
            self.check_soon(state)
        elif self._preferred.is_outdated_by(state.key, self._cluster.metadata.refreshes):
            self._look_at_preferred(state, () if info is None else info.isr)

    def _look_at_preferred(self, state: PartitionState, isr: Collection[int]) -> None:
        """Read from the leader again if the newer metadata says that the preferred replica has left the cluster or the ISR."""
        if self.preferred_replica(state) not in self._cluster.cache.brokers or self.preferred_replica(state) not in isr:
            self._preferred.drop(state.key)
            self.check_soon(state)

    def preferred_replica(self, state: PartitionState) -> int:
        """The broker id of the follower that the partition is read from; -1: the leader."""
        return self._preferred.replica(state.key)

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        brokers: dict[BrokerFetches, None] = {}
        extras: dict[tuple[BrokerFetches, str], list[PartitionState]] = {}
        for state in dirty:
            broker = self._choose_broker(state, now)
            if broker is None:
                continue
            brokers[broker] = None
            if state.key not in broker.session.wanted:
                rack = "" if self._preferred.is_leader_only(state.key, now) else self._rack
                extras.setdefault((broker, rack), []).append(state)
        for (broker, rack), states in extras.items():
            self._send_extra(broker, states, rack)
        for broker in brokers:
            self._send_main(broker)

    def _choose_broker(self, state: PartitionState, now: float) -> BrokerFetches | None:
        """Put the partition into the session of the broker to fetch it from, or take it out of its session. Returns the broker if
        a request may be sent to it now."""
        current = self._subscription.by_key.get(state.key)
        if current is not None and current is not state:
            return None  # The partition was assigned again and has a newer state.
        old = self._session_of.get(state.key)
        broker = None
        if current is state:
            broker = self._broker_to_fetch_from(state, self._leader(state), now)
        if old is not None and (broker is None or old is not broker):
            old.session.remove(state.key)
            del self._session_of[state.key]
        if broker is None:
            return None
        if broker.asks_for(state):
            if broker.main is not None and state.key not in broker.session.wanted:
                broker.left_session[state] = None
            return None
        if broker.main is not None or self._preferred.is_leader_only(state.key, now):
            # The waiting fetch asks for something else, or would name our rack: an extra fetch asks for the partition.
            broker.session.remove(state.key)
            self._session_of.pop(state.key, None)
            return broker
        broker.session.put(self._fetch_partition(state))
        self._session_of[state.key] = broker
        return broker

    def _leader(self, state: PartitionState) -> int:
        """The broker id of the partition's leader; -1 if none is known."""
        cache = self._cluster.cache
        return cache.leader(*state.tp) if cache.is_current(state.tp.topic, state.topic_id) else -1

    def _broker_to_fetch_from(self, state: PartitionState, leader_id: int, now: float) -> BrokerFetches | None:
        """The broker to fetch the partition from; None if it must not be fetched now."""
        needs_position = state.needs_position
        if needs_position and state.failure is not None:
            return None  # A seek, or the return of the topic, clears the failure and looks the position up.
        if not needs_position and not state.is_fetchable(now, self._options.max_partition_fetch_bytes):
            if state.retry_at > now:
                self._loop.call_later(state.retry_at - now, self.check_soon, state)
            return None
        if leader_id < 0:
            self._stalled[state] = None
            self._cluster.metadata.request_refresh()
            return None
        if needs_position:
            self.offset_fetcher.ask_soon(state, leader_id)
            return None
        broker_id = self._reachable_preferred(state, now) if self._preferred else LEADER
        if broker_id == LEADER:
            broker_id = leader_id
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = BrokerFetches(broker_id)
        return broker

    def _reachable_preferred(self, state: PartitionState, now: float) -> int:
        """The preferred replica, or LEADER. A replica that cannot be reached is given up."""
        broker_id = self.preferred_replica(state)
        if broker_id == LEADER:
            return LEADER
        known = self._cluster.connections.state_of(broker_id)
        if known is None or (
            known.connection is None and (known.is_backing_off(now) or self._preferred.is_overdue(state.key, now))
        ):
            self._leave_preferred(state, "it cannot be reached")
            return LEADER
        return broker_id

    def _leave_preferred(self, state: PartitionState, reason: str) -> None:
        """Read from the leader again, because the preferred replica cannot or will not serve the partition."""
        tp, broker_id = state.tp, self.preferred_replica(state)
        self._preferred.fail(state.key, self._loop.time())
        logger.info("consumer.preferred_replica_left", topic=tp.topic, partition=tp.partition, broker_id=broker_id, reason=reason)

    def _fetch_partition(self, state: PartitionState) -> FetchPartition:
        return FetchPartition(
            *state.key,
            state.leader_epoch,
            state.fetch_offset,
            state.fetch_epoch,
            -1,
            self._options.max_partition_fetch_bytes,
        )

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_main(self, broker: BrokerFetches) -> None:
        session = broker.session
        if broker.main is not None or not session.wanted or broker.throttled_until > self._loop.time():
            return
        sent = SentFetch(dict(session.wanted))
        if self._send(broker, sent, session.plan, self._rack):
            broker.main = sent

    def _send_extra(self, broker: BrokerFetches, states: list[PartitionState], rack: str) -> None:
        if broker.throttled_until > self._loop.time():
            broker.held_back.update(dict.fromkeys(states))
            return
        partitions = {state.key: self._fetch_partition(state) for state in states}
        sent = SentFetch(partitions)
        if self._send(broker, sent, lambda: FetchPlan(0, -1, list(partitions.values()), []), rack):
            broker.extras[sent] = None

    def _send(self, broker: BrokerFetches, sent: SentFetch, plan: Callable[[], FetchPlan], rack: str) -> bool:
        connection = self._cluster.connections.to(broker.broker_id)
        if connection is None:
            self._cluster.refresh_if_unreachable(broker.broker_id)
            self._stall(sent)
            return False
        options = self._options
        planned = plan()
        body = FetchRequest(
            -1,
            -1,
            self._max_wait_ms,
            options.fetch_min_bytes,
            options.fetch_max_bytes,
            self._isolation,
            planned.session_id,
            planned.session_epoch,
            planned.partitions,
            planned.forgotten,
            rack,
        )
        if self._preferred:
            sent.followed = {key: None for key in sent.partitions if self._preferred.replica(key) == broker.broker_id}
        sent.sent_at = self._loop.time()
        if self._watch_timer is None:
            self._watch_in(STALL_S)
        timeout_ms = min(options.request_timeout_ms, self._max_wait_ms + FETCH_GRACE_MS)
        self.counters["fetches"] += 1
        answer = partial(self._on_response, broker, sent)
        connection.send(FETCH, body, on_response=answer, timeout_ms=timeout_ms, of_silence=True)
        return True

    def _watch(self) -> None:
        """Twice a second while a fetch is in flight: look for brokers that hang, and for leaders that are cut off."""
        if self._loop.time() - self._watch_at > PAUSE_S:
            # The event loop reads its sockets between two iterations.
            self._watch_timer = self._loop.call_soon(self._loop.call_soon, self._check_brokers)
        else:
            self._check_brokers()

    def _check_brokers(self) -> None:
        self._watch_timer = None
        if self._closed:
            return
        now = self._loop.time()
        limit_s = self._max_wait_ms / 1000 + STALL_S
        oldest = {broker: broker.oldest_sent_at() for broker in self._brokers.values()}
        for broker, sent_at in oldest.items():
            self._cluster.suspect_if_stalled(broker.broker_id, sent_at, limit_s)
        if now - self._seen_data_at > LOOK_AGAIN_S:
            self._seen_data_at = now
            self._cluster.metadata.request_refresh()
        if self._preferred:
            self._check_preferred(now)
        if any(sent_at is not None for sent_at in oldest.values()):
            self._watch_in(STALL_S)

    def _check_preferred(self, now: float) -> None:
        """Ask the leaders again about choices that are too old, and look for followers that are cut off or have left the ISR."""
        for key in self._preferred.expired(now):
            self._preferred.drop(key)
            state = self._subscription.by_key.get(key)
            if state is not None:
                self.check_soon(state)
        if now - self._looked_again_at > LOOK_AGAIN_S and self._preferred.any_silent_since(now - LOOK_AGAIN_S):
            self._looked_again_at = now
            self._cluster.metadata.request_refresh()

    def _watch_in(self, delay_s: float) -> None:
        self._watch_at = self._loop.time() + delay_s
        self._watch_timer = self._loop.call_at(self._watch_at, self._watch)

    def _stall(self, sent: SentFetch) -> None:
        for key in sent.partitions:
            state = self._subscription.by_key.get(key)
            if state is not None:
                self._stalled[state] = None

    # -- answers ------------------------------------------------------------------------------------------------------

    def _on_response(self, broker: BrokerFetches, sent: SentFetch, response: Message | Exception) -> None:
        is_main = broker.main is sent
        if is_main:
            broker.main = None
        else:
            broker.extras.pop(sent, None)
        if self._closed:
            return
        if is_main and broker.left_session:
            left, broker.left_session = broker.left_session, {}
            for state in left:
                self.check_soon(state)
        if not isinstance(response, FetchResponse):
            self._on_lost(broker, sent, response)
            return
        if response.throttle_time_ms:
            self._on_throttled(broker, response.throttle_time_ms)
        if is_main:
            if not broker.session.on_response(response.error_code, response.session_id):
                self._check_all_soon(broker, sent)
                return
        elif response.error_code:
            self._check_all_soon(broker, sent, self._options.retry_backoff_ms)
            return
        self.last_fetch_at = self._loop.time()
        for answer, records in zip(response.partitions, response.records, strict=False):
            self._on_partition(broker, sent, answer, records)
        if is_main:
            self._send_main_soon(broker)
        else:
            self._check_all_soon(broker, sent)

    def _on_throttled(self, broker: BrokerFetches, throttle_ms: int) -> None:
        """Send the broker no fetch for this long: it throttles the client because of a quota, and reads nothing meanwhile."""
        now = self._loop.time()
        broker.throttled_until = until = self._cluster.throttles.on_throttled(broker.broker_id, throttle_ms, now)
        self._loop.call_at(until, self._on_throttle_ended, broker, until)

    def _on_throttle_ended(self, broker: BrokerFetches, until: float) -> None:
        """Send the next fetches, unless a later response has extended the throttle time. The clock is not compared, because a
        timer may fire slightly early, and nothing else would send them."""
        if broker.throttled_until <= until:
            broker.throttled_until = 0.0
            held_back, broker.held_back = broker.held_back, {}
            for state in held_back:
                self.check_soon(state)
            self._send_main_soon(broker)

    def _send_main_soon(self, broker: BrokerFetches) -> None:
        """Send the next main fetch after the partitions that this response changed were checked."""
        self._loop.call_soon(self._send_main_if_open, broker)

    def _send_main_if_open(self, broker: BrokerFetches) -> None:
        if not self._closed:
            self._send_main(broker)

    def _on_lost(self, broker: BrokerFetches, sent: SentFetch, error: object) -> None:
        """The request got no response: the connection was lost, or the broker hangs. Its partitions may have new leaders."""
        self.counters["fetch_errors"] += 1
        if isinstance(error, BrokerError) and error.code == ErrorCode.REQUEST_TIMED_OUT:
            logger.warning("consumer.fetch_timed_out", broker_id=broker.broker_id)
        broker.session.reset()
        self._cluster.metadata.request_refresh()
        if self._preferred:
            for key in sent.followed:
                state = self._subscription.by_key.get(key)
                if state is not None and self.preferred_replica(state) == broker.broker_id:
                    self._leave_preferred(state, "the connection was lost")
        self._check_all_soon(broker, sent, 10)

    def _check_all_soon(self, broker: BrokerFetches, sent: SentFetch, delay_ms: float = 0) -> None:
        """Check the request's partitions soon, except those that are in the session of another broker by now."""
        for key in sent.partitions:
            state = self._subscription.by_key.get(key)
            if state is not None and self._session_of.get(key, broker) is broker:
                if delay_ms:
                    state.back_off(self._loop.time() + delay_ms / 1000)
                self.check_soon(state)

    def _on_partition(self, broker: BrokerFetches, sent: SentFetch, answer: FetchPartitionResponse, records: memoryview) -> None:
        key = (answer.topic_id, answer.partition)
        state = self._subscription.by_key.get(key)
        wanted = sent.partitions.get(key)
        if state is None or wanted is None or wanted.fetch_offset != state.fetch_offset:
            return
        if wanted.current_leader_epoch != state.leader_epoch:
            self.check_soon(state)  # Another broker leads by now: a late response of the old leader does not count.
            return
        is_diverging = answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0
        if key in sent.followed:
            self._on_followed(broker, state, answer, is_diverging, records)
        elif answer.error_code:
            self._on_error(broker, state, to_code(answer.error_code), answer)
        elif is_diverging:
            self._on_diverging(state, answer)
        elif answer.preferred_read_replica >= 0:
            self._on_nomination(state, answer.preferred_read_replica)
        else:
            state.on_end_offsets(answer.high_watermark, answer.last_stable_offset)
            self._on_data(state, answer, records)
        self.check_soon(state)

    def _on_followed(
        self,
        broker: BrokerFetches,
        state: PartitionState,
        answer: FetchPartitionResponse,
        is_diverging: bool,
        records: memoryview,
    ) -> None:
        """Apply a follower's answer. If it is an error or a divergence, the partition is read from the leader again, which
        decides: a follower may be behind, or have records that it will truncate. A follower's high watermark may be older than
        one that the leader has sent."""
        names_another = answer.preferred_read_replica >= 0
        if answer.error_code or is_diverging or names_another:
            self.counters["fetch_errors"] += 1
            code = to_code(answer.error_code)
            if self.preferred_replica(state) == broker.broker_id:
                reason = "it names another replica" if names_another else "its log diverges from the position"
                self._leave_preferred(state, code.name if code else reason)
            if ERRORS[code].refresh_metadata:
                self._learn_leader(broker, state, answer)
            return
        state.on_end_offsets(
            max(state.highwater, answer.high_watermark), max(state.last_stable_offset, answer.last_stable_offset)
        )
        if len(records):
            self._preferred.on_records(state.key, self._loop.time())
            self.counters["fetched_bytes_from_followers"] += len(records)
        self._on_data(state, answer, records)

    def _on_nomination(self, state: PartitionState, replica_id: int) -> None:
        """The leader names a replica that the partition should be read from."""
        now = self._loop.time()
        if replica_id not in self._cluster.cache.brokers:  # The metadata is older than the replica, or the replica has left.
            self._preferred.fail(state.key, now)
            self._cluster.metadata.request_refresh()
        elif not self._preferred.is_leader_only(state.key, now):
            self._preferred.choose(state.key, replica_id, now, self._cluster.metadata.refreshes)

    def _on_data(self, state: PartitionState, answer: FetchPartitionResponse, records: memoryview) -> None:
        size = len(records)
        if size:
            self.counters["fetched_bytes"] += size
            self._seen_data_at = self._loop.time()
            fetch_offset = state.fetch_offset
            if answer.aborted_transactions:
                state.on_aborted(answer.aborted_transactions)
            state.on_fetched(records)
            if state.fetch_offset == fetch_offset:  # No batch can be used, so they are damaged. Ask again after a pause.
                state.back_off(self._loop.time() + self._options.retry_backoff_ms / 1000)
            if state.has_buffered or state.error is not None:
                self._ready[state] = None
                self.wake()

    def _on_diverging(self, state: PartitionState, answer: FetchPartitionResponse) -> None:
        if not state.drop_prefetched():
            state.fail(truncated(state, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset))
            self.wake()

    def _on_error(self, broker: BrokerFetches, state: PartitionState, code: ErrorCode, answer: FetchPartitionResponse) -> None:
        self.counters["fetch_errors"] += 1
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(state, answer)
        elif ERRORS[code].refresh_metadata:
            self._learn_leader(broker, state, answer)
        elif ERRORS[code].retriable:
            state.back_off(self._loop.time() + self._options.retry_backoff_ms / 1000)
        else:
            facts: dict[str, Any] = {
                "topic": state.tp.topic,
                "partition": state.tp.partition,
                "broker_id": broker.broker_id,
            }
            state.fail(request_failed(describe(code), **facts, api="Fetch", code=code))
            self.on_denied(state)
            self.wake()

    def on_denied(self, state: PartitionState) -> None:
        """Called when the partition has failed. If the principal lacks a right on the topic, try again after DENIED_RETRY_S,
        because the right may be granted."""
        if isinstance(state.error, TopicAuthorizationFailed):
            self._loop.call_later(DENIED_RETRY_S, self._try_again, state)

    def _try_again(self, state: PartitionState) -> None:
        if state.on_maybe_allowed():
            self.check_soon(state)

    def _learn_leader(self, broker: BrokerFetches, state: PartitionState, answer: FetchPartitionResponse) -> None:
        """The broker does not lead the partition: take over the leader that the answer names, or refresh the metadata."""
        leader, cache = answer.current_leader, self._cluster.cache
        if not cache.is_current(state.tp.topic, state.topic_id):
            self._cluster.metadata.request_refresh()
        elif cache.update_leader(*state.tp, leader.leader_id, leader.leader_epoch):
            state.on_leader(leader.leader_epoch)
            self._preferred.drop(state.key)
        else:
            cache.forget_leader(*state.tp, broker.broker_id)
            self._cluster.metadata.request_refresh()

    def _on_out_of_range(self, state: PartitionState, answer: FetchPartitionResponse) -> None:
        if state.drop_prefetched():
            return
        tp, position = state.tp, state.position
        if self._subscription.default_reset is None:
            known = answer.log_start_offset >= 0  # a broker that rejects a fetch may leave out the offsets of its log
            holds = f", which holds offsets {answer.log_start_offset} to {answer.high_watermark - 1}" if known else ""
            way_out = "seek to an offset between beginning_offsets() and end_offsets(), or choose an auto_offset_reset"
            text = f"the position {position} is outside the log{holds}; {way_out}"
            state.fail(OffsetOutOfRange(text, topic=tp.topic, partition=tp.partition))
            self.wake()
            return
        logger.warning("consumer.position_reset", topic=tp.topic, partition=tp.partition, fetch_offset=position)
        state.reset_to(self._subscription.default_reset)

    # -- the reader's side --------------------------------------------------------------------------------------------

    def next_ready(self, only: Container[TopicPartition] | None) -> PartitionState | None:
        """The first partition with something in its buffer that is not paused; one of `only`, if given."""
        for state in self._ready:
            if not state.paused and (only is None or state.tp in only) and state.has_buffered:
                return state
        return None

    def ready_states(self, only: set[TopicPartition] | None) -> list[PartitionState]:
        """The partitions that may have something in their buffers and are not paused; those of `only`, if given."""
        return [state for state in self._ready if (only is None or state.tp in only) and not state.paused]

    def on_read(self, state: PartitionState) -> None:
        """Records of the partition were returned: serve the other partitions first next time, and fill its buffer again."""
        self._ready.pop(state, None)
        if state.has_buffered and self._subscription.states.get(state.tp) is state:
            self._ready[state] = None
        self.check_soon(state)

    def on_moved(self, state: PartitionState) -> None:
        """The partition has another position."""
        if not state.has_buffered:
            self._ready.pop(state, None)
        self.check_soon(state)

    def on_resumed(self, state: PartitionState) -> None:
        """The partition is no longer paused."""
        if state.has_buffered:
            self._ready[state] = None
            self.wake()
        self.check_soon(state)

    def drop(self, states: Iterable[PartitionState]) -> None:
        """These partitions are no longer read."""
        for state in states:
            self._ready.pop(state, None)
            self._preferred.forget(state.key)
            self.check_soon(state)

    def wake(self) -> None:
        """Wake all calls that wait for records, so that they look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _settle(waiter, True)

    async def wait(self, deadline: float | None) -> bool:
        """Wait until something arrived or failed. Returns False at the deadline (on the loop's clock)."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline is None else self._loop.call_at(deadline, _settle, waiter, False)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:  # The call was cancelled, or its deadline has passed.
                self._waiters.remove(waiter)

    async def close(self) -> None:
        """Stop fetching. Calls that wait for records look again, and find that the consumer was stopped."""
        self._closed = True
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._cluster.listeners.remove(self.on_cluster)
        await self.offset_fetcher.close()
        self.wake()


def _settle(waiter: asyncio.Future[bool], has_news: bool) -> None:
    if not waiter.done():
        waiter.set_result(has_news)
