"""Runs tests of the rpc layer on both kinds of event loop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def on_loop(request):
    """Runs a coroutine function on each kind of event loop."""

    def run(scenario):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(asyncio.wait_for(scenario(), 20))

    return run
