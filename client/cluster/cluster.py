"""How a client reaches the cluster: bootstrap addresses, one connection per broker, and metadata that is kept fresh.

Rules:
- Each address has one connection. A connection that breaks is opened again when it is needed, after a backoff.
- Refreshes are coalesced: however many callers want one, one request is in flight. It is sent to a connected broker, and if that
  one is slow, to the next one as well. So a broker that hangs costs a quarter of a second, not a timeout.
- A broker that is suspected of being gone (a response is overdue) is asked last. A request that must be sent to one broker only
  is sent to one that has just responded.
- While something is wrong (a partition has no leader) callers ask again and again; the refreshes are then 20-50 ms apart. A topic
  that no refresh has asked for does not wait for that gap: asking for it is no repetition (as in Kafka's Java client).
- Listeners are called after each refresh and each change of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any

from strandline.client.cluster.connection_state import SOFTWARE, ConnectionState
from strandline.client.cluster.metadata import MetadataCache, TopicInfo
from strandline.client.errors import ClientClosed, NoBrokersAvailable, RequestTimeout, UnknownTopic, to_client_error
from strandline.client.option_types import Address, parse_bootstrap
from strandline.client.options import ClientOptions
from strandline.protocol.apis import API_VERSIONS, METADATA, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError
from strandline.protocol.messages.admin import (
    ApiVersionsRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection

HEDGE_AFTER_MS = 250
"""When a broker has not answered a metadata request for so long, the next one is asked too."""
STALE_AFTER_MS = 300
"""Metadata of a broker that knows no controller is accepted if no other broker has answered for so long."""
REFRESH_GAP_MS = (20, 50, 250)
"""The gap between two refreshes that follow one another: the first ten, the next hundred, all later ones."""
FRESH_S = 1.0
"""A connection on which bytes arrived within this time is known to be alive."""
STALL_S = 0.5
"""When a response is overdue for so long, the client checks whether the leader has moved."""
MISSING_TOPIC_GRACE_MS = 1_500
"""A topic or partition that was just created or deleted may not be known as such to every broker yet. So long it is waited
for."""


class Cluster:
    def __init__(self, options: ClientOptions, random: Random) -> None:
        self.options = options
        self.cache = MetadataCache()
        self.listeners: list[Callable[[], None]] = []
        """Called soon, on the event loop, after each refresh and each change of a connection."""
        self.bootstrap = parse_bootstrap(options.bootstrap_servers)
        self.connections: dict[Address, ConnectionState] = {
            address: ConnectionState(address, options, self._on_connection_state) for address in self.bootstrap
        }
        self.closed = False
        self.refreshes = 0
        self.last_error: StrandlineError | None = None
        """Why the last refresh failed; None if it succeeded."""
        self._random = random
        self._topics: dict[str, None] = {}
        self._rotation = 0
        self._streak = 0
        self._refreshed_at = -1e9
        self._wanted = False
        self._has_new_topic = False
        """A topic is wanted that no refresh has asked for: the next refresh begins at once."""
        self._gap_wait: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._age_timer: asyncio.TimerHandle | None = None
        self._again_timer: asyncio.TimerHandle | None = None
        self._notify_handle: asyncio.Handle | None = None

    async def start(self) -> None:
        """Find the cluster. NoBrokersAvailable after `connect_timeout_ms`, so that a cluster that is down is reported soon."""
        self._rotation = self._random.randrange(1 << 16)
        await self.renew()

    async def renew(self) -> None:
        """Refresh the metadata now, without the gap between repeated refreshes."""
        self._streak, self._refreshed_at = 0, -1e9
        await self.refresh(min(self.options.max_block_ms, self.options.connect_timeout_ms))

    @property
    def brokers_connected(self) -> int:
        return sum(state.connection is not None for state in self.connections.values())

    async def close(self) -> None:
        self.closed = True
        for handle in (self._age_timer, self._again_timer, self._notify_handle):
            if handle is not None:
                handle.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._finish(self._waiters, ClientClosed("the client was stopped"))
        for state in self.connections.values():
            await state.close()

    # -- metadata -----------------------------------------------------------------------------------------------------

    def want_topics(self, names: Iterable[str]) -> bool:
        """Keep these topics' metadata fresh. Returns whether one of them is new."""
        before = len(self._topics)
        self._topics.update(dict.fromkeys(names))
        is_new = len(self._topics) > before
        if is_new:
            self._has_new_topic = True
            _end(self._gap_wait)
        return is_new

    @property
    def topics_wanted(self) -> int:
        """The number of topics whose metadata is kept fresh."""
        return len(self._topics)

    def forget_topics(self) -> None:
        """Drop the metadata of all topics, and do not keep it fresh any more."""
        self._topics.clear()
        self.cache.forget_topics()

    def request_refresh(self) -> None:
        """Refresh the metadata: now, or after the gap if it was just refreshed."""
        self._wanted = True
        if not self.closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._refresh_while_wanted())
            self._task.add_done_callback(self._on_task_done)

    def request_refresh_in(self, delay_s: float) -> None:
        """Refresh the metadata after a delay. Of several requested delays, the shortest counts."""
        loop = asyncio.get_running_loop()
        timer, when = self._again_timer, loop.time() + delay_s
        if self.closed or (timer is not None and loop.time() < timer.when() <= when):
            return
        if timer is not None:
            timer.cancel()
        self._again_timer = loop.call_at(when, self.request_refresh)

    async def refresh(self, timeout_ms: float) -> None:
        """Wait for a refresh that begins after this call. It is retried for `timeout_ms`; then its last error is raised."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            if self.closed:
                raise ClientClosed("the client was stopped")
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            self.request_refresh()
            try:
                async with asyncio.timeout_at(deadline):
                    return await waiter
            except TimeoutError:
                raise self.no_answer(timeout_ms) from None
            except (NoBrokersAvailable, RequestTimeout):
                if loop.time() >= deadline:
                    raise

    async def topic(self, name: str, timeout_ms: float, partitions: Collection[int] = ()) -> TopicInfo:
        """The topic's metadata. Refreshes if the topic, or one of these partitions, is not known; UnknownTopic if it still is not
        after MISSING_TOPIC_GRACE_MS."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        grace = min(timeout_ms, MISSING_TOPIC_GRACE_MS) / 1000
        self.want_topics([name])
        while True:
            info = self.cache.topics.get(name)
            missing = [] if info is None else [index for index in partitions if index not in info.partitions]
            if info is not None and info.partitions and not missing:
                return info
            elapsed = loop.time() - started
            is_answered = name in self.cache.failed or (info is not None and bool(info.partitions))
            if elapsed >= timeout_ms / 1000 or (is_answered and elapsed >= grace):
                raise self.unknown_topic(name, elapsed * 1000, min(missing, default=None))
            await self.refresh(max(timeout_ms - elapsed * 1000, 1))

    def unknown_topic(self, name: str, elapsed_ms: float, partition: int | None = None) -> StrandlineError:
        """The error for a topic that does not exist, has no such partition, or whose metadata was refused."""
        code = self.cache.failed.get(name)
        info = self.cache.topics.get(name)
        if code is None and info is not None and info.partitions and partition is not None:
            count = len(info.partitions)
            text = f"the topic has {count} partition{'s' if count > 1 else ''}"
            return UnknownTopic(text, topic=name, partition=partition, elapsed_ms=elapsed_ms)
        if code in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return UnknownTopic("the topic does not exist", topic=name, partition=partition, elapsed_ms=elapsed_ms, code=code)
        return to_client_error(BrokerError(code or ErrorCode.UNKNOWN_SERVER_ERROR, f"metadata of topic {name!r} was refused"))

    async def _refresh_while_wanted(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted and not self.closed:
            await self._wait_gap(self._gap(loop.time()))
            self._wanted = False
            waiters, self._waiters = self._waiters, []
            try:
                await self._refresh_once()
            except StrandlineError as e:
                self.last_error = e
                self._finish(waiters, e)
                self._refreshed_at = loop.time()
                if self._topics or self._waiters:
                    self._wanted = True
            except BaseException:
                self._waiters = waiters + self._waiters
                raise
            else:
                self.last_error = None
                self._refreshed_at = loop.time()
                self._finish(waiters, None)
            self._notify()
        self._arm_age_timer()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """The refresh task was cancelled, perhaps by a program that cancels all tasks: start another one for those that wait."""
        if task.cancelled() and not self.closed and (self._waiters or self._wanted):
            self.request_refresh()

    def _gap(self, now: float) -> float:
        """How many seconds to wait before the next refresh: 0, unless the last one was a moment ago and asked for the same
        topics."""
        if self._has_new_topic:
            return 0.0
        since = now - self._refreshed_at
        self._streak = self._streak + 1 if since < 0.5 else 0
        gap_ms = REFRESH_GAP_MS[0 if self._streak < 10 else 1 if self._streak < 120 else 2]
        return max(0.0, gap_ms / 1000 - since)

    async def _wait_gap(self, gap_s: float) -> None:
        """Wait, but no longer than until a topic is wanted that no refresh has asked for."""
        if gap_s <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        wait = self._gap_wait = loop.create_future()
        timer = loop.call_later(gap_s, _end, wait)
        try:
            await wait
        finally:
            timer.cancel()
            self._gap_wait = None

    async def _refresh_once(self) -> None:
        self._has_new_topic = False
        topics = [MetadataTopicRequest(name) for name in self._topics]
        response = await self.ask_any(METADATA, MetadataRequest(topics), self.options.request_timeout_ms)
        assert isinstance(response, MetadataResponse)
        self.refreshes += 1
        self.cache.update(response)

    def _arm_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        if not self.closed:
            loop = asyncio.get_running_loop()
            self._age_timer = loop.call_later(self.options.metadata_max_age_ms / 1000, self.request_refresh)

    def no_answer(self, timeout_ms: float) -> StrandlineError:
        """The error that says why there is no metadata after `timeout_ms`."""
        if self.last_error is not None:
            return self.last_error
        return NoBrokersAvailable(f"no answer from {self._describe(list(self.connections))}", elapsed_ms=timeout_ms)

    @staticmethod
    def _finish(waiters: list[asyncio.Future[None]], error: StrandlineError | None) -> None:
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
                waiter.exception()

    def notify_soon(self, delay_s: float) -> None:
        if not self.closed:
            asyncio.get_running_loop().call_later(delay_s, self._notify)

    def _notify(self) -> None:
        if self._notify_handle is None and not self.closed:
            self._notify_handle = asyncio.get_running_loop().call_soon(self._call_listeners)

    def _call_listeners(self) -> None:
        self._notify_handle = None
        for listener in list(self.listeners):
            listener()

    def _on_connection_state(self, state: ConnectionState, lost: bool) -> None:
        """A connection was opened or lost, could not be opened, or takes long to open."""
        if lost and self._topics:
            self.request_refresh()
        self._notify()

    # -- connections --------------------------------------------------------------------------------------------------

    def connection_state(self, broker_id: int) -> ConnectionState | None:
        """The state of the connection to a broker's advertised address; None if the broker is not known."""
        broker = self.cache.brokers.get(broker_id)
        if broker is None:
            return None
        address = (broker.host, broker.port)
        state = self.connections.get(address)
        if state is None:
            state = self.connections[address] = ConnectionState(address, self.options, self._on_connection_state)
        return state

    def suspect(self, broker_id: int) -> None:
        """A response of this broker is overdue: it may be gone, and another broker may lead its partitions."""
        state = self.connection_state(broker_id)
        if state is not None:
            state.suspect()
        self.request_refresh()

    def suspect_if_stalled(self, broker_id: int, oldest_request_at: float | None, limit_s: float) -> None:
        """Suspect the broker if its oldest unanswered request was sent more than `limit_s` ago."""
        if oldest_request_at is not None and asyncio.get_running_loop().time() - oldest_request_at > limit_s:
            self.suspect(broker_id)

    def last_error_of(self, broker_id: int) -> StrandlineError | None:
        """Why the last attempt to connect to the broker failed, or its last connection was lost."""
        state = self.connection_state(broker_id)
        return None if state is None else state.last_error

    def refresh_if_unreachable(self, broker_id: int) -> None:
        """There is no connection to the broker. If it is unknown or cannot be reached, another broker may lead its partitions."""
        state = self.connection_state(broker_id)
        if state is None or state.failures:
            self.request_refresh()

    def connection(self, broker_id: int) -> Connection | None:
        """The open connection to a broker. None: it is being opened, or waits for its backoff. Listeners are called when that
        changes."""
        state = self.connection_state(broker_id)
        if state is None:
            return None
        if state.connection is None and not self.closed:
            delay = state.connect_soon()
            if delay > 0:
                self.notify_soon(delay)
        return state.connection

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: float | None = None) -> Any:
        """One request to one broker. Raises a ClientError that names it."""
        state = self.connection_state(broker_id)
        if state is None:
            raise NoBrokersAvailable("the broker is not known", broker_id=broker_id, api=api_name(api_key))
        try:
            return await self._request(state, api_key, body, timeout_ms or self.options.request_timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=broker_id) from e

    async def _request(self, state: ConnectionState, api_key: int, body: Message, timeout_ms: float) -> Message:
        """`timeout_ms` is for connecting and the request together."""
        connection = state.connection
        if connection is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            connection = await self._connected(state, timeout_ms)
            timeout_ms = (deadline - loop.time()) * 1000
        return await connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))

    def _begin_request(self, state: ConnectionState, api_key: int, body: Message, timeout_ms: float) -> asyncio.Future[Message]:
        """`_request`, but without a task if the connection is open."""
        if state.connection is not None:
            return state.connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))
        return asyncio.get_running_loop().create_task(self._request(state, api_key, body, timeout_ms))

    @staticmethod
    async def _connected(state: ConnectionState, timeout_ms: float) -> Connection:
        try:
            attempt = state.attempt()
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(attempt)
        except TimeoutError:
            host, port = state.address
            text = f"{host}:{port}: not connected within {timeout_ms:.0f} ms"
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    async def ask_one(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Send a request that changes something to one broker only: two brokers would do it twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        state = self._candidates()[0]
        if state.connection is None or state.connection.idle_s(loop.time()) > FRESH_S:
            state, _ = await self._first_answer(API_VERSIONS, ApiVersionsRequest(*SOFTWARE), timeout_ms)
            timeout_ms = max(1.0, (deadline - loop.time()) * 1000)
        try:
            return await self._request(state, api_key, body, timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=state.node_id) from e

    async def ask_any(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Ask one broker after the other, the next one if the one before fails or is slow. Returns the first answer."""
        _, answer = await self._first_answer(api_key, body, timeout_ms)
        return answer

    async def _first_answer(self, api_key: int, body: Message, timeout_ms: float) -> tuple[ConnectionState, Message]:
        """The first answer of a broker that follows a controller. A broker that is cut off from the controllers answers with old
        metadata, so its answer counts only if no other broker has answered within STALE_AFTER_MS."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        candidates = self._candidates()
        tried = [state.address for state in candidates]
        attempts: dict[asyncio.Future[Message], ConnectionState] = {}
        stale: tuple[ConnectionState, Message] | None = None
        try:
            while candidates or attempts:
                if candidates:
                    state = candidates.pop(0)
                    if state.connection is None and state.is_backing_off(loop.time()):
                        continue
                    attempts[self._begin_request(state, api_key, body, timeout_ms)] = state
                left = deadline - loop.time()
                if left <= 0:
                    break
                wait_s = min(left, HEDGE_AFTER_MS / 1000) if candidates else left
                await asyncio.wait(attempts, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for attempt in [attempt for attempt in attempts if attempt.done()]:
                    state = attempts.pop(attempt)
                    if attempt.exception() is not None:
                        continue
                    if follows_controller(attempt.result()):
                        return state, attempt.result()
                    if stale is None:
                        stale, deadline = (state, attempt.result()), min(deadline, loop.time() + STALE_AFTER_MS / 1000)
        finally:
            for attempt in attempts:
                if not attempt.cancel() and not attempt.cancelled():
                    attempt.exception()  # Retrieved, so that asyncio does not log it.
        if stale is not None:
            return stale
        if attempts:
            raise RequestTimeout("no broker answered in time", api=api_name(api_key), elapsed_ms=timeout_ms)
        raise NoBrokersAvailable(self._describe(tried), api=api_name(api_key))

    def _candidates(self) -> list[ConnectionState]:
        """The connections to ask on, best first: open ones in turn, then those that have not failed, then suspected ones."""
        known = [state for broker_id in sorted(self.cache.brokers) if (state := self.connection_state(broker_id)) is not None]
        known += [self.connections[address] for address in self.bootstrap]
        connections = list(dict.fromkeys(known))
        self._rotation += 1
        turn, now = self._rotation % len(connections), asyncio.get_running_loop().time()
        connections = connections[turn:] + connections[:turn]
        return sorted(connections, key=lambda state: (state.is_suspected(now), state.connection is None, state.failures))

    def _describe(self, tried: list[Address]) -> str:
        """The bootstrap addresses, what happened at each address, and the addresses that the brokers advertise."""
        written = ", ".join(f"{host}:{port}" for host, port in self.bootstrap)
        said = "; ".join(self.connections[address].describe() for address in dict.fromkeys(tried))
        text = f"no broker could be reached from the bootstrap servers {written}: {said}"
        if self.cache.brokers:
            advertised = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in self.cache.brokers.values())
            text += f" (they had advertised the brokers {advertised})"
        return text


def follows_controller(answer: Message) -> bool:
    """Whether the answering broker knows a controller. If not, its metadata may be old."""
    return not isinstance(answer, (MetadataResponse, DescribeClusterResponse)) or answer.controller_id >= 0


def _end(wait: asyncio.Future[None] | None) -> None:
    if wait is not None and not wait.done():
        wait.set_result(None)
