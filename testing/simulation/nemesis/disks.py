"""Disks that fail, are slow, full or lost, and processes that die in the middle of a disk operation."""

from __future__ import annotations

import errno
from functools import partial
from random import Random
from typing import Any

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.disk import Fault, Latency
from strandline.testing.simulation.kernel.world import OutOfTime
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.nemesis.processes import keep_down
from strandline.testing.simulation.nemesis.readers import forget_tails, read_through
from strandline.testing.simulation.options import FaultPlan

ALONE_S = 5.0
"""Longest wait, in seconds, until all other members are out of the ISRs, and until the last member is back."""


@kind("crash_in_disk")
def _crash_in_disk(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The process dies inside one of its next disk operations."""
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    pattern = draw.choice(("*", "*", "*.log", "*checkpoint*", "*.snapshot", "*quorum*"))
    return _death(nemesis, node, draw.choice((1, 2, 5, 20)), pattern)


def _death(nemesis: Nemesis, node: int, n: int, pattern: str) -> Effect:
    files = nemesis.cluster.machines[node].files
    files.crash_at(n, pattern=pattern)

    def undo() -> None:
        files.crash_point = None
        files.rearm()

    return Effect({"victim": node, "operation": n, "pattern": pattern}, (node,), undo)


@kind("crash_in_start")
def _crash_in_start(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The process dies, and the next one dies while it starts."""
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    nemesis.cluster.crash(node)
    nemesis.start(node)
    return _death(nemesis, node, draw.choice((1, 2, 3, 5, 8, 13, 21)), "*")


@kind("wipe")
def _wipe(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The machine loses its power and its disk, and returns with an empty one."""
    budget, cluster = nemesis.budget, nemesis.cluster
    if draw.random() < 0.7:
        node = nemesis.victim(draw, [n for n in cluster.broker_ids if budget.may_lose(n)])
        if node is not None:
            budget.lost(node)
    else:
        candidates = [n for n in cluster.controller_ids if budget.may_wipe_controller(n)]
        node = draw.choice(candidates) if candidates else None
        if node is not None:
            budget.wiped_controller(node)
    if node is None:
        return None
    cluster.crash(node, lossy=True)
    cluster.machines[node].files.wipe()
    return keep_down(nemesis, node)


@kind("wipe_last")
def _wipe_last(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """All brokers but one die. When that one is alone in the ISR of each partition that it leads, its machine restarts with an
    empty disk. If one copy is enough for a topic, that is a certain loss, so this happens only where losses are permitted;
    otherwise an eligible replica leads when it returns."""
    cluster, running = nemesis.cluster, nemesis.running(nemesis.cluster.broker_ids)
    if nemesis.budget.enforced or cluster.active_controller is None:
        return None
    partitions = [p for topic in cluster.image().topics_by_id.values() for p in topic.partitions.values()]
    leaders = [p.leader for p in partitions if p.leader in running and len(p.replicas) > 1 and nemesis.budget.may_lose(p.leader)]
    if not leaders:
        return None
    leader = draw.choice(leaders)
    others = [n for n in running if n != leader]
    nemesis.spawn(_outlive(nemesis, leader, others), f"wipe last {fault.number}")
    return Effect({"victims": [leader], "others": others})


async def _outlive(nemesis: Nemesis, leader: int, others: list[int]) -> None:
    cluster, until = nemesis.cluster, nemesis.world.until
    for node in others:
        cluster.crash(node)
        nemesis.down[node] += 1
    try:
        await until(lambda: cluster.active_controller is not None and _is_alone(cluster, leader), ALONE_S, "it is alone")
        nemesis.budget.lost(leader)
        cluster.crash(leader, lossy=True)
        cluster.machines[leader].files.wipe()
        nemesis.start(leader)
        await until(lambda: (b := cluster.brokers.get(leader)) is not None and b.ready.is_set(), ALONE_S, "it is back")
    except OutOfTime:
        pass
    finally:
        for node in others:
            nemesis.down[node] -= 1
            nemesis.start(node)


def _is_alone(cluster: SimCluster, broker: int) -> bool:
    """Whether the broker is the only member of the ISR of each partition that it leads."""
    partitions = [p for topic in cluster.image().topics_by_id.values() for p in topic.partitions.values()]
    return all(tuple(p.isr) == (broker,) for p in partitions if p.leader == broker)


@kind("disk_slow")
def _disk_slow(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    files, factor = nemesis.cluster.machines[node].files, draw.choice((10, 100, 1000))
    before = files.latency
    files.take_time(Latency(spike_probability=draw.choice((0.0, 0.01)), spike_s=0.5 / factor))
    files.slow(factor)

    def undo() -> None:
        files.slow(1.0)
        files.take_time(before)

    return Effect({"victim": node, "factor": factor}, (node,), undo)


@kind("cold_reads")
def _cold_reads(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Reads often miss the page cache."""
    node = draw.choice(nemesis.nodes)
    files, probability = nemesis.cluster.machines[node].files, draw.choice((0.1, 0.5, 1.0))
    files.cold_reads(probability)
    return Effect({"probability": probability, "victim": node}, (), partial(files.cold_reads, 0.0))


def armed(nemesis: Nemesis, node: int, fault: Fault, what: dict[str, Any]) -> Effect:
    """The effect of a fault that waits in a disk for its operation. It may strike several times, or never."""
    files = nemesis.cluster.machines[node].files

    def undo() -> None:
        fault.end()
        files.rearm()

    return Effect({"victim": node, **what}, (node,), undo)


@kind("disk_stall")
def _disk_stall(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    seconds, operation = draw.choice((0.3, 1.0, 4.0)), draw.choice(("*", "write", "fsync", "read"))
    stall = nemesis.cluster.machines[node].files.stall(seconds, operation, times=draw.choice((1, 1, 3)))
    return armed(nemesis, node, stall, {"operation": operation, "seconds": seconds})


ERRORS = (
    ("write", "*.log", errno.EIO),
    ("write", "*", errno.EIO),
    ("read", "*.log", errno.EIO),
    ("read", "*", errno.EIO),
    ("rename", "*", errno.EIO),
    ("create", "*", errno.EIO),
    ("truncate", "*", errno.EIO),
    ("unlink", "*", errno.EIO),
    ("write", "*", errno.EROFS),
)


@kind("disk_error")
def _disk_error(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Some operations fail. If brokers have several log directories, each is on a disk of its own, and a broker that continues
    without one counts as one that has lost records."""
    dirs = nemesis.options.log_dirs
    nodes = nemesis.role_weighted(draw)
    node = nemesis.victim(draw, nemesis.may_lose(nodes) if dirs else nodes)
    if node is None:
        return None
    operation, pattern, error = draw.choice(ERRORS)
    if dirs and node in nemesis.cluster.broker_ids:
        pattern = f"{Random(fault.draw).choice(dirs)}/{pattern}"
    failing = nemesis.cluster.machines[node].files.fail(operation, pattern, error, times=draw.choice((1, 1, 5)))
    if operation == "read":
        forget_tails(nemesis, node)
        read_through(nemesis, node)
    what = {"operation": operation, "pattern": pattern, "error": errno.errorcode[error]}
    effect = armed(nemesis, node, failing, what)
    return costly(nemesis, node, effect) if dirs else effect


def costly(nemesis: Nemesis, node: int, effect: Effect) -> Effect:
    """Return the effect after a note to the budget: while it lasts, the broker may lose something."""
    if node not in nemesis.cluster.broker_ids:
        return effect
    nemesis.budget.arm(node)
    end = effect.undo
    assert end is not None

    def undo() -> None:
        end()
        nemesis.budget.disarm(node)

    effect.undo = undo
    return effect


@kind("dir_fails")
def _dir_fails(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Every operation on one of a broker's log directories fails until the fault ends. The content stays, but the broker cannot
    know that."""
    node = nemesis.victim(draw, nemesis.may_lose(nemesis.running(nemesis.cluster.broker_ids)))
    if node is None or not nemesis.options.log_dirs:
        return None
    files, path = nemesis.cluster.machines[node].files, draw.choice(nemesis.options.log_dirs)
    failing = [files.fail(operation, f"{path}/*", errno.EIO) for operation in ("read", "write", "rename", "create", "unlink")]

    def undo() -> None:
        for each in failing:
            each.end()
        files.rearm()

    return costly(nemesis, node, Effect({"victim": node, "path": path}, (node,), undo))


@kind("disk_fsync")
def _disk_fsync(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """An fsync fails and drops what it should have written; no later fsync writes it."""
    node = nemesis.victim(draw, nemesis.may_lose(nemesis.role_weighted(draw)))
    if node is None:
        return None
    files = nemesis.cluster.machines[node].files
    failing = files.fail("fsync", draw.choice(("*", "*.log")), errno.EIO, times=1)
    return costly(nemesis, node, armed(nemesis, node, failing, {"operation": "fsync"}))


@kind("disk_full")
def _disk_full(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    files, room = nemesis.cluster.machines[node].files, draw.choice((0, 100, 3000))
    files.fill(room)
    return Effect({"victim": node, "room_bytes": room}, (node,), files.free)
