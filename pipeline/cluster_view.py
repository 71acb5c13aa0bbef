"""The cluster as Spark's driver sees it now: topics, partitions, and the start and end offsets of their logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client import Admin, Consumer, TopicDescription, UnknownTopic
from strandline.client.consumer.partition_state import EARLIEST, LATEST
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition
from strandline.pipeline.offsets import NO_EPOCH, UNKNOWN_ID, ReadPosition, ReadPositions
from strandline.pipeline.options import Subscription, admin_options, reads_committed
from strandline.pipeline.session import session


class ClusterView:
    """Sends a request at each call; nothing is cached. The client's `max_block_ms` bounds every call."""

    def __init__(self, client: Mapping[str, Any], subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.topic_ids: dict[str, bytes] = {}
        """The newest known id of each topic that `partitions` or a look-up of offsets has found."""

    def partitions(self) -> list[TopicPartition]:
        """The partitions to read, sorted. Raises UnknownTopic if the subscription names a topic or partition that does not
        exist."""
        topics = self._describe()
        self.topic_ids.update({topic.name: topic.topic_id for topic in topics})
        return sorted(tp for topic in topics for tp in self._wanted_of(topic))

    def _wanted_of(self, topic: TopicDescription) -> Iterable[TopicPartition]:
        known = [p.partition for p in topic.partitions]
        for partition in self._subscription.partitions.get(topic.name, known):
            if partition not in known:
                raise UnknownTopic(f"the topic has {len(known)} partitions", topic=topic.name, partition=partition)
            yield TopicPartition(topic.name, partition)

    def earliest(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition; 0 if its leader reports none."""
        found = self._look_up(dict.fromkeys(tps, EARLIEST))
        return {tp: 0 if answer is None else answer.offset for tp, answer in found.items()}

    def latest(self, tps: Iterable[TopicPartition]) -> ReadPositions:
        """The offset after the last readable record, with its leader epoch and the id of the topic that it belongs to. With
        `isolation.level=read_committed` it is the last stable offset: that of the first record of an open transaction."""
        found = self._look_up(dict.fromkeys(tps, LATEST))
        return {
            tp: ReadPosition(*((0, NO_EPOCH) if answer is None else (answer.offset, answer.leader_epoch)), self._topic_id(tp))
            for tp, answer in found.items()
        }

    def log_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last replicated record, also if records of open transactions are not to be read. A reader of
        committed records cannot read up to there before these transactions end."""
        view = ClusterView({**self._client, "isolation_level": "read_uncommitted"}, self._subscription)
        view.topic_ids.update(self.topic_ids)
        return {tp: at.offset for tp, at in view.latest(tps).items()}

    def not_below(self, ends: ReadPositions, read: ReadPositions) -> ReadPositions:
        """The end positions `ends`; where a query has read further already, and the log has these records, the position up to
        which it has read.

        That happens if the query has read uncommitted records until now, and from now on reads committed ones only. Nothing is
        lost then: the query continues when the open transactions have ended."""
        if not reads_committed(self._client):
            return ends
        known = {tp: read[tp] for tp in ends if tp in read and not read[tp].is_of_another_topic(ends[tp])}
        ahead = {tp: at for tp, at in known.items() if at.offset > ends[tp].offset}
        log_ends = self.log_ends(ahead)
        return {**ends, **{tp: at for tp, at in ahead.items() if at.offset <= log_ends[tp]}}

    def _topic_id(self, tp: TopicPartition) -> bytes:
        return self.topic_ids.get(tp.topic, UNKNOWN_ID)

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The offset of the first record at or after each timestamp (ms); None if there is no such record."""
        return {tp: None if answer is None else answer.offset for tp, answer in self._look_up(times).items()}

    def config(self, topic: str, key: str) -> str:
        """The value of a topic's configuration key that applies now; "" if there is none."""
        here = session()
        with here.client(Admin, admin_options(self._client)) as admin:
            entries = here.run(admin.describe_configs("topic", topic, [key]))
        return next((str(entry.value or "") for entry in entries if entry.name == key), "")

    # -- requests -----------------------------------------------------------------------------------------------------

    def _look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Looks offsets up with the kept consumer, whose metadata is as old as its last look-up. If a leader has moved, the old
        one rejects the request and the consumer refreshes its metadata. A recreated topic is recognised by its id, provided that
        `partitions` has found the topic before."""
        if not wanted:
            return {}
        here = session()
        names = {tp.topic for tp in wanted}
        with here.client(Consumer, self._client, up_to_date=not names <= self.topic_ids.keys()) as consumer:
            known = consumer.topic_ids(names)
            if any(known[name] != self.topic_ids[name] for name in known if name in self.topic_ids):
                here.run(consumer.refresh_metadata())
            found = here.run(consumer.list_offsets(wanted))
            self.topic_ids.update(consumer.topic_ids(names))
            return found

    def _describe(self) -> list[TopicDescription]:
        here = session()
        with here.client(Admin, admin_options(self._client)) as admin:
            return here.run(_describe(admin, self._subscription))


async def _describe(admin: Admin, wanted: Subscription) -> list[TopicDescription]:
    if wanted.pattern:
        matches = re.compile(wanted.pattern).fullmatch
        names = [name for name in await admin.list_topics() if matches(name)]
    else:
        names = [*wanted.topics, *wanted.partitions]
    return await admin.describe_topics(names) if names else []
