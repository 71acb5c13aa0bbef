"""A single name or pair, where several are expected, is rejected with a sentence that says what to write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from waiting import until

from strandline import sync
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
    """`describe_topics("orders")` used to ask for the topics o, r, d, ... and to answer "the topic does not exist (o)"."""
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
    """Encoding its batch used to fail after it was queued: "an error inside the producer, which can send nothing more"."""
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
    """With fewer keys than values, the last values used to be dropped without an error."""
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
    """`seek` to a float used to end in the traceback of a callback, and look-ups by a float were repeated for a minute."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.assign([("orders", 0)])
            with pytest.raises(UsageError):
                consumer.seek(("orders", 0), wrong)
            with pytest.raises(UsageError):
                await consumer.offsets_for_times({TopicPartition("orders", 0): wrong})


ITERABLES: dict[str, Callable[[list[Any]], Any]] = {"deque": deque, "iterator": iter, "tuple": tuple}
"""Collections that a program may have instead of a list. A deque is a Sequence for type checkers, and cannot be sliced."""


@pytest.mark.parametrize("kind", ITERABLES)
async def test_many_values_may_be_any_iterable(kind: str) -> None:
    """A deque used to raise a TypeError that left an empty batch behind. Encoding that batch then ended the producer for all
    records: "an error inside the producer, which can send nothing more"."""
    make = ITERABLES[kind]
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.partitions_for("orders")
            await producer.send_many("orders", make([b"1", b"2"]))
            await producer.send_many("orders", make([b"3"]), partition=0)
            await producer.send_many("orders", make([b"4"]), partition=0, expect_offset=3)
            await (await producer.send_columns("orders", make([b"5"]), make([b"k"]), make([[("h", b"")]]), partition=0))
        assert sorted(cluster.values("orders")) == [b"1", b"2", b"3", b"4", b"5"]


NO_VALUES: dict[str, Any] = {"str": "tea", "bytes": b"tea", "dict": {b"1": b"tea"}, "None": None, "number": 5}


@pytest.mark.parametrize("kind", NO_VALUES)
async def test_one_value_instead_of_many_is_refused(kind: str) -> None:
    """A dict's keys would be sent as values, and a str's letters need a message that helps. The producer sends on."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.partitions_for("orders")
            for partition in (None, 0):
                with pytest.raises(UsageError, match="must be a list"):
                    producer.send_many("orders", NO_VALUES[kind], partition=partition)
                with pytest.raises(UsageError, match="must be a list"):
                    await producer.send_columns("orders", NO_VALUES[kind], partition=partition)
            await producer.send_and_wait("orders", b"right")
        assert cluster.values("orders") == [b"right"]


async def test_list_that_changes_during_the_call_is_sent_as_it_was() -> None:
    """While `send_columns` waited for metadata, a program that emptied its buffer used to empty what was to be sent, too."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            values = [b"1", b"2"]
            call = asyncio.create_task(producer.send_columns("orders", values, partition=0))
            await asyncio.sleep(0)
            values.clear()
            await (await call)
        assert cluster.values("orders") == [b"1", b"2"]


NO_TIMES: dict[str, Any] = {"NaN": float("nan"), "str": "5", "bool": True}


@pytest.mark.parametrize("kind", NO_TIMES)
async def test_time_limit_that_is_no_number_is_refused(kind: str) -> None:
    """With NaN a call used to wait forever, and a str raised a TypeError about an operator. `stop` had closed half of the client
    by then, and a second `stop` did nothing."""
    wrong = NO_TIMES[kind]
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        producer, consumer = (
            Producer(bootstrap_servers=cluster.bootstrap),
            Consumer("orders", bootstrap_servers=cluster.bootstrap),
        )
        async with producer, consumer:
            calls: list[Callable[[], Any]] = [
                lambda: producer.flush(timeout_ms=wrong),
                lambda: producer.wait_for_room(timeout_ms=wrong),
                lambda: producer.stop(timeout_ms=wrong),
                lambda: consumer.getmany(timeout_ms=wrong),
                lambda: consumer.getone(timeout_ms=wrong),
                lambda: consumer.fetch_batches(timeout_ms=wrong),
                lambda: consumer.stop(timeout_ms=wrong),
            ]
            for call in calls:
                with pytest.raises(UsageError, match="timeout_ms is a number of milliseconds"):
                    await asyncio.wait_for(call(), 5)
            await producer.send_and_wait("orders", b"right")
            assert (await consumer.getone(timeout_ms=5000)).value == b"right"


@pytest.mark.parametrize("wrong", [1.5, "5", True, 0])
async def test_number_of_records_is_whole(wrong: Any) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap) as consumer:
            with pytest.raises(UsageError, match="max_records is a whole number"):
                await consumer.getmany(max_records=wrong)


async def never_awaited(*arguments: Any) -> Any:
    """A coroutine function where a plain function is expected."""


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (Producer, "key_serializer"),
        (Producer, "value_serializer"),
        (Producer, "partitioner"),
        (Consumer, "key_deserializer"),
        (Consumer, "value_deserializer"),
        (Consumer, "on_state_change"),
        (sync.Consumer, "on_state_change"),
    ],
)
def test_coroutine_function_is_refused(client: Any, name: str) -> None:
    """Without the check, values would be coroutines, and `on_state_change` would be called but never run."""
    with pytest.raises(UsageError, match=f"{name} must be a function \\(not async\\)"):
        client(**{name: never_awaited})


async def test_coroutine_function_as_delivery_callback_is_reported() -> None:
    """Such a callback used to be called and never awaited, so it never ran; only a RuntimeWarning said so."""
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipt = (await producer.send("orders", b"1")).on_delivery(never_awaited)
            await receipt
            await until(lambda: problems)
    assert isinstance(problems[0], UsageError)
