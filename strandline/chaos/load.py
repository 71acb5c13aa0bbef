"""A steady load that records its history: idempotent producers with acks=all, and a consumer that reads along.

The load sends one record per partition and interval, each with a unique value. A `History` (`strandline.testing.history`)
holds the outcome of every send and every record read; `acked_at` holds the time of each acknowledgement. The producers
have default settings, except for a delivery timeout that outlasts every scenario, so the figures are those of users.

The clock sets the pace: after a stall of this process, the records that are due follow at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter

from strandline.client import Admin, Consumer, LogTruncated, NewTopic, Producer, TopicPartition
from strandline.client.producer.receipts import Receipt
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach
from strandline.testing.history import History, Send, Verdict, check

DELIVERY_TIMEOUT_MS = 180_000
POLL_MS = 10
FINAL_READ_S = 60.0
KEPT = {"cleanup.policy": "delete"}
"""Configuration of the topic. Its records have no keys, and none may be removed: so it is not compacted, even if the brokers'
default is."""
READER, FINAL = "consumer", "final consumer"


class NotInTime(StrandlineError):
    """A condition did not hold within its time limit."""


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    """Poll `condition` until it holds; raises NotInTime after `within_s` seconds. `what` describes it in the error."""
    deadline = perf_counter() + within_s
    while True:
        held = condition()
        if await held if isinstance(held, Awaitable) else held:
            return
        if perf_counter() > deadline:
            raise NotInTime(f"timed out after {within_s:g} s: waiting until {what}")
        await asyncio.sleep(POLL_MS / 1000)


class SteadyLoad:
    """The load on one topic. Call `start`, then `progress` any number of times, then `stop`, then `verdict`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int = 3,
        interval_ms: int = 5,
        value_bytes: int = 100,
        replicas: int = 3,
        producers: int = 1,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.history = History()
        self.sent = 0
        self.acked = 0
        self.failed: list[str] = []
        """One sentence per record that was not delivered."""
        self.acked_at: dict[int, list[float]] = {p: [] for p in range(partitions)}
        """Partition -> times of its acknowledgements, ascending, on the clock of `perf_counter`."""
        self.longest_stall_s = 0.0
        """The longest delay of a send in this process: gaps are known no more exactly than this."""
        self.going = True
        self.interval_s = interval_ms / 1000
        self._padding = b"." * value_bytes
        self._value_bytes = value_bytes
        self._replicas = replicas
        self._writers = [_Writer(self, f"producer-{n + 1}") for n in range(producers)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, p) for p in self.acked_at]

    # -- life

    async def create_topic(self) -> None:
        async with Admin(**reach(self.bootstrap)) as admin:
            partitions, replicas = len(self.acked_at), self._replicas
            await admin.create_topics([NewTopic(self.topic, partitions, replicas, configs=KEPT)])

    def start(self) -> None:
        self._tasks = [asyncio.create_task(work) for work in (*(w.run() for w in self._writers), self._follow())]

    async def stop(self) -> None:
        """End the load. When this returns, every record sent has an outcome."""
        self.going = False
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def abandon(self) -> None:
        """End the load after a failure, without waiting for outcomes."""
        self.going = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def progress(self, records: int, within_s: float = 30.0) -> None:
        """Wait until `records` more records are acknowledged, an equal share by each partition."""
        share = -(-records // len(self.acked_at))
        goals = {p: len(times) + share for p, times in self.acked_at.items()}

        def reached() -> bool:
            self._raise_if_broken()
            return all(len(self.acked_at[p]) >= goal for p, goal in goals.items())

        await until(reached, f"{records} more records are acknowledged", within_s)

    def _raise_if_broken(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    # -- sending

    def next_value(self, partition: int) -> bytes:
        """A unique value: partition, number of the record, padding."""
        value = (b"%d/%d " % (partition, self.sent) + self._padding)[: self._value_bytes]
        self.sent += 1
        return value

    async def preload(self, megabytes: int) -> None:
        """Send `megabytes` MiB as fast as possible. These records are part of the history too."""
        async with Producer(**reach(self.bootstrap), acks="all", batch_size=262_144, linger_ms=5) as producer:
            for _ in range(megabytes):
                pending = []
                for n in range((1 << 20) // self._value_bytes):
                    partition = n % len(self.acked_at)
                    value = self.next_value(partition)
                    receipt = await producer.send(self.topic, value, partition=partition)
                    pending.append((self.history.invoke("preload", partition, value), receipt))
                for send, receipt in pending:
                    send.ok((await receipt).offset)
                    self.acked += 1

    # -- the consumer

    async def _follow(self) -> None:
        """Read the topic from the beginning until the load ends. If an unclean election removed records that were read, go back
        to where the logs differ, and read on under another name."""
        reader = READER
        async with self.consumer() as consumer:
            await consumer.assign(self.places)
            while self.going:
                try:
                    for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                        self.history.poll(reader, tp.partition, [(r.offset, r.value) for r in records])
                except LogTruncated as e:
                    consumer.seek((self.topic, e.partition or 0), max(0, e.diverging_offset))
                    reader += ", after a truncation"

    def consumer(self) -> Consumer:
        return Consumer(**reach(self.bootstrap), auto_offset_reset="earliest")

    # -- the verdict

    async def verdict(self) -> Verdict:
        """Read the topic once more from the beginning, and check the history. Call it when the cluster is healed."""
        for partition, records in (await self.read_all(FINAL_READ_S)).items():
            self.history.poll(FINAL, partition, records, final=True)
        # Probes with acks=1 go to deposed leaders. Kafka gives no guarantee for records that those acknowledge.
        return check(self.history, acks="all")

    async def read_all(self, within_s: float) -> dict[int, list[tuple[int, bytes]]]:
        """Read everything up to the present end with a new consumer: partition -> (offset, value) of each record.

        Raises NotInTime if that takes longer than `within_s` seconds.
        """
        found: dict[int, list[tuple[int, bytes]]] = {p: [] for p in self.acked_at}
        deadline = perf_counter() + within_s
        async with self.consumer() as consumer:
            await consumer.assign(self.places)
            ends = await consumer.end_offsets(self.places)
            left = {tp for tp, end in ends.items() if end > 0}
            while left:
                if perf_counter() > deadline:
                    raise NotInTime(f"reading timed out after {within_s:g} s: {_places(left)} have more records")
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[tp.partition] += [(r.offset, r.value) for r in records]
                    if records[-1].offset + 1 >= ends[tp]:
                        left.discard(tp)
        return found


class _Writer:
    """One producer of the load, with its unacknowledged records."""

    def __init__(self, load: SteadyLoad, name: str) -> None:
        self._load = load
        self._name = name
        self._queues: dict[int, deque[tuple[Send, Receipt]]] = {p: deque() for p in load.acked_at}
        """Partition -> its unacknowledged records, in the order of sending."""
        self._news = {p: asyncio.Event() for p in load.acked_at}

    async def run(self) -> None:
        load = self._load
        async with Producer(**reach(load.bootstrap), acks="all", delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
            settling = [asyncio.create_task(self._settle(p)) for p in self._queues]
            try:
                await self._send_all(producer)
                await producer.flush()
                for news in self._news.values():
                    news.set()
                await asyncio.gather(*settling)
            finally:
                for task in settling:
                    task.cancel()

    async def _send_all(self, producer: Producer) -> None:
        load = self._load
        due = last = perf_counter()
        while load.going:
            for partition, queue in self._queues.items():
                value = load.next_value(partition)
                receipt = await producer.send(load.topic, value, partition=partition)
                queue.append((load.history.invoke(self._name, partition, value), receipt))
                self._news[partition].set()
            now = perf_counter()
            load.longest_stall_s = max(load.longest_stall_s, now - last - load.interval_s)
            last = now
            due += load.interval_s
            await asyncio.sleep(max(0.0, due - now))

    async def _settle(self, partition: int) -> None:
        """Note the outcome of each record; those of one partition arrive in the order of sending."""
        load, queue, news = self._load, self._queues[partition], self._news[partition]
        while load.going or queue:
            if not queue:
                news.clear()
                await news.wait()
                continue
            send, receipt = queue[0]
            try:
                metadata = await receipt
            except StrandlineError as e:
                send.info()
                load.failed.append(str(e))
            else:
                send.ok(metadata.offset)
                load.acked_at[partition].append(perf_counter())
                load.acked += 1
            queue.popleft()


def _places(places: set[TopicPartition]) -> str:
    return ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(places))
