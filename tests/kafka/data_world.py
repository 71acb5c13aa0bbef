"""Requests of Kafka's protocol that write and read records: Produce, Fetch, and the requests about offsets."""

from __future__ import annotations

from itertools import count
from typing import Any

from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.testing import ThreadedCluster

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
DELETE_RECORDS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_PRODUCERS = 21, 22, 23, 61
NOW_MS = 1_700_000_000_000
NO_SUCH_ID = bytes(range(16))
_numbers = count()


def new_topic(cluster: ThreadedCluster, **options: Any) -> str:
    """Create a topic, by default with one partition and one replica; returns its name."""
    name = f"topic-{next(_numbers)}"
    cluster.create_topic(name, **{"replication_factor": 1, **options})
    return name


def batch(*values: str, key: bytes | None = b"k", timestamp_ms: int = NOW_MS, **options: Any) -> bytes:
    return encode_batch([(key, value.encode(), [], timestamp_ms) for value in values], **options)


def values_of(records: bytes | None) -> list[str]:
    return [bytes(record.value or b"").decode() for record in iter_records(records or b"")]


class DataWire(KafkaWire):
    """A connection to a broker, and the ids of its topics."""

    async def topic_id(self, name: str) -> bytes:
        asked = {"topics": [{"topic_id": bytes(16), "name": name}]}
        fields = {**asked, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        topic = (await self.call(METADATA, 12, fields)).topics[0]
        return bytes(topic.topic_id)

    async def produce(self, version: int, topic: str, records: Any, *, partition: int = 0, **changes: Any) -> Fields:
        """Send records to one partition; returns its row."""
        answer = await self.call(PRODUCE, version, await self.produce_fields(topic, records, partition=partition, **changes))
        return row_of(answer.responses, "partition_responses")

    async def produce_fields(self, topic: str, records: Any, *, partition: int = 0, **changes: Any) -> dict[str, Any]:
        data = {"name": topic, "topic_id": await self.id_of(topic), "partition_data": [{"index": partition, "records": records}]}
        return {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": [data], **changes}

    async def id_of(self, topic: str) -> bytes:
        return await self.topic_id(topic) if topic != "nothing" else NO_SUCH_ID

    async def fetch(self, version: int, topics: dict[str, int], **changes: Any) -> Fields:
        """Fetch partition 0 of topics: name -> offset."""
        return await self.call(FETCH, version, await self.fetch_fields(topics, **changes))

    async def fetch_fields(self, topics: dict[str, int], *, forgotten: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        wanted = [
            {"topic": name, "topic_id": await self.id_of(name), "partitions": [fetch_partition(offset)]}
            for name, offset in topics.items()
        ]
        gone = [{"topic": name, "topic_id": await self.id_of(name), "partitions": [0]} for name in forgotten]
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "rack_id": ""}
        return {**limits, "topics": wanted, "forgotten_topics_data": gone, **changes}

    async def fetched(self, version: int, topic: str, offset: int = 0, **changes: Any) -> Fields:
        """Fetch one partition; returns its row."""
        return row_of((await self.fetch(version, {topic: offset}, **changes)).responses)


def fetch_partition(offset: int, partition: int = 0, **changes: Any) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **changes}


def row_of(topics: list[Fields], name: str = "partitions") -> Fields:
    """The only row of a response."""
    (topic,) = topics
    (row,) = getattr(topic, name)
    found: Fields = row
    return found


def error(row: Fields) -> ErrorCode:
    return ErrorCode(row.error_code)
