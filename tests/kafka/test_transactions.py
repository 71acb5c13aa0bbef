"""Transactions in each version of Kafka's requests: of producers from before KIP-890 (TV1) and after it (TV2)."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Self

import pytest
from data_world import DataWire, batch, new_topic, values_of
from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.testing import Cluster, ThreadedCluster

FETCH, FIND_COORDINATOR, INIT, OFFSET_FETCH = 1, 10, 22, 9
ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS, DESCRIBE, LIST = 24, 25, 26, 28, 65, 66
WRITE_MARKERS = 27
GROUP_KEY, TRANSACTION_KEY = 0, 1
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
_numbers = count()


class TxnWire(DataWire):
    """A producer with its own transactional id."""

    producer_id = -1
    producer_epoch = -1

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.transactional_id = f"t-{next(_numbers)}"

    async def begin(self) -> Self:
        """Find the coordinator, and get an id and an epoch."""
        fields = {"transactional_id": self.transactional_id, "transaction_timeout_ms": 60_000}
        await self.until_loaded(FIND_COORDINATOR, 2, {"key": self.transactional_id, "key_type": TRANSACTION_KEY})
        found = await self.until_loaded(INIT, 4, {**fields, "producer_id": -1, "producer_epoch": -1})
        assert found.error_code == 0
        self.producer_id, self.producer_epoch = found.producer_id, found.producer_epoch
        return self

    async def until_loaded(self, key: int, version: int, fields: dict[str, Any]) -> Fields:
        for _ in range(100):
            answer = await self.call(key, version, fields)
            if answer.error_code not in LOADING:
                return answer
            await asyncio.sleep(0.05)
        return answer

    @property
    def own(self) -> dict[str, Any]:
        """The fields with which the producer names itself."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    async def add(self, version: int, *topics: str) -> dict[str, int]:
        rows = [{"name": name, "partitions": [0]} for name in topics]
        own = {f"v3_and_below_{name}": value for name, value in self.own.items()}
        fields = {**own, "v3_and_below_topics": rows}
        for _ in range(100):
            answer = await self.call(ADD_PARTITIONS, version, fields)
            found = {t.name: t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below}
            if ErrorCode.CONCURRENT_TRANSACTIONS not in found.values():
                break
            await asyncio.sleep(0.02)
        return found

    async def write(self, version: int, topic: str, value: str, sequence: int) -> int:
        records = batch(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        for _ in range(100):
            row = await self.produce(version, topic, records, transactional_id=self.transactional_id)
            if row.error_code not in (*LOADING, ErrorCode.NOT_ENOUGH_REPLICAS):
                break
            await asyncio.sleep(0.02)
        return int(row.error_code)

    async def end(self, version: int, committed: bool = True) -> Fields:
        return await self.until_loaded(END, version, {**self.own, "committed": committed})

    async def committed_values(self, topic: str) -> list[str]:
        """Wait until the markers are written; returns the values that a reader of committed records sees."""
        for _ in range(100):
            answer = await self.fetch(11, {topic: 0}, isolation_level=1)
            row = answer.responses[0].partitions[0]
            if row.last_stable_offset == row.high_watermark:
                break
            await asyncio.sleep(0.02)
        aborted = {a.producer_id: a.first_offset for a in row.aborted_transactions or []}
        return [] if aborted else values_of(row.records)


@pytest.fixture
async def producer(data_cluster: ThreadedCluster):
    async with TxnWire.at(data_cluster.kafka_bootstrap) as wire:
        yield await wire.begin()


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_written_and_committed(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    """In TV1, the producer adds the partitions to the transaction."""
    name = new_topic(data_cluster)
    assert await producer.add(version, name) == {name: 0}
    assert await producer.write(9, name, "tea", 0) == 0
    assert (await producer.end(min(version, 3))).error_code == 0
    assert "tea" in await producer.committed_values(name)


@pytest.mark.parametrize("version", range(5))
async def test_aborted_records_are_not_read(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    name = new_topic(data_cluster)
    await producer.add(3, name)
    assert await producer.write(9, name, "tea", 0) == 0
    ended = await producer.end(version, committed=False)
    assert ended.error_code == 0
    assert await producer.committed_values(name) == []


async def test_leader_adds_the_partitions_of_a_newer_producer(data_cluster: ThreadedCluster, producer: TxnWire) -> None:
    """In TV2, each transaction has its own epoch, which EndTxn returns."""
    name = new_topic(data_cluster)
    for number in range(3):
        assert await producer.write(12, name, f"tea {number}", 0) == 0
        ended = await producer.end(5)
        assert (ended.error_code, ended.producer_id) == (0, producer.producer_id)
        assert ended.producer_epoch == producer.producer_epoch + 1
        producer.producer_epoch = ended.producer_epoch
    values = await producer.committed_values(name)
    assert [value for value in values if value.startswith("tea")] == ["tea 0", "tea 1", "tea 2"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_timeout_that_the_coordinator_does_not_grant_is_refused(producer: TxnWire, timeout_ms: int) -> None:
    """The limit is `transaction.max.timeout.ms`, as in Kafka."""
    fields = {"transactional_id": producer.transactional_id, "producer_id": -1, "producer_epoch": -1}
    answer = await producer.until_loaded(INIT, 4, {**fields, "transaction_timeout_ms": timeout_ms})
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("version", range(4))
async def test_nothing_is_added_if_a_topic_does_not_exist(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    name = new_topic(data_cluster)
    expected = {name: ErrorCode.OPERATION_NOT_ATTEMPTED, "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await producer.add(version, name, "nothing") == expected
    assert (await producer.end(3)).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(4))
async def test_client_adds_no_internal_topic(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    """A transaction gets the partitions of offsets by AddOffsetsToTxn. Kafka refuses the topic as if the client had no right to
    it."""
    name = new_topic(data_cluster)
    expected = {name: ErrorCode.OPERATION_NOT_ATTEMPTED, "__consumer_offsets": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert await producer.add(version, name, "__consumer_offsets") == expected
    producer.producer_id = -1
    assert await producer.add(version, "__transaction_state") == {"__transaction_state": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_partitions_that_do_not_exist_are_judged_first(data_cluster: ThreadedCluster, producer: TxnWire) -> None:
    """As in Kafka, they are checked before the producer, in AddPartitionsToTxn and in TxnOffsetCommit."""
    name, unknown = new_topic(data_cluster), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    own = {**producer.own, "producer_id": -1}
    topics = [{"name": name, "partitions": [0, 9, -1]}, {"name": "nothing", "partitions": [0]}]
    add = {**{f"v3_and_below_{field}": value for field, value in own.items()}, "v3_and_below_topics": topics}
    answer = await producer.call(ADD_PARTITIONS, 3, add)
    rows = {
        (t.name, row.partition_index): row.partition_error_code
        for t in answer.results_by_topic_v3_and_below
        for row in t.results_by_partition
    }
    expected = {(name, 9): unknown, (name, -1): unknown, ("nothing", 0): unknown}
    assert rows == {(name, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, **expected}

    offset = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}
    offsets = [
        {"name": t["name"], "partitions": [{"partition_index": number, **offset} for number in t["partitions"]]} for t in topics
    ]
    member = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
    await producer.until_loaded(FIND_COORDINATOR, 2, {"key": "g", "key_type": GROUP_KEY})
    for _ in range(100):
        answer = await producer.call(COMMIT_OFFSETS, 3, {**own, **member, "topics": offsets})
        codes = {(t.name, row.partition_index): row.error_code for t in answer.topics for row in t.partitions}
        if codes[name, 0] not in LOADING:
            break
        await asyncio.sleep(0.05)
    assert codes.pop((name, 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert codes == expected


@pytest.mark.parametrize("version", range(6))
async def test_producer_with_an_old_epoch_is_fenced(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    """Versions 0 and 1 have no code for it but INVALID_PRODUCER_EPOCH."""
    name = new_topic(data_cluster)
    async with TxnWire.at(data_cluster.kafka_bootstrap) as newer:
        newer.transactional_id = producer.transactional_id
        await newer.begin()
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert (await producer.end(version)).error_code == fenced
    if version < 4:
        assert await producer.add(version, name) == {name: fenced}


@pytest.mark.parametrize("version", range(6))
async def test_offsets_are_committed_with_the_transaction(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    name, group = new_topic(data_cluster), f"g-{next(_numbers)}"
    partitions = [{"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": 0, "committed_metadata": "half"}]
    topics = [{"name": name, "partitions": partitions}]
    await producer.until_loaded(FIND_COORDINATOR, 2, {"key": group, "key_type": GROUP_KEY})
    if version < 5:
        added = await producer.until_loaded(ADD_OFFSETS, min(version, 3), {**producer.own, "group_id": group})
        assert added.error_code == 0
    fields = {**producer.own, "group_id": group, "topics": topics}
    for _ in range(100):
        (topic,) = (await producer.call(COMMIT_OFFSETS, version, fields)).topics
        if topic.partitions[0].error_code not in LOADING:
            break
        await asyncio.sleep(0.05)
    assert (topic.name, topic.partitions[0].error_code) == (name, 0)
    assert (await producer.end(5 if version == 5 else 3)).error_code == 0
    for _ in range(100):
        asked = {"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}], "require_stable": True}
        (found,) = (await producer.call(OFFSET_FETCH, 7, asked)).topics
        if not found.partitions[0].error_code:
            break
        await asyncio.sleep(0.02)
    assert (found.partitions[0].committed_offset, found.partitions[0].metadata) == (7, "half")


@pytest.mark.parametrize("version", [3, 5])
async def test_commit_of_no_offsets_begins_no_transaction(producer: TxnWire, version: int) -> None:
    """As in Kafka, such a request does not reach the coordinators."""
    await producer.until_loaded(FIND_COORDINATOR, 2, {"key": "g", "key_type": GROUP_KEY})
    await producer.until_loaded(OFFSET_FETCH, 7, {"group_id": "g", "topics": [], "require_stable": False})
    answer = await producer.call(COMMIT_OFFSETS, version, {**producer.own, "group_id": "g", "topics": []})
    assert answer.topics == []
    (found,) = (await producer.call(DESCRIBE, 0, {"transactional_ids": [producer.transactional_id]})).transaction_states
    assert found.transaction_state == "Empty"


async def test_offsets_of_a_topic_that_does_not_exist_are_refused(producer: TxnWire) -> None:
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}
    fields = {**producer.own, "group_id": "g", "topics": [{"name": "nothing", "partitions": [partition]}]}
    (topic,) = (await producer.call(COMMIT_OFFSETS, 3, fields)).topics
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(3))
async def test_transactions_are_listed_and_described(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    name = new_topic(data_cluster)
    await producer.add(3, name)
    own = producer.transactional_id
    asked = {"state_filters": ["Ongoing", "Sleeping", "Sleeping"], "producer_id_filters": [], "transactional_id_pattern": own}
    listed = await producer.call(LIST, version, asked)
    assert listed.unknown_state_filters == ["Sleeping"]
    found = {t.transactional_id: (t.producer_id, t.transaction_state) for t in listed.transaction_states}
    assert found[own] == (producer.producer_id, "Ongoing")
    described = (await producer.call(DESCRIBE, 0, {"transactional_ids": [own, "none", ""]})).transaction_states
    missing = [("none", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", ErrorCode.INVALID_REQUEST)]
    assert [(t.transactional_id, t.error_code) for t in described] == [(own, 0), *missing]
    assert [(t.producer_id, t.producer_epoch, t.transaction_timeout_ms) for t in described[1:]] == [(0, 0, 0)] * 2, "as in Kafka"
    assert (described[0].transaction_state, described[0].transaction_timeout_ms) == ("Ongoing", 60_000)
    assert [(t.topic, t.partitions) for t in described[0].topics] == [(name, [0])]
    await producer.end(3, committed=False)


@pytest.mark.parametrize("version", [1, 2])
async def test_operator_ends_a_transaction_that_hangs(data_cluster: ThreadedCluster, producer: TxnWire, version: int) -> None:
    """`kafka-transactions abort` does the same: it writes an ABORT marker to the partition."""
    name = new_topic(data_cluster)
    await producer.add(3, name)
    await producer.write(9, name, "tea", 0)
    topics = [{"name": topic, "partition_indexes": [0]} for topic in (name, "nothing")]
    marker = {"transaction_result": False, "topics": topics, "coordinator_epoch": 0}
    own = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    (written,) = (await producer.call(WRITE_MARKERS, version, {"markers": [{**own, **marker}]})).markers
    assert written.producer_id == producer.producer_id
    codes = {topic.name: topic.partitions[0].error_code for topic in written.topics}
    assert codes == {name: 0, "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await producer.committed_values(name) == []


async def test_newer_versions_of_adding_partitions_are_for_brokers(data_cluster: ThreadedCluster) -> None:
    """Brokers send them to each other, at listeners of Strandline's protocol."""
    async with KafkaWire.at(data_cluster.kafka_bootstrap) as wire:
        wire.send(ADD_PARTITIONS, 4, {"transactions": []})
        assert await wire.is_closed()


async def test_offsets_are_added_before_anybody_has_looked_for_a_group() -> None:
    """librdkafka and kafka-python look for the group's coordinator only after this request, which used to wait for ever for the
    topic."""
    with Cluster.running_in_thread(brokers=1, kafka=True) as cluster:
        async with TxnWire.at(cluster.kafka_bootstrap) as wire:
            await wire.begin()
            answer = await wire.until_loaded(ADD_OFFSETS, 3, {**wire.own, "group_id": "new"})
    assert answer.error_code == 0
