"""Writes the page of a failed seed: time, drawn faults, the cluster's report, and the story of the partition concerned."""

from __future__ import annotations

import os
from dataclasses import dataclass

from strandline.testing.kit.simulated.cluster import SimulatedCluster
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.trace import Trace
from strandline.testing.simulation.kernel.world import Unhandled, World
from strandline.testing.simulation.story.story import recount

FAULTS_MAX = 15
EVENTS_MAX = 14
SEED_OPTION, SEED_VARIABLE = "--strandline-seed", "STRANDLINE_SEED"


@dataclass(frozen=True, slots=True)
class Setting:
    seed: int
    world: World
    cluster: SimulatedCluster


def page(error: BaseException, setting: Setting) -> str:
    """The page for this error, from the state of the world at this moment."""
    world, cluster = setting.world, setting.cluster
    out = [f"seed {setting.seed}, at {world.now:.3f} s of virtual time"]
    if isinstance(error, (Violation, Unhandled)):
        out += ["the cluster broke one of its own guarantees: this is a bug in Strandline, not in the test"]
    happened = cluster.weather.happened()
    if happened:
        active = [fault for fault in happened if fault.ended_s is None]
        out += ["", f"drawn faults ({len(active)} active):"]
        if len(happened) > FAULTS_MAX:
            out += [f"  ... {len(happened) - FAULTS_MAX} earlier faults"]
        out += [f"  {fault}" for fault in happened[-FAULTS_MAX:]]
    else:
        out += ["no drawn fault so far"]
    out += ["", "cluster:", *(f"  {line}" for line in cluster.report().splitlines()[1:])]
    partition = _concerned(error, world.trace)
    story = recount(world.trace, partition, events_max=EVENTS_MAX)
    return "\n".join([*out, "", story.rstrip()])


def _concerned(error: BaseException, trace: Trace) -> str:
    """The partition that the error names, or else the one with the most events."""
    if isinstance(error, Violation) and error.partition:
        return error.partition
    names = [name for name in trace.partitions() if not name.startswith("__")]
    text = str(error)
    named = [name for name in names if name in text]
    if named:
        return max(named, key=len)  # `orders-12` holds `orders-1` as well.
    return max(names, key=lambda name: len(trace.events(partition=name)), default="")


def replay_text(name: str, seed: int) -> str:
    """Instructions to replay this seed."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    if test:
        return f"  pytest '{test}' {SEED_OPTION} {seed}" if "[" in test else f"  pytest {test} {SEED_OPTION} {seed}"
    return f"  {SEED_VARIABLE}={seed}, or {name}.seed({seed})"
