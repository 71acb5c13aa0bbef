"""Disks that return bytes that were not written there, without an error. In a run this strikes at most one broker, on whose
records the budget does not rely from then on, and one controller, whose vote the others do not need.

A controller's `quorum-state` is spared: it is one line of JSON without a checksum, as in Kafka, so no reader can detect a changed
digit.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from strandline.testing.simulation.nemesis.disks import armed
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.nemesis.readers import forget_tails, read_through
from strandline.testing.simulation.options import FaultPlan

LOGS = "/data/*-*/*.log"
"""Segments of partitions; on a controller's disk, of the metadata log."""
ROTTABLE = (LOGS, LOGS, "/data/*-*/*.index", "/data/*checkpoint*")
OF_CONTROLLERS = (LOGS, LOGS, LOGS, "/data/__cluster_metadata-0/*-*.checkpoint")
"""Patterns of the files on a controller's disk: the metadata log (drawn more often), and snapshots."""
CONTROLLERS_SHARE = 0.3


class Victim(NamedTuple):
    node: int
    rottable: tuple[str, ...]
    """Patterns of the files that may be struck."""


def _rotten(nemesis: Nemesis, draw: Random) -> Victim | None:
    budget, cluster = nemesis.budget, nemesis.cluster
    if draw.random() < CONTROLLERS_SHARE:
        controllers = [n for n in cluster.controller_ids if budget.may_rot_controller(n)]
        return Victim(draw.choice(controllers), OF_CONTROLLERS) if controllers else None
    broker = nemesis.victim(draw, [n for n in cluster.broker_ids if budget.may_rot(n)])
    return None if broker is None else Victim(broker, ROTTABLE)


def _rots(nemesis: Nemesis, node: int) -> None:
    if node in nemesis.cluster.controller_ids:
        nemesis.budget.rots_controller(node)
    else:
        nemesis.budget.rots(node)


@kind("rot")
def _rot(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Flip bits of files at rest."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    files, pattern = nemesis.cluster.machines[victim.node].files, draw.choice(victim.rottable)
    damage = files.rot(pattern, flips=draw.choice((1, 1, 5)))
    if not damage:
        return None  # there is nothing to rot yet
    _rots(nemesis, victim.node)
    if draw.random() < 0.5:
        forget_tails(nemesis, victim.node)
    if draw.random() < 0.5:
        read_through(nemesis, victim.node)
    return Effect({"victim": victim.node, "pattern": pattern, "flips": len(damage)})


@kind("misdirect")
def _misdirect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A write is reported as successful and lands elsewhere."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    _rots(nemesis, victim.node)
    files, onto = nemesis.cluster.machines[victim.node].files, draw.choice((None, LOGS))
    hidden = draw.random() < 0.5
    return armed(nemesis, victim.node, files.misdirect(LOGS, onto, is_hidden=hidden), {"onto": onto, "hidden": hidden})


@kind("stale_read")
def _stale_read(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Some reads return an earlier content of their sector."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    _rots(nemesis, victim.node)
    forget_tails(nemesis, victim.node)
    files = nemesis.cluster.machines[victim.node].files
    effect = armed(nemesis, victim.node, files.stale_reads(LOGS, times=draw.choice((1, 3))), {})
    if draw.random() < 0.5:
        read_through(nemesis, victim.node)
    return effect
