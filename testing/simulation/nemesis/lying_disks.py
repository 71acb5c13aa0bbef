"""Disks that lie: they give back what was not written there, and say nothing. In a run they are one broker's, which from then
on is trusted to have nothing, and one controller's, whose vote the others can do without.

A controller's `quorum-state` is left alone: one line of JSON without a checksum, as in Kafka, of which no reader can tell that
a digit is another one.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from strandline.broker.fetch import storage_code
from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.protocol.errors import BrokerError
from strandline.storage.disk import DiskError
from strandline.storage.log import Log
from strandline.testing.simulation.nemesis.disks import armed
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

LOGS = "/data/*-*/*.log"
"""Of partitions; on a controller's disk, of the metadata."""
ROTTABLE = (LOGS, LOGS, "/data/*-*/*.index", "/data/*checkpoint*")
OF_CONTROLLERS = (LOGS, LOGS, LOGS, "/data/__cluster_metadata-0/*-*.checkpoint")
"""The log, and snapshots."""
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
    """Bits flip in what lies on a disk."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    files, pattern = nemesis.cluster.machines[victim.node].files, draw.choice(victim.rottable)
    damage = files.rot(pattern, flips=draw.choice((1, 1, 5)))
    if not damage:
        return None  # there is nothing to rot yet
    _rots(nemesis, victim.node)
    if draw.random() < 0.5:
        _forget_tails(nemesis, victim.node)
    if draw.random() < 0.5:
        _read_through(nemesis, victim.node)
    return Effect({"victim": victim.node, "pattern": pattern, "flips": len(damage)})


def _forget_tails(nemesis: Nemesis, node: int) -> None:
    """What the process holds in memory of its logs' ends, it has to read again."""
    broker = nemesis.cluster.brokers.get(node)
    if broker is not None and broker.has_logs:
        for partition in broker.replicas.partitions.values():
            partition.log.tail.clear()
    controller = nemesis.cluster.controllers.get(node)
    if controller is not None and controller.has_quorum:
        log = controller.quorum.node.log
        assert isinstance(log, MetadataLog)
        log._log.tail.clear()


def _read_through(nemesis: Nemesis, node: int) -> None:
    """Somebody reads a broker's logs from their beginnings, as a consumer does that is new, or asks a follower. Damage that
    nobody meets otherwise before the run ends is found, while fetches of the same partitions are under way."""
    broker, machine = nemesis.cluster.brokers.get(node), nemesis.cluster.machines[node]
    if broker is None or not broker.has_logs or machine.loop is None or machine.is_paused:
        return
    for key, partition in list(broker.replicas.partitions.items()):
        machine.call(_read_one, broker.replicas, key, partition.log)


def _read_one(replicas: ReplicaManager, key: tuple[bytes, int], log: Log) -> None:
    try:
        log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
    except BrokerError as e:
        storage_code(replicas, key, e)
    except DiskError as e:
        replicas.on_disk_error(e)


@kind("misdirect")
def _misdirect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A write is told to have succeeded, and went elsewhere."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    _rots(nemesis, victim.node)
    files, onto = nemesis.cluster.machines[victim.node].files, draw.choice((None, LOGS))
    hidden = draw.random() < 0.5
    return armed(nemesis, victim.node, files.misdirect(LOGS, onto, is_hidden=hidden), {"onto": onto, "hidden": hidden})


@kind("stale_read")
def _stale_read(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A read brings what was there before."""
    victim = _rotten(nemesis, draw)
    if victim is None:
        return None
    _rots(nemesis, victim.node)
    _forget_tails(nemesis, victim.node)
    files = nemesis.cluster.machines[victim.node].files
    return armed(nemesis, victim.node, files.stale_reads(LOGS, times=draw.choice((1, 3))), {})
