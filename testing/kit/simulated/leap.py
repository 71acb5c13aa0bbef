"""Long sleeps take no time: when nothing goes on but waiting, the test's clock leaps to the next thing that it waits for.

A cluster at rest is not still: it sends heartbeats, and asks for records that do not come. An hour of that is a minute of real
computing. So when the test has done nothing for a while, all faults are over, and the cluster has had the time to do whatever
its time-outs demand of it, the clocks of the test's machine, and all wall clocks, are set forward to just before its next timer.
The cluster does not live through the time that was leaped over, but sees its wall clocks: what a retention time makes old is old.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.testing.kit.simulated.weather import Weather
from strandline.testing.simulation.kernel.machine import Machine

SETTLED_S = 10.0
"""Longer than anything that the cluster does by itself after something has happened."""
QUIET_S, BEFORE_S = 1.0, 1.0
"""How long the test has to be quiet when the cluster has settled; and how long before its timer the leap ends."""


async def leap(machine: Machine, weather: Weather, timeout_s_max: float) -> None:
    """For ever, on the world's machine."""
    world, loop = machine.world, machine.loop
    assert loop is not None
    turns = [0]

    def count(*_: Any) -> None:
        turns[0] += 1

    loop.watch = count
    settled_s = max(SETTLED_S, 3 * timeout_s_max)
    seen, quiet_since, settled = 0, world.now, None
    while True:
        await asyncio.sleep(QUIET_S / 2)
        if turns[0] != seen or not weather.is_clear or weather.is_on:
            seen, quiet_since = turns[0], world.now
            continue
        state = _state(weather)
        quiet_s = QUIET_S if settled == state else settled_s
        if world.now - quiet_since >= quiet_s and (ahead_s := _next_timer_s(machine)) > 2 * BEFORE_S:
            _set_forward(machine, ahead_s - BEFORE_S)
            settled, quiet_since = state, world.now


def _state(weather: Weather) -> tuple[Any, ...]:
    """What the cluster is like: who runs, what is committed."""
    cluster = weather.cluster
    running = tuple(n for n, machine in cluster.machines.items() if machine.is_up)
    committed = max((b.metadata.image.offset for b in cluster.brokers.values()), default=-1)
    return running, committed, len(weather.held), weather.cut_by_test


def _next_timer_s(machine: Machine) -> float:
    """How far away the next thing is that the test's machine waits for; 0 when it waits for nothing."""
    entries = machine.world.scheduler.waiting(machine.loop._on_timer) if machine.loop is not None else []
    return min((entry[0] for entry in entries), default=machine.world.now) - machine.world.now


def _set_forward(machine: Machine, seconds: float) -> None:
    machine.world.trace.emit("test.leaps", machine.id, seconds=round(seconds, 3))
    for each in machine.world.machines.values():
        each.wall_jump_ms += int(seconds * 1000)
    machine.clock_offset_s += seconds * machine.clock_rate
    if machine.loop is not None:
        machine.loop.on_clock_rate()
