"""What the cluster has at this moment, seen from Spark's driver: topics, partitions, and where their logs begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client import Admin, Consumer, TopicDescription, UnknownTopic
from strandline.client.options import AdminOptions
from strandline.client.records import OffsetAndTimestamp, TopicPartition
from strandline.client.subscription import EARLIEST, LATEST
from strandline.pipeline.offsets import NO_EPOCH, UNKNOWN_ID, Place, Places
from strandline.pipeline.options import Subscription
from strandline.pipeline.session import session


class ClusterView:
    """Asks anew at each call. Every call is bounded by the client's `max_block_ms`."""

    def __init__(self, client: Mapping[str, Any], subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.topic_ids: dict[str, bytes] = {}
        """As of the last call of `partitions`."""

    def partitions(self) -> list[TopicPartition]:
        """That are to be read, in order. UnknownTopic when a topic that was named does not exist."""
        topics = self._describe()
        self.topic_ids = {topic.name: topic.topic_id for topic in topics}
        return sorted(place for topic in topics for place in self._wanted_of(topic))

    def _wanted_of(self, topic: TopicDescription) -> Iterable[TopicPartition]:
        known = [p.partition for p in topic.partitions]
        for partition in self._subscription.partitions.get(topic.name, known):
            if partition not in known:
                raise UnknownTopic(f"the topic has {len(known)} partitions", topic=topic.name, partition=partition)
            yield TopicPartition(topic.name, partition)

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is left."""
        found = self._look_up(dict.fromkeys(places, EARLIEST))
        return {place: 0 if answer is None else answer.offset for place, answer in found.items()}

    def latest(self, places: Iterable[TopicPartition]) -> Places:
        """The offset after the last record that may be read, with the topic id where `partitions` has found it before."""
        found = self._look_up(dict.fromkeys(places, LATEST))
        return {
            place: Place(*((0, NO_EPOCH) if answer is None else (answer.offset, answer.leader_epoch)), self._topic_id(place))
            for place, answer in found.items()
        }

    def _topic_id(self, place: TopicPartition) -> bytes:
        return self.topic_ids.get(place.topic, UNKNOWN_ID)

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first record that is at least as young; None where there is none."""
        return {place: None if answer is None else answer.offset for place, answer in self._look_up(times).items()}

    # -- asking -------------------------------------------------------------------------------------------------------

    def _look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        if not wanted:
            return {}
        here = session()
        with here.client(Consumer, self._client) as consumer:
            return here.run(consumer.list_offsets(wanted))

    def _describe(self) -> list[TopicDescription]:
        here = session()
        options = {name: value for name, value in self._client.items() if name in AdminOptions.__dataclass_fields__}
        with here.client(Admin, options) as admin:
            return here.run(_describe(admin, self._subscription))


async def _describe(admin: Admin, wanted: Subscription) -> list[TopicDescription]:
    if wanted.pattern:
        matches = re.compile(wanted.pattern).fullmatch
        names = [name for name in await admin.list_topics() if matches(name)]
    else:
        names = [*wanted.topics, *wanted.partitions]
    return await admin.describe_topics(names) if names else []
