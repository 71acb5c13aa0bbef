"""The entry point: runs a scenario against the cluster of a driver."""

from __future__ import annotations

import asyncio
import signal

from strandline.chaos.drivers import Driver
from strandline.chaos.report import Report
from strandline.chaos.run_state import Say
from strandline.chaos.runner import Runner
from strandline.chaos.scenario import Scenario
from strandline.protocol.errors import StrandlineError


class Terminated(StrandlineError):
    """SIGTERM ended the run. Its faults were healed first."""


async def run_scenario(scenario: Scenario, driver: Driver, say: Say = lambda event: None) -> Report:
    """Open the cluster, run the scenario, and heal every fault, also after Ctrl-C or SIGTERM.

    `say` receives each event as it happens. Raises UsageError if the cluster cannot run the scenario, DriverError or
    ClusterError if it fails underneath, and Terminated after SIGTERM. A bad verdict is not an error: see `Report.good`.
    """
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
            raise Terminated("SIGTERM ended the run; its faults were healed first") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
