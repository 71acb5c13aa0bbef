"""Members of one group by different clients, and a judge of what they own.

A member tells the judge when it gets and gives up partitions. It commits what it has read before it reads on or, if the commit
fails, with the next one. The judge finds partitions with two owners, and acknowledged commits below earlier ones."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from strandline.client import Consumer, TopicPartition

TOPIC = "orders"


class Judge:
    """Collects owners and commits, and what is wrong with them. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owners: dict[int, str] = {}
        self.committed: dict[int, int] = {}
        self.wrong: list[str] = []

    def got(self, member: str, partitions: Iterable[int]) -> None:
        with self._lock:
            for partition in partitions:
                owner = self.owners.setdefault(partition, member)
                if owner != member:
                    self.wrong.append(f"{owner} and {member} own partition {partition}")

    def gave(self, member: str, partitions: Iterable[int]) -> None:
        with self._lock:
            for partition in partitions:
                if self.owners.get(partition) == member:
                    del self.owners[partition]

    def commits(self, member: str, offsets: dict[int, int]) -> None:
        """Note an acknowledged commit. The next owner of a partition may have committed before this is called."""
        with self._lock:
            for partition, offset in offsets.items():
                known = self.committed.get(partition, 0)
                if offset < known and self.owners.get(partition) == member:
                    self.wrong.append(f"{member} commits {offset} of partition {partition} after {known}")
                self.committed[partition] = max(offset, known)

    def shares(self) -> dict[str, int]:
        """The number of partitions that each member owns."""
        with self._lock:
            return {member: list(self.owners.values()).count(member) for member in sorted(set(self.owners.values()))}


class Member(ABC):
    """`name` is for the judge. `uncommitted`: partition -> the position up to which the member has read it, without a commit."""

    def __init__(self, name: str, judge: Judge) -> None:
        self.name = name
        self.judge = judge
        self.uncommitted: dict[int, int] = {}

    @abstractmethod
    async def run(self, stop: asyncio.Event) -> None:
        """Read and commit until `stop`, and then leave."""

    def got(self, parts: Iterable[Any]) -> None:
        self.judge.got(self.name, [part.partition for part in parts])

    def gave(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.uncommitted.pop(part.partition, None)
        self.judge.gave(self.name, [part.partition for part in parts])

    def committed(self, offsets: dict[int, int]) -> None:
        """Note that the commit is acknowledged. The member may have given up partitions meanwhile."""
        self.judge.commits(self.name, offsets)
        self.uncommitted = {}


class StrandlineMember(Member):
    """Our own client, with the newer protocol of groups, at a listener of Strandline's protocol."""

    def __init__(self, judge: Judge, servers: str, group: str) -> None:
        super().__init__("strandline", judge)
        self._options: Any = {"bootstrap_servers": servers, "group_id": group, "auto_offset_reset": "earliest"}

    async def run(self, stop: asyncio.Event) -> None:
        async with Consumer(enable_auto_commit=False, **self._options) as consumer:
            consumer.subscribe([TOPIC], on_assigned=self.got, on_revoked=self.gave)
            while not stop.is_set():
                read = await consumer.getmany(timeout_ms=100)
                self.uncommitted |= {p.partition: records[-1].offset + 1 for p, records in read.items() if records}
                if self.uncommitted:
                    asked = dict(self.uncommitted)
                    await consumer.commit({TopicPartition(TOPIC, n): end for n, end in asked.items()})
                    self.committed(asked)


class AiokafkaMember(Member):
    """aiokafka: the classic protocol, written in Python."""

    def __init__(self, judge: Judge, servers: str, group: str) -> None:
        super().__init__("aiokafka", judge)
        self._options = {"bootstrap_servers": servers, "group_id": group, "auto_offset_reset": "earliest"}

    async def run(self, stop: asyncio.Event) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka import TopicPartition as Part
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.errors import KafkaError

        fast = {"heartbeat_interval_ms": 200, "retry_backoff_ms": 50}
        range_alone = {"partition_assignment_strategy": [RangePartitionAssignor]}
        consumer = AIOKafkaConsumer(enable_auto_commit=False, **fast, **range_alone, **self._options)
        consumer.subscribe([TOPIC], listener=_listener(self))
        await consumer.start()
        while not stop.is_set():
            read = await consumer.getmany(timeout_ms=100)
            self.uncommitted |= {p.partition: records[-1].offset + 1 for p, records in read.items() if records}
            if self.uncommitted:
                asked = dict(self.uncommitted)
                with suppress(KafkaError):
                    await consumer.commit({Part(TOPIC, n): end for n, end in asked.items()})
                    self.committed(asked)
        await consumer.stop()


def _listener(member: Member) -> Any:
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            member.got(assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            member.gave(revoked)

    return Listener()


class LibrdkafkaMember(Member):
    """confluent-kafka, in a thread. `protocol`: classic or consumer."""

    def __init__(self, judge: Judge, servers: str, group: str, protocol: str) -> None:
        super().__init__(f"librdkafka-{protocol}", judge)
        self._options = {"bootstrap.servers": servers, "group.id": group, "group.protocol": protocol, "log_level": 0}
        self._options |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        if protocol == "classic":
            self._options |= {"heartbeat.interval.ms": 200, "partition.assignment.strategy": "range"}

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.to_thread(self._run, stop)

    def _run(self, stop: asyncio.Event) -> None:
        from confluent_kafka import Consumer as Librdkafka
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Part

        consumer = Librdkafka(self._options)
        consumer.subscribe([TOPIC], on_assign=lambda _, parts: self.got(parts), on_revoke=lambda _, parts: self.gave(parts))
        while not stop.is_set():
            records = [record for record in consumer.consume(100, 0.1) if not record.error()]
            self.uncommitted |= {record.partition(): record.offset() + 1 for record in records}
            if self.uncommitted:
                asked = dict(self.uncommitted)
                with suppress(KafkaException):
                    done = consumer.commit(offsets=[Part(TOPIC, *item) for item in asked.items()], asynchronous=False)
                    if not any(part.error for part in done):
                        self.committed(asked)
        consumer.close()
