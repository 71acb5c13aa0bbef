"""Begins the programs and readers of a run's transactions, pauses processes, and reports at the end which transactions are open
and which records unread (I44)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from strandline.client import TopicPartition
from strandline.testing.history.transactions import (
    TransactionHistory,
    TransactionVerdict,
    check_exactly_once,
    check_transactions,
)
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.cluster.transactions.reader import CommittedReader
from strandline.testing.simulation.cluster.transactions.shipper import GROUP, Shipper
from strandline.testing.simulation.cluster.transactions.writer import Writer
from strandline.testing.simulation.group_plans import CRASH, PAUSE
from strandline.testing.simulation.kernel.scheduler import cancel
from strandline.testing.simulation.options import Options
from strandline.testing.simulation.transaction_plans import SHIPPED, VANISH, WriterPlan

Begin = Callable[[str, Callable[[Client, str], Any], float], None]
Started = Callable[..., Any]
"""Starts a client, again and again until a broker answers, and returns it; None if the run is over before. See `Workload`."""
READER = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "request_timeout_ms": 1000, "max_block_ms": 1000}
FINAL_POLL_MS = 500


class TransactionWork:
    """The transactions of one run."""

    def __init__(
        self,
        cluster: SimCluster,
        options: Options,
        problems: list[str],
        *,
        produces: Callable[[], bool],
        going: Callable[[], bool],
        started: Started,
        committed: Callable[[str, tuple[bytes, int]], int],
    ) -> None:
        """`committed`: the committed offset of a group in a partition."""
        self.cluster = cluster
        self.options = options
        self.problems = problems
        self.history = TransactionHistory(cluster.world.scheduler.clock)
        self.readers: dict[str, CommittedReader] = {}
        self.shipped: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """The committed output of the shippers, at the end."""
        self._committed = committed
        self._positions: dict[tuple[str, int], int] = {}
        """(topic, partition) -> the offset that the group of the shippers has committed, at the end."""
        self._produces = produces
        self._going = going
        self._started = started
        self._pauses: list[Any] = []

    @property
    def places(self) -> list[tuple[str, int]]:
        """The partitions to which the writers write."""
        return [place for topic in self.options.written_topics for place in topic.places]

    def begin(self, begin: Begin) -> None:
        for topic in self.options.transactional_topics:
            for place in topic.places if topic.is_compacted else ():
                self.history.compacted(place)
        for number, plan in enumerate(self.options.writers, 1):
            dies_at_s = plan.event_at_s if plan.event in (CRASH, VANISH) else 0.0
            begin(f"p-writer{number}", partial(self._write, plan=plan), dies_at_s)
        for number, plan in enumerate(self.options.shippers, 1):
            dies_at_s = plan.event_at_s if plan.event in (CRASH, VANISH) else 0.0
            begin(f"shipper{number}", partial(self._ship, plan=plan), dies_at_s)
        for number in range(1, self.options.committed_readers + 1):
            begin(f"t{number}", self._read, 0.0)

    async def _write(self, client: Client, name: str, plan: WriterPlan) -> None:
        world, is_first = self.cluster.world, not name.endswith("'")
        if not self._begins(client, name, plan):
            return
        gave_up = partial(self._gave_up, client)

        def on_fenced(text: str) -> None:
            if sum(other.transactional_id == plan.transactional_id for other in self.options.writers) == 1 and is_first:
                self.problems.append(f"{text}, but it is the only one that has this id")

        draw, topics = world.stream(f"writer/{name}"), self.options.written_topics
        writer = Writer(name, plan, topics, self.history, draw, going=self._produces, gave_up=gave_up, on_fenced=on_fenced)
        options = {**plan.options, "transactional_id": plan.transactional_id}
        await writer.work(lambda: self._started(lambda: client.producer(**options), self._produces))

    def _begins(self, client: Client, name: str, plan: WriterPlan) -> bool:
        """Plan the pause of a process, if it has one. False: the process replaces one that vanishes, so it must do nothing."""
        is_first = not name.endswith("'")
        if is_first and plan.event == PAUSE:
            after, machine = self.cluster.world.scheduler.after, client.machine
            self._pauses.append(after(plan.event_at_s, machine.pause))
            self._pauses.append(after(plan.event_at_s + plan.event_for_s, machine.resume))
        return is_first or plan.event != VANISH

    def _gave_up(self, client: Client, what: str, error: Exception) -> None:
        self.cluster.world.trace.emit("client.gave_up", client.machine.id, what=what, reason=str(error))

    async def _ship(self, client: Client, name: str, plan: WriterPlan) -> None:
        if not self._begins(client, name, plan):
            return
        draw = self.cluster.world.stream(f"shipper/{name}")
        shipper = Shipper(plan, draw, going=self._going, gave_up=partial(self._gave_up, client))
        producer = {**plan.options, "transactional_id": plan.transactional_id}
        consumer = {**READER, "group_id": GROUP, "enable_auto_commit": False}
        await shipper.work(
            lambda: self._started(lambda: client.producer(**producer)), lambda: self._started(lambda: client.consumer(**consumer))
        )

    async def _read(self, client: Client, name: str) -> None:
        consumer = await self._started(lambda: client.consumer(**READER))
        if consumer is None:
            return
        reader = self.readers[name] = CommittedReader(name, self.places, self.history, self.problems)
        try:
            await reader.read(consumer, self._going)
        finally:
            await consumer.stop()

    def end_disturbances(self) -> None:
        """Pause no more processes."""
        for entry in self._pauses:
            cancel(entry)

    # -- at the end of a run ------------------------------------------------------------------------------------------

    @property
    def longest_s(self) -> float:
        """The longest time, in seconds, that a transaction may stay open after the death of the process that began it."""
        timeouts = [plan.options["transaction_timeout_ms"] for plan in (*self.options.writers, *self.options.shippers)]
        sweep_ms = self.options.settings.get("transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000)
        return (max(timeouts, default=0) + int(sweep_ms)) / 1000

    def open(self) -> list[str]:
        """I44: partitions in which a transaction is open, or whose marker is not committed."""
        complaints = []
        for (topic, index), log in self._logs():
            if log is None:
                complaints.append(f"{topic}-{index} has no leader")
            elif log.last_stable_offset < log.high_watermark:
                complaints.append(f"{topic}-{index} is stable up to {log.last_stable_offset} of {log.high_watermark}")
        return complaints

    def unread(self) -> list[str]:
        """Readers that have not read to the end."""
        ends = {place: log.last_stable_offset for place, log in self._logs() if log is not None and place[0] != SHIPPED}
        return [
            f"{name} has read {topic}-{index} up to {reader.positions.get((topic, index), -1)} of {end}"
            for name, reader in self.readers.items()
            for (topic, index), end in ends.items()
            if reader.positions.get((topic, index), -1) < end
        ]

    def _logs(self) -> Iterator[tuple[tuple[str, int], Any]]:
        """The log of each partition's leader; None if there is no leader now."""
        image = self.cluster.image()
        places = [place for plan in self.options.transactional_topics for place in plan.places]
        for topic, index in places:
            key = (bytes(image.topics_by_name[topic]), index)
            leader = self.cluster.brokers.get(image.partition(key).leader)
            found = leader.replicas.partitions.get(key) if leader is not None and leader.has_logs else None
            yield (topic, index), None if found is None else found.log

    async def read_all(self, client: Client) -> None:
        """Read the committed log of each partition to its end."""
        if not self.places:
            return
        places = [TopicPartition(*place) for topic in self.options.transactional_topics for place in topic.places]
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {place: [] for place in places}
        async with client.consumer(**READER, fetch_max_wait_ms=20) as consumer:
            await consumer.assign(list(found))
            ends = await consumer.end_offsets(list(found))
            while any([await consumer.position(place) < ends[place] for place in found]):
                for place, records in (await consumer.getmany(timeout_ms=FINAL_POLL_MS)).items():
                    found[place] += [(record.offset, bytes(record.value)) for record in records]
        for place, pairs in found.items():
            if place.topic == SHIPPED:
                self.shipped[place.topic, place.partition] = pairs
            else:
                self.history.final(tuple(place), pairs, position=ends[place])
        topics = self.cluster.image().topics_by_name
        self._positions = {place: self._committed(GROUP, (bytes(topics[place[0]]), place[1])) for place in self.places}

    def check(self) -> list[TransactionVerdict]:
        """Judge the history, and whether each record that the shippers' group has passed was shipped exactly once."""
        verdicts = [check_transactions(self.history)]
        if self.options.shippers:
            inputs = {read.partition: read.records for read in self.history.reads if read.final}
            verdicts.append(check_exactly_once(inputs, self.shipped, positions=self._positions))
        return verdicts
