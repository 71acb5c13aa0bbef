"""The examples of aiokafka and of its documentation run with `strandline.compat.aiokafka`.

They are unchanged but for the name of the imported package, and for where they run: the address of the cluster, and the folder
for files. (One has a mistake, `MENDED`.)
What they ask for and does not exist here raises with a reason."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.client.compat.aiokafka import options
from strandline.compat import aiokafka
from strandline.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from strandline.sync import Admin, Consumer, Producer
from strandline.testing import Cluster, ThreadedCluster

FOLDER = Path(__file__).parent / "aiokafka_docs"
WITHIN_S = 20.0
MENDED = "async def consume(group_id, msg_cnt):\n    consumer = AIOKafkaConsumer(\n        'some-topic',"
"""The page defines `consume` of "group_consumer" without arguments, and calls it with two: aiokafka cannot run it, either."""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "the condition has not come true"
        threading.Event().wait(0.005)


def ported(name: str, cluster: ThreadedCluster, files: str = "/tmp") -> str:
    """An example with its import, address and folder changed."""
    text = (FOLDER / f"{name}.py.txt").read_text()
    text = re.sub(r"^(\s*)(from|import) aiokafka", r"\1\2 strandline.compat.aiokafka", text, flags=re.M)
    text = text.replace("async def consume():\n    consumer = AIOKafkaConsumer(\n        'some-topic',", MENDED)
    return text.replace("localhost:9092", cluster.bootstrap_servers).replace("/tmp/", f"{files}/")


class Program(threading.Thread):
    """An example that runs on a thread of its own, with its own event loop. It may have no end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self._code = compile(text, "program.py", "exec")
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        try:
            exec(self._code, {"__name__": "__main__", "print": lambda *words: self.lines.append(" ".join(map(str, words)))})
        except asyncio.CancelledError:
            pass
        except BaseException as e:
            self.error = e

    async def main(self, main: Any) -> None:
        """The coroutine for `asyncio.run`, which notes its task and loop so that it can be cancelled."""
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        await main

    def wait_for(self, condition: Callable[[list[str]], object]) -> None:
        """Wait until the lines that the program has printed fulfil the condition."""
        wait_until(lambda: condition(self.lines) or not self.is_alive())
        assert condition(self.lines), (self.lines, self.error)

    def stop(self) -> list[str]:
        """Cancel the program, as Ctrl-C does; returns its lines."""
        assert self._loop is not None
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        return self.result()

    def result(self) -> list[str]:
        """Wait for the program to end; returns its lines, or raises its error."""
        self.join(WITHIN_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.lines


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        monkeypatch.setattr(options, "DEFAULT_PORT", int(cluster.bootstrap_servers.rpartition(":")[2]))
        yield cluster


@pytest.fixture
def start(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Program]:
    run = asyncio.run

    def run_of_program(main: Any) -> None:
        program = threading.current_thread()
        run(program.main(main) if isinstance(program, Program) else main)

    def start(name: str, *arguments: str) -> Program:
        monkeypatch.setattr(sys, "argv", ["program.py", *arguments])
        program = Program(ported(f"programs/{name}", cluster, str(tmp_path)))
        program.start()
        return program

    monkeypatch.setattr(asyncio, "run", run_of_program)
    return start


def send(cluster: ThreadedCluster, topic: str, *values: bytes, partition: int | None = None, key: bytes | None = None) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value, key=key, partition=partition)


def send_until(cluster: ThreadedCluster, topic: str, program: Program) -> None:
    """Send until the program prints: a consumer that begins at the end gets only records that are appended after its start."""
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        wait_until(lambda: producer.send_and_wait(topic, b"hello") and program.lines)


def committed(cluster: ThreadedCluster, group: str, topic: str, partition: int = 0) -> int | None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group).get(TopicPartition(topic, partition))
    return None if found is None else found.offset


def test_every_example_is_run() -> None:
    source = Path(__file__).read_text()
    names = [path.name.removesuffix(".py.txt") for path in FOLDER.glob("*/*.txt")]
    assert [name for name in names if f'"{name}"' not in source] == []


# -- programs ---------------------------------------------------------------------------------------------------------


def test_batch_produce(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("my_topic", partitions=3)
    lines = start("batch_produce").result()
    counts = [int(re.fullmatch(r"(\d+) messages sent to partition [012]", line)[1]) for line in lines]
    assert sum(counts) == len(cluster.read_all("my_topic")) == 1000
    assert len(counts) > 1


@pytest.mark.parametrize("name", ["idempotent_produce", "simple_produce"])
def test_produce(cluster: ThreadedCluster, start: Callable[..., Program], name: str) -> None:
    cluster.create_topic("test-topic", partitions=1)
    program = start(name)
    program.wait_for(len)
    assert program.stop()[0].startswith("RecordMetadata(topic='test-topic', partition=0, topic_partition=TopicPartition(")


def test_index_producer(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("my_topic")
    start("index_producer").result()
    assert [record.value for record in cluster.read_all("my_topic")] == [b"Super message"]


def test_simple_consumer(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("my_topic")
    program = start("simple_consumer")
    send_until(cluster, "my_topic", program)
    assert program.stop()[0] == "b'hello'"


def test_index_consumer(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("my_topic", partitions=1)
    cluster.create_topic("my_other_topic", partitions=1)
    program = start("index_consumer")
    send_until(cluster, "my_other_topic", program)
    assert re.fullmatch(r"consumed:  my_other_topic 0 \d+ None b'hello' \d{13}", program.stop()[0])
    assert committed(cluster, "my-group", "my_other_topic") is not None


def test_custom_partitioner(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("foobar", partitions=10)
    first, second, third = start("custom_partitioner").result()
    assert (first, third) == ("'1' produced in partition: 9", "'3' produced in partition: 0")
    assert second.startswith("'2' produced")


def test_group_of_consumers(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    """ "group_producer" and "group_consumer", run as the page says."""
    cluster.create_topic("some-topic", partitions=2)
    other = start("group_consumer", "OTHER_GROUP", "4")
    wait_until(lambda: cluster_members(cluster, "OTHER_GROUP") == [2])
    first = start("group_consumer", "TEST_GROUP", "2")
    wait_until(lambda: cluster_members(cluster, "TEST_GROUP") == [2])
    second = start("group_consumer", "TEST_GROUP", "2")
    wait_until(lambda: cluster_members(cluster, "TEST_GROUP") == [1, 1])
    for partition, value in [("0", "message #1"), ("0", "message #2"), ("1", "message #3"), ("1", "message #4")]:
        start("group_producer", partition, value).result()
    lines = sorted([first.result(), second.result()])
    assert lines == [
        ["Message from partition [0]: b'message #1'", "Message from partition [0]: b'message #2'"],
        ["Message from partition [1]: b'message #3'", "Message from partition [1]: b'message #4'"],
    ]
    assert sorted(other.result()) == lines[0] + lines[1]


def cluster_members(cluster: ThreadedCluster, group: str) -> list[int]:
    """The numbers of partitions of the members."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        described = admin.describe_groups([group])[group]
    return sorted(len(member.assignment) for member in described.members)


def test_local_state_consumer(cluster: ThreadedCluster, start: Callable[..., Program], tmp_path: Path) -> None:
    """The program keeps offsets in files, and continues at these offsets."""
    cluster.create_topic("test", partitions=3)
    for partition in range(3):
        send(cluster, "test", b"1", b"2", partition=partition, key=b"%d" % partition)
    program = start("local_state_consumer")
    program.wait_for(lambda lines: sum(line.startswith("Process") for line in lines) == 6)
    wait_until(lambda: states(tmp_path) == {0: (1, {"0": 2}), 1: (1, {"1": 2}), 2: (1, {"2": 2})})
    lines = program.stop()
    assert lines[:2] == ["Revoked set()", f"Assigned { {TopicPartition('test', index) for index in range(3)} }"]
    send(cluster, "test", b"3", partition=1, key=b"1")
    program = start("local_state_consumer")
    program.wait_for(lambda lines: sum(line.startswith("Process") for line in lines) == 1)
    wait_until(lambda: states(tmp_path).get(1) == (2, {"1": 3}))
    program.stop()


def test_local_state_that_is_outdated(cluster: ThreadedCluster, start: Callable[..., Program], tmp_path: Path) -> None:
    """The file names an offset that the log does not have: the error has the partitions, and the program begins again."""
    cluster.create_topic("test", partitions=1)
    send(cluster, "test", b"1", key=b"k")
    (tmp_path / "my-partition-state-test-0.json").write_text(json.dumps({"last_offset": 70, "counts": {"k": 5}}))
    program = start("local_state_consumer")
    program.wait_for(lambda lines: sum(line.startswith("Process") for line in lines) == 1)
    wait_until(lambda: states(tmp_path) == {0: (0, {"k": 1})})
    program.stop()


def states(folder: Path) -> dict[int, tuple[int, dict[str, int]]]:
    """The contents of local_state_consumer's files, by partition."""
    found = {}
    for path in folder.glob("my-partition-state-test-*.json"):
        try:
            state = json.loads(path.read_text())
        except json.JSONDecodeError:
            continue  # The file is being written.
        found[int(path.stem.rpartition("-")[2])] = (state["last_offset"], state["counts"])
    return found


def test_manual_commit(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("foobar", partitions=1)
    send(cluster, "foobar", *(b"%d" % number for number in range(12)))
    start("manual_commit").result()
    assert committed(cluster, "some-consumer-group", "foobar") == 10


def test_serialize_and_compress(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    cluster.create_topic("foobar", partitions=1)
    start("serialize_produce").result()
    lines = start("serialize_consume").result()
    assert lines == ["<class 'dict'> {'a': 123.4, 'b': 'some string'}", "<class 'list'> [1, 2, 3, 4]"]


def test_transaction_that_an_error_ends(
    cluster: ThreadedCluster, start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("test-topic", partitions=1)
    monkeypatch.setattr("builtins.input", lambda: "")
    with pytest.raises(ValueError):
        start("transactional_produce").result()
    reader = Consumer(bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest")
    with reader:
        reader.assign([("test-topic", 0)])
        wait_until(lambda: reader.getmany(timeout_ms=50) or reader.position(("test-topic", 0)) > 1)
        assert reader.position(("test-topic", 0)) == 2, "it has passed the record and the marker, and returned neither"


def test_transactional_processing(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    """The program sends on what it receives, together with the offsets, in one transaction."""
    cluster.create_topic("in_topic", partitions=1)
    cluster.create_topic("out_topic", partitions=1)
    program = start("transaction_example")

    def is_processed() -> bool:
        send(cluster, "in_topic", b"tea")
        return bool(cluster.read_all("out_topic"))

    wait_until(is_processed)
    wait_until(lambda: committed(cluster, "processing-group", "in_topic"))
    program.stop()


def test_tls_needs_the_files_that_it_names(cluster: ThreadedCluster, start: Callable[..., Program]) -> None:
    """The test ends at these files: the context itself is one of Python's ssl module."""
    with pytest.raises(FileNotFoundError):
        start("ssl_consume_produce").result()


# -- fragments --------------------------------------------------------------------------------------------------------


async def run_fragment(name: str, cluster: ThreadedCluster, **names: Any) -> dict[str, Any]:
    """Run a fragment of a page in the test's event loop; returns its names. A fragment without an end runs until the test cancels
    it, or what it reads raises `Enough`."""
    given = {
        "aiokafka": aiokafka,
        "AIOKafkaConsumer": AIOKafkaConsumer,
        "AIOKafkaProducer": AIOKafkaProducer,
        "TopicPartition": TopicPartition,
        "asyncio": asyncio,
        "os": os,
        "time": time,
        "print": lambda *words: None,
        **names,
    }
    code = compile(ported(f"fragments/{name}", cluster), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, given)
    if inspect.isawaitable(result):
        await result
    return given


def producer_of(cluster: ThreadedCluster) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)


class Enough(Exception):
    """Raised when a fragment has done what the test checks."""


@pytest.mark.parametrize("name", ["producer_9", "producer_101"])
async def test_fragments_that_send_and_wait(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic("my_topic")
    await run_fragment(name, cluster)
    assert [record.value for record in cluster.read_all("my_topic")] == [b"Super message"]


@pytest.mark.parametrize(("name", "result"), [("producer_32", "msg"), ("producer_200", "record"), ("api_95", "response")])
async def test_fragments_that_use_a_producer(cluster: ThreadedCluster, name: str, result: str) -> None:
    cluster.create_topic("my_topic", partitions=2)
    cluster.create_topic("foobar", partitions=2)
    async with producer_of(cluster) as producer:
        names = await run_fragment(name, cluster, producer=producer)
    assert names[result].offset == 0


async def test_fragment_about_time_limits(cluster: ThreadedCluster) -> None:
    """Its ellipsis stands for the arguments of `send`."""
    sent = []

    class Stub:
        async def send(self, *arguments: Any) -> None:
            sent.append(arguments)

    await run_fragment("producer_60", cluster, producer=Stub(), timeout=1)
    assert sent == [(...,)]


async def test_fragment_with_a_transaction(cluster: ThreadedCluster) -> None:
    cluster.create_topic("test-topic")
    await run_fragment("producer_132", cluster)
    assert [record.value for record in cluster.read_all("test-topic")] == [b"Super transactional message"]


async def test_fragment_that_commits_offsets_in_a_transaction(cluster: ThreadedCluster) -> None:
    cluster.create_topic("some-topic")
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="offsets")
    async with producer:
        await run_fragment("producer_168", cluster, producer=producer)
    assert committed(cluster, "some-consumer-group", "some-topic") == 100


def printing(lines: list[str], enough: int = 1) -> Callable[..., None]:
    """A replacement for `print` that ends an endless fragment after some lines."""

    def write(*words: object) -> None:
        lines.append(" ".join(map(str, words)))
        if len(lines) == enough:
            raise Enough

    return write


async def sending(cluster: ThreadedCluster, topic: str, partition: int | None = None) -> None:
    async with producer_of(cluster) as producer:
        while True:
            await producer.send_and_wait(topic, b"hello", key=b"k", partition=partition)
            await asyncio.sleep(0.02)


async def run_while_records_come(
    name: str, cluster: ThreadedCluster, topic: str, partition: int | None = None, **names: Any
) -> None:
    feeder = asyncio.create_task(sending(cluster, topic, partition))
    consumers: list[AIOKafkaConsumer] = []

    class Consumer(AIOKafkaConsumer):
        def __init__(self, *topics: str, **options: Any) -> None:
            super().__init__(*topics, **options)
            consumers.append(self)

    module = type("aiokafka", (), {**vars(aiokafka), "AIOKafkaConsumer": Consumer})
    fragment = run_fragment(name, cluster, **{"AIOKafkaConsumer": Consumer, "aiokafka": module, **names})
    try:
        with pytest.raises(Enough):
            await asyncio.wait_for(fragment, WITHIN_S)
    finally:
        feeder.cancel()
        for consumer in consumers:
            await consumer.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await feeder


@pytest.mark.parametrize("name", ["consumer_11", "consumer_312"])
async def test_fragments_that_print_what_they_read(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic("my_topic", partitions=1)
    lines: list[str] = []
    await run_while_records_come(name, cluster, "my_topic", print=printing(lines))
    assert "my_topic:0:" in lines[0] or "consumed msg from partition 0" in lines[0]


async def test_fragment_with_a_pattern_finds_topics_that_come_later(cluster: ThreadedCluster) -> None:
    cluster.create_topic("MyGreatTopic-1")
    cluster.create_topic("Other")
    lines: list[str] = []
    await run_while_records_come("consumer_396", cluster, "MyGreatTopic-1", print=printing(lines))
    assert lines[0].startswith("Consumed msg MyGreatTopic-1")


async def test_fragment_with_assigned_partitions(cluster: ThreadedCluster) -> None:
    """ "consumer_422" does not call `start`, which is a mistake for aiokafka, too; the test calls it."""
    cluster.create_topic("my_topic", partitions=3)
    lines: list[str] = []
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    await consumer.start()
    names = {"AIOKafkaConsumer": lambda **options: consumer, "print": printing(lines)}
    try:
        await run_while_records_come("consumer_422", cluster, "my_topic", 2, **names)
    finally:
        await consumer.stop()
    assert lines[0].startswith("Consumed msg %s %s %s my_topic 2")


@pytest.mark.parametrize("name", ["consumer_96", "consumer_177", "consumer_498"])
async def test_fragments_that_do_nothing_with_what_they_read(cluster: ThreadedCluster, name: str) -> None:
    """Their loops have no body: the test ends them at the third record."""
    cluster.create_topic("my_topic", partitions=1)
    read: list[Any] = []

    class Counting(AIOKafkaConsumer):
        async def __anext__(self) -> Any:
            if len(read) == 3:
                await self.stop()
                raise Enough
            read.append(await super().__anext__())
            return read[-1]

    module = type("aiokafka", (), {**vars(aiokafka), "AIOKafkaConsumer": Counting})
    await run_while_records_come(name, cluster, "my_topic", AIOKafkaConsumer=Counting, aiokafka=module)
    assert [record.value for record in read] == [b"hello"] * 3


async def test_fragment_that_commits_batches(cluster: ThreadedCluster) -> None:
    cluster.create_topic("my_topic", partitions=1)
    await asyncio.to_thread(send, cluster, "my_topic", *(b"%d" % number for number in range(250)))
    batches: list[int] = []

    async def process_msg_batch(batch: list[Any]) -> None:
        batches.append(len(batch))
        if len(batches) == 3:
            raise Enough

    feeder = run_while_records_come("consumer_115", cluster, "my_topic", process_msg_batch=process_msg_batch)
    await feeder
    assert batches == [100] * 3
    assert await asyncio.to_thread(committed, cluster, "my_group", "my_topic") == 200


@pytest.fixture
async def consumer(cluster: ThreadedCluster) -> Any:
    cluster.create_topic("my_topic", partitions=1)
    await asyncio.to_thread(send, cluster, "my_topic", *(b"%d" % number for number in range(10)))
    options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("my_topic", group_id="g", isolation_level="read_committed", **options) as consumer:
        yield consumer


@pytest.mark.parametrize("name", ["consumer_52", "consumer_195"])
async def test_fragments_about_positions(cluster: ThreadedCluster, consumer: AIOKafkaConsumer, name: str) -> None:
    """Their assertions are those of the page."""
    await run_fragment(name, cluster, consumer=consumer)


async def test_fragment_that_commits_one_partition(cluster: ThreadedCluster, consumer: AIOKafkaConsumer) -> None:
    done: list[int] = []

    async def process_msg_batch(batch: list[Any]) -> None:
        if sum(done) == 10:
            raise Enough
        done.append(len(batch))

    feeder = asyncio.create_task(sending(cluster, "my_topic"))
    with pytest.raises(Enough):
        await run_fragment("consumer_152", cluster, consumer=consumer, process_msg_batch=process_msg_batch)
    feeder.cancel()
    await asyncio.gather(feeder, return_exceptions=True)
    assert await consumer.committed(TopicPartition("my_topic", 0)) >= 10


async def test_fragment_about_the_last_stable_offset(cluster: ThreadedCluster, consumer: AIOKafkaConsumer) -> None:
    lines: list[str] = []
    with pytest.raises(Enough):
        await run_fragment("consumer_524", cluster, consumer=consumer, print=printing(lines, 10))
    assert lines[0] == "Consumer is behind by 10 messages"


async def test_fragment_that_prefers_partitions_that_lag(cluster: ThreadedCluster, consumer: AIOKafkaConsumer) -> None:
    calls: list[Any] = []

    async def process_messages(messages: Any) -> None:
        calls.append(messages)
        await asyncio.sleep(0.02)
        if len(calls) == 5:
            raise Enough

    await consumer.getmany(timeout_ms=5_000)
    names = {"POSITION_THRESHOLD": 0, "TIME_THRESHOLD": 0, "process_messages": process_messages}
    with pytest.raises(Enough):
        await run_fragment("consumer_449", cluster, AIOKafkaConsumer=lambda *topics: consumer, **names)


async def test_fragment_that_stores_offsets_elsewhere(cluster: ThreadedCluster) -> None:
    """A dictionary takes the place of Redis. `seek` right after `assign` is kept until the partition is known."""
    cluster.create_topic("my_topic", partitions=1)
    for number in range(6):
        await asyncio.to_thread(send, cluster, "my_topic", b"v", key=b"k%d" % (number % 2))
    stored: dict[str, str] = {"k0": json.dumps({"count": 2, "offset": 2}), "k1": json.dumps({"count": 1, "offset": 1})}

    class Redis:
        async def hgetall(self, name: str, encoding: str) -> dict[str, str]:
            return dict(stored)

        async def hset(self, name: str, key: str, value: str) -> None:
            stored[key] = value
            if json.loads(value)["offset"] == 5:
                raise Enough

    class Aioredis:
        @staticmethod
        async def create_redis(address: object) -> Redis:
            return Redis()

    with pytest.raises(Enough):
        await run_fragment("consumer_246", cluster, aioredis=Aioredis)
    assert {key: json.loads(value) for key, value in stored.items()} == {
        "k0": {"count": 3, "offset": 4},
        "k1": {"count": 3, "offset": 5},
    }


async def test_fragment_with_a_lock_in_the_listener(cluster: ThreadedCluster) -> None:
    """ "consumer_363" shows code that deadlocks in aiokafka; it only defines it. Here a rebalance waits for a listener only for a
    limited time."""
    names = await run_fragment("consumer_363", cluster, AIOKafkaConsumer=lambda *arguments: None)
    assert issubclass(names["MyRebalancer"], aiokafka.ConsumerRebalanceListener)


async def test_fragment_with_a_rack(cluster: ThreadedCluster) -> None:
    names = await run_fragment("consumer_558", cluster)
    assert names["consumer"]._reader.options.client_rack == "us-east-1a"
