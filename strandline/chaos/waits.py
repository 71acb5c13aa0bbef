"""The conditions of `wait`: each is polled until it holds or its time is up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter

from strandline.chaos import probes
from strandline.chaos.load import until
from strandline.chaos.picture import CONTROLLER
from strandline.chaos.report import NOTE, SEEN
from strandline.chaos.run_state import RunState
from strandline.chaos.scenario import Step
from strandline.chaos.watch import Peer
from strandline.protocol.errors import BrokerError

REFILL_POLL_S = 0.02
SILENT_S = 2.0
"""A controller that has not fetched for this long does not count as following."""


@dataclass
class Refilling:
    """How often a replica that started from nothing was seen without all committed records."""

    outside_isr: int = 0
    in_isr: int = 0
    """Each is a defect: the replica joined too early."""


class Waits:
    def __init__(self, state: RunState) -> None:
        self._state = state

    async def wait(self, step: Step) -> None:
        await getattr(self, f"_{step.kind.replace('-', '_')}")(step)

    async def in_sync(self, within_s: float) -> None:
        """Wait until every replica is in its ISR, and every restarted broker and controller has rejoined."""
        picture = self._state.watch.picture

        def holds() -> bool:
            return picture.is_whole and picture.controller >= 0 and self._have_registered() and self._follow()

        await until(holds, "all replicas are in sync and all controllers follow", within_s)

    def _have_registered(self) -> bool:
        """Whether every restarted broker has registered. Until then, metadata may still show the ISRs of its former process."""
        state = self._state
        epochs = state.watch.picture.broker_epochs
        return all(epochs.get(i, -1) > state.epochs_before.get(i, -1) for i in state.ids(list(state.started_at)))

    def _follow(self) -> bool:
        """Whether every controller has caught up, and has fetched: a restarted one since its start, another in the last
        SILENT_S."""
        state, now = self._state, perf_counter()
        for member in state.driver.members:
            if member.role == CONTROLLER:
                voter = state.watch.picture.voters.get(member.id)
                since = state.started_at.get(member.name, now - SILENT_S)
                if voter is None or not voter.is_caught_up or voter.fetched_at < since:
                    return False
        return True

    async def _in_sync(self, step: Step) -> None:
        await self.in_sync(step["within_s"])

    async def _progress(self, step: Step) -> None:
        await self._state.load.progress(step["records"], step["within_s"])

    async def _seconds(self, step: Step) -> None:
        await asyncio.sleep(step["seconds"])

    async def _leader_moved(self, step: Step) -> None:
        picture, ids = self._state.watch.picture, set(self._state.ids(self._state.resolve(step["away_from"])))

        def moved() -> bool:
            return all(p.leader >= 0 and p.leader not in ids for p in picture.partitions.values())

        await until(moved, "other brokers lead", step["within_s"])

    async def _controller_moved(self, step: Step) -> None:
        picture, names = self._state.watch.picture, self._state.resolve(step["away_from"])
        ids = self._state.ids(names, CONTROLLER)
        await until(lambda: picture.controller not in ids, "another controller is active", step["within_s"])

    async def _left_isr(self, step: Step) -> None:
        picture, ids = self._state.watch.picture, set(self._state.ids(self._state.resolve(step["target"])))

        def left() -> bool:
            return all(not ids & set(p.isr) or ids >= set(p.isr) for p in picture.partitions.values())

        await until(left, "the nodes have left the ISRs", step["within_s"])

    async def _isr_is(self, step: Step) -> None:
        picture, ids = self._state.watch.picture, set(self._state.ids(self._state.resolve(step["target"])))
        await until(lambda: set(picture.partitions[0].isr) == ids, f"the ISR is {sorted(ids)}", step["within_s"])

    async def _drained(self, step: Step) -> None:
        picture, ids = self._state.watch.picture, set(self._state.ids(self._state.resolve(step["target"])))

        def drained() -> bool:
            return not any(ids & set(p.replicas) for p in picture.partitions.values())

        await until(drained, "the brokers have no replica", step["within_s"])

    async def _leaderless(self, step: Step) -> None:
        picture = self._state.watch.picture
        await until(lambda: all(p.leader < 0 for p in picture.partitions.values()), "no partition has a leader", step["within_s"])

    async def _ended(self, step: Step) -> None:
        """Wait until these processes end without a signal from us. They count as down from then on."""
        state = self._state
        for name in state.resolve(step["target"]):

            async def ended(name: str = name) -> bool:
                return not (await state.driver.ending(name)).is_running

            await until(ended, f"{name} ended", step["within_s"])
            state.broken.add("down", [name])
            state.log(SEEN, f"{name} ended by itself, exit code {(await state.driver.ending(name)).exit_code}")

    # -- a replica that starts from nothing

    async def _refilled(self, step: Step) -> None:
        """Wait until the broker is in every ISR, and check that it never joins one too early.

        Whenever the broker is in an ISR, its log must reach the high watermark that the leader had just before. Each look
        asks in this order: the leader's high watermark, the ISR, the replica's log end. The order makes the check exact:
        once the replica is in the ISR, the high watermark cannot pass its log end.
        """
        state = self._state
        (name,) = state.resolve(step["target"])
        member = state.driver.member(name)
        replica = Peer(member)
        leaders = {m.id: Peer(m) for m in state.driver.brokers}
        seen = Refilling()

        async def look() -> bool:
            states = [await self._look(p, member.id, replica, leaders, seen) for p in sorted(state.watch.picture.partitions)]
            if all(states):
                return True
            await asyncio.sleep(REFILL_POLL_S)
            return False

        try:
            await until(look, f"{name} is in every ISR", step["within_s"])
        finally:
            for peer in (replica, *leaders.values()):
                peer.close()
        if seen == Refilling():
            state.log(NOTE, f"{name} had caught up before it was first looked at, so nothing shows when it joined the ISRs")
            return
        words = f"its log was behind {seen.outside_isr} times outside the ISR, and {seen.in_isr} times inside"
        state.log_claim(step.number, f"{name} joins an ISR only after it has caught up", not seen.in_isr, words)

    async def _look(self, partition: int, replica_id: int, replica: Peer, leaders: dict[int, Peer], seen: Refilling) -> bool:
        """Whether the replica is in the ISR of this partition and has caught up. Counts in `seen` if it has not caught up."""
        picture = self._state.watch.picture
        try:
            goal = await probes.high_watermark(leaders[picture.partitions[partition].leader], picture, partition)
        except (BrokerError, KeyError):
            return False
        is_in_isr = replica_id in picture.partitions[partition].isr
        try:
            end = await probes.replica_end(replica, picture, partition, goal)
        except BrokerError:
            return False
        if not end.reaches and is_in_isr:
            seen.in_isr += 1
        elif not end.reaches:
            seen.outside_isr += 1
        return is_in_isr and end.reaches
