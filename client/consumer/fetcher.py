"""The consumer's shell: keeps every assigned partition's buffer filled ahead of its reader.

Per broker there is one *main* fetch: incremental, long-polling, for all partitions that it leads. A partition that
becomes ready while the main fetch is parked at the broker (its buffer was drained, it was sought, resumed) does not wait
for it: it is asked for in an *extra* fetch beside, without a session, and joins the main one later.

What changed is put into a set, and one call per loop turn looks at it; an idle consumer costs one parked request per
broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.fetch_session import FetchPlan, FetchSession
from strandline.client.consumer.offset_fetcher import OffsetFetcher, truncated
from strandline.client.consumer.subscription import PartitionState, Subscription
from strandline.client.errors import OffsetOutOfRange, RequestFailed, describe
from strandline.client.options import ConsumerOptions
from strandline.protocol.apis import FETCH
from strandline.protocol.errors import ERRORS, BrokerError, ErrorCode, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)


FETCH_GRACE_MS = 5_000
"""A broker that has not answered a fetch this long after its wait was over is taken for dead."""
STALL_S = 0.5
"""A fetch that is this much longer under way than its wait makes us look whether the leader has moved."""
STOOD_STILL_S = 0.2
"""A timer that fires so late means that the event loop did not run, and answers lie unread in the sockets."""
LOOK_AGAIN_S = 5.0
"""So long without a record of any partition: a leader that is cut off from the others, and does not know it, would let
us wait for ever. The others know."""


class Asked:
    """One fetch request on its way, and what it asks for."""

    __slots__ = ("partitions", "sent_at")

    def __init__(self, partitions: dict[TopicIdPartition, FetchPartition]) -> None:
        self.partitions = partitions
        self.sent_at = 0.0


class Lane:
    """The way to one broker."""

    __slots__ = ("broker_id", "extras", "left", "main", "session")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.session = FetchSession()
        self.main: Asked | None = None
        self.extras: dict[Asked, None] = {}
        self.left: dict[PartitionState, None] = {}
        """What the main fetch under way asks for, and the session holds no more: to be looked at when it is answered."""

    def on_their_way(self) -> list[Asked]:
        return [*self.extras] if self.main is None else [self.main, *self.extras]

    def is_asked(self, state: PartitionState) -> bool:
        """Whether a request on its way asks for exactly what is wanted now."""
        for asked in self.on_their_way():
            known = asked.partitions.get(state.key)
            if known is not None and known.fetch_offset == state.fetch_offset:
                return True
        return False


class Fetcher:
    def __init__(self, options: ConsumerOptions, cluster: Cluster, subscription: Subscription) -> None:
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._isolation = int(options.isolation_level == "read_committed")
        self._lanes: dict[int, Lane] = {}
        self._home: dict[TopicIdPartition, Lane] = {}
        """The lane whose session holds the partition."""
        self._dirty: dict[PartitionState, None] = {}
        self._stalled: dict[PartitionState, None] = {}
        self._scheduled = False
        self._closed = False
        self._waiters: list[asyncio.Future[bool]] = []
        """Who waits for something to hand out; the result is whether there may be news."""
        self.ready: dict[PartitionState, None] = {}
        """States with something buffered, in the order in which they are served."""
        self.last_fetch_at = self._seen_data_at = self._loop.time()
        self._watch_timer: asyncio.Handle | None = None
        self._watch_at = 0.0
        """When the timer is due."""
        self.counters = {"fetches": 0, "fetched_bytes": 0, "fetch_errors": 0}
        self.positions = OffsetFetcher(options, cluster, subscription, self.look_at, self.wake)
        cluster.listeners.append(self.on_cluster)

    # -- what makes it run --------------------------------------------------------------------------------------------

    def look_at(self, state: PartitionState) -> None:
        """Something about the partition changed."""
        self._dirty[state] = None
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def on_cluster(self) -> None:
        """Metadata was refreshed, or a connection made."""
        for state in self._subscription.states.values():
            self.learn_leader(state)
        stalled, self._stalled = self._stalled, {}
        for state in stalled:
            self.look_at(state)

    def learn_leader(self, state: PartitionState) -> None:
        """From the metadata that is there."""
        cache = self._cluster.cache
        info = cache.partition(*state.place) if cache.is_current(state.place.topic, state.topic_id) else None
        if info is not None and info.leader_id >= 0 and info.leader_epoch != state.leader_epoch:
            state.on_leader(info.leader_epoch)
            self.look_at(state)

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now = self._loop.time()
        dirty, self._dirty = self._dirty, {}
        lanes: dict[Lane, None] = {}
        extras: dict[Lane, list[PartitionState]] = {}
        for state in dirty:
            lane = self._place(state, now)
            if lane is None:
                continue
            lanes[lane] = None
            if lane.main is not None and state.key not in lane.session.wanted:
                extras.setdefault(lane, []).append(state)
        for lane, states in extras.items():
            self._send_extra(lane, states)
        for lane in lanes:
            self._send_main(lane)

    def _place(self, state: PartitionState, now: float) -> Lane | None:
        """Put the partition into the session of its leader's lane, or take it out; the lane to be served, if any."""
        current = self._subscription.by_key.get(state.key)
        if current is not None and current is not state:
            return None  # Assigned anew: the newer state has taken this one's place.
        old = self._home.get(state.key)
        lane = None
        if current is state:
            lane = self._lane(state, self._leader(state), now)
        if old is not None and (lane is None or old is not lane):
            old.session.remove(state.key)
            del self._home[state.key]
        if lane is None:
            return None
        if lane.is_asked(state):
            if lane.main is not None and state.key not in lane.session.wanted:
                lane.left[state] = None
            return None
        if lane.main is not None:
            # The parked fetch asks for something else: see the extra fetch.
            lane.session.remove(state.key)
            self._home.pop(state.key, None)
            return lane
        lane.session.put(self._fetch_partition(state))
        self._home[state.key] = lane
        return lane

    def _leader(self, state: PartitionState) -> int:
        """-1: none is known."""
        cache = self._cluster.cache
        return cache.leader(*state.place) if cache.is_current(state.place.topic, state.topic_id) else -1

    def _lane(self, state: PartitionState, leader_id: int, now: float) -> Lane | None:
        """The lane that the partition should be fetched on now; None: not at all, for now."""
        wants_position = state.reset is not None or state.needs_validation
        if not wants_position and not state.is_fetchable(now, self._options.max_partition_fetch_bytes):
            if state.retry_at > now:
                self._loop.call_later(state.retry_at - now, self.look_at, state)
            return None
        if leader_id < 0:
            self._stalled[state] = None
            self._cluster.request_refresh()
            return None
        if wants_position:
            self.positions.ask_soon(state, leader_id)
            return None
        lane = self._lanes.get(leader_id)
        if lane is None:
            lane = self._lanes[leader_id] = Lane(leader_id)
        return lane

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

    def _send_main(self, lane: Lane) -> None:
        session = lane.session
        if lane.main is not None or not session.wanted:
            return
        asked = Asked(dict(session.wanted))
        if self._send(lane, asked, session.plan):
            lane.main = asked

    def _send_extra(self, lane: Lane, states: list[PartitionState]) -> None:
        partitions = {state.key: self._fetch_partition(state) for state in states}
        asked = Asked(partitions)
        if self._send(lane, asked, lambda: FetchPlan(0, -1, list(partitions.values()), [])):
            lane.extras[asked] = None

    def _send(self, lane: Lane, asked: Asked, plan: Callable[[], FetchPlan]) -> bool:
        connection = self._cluster.connection_or_refresh(lane.broker_id)
        if connection is None:
            self._stall(asked)
            return False
        options = self._options
        planned = plan()
        body = FetchRequest(
            -1,
            -1,
            options.fetch_max_wait_ms,
            options.fetch_min_bytes,
            options.fetch_max_bytes,
            self._isolation,
            planned.session_id,
            planned.session_epoch,
            planned.partitions,
            planned.forgotten,
        )
        asked.sent_at = self._loop.time()
        if self._watch_timer is None:
            self._watch_in(STALL_S)
        timeout_ms = min(options.request_timeout_ms, options.fetch_max_wait_ms + FETCH_GRACE_MS)
        self.counters["fetches"] += 1
        answer = partial(self._on_response, lane, asked)
        connection.send(FETCH, body, on_response=answer, timeout_ms=timeout_ms, of_silence=True)
        return True

    def _watch(self) -> None:
        """Twice a second while anything is asked: brokers that hang, or that nobody else listens to any more."""
        if self._loop.time() - self._watch_at > STOOD_STILL_S:
            # The loop reads its sockets between two iterations.
            self._watch_timer = self._loop.call_soon(self._loop.call_soon, self._look_at_lanes)
        else:
            self._look_at_lanes()

    def _look_at_lanes(self) -> None:
        self._watch_timer = None
        if self._closed:
            return
        now = self._loop.time()
        limit_s = self._options.fetch_max_wait_ms / 1000 + STALL_S
        asked = [(lane, asked) for lane in self._lanes.values() for asked in lane.on_their_way()]
        for lane in {lane: None for lane, request in asked if now - request.sent_at > limit_s}:
            self._cluster.suspect(lane.broker_id)
        if now - self._seen_data_at > LOOK_AGAIN_S:
            self._seen_data_at = now
            self._cluster.request_refresh()
        if asked:
            self._watch_in(STALL_S)

    def _watch_in(self, delay_s: float) -> None:
        self._watch_at = self._loop.time() + delay_s
        self._watch_timer = self._loop.call_at(self._watch_at, self._watch)

    def _stall(self, asked: Asked) -> None:
        for key in asked.partitions:
            state = self._subscription.by_key.get(key)
            if state is not None:
                self._stalled[state] = None

    # -- answers ------------------------------------------------------------------------------------------------------

    def _on_response(self, lane: Lane, asked: Asked, response: Message | Exception) -> None:
        is_main = lane.main is asked
        if is_main:
            lane.main = None
        else:
            lane.extras.pop(asked, None)
        if self._closed:
            return
        if is_main and lane.left:
            left, lane.left = lane.left, {}
            for state in left:
                self.look_at(state)
        if not isinstance(response, FetchResponse):
            self._on_lost(lane, asked, response)
            return
        if is_main:
            if not lane.session.on_response(response.error_code, response.session_id):
                self._look_at_all(lane, asked)
                return
        elif response.error_code:
            self._look_at_all(lane, asked, self._options.retry_backoff_ms)
            return
        self.last_fetch_at = self._loop.time()
        for answer, records in zip(response.partitions, response.records, strict=False):
            self._on_partition(lane, asked, answer, records)
        if is_main:
            self._send_main_soon(lane)
        else:
            self._look_at_all(lane, asked)

    def _send_main_soon(self, lane: Lane) -> None:
        """After the partitions that this answer changed were looked at."""
        self._loop.call_soon(self._send_main_if_open, lane)

    def _send_main_if_open(self, lane: Lane) -> None:
        if not self._closed:
            self._send_main(lane)

    def _on_lost(self, lane: Lane, asked: Asked, error: object) -> None:
        """No answer: the connection broke, or the broker hangs. Its leaders may have moved."""
        self.counters["fetch_errors"] += 1
        if isinstance(error, BrokerError) and error.code == ErrorCode.REQUEST_TIMED_OUT:
            logger.warning("consumer.fetch_timed_out", broker_id=lane.broker_id)
        lane.session.reset()
        self._cluster.request_refresh()
        self._look_at_all(lane, asked, 10)

    def _look_at_all(self, lane: Lane, asked: Asked, delay_ms: float = 0) -> None:
        """But for those that are asked for elsewhere by now: what this broker did not say does not concern them."""
        for key in asked.partitions:
            state = self._subscription.by_key.get(key)
            if state is not None and self._home.get(key, lane) is lane:
                if delay_ms:
                    state.retry_at = self._loop.time() + delay_ms / 1000
                self.look_at(state)

    def _on_partition(self, lane: Lane, asked: Asked, answer: FetchPartitionResponse, records: memoryview) -> None:
        key = (answer.topic_id, answer.partition)
        state = self._subscription.by_key.get(key)
        wanted = asked.partitions.get(key)
        if state is None or wanted is None or wanted.fetch_offset != state.fetch_offset:
            return
        if wanted.current_leader_epoch != state.leader_epoch:
            self.look_at(state)  # Somebody else leads by now: what the old leader says, late perhaps, is no news.
            return
        if answer.error_code:
            self._on_error(lane, state, to_code(answer.error_code), answer)
        elif answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0:
            self._on_diverging(state, answer)
        else:
            self._on_data(state, answer, records)
        self.look_at(state)

    def _on_data(self, state: PartitionState, answer: FetchPartitionResponse, records: memoryview) -> None:
        state.highwater = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        size = len(records)
        if size:
            self.counters["fetched_bytes"] += size
            self._seen_data_at = self._loop.time()
            fetch_offset = state.fetch_offset
            state.on_fetched(records)
            if state.fetch_offset == fetch_offset:  # Nothing in them helps: damage. Ask again, but not at full speed.
                state.retry_at = self._loop.time() + self._options.retry_backoff_ms / 1000
            if state.has_buffered or state.error is not None:
                self.ready[state] = None
                self.wake()

    def _on_diverging(self, state: PartitionState, answer: FetchPartitionResponse) -> None:
        if not state.drop_prefetched():
            state.fail(truncated(state, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset))
            self.wake()

    def _on_error(self, lane: Lane, state: PartitionState, code: ErrorCode, answer: FetchPartitionResponse) -> None:
        self.counters["fetch_errors"] += 1
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(state, answer)
        elif ERRORS[code].refresh_metadata:
            leader, cache = answer.current_leader, self._cluster.cache
            if not cache.is_current(state.place.topic, state.topic_id):
                self._cluster.request_refresh()
            elif cache.update_leader(*state.place, leader.leader_id, leader.leader_epoch):
                state.on_leader(leader.leader_epoch)
            else:
                cache.forget_leader(*state.place, lane.broker_id)
                self._cluster.request_refresh()
        elif ERRORS[code].retriable:
            state.retry_at = self._loop.time() + self._options.retry_backoff_ms / 1000
        else:
            place = state.place
            state.fail(
                RequestFailed(
                    describe(code), topic=place.topic, partition=place.partition, broker_id=lane.broker_id, api="Fetch", code=code
                )
            )
            self.wake()

    def _on_out_of_range(self, state: PartitionState, answer: FetchPartitionResponse) -> None:
        if state.drop_prefetched():
            return
        place, position = state.place, state.position
        if self._subscription.default_reset is None:
            known = answer.log_start_offset >= 0  # a broker that refuses a fetch need not name them
            holds = f", which holds offsets {answer.log_start_offset} to {answer.high_watermark - 1}" if known else ""
            way_out = "seek to an offset between beginning_offsets() and end_offsets(), or choose an auto_offset_reset"
            text = f"the position {position} is outside the log{holds}; {way_out}"
            state.fail(OffsetOutOfRange(text, topic=place.topic, partition=place.partition))
            self.wake()
            return
        logger.warning("consumer.out_of_range", topic=place.topic, partition=place.partition, fetch_offset=position)
        state.reset_to(self._subscription.default_reset)

    # -- the reader's side --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Somebody who waits for records should look."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _tell(waiter, True)

    async def wait(self, deadline: float | None) -> bool:
        """Until something arrived or failed; False at the deadline."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline is None else self._loop.call_at(deadline, _tell, waiter, False)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:  # Nobody woke it: it was cancelled, or its time was over.
                self._waiters.remove(waiter)

    async def close(self) -> None:
        self._closed = True
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        if self.on_cluster in self._cluster.listeners:
            self._cluster.listeners.remove(self.on_cluster)
        await self.positions.close()
        self.wake()


def _tell(waiter: asyncio.Future[bool], has_news: bool) -> None:
    if not waiter.done():
        waiter.set_result(has_news)
