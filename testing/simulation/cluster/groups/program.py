"""The common part of the programs of a run's groups: their begin, the events of their plans, and the start of their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.cluster.groups.ledger import GroupLedger
from strandline.testing.simulation.group_plans import IDLE, LEAVE, SWITCH, MemberPlan
from strandline.testing.simulation.options import Options

RETRY_S = 0.1
WORK_SHARE = 0.15
"""Share of the calls that return records after which the program works for a time."""


@dataclass(slots=True)
class Surroundings:
    """The objects that all programs of a run share."""

    cluster: SimCluster
    options: Options
    ledger: GroupLedger
    problems: list[str]
    going: Callable[[], bool]
    """False: every program leaves its group and ends."""

    async def started(self, make: Callable[[], Any]) -> Any:
        """Start a client, again and again until a broker answers; None if the run is over before."""
        while self.going():
            client = make()
            try:
                await client.start()
            except StrandlineError:
                await asyncio.sleep(RETRY_S)
            else:
                return client
        return None

    def gave_up(self, client: Client, what: str, error: Exception) -> None:
        self.cluster.world.trace.emit("client.gave_up", client.machine.id, what=what, reason=str(error))


class Program:
    """A program that is a member of a group. `live` is its whole life; a subclass defines what it does in the group (`stay`)."""

    def __init__(self, around: Surroundings, client: Client, name: str, plan: MemberPlan) -> None:
        self.around = around
        self.client = client
        self.name = name
        self.plan = plan
        self.draw: Random = around.cluster.world.stream(f"member/{name}")
        self._began_at = around.cluster.world.now
        self.is_replacement = name.endswith("'")
        """An earlier process of it has crashed."""
        self._has_happened = self.is_replacement or not plan.event

    @property
    def going(self) -> bool:
        return self.around.going()

    async def live(self) -> None:
        await asyncio.sleep(self.plan.event_for_s if self.is_replacement else self.plan.begins_at_s)
        while self.going:
            if await self.stay():
                await asyncio.sleep(self.plan.event_for_s)

    async def stay(self) -> bool:
        """Take part in the group once, from joining to leaving. Returns whether the program has left it on purpose."""
        raise NotImplementedError

    def happens(self, event: str) -> bool:
        """Whether it is time for this event; True at most once. `work.py` causes the events that a process does not decide itself
        (crashes, pauses)."""
        plan, now = self.plan, self.around.cluster.world.now
        if self._has_happened or event not in (LEAVE, IDLE, SWITCH) or plan.event != event:
            return False
        self._has_happened = now >= self._began_at + plan.event_at_s
        return self._has_happened

    async def work(self) -> None:
        """Work on the records of a call."""
        if self.plan.work_ms and self.draw.random() < WORK_SHARE:
            await asyncio.sleep(self.draw.uniform(0, self.plan.work_ms) / 1000)
