"""Measures a fail-over from a producer's view, the same for every client: one record per partition and millisecond, then a fault.

A partition's gap is the longest time between two acknowledgements around the fault. The figure is the largest of all gaps.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from itertools import pairwise
from time import perf_counter

from systems import System

WAITING_MAX = 50
"""Largest number of unacknowledged records per partition. A partition at the limit gets no record in this millisecond."""
Send = Callable[[int, bytes], Awaitable[None]]
INTERVAL_S, BEFORE_S, AFTER_S, RECOVERY_S = 0.001, 1.5, 2.0, 60.0
FAULTS = {
    "kill -9 of a leader": ("broker", signal.SIGKILL),
    "SIGTERM of a leader": ("broker", signal.SIGTERM),
    "kill -9 of the active controller": ("controller", signal.SIGKILL),
}


async def measure(system: System, topic: str, fault: str, send: Send) -> dict[str, float]:
    role, number = FAULTS[fault]
    leaders = await system.leaders(topic)
    victim = await system.active_controller() if role == "controller" else f"broker-{leaders[0]}"
    acked: dict[int, list[float]] = {partition: [] for partition in leaders}
    waiting = dict.fromkeys(leaders, 0)
    tasks: set[asyncio.Task[None]] = set()
    errors: list[Exception] = []
    going = True

    async def one(partition: int) -> None:
        waiting[partition] += 1
        try:
            await send(partition, b"x" * 100)
            acked[partition].append(perf_counter())
        except Exception as e:
            errors.append(e)
        finally:
            waiting[partition] -= 1

    async def run() -> None:
        due = perf_counter()
        while going:
            for partition in acked:
                if waiting[partition] < WAITING_MAX:
                    task = asyncio.create_task(one(partition))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            due += INTERVAL_S
            await asyncio.sleep(max(0.0, due - perf_counter()))
        await asyncio.gather(*tasks)

    running = asyncio.create_task(run())
    await asyncio.sleep(BEFORE_S)
    system.signal(victim, number)
    moment = perf_counter()
    await asyncio.sleep(AFTER_S)
    while any(not times or times[-1] < moment + AFTER_S / 2 for times in acked.values()):
        if perf_counter() > moment + RECOVERY_S:
            raise RuntimeError(f"not every partition was acknowledged again {RECOVERY_S} s after the {fault}")
        await asyncio.sleep(0.05)
    going = False
    await running
    await system.restart(victim)
    if errors:
        raise RuntimeError(f"{len(errors)} records were not delivered, the first: {errors[0]!r}")
    gaps = [max(b - a for a, b in pairwise(t for t in sorted(times) if t > moment - 0.5)) for times in acked.values()]
    return {f"{fault}: longest gap, ms": max(gaps) * 1000}
