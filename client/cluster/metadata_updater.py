"""Keeps a client's metadata fresh: refreshes on demand, and at the latest after `metadata_max_age_ms`.

- Refreshes are coalesced: however many callers want one, one request is in flight.
- While something is wrong (a partition has no leader) callers ask again and again. Then a gap separates the refreshes
  (refresh_gap.py). A topic that no refresh has asked for does not wait for that gap, because asking for it repeats nothing (as in
  Kafka's Java client).
- A refresh that fails is repeated as long as the client wants a topic, or a caller waits. If the cluster rejects the client
  (AuthenticationFailed), the callers that wait get the error, and only a later call tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from strandline.client.cluster.any_broker import AnyBroker
from strandline.client.cluster.metadata import MetadataCache, TopicInfo
from strandline.client.cluster.refresh_gap import RefreshGap
from strandline.client.errors import AuthenticationFailed, ClientClosed, NoBrokersAvailable, RequestTimeout
from strandline.client.options import ClientOptions
from strandline.protocol.apis import METADATA
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.admin import MetadataRequest, MetadataResponse, MetadataTopicRequest

MISSING_TOPIC_GRACE_MS = 1_500
"""A broker may not know yet that a topic or partition was just created or deleted. The client waits this long before it concludes
that a topic does not exist."""

DENIED_GRACE_MS = 300
"""The right to describe a topic may just have been granted. The client waits this long for a fresh answer before it concludes
that the right is missing."""


class MetadataUpdater:
    """Asks any broker for the metadata of the wanted topics, and puts the answers into the cache."""

    def __init__(
        self, options: ClientOptions, cache: MetadataCache, any_broker: AnyBroker, on_refreshed: Callable[[], None]
    ) -> None:
        """`on_refreshed` is called after each attempt to refresh, whether it succeeded or failed."""
        self.refreshes = 0
        """The number of refreshes that succeeded."""
        self.last_error: StrandlineError | None = None
        """Why the last refresh failed; None if it succeeded."""
        self._options = options
        self._cache = cache
        self._any_broker = any_broker
        self._on_refreshed = on_refreshed
        self._topics: dict[str, None] = {}
        """The topics whose metadata is kept fresh."""
        self._ids: dict[bytes, None] = {}
        """Ids of topics whose names the next refresh requests."""
        self._is_wanted = False
        """A refresh was requested, and has not begun."""
        self._has_new_topic = False
        """The client wants a topic that no refresh has asked for: the next refresh begins at once."""
        self._waiters: list[asyncio.Future[None]] = []
        """Calls that wait for a refresh that has not begun."""
        self._gap = RefreshGap()
        self._gap_wait: asyncio.Future[None] | None = None
        """Done when the gap ends; None if no refresh waits for that."""
        self._task: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._again_timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- the wanted topics --------------------------------------------------------------------------------------------

    def want_topics(self, names: Iterable[str]) -> bool:
        """Keep these topics' metadata fresh. Returns whether one of them is new."""
        before = len(self._topics)
        self._topics.update(dict.fromkeys(names))
        is_new = len(self._topics) > before
        if is_new:
            self._has_new_topic = True
            _end(self._gap_wait)
        return is_new

    def want_topic_ids(self, topic_ids: Iterable[bytes]) -> None:
        """Refresh the metadata soon, and ask once for the topics with these ids."""
        self._ids.update(dict.fromkeys(topic_ids))
        self._has_new_topic = True
        _end(self._gap_wait)
        self.request_refresh()

    @property
    def topics_wanted(self) -> int:
        """The number of topics whose metadata is kept fresh."""
        return len(self._topics)

    def forget_topics(self) -> None:
        """Drop the metadata of all topics, and stop keeping it fresh."""
        self._topics.clear()
        self._cache.forget_topics()

    async def topic(self, name: str, timeout_ms: float, partitions: Collection[int] = ()) -> TopicInfo:
        """The topic's metadata, which is kept fresh from now on. If the topic or one of these partitions is not known, the
        metadata is refreshed for at most `timeout_ms`.

        Raises UnknownTopic if brokers have answered for MISSING_TOPIC_GRACE_MS that the topic or partition does not exist,
        TopicAuthorizationFailed if the principal may not describe it, RequestFailed if they reject the request for its metadata,
        AuthenticationFailed, and NoBrokersAvailable or RequestTimeout if no broker has answered."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        grace_s = min(timeout_ms, MISSING_TOPIC_GRACE_MS) / 1000
        self.want_topics([name])
        is_fresh = False
        while True:
            info = self._cache.topics.get(name)
            missing = [] if info is None else [index for index in partitions if index not in info.partitions]
            if info is not None and info.partitions and not missing:
                return info
            elapsed_s = loop.time() - started
            is_answered = name in self._cache.failed or (info is not None and bool(info.partitions))
            is_denied = is_fresh and self._cache.is_denied(name)
            if is_denied or elapsed_s >= timeout_ms / 1000 or (is_answered and elapsed_s >= grace_s):
                raise self._cache.unknown_topic(name, elapsed_s * 1000, min(missing, default=None))
            await self.refresh(max(timeout_ms - elapsed_s * 1000, 1))
            is_fresh = True

    # -- requesting a refresh -----------------------------------------------------------------------------------------

    def request_refresh(self) -> None:
        """Refresh the metadata now, or after the gap if it was just refreshed."""
        self._is_wanted = True
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._refresh_while_wanted())
            self._task.add_done_callback(self._on_task_done)

    def request_refresh_in(self, delay_s: float) -> None:
        """Refresh the metadata after a delay. Of several requested delays, the shortest counts."""
        loop = asyncio.get_running_loop()
        timer, when = self._again_timer, loop.time() + delay_s
        if self._closed or (timer is not None and loop.time() < timer.when() <= when):
            return
        if timer is not None:
            timer.cancel()
        self._again_timer = loop.call_at(when, self.request_refresh)

    async def refresh(self, timeout_ms: float) -> None:
        """Wait for a refresh that begins after this call. A failed one is repeated for at most `timeout_ms`.

        Raises AuthenticationFailed at once, NoBrokersAvailable or RequestTimeout if no refresh has succeeded by then, and
        ClientClosed when the client stops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            if self._closed:
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

    async def renew(self) -> None:
        """Refresh the metadata now, without the gap between repeated refreshes.

        Raises NoBrokersAvailable or RequestTimeout after `connect_timeout_ms`, or `max_block_ms` if that is shorter."""
        self._gap.reset()
        await self.refresh(min(self._options.max_block_ms, self._options.connect_timeout_ms))

    def no_answer(self, timeout_ms: float) -> StrandlineError:
        """The error of a caller that has got no metadata within `timeout_ms`."""
        if self.last_error is not None:
            return self.last_error
        return NoBrokersAvailable(f"no answer from {self._any_broker.connections.describe()}", elapsed_ms=timeout_ms)

    # -- refreshing ---------------------------------------------------------------------------------------------------

    async def _refresh_while_wanted(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_wanted and not self._closed:
            await self._wait_gap(0.0 if self._has_new_topic else self._gap.seconds_left(loop.time()))
            self._is_wanted = False
            waiters, self._waiters = self._waiters, []
            try:
                await self._refresh_once()
            except StrandlineError as e:
                self.last_error = e
                _finish(waiters, e)
                self._gap.on_refreshed(loop.time())
                if self._waiters or (self._topics and not isinstance(e, AuthenticationFailed)):
                    self._is_wanted = True
            except BaseException:
                self._waiters = waiters + self._waiters
                raise
            else:
                self.last_error = None
                self._gap.on_refreshed(loop.time())
                _finish(waiters, None)
            self._on_refreshed()
        self._arm_age_timer()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """If the refresh task was cancelled (for example by a program that cancels all tasks), start another one for the calls
        that wait."""
        if task.cancelled() and not self._closed and (self._waiters or self._is_wanted):
            self.request_refresh()

    async def _wait_gap(self, gap_s: float) -> None:
        """Wait for `gap_s` seconds, or until the client wants a topic that no refresh has asked for."""
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
        topics += [MetadataTopicRequest(None, topic_id) for topic_id in self._ids]
        self._ids.clear()
        response = await self._any_broker.ask_any(METADATA, MetadataRequest(topics), self._options.request_timeout_ms)
        assert isinstance(response, MetadataResponse)
        self.refreshes += 1
        self._cache.update(response)

    def _arm_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._age_timer = loop.call_later(self._options.metadata_max_age_ms / 1000, self.request_refresh)

    async def close(self) -> None:
        """Stop refreshing. Calls that wait raise ClientClosed."""
        self._closed = True
        for timer in (self._age_timer, self._again_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        _finish(self._waiters, ClientClosed("the client was stopped"))


def _finish(waiters: list[asyncio.Future[None]], error: StrandlineError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # Retrieve the error, so that asyncio does not log it.


def _end(wait: asyncio.Future[None] | None) -> None:
    if wait is not None and not wait.done():
        wait.set_result(None)
