"""The order of calls is the order in the log, whatever each call waits for: metadata, room, the calls before it.

A real `Producer` with its accumulator and sender, over a stub of the cluster: metadata arrives, batches are acknowledged and
calls are cancelled when the test says so, so that hypothesis can try the interleavings.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.cluster.listeners import Listeners
from strandline.client.cluster.metadata import MetadataCache
from strandline.client.cluster.throttle_times import ThrottleTimes
from strandline.client.errors import BufferFull, StrandlineError
from strandline.client.home import Home
from strandline.client.producer.accumulator import Accumulator
from strandline.client.producer.batch import Batch
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.client.producer.producer import Producer
from strandline.client.producer.receipts import Receipt
from strandline.client.producer.sender import Sender
from strandline.protocol.messages.admin import MetadataPartition, MetadataResponse, MetadataTopic
from strandline.protocol.records.reader import iter_records

from .scripted import ScriptedCluster

PARTITIONS = 2


class MetadataOnDemand:
    """The client's view of a cluster, which learns the topic when the test decides. Calls wait for the metadata on futures of
    their own, which are resolved in order.

    It is its own `metadata` and `connections`: the parts of a `Cluster` that a producer uses."""

    def __init__(self) -> None:
        self.cache = MetadataCache()
        self.listeners = Listeners()
        self.metadata = self.connections = self
        self.last_error = self.refusal = None
        self.throttles = ThrottleTimes()
        self.refreshes = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def topic(self, name: str, timeout_ms: float) -> Any:
        while name not in self.cache.topics:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return self.cache.topics[name]

    def learn(self, name: str) -> None:
        partitions = [MetadataPartition(0, index, 1, 0, 0, [1], [1], []) for index in range(PARTITIONS)]
        self.cache.update(MetadataResponse([], "stub", 101, [MetadataTopic(0, name, bytes(16), partitions)]))
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.listeners.notify()

    def want_topics(self, names: object) -> bool:
        return True

    def request_refresh(self) -> None:
        """Do nothing: metadata arrives when the test says so."""

    def to(self, broker_id: int) -> None:
        """Return no connection: the test takes and acknowledges batches."""

    def refresh_if_unreachable(self, broker_id: int) -> None:
        """Do nothing: the topic is learned when the test says so."""

    def suspect_if_stalled(self, broker_id: int, oldest_request_at: float | None, limit_s: float) -> None:
        """Do nothing: brokers answer when the test says so."""

    def last_error_of(self, broker_id: int) -> None:
        """Return None: there is no error."""


class DrivenProducer:
    """One producer, and the calls and batches of the test."""

    def __init__(self) -> None:
        self.cluster = MetadataOnDemand()
        self.producer = Producer(acks=1, batch_size=256, buffer_memory=1024, max_block_ms=600_000)
        producer: Any = self.producer
        loop = asyncio.get_running_loop()
        producer._home = Home("producer")
        producer._cluster = self.cluster
        producer._accumulator = Accumulator(
            producer.options,
            now=loop.time,
            wall_clock_ms=lambda: 0,
            on_ready=lambda queue: self.sender.on_ready(queue),
            first_sticky=lambda count: 0,
        )
        self.sender = producer._sender = Sender(producer.options, producer._accumulator, self.cluster)  # type: ignore[arg-type]
        producer._choose_path()
        self.calls = 0
        self.log: dict[int, list[int]] = {}
        """The numbers of the appended records, in order, by partition."""
        self.tasks: list[asyncio.Task[None]] = []

    def number(self, size: int) -> bytes:
        """A value that contains the number of its call."""
        self.calls += 1
        return b"%06d" % self.calls + bytes(size)

    async def send(self, size: int, partition: int | None) -> None:
        await self.producer.send("orders", self.number(size), partition=partition)

    async def send_columns(self, size: int, partition: int | None) -> None:
        await self.producer.send_columns("orders", [self.number(size) for _ in range(12)], partition=partition)

    def send_nowait(self, size: int, partition: int | None) -> None:
        with contextlib.suppress(BufferFull):
            self.producer.send_nowait("orders", self.number(size), partition=partition)

    def acknowledge(self, batches: int) -> None:
        """The leader appends the oldest batches of each partition."""
        topic = self.producer._accumulator.topics.get("orders")
        for queue in [] if topic is None else list(topic.queues.values()):
            for _ in range(batches):
                batch = self.producer._accumulator.take(queue, 1e12, True)
                if batch is not None:
                    self._append(queue, batch)

    def _append(self, queue: PartitionQueue, batch: Batch) -> None:
        assert batch.data is not None
        self.log.setdefault(queue.partition, []).extend(int(record.value[:6]) for record in iter_records(batch.data))
        self.sender._acked(queue, batch, 0, -1)

    async def finish(self) -> None:
        self.cluster.learn("orders")
        for _ in range(2000):
            self.acknowledge(2)
            await asyncio.sleep(0)
            if all(task.done() for task in self.tasks) and not self.producer._accumulator.waiting_records:
                break
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, (StrandlineError, asyncio.CancelledError)) for result in results), results
        await self.sender.close()


PLACE = st.sampled_from([None, None, 0, 1])
SIZE = st.sampled_from([1, 1, 40, 200, 700])
STEP = st.one_of(
    st.tuples(st.just("send"), SIZE, PLACE),
    st.tuples(st.just("send"), SIZE, PLACE),
    st.tuples(st.just("send_columns"), st.sampled_from([1, 40]), PLACE),
    st.tuples(st.just("send_nowait"), SIZE, PLACE),
    st.tuples(st.just("turns"), st.integers(1, 4), st.none()),
    st.tuples(st.just("learn"), st.just(0), st.none()),
    st.tuples(st.just("acknowledge"), st.integers(1, 2), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
)


async def play(steps: list[tuple[str, int, int | None]]) -> DrivenProducer:
    driven = DrivenProducer()
    for what, number, place in steps:
        if what == "send":
            driven.tasks.append(asyncio.create_task(driven.send(number, place)))
        elif what == "send_columns":
            driven.tasks.append(asyncio.create_task(driven.send_columns(number, place)))
        elif what == "send_nowait":
            driven.send_nowait(number, place)
        elif what == "turns":
            for _ in range(number):
                await asyncio.sleep(0)
        elif what == "learn":
            driven.cluster.learn("orders")
        elif what == "acknowledge":
            driven.acknowledge(number)
        elif driven.tasks:
            driven.tasks[number % len(driven.tasks)].cancel()
    await driven.finish()
    return driven


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_call_order_is_log_order(steps: list[tuple[str, int, int | None]]) -> None:
    """Calls are numbered when they begin. In each partition the numbers must ascend, also for records without a key."""
    driven = asyncio.run(play(steps))
    for partition, numbers in driven.log.items():
        assert numbers == sorted(numbers), f"partition {partition}: a later call overtook earlier ones"
    assert driven.producer.metrics()["buffered_bytes"] == 0
    assert driven.producer.metrics()["calls_waiting"] == 0


@pytest.mark.parametrize("cancelled", [None, 0, 3])
async def test_calls_that_wait_for_metadata_keep_their_order(cancelled: int | None) -> None:
    """Each call used to wait for metadata by itself and append after that; a call that began later appended at once, before
    them."""
    driven = DrivenProducer()
    for _ in range(8):
        driven.tasks.append(asyncio.create_task(driven.send(1, 0)))
    await asyncio.sleep(0)
    if cancelled is not None:
        driven.tasks[cancelled].cancel()
    driven.cluster.learn("orders")
    for _ in range(8):  # New calls begin in the iterations in which the first ones wake up.
        await asyncio.sleep(0)
        driven.tasks.append(asyncio.create_task(driven.send(1, 0)))
    await driven.finish()
    expected = [number for number in range(1, 17) if cancelled is None or number != cancelled + 1]
    assert driven.log[0] == expected


async def test_small_record_does_not_overtake_a_waiting_one() -> None:
    """The small record would fit into the open batch, which has no room for the large one."""
    driven = DrivenProducer()
    driven.cluster.learn("orders")
    driven.tasks = [asyncio.create_task(driven.send(size, 0)) for size in (200, 200, 200, 100, 700, 1, 1)]
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(BufferFull, match="earlier calls for orders wait"):
        driven.producer.send_nowait("orders", b"x", partition=0)
    await driven.finish()
    assert driven.log[0] == [1, 2, 3, 4, 5, 6, 7]


async def test_cancelled_call_is_withdrawn() -> None:
    """Its record is not sent, and its bytes are free again."""
    driven = DrivenProducer()
    driven.tasks = [asyncio.create_task(driven.send(100, 0)) for _ in range(3)]
    await asyncio.sleep(0)
    driven.tasks[1].cancel()
    await asyncio.sleep(0)
    await driven.finish()
    assert driven.log[0] == [1, 3]
    assert driven.producer.metrics()["buffered_bytes"] == 0


async def test_concurrent_first_sends_arrive_in_order() -> None:
    """Over real connections: tasks start while the first metadata request for the topic is in flight."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            tasks: list[asyncio.Task[Receipt]] = []
            while len(tasks) < 50 or "orders" not in producer._accumulator.topics:
                tasks.append(asyncio.create_task(producer.send("orders", b"%06d" % len(tasks))))
                await asyncio.sleep(0)
            for _ in range(50):
                tasks.append(asyncio.create_task(producer.send("orders", b"%06d" % len(tasks))))
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
        values = cluster.values("orders")
    assert values == [b"%06d" % i for i in range(len(tasks))]
