"""`Consumer.run` in a simulated cluster: members on machines of their own handle records while brokers fail, and members are
stopped, killed and paused. On virtual time, without threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from thorough import examples

from strandline.client import Backoff, Consumer, ConsumerRecord, NewTopic, TopicPartition
from strandline.client.consumer.run import headers
from strandline.client.errors import StrandlineError
from strandline.testing import simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster
from strandline.testing.simulation.cluster.cluster import Client

PARTITIONS = 4
TOPIC, RETRY, DEAD = "orders", "orders.retry", "orders.dead"
GROUP_SETTINGS = {"group_consumer_session_timeout_ms": 6_000, "group_consumer_heartbeat_interval_ms": 1_000}


class Watch:
    """Observes the handlers of all members: the records that they are handling, and those that they have handled."""

    def __init__(self, seed: int, *, one_member_at_a_time: bool = True) -> None:
        self.random = Random(f"run/{seed}")
        self.one_member_at_a_time = one_member_at_a_time
        """Whether no two members may handle records of one partition at the same time."""
        self.at_work: dict[int, Counter[int]] = {}
        """The number of records of each partition that a member's handler is working on, by member."""
        self.handled: Counter[bytes] = Counter()
        """How often each record was handled without an error."""
        self.first_done: dict[bytes, list[int]] = {}
        """The numbers of each key's records, in the order in which they were finished for the first time."""
        self.attempts: Counter[bytes] = Counter()

    @contextmanager
    def handling(self, member: int, partition: int) -> Iterator[None]:
        others = [other for other, partitions in self.at_work.items() if other != member and partitions[partition]]
        assert not (others and self.one_member_at_a_time), (
            f"members {member} and {others} handle partition {partition} at the same time"
        )
        self.at_work.setdefault(member, Counter())[partition] += 1
        try:
            yield
        finally:
            if member in self.at_work:  # It was neither killed nor paused.
                self.at_work[member][partition] -= 1

    def done(self, record: ConsumerRecord) -> None:
        if record.value not in self.handled:
            self.first_done.setdefault(record.key, []).append(int(record.value))
        self.handled[record.value] += 1


class Member:
    """A program in a process of its own. It starts again after an error, until it is stopped or killed."""

    def __init__(self, cluster: SimulatedCluster, watch: Watch, number: int, **run: Any) -> None:
        self.number = number
        self.watch = watch
        self.client: Client = cluster.simulated.client(f"member-{number}")
        self.run = run
        self.is_stopped = False
        self.consumer: Consumer | None = None
        self.errors: list[StrandlineError] = []
        self.task = self.client.spawn(self._live())

    async def _live(self) -> None:
        while not self.is_stopped:
            consumer = self.client.consumer(
                TOPIC, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=500, rebalance_timeout_ms=8_000
            )
            try:
                async with consumer:
                    self.consumer = consumer
                    if not self.is_stopped:
                        await consumer.run(self._handle, **self.run)
            except StrandlineError as e:
                self.errors.append(e)
                await asyncio.sleep(0.2)

    async def _handle(self, record: ConsumerRecord) -> None:
        watch, draw = self.watch, self.watch.random.random
        with watch.handling(self.number, record.partition):
            watch.attempts[record.value] += 1
            await asyncio.sleep(0.3 * draw() if draw() < 0.9 else 2 * draw())
            if record.key == b"poison":
                raise ValueError("poison")
            if draw() < 0.1:
                raise KeyError("bad luck")
            watch.done(record)

    def stop(self) -> None:
        """Stop in order, as after SIGTERM."""
        self.is_stopped = True
        if self.consumer is not None:
            self.client.machine.call(self.consumer.end_run)

    def kill(self) -> None:
        """Stop as after SIGKILL: no further line of it runs."""
        self.watch.at_work.pop(self.number, None)
        self.client.machine.crash()

    def pause(self) -> None:
        """Stop as after SIGSTOP. A handler in the middle of its work stops, too, and cannot be called back."""
        self.watch.at_work.pop(self.number, None)
        self.client.machine.pause()

    def resume(self) -> None:
        self.client.machine.resume()


async def produce(cluster: SimulatedCluster, first: int, count: int, poison: int = 0) -> None:
    async with cluster.producer() as producer:
        for number in range(first, first + count):
            key = b"poison" if number < first + poison else b"key %d" % (number % 7)
            await producer.send(TOPIC, b"%d" % number, key=key, partition=number % PARTITIONS)
        await producer.flush()


async def create_topics(cluster: SimulatedCluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3), NewTopic(RETRY, 2, 3), NewTopic(DEAD, 1, 3)])


async def until(cluster: SimulatedCluster, condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.5)


async def come_and_go(cluster: SimulatedCluster, watch: Watch, members: dict[int, Member], **run: Any) -> None:
    """Every few seconds a member ends in one of three ways, and another one starts."""
    for number in range(3, 9):
        await asyncio.sleep(1 + 3 * watch.random.random())
        member = members.pop(min(members))
        fate = watch.random.choice(["stop", "kill", "pause"])
        if fate == "pause":
            member.pause()
            await asyncio.sleep(8 * watch.random.random())
            member.resume()
            members[number + 100] = member
        elif fate == "stop":
            member.stop()
        else:
            member.kill()
        members[number] = Member(cluster, watch, number, **run)


async def stop_all(cluster: SimulatedCluster, members: dict[int, Member]) -> None:
    for member in members.values():
        member.stop()
    for member in members.values():
        await cluster.simulated.world.join(member.task)


async def committed(cluster: SimulatedCluster) -> list[int | None]:
    async with cluster.consumer(group_id="g") as consumer:
        return [await consumer.committed(TopicPartition(TOPIC, index)) for index in range(PARTITIONS)]


async def check_clean_end(cluster: SimulatedCluster, watch: Watch, members: dict[int, Member], count: int) -> None:
    """All members stop in order: everything is committed, and another member finds nothing left to handle."""
    await stop_all(cluster, members)
    assert await committed(cluster) == [count // PARTITIONS] * PARTITIONS
    before = Counter(watch.attempts)
    last = Member(cluster, watch, 99)
    await asyncio.sleep(10)
    await stop_all(cluster, {99: last})
    assert watch.attempts == before, "a record was handled that was committed"


def check_order(watch: Watch) -> None:
    for numbers in watch.first_done.values():
        for partition in range(PARTITIONS):
            ours = [number for number in numbers if number % PARTITIONS == partition]
            assert ours == sorted(ours)


async def play(cluster: SimulatedCluster, *, moves: bool, **run: Any) -> Watch:
    """Handle 240 records while members and brokers stop and start; returns the observations."""
    await create_topics(cluster)
    watch = Watch(cluster.seed)
    members = {number: Member(cluster, watch, number, **run) for number in range(3)}
    going = asyncio.ensure_future(come_and_go(cluster, watch, members, **run)) if moves else None
    for first in range(0, 240, 24):
        await produce(cluster, first, 24)
        await asyncio.sleep(1)
    if going is not None:
        await going
    await until(cluster, lambda: len(watch.handled) == 240)
    await cluster.heal()
    await check_clean_end(cluster, watch, members, 240)
    return watch


IN_PLACE = {"retry": Backoff(first_ms=50, max_ms=1_000, attempts=None)}


@simulated(seeds=examples(12), limit_s=400, **GROUP_SETTINGS)
async def test_partitions_are_handled_in_order_by_one_member_at_a_time(cluster: SimulatedCluster) -> None:
    threads = threading.active_count()
    watch = await play(cluster, moves=True, **IN_PLACE)
    check_order(watch)
    assert threading.active_count() == threads


@simulated(seeds=examples(12), limit_s=400, **GROUP_SETTINGS)
async def test_keys_are_handled_in_order_by_one_member_at_a_time(cluster: SimulatedCluster) -> None:
    watch = await play(cluster, moves=True, concurrency="key", max_tasks=8, **IN_PLACE)
    check_order(watch)


@simulated(seeds=examples(8), limit_s=400, **GROUP_SETTINGS)
async def test_every_record_is_handled_with_a_retry_topic(cluster: SimulatedCluster) -> None:
    """A record in the retry topic counts as finished in its origin. It then belongs to another partition, and may be handled by
    another member."""
    retry = Backoff(first_ms=50, max_ms=1_000, attempts=None)
    await create_topics(cluster)
    watch = Watch(cluster.seed, one_member_at_a_time=False)
    run = {"retry": retry, "retry_topic": RETRY, "concurrency": 4}
    members = {number: Member(cluster, watch, number, **run) for number in range(2)}
    going = asyncio.ensure_future(come_and_go(cluster, watch, members, **run))
    for first in range(0, 120, 24):
        await produce(cluster, first, 24)
        await asyncio.sleep(1)
    await going
    await until(cluster, lambda: len(watch.handled) == 120)
    await stop_all(cluster, members)


@simulated(seeds=examples(8), faults=None, limit_s=400)
async def test_calm_run_handles_once_and_puts_poison_aside_once(cluster: SimulatedCluster) -> None:
    """Members that join and leave in order cause no repetition. Each poison record is in the dead-letter topic once."""
    await create_topics(cluster)
    watch = Watch(cluster.seed)
    run = {"retry": Backoff(first_ms=50, max_ms=100, attempts=None), "no_retry": ValueError, "dlq": DEAD}
    members = {number: Member(cluster, watch, number, **run) for number in range(2)}
    await produce(cluster, 0, 80, poison=8)
    await asyncio.sleep(2)
    members[2] = Member(cluster, watch, 2, **run)
    await asyncio.sleep(2)
    members.pop(0).stop()
    await until(cluster, lambda: len(watch.handled) == 72)
    letters: list[ConsumerRecord] = []
    while len(letters) < 8:
        await asyncio.sleep(0.5)
        letters = await cluster.read_all(DEAD)
    await check_clean_end(cluster, watch, members, 80)
    assert set(watch.handled.values()) == {1}
    letters = await cluster.read_all(DEAD)
    assert sorted(int(letter.value) for letter in letters) == list(range(8))
    origins = [(dict(letter.headers)[headers.PARTITION], dict(letter.headers)[headers.OFFSET]) for letter in letters]
    assert len(set(origins)) == 8
    assert all(watch.attempts[letter.value] == 1 for letter in letters)
