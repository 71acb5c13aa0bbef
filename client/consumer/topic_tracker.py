"""Adapts a consumer's partitions to changes of their topics: partitions are added, topics are missing, deleted or recreated.

A topic that is deleted and recreated under its name is another topic, with another id (KIP-516). consumer.py says what follows
from that for a subscribed topic and for an assigned partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.metadata import TopicInfo
from strandline.client.cluster.metadata_updater import DENIED_GRACE_MS, MISSING_TOPIC_GRACE_MS
from strandline.client.consumer.fetch_state import FetchState
from strandline.client.consumer.fetcher import DENIED_RETRY_S, Fetcher
from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import StrandlineError, TopicRecreated
from strandline.client.options import ConsumerOptions
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class TopicTracker:
    """Compares the newest metadata with what the consumer reads, and begins, renews or fails its partitions."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        subscription: Subscription,
        fetcher: Fetcher,
        begin: Callable[[PartitionState], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._fetcher = fetcher
        self._begin = begin
        """Begins to read a state that was just added to the subscription."""
        self._errors: dict[str, StrandlineError] = {}
        """The errors of subscribed topics that do not exist, until they are raised."""
        self._missing_since: dict[str, float] = {}
        """Subscribed topics that the cluster does not know, and since when, on the loop's clock."""
        self._other_since: dict[str, float] = {}
        """Subscribed topics for which the newest metadata has another id than the one that is read, and since when."""

    def forget_topics(self) -> None:
        """Other topics are subscribed now: forget which topics were missing."""
        self._errors.clear()
        self._missing_since.clear()
        self._other_since.clear()

    def raise_missing(self, *, forget: bool) -> None:
        """Raise the error of a subscribed topic that does not exist, if there is one. With `forget`, it is not raised again."""
        for topic, error in self._errors.items():
            if forget:
                del self._errors[topic]
            raise error

    def on_cluster(self) -> None:
        """Metadata was refreshed: find new partitions, and topics that are missing or were recreated."""
        if not self._subscription.topics and not self._subscription.by_group:
            for state in list(self._subscription.states.values()):
                self._check_assigned(state)
        for topic in list(self._subscription.topics):
            self._check_subscribed(topic, self._cluster.cache.topics.get(topic))

    # -- subscribed topics --------------------------------------------------------------------------------------------

    def _check_subscribed(self, topic: str, info: TopicInfo | None) -> None:
        if info is None:
            self._on_missing(topic)
            return
        self._missing_since.pop(topic, None)
        self._errors.pop(topic, None)
        if self._subscription.by_group or not self._is_certain(topic, info):
            return
        added, removed = self._subscription.on_topic(topic, info.topic_id, info.partitions)
        self._fetcher.drop(removed)
        for state in added:
            self._begin(state)
        if added:
            self._fetcher.on_cluster()

    def _is_certain(self, topic: str, info: TopicInfo) -> bool:
        """Whether to act on the metadata of a topic. If its id has changed, a broker that is behind may have answered with the
        old topic: switching to it and back would read the new topic twice. So a changed id counts only after
        MISSING_TOPIC_GRACE_MS in which each refresh returned it."""
        if not self._subscription.is_other(topic, info.topic_id):
            self._other_since.pop(topic, None)
            return True
        now = asyncio.get_running_loop().time()
        waited_ms = (now - self._other_since.setdefault(topic, now)) * 1000
        if waited_ms >= MISSING_TOPIC_GRACE_MS:
            del self._other_since[topic]
            return True
        self._cluster.metadata.request_refresh_in(_refresh_delay_s(waited_ms))
        return False

    def _on_missing(self, topic: str) -> None:
        """Refresh again for MISSING_TOPIC_GRACE_MS. After that a missing topic is an error, or (`on_missing_topic="wait"`) the
        consumer waits until it is created. A topic that the principal may not describe is an error after DENIED_GRACE_MS."""
        if topic not in self._cluster.cache.failed:
            return
        now = asyncio.get_running_loop().time()
        waited_ms = (now - self._missing_since.setdefault(topic, now)) * 1000
        is_denied = self._cluster.cache.is_denied(topic) and waited_ms >= DENIED_GRACE_MS
        if is_denied or (waited_ms >= MISSING_TOPIC_GRACE_MS and self._options.on_missing_topic == "raise"):
            self._errors.setdefault(topic, self._cluster.cache.unknown_topic(topic, waited_ms))
            self._fetcher.wake()
        self._cluster.metadata.request_refresh_in(DENIED_RETRY_S if is_denied else _refresh_delay_s(waited_ms))

    # -- assigned partitions ------------------------------------------------------------------------------------------

    def _check_assigned(self, state: PartitionState) -> None:
        """Fail or renew the state if the cluster no longer has its log. A state that waits for a seek gets no second error."""
        topic, index = state.tp
        cache = self._cluster.cache
        info = cache.topics.get(topic)
        if (info is None and topic not in cache.failed) or isinstance(state.error, TopicRecreated):
            return
        is_other = info is not None and info.topic_id != state.topic_id
        if info is not None and not is_other and index in info.partitions:
            if state.on_found():
                self._fetcher.check_soon(state)
        elif info is not None and is_other and state.position < 0:
            self._begin(self.renew(state, info.topic_id, None if state.fetch_state is FetchState.INITIALIZING else EARLIEST))
        else:
            self._on_missing_assigned(state, info if is_other else None)

    def _on_missing_assigned(self, state: PartitionState, other: TopicInfo | None) -> None:
        """Refresh again for MISSING_TOPIC_GRACE_MS; after that, fail the state (see `_on_missing`) or treat the topic as
        recreated. `other`: the topic that has the name now."""
        topic, index = state.tp
        waited_ms = state.on_missing(asyncio.get_running_loop().time())
        if waited_ms >= MISSING_TOPIC_GRACE_MS and other is not None:
            error = TopicRecreated(topic=topic, partition=index, position=state.position, topic_id=other.topic_id)
            self._on_recreated(state, error)
            return
        is_denied = self._cluster.cache.is_denied(topic) and waited_ms >= DENIED_GRACE_MS
        is_missed = waited_ms >= MISSING_TOPIC_GRACE_MS and self._options.on_missing_topic == "raise"
        if state.error is None and (is_denied or is_missed):
            state.fail(self._cluster.cache.unknown_topic(topic, waited_ms, index))
            self._fetcher.wake()
        self._cluster.metadata.request_refresh_in(DENIED_RETRY_S if is_denied else _refresh_delay_s(waited_ms))

    def _on_recreated(self, state: PartitionState, error: TopicRecreated) -> None:
        """With a reset policy, read the old topic's records that were fetched already, and then the new topic by the policy.
        Without a policy, fail the state."""
        if self.follows_policy(state):
            policy = self._options.auto_offset_reset
            reason = f'the position {error.position} is of a deleted log; auto_offset_reset="{policy}" applies'
            logger.warning("consumer.topic_recreated", topic=error.topic, partition=error.partition, reason=reason)
            if not state.has_buffered:
                self.read_recreated(state, error.topic_id)
                return
        state.fail(error)
        self._fetcher.wake()

    def follows_policy(self, state: PartitionState) -> bool:
        """Whether `auto_offset_reset` decides where to continue in a recreated topic."""
        return self._subscription.default_reset is not None and self._subscription.states.get(state.tp) is state

    def read_recreated(self, state: PartitionState, topic_id: bytes) -> None:
        """Read the topic that has the name now, by the reset policy."""
        self._begin(self.renew(state, topic_id, self._subscription.default_reset))

    def renew(self, state: PartitionState, topic_id: bytes, reset: int | None = None) -> PartitionState:
        """Replace the state by one for the topic that has the name now. Returns it; the caller sets its position."""
        renewed = self._subscription.renew(state, topic_id, reset)
        self._fetcher.drop([state])
        self._fetcher.update_leader(renewed)
        return renewed


def _refresh_delay_s(missing_ms: float) -> float:
    """Seconds until the next refresh for a topic that has been missing for `missing_ms`."""
    return 0.05 if missing_ms < MISSING_TOPIC_GRACE_MS else 1.0
