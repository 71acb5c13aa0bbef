"""Skips the time of long sleeps: while the test only waits, its clock leaps to its next timer.

A cluster at rest is not idle: it sends heartbeats and fetches that return nothing. Simulating an hour of that takes a minute.
So when the test has done nothing for a while, all faults are over, and the cluster has had time for everything that its
timeouts cause, the clocks of the test's machine and all wall clocks are set forward to shortly before the test's next timer.
The cluster does not run through the skipped time, but its wall clocks show it, so that records exceed their retention time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.testing.kit.simulated.weather import Weather
from strandline.testing.simulation.kernel.machine import Machine

SETTLED_S = 10.0
"""Seconds, longer than anything that the cluster does by itself after an event."""
QUIET_S, BEFORE_S = 1.0, 1.0
"""Seconds that the test must do nothing once the cluster has settled; seconds before its next timer at which the leap ends."""


async def leap(machine: Machine, weather: Weather, timeout_s_max: float) -> None:
    """Watch the test and leap whenever possible. Runs until it is cancelled."""
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
    """State that must not change before a leap: running nodes, newest metadata offset, nodes and links that the test took."""
    cluster = weather.cluster
    running = tuple(n for n, machine in cluster.machines.items() if machine.is_up)
    committed = max((b.metadata.image.offset for b in cluster.brokers.values()), default=-1)
    return running, committed, len(weather.held), weather.cut_by_test


def _next_timer_s(machine: Machine) -> float:
    """Seconds until the next timer of the test's machine; 0 if it has none."""
    entries = machine.world.scheduler.waiting(machine.loop.on_timer) if machine.loop is not None else []
    return min((entry[0] for entry in entries), default=machine.world.now) - machine.world.now


def _set_forward(machine: Machine, seconds: float) -> None:
    machine.world.trace.emit("test.leaps", machine.id, seconds=round(seconds, 3))
    for each in machine.world.machines.values():
        each.wall_jump_ms += int(seconds * 1000)
    machine.clock_offset_s += seconds * machine.clock_rate
    if machine.loop is not None:
        machine.loop.on_clock_rate()
