"""A steady load with a memory: an idempotent producer with acks=all and a consumer that follows it, through every fault.

One record per partition and interval, each with a value of its own. The outcome of every send and whatever was read is
written into a `History` (`strandline.testing.history`), the moment of each acknowledgement into `acked_at`. The producer
has its default settings, but for a delivery timeout that outlasts every scenario: what is measured is what users get.

Pace is kept by the clock: after a stall of this process the records that were due follow at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.client.receipts import Receipt
from strandline.protocol.errors import StrandlineError
from strandline.testing.history import History, Send, Verdict, check

DELIVERY_TIMEOUT_MS = 180_000
POLL_MS = 10
FINAL_READ_S = 60.0
WRITER, READER, FINAL = "producer", "consumer", "final consumer"


class NotInTime(StrandlineError):
    """Something that was waited for did not come true within its bound."""


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str, within_s: float) -> None:
    """Wait for a condition; NotInTime when it does not hold within the bound."""
    deadline = perf_counter() + within_s
    while True:
        held = condition()
        if await held if isinstance(held, Awaitable) else held:
            return
        if perf_counter() > deadline:
            raise NotInTime(f"within {within_s:g} s it did not come true that {what}")
        await asyncio.sleep(POLL_MS / 1000)


class SteadyLoad:
    """`start`, then `progress` as often as wished, `stop`, `verdict`."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int = 3, interval_ms: int = 5, value_bytes: int = 100, replicas: int = 3
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.history = History()
        self.sent = 0
        self.acked = 0
        self.failed: list[str] = []
        """One sentence per record that was not delivered."""
        self.acked_at: dict[int, list[float]] = {p: [] for p in range(partitions)}
        """By partition, ascending, on the clock of `perf_counter`."""
        self.longest_stall_s = 0.0
        """The longest time that this process itself was late for a send: no gap is known more exactly."""
        self._partitions = partitions
        self._interval_s = interval_ms / 1000
        self._padding = b"." * value_bytes
        self._value_bytes = value_bytes
        self._replicas = replicas
        self._going = True
        self._outstanding: list[deque[tuple[Send, Receipt]]] = [deque() for _ in range(partitions)]
        self._news = [asyncio.Event() for _ in range(partitions)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, p) for p in range(self._partitions)]

    # -- life

    async def create_topic(self) -> None:
        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.create_topics([NewTopic(self.topic, partitions=self._partitions, replication_factor=self._replicas)])

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._follow())]

    async def stop(self) -> None:
        """Every record that was sent has its outcome when this returns."""
        self._going = False
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def abandon(self) -> None:
        """Stop without waiting for outcomes: after a failure nobody asks for them."""
        self._going = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def progress(self, records: int, within_s: float = 30.0) -> None:
        """Until so many more records are acknowledged, by every partition its share."""
        share = -(-records // self._partitions)
        goals = {p: len(times) + share for p, times in self.acked_at.items()}
        text = f"{records} more records are acknowledged"
        await until(lambda: self._raise_if_broken() and all(len(self.acked_at[p]) >= goals[p] for p in goals), text, within_s)

    def _raise_if_broken(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return True

    # -- the producer

    async def _produce(self) -> None:
        async with Producer(bootstrap_servers=self.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
            settling = [asyncio.create_task(self._settle(p)) for p in range(self._partitions)]
            try:
                await self._send_all(producer)
                await producer.flush()
            finally:
                self._wake()
                if not self._going:
                    await asyncio.gather(*settling)
                for task in settling:
                    task.cancel()

    async def _send_all(self, producer: Producer) -> None:
        due = last = perf_counter()
        while self._going:
            for partition in range(self._partitions):
                await self._send(producer, partition)
            now = perf_counter()
            self.longest_stall_s = max(self.longest_stall_s, now - last - self._interval_s)
            last = now
            due += self._interval_s
            await asyncio.sleep(max(0.0, due - now))

    async def _send(self, producer: Producer, partition: int) -> None:
        value = (b"%d/%d " % (partition, self.sent) + self._padding)[: self._value_bytes]
        receipt = await producer.send(self.topic, value, partition=partition)
        self.sent += 1
        self._outstanding[partition].append((self.history.invoke(WRITER, partition, value), receipt))
        self._news[partition].set()

    async def _settle(self, partition: int) -> None:
        """Write down outcomes as they come; those of one partition come in the order of sending."""
        queue, news, acked_at = self._outstanding[partition], self._news[partition], self.acked_at[partition]
        while self._going or queue:
            if not queue:
                news.clear()
                await news.wait()
                continue
            send, receipt = queue[0]
            try:
                metadata = await receipt
            except StrandlineError as e:
                send.info()
                self.failed.append(str(e))
            else:
                send.ok(metadata.offset)
                acked_at.append(perf_counter())
                self.acked += 1
            queue.popleft()

    def _wake(self) -> None:
        for news in self._news:
            news.set()

    async def preload(self, megabytes: int) -> None:
        """So much data, as fast as it goes: part of the history like all else."""
        values_per_mb = (1 << 20) // self._value_bytes
        async with Producer(bootstrap_servers=self.bootstrap, acks="all", batch_size=262_144, linger_ms=5) as producer:
            for _ in range(megabytes):
                pending = []
                for n in range(values_per_mb):
                    partition = n % self._partitions
                    value = (b"%d/%d " % (partition, self.sent) + self._padding)[: self._value_bytes]
                    self.sent += 1
                    receipt = await producer.send(self.topic, value, partition=partition)
                    pending.append((self.history.invoke("preload", partition, value), receipt))
                for send, receipt in pending:
                    send.ok((await receipt).offset)
                    self.acked += 1

    # -- the consumer

    async def _follow(self) -> None:
        """Read along, from the beginning, through every fault."""
        async with self.consumer() as consumer:
            await consumer.assign(self.places)
            while self._going:
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    self.history.poll(READER, tp.partition, [(r.offset, r.value) for r in records])

    def consumer(self) -> Consumer:
        return Consumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")

    # -- the verdict

    async def verdict(self) -> Verdict:
        """After the load ended and everything was healed: read all of it once more, from the beginning, and judge."""
        for partition, records in (await self.read_all(FINAL_READ_S)).items():
            self.history.poll(FINAL, partition, records, final=True)
        return check(self.history)

    async def read_all(self, within_s: float) -> dict[int, list[tuple[int, bytes]]]:
        """Everything from the beginning to what is the end now, by a new consumer: (offset, value) by partition."""
        found: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(self._partitions)}
        deadline = perf_counter() + within_s
        async with self.consumer() as consumer:
            await consumer.assign(self.places)
            ends = await consumer.end_offsets(self.places)
            left = {tp for tp, end in ends.items() if end > 0}
            while left:
                if perf_counter() > deadline:
                    raise NotInTime(f"not everything was read within {within_s:g} s: {_places(left)} have more")
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[tp.partition] += [(r.offset, r.value) for r in records]
                    if records[-1].offset + 1 >= ends[tp]:
                        left.discard(tp)
        return found


def _places(places: set[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(places))
