"""Consumers that read from the nearest replica (KIP-392): S72 to S75."""

from __future__ import annotations

from typing import Any

from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.scenarios.stage import Stage, scenario

RACKS = ("a", "b", "c")
SETTINGS = {"replica.selector.class": "rack-aware", "replica.fetch.wait.max.ms": 500}
NEAR_S = 0.001
"""The largest delay of a network in which `LATE_MS_MAX` is promised: a record takes several messages, one after the other."""
LATE_MS_MAX = 5


class _Reader:
    """A production consumer in rack b, where broker 2 is. It reads from the beginning, and stops at the first error."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.stage = stage
        self.offsets: list[int] = []
        self.read_at: dict[int, float] = {}
        """Offset -> the virtual time at which the program got the record."""
        self.values: dict[int, bytes] = {}
        self._consumer: Any = None
        self._is_over = False
        self._client = stage.cluster.client("reader")
        self._options = {"client_rack": "b", "auto_offset_reset": "error", **options}
        self._task = self._client.spawn(self._read())

    async def _read(self) -> None:
        async with self._client.consumer(**self._options) as consumer:
            await consumer.assign([("orders", 0)])
            consumer.seek(("orders", 0), 0)
            self._consumer = consumer
            while not self._is_over:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    for record in records:
                        self.offsets.append(record.offset)
                        self.values[record.offset] = bytes(record.value or b"")
                        self.read_at[record.offset] = self.stage.world.now

    @property
    def replica(self) -> int:
        """The follower that it reads from; -1: the leader."""
        if self._consumer is None:
            return -1
        partitions = self._consumer.metrics()["partitions"]
        found: int = partitions["orders-0"]["preferred_read_replica"] if partitions else -1
        return found

    async def has_read(self, end: int) -> None:
        await self.stage.until(
            lambda: len(self.offsets) >= end or self._task.done(), what=f"the consumer has read up to offset {end}"
        )
        self.stage.must(not self._task.done(), "the consumer has met no error")
        self.stage.must(self.offsets == list(range(end)), f"it has read each record once, in order: {self.offsets[-5:]}")

    async def end(self) -> None:
        self._is_over = True
        await self.stage.world.join(self._task)


async def _open(stage: Stage, *, replicas: tuple[int, ...] = (1, 2, 3)) -> _Reader:
    """Five committed records, and a consumer that reads them from broker 2."""
    await stage.open(replicas=list(replicas), racks=RACKS, settings=SETTINGS)
    await stage.append(5)
    reader = _Reader(stage)
    await reader.has_read(5)
    await stage.until(lambda: reader.replica == 2, what="the consumer reads from broker 2")
    return reader


@scenario("S72", "A consumer is ahead of its follower", source="KIP-392; redpanda-data/redpanda#31580")
async def s72(stage: Stage) -> None:
    """A follower may lack records that its consumer has read from the leader. It answers that the position is out of its range.
    The consumer must neither reset its position nor ask the follower again and again: it asks the leader."""
    reader = await _open(stage)
    stage.says("Broker 2 is cut off from the others, but not from the consumer, and leaves the ISR.")
    stage.cut(2, [1, 3, 101])
    await stage.append(5)
    stage.must(stage.isr() == {1, 3}, "five more records are committed without broker 2")
    stage.says("Broker 2 does not have them. A consumer at its high watermark waits there; above its log end it is refused.")
    answer, read = await stage.fetch(2, 5)
    stage.must(not answer.error_code and not read, "at 5 there is nothing yet, and no error")
    answer, _ = await stage.fetch(2, 9)
    stage.must(answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "9 is above its log end")
    stage.says("The consumer gets no response from broker 2, refreshes its metadata, and reads from the leader.")
    await reader.has_read(10)
    stage.must(reader.replica == -1, "it reads from the leader")
    stage.says("Broker 2 returns. With the next record the leader sends the consumer there again.")
    stage.mend(2, [1, 3, 101])
    await stage.until(lambda: 2 in stage.isr(), what="broker 2 is in the ISR")
    await stage.append(1)
    await reader.has_read(11)
    await reader.end()
    await stage.at_rest()


@scenario("S73", "The replica that a consumer reads from dies", source="KIP-392, KAFKA-9731")
async def s73(stage: Stage) -> None:
    """When the follower dies, the consumer continues at the leader, which must not send it back while that replica is outside the
    ISR."""
    reader = await _open(stage)
    stage.says("Broker 2 dies while the consumer waits there.")
    stage.crash(2)
    await stage.append(5)
    await reader.has_read(10)
    await stage.until(lambda: 2 not in stage.isr(), what="broker 2 has left the ISR")
    for end in range(11, 16):
        await stage.append(1)
        await reader.has_read(end)
        await stage.sleep(0.3)
    stage.must(reader.replica == -1, "the consumer reads from the leader")
    stage.start(2)
    await stage.until(lambda: 2 in stage.isr(), what="broker 2 is in the ISR")
    await stage.append(1)
    await reader.has_read(16)
    await reader.end()
    await stage.at_rest()


@scenario("S74", "The replica that a consumer reads from is truncated", source="KIP-392, KIP-320")
async def s74(stage: Stage) -> None:
    """A follower may have a record that is never committed. Its consumers must see it neither before the truncation nor after it,
    and must get the record that takes its place."""
    reader = await _open(stage, replicas=(1, 3, 2))
    stage.says("Broker 1 writes one more record, which broker 2 copies and broker 3 does not. Then broker 1 dies.")
    fetches = stage.hold("Fetch", source=1, target=3, response=True)
    write = stage.start_produce(1, b"lost", acks=1)
    await write
    await stage.until(lambda: stage.end(2) == 6, what="broker 2 has the record")
    stage.must(stage.hw(2) == 5 and reader.offsets == list(range(5)), "it is not committed, and the consumer has not read it")
    stage.crash(1)
    fetches.release()
    await stage.until(lambda: stage.leader() == 3 and stage.leads(3), what="broker 3 leads")
    stage.says("Broker 2 follows, and truncates it. Another record takes its place.")
    await stage.append(1)
    await reader.has_read(6)
    stage.must(reader.values[5] != b"lost", "the consumer has read the record that was committed")
    await reader.end()
    stage.start(1)
    await stage.at_rest()


@scenario("S75", "The last record of a quiet topic, read from a follower", source="KAFKA-9731, KAFKA-9952")
async def s75(stage: Stage) -> None:
    """A follower receives a new high watermark with the response to its next fetch, which waits at the leader while there are no
    new records. A follower with readers is answered immediately; other followers are not, because each response costs another
    fetch."""
    reader = await _open(stage)
    before = {node: stage.cluster.brokers[node].fetchers.fetches for node in (2, 3)}
    late_ms = []
    for number in range(10):
        await stage.append(1)
        acked_at = stage.world.now
        await reader.has_read(6 + number)
        late_ms.append(1000 * (reader.read_at[5 + number] - acked_at))
        await stage.sleep(0.05)
    sent = {node: stage.cluster.brokers[node].fetchers.fetches - before[node] for node in (2, 3)}
    if stage.world.network.delay_s + stage.world.network.jitter_s <= NEAR_S:
        stage.must(max(late_ms) <= LATE_MS_MAX, f"each record is read soon after it was acknowledged: {max(late_ms):.1f} ms")
        stage.must(sent[3] < sent[2], f"a follower without readers fetches less often: {sent}")
    await reader.end()
    await stage.at_rest()
