"""Voters that have lost their disk: the majority that is left had the committed records once, and no longer has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import OutOfTime
from strandline.testing.simulation.nemesis.cuts import cut
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.nemesis.leaders import step_down
from strandline.testing.simulation.options import FaultPlan

COMMITTED_S = 1.0
"""Longest wait, in seconds, for a committed record that the voters behind do not have."""
LEADERLESS_S = (1.5, 2.5, 4.0)
"""Seconds during which the voters behind and the wiped one could elect a leader among themselves."""


class Sides(NamedTuple):
    """Voters of one quorum. Those behind and the one that is wiped form a majority; without the wiped one they do not."""

    behind: tuple[int, ...]
    wiped: int
    others: tuple[int, ...]
    """The voters that have every committed record; the leader is one of them."""


@kind("wiped_voter")
def _wiped_voter(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Some voters miss a committed record. A voter that helped to commit it restarts with an empty disk while all voters that
    have the record are down. If it votes before it has recovered its records, the committed record is lost."""
    sides = _sides(nemesis, draw)
    if sides is None:
        return None
    nemesis.spawn(_forget(nemesis, sides, draw), f"wiped voter {fault.number}")
    return Effect({"victims": [sides.wiped], "behind": list(sides.behind), "others": list(sides.others)})


def _sides(nemesis: Nemesis, draw: Random) -> Sides | None:
    active, ids = nemesis.cluster.active_controller, nemesis.cluster.controller_ids
    if active is None or len(ids) < 3:
        return None
    leader = active.config.node_id
    rest = draw.sample([n for n in ids if n != leader], len(ids) - 1)
    if not nemesis.budget.may_wipe_controller(rest[0]) or nemesis.budget.wiped_controllers:
        return None
    behind = len(ids) // 2
    return Sides(tuple(rest[1 : 1 + behind]), rest[0], (leader, *rest[1 + behind :]))


async def _forget(nemesis: Nemesis, sides: Sides, draw: Random) -> None:
    for node in sides.others:
        nemesis.down[node] += 1  # if its process ends from now on, for any reason, it stays down
    with nemesis.budget.touching(*sides.behind, sides.wiped, *sides.others):
        try:
            with _left_behind(nemesis, sides):
                await _commit_something(nemesis, sides, draw)
                if not nemesis.budget.may_touch(nemesis.cluster.controller_ids) or nemesis.budget.wiped_controllers:
                    return
                _take_down(nemesis, sides)
            await asyncio.sleep(draw.choice(LEADERLESS_S))
        except OutOfTime:
            return
        finally:
            for node in sides.others:
                nemesis.down[node] -= 1
                nemesis.start(node)


@contextmanager
def _left_behind(nemesis: Nemesis, sides: Sides) -> Iterator[None]:
    mend = cut(nemesis, [link for node in sides.behind for link in nemesis.links_of(node)])
    try:
        yield
    finally:
        mend()


async def _commit_something(nemesis: Nemesis, sides: Sides, draw: Random) -> None:
    """Wait until the others have committed a record that the voters behind do not have; a broker is fenced to cause one."""
    cluster, brokers = nemesis.cluster, nemesis.running(nemesis.cluster.broker_ids)
    behind = max((_log_end(cluster, n) for n in sides.behind), default=0)
    if brokers:
        step_down(nemesis, draw.choice(brokers))

    def is_ahead() -> bool:
        active = cluster.active_controller
        if active is None or active.config.node_id not in sides.others:
            return False
        return active.quorum.node.state.high_watermark > behind and _log_end(cluster, sides.wiped) > behind

    await nemesis.world.until(is_ahead, COMMITTED_S, "a decision that some voters miss")


def _log_end(cluster: SimCluster, node: int) -> int:
    server = cluster.controllers.get(node)
    return server.quorum.node.state.log.end_offset if server is not None and server.has_quorum else 0


def _take_down(nemesis: Nemesis, sides: Sides) -> None:
    """Cut the power of the wiped voter and the others; reset their connections with the voters behind, which lose all messages in
    flight."""
    cluster = nemesis.cluster
    nemesis.budget.wiped_controller(sides.wiped)
    for node in (sides.wiped, *sides.others):
        cluster.crash(node, lossy=True)
        for other in sides.behind:
            nemesis.network.reset_between(node, other)
    cluster.machines[sides.wiped].files.wipe()
    nemesis.start(sides.wiped)
