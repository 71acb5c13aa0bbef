"""Conditional appends: S95."""

from __future__ import annotations

import asyncio

from strandline.client import OffsetConflict, Producer
from strandline.testing.simulation.scenarios.stage import Stage, scenario

WRITERS = 5
OFFSETS = 60


class Race:
    """Writers that compete for the same offsets. Each sends its next record with the offset at which it believes the log ends."""

    def __init__(self, stage: Stage) -> None:
        self.winners: dict[int, list[bytes]] = {}
        """Offset -> the values that were acknowledged there."""
        self.rejected: set[bytes] = set()
        """Values that the leader rejected, so that they are not in the log."""
        self.reached = 0
        self._stage = stage
        clients = [stage.cluster.client(f"writer-{number}") for number in range(WRITERS)]
        self._tasks = [
            client.spawn(self._write(client.producer(), b"w%d-" % number), f"writer {number}")
            for number, client in enumerate(clients)
        ]

    async def _write(self, producer: Producer, name: bytes) -> None:
        sent, offset = 0, 0
        async with producer:
            while offset < OFFSETS:
                value = name + b"%d" % sent
                sent += 1
                try:
                    where = await producer.send_and_wait(self._stage.topic, value, partition=0, expect_offset=offset)
                except OffsetConflict as e:
                    self.rejected.add(value)
                    self._stage.must(e.log_end_offset > offset, f"another record has offset {offset}: {e}")
                    offset = e.log_end_offset
                else:
                    self.winners.setdefault(where.offset, []).append(value)
                    self._stage.must(where.offset == offset, f"{value!r} got offset {where.offset}, and expected {offset}")
                    self.reached = offset = offset + 1
                await asyncio.sleep(0.01)

    async def passes(self, offset: int) -> None:
        await self._stage.until(lambda: self.reached >= offset or self._is_over(), what=f"offset {offset} is written")

    def _is_over(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def end(self) -> None:
        for task in self._tasks:
            await self._stage.world.join(task)


@scenario("S95", "Five writers race for each offset through fail-overs", source="event stores, locks: expected version")
async def s95(stage: Stage) -> None:
    """Each writer appends only if it gets the offset that it expects. Leaders die, responses are lost, and the writers retry.
    Each offset has exactly one winner, a writer never conflicts with its own record, and a rejected record is in no log."""
    await stage.open(replicas=[1, 2, 3])
    race = Race(stage)
    for offset, leader in ((15, 1), (30, 2)):
        await race.passes(offset)
        stage.says(f"Broker {leader} answers a writer, and the connection breaks. Then the broker dies.")
        stage.world.network.break_on(lambda m: m.api == "Produce" and not m.is_request)
        await race.passes(offset + 3)
        stage.crash(leader)
        await race.passes(offset + 6)
        stage.start(leader)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in the ISR")
    await race.end()
    stage.says("The race is over: the log is compared with the responses to the writers.")
    held = stage.values(stage.leader())
    stage.must(sorted(held) == list(range(OFFSETS)), f"there are {OFFSETS} records")
    stage.must(all(len(values) == 1 for values in race.winners.values()), "each offset was acknowledged once")
    stage.must({offset: [value] for offset, value in held.items()} == race.winners, "each winner's record is at its offset")
    stage.must(not race.rejected & set(held.values()), "no rejected record is in the log")
    await stage.at_rest()
