"""A single name or pair, where several are expected, is rejected with a sentence that says what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.client import Admin, Consumer, Producer, TopicPartition
from strandline.client.errors import UsageError

from .scripted import ScriptedCluster

ADMIN: dict[str, Callable[[Any], Any]] = {
    "describe_topics": lambda admin: admin.describe_topics("orders"),
    "describe_topics bytes": lambda admin: admin.describe_topics(b"orders"),
    "describe_topics number": lambda admin: admin.describe_topics([5]),
    "delete_topics": lambda admin: admin.delete_topics("orders"),
    "create_topics": lambda admin: admin.create_topics("orders"),
    "create_topics number": lambda admin: admin.create_topics([5]),
    "describe_producers": lambda admin: admin.describe_producers(("orders", 0)),
    "describe_configs": lambda admin: admin.describe_configs("topic", "orders", "retention.ms"),
    "elect_leaders": lambda admin: admin.elect_leaders("orders"),
    "elect_leaders pair": lambda admin: admin.elect_leaders(TopicPartition("orders", 0)),
    "create_partitions": lambda admin: admin.create_partitions(["orders"], 2),
}
CONSUMER: dict[str, Callable[[Any], Any]] = {
    "assign": lambda consumer: consumer.assign("orders"),
    "assign pair": lambda consumer: consumer.assign(("orders", 0)),
    "assign names": lambda consumer: consumer.assign(["orders"]),
    "assign number": lambda consumer: consumer.assign([("orders", "0")]),
    "getmany": lambda consumer: consumer.getmany("orders"),
    "getone list": lambda consumer: consumer.getone([("orders", 0)]),
    "seek": lambda consumer: consumer.seek("orders", 0),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning("orders"),
    "pause": lambda consumer: consumer.pause("orders"),
    "resume": lambda consumer: consumer.resume([("orders", 0)]),
    "position": lambda consumer: consumer.position("orders"),
    "end_offsets": lambda consumer: consumer.end_offsets(("orders", 0)),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets("orders"),
    "list_offsets": lambda consumer: consumer.list_offsets([("orders", 0)]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times("orders"),
    "subscribe": lambda consumer: consumer.subscribe(5),
}


async def refused(call: Callable[[Any], Any], client: Any) -> str:
    with pytest.raises(UsageError) as error:
        await _run(call(client))
    return str(error.value)


async def _run(result: Any) -> None:
    if asyncio.iscoroutine(result):
        await result


async def test_admin_refuses_a_broker_id_that_is_no_number() -> None:
    async with ScriptedCluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert "broker_id is a whole number" in await refused(lambda admin: admin.unregister_broker("4"), admin)


@pytest.mark.parametrize("name", ADMIN)
async def test_admin_refuses_one_for_many(name: str) -> None:
    """`describe_topics("orders")` asked for the topics o, r, d, ... and answered "the topic does not exist (o)"."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            text = await refused(ADMIN[name], admin)
        assert "list" in text or "topic is named" in text
        assert list(cluster.topics) == ["orders"]


@pytest.mark.parametrize("name", CONSUMER)
async def test_consumer_refuses_one_for_many(name: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.assign([("orders", 0)])
            text = await refused(CONSUMER[name], consumer)
            assert "must be" in text or "is written" in text or "is named" in text or "number" in text or "mapping" in text
            assert consumer.assignment() == {TopicPartition("orders", 0)}


async def test_producer_refuses_one_for_many() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, producer_name="sink") as producer:
            assert "write [('orders', 0)]" in await refused(lambda p: p.written(("orders", 0)), producer)


class NumpyLike:
    """Like numpy's integers: not an int, but usable as an index."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


UNSENDABLE: dict[str, dict[str, Any]] = {
    "timestamp float": {"timestamp_ms": 1_700_000_000_000.5},
    "timestamp str": {"timestamp_ms": "5"},
    "timestamp bool": {"timestamp_ms": True},
    "timestamp large": {"timestamp_ms": 2**63},
    "timestamp negative": {"timestamp_ms": -5},
    "header name": {"headers": [("\ud800", b"x")]},
    "topic": {"topic": "\ud800"},
    "partition float": {"partition": 0.0},
    "partition str": {"partition": "0"},
    "partition bool": {"partition": False},
    "partition negative": {"partition": -1},
}


@pytest.mark.parametrize("name", UNSENDABLE)
@pytest.mark.parametrize("is_known", [False, True])
async def test_unencodable_record_does_not_break_the_producer(name: str, is_known: bool) -> None:
    """Encoding its batch failed after it was queued: "an error inside the producer, which can send nothing more"."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            if is_known:
                await producer.partitions_for("orders")
            record: dict[str, Any] = {"topic": "orders", "value": b"wrong", **UNSENDABLE[name]}
            with pytest.raises(UsageError):
                await producer.send(**record)
            if "partition" in record:
                with pytest.raises(UsageError):
                    await producer.send_columns("orders", [b"wrong"], partition=record["partition"])
            await producer.send_and_wait("orders", b"right")
        assert cluster.values("orders") == [b"right"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("column", ["keys", "headers"])
async def test_columns_of_different_lengths_are_refused(column: str, partition: int | None, count: int) -> None:
    """With fewer keys than values, the last values were dropped without an error."""
    short_or_long = {"keys": [b"k"] * count, "headers": [[("h", b"")]] * count}[column]
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            with pytest.raises(UsageError, match=f"2 values, but {count} {column}"):
                await producer.send_columns("orders", [b"a", b"b"], partition=partition, **{column: short_or_long})  # type: ignore[arg-type]
            await producer.send_and_wait("orders", b"right")
        assert cluster.values("orders") == [b"right"]


async def test_whole_numbers_need_not_be_python_ints() -> None:
    """Partitions and offsets that come from a data frame are numpy's."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        zero, batch_size = NumpyLike(0), NumpyLike(1000)
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=batch_size) as producer:  # type: ignore[arg-type]
            await producer.send_and_wait("orders", b"x", partition=zero, timestamp_ms=NumpyLike(7))  # type: ignore[arg-type]
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.assign([("orders", zero)])  # type: ignore[list-item]
            consumer.seek(("orders", 0), zero)  # type: ignore[arg-type]
            record = await consumer.getone(timeout_ms=5_000)
            assert (type(record.partition), record.offset, record.timestamp_ms) == (int, 0, 7)
            found = await consumer.offsets_for_times({("orders", zero): NumpyLike(5)})  # type: ignore[dict-item]
            assert found[TopicPartition("orders", 0)] is not None


@pytest.mark.parametrize("wrong", [0.0, "0", True, -1, 2**63])
async def test_position_beyond_int64_is_rejected(wrong: Any) -> None:
    """`seek` to a float ended in the traceback of a callback, and look-ups by a float were repeated for a minute."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.assign([("orders", 0)])
            with pytest.raises(UsageError):
                consumer.seek(("orders", 0), wrong)
            with pytest.raises(UsageError):
                await consumer.offsets_for_times({TopicPartition("orders", 0): wrong})
