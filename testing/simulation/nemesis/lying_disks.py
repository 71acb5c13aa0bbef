"""Disks that lie: they give back what was not written there, and say nothing. In a run they are one broker's,
which from then on is trusted to have nothing."""

from __future__ import annotations

from random import Random

from strandline.testing.simulation.nemesis.disks import armed
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

ROTTABLE = ("/data/*-*/*.log", "/data/*-*/*.log", "/data/*-*/*.index", "/data/*checkpoint*")


def _rotten(nemesis: Nemesis, draw: Random) -> int | None:
    brokers = [n for n in nemesis.cluster.broker_ids if nemesis.budget.may_rot(n)]
    return nemesis.victim(draw, brokers)


@kind("rot")
def _rot(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Bits flip in what lies on a disk."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    files, pattern = nemesis.cluster.machines[node].files, draw.choice(ROTTABLE)
    damage = files.rot(pattern, flips=draw.choice((1, 1, 5)))
    if not damage:
        return None  # there is nothing to rot yet
    nemesis.budget.rots(node)
    if draw.random() < 0.5:
        _forget_tails(nemesis, node)
    return Effect({"victim": node, "pattern": pattern, "flips": len(damage)})


def _forget_tails(nemesis: Nemesis, node: int) -> None:
    """What the process holds in memory of its logs' ends, it has to read again."""
    broker = nemesis.cluster.brokers.get(node)
    if broker is not None and broker.has_logs:
        for partition in broker.replicas.partitions.values():
            partition.log.tail.clear()


@kind("misdirect")
def _misdirect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A write is told to have succeeded, and went elsewhere."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    nemesis.budget.rots(node)
    files, onto = nemesis.cluster.machines[node].files, draw.choice((None, "/data/*-*/*.log"))
    hidden = draw.random() < 0.5
    return armed(nemesis, node, files.misdirect(ROTTABLE[0], onto, is_hidden=hidden), {"onto": onto, "hidden": hidden})


@kind("stale_read")
def _stale_read(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A read brings what was there before."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    nemesis.budget.rots(node)
    _forget_tails(nemesis, node)
    return armed(nemesis, node, nemesis.cluster.machines[node].files.stale_reads(ROTTABLE[0], times=draw.choice((1, 3))), {})
