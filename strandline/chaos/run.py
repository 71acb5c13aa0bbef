"""The one way in: a scenario, a driver, and somebody who listens."""

from __future__ import annotations

import asyncio
import signal

from strandline.chaos.drivers import Driver
from strandline.chaos.report import Report
from strandline.chaos.run_state import Say
from strandline.chaos.runner import Runner
from strandline.chaos.scenario import Scenario
from strandline.protocol.errors import StrandlineError


class BrokenOff(StrandlineError):
    """SIGTERM ended the run. What the scenario had broken was mended first."""


async def run_scenario(scenario: Scenario, driver: Driver, say: Say = lambda event: None) -> Report:
    """Open the cluster, run, leave it whole. SIGTERM is taken as Ctrl-C is: what was broken is mended first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    terminated = asyncio.Event()

    def on_sigterm() -> None:
        terminated.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, on_sigterm)
    try:
        await driver.open(scenario)
        try:
            return await Runner(scenario, driver, say).run()
        finally:
            await driver.close()
    except asyncio.CancelledError:
        if terminated.is_set():
            raise BrokenOff("broken off by SIGTERM; what the scenario had broken was mended") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
