"""Fetch in each version: records as they are in the log, sessions, and errors of single partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from data_world import FETCH, METADATA, NO_SUCH_ID, NOW_MS, DataWire, batch, error, fetch_partition, new_topic, row_of, values_of

from strandline.broker.kafka.codec import Fields
from strandline.client import Admin, NewTopic
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.testing import ThreadedCluster

VERSIONS = range(4, 19)
WITH_SESSIONS = range(7, 19)
WITH_NAMES = range(7, 13)
ALTER_PARTITION_REASSIGNMENTS = 45
Cluster = ThreadedCluster


async def topic_with(cluster: Cluster, wire: DataWire, *values: str, **options: Any) -> str:
    """A topic with one batch per value."""
    topic = new_topic(cluster, **options)
    for value in values:
        assert (await wire.produce(9, topic, batch(value))).error_code == 0
    return topic


def connect(cluster: Cluster) -> DataWire:
    return DataWire.at(cluster.kafka_bootstrap)


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_of_several_topics_are_returned(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        first, second = await topic_with(data_cluster, wire, "a", "b"), await topic_with(data_cluster, wire, "c")
        empty = new_topic(data_cluster)
        answer = await wire.fetch(version, {first: 0, empty: 0, second: 0})
        assert answer.throttle_time_ms == answer.get("error_code", 0) == 0
        rows = {key_of(topic): topic.partitions[0] for topic in answer.responses}
        ids = {name: name if version < 13 else await wire.id_of(name) for name in (first, empty, second)}
        assert {name: values_of(rows[id_].records) for name, id_ in ids.items()} == {first: ["a", "b"], empty: [], second: ["c"]}
        row = rows[ids[first]]
        assert (row.high_watermark, row.last_stable_offset, row.error_code) == (2, 2, 0)
        assert row.get("log_start_offset", 0) == 0
        assert row.get("preferred_read_replica", -1) == -1
        assert row.aborted_transactions is None


def key_of(topic: Fields) -> Any:
    return topic.get("topic") or topic.topic_id


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_offset_within_a_batch_gives_the_whole_batch(data_cluster: Cluster, version: int) -> None:
    """The first batch is returned, however large it is (KIP-74)."""
    async with connect(data_cluster) as wire:
        topic = new_topic(data_cluster)
        assert (await wire.produce(9, topic, batch("a", "b", "c"))).error_code == 0
        row = await wire.fetched(version, topic, 1, max_bytes=1)
        assert values_of(row.records) == ["a", "b", "c"]


@pytest.mark.parametrize("version", [4, 12, 18])
async def test_fetch_waits_for_records(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire, connect(data_cluster) as producer:
        topic = await topic_with(data_cluster, producer)
        waiting = asyncio.ensure_future(wire.fetched(version, topic, 0, max_wait_ms=10_000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert (await producer.produce(9, topic, batch("a"))).error_code == 0
        assert values_of((await waiting).records) == ["a"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_aborted_transactions_are_ordered_by_their_first_offsets(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        key = (await wire.id_of(topic), 0)
        write_transactions(data_cluster, key)
        row = await wire.fetched(version, topic, 0, isolation_level=1)
        assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(7, 1), (5, 2)]
        assert (row.last_stable_offset, row.high_watermark) == (5, 6)
        row = await wire.fetched(version, topic, 0, isolation_level=0)
        assert row.aborted_transactions is None


def write_transactions(cluster: Cluster, key: tuple[bytes, int]) -> None:
    """Write two transactions, of which the one that begins later is aborted first, and one that stays open."""

    def write() -> None:
        state = cluster.cluster.nodes.server(1).replicas.partitions[key].leader_state
        for producer_id in (7, 5):
            state.append(bytearray(transactional(producer_id)), NOW_MS, is_transactional=True)
        for producer_id in (5, 7):
            state.append_marker(EndTransactionMarker(False, 0), producer_id, 0, NOW_MS, 0)
        state.append(bytearray(transactional(9)), NOW_MS, is_transactional=True)

    run_inside(cluster, write)


def transactional(producer_id: int) -> bytes:
    return encode_batch(
        [(b"k", b"v", [], NOW_MS)], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def run_inside(cluster: Cluster, work: Any) -> None:
    async def run() -> None:
        work()

    asyncio_cluster: Any = cluster.cluster
    cluster.run(asyncio_cluster.nodes.call(1, run))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_partitions_error_does_not_affect_the_others(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        assert error(await wire.fetched(version, topic, 99)) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert error(await wire.fetched(version, topic, -5)) == ErrorCode.OFFSET_OUT_OF_RANGE
        fields = await wire.fetch_fields({topic: 0})
        fields["topics"][0]["partitions"] = [fetch_partition(0, 9), fetch_partition(0, -1), fetch_partition(0)]
        rows = (await wire.call(FETCH, version, fields)).responses[0].partitions
        found = {row.partition_index: error(row) for row in rows}
        assert found == {
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            0: ErrorCode.NONE,
        }


@pytest.mark.parametrize("version", VERSIONS)
async def test_missing_topic_has_its_error_and_the_others_have_records(data_cluster: Cluster, version: int) -> None:
    """The missing topic is requested alone, and together with a topic that exists."""
    async with connect(data_cluster) as wire:
        alone = row_of((await wire.fetch(version, {"nothing": 0})).responses)
        assert error(alone) == ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = await topic_with(data_cluster, wire, "a")
        rows = {key_of(each): each.partitions[0] for each in (await wire.fetch(version, {"nothing": 0, topic: 0})).responses}
        assert rows["nothing" if version < 13 else NO_SUCH_ID].error_code == alone.error_code
        assert values_of(rows[topic if version < 13 else await wire.id_of(topic)].records) == ["a"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_followers_are_refused(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        follower = {"replica_id": 1} if version < 15 else {"replica_state": {"replica_id": 1, "replica_epoch": 5}}
        answer = await wire.fetch(version, {topic: 0}, **follower)
        assert answer.get("error_code", 0) in (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if version < 13:
            assert error(row_of(answer.responses)) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else:
            assert answer.responses == []
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [12, 15, 16, 18])
async def test_another_broker_names_the_leader(pair_cluster: Cluster, version: int) -> None:
    topic = new_topic(pair_cluster, replication_factor=1)
    for address in pair_cluster.kafka_bootstrap.split(","):
        async with DataWire.at(address) as wire:
            answer = await wire.fetch(version, {topic: 0})
        row = row_of(answer.responses)
        if not row.error_code:
            continue
        assert error(row) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_epoch == 0
        if version >= 16:
            (node,) = answer.node_endpoints
            assert node.node_id == row.current_leader.leader_id
            assert f"{node.host}:{node.port}" in pair_cluster.kafka_bootstrap.split(",")


@pytest.mark.parametrize("version", [12, 16, 18])
async def test_leader_change_answers_a_fetch_that_waits(pair_cluster: Cluster, version: int) -> None:
    """The consumer can continue at the new leader at once, before its long poll ends (KIP-951)."""
    topic = new_topic(pair_cluster, replication_factor=1)
    async with DataWire.at(pair_cluster.kafka_bootstrap) as wire:
        leader, addresses = await leader_and_addresses(wire, topic)
    (other,) = set(addresses) - {leader}
    async with DataWire.at(addresses[leader]) as reader, DataWire.at(addresses[other]) as admin:
        reader.send(FETCH, version, await reader.fetch_fields({topic: 0}, session_epoch=0, max_wait_ms=60_000))
        assert await admin.fetched(version, topic)  # a request later: the fetch waits by now
        moved = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [other]}]}], "timeout_ms": 5000}
        assert (await admin.call(ALTER_PARTITION_REASSIGNMENTS, 0, moved)).error_code == 0
        answer = await reader.receive()
    row = row_of(answer.responses)
    assert error(row) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (other, 1)
    assert [node.node_id for node in answer.get("node_endpoints", ())] == ([other] if version >= 16 else [])


async def leader_and_addresses(wire: DataWire, topic: str) -> tuple[int, dict[int, str]]:
    """The leader of partition 0, and where Kafka's clients reach each broker."""
    asked = {"topics": [{"topic_id": bytes(16), "name": topic}]}
    fields = {**asked, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    answer = await wire.call(METADATA, 12, fields)
    return answer.topics[0].partitions[0].leader_id, {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}


@pytest.mark.parametrize("version", VERSIONS)
async def test_leader_epochs_are_compared(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        fields = await wire.fetch_fields({topic: 0})
        fields["topics"][0]["partitions"] = [fetch_partition(1, current_leader_epoch=5)]
        row = row_of((await wire.call(FETCH, version, fields)).responses)
        assert error(row) == (ErrorCode.UNKNOWN_LEADER_EPOCH if version >= 9 else ErrorCode.NONE)
        fields["topics"][0]["partitions"] = [fetch_partition(1, last_fetched_epoch=0)]
        row = row_of((await wire.call(FETCH, version, fields)).responses)
        assert (row.error_code, row.high_watermark) == (0, 1)


@pytest.mark.parametrize("version", [12, 18])
async def test_diverging_epoch_is_returned(data_cluster: Cluster, version: int) -> None:
    """The consumer has read up to offset 5 in epoch 0, of which the leader has only one record."""
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        fields = await wire.fetch_fields({topic: 0})
        fields["topics"][0]["partitions"] = [fetch_partition(6, last_fetched_epoch=0)]
        row = row_of((await wire.call(FETCH, version, fields)).responses)
        assert row.error_code == 0
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 1)


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", WITH_SESSIONS)
async def test_session_names_only_what_changes(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        busy, idle = await topic_with(data_cluster, wire, "a"), await topic_with(data_cluster, wire)
        answer = await wire.fetch(version, {busy: 0, idle: 0}, session_epoch=0)
        session_id = answer.session_id
        assert session_id > 0
        assert len(answer.responses) == 2
        answer = await wire.fetch(version, {busy: 1}, session_id=session_id, session_epoch=1)
        assert (answer.session_id, answer.responses) == (session_id, [])
        assert (await wire.produce(9, busy, batch("b"))).error_code == 0
        answer = await wire.fetch(version, {}, session_id=session_id, session_epoch=2)
        assert values_of(row_of(answer.responses).records) == ["b"]
        assert (await wire.produce(9, idle, batch("c"))).error_code == 0
        answer = await wire.fetch(version, {busy: 2}, session_id=session_id, session_epoch=3, forgotten=(idle,))
        assert answer.responses == []
        answer = await wire.fetch(version, {}, session_id=session_id, session_epoch=9)
        assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
        answer = await wire.fetch(version, {busy: 0}, session_id=session_id, session_epoch=-1)
        assert (answer.session_id, values_of(row_of(answer.responses).records)) == (0, ["a", "b"])
        answer = await wire.fetch(version, {}, session_id=session_id, session_epoch=4)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", WITH_NAMES)
async def test_unknown_name_does_not_starve_in_a_session(data_cluster: Cluster, version: int) -> None:
    """The client assumes that its session has all topics that it has named, so it gets no session while a name is unknown."""
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        answer = await wire.fetch(version, {topic: 0, "nothing": 0}, session_epoch=0)
        assert answer.session_id == 0
        assert [each.topic for each in answer.responses] == [topic, "nothing"]
        session_id = (await wire.fetch(version, {topic: 0}, session_epoch=0)).session_id
        answer = await wire.fetch(version, {"nothing": 0}, session_id=session_id, session_epoch=1)
        assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
        assert answer.responses == []
        answer = await wire.fetch(version, {}, session_id=session_id, session_epoch=1, forgotten=("nothing",))
        assert (answer.error_code, answer.session_id) == (0, session_id)


@pytest.mark.parametrize("version", WITH_SESSIONS)
async def test_topic_created_again_is_found_again(data_cluster: Cluster, version: int) -> None:
    """With names, the session ends, because its topic no longer has a name. With ids, the response says that the id is
    unknown."""
    async with connect(data_cluster) as wire:
        topic = await topic_with(data_cluster, wire, "a")
        session_id = (await wire.fetch(version, {topic: 0}, session_epoch=0)).session_id
        async with Admin(bootstrap_servers=data_cluster.bootstrap_servers) as admin:
            await admin.delete_topics([topic])
            await admin.create_topics([NewTopic(topic, replication_factor=1)])
        answer = await wire.fetch(version, {}, session_id=session_id, session_epoch=1)
        if version >= 13:
            assert error(row_of(answer.responses)) == ErrorCode.UNKNOWN_TOPIC_ID
            return
        assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
        answer = await wire.fetch(version, {topic: 0}, session_id=session_id, session_epoch=0)
        assert row_of(answer.responses).error_code == 0
        assert answer.session_id > 0


async def test_malformed_requests_close_the_connection(data_cluster: Cluster) -> None:
    for version in (4, 12, 18):
        async with connect(data_cluster) as wire:
            head = b"\0\1" + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
            wire.send_frame(head + b"\0" * 17 + b"\x7f\xff\xff\xff")
            assert await wire.is_closed()
