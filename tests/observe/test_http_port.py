"""The HTTP port of a real node in this process, from before its start until after its stop."""

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
from strandline.cli.probe import ask_node
from strandline.client import Admin, NewTopic, Producer
from strandline.local_cluster import free_port_range
from strandline.node import make_server
from strandline.observe import http
from strandline.observe.broker import partitions
from strandline.observe.health import Health
from strandline.observe.http import HttpPort, bind
from strandline.observe.loop_lag import LoopLag
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import UsageError
from strandline.protocol.metrics import Histogram
from strandline.storage.files import RealFiles


class Node:
    """A node that serves HTTP; the test starts its server."""

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


async def test_a_node_is_live_before_its_start(controller: Node) -> None:
    """This includes the first connection, which arrived before the port was served."""
    assert await controller.status("/health/live") == 200
    assert await controller.status("/health/ready") == 503
    assert "listening" in await controller.failed_checks()


async def test_nodes_become_ready_and_lose_it_when_they_stop(controller: Node, broker: Node) -> None:
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


async def test_a_log_kept_by_a_future_timestamp_is_a_warning(controller: Node, broker: Node) -> None:
    """The broker is ready: a probe that failed would restart it, which changes nothing."""
    await controller.server.start()
    await broker.server.start()
    address = f"127.0.0.1:{broker.server.port}"
    async with Admin(bootstrap_servers=address) as admin:
        configs = {"message.timestamp.after.max.ms": str(2**62)}
        await admin.create_topics([NewTopic("orders", partitions=1, replication_factor=1, configs=configs)])
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send("orders", b"tea", timestamp_ms=4_000_000_000_000)
    server: Any = broker.server
    server.log_manager_tasks.delete_old_segments(server.replicas)
    await until_ready(broker)
    verdict = await asyncio.to_thread(ask_node, f"127.0.0.1:{broker.port}", 5)
    assert verdict.healthy
    (warning,) = verdict.warnings
    assert warning.startswith("orders-0: retention.ms deletes nothing")
    assert verdict.facts["warnings"] == [warning]
    (value,) = [one.value for one in partitions(server) if one.name == "strandline_logs_kept_by_future_timestamp"]
    assert value == 1


class SlowFiles(RealFiles):
    """A disk on which the log of partition 1 cannot be opened until the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def list(self, path: str) -> list[str]:
        if path.endswith("-1"):
            assert self.released.wait(20)
        return super().list(path)


async def test_a_recovering_broker_is_live_and_reports_progress(tmp_path: Path, controller: Node, broker: Node) -> None:
    """A restart because the broker is not ready would start the recovery again, without end."""
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


async def test_a_failed_node_is_not_live(controller: Node) -> None:
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
async def test_metrics_exist_during_the_whole_life_of_a_node(role: str, controller: Node, broker: Node) -> None:
    """The first scrape may arrive before the objects that it reads exist."""
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


async def test_a_broken_http_port_refuses_connections(controller: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node works without HTTP, and clients must not wait for a response."""

    def fail() -> None:
        raise ImportError("no such module")

    monkeypatch.setattr(http, "_import", fail)
    with pytest.raises((OSError, IndexError)):  # the first connection is cut off, the next is refused
        await ask(controller.port, "/health/live")
    async with asyncio.timeout(10):
        while await is_open(controller.port):
            await asyncio.sleep(0.01)
    await controller.server.start()
    await controller.server.stop()


def test_no_listener_is_no_socket() -> None:
    assert bind("") is None


def test_a_taken_port_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError) as refused:
            bind(address)
    assert str(refused.value) == f"cannot listen on {address} for HTTP (http.listener): address already in use"


@pytest.mark.parametrize(("listener", "word"), [("198.51.100.1:0", "assign"), ("no.such.host.invalid:80", "name")])
def test_a_foreign_address_is_named_with_its_key(listener: str, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        bind(listener)
    assert listener in str(refused.value)
    assert word in str(refused.value)


def test_an_ipv6_address_has_brackets() -> None:
    try:
        listener = bind("[::1]:0")
    except UsageError:
        pytest.skip("no IPv6 here")
    assert listener is not None
    assert listener.family == socket.AF_INET6
    listener.close()


def test_a_port_in_time_wait_can_be_bound() -> None:
    """A restarted node finds connections of its predecessor in TIME_WAIT."""
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
