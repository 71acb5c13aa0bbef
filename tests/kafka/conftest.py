"""Both kinds of event loop that the Kafka door must run on, and a look at the names of the fields that it writes."""

from __future__ import annotations

import asyncio

import pytest
import strict_fields
import uvloop

strict_fields.install()

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def on_loop(request):
    """Runs a coroutine function on each kind of event loop."""

    def run(scenario):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(asyncio.wait_for(scenario(), 20))

    return run


@pytest.fixture(autouse=True)
def fields_have_kafkas_names():
    """See `strict_fields.py`."""
    strict_fields.misspelt.clear()
    yield
    assert not strict_fields.misspelt
