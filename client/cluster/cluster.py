"""A client's way to the cluster: bootstrap addresses, one connection per broker, and metadata kept fresh.

Rules:
- Every address has one link; a connection that breaks is made anew when somebody asks for it, after a backoff.
- Refreshing is coalesced: however many ask, one request is on its way. It goes to a broker that is connected, and when
  that one is slow, to the next as well: a broker that hangs costs a quarter of a second, not a timeout.
- Who is suspected of being gone (a request there is overdue) is asked last; what may be asked of one broker alone is asked
  of one that has just answered.
- While something is wrong (a leader is gone) askers repeat; the refreshes then stand 20-50 ms apart. A topic that no refresh has
  asked for does not wait for that gap: nothing is known of it yet, so asking is no repetition (as in Kafka's Java client).
- Listeners are told after every refresh and every new connection, so that they may look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any

from strandline.client.cluster.links import SOFTWARE, Link
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
"""A broker that has not answered a metadata request by then: the next one is asked too."""
STALE_AFTER_MS = 300
"""The picture of a broker that knows no controller is believed when for so long nobody had a better one."""
REFRESH_GAP_MS = (20, 50, 250)
"""Between two refreshes that follow one another: the first few, the first seconds, later."""
FRESH_S = 1.0
"""A connection on which something came within this time needs no sign of life."""
MISSING_TOPIC_GRACE_MS = 1_500
"""What was just created, a topic or a partition, may not be known to every broker yet; nor may what has just been deleted."""


class Cluster:
    def __init__(self, options: ClientOptions, random: Random) -> None:
        self.options = options
        self.cache = MetadataCache()
        self.listeners: list[Callable[[], None]] = []
        """Called (soon, on the loop) after each refresh and each new connection."""
        self.bootstrap = parse_bootstrap(options.bootstrap_servers)
        self.links: dict[Address, Link] = {address: Link(address, options, self._on_link) for address in self.bootstrap}
        self.closed = False
        self.refreshes = 0
        self.last_error: StrandlineError | None = None
        """Why the newest refresh failed; None: it did not."""
        self._random = random
        self._topics: dict[str, None] = {}
        self._rotation = 0
        self._streak = 0
        self._refreshed_at = -1e9
        self._wanted = False
        self._has_new_topic = False
        """A topic is wanted that no refresh has asked for; the next refresh begins at once."""
        self._gap_wait: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._age_timer: asyncio.TimerHandle | None = None
        self._again_timer: asyncio.TimerHandle | None = None
        self._notify_handle: asyncio.Handle | None = None

    async def start(self) -> None:
        """Find the cluster. Tried for `connect_timeout_ms`: a cluster that is down should be told soon."""
        self._rotation = self._random.randrange(1 << 16)
        await self.renew()

    async def renew(self) -> None:
        """Learn the metadata as it is now, without the pause that keeps repeated refreshes apart."""
        self._streak, self._refreshed_at = 0, -1e9
        await self.refresh(min(self.options.max_block_ms, self.options.connect_timeout_ms))

    @property
    def brokers_connected(self) -> int:
        return sum(link.connection is not None for link in self.links.values())

    async def close(self) -> None:
        self.closed = True
        for handle in (self._age_timer, self._again_timer, self._notify_handle):
            if handle is not None:
                handle.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._finish(self._waiters, ClientClosed("the client was stopped"))
        for link in self.links.values():
            await link.close()

    # -- metadata -----------------------------------------------------------------------------------------------------

    def want_topics(self, names: Iterable[str]) -> bool:
        """Keep these topics' metadata fresh; True when one of them is new."""
        before = len(self._topics)
        self._topics.update(dict.fromkeys(names))
        is_new = len(self._topics) > before
        if is_new:
            self._has_new_topic = True
            _end(self._gap_wait)
        return is_new

    @property
    def topics_wanted(self) -> int:
        """How many."""
        return len(self._topics)

    def forget_topics(self) -> None:
        """Their metadata is neither known nor kept fresh any more."""
        self._topics.clear()
        self.cache.forget_topics()

    def request_refresh(self) -> None:
        """Refresh at once, or soon when that just happened."""
        self._wanted = True
        if not self.closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._refresh_while_wanted())
            self._task.add_done_callback(self._on_task_done)

    def request_refresh_in(self, delay_s: float) -> None:
        """Of several that are wanted, the soonest."""
        loop = asyncio.get_running_loop()
        timer, when = self._again_timer, loop.time() + delay_s
        if self.closed or (timer is not None and loop.time() < timer.when() <= when):
            return
        if timer is not None:
            timer.cancel()
        self._again_timer = loop.call_at(when, self.request_refresh)

    async def refresh(self, timeout_ms: float) -> None:
        """Wait for a refresh that begins now or later; retried until `timeout_ms` is over, then the last error."""
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
        """The topic's metadata; asks for it when it, or one of these partitions, is not known. UnknownTopic when it is still
        not known after a moment."""
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
            is_told = name in self.cache.failed or (info is not None and bool(info.partitions))
            if elapsed >= timeout_ms / 1000 or (is_told and elapsed >= grace):
                raise self.unknown_topic(name, elapsed * 1000, min(missing, default=None))
            await self.refresh(max(timeout_ms - elapsed * 1000, 1))

    def unknown_topic(self, name: str, elapsed_ms: float, partition: int | None = None) -> StrandlineError:
        """It does not exist, or has no such partition."""
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
        """Cancelled by somebody who cancels every task it finds, or broken: those who wait must not wait for ever."""
        if task.cancelled() and not self.closed and (self._waiters or self._wanted):
            self.request_refresh()

    def _gap(self, now: float) -> float:
        """How long to wait before the next refresh: not at all, unless the last one was a moment ago and asked for the same."""
        if self._has_new_topic:
            return 0.0
        since = now - self._refreshed_at
        self._streak = self._streak + 1 if since < 0.5 else 0
        gap_ms = REFRESH_GAP_MS[0 if self._streak < 10 else 1 if self._streak < 120 else 2]
        return max(0.0, gap_ms / 1000 - since)

    async def _wait_gap(self, gap_s: float) -> None:
        """Ends early when a topic is wanted that no refresh has asked for."""
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
        """Why there is no metadata after `timeout_ms`."""
        if self.last_error is not None:
            return self.last_error
        return NoBrokersAvailable(f"no answer from {self._describe(list(self.links))}", elapsed_ms=timeout_ms)

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
            self._notify_handle = asyncio.get_running_loop().call_soon(self._tell_listeners)

    def _tell_listeners(self) -> None:
        self._notify_handle = None
        for listener in list(self.listeners):
            listener()

    def _on_link(self, link: Link, lost: bool) -> None:
        """A connection was made, lost, could not be made, or cannot be made at once."""
        if lost and self._topics:
            self.request_refresh()
        self._notify()

    # -- connections --------------------------------------------------------------------------------------------------

    def link(self, broker_id: int) -> Link | None:
        """The link to a broker's advertised address; None for a broker that is not known."""
        broker = self.cache.brokers.get(broker_id)
        if broker is None:
            return None
        address = (broker.host, broker.port)
        link = self.links.get(address)
        if link is None:
            link = self.links[address] = Link(address, self.options, self._on_link)
        return link

    def suspect(self, broker_id: int) -> None:
        """What was asked of this broker is overdue: perhaps it is gone without a word, and somebody else leads."""
        link = self.link(broker_id)
        if link is not None:
            link.suspect()
        self.request_refresh()

    def connection(self, broker_id: int) -> Connection | None:
        """The open connection to a broker. None: it is being made, or waits for its backoff; listeners will be told."""
        link = self.link(broker_id)
        if link is None:
            return None
        if link.connection is None and not self.closed:
            delay = link.connect_soon()
            if delay > 0:
                self.notify_soon(delay)
        return link.connection

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: float | None = None) -> Any:
        """One request to one broker. Raises a ClientError that names it."""
        link = self.link(broker_id)
        if link is None:
            raise NoBrokersAvailable("the broker is not known", broker_id=broker_id, api=api_name(api_key))
        try:
            return await self._request(link, api_key, body, timeout_ms or self.options.request_timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=broker_id) from e

    async def _request(self, link: Link, api_key: int, body: Message, timeout_ms: float) -> Message:
        """`timeout_ms` is for all of it: a broker that is silent takes long to connect to, as well."""
        connection = link.connection
        if connection is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            connection = await self._connected(link, timeout_ms)
            timeout_ms = (deadline - loop.time()) * 1000
        return await connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))

    def _begin_request(self, link: Link, api_key: int, body: Message, timeout_ms: float) -> asyncio.Future[Message]:
        """`_request`, with a task only where there is something to be waited for before."""
        if link.connection is not None:
            return link.connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))
        return asyncio.get_running_loop().create_task(self._request(link, api_key, body, timeout_ms))

    @staticmethod
    async def _connected(link: Link, timeout_ms: float) -> Connection:
        try:
            attempt = link.attempt()
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(attempt)
        except TimeoutError:
            host, port = link.address
            text = f"{host}:{port}: not connected within {timeout_ms:.0f} ms"
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    async def ask_one(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Ask one broker, and it alone: for what changes something, which two brokers would do twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        link = self._candidates()[0]
        if link.connection is None or link.connection.idle_s(loop.time()) > FRESH_S:
            link, _ = await self._first_answer(API_VERSIONS, ApiVersionsRequest(*SOFTWARE), timeout_ms)
            timeout_ms = max(1.0, (deadline - loop.time()) * 1000)
        try:
            return await self._request(link, api_key, body, timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=link.node_id) from e

    async def ask_any(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Ask one broker after the other, the next one when the one before fails or is slow; the first answer counts."""
        _, answer = await self._first_answer(api_key, body, timeout_ms)
        return answer

    async def _first_answer(self, api_key: int, body: Message, timeout_ms: float) -> tuple[Link, Message]:
        """The first answer of a broker that follows a controller. One that is cut off from them answers as readily, with an
        old picture: its answer counts when nobody has a better one within a moment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        candidates = self._candidates()
        tried = [link.address for link in candidates]
        attempts: dict[asyncio.Future[Message], Link] = {}
        stale: tuple[Link, Message] | None = None
        try:
            while candidates or attempts:
                if candidates:
                    link = candidates.pop(0)
                    if link.connection is None and link.is_backing_off(loop.time()):
                        continue
                    attempts[self._begin_request(link, api_key, body, timeout_ms)] = link
                left = deadline - loop.time()
                if left <= 0:
                    break
                wait_s = min(left, HEDGE_AFTER_MS / 1000) if candidates else left
                await asyncio.wait(attempts, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for attempt in [attempt for attempt in attempts if attempt.done()]:
                    link = attempts.pop(attempt)
                    if attempt.exception() is not None:
                        continue
                    if follows_controller(attempt.result()):
                        return link, attempt.result()
                    if stale is None:
                        stale, deadline = (link, attempt.result()), min(deadline, loop.time() + STALE_AFTER_MS / 1000)
        finally:
            for attempt in attempts:
                if not attempt.cancel() and not attempt.cancelled():
                    attempt.exception()  # Nobody wants to know.
        if stale is not None:
            return stale
        if attempts:
            raise RequestTimeout("no broker answered in time", api=api_name(api_key), elapsed_ms=timeout_ms)
        raise NoBrokersAvailable(self._describe(tried), api=api_name(api_key))

    def _candidates(self) -> list[Link]:
        """Whom to ask, best first: connected brokers in turn, other known brokers, the bootstrap addresses, suspected ones."""
        known = [link for broker_id in sorted(self.cache.brokers) if (link := self.link(broker_id)) is not None]
        known += [self.links[address] for address in self.bootstrap]
        links = list(dict.fromkeys(known))
        self._rotation += 1
        turn, now = self._rotation % len(links), asyncio.get_running_loop().time()
        links = links[turn:] + links[:turn]
        return sorted(links, key=lambda link: (link.is_suspected(now), link.connection is None, link.failures))

    def _describe(self, tried: list[Address]) -> str:
        """bootstrap -> advertised addresses, and what happened at each."""
        written = ", ".join(f"{host}:{port}" for host, port in self.bootstrap)
        said = "; ".join(self.links[address].describe() for address in dict.fromkeys(tried))
        text = f"no broker could be reached from the bootstrap servers {written}: {said}"
        if self.cache.brokers:
            advertised = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in self.cache.brokers.values())
            text += f" (they had advertised the brokers {advertised})"
        return text


def follows_controller(answer: Message) -> bool:
    """False: whoever answered knows no controller at present, so what it says of the cluster may have changed since."""
    return not isinstance(answer, (MetadataResponse, DescribeClusterResponse)) or answer.controller_id >= 0


def _end(wait: asyncio.Future[None] | None) -> None:
    if wait is not None and not wait.done():
        wait.set_result(None)
