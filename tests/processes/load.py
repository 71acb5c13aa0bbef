"""A load with a memory: producers and a consumer that write down what they did and saw, while nodes are killed.

Everything is awaited by condition with a bound. What the load wrote down is judged by `strandline.testing.history`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.local_cluster import LocalCluster
from strandline.protocol.errors import StrandlineError
from strandline.testing.history import History, Send, Verdict, check
from strandline.testing.replicas import Comparison, compare_replicas

PARTITIONS = 3
GROUP = 10
"""Records per producer and turn."""
TURN_S = 0.004
BOUND_S = 30.0


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str, bound_s: float = BOUND_S) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + bound_s
    while True:
        held = condition()
        if await held if isinstance(held, Awaitable) else held:
            return
        assert loop.time() < deadline, f"within {bound_s} s it did not come true that {what}"
        await asyncio.sleep(0.01)


class Load:
    """Two idempotent producers with acks=all and a consumer that follows them, on one topic."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.history = History()
        self.acked = 0
        self.sent = 0
        self.errors: list[str] = []
        self._going = True
        self._tasks: list[asyncio.Task[None]] = []
        self._settling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        async with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic(self.topic, partitions=PARTITIONS, replication_factor=3)])
        self._tasks = [asyncio.create_task(self._produce(f"producer-{n}")) for n in (1, 2)]
        self._tasks.append(asyncio.create_task(self._follow("follower")))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Every record that was sent has its outcome when this returns."""
        self._going = False
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)
        await asyncio.gather(*self._settling)

    async def progress(self, records: int = 1500) -> None:
        """Until so many more records are acknowledged."""
        goal = self.acked + records
        await until(lambda: self.acked >= goal or self._raise_if_broken(), f"{records} more records are acknowledged")

    def _raise_if_broken(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return False

    async def _produce(self, name: str) -> None:
        async with Producer(
            bootstrap_servers=self.cluster.bootstrap, acks="all", request_timeout_ms=2000, delivery_timeout_ms=60_000
        ) as producer:
            while self._going:
                for _ in range(GROUP):
                    value = b"%s %d" % (name.encode(), self.sent)
                    partition = self.sent % PARTITIONS
                    self.sent += 1
                    receipt = await producer.send(self.topic, value, partition=partition)
                    send = self.history.invoke(name, partition, value)
                    task = asyncio.create_task(self._settle(send, receipt))
                    self._settling.add(task)
                    task.add_done_callback(self._settling.discard)
                await asyncio.sleep(TURN_S)
            await producer.flush()

    async def _settle(self, send: Send, receipt: Awaitable[object]) -> None:
        try:
            metadata = await receipt
        except StrandlineError as e:
            send.info()
            self.errors.append(str(e))
            return
        send.ok(metadata.offset)  # type: ignore[attr-defined]
        self.acked += 1

    async def _follow(self, name: str) -> None:
        """Read along, from the beginning, through every fault."""
        async with self._consumer() as consumer:
            await consumer.assign(self._places())
            while self._going:
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    self.history.poll(name, tp.partition, [(r.offset, r.value) for r in records])

    def _consumer(self) -> Consumer:
        return Consumer(bootstrap_servers=self.cluster.bootstrap, auto_offset_reset="earliest", request_timeout_ms=2000)

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, p) for p in range(PARTITIONS)]

    # -- the verdict

    async def verdict(self) -> Verdict:
        """After the load ended and everything was healed: read all of it once more, from the beginning, and judge."""
        async with self._consumer() as consumer:
            await consumer.assign(self._places())
            ends = await consumer.end_offsets(self._places())
            left = {tp for tp, end in ends.items() if end > 0}
            loop = asyncio.get_running_loop()
            deadline = loop.time() + BOUND_S
            while left:
                assert loop.time() < deadline, f"the final read did not reach the ends of {left}"
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    self.history.poll("final", tp.partition, [(r.offset, r.value) for r in records], final=True)
                    if records[-1].offset + 1 >= ends[tp]:
                        left.discard(tp)
        return check(self.history)

    async def fully_replicated(self) -> None:
        """Until every replica is in the ISR of its partition again."""

        async def whole() -> bool:
            try:
                async with Admin(bootstrap_servers=self.cluster.bootstrap, request_timeout_ms=2000) as admin:
                    (topic,) = await admin.describe_topics([self.topic])
            except StrandlineError:
                return False
            return all(p.leader_id >= 0 and set(p.isr) == set(p.replicas) for p in topic.partitions)

        await until(whole, "every replica is in sync again")

    def replicas(self) -> list[Comparison]:
        return compare_replicas({n.name: n.data for n in self.cluster.brokers}, self.topic)
