"""The end of a node's process: why it ended, as its supervisor learns it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline import node
from strandline.protocol.errors import StrandlineError
from strandline.storage.files import DiskError

SIGNAL = "SIGTERM"


class EndingServer:
    """A server that is asked to stop, or fails, or both, in a given order. `during_stop` runs while it stops."""

    config: Any = None
    security: Any = None
    port = 0

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.failure: asyncio.Future[StrandlineError] = asyncio.get_running_loop().create_future()
        self.during_stop = lambda: None

    def fail(self) -> None:
        self.failure.set_result(DiskError("append", "/data", 5))

    def be_asked(self) -> None:
        self.asked.set_result(SIGNAL)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.during_stop()

    async def end(self) -> StrandlineError | None:
        async with asyncio.timeout(5):
            return await node._run(self, self.asked, "")


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> EndingServer:
    monkeypatch.setattr(node, "_calm_the_collector", lambda: None)  # the collector of the tests stays as it is
    return EndingServer()


async def test_failure_is_reported_although_a_signal_arrives_during_the_stop(server: EndingServer) -> None:
    """systemd restarts a node on failure only: with exit code 0, a node whose disk failed would stay down."""
    server.during_stop = server.be_asked
    server.fail()
    assert await server.end() is server.failure.result()


async def test_failure_during_a_requested_stop_is_no_failure(server: EndingServer) -> None:
    """The operator wanted the node to stop; a restart would undo that."""
    server.during_stop = server.fail
    server.be_asked()
    assert await server.end() is None
