"""A client that reassigns partitions, cancels and replaces reassignments, and drains brokers (KIP-455), while faults happen.

It remembers the last target of each partition that the controller has accepted. When the faults are over, the partition must
reach this target (I34). A request without a response may or may not have been accepted, so the target is unknown then.

A copy of an earlier request may also reach a controller after later requests were accepted, and replace their target, as in
Kafka: the client or a broker has repeated the request on another connection, or has given it up, but a kernel still has its bytes
and sends them when the network is mended. No epoch in the request shows that it is late. Then the partition may reach the target
of that copy instead. A target that no controller has accepted since the last request was sent is still a violation.

A reassignment takes replicas away, as a fault does. So no request is sent while a disk has lost something that only another
replica has (`budget.py`), and no disk loses anything while a request is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from strandline.client import TopicPartition
from strandline.client.admin.placement import plan_drain
from strandline.client.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import Options

Targets = Mapping[TopicPartition, tuple[int, ...] | None]

Decided = Sequence[tuple[tuple[str, int], tuple[int, ...] | None]]
"""(topic, partition) and target of each accepted reassignment, in the order of the controllers' decisions; None: cancelled."""

RATES = (None, None, 20_000, 200_000)
"""Throttles in bytes per second. A partition has a few ten thousand bytes."""
SLOW = 3_000
"""The throttle of a reassignment that is to be cancelled or replaced."""
PATIENCE_MS = 1500


class Reassigner:
    """The targets of one run."""

    def __init__(self, world: World, options: Options, budget: Budget, decided: Decided) -> None:
        """`decided`: the accepted requests; it grows with each decision of a controller."""
        self.world = world
        self.options = options
        self.budget = budget
        self.targets: dict[TopicPartition, tuple[int, ...] | None] = {}
        """The last accepted target of each partition; None: it is not known."""
        self._decided = decided
        self._known: dict[TopicPartition, int] = {}
        """Partition -> the number of decisions before the last request about it was sent."""
        self.going = True

    async def work(self, client: Client, admin: Any, draw: Random) -> None:
        """Reassign and drain until the faults end."""
        names = [*(["move", "move", "factor", "cancel", "replace"] if self.options.reassigns else ())]
        names += ["drain", "drain", "undrain"] if self.options.drains else []
        while True:
            await asyncio.sleep(draw.uniform(0.05, 0.7))
            if not self.going:
                return
            what = draw.choice(names)
            try:
                await self._do(admin, what, draw)
            except (StrandlineError, TimeoutError) as e:
                self.world.trace.emit("client.gave_up", client.machine.id, what=what, reason=str(e))

    async def _do(self, admin: Any, what: str, draw: Random) -> None:
        if self.budget.windows:
            return
        if what == "drain":
            await self._drain(admin, draw)
        elif what == "undrain":
            await self._undrain(admin, draw)
        elif what in ("cancel", "replace"):
            await self._change(admin, what, draw)
        else:
            await self._move(admin, what, draw)

    async def _move(self, admin: Any, what: str, draw: Random) -> None:
        """Move some partitions of one topic to other brokers, or give them another number of replicas."""
        topic = draw.choice(self.options.topics)
        places = draw.sample(topic.places, min(len(topic.places), draw.choice((1, 1, 2, 3))))
        factor = topic.replication_factor if what == "move" else draw.randint(1, self.options.brokers)
        await self.alter(admin, {TopicPartition(*place): self._target(draw, factor) for place in places}, draw.choice(RATES))

    async def _change(self, admin: Any, what: str, draw: Random) -> None:
        """Cancel a reassignment that is running, or give it another target."""
        running = sorted(await admin.list_partition_reassignments(timeout_ms=PATIENCE_MS))
        if not running:
            running = [TopicPartition(*draw.choice([place for topic in self.options.topics for place in topic.places]))]
            await self.alter(admin, {running[0]: self._target(draw, draw.randint(1, self.options.brokers))}, SLOW)
            await asyncio.sleep(draw.uniform(0.0, 0.5))
        place = draw.choice(running)
        if what == "cancel":
            await self.alter(admin, {place: None}, None)
            return
        await self.alter(admin, {place: self._target(draw, draw.randint(1, self.options.brokers))}, draw.choice(RATES))

    def _target(self, draw: Random, factor: int) -> tuple[int, ...]:
        return tuple(draw.sample(range(1, self.options.brokers + 1), min(factor, self.options.brokers)))

    async def alter(self, admin: Any, wanted: Targets, rate: int | None) -> None:
        """Send one request, and note its targets if they are accepted."""
        if self.budget.windows:  # one has opened since
            return
        self.targets.update(dict.fromkeys(wanted))
        self._known.update(dict.fromkeys(wanted, len(self._decided)))
        with self.budget.reassigning():
            results = await admin.alter_partition_reassignments(wanted, throttle_rate=rate, timeout_ms=PATIENCE_MS)
        for result in results:
            if result.code:
                self.world.trace.emit("client.refused", 0, what="reassign", reason=str(result.message))
            else:
                self.targets[result.partition] = wanted[result.partition]

    def misses_target(self, partition: TopicPartition, replicas: tuple[int, ...]) -> bool:
        """Whether the partition, which is not being reassigned, has other replicas than those of its target. Late copies, which
        the controllers have accepted since the last request was sent, may have replaced that target; a late cancellation leaves
        it unknown."""
        target = self.targets.get(partition)
        if target is None:
            return False
        late = [other for place, other in self._decided[self._known[partition] :] if place == partition]
        return replicas != target and replicas not in late and None not in late

    # -- drains -------------------------------------------------------------------------------------------------------

    async def _drain(self, admin: Any, draw: Random) -> None:
        """Do what `strandline broker drain` does: the broker gets no new replicas, and its replicas move, its leaders first.
        Unlike there, it gets no new ones even if its replicas cannot move. At the end of the run `Phases` undoes all drains."""
        broker = draw.randint(1, self.options.brokers)
        await admin.alter_configs("broker", broker, {"broker.draining": True}, timeout_ms=PATIENCE_MS)
        cluster = await admin.describe_cluster(timeout_ms=PATIENCE_MS)
        running = await admin.list_partition_reassignments(timeout_ms=PATIENCE_MS)
        topics = await admin.describe_topics([topic.name for topic in self.options.topics], timeout_ms=PATIENCE_MS)
        replicas = {TopicPartition(topic.name, p.partition): p.replicas for topic in topics for p in topic.partitions}
        replicas |= {tp: each.target_replicas for tp, each in running.items()}
        usable = [b for b in cluster.brokers if not (b.is_fenced or b.in_controlled_shutdown or b.is_draining)]
        plan = plan_drain(replicas, {b.broker_id: b.rack for b in usable if b.broker_id != broker}, broker)
        if plan:
            await self.alter(admin, plan, draw.choice(RATES))
            await admin.elect_leaders(sorted(plan), timeout_ms=PATIENCE_MS)

    async def _undrain(self, admin: Any, draw: Random) -> None:
        broker = draw.randint(1, self.options.brokers)
        await admin.alter_configs("broker", broker, {"broker.draining": None}, timeout_ms=PATIENCE_MS)
        running = await admin.list_partition_reassignments(timeout_ms=PATIENCE_MS)
        leaving = sorted(tp for tp, each in running.items() if broker in each.removing_replicas)
        if leaving:
            await self.alter(admin, dict.fromkeys(leaving), None)
