"""Health of real processes, as an orchestrator sees it when a cluster has a fault."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from http_world import Answer, ask

from strandline.local_cluster import LocalCluster, free_port_range

pytestmark = pytest.mark.processes

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_")}


def start_broker(folder: Path, http_listener: str, **environment: str) -> subprocess.Popen[str]:
    """Start a broker whose controllers do not exist."""
    settings = {
        "node.id": "1",
        "cluster.id": "c",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder / "data"),
        "controller.quorum.voters": "101@127.0.0.1:1",
        "http.listener": http_listener,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "strandline.node", "broker", *words],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT | environment,
    )


async def until(condition: Callable[[Answer], bool], port: int, path: str, timeout_s: float = 20) -> Answer:
    """Repeat the request until the response is the expected one. A port that is not open yet counts as no response."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                answer = await ask(port, path)
                if condition(answer):
                    return answer
            except (ConnectionRefusedError, IndexError):
                pass
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_taken_http_port_ends_the_start_with_one_sentence(tmp_path: Path, log_format: str) -> None:
    """The start ends before it changes the data directory. Log collectors get the error as a line of JSON."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start_broker(tmp_path, address, STRANDLINE_LOG_FORMAT=log_format)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    sentence = f"cannot listen on {address} for HTTP (http.listener): address already in use"
    if log_format == "console":
        assert said == f"strandline: broker-1: {sentence}\n"
    else:
        line = json.loads(said)
        assert (line["event"], line["reason"], line["node"]) == ("node.refused", sentence, "broker-1")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [("STRANDLINE_LOG_FORMAT", "xml", "auto, json, console"), ("STRANDLINE_LOG_LEVEL", "loud", "debug, info, warning, error")],
)
def test_a_wrong_setting_of_the_log_is_refused_in_one_sentence(tmp_path: Path, name: str, value: str, choices: str) -> None:
    process = start_broker(tmp_path, "", **{name: value})
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert json.loads(said)["reason"] == f"{name}: {value!r} is not allowed: must be one of {choices}"


async def test_a_broker_without_controllers_is_live_and_not_ready(tmp_path: Path) -> None:
    """A restart would not help, and clients must not be sent to the broker."""
    port = free_port_range(1)
    process = start_broker(tmp_path, f"127.0.0.1:{port}")
    try:
        ready = await until(lambda answer: "registered" in answer.text, port, "/health/ready")
        assert ready.status == 503
        assert (await ask(port, "/health/live")).status == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        process.communicate()


async def test_a_broker_without_contact_to_a_controller_is_not_ready(tmp_path: Path) -> None:
    """The controllers may have fenced the broker without its knowledge."""
    settings = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 300}
    async with LocalCluster(tmp_path, brokers=1, controllers=1, settings=settings) as cluster:
        broker, controller = cluster.nodes["broker-1"], cluster.nodes["controller-101"]
        for node in (broker, controller):
            await until(lambda answer: answer.status == 200, node.http_port, "/health/ready")
        cluster.pause(controller.name)
        lost = await until(lambda answer: answer.status == 503, broker.http_port, "/health/ready")
        assert [check["name"] for check in lost.json()["checks"] if not check["ok"]] == ["metadata"]
        assert (await ask(broker.http_port, "/health/live")).status == 200
        cluster.resume(controller.name)
        await until(lambda answer: answer.status == 200, broker.http_port, "/health/ready")


async def test_a_stopping_node_is_not_ready(tmp_path: Path) -> None:
    """A load balancer must stop sending before the port closes. Here the broker waits for a paused controller."""
    settings = {"controlled.shutdown.timeout.ms": 30_000}
    async with LocalCluster(tmp_path, brokers=1, controllers=1, settings=settings) as cluster:
        broker = cluster.nodes["broker-1"]
        await until(lambda answer: answer.status == 200, broker.http_port, "/health/ready")  # a fenced broker would not wait
        cluster.pause("controller-101")
        cluster.terminate(broker.name)
        stopping = await until(lambda answer: "is stopping" in answer.text, broker.http_port, "/health/ready")
        assert stopping.status == 503
        cluster.resume("controller-101")
        await cluster.wait_ended(broker.name)
        with pytest.raises(ConnectionRefusedError):
            await ask(broker.http_port, "/health/live")


async def test_a_cluster_without_http_listens_on_no_port(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1, controllers=1, settings={"http.listener": ""}) as cluster:
        assert [node["http"] for node in cluster.describe()["nodes"]] == [None, None]


async def test_the_state_of_a_cluster_has_each_http_address(tmp_path: Path) -> None:
    base = free_port_range(4)
    async with LocalCluster(tmp_path, brokers=1, controllers=1, base_port=base) as cluster:
        nodes = json.loads((tmp_path / "cluster.json").read_text())["nodes"]
        assert [node["http"] for node in nodes] == [f"127.0.0.1:{base + 2}", f"127.0.0.1:{base + 3}"]
        for node in cluster.nodes.values():
            assert (await ask(node.http_port, "/health/live")).json()["node"] == node.name


async def test_the_last_line_of_a_dead_node_is_printed_as_a_sentence(tmp_path: Path) -> None:
    """In the node's log the line is JSON."""
    base = free_port_range(4)
    events: list[str] = []
    cluster = LocalCluster(tmp_path, brokers=1, controllers=1, base_port=base, on_event=lambda event: events.append(event.text))
    with socket.create_server(("127.0.0.1", base + 2)):
        cluster._write_configs()
        await cluster.start_node("broker-1")
        await cluster.wait_ended("broker-1")
    sentence = f"cannot listen on 127.0.0.1:{base + 2} for HTTP (http.listener): address already in use"
    assert events[-1] == f"ended by itself: {sentence} (exit code 1)"
