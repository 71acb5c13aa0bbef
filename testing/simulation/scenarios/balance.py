"""Leaders that return to their preferred replicas: S63."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from strandline.client import Producer
from strandline.testing.simulation.scenarios.stage import Stage, scenario

INTERVAL_S = 2
GAP_MS_MAX = 50
NEAR_S = 0.001
"""The largest delay of a network in which `GAP_MS_MAX` is promised: an election takes several messages, one after the other."""
PACE_S, SLOW_PACE_S = 0.005, 0.05


class _Load:
    """A producer that sends a record to each partition every `pace_s`, and notes when each is acknowledged."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.is_over = False
        self.pace_s = PACE_S
        self.acked_at: list[tuple[float, int]] = []
        """Virtual time and partition of each acknowledgement."""
        self._client = stage.cluster.client("load")
        self._task = self._client.spawn(self._send())

    async def _send(self) -> None:
        async with self._client.producer() as producer:
            sends = []
            number = 0
            while not self.is_over:
                for index in range(3):
                    number += 1
                    sends.append(asyncio.ensure_future(self._send_one(producer, index, b"b%d" % number)))
                await asyncio.sleep(self.pace_s)
            await asyncio.gather(*sends)

    async def _send_one(self, producer: Producer, index: int, value: bytes) -> None:
        where = await producer.send_and_wait("orders", value, partition=index)
        self.acked_at.append((self.stage.world.now, index))
        self.stage.acked.setdefault(("orders", index), {})[where.offset] = value

    def longest_gap_ms(self, index: int, since: float) -> float:
        """The longest time without an acknowledgement for this partition since then."""
        times = [since, *(at for at, of in self.acked_at if of == index and at >= since), self.stage.world.now]
        return 1000 * max(later - earlier for earlier, later in pairwise(times))

    async def end(self) -> None:
        self.is_over = True
        await self.stage.world.join(self._task)


async def _restart(stage: Stage, broker: int) -> float:
    """Kill the broker, start it again, and wait until it is back in all ISRs."""
    stage.crash(broker)
    await stage.until(lambda: broker not in {stage.leader(i) for i in range(3)}, what="others lead")
    stage.start(broker)
    await stage.until(lambda: all(stage.isr(i) == {1, 2, 3} for i in range(3)), what="it is back in all ISRs")
    return stage.world.now


def _shuts_down(stage: Stage, broker: int) -> bool:
    known = stage.cluster.image().brokers[broker]
    return known.in_controlled_shutdown and not known.fenced


@scenario("S63", "Leaders return, but not during a controlled shutdown", source="KAFKA-4084; rolling restarts in operations")
async def s63(stage: Stage) -> None:
    """A broker that has returned gets its leaderships back after a while, all at once, with a short gap for clients. While
    another broker hands over its leaderships, none is moved."""
    sessions = {"broker.session.timeout.ms": 20_000}
    await stage.open(
        replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]],
        settings=sessions,
        controller_settings=sessions
        | {"auto.leader.rebalance.enable": True, "leader.imbalance.check.interval.seconds": INTERVAL_S},
    )
    load = _Load(stage)
    stage.says("Broker 1 is killed, restarts and catches up.")
    back_at = await _restart(stage, 1)
    stage.must(stage.leader(0) == 2, "broker 2 leads the partition that prefers broker 1")
    others = [(stage.registration(i).leader, stage.registration(i).leader_epoch) for i in (1, 2)]
    await stage.until(lambda: stage.leader(0) == 1, 10.0, "broker 1 leads again")
    waited_s = stage.world.now - back_at
    stage.must(waited_s > 0.9 * INTERVAL_S, f"it has been in all ISRs for {waited_s:.1f} s")
    await stage.sleep(1.0)
    now = [(stage.registration(i).leader, stage.registration(i).leader_epoch) for i in (1, 2)]
    stage.must(now == others, "no other leader has moved")
    gap_ms = load.longest_gap_ms(0, back_at)
    network = stage.world.network
    is_near = network.delay_s + network.jitter_s <= NEAR_S and not stage.perturbed
    stage.must(gap_ms <= GAP_MS_MAX or not is_near, f"the longest time without an acknowledgement was {gap_ms:.1f} ms")

    load.pace_s = SLOW_PACE_S  # the gaps of the rest are not measured

    stage.says("Broker 1 restarts once more. When it is back, broker 3 begins its controlled shutdown, which does not end.")
    await _restart(stage, 1)
    stage.cluster.terminate(3)
    await stage.until(lambda: _shuts_down(stage, 3), what="broker 3 shuts down")
    stage.cut(3, [101])
    stage.always(lambda: stage.leader(0) != 1 or not _shuts_down(stage, 3), "no leader returns while broker 3 shuts down")
    await stage.sleep(3 * INTERVAL_S)
    stage.must(stage.leader(0) == 2, "broker 2 still leads the partition that prefers broker 1")

    stage.says("Broker 3 is fenced: the shutdown is over, and the leader returns at once.")
    stage.mend(3, [101])
    await stage.until(lambda: stage.cluster.image().brokers[3].fenced, 30.0, "broker 3 is fenced")
    await stage.until(lambda: stage.leader(0) == 1, 2.0 * INTERVAL_S, "broker 1 leads again")
    stage.start(3)
    await stage.until(lambda: [stage.leader(i) for i in range(3)] == [1, 2, 3], 30.0, "every leader is the preferred replica")
    await load.end()
    for index in range(3):
        await stage.at_rest(index=index)
