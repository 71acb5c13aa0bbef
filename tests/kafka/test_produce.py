"""Produce in each version: what is acknowledged is in the log, and what Kafka refuses is refused with Kafka's code."""

from __future__ import annotations

import asyncio

import pytest
from data_world import INIT_PRODUCER_ID, NO_SUCH_ID, PRODUCE, DataWire, batch, error, new_topic, row_of, values_of

from strandline.broker.kafka.translations.produce import _early
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.compression import Codec
from strandline.testing import ThreadedCluster

FIND_COORDINATOR = 10
VERSIONS = range(3, 14)
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
Cluster = ThreadedCluster


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_are_in_the_log_when_they_are_acknowledged(data_cluster: Cluster, version: int) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        for offset in (0, 2):
            row = await wire.produce(version, topic, batch("a", "b"))
            assert (row.error_code, row.base_offset, row.index) == (0, offset, 0)
            assert row.get("log_start_offset", 0) == 0
            assert row.get("record_errors", []) == []
            assert row.get("error_message") is None
        assert values_of((await wire.fetched(12, topic)).records) == ["a", "b", "a", "b"]


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_is_accepted(data_cluster: Cluster, codec: Codec) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        sent = batch("a" * 100, "b" * 100, codec=codec)
        assert (await wire.produce(9, topic, sent)).error_code == 0
        stored = (await wire.fetched(12, topic)).records
        assert values_of(stored) == ["a" * 100, "b" * 100]
        assert bytes(stored)[61:] == sent[61:], "the records are stored as they came"


@pytest.mark.parametrize("version", VERSIONS)
async def test_rows_keep_the_order_of_several_topics_and_partitions(data_cluster: Cluster, version: int) -> None:
    """A name or id that does not exist has its error, and the others are appended."""
    first, second = new_topic(data_cluster, partitions=2), new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        topics = [
            {
                "name": name,
                "topic_id": await wire.id_of(name),
                "partition_data": [{"index": index, "records": batch(f"{name}-{index}")} for index in partitions],
            }
            for name, partitions in ((first, (1, 0)), ("nothing", (0,)), (second, (0, 7)))
        ]
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": topics}
        answer = await wire.call(PRODUCE, version, fields)
    found = [(row.index, row.error_code) for topic in answer.responses for row in topic.partition_responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [(1, 0), (0, 0), (0, unknown), (0, 0), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    if version < 13:
        assert [topic.name for topic in answer.responses] == [first, "nothing", second]
    else:
        assert answer.responses[1].topic_id == NO_SUCH_ID


@pytest.mark.parametrize(
    "records",
    [None, b"", batch("a")[:40], batch("a") + batch("b"), b"\0" * 100],
    ids=["null", "empty", "half", "two", "zeros"],
)
@pytest.mark.parametrize("version", [3, 9])
async def test_exactly_one_whole_batch_per_partition_is_accepted(
    data_cluster: Cluster, version: int, records: bytes | None
) -> None:
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        row = await wire.produce(version, new_topic(data_cluster), records)
    assert error(row) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [3, 12, 13])
async def test_partition_is_looked_up_before_its_records_are_judged(data_cluster: Cluster, version: int) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        rows = [{"index": index, "records": None} for index in (0, 7)]
        topics = [{"name": name, "topic_id": await wire.id_of(name), "partition_data": rows} for name in (topic, "nothing")]
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": topics}
        answer = await wire.call(PRODUCE, version, fields)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else unknown
    found = [[row.error_code for row in topic.partition_responses] for topic in answer.responses]
    assert found == [[ErrorCode.INVALID_RECORD, unknown], [missing, missing]]


def test_older_formats_and_early_zstd_are_refused_as_in_kafka() -> None:
    old = bytearray(batch("a"))
    old[16] = 1
    assert _code(9, old) == ErrorCode.INVALID_RECORD
    zstd = batch("a" * 100, codec=Codec.ZSTD)
    assert _code(6, zstd) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert _code(7, zstd) is None
    assert _code(9, batch("a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)) is not None


def _code(version: int, records: bytes | bytearray) -> ErrorCode | None:
    found = _early(version, bytearray(records), 0, len(records), None)
    return None if found is None else found.code


async def test_errors_of_the_handler_are_kafkas(data_cluster: Cluster) -> None:
    compacted = new_topic(data_cluster, cleanup_policy="compact")
    small = new_topic(data_cluster, max_message_bytes=100)
    recent = new_topic(data_cluster, message_timestamp_before_max_ms=1000)
    damaged = bytearray(batch("a"))
    damaged[-1] ^= 1
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        row = await wire.produce(9, compacted, batch("a", "b", key=None))
        assert error(row) == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in row.record_errors] == [0, 1]
        assert row.record_errors[0].batch_index_error_message
        assert error(await wire.produce(5, compacted, batch("a", key=None))) == ErrorCode.INVALID_RECORD
        assert error(await wire.produce(9, small, batch("a" * 200))) == ErrorCode.MESSAGE_TOO_LARGE
        row = await wire.produce(9, recent, batch("a"))
        assert (error(row), [each.batch_index for each in row.record_errors]) == (ErrorCode.INVALID_TIMESTAMP, [0])
        assert error(await wire.produce(9, recent, bytes(damaged))) == ErrorCode.CORRUPT_MESSAGE
        internal = await wire.produce(9, "__consumer_offsets", batch("a"))
        assert error(internal) in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_refusal_of_the_whole_request_is_in_each_row(data_cluster: Cluster, version: int) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        assert error(await wire.produce(version, topic, batch("a"), acks=2)) == ErrorCode.INVALID_REQUIRED_ACKS
        transactional = batch("a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        row = await wire.produce(version, topic, transactional)
        assert error(row) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await wire.fetched(12, topic)).high_watermark == 0


async def test_acks_0_has_no_response(data_cluster: Cluster) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        fields = await wire.produce_fields(topic, batch("a"), acks=0)
        for version in VERSIONS:
            wire.send(PRODUCE, version, fields)
        assert (await wire.fetched(12, topic)).high_watermark == len(VERSIONS)


@pytest.mark.parametrize(
    ("topic", "records", "changes"),
    [
        ("nothing", batch("a"), {}),
        ("a-topic", None, {}),
        ("a-topic", batch("a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True), {}),
        ("a-topic", batch("a"), {"partition": 9}),
        ("a-topic", batch("a"), {"transactional_id": "x"}),
    ],
    ids=["no-topic", "no-records", "foreign", "no-partition", "transactional"],
)
@pytest.mark.parametrize("version", [3, 11, 13])
async def test_error_of_acks_0_closes_the_connection(
    data_cluster: Cluster, version: int, topic: str, records: bytes | None, changes: dict[str, object]
) -> None:
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        name = topic if topic == "nothing" else new_topic(data_cluster)
        fields = await wire.produce_fields(name, records, **{"acks": 0, **changes})  # type: ignore[arg-type]
        wire.send(PRODUCE, version, fields)
        assert await wire.is_closed()


@pytest.mark.parametrize("version", VERSIONS)
async def test_another_broker_names_the_leader(pair_cluster: Cluster, version: int) -> None:
    """From version 10 on, the response has the leader's address, so that the client need not ask for it (KIP-951)."""
    topic = new_topic(pair_cluster, replication_factor=1)
    for address in pair_cluster.kafka_bootstrap.split(","):
        async with DataWire.at(address) as wire:
            answer = await wire.call(PRODUCE, version, await wire.produce_fields(topic, batch("a")))
        row = row_of(answer.responses, "partition_responses")
        if row.error_code == 0:
            continue
        assert error(row) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            (node,) = answer.node_endpoints
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (node.node_id, 0)
            assert f"{node.host}:{node.port}" in pair_cluster.kafka_bootstrap.split(",")
            assert f"{node.host}:{node.port}" != address


async def test_half_a_request_closes_the_connection(data_cluster: Cluster) -> None:
    """The connection is closed whatever the lengths in the request claim."""
    for tail in (b"\xff\xff\xff\xff\x7f", b"\x02", b"\x7f", b""):
        async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
            head = b"\0\0\0\x09\0\0\0\1\xff\xff\0" + b"\0" + b"\xff\xff\0\0\0\1"
            wire.send_frame(head + tail)
            assert await wire.is_closed()


async def producer_of(wire: DataWire, transactional_id: str) -> tuple[int, int]:
    """The id and epoch of a transactional producer. The first FindCoordinator creates the internal topic."""
    starting = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for _ in range(200):
        await wire.call(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [transactional_id]})
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": 60000}
        found = await wire.call(INIT_PRODUCER_ID, 4, fields)
        if found.error_code not in starting:
            assert not found.error_code
            return found.producer_id, found.producer_epoch
        await asyncio.sleep(0.05)
    raise AssertionError("no coordinator")


@pytest.mark.parametrize("version", VERSIONS)
async def test_leader_adds_its_partition_to_the_transaction_since_version_12(data_cluster: Cluster, version: int) -> None:
    """Before version 12, the producer must have added it (KIP-890). The error has another code before version 11."""
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        topic, name = new_topic(data_cluster), f"transaction-{version}"
        producer_id, epoch = await producer_of(wire, name)
        records = batch("a", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        row = await wire.produce(version, topic, records, transactional_id=name)
        if version >= 12:
            assert row.error_code == 0
            fetched = await wire.fetched(12, topic)
            assert (fetched.high_watermark, fetched.last_stable_offset) == (1, 0)
        else:
            assert error(row) == (ErrorCode.TRANSACTION_ABORTABLE if version == 11 else ErrorCode.INVALID_TXN_STATE)


async def test_sequence_below_the_expected_one_is_out_of_order(data_cluster: Cluster) -> None:
    """The last five batches are recognised as duplicates. Clients treat DUPLICATE_SEQUENCE_NUMBER as success, and Kafka's brokers
    never return it: a record that was never written would be lost."""
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:

        async def send(sequence: int, *values: str) -> tuple[ErrorCode, int]:
            records = batch(*values, producer_id=77, producer_epoch=0, base_sequence=sequence)
            row = await wire.produce(9, topic, records)
            return error(row), row.base_offset

        for sequence in range(7):
            assert await send(sequence, "a") == (ErrorCode.NONE, sequence)
        out_of_order = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await send(2, "a") == (ErrorCode.NONE, 2)
        assert await send(1, "a") == await send(0, "a", "b") == await send(6, "a", "b") == await send(8, "a") == out_of_order
        assert await send(7, "a") == (ErrorCode.NONE, 7)


async def test_sequences_below_zero_come_before_zero(data_cluster: Cluster) -> None:
    """Sequences continue at 0 after the largest one."""
    topic, most = new_topic(data_cluster), 2**31 - 1
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:

        async def send(sequence: int, *values: str) -> ErrorCode:
            records = batch(*values, producer_id=78, producer_epoch=0, base_sequence=sequence)
            return error(await wire.produce(9, topic, records))

        assert await send(most - 3, "a", "b") == ErrorCode.NONE, "a producer that is not known may begin anywhere"
        assert await send(most - 1, "a", "b", "c") == ErrorCode.NONE
        assert await send(most, "a") == await send(0, "a") == await send(2, "a") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(1, "a") == ErrorCode.NONE
