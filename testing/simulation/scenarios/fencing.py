"""Fencing tokens: S112 to S114."""

from __future__ import annotations

import asyncio
from functools import partial

from strandline.client import Producer, TokenFenced, TopicPartition
from strandline.client.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.scenarios.stage import Stage, scenario

OLD, NEW = 1, 2


class Writer:
    """A process that writes records with one token, one after the other, as long as it is allowed to. It can be paused."""

    def __init__(self, stage: Stage, name: str, token: int) -> None:
        self.token = token
        self.acked: dict[int, bytes] = {}
        """The acknowledged records by offset."""
        self.rejected: list[bytes] = []
        self.fenced_by = -1
        """The highest token of the partition, once a record was rejected for it."""
        self.client: Client = stage.cluster.client(name)
        self._stage = stage
        self._writes = True
        self._task = self.client.spawn(self._write(name.encode()), name)

    async def _write(self, name: bytes) -> None:
        sent = 0
        async with self.client.producer(fencing_token=self.token, request_timeout_ms=2000) as producer:
            while self._writes:
                value = name + b"-%d" % sent
                sent += 1
                await self._send(producer, value)
                await asyncio.sleep(0.01)

    async def _send(self, producer: Producer, value: bytes) -> None:
        try:
            where = await producer.send_and_wait(self._stage.topic, value, partition=0)
        except TokenFenced as e:
            self.rejected.append(value)
            self.fenced_by = max(self.fenced_by, e.highest_token)
        else:
            self.acked[where.offset] = value

    async def has_written(self, count: int) -> None:
        await self._stage.until(lambda: len(self.acked) >= count or self._task.done(), what=f"{count} records are written")

    async def is_fenced(self) -> None:
        await self._stage.until(lambda: self.rejected or self._task.done(), what="the writer is fenced")

    async def end(self) -> None:
        self._writes = False
        await self._stage.world.join(self._task)


def compare(stage: Stage, old: Writer, new: Writer) -> None:
    """Compare the leader's log with the answers that the two writers got."""
    stage.says("The log is compared with the responses to the writers.")
    held = stage.values(stage.leader())
    first = min(new.acked)
    stage.must(all(held.get(at) == value for writer in (old, new) for at, value in writer.acked.items()), "all is there")
    stage.must(not {*old.rejected, *new.rejected} & set(held.values()), "no rejected record is in the log")
    stage.must(max(old.acked) < first, f"the old writer has no record after offset {first}, where the new one began")
    stage.must((old.fenced_by, new.fenced_by) == (NEW, -1), "the old writer got the new token")


@scenario(
    "S112", "A paused writer continues after its successor has written", source="M. Kleppmann: How to do distributed locking"
)
async def s112(stage: Stage) -> None:
    """A holder of a lock is paused for too long, and its successor writes. Then the records in the old holder's sockets arrive at
    the leader, and later the old holder writes to the next leader. None of these records may be appended."""
    await stage.open(replicas=[1, 2, 3])
    old = Writer(stage, "old", OLD)
    await old.has_written(5)
    stage.says("The requests of the old writer are held up, and it is paused.")
    held = stage.hold("Produce", limit=3)
    await stage.sleep(0.2)
    old.client.machine.pause()
    await stage.sleep(0.2)
    new = Writer(stage, "new", NEW)
    held.release()
    await new.has_written(5)
    stage.says("The old writer continues, and is rejected.")
    old.client.machine.resume()
    await old.is_fenced()
    for broker in (1, 2):
        stage.says(f"Broker {broker} dies. The next leader rejects the old writer, too.")
        rejected, written = len(old.rejected), len(new.acked)
        stage.crash(broker)
        await stage.until(lambda dead=broker: stage.leader() not in (-1, dead), what="another broker leads")  # type: ignore[misc]
        await new.has_written(written + 5)
        await stage.until(lambda before=rejected: len(old.rejected) > before + 3, what="the old writer is rejected")  # type: ignore[misc]
        stage.start(broker)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in the ISR")
    await old.end()
    await new.end()
    compare(stage, old, new)
    await stage.at_rest()


@scenario("S113", "The leader dies while a writer raises the fencing token", source="fail-over during a take-over")
async def s113(stage: Stage) -> None:
    """The fence may be on no follower, on one, or on all, and so may the record after it. Both writers continue meanwhile. After
    the first record of the new writer, no record of the old one is appended."""
    await stage.open(replicas=[1, 2, 3], segment_bytes="1024")
    old = Writer(stage, "old", OLD)
    await old.has_written(3)
    stage.says("The followers' fetches are held up, so the fence is only on the leader. It dies, and another broker leads.")
    held = stage.hold("Fetch", response=True, source=1)
    new = Writer(stage, "new", NEW)
    await stage.sleep(0.3)
    stage.crash(1)
    held.release()
    await new.has_written(5)
    await old.is_fenced()
    stage.says("Broker 1 returns, and truncates the records that the others do not have.")
    stage.start(1)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in the ISR")
    await old.end()
    await new.end()
    compare(stage, old, new)
    await stage.at_rest()


@scenario("S114", "A follower begins after the deleted fence, and leads", source="KAFKA-7190, for fencing tokens")
async def s114(stage: Stage) -> None:
    """All records before the newest one are deleted, and with them the fence. A follower with an empty disk begins there. It gets
    the token from its leader, keeps it through a kill and a power cut, and leads."""
    await stage.open(replicas=[1, 2, 3], segment_bytes="1024")
    old = Writer(stage, "old", OLD)
    await old.has_written(3)
    new = Writer(stage, "new", NEW)
    await new.has_written(5)
    await new.end()
    await old.is_fenced()
    end = max(new.acked)
    stage.says(f"Everything below offset {end} is deleted.")
    await stage.client.run(delete(stage, end))
    for broker in (2, 3):
        stage.says(f"Broker {broker} gets an empty disk, and copies the log.")
        stage.crash(broker)
        await stage.until(partial(is_out, stage, broker), what=f"broker {broker} is out of the ISR")
        stage.wipe(broker)
        stage.start(broker)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what=f"broker {broker} is back")
    for broker, event, lossy in ((2, "was killed", False), (3, "lost its power", True)):
        stage.says(f"Broker {broker} {event}, and starts again.")
        stage.crash(broker, lossy=lossy)
        await stage.until(partial(is_out, stage, broker), what=f"broker {broker} is out of the ISR")
        stage.start(broker)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what=f"broker {broker} is back")
    stage.says("Broker 1 dies, and another broker leads.")
    rejected, written = len(old.rejected), len(old.acked)
    stage.crash(1)
    await stage.until(lambda: len(old.rejected) > rejected + 3, what="the next leader rejects the old writer")
    await old.end()
    stage.must(len(old.acked) == written, "it has written nothing")
    stage.start(1)
    await stage.at_rest()


def is_out(stage: Stage, broker: int) -> bool:
    return broker not in stage.isr()


async def delete(stage: Stage, offset: int) -> None:
    async with stage.client.admin() as admin:
        try:
            await admin.delete_records({TopicPartition(stage.topic, 0): offset})
        except StrandlineError as e:
            stage.says(f"The deletion failed: {e}")
