"""The HTTP port of a real node in this process: from before its start to after its stop."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_world import ask

from strandline.broker.config import BrokerConfig
from strandline.broker.process.server import BrokerServer
from strandline.client import Admin, NewTopic
from strandline.local_cluster import free_port_range
from strandline.node import make_server
from strandline.observe import http
from strandline.observe.health import Health
from strandline.observe.http import HttpPort, bind
from strandline.observe.loop_lag import LoopLag
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import UsageError
from strandline.protocol.metrics import Histogram
from strandline.storage.files import RealFiles


class Node:
    """A node that serves HTTP, and whose server the test starts."""

    def __init__(self, role: str, config: dict[str, Any], server: BrokerServer | None = None) -> None:
        self.name, self.server = (f"broker-{server.config.node_id}", server) if server else make_server(role, config)
        listener = bind(self.server.config.values["http.listener"])
        assert listener is not None
        lag = LoopLag(asyncio.get_running_loop(), Histogram())
        self.health = Health(self.name, role, self.server, lag)
        self.http = HttpPort(listener, self.health, self.server, lag)
        self.http.start()
        self.port = int(self.http.address.rpartition(":")[2])

    async def status(self, path: str) -> int:
        return (await ask(self.port, path)).status

    async def failed_checks(self) -> list[str]:
        return [check["name"] for check in await self._checks() if not check["ok"]]

    async def detail(self, name: str) -> str:
        return next(str(check["detail"]) for check in await self._checks() if check["name"] == name)

    async def _checks(self) -> list[dict[str, Any]]:
        checks: list[dict[str, Any]] = (await ask(self.port, "/health/ready")).json()["checks"]
        return checks


def controller_config(folder: Path) -> dict[str, Any]:
    port = free_port_range(1)
    return {
        "node.id": 101,
        "cluster.id": "c",
        "log.dirs": str(folder / "controller"),
        "controller.quorum.voters": f"101@127.0.0.1:{port}",
        "http.listener": "127.0.0.1:0",
    }


def broker_config(folder: Path, voters: str) -> dict[str, Any]:
    return {
        "node.id": 1,
        "cluster.id": "c",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder / "broker"),
        "controller.quorum.voters": voters,
        "http.listener": "127.0.0.1:0",
    }


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node("controller", controller_config(tmp_path))
    yield node
    await node.http.stop()


@pytest.fixture
async def broker(tmp_path: Path, controller: Node) -> AsyncIterator[Node]:
    node = Node("broker", broker_config(tmp_path, controller.server.config.values["controller.quorum.voters"][0]))
    yield node
    await node.http.stop()


async def until_ready(node: Node, wanted: int = 200) -> None:
    async with asyncio.timeout(15):
        while await node.status("/health/ready") != wanted:
            await asyncio.sleep(0.02)


async def test_a_node_is_live_before_it_starts_and_says_what_it_waits_for(controller: Node) -> None:
    """Also the connection that is the first of all, and came before anything could answer it."""
    assert await controller.status("/health/live") == 200
    assert await controller.status("/health/ready") == 503
    assert "listening" in await controller.failed_checks()


async def test_a_controller_and_a_broker_become_ready_and_are_so_no_more_when_they_stop(controller: Node, broker: Node) -> None:
    start = asyncio.create_task(broker.server.start())
    async with asyncio.timeout(15):
        while (await broker.failed_checks())[0] != "cluster_id":
            await asyncio.sleep(0.02)
    assert await broker.detail("cluster_id") == "not known yet; asks the controllers"
    assert await broker.status("/health/live") == 200
    await controller.server.start()
    await until_ready(controller)
    await start
    await until_ready(broker)

    broker.health.on_stopping("SIGTERM")
    assert "running" in await broker.failed_checks()
    await broker.server.stop()
    assert "unfenced" in await broker.failed_checks()
    assert await broker.status("/health/live") == 200
    await controller.server.stop()


class SlowFiles(RealFiles):
    """A disk on which the log of partition 1 cannot be looked at before the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def list(self, path: str) -> list[str]:
        if path.endswith("-1"):
            assert self.released.wait(20)
        return super().list(path)


async def test_a_broker_that_recovers_its_logs_is_live_and_tells_how_far_it_is(
    tmp_path: Path, controller: Node, broker: Node
) -> None:
    """To restart it, because it is not ready yet, would begin the recovery anew, for ever."""
    await controller.server.start()
    await broker.server.start()
    async with Admin(bootstrap_servers=f"127.0.0.1:{broker.server.port}") as admin:
        await admin.create_topics([NewTopic("orders", partitions=2, replication_factor=1)])
    await broker.server.kill()  # type: ignore[attr-defined]

    files, config = (
        SlowFiles(),
        BrokerConfig.from_mapping(broker_config(tmp_path, broker.server.config.values["controller.quorum.voters"][0])),
    )
    again = Node("broker", {}, BrokerServer(config, real_doors(), files))
    start = asyncio.create_task(again.server.start())
    async with asyncio.timeout(15):
        while (await again.detail("recovery")) != "1 of 2 logs recovered":
            await asyncio.sleep(0.02)
    assert await again.status("/health/live") == 200
    assert await again.status("/health/ready") == 503
    files.released.set()
    await start
    assert await again.detail("recovery") == "2 logs open"
    await until_ready(again)
    await again.server.stop()
    await again.http.stop()
    await controller.server.stop()


async def test_a_node_that_cannot_go_on_is_not_live(controller: Node) -> None:
    await controller.server.start()
    await until_ready(controller)
    failure: asyncio.Future[Any] = getattr(controller.server, "failure")  # noqa: B009 - not in the protocol of servers
    failure.set_result(UsageError("the disk is gone"))
    live = await ask(controller.port, "/health/live")
    assert (live.status, live.json()["reason"]) == (503, "the disk is gone")
    assert "running" in await controller.failed_checks()
    await controller.server.stop()


async def is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("role", ["broker", "controller"])
async def test_metrics_are_there_at_every_moment_of_a_life(role: str, controller: Node, broker: Node) -> None:
    """The first scrape may come before anything that it looks at exists."""
    node = {"broker": broker, "controller": controller}[role]
    assert await node.status("/metrics") == 200
    await controller.server.start()
    await broker.server.start()
    during = await ask(node.port, "/metrics")
    assert during.status == 200
    assert "strandline_event_loop_lag_seconds_count" in during.text
    assert "strandline_scrape_errors_total 0.0" in during.text
    await broker.server.stop()
    await controller.server.stop()
    assert await node.status("/metrics") == 200


async def test_http_that_cannot_be_served_refuses_instead_of_keeping_people_waiting(
    controller: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the node works all the same."""

    def fail() -> None:
        raise ImportError("no such module")

    monkeypatch.setattr(http, "_import", fail)
    with pytest.raises((OSError, IndexError)):  # the one that came first is cut off, the next is refused
        await ask(controller.port, "/health/live")
    async with asyncio.timeout(10):
        while await is_open(controller.port):
            await asyncio.sleep(0.01)
    await controller.server.start()
    await controller.server.stop()


def test_no_listener_is_no_socket() -> None:
    assert bind("") is None


def test_a_taken_port_is_told_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError) as refused:
            bind(address)
    assert str(refused.value) == f"cannot listen on {address} for HTTP (http.listener): address already in use"


@pytest.mark.parametrize(("listener", "word"), [("198.51.100.1:0", "assign"), ("no.such.host.invalid:80", "name")])
def test_an_address_that_is_not_ours_is_told_too(listener: str, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        bind(listener)
    assert listener in str(refused.value)
    assert word in str(refused.value)


def test_an_ipv6_address_stands_in_brackets() -> None:
    try:
        listener = bind("[::1]:0")
    except UsageError:
        pytest.skip("no IPv6 here")
    assert listener is not None
    assert listener.family == socket.AF_INET6
    listener.close()


def test_a_port_that_was_used_a_moment_ago_is_free_again() -> None:
    """A node that is started again finds connections of its past in TIME_WAIT."""
    first = bind("127.0.0.1:0")
    assert first is not None
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        first.setblocking(True)
        accepted, _ = first.accept()
        accepted.close()
    first.close()
    again = bind(f"127.0.0.1:{port}")
    assert again is not None, errno.EADDRINUSE
    again.close()
