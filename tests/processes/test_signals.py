"""The reactions of a single process to signals, while it starts, runs and stops."""

from __future__ import annotations

import json
import signal

import pytest
from load import until

from strandline.local_cluster import LocalCluster, Node

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]


def events(node: Node) -> list[str]:
    return [json.loads(line)["event"] for line in node.log_file.read_text().splitlines() if line.startswith("{")]


async def test_a_second_sigterm_ends_a_slow_stop(cluster: LocalCluster) -> None:
    """No controller responds, so the broker waits to hand over its leaders. A second signal ends the wait; the next start then
    recovers the logs."""
    broker = cluster.broker(1)
    for controller in cluster.controllers:
        cluster.pause(controller.name)
    stops = events(broker).count("node.stopping")
    cluster.terminate(broker.name)
    await until(lambda: events(broker).count("node.stopping") > stops, "the broker begins to stop")
    assert broker.running
    cluster.terminate(broker.name)
    await cluster.wait_ended(broker.name, timeout_ms=3000)
    assert broker.process is not None
    assert broker.process.returncode == 128 + signal.SIGTERM
    for controller in cluster.controllers:
        cluster.resume(controller.name)
    await cluster.start_node(broker.name)
    await cluster.wait_ready()


async def test_sighup_is_ignored(cluster: LocalCluster) -> None:
    """A closed terminal must not stop a node."""
    for node in cluster.nodes.values():
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
    await cluster.wait_ready()
    assert all(node.running for node in cluster.nodes.values())


async def test_a_broker_stops_while_it_looks_for_a_controller(cluster: LocalCluster) -> None:
    """A SIGTERM during the start, before the registration, must lead to a clean end."""
    broker = cluster.broker(2)
    cluster.terminate(broker.name)
    await cluster.wait_ended(broker.name)
    for controller in cluster.controllers:
        cluster.pause(controller.name)
    waits = events(broker).count("peers.awaited")
    await cluster.start_node(broker.name)
    await until(lambda: events(broker).count("peers.awaited") > waits, "the broker looks for a controller")
    cluster.terminate(broker.name)
    await cluster.wait_ended(broker.name, timeout_ms=5000)
    assert broker.process is not None
    assert broker.process.returncode == 0
    for controller in cluster.controllers:
        cluster.resume(controller.name)
