"""`Consumer` with additions for `AIOKafkaConsumer`: aiokafka's records, topics added to a subscription, and access to metadata
and positions without an `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from strandline.client.compat.aiokafka.structs import ConsumerRecord
from strandline.client.consumer import records as originals
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.records import TopicPartition, Undecodable
from strandline.client.errors import UnknownTopic
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import decode_columns

Decode = Callable[[bytes | None], Any]


class Reader(Consumer):
    """`decode_key`, `decode_value`: aiokafka's deserializers, which are called for None, too."""

    decode_key: Decode | None = None
    decode_value: Decode | None = None
    record: type[ConsumerRecord[Any, Any]] = ConsumerRecord
    """The class of the records that calls return."""

    def last_stable_offset(self, partition: tuple[str, int]) -> int | None:
        """The last stable offset of the partition in the newest fetch response; None before the first one."""
        found = self._state(partition).last_stable_offset
        return found if found >= 0 else None

    def _decode(
        self, tp: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int
    ) -> list[originals.ConsumerRecord]:
        columns = decode_columns(buf, pos, header, self.options.check_crcs).since(offset)
        offsets = columns.offsets()
        count = len(offsets)
        timestamps = columns.timestamps or [columns.base_timestamp] * count
        keys, headers = columns.keys or [None] * count, columns.headers or [()] * count
        timestamp_type = int(header.is_log_append_time)
        records: list[Any] = []
        make = self.record
        for row in range(count):
            key, value = keys[row], columns.values[row]
            try:
                records.append(
                    make(
                        tp.topic,
                        tp.partition,
                        offsets[row],
                        timestamps[row],
                        timestamp_type,
                        key if self.decode_key is None else self.decode_key(key),
                        value if self.decode_value is None else self.decode_value(value),
                        None,
                        -1 if key is None else len(key),
                        -1 if value is None else len(value),
                        tuple(headers[row]),
                        header.leader_epoch,
                    )
                )
            except Exception as e:
                raise Undecodable(offsets[row], records, e) from e
        return records

    def known_partitions(self, topic: str) -> set[int] | None:
        """The numbers of the topic's partitions in the newest metadata; None if it does not have the topic."""
        if self._cluster is None:
            return None
        info = self._cluster.cache.topics.get(topic)
        return None if info is None else set(info.partitions)

    def position_of(self, topic: str | None, partition: int | None) -> int:
        """The position of a partition; -1 if there is none."""
        state = self._subscription.states.get(TopicPartition(topic or "", partition or 0))
        return -1 if state is None else state.position

    def last_fetch_ms(self) -> int | None:
        """When the last fetch response of any partition arrived, in milliseconds since 1970; before the first one, when the
        consumer was started; None before that."""
        if self._fetcher is None or self._fetcher.last_fetch_at <= 0:
            return None
        age_s = asyncio.get_running_loop().time() - self._fetcher.last_fetch_at
        return round(self._doors.wall_clock_ms() - age_s * 1000)

    def add_topics(self, topics: Iterable[str]) -> None:
        """Read all partitions of these topics, too, without a group."""
        _, cluster = self._running()
        self._subscription.topics.update(dict.fromkeys(topics))
        cluster.metadata.want_topics(self._subscription.topics)
        cluster.metadata.request_refresh()
        self._on_cluster()

    async def partitions_known(self, topics: Iterable[str]) -> None:
        """Wait until the metadata has these topics. UnknownTopic if one does not exist (with `on_missing_topic="raise"`)."""
        for topic in topics:
            try:
                await self.partitions_for_topic(topic)
            except UnknownTopic:
                if self.options.on_missing_topic == "raise":
                    raise
