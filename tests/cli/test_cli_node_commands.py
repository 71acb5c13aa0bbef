"""`strandline up` runs a cluster in the foreground, and `strandline node` acts on it from another terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, run, start_up, wait_until

from strandline.local_cluster import free_port_range

pytestmark = pytest.mark.processes


def state_of(up: Up, name: str) -> dict[str, Any]:
    nodes = run("node", "list", "--data", str(up.folder), "--json").json()["nodes"]
    return next(n for n in nodes if n["name"] == name)


def test_ready_lists_every_node_with_pid_and_address(up: Up) -> None:
    names = [n["name"] for n in up.ready["nodes"]]
    assert names == ["broker-1", "broker-2", "broker-3", "controller-101"]
    ended = {e["node"] for e in up.events() if e["event"] in ("killed", "stopped")}  # by a test that had the cluster before
    for node in up.ready["nodes"]:
        assert {"name", "role", "id", "pid", "host", "port", "http", "data"} <= node.keys()
        if node["name"] not in ended:
            os.kill(node["pid"], 0)
        assert Path(node["data"], "meta.properties").exists()
    assert up.bootstrap == ",".join(f"127.0.0.1:{n['port']}" for n in up.ready["nodes"] if n["role"] == "broker")


def test_ready_and_the_state_file_have_the_addresses_for_kafkas_clients(up: Up) -> None:
    """Their ports follow those of health and metrics, so that the latter are the same in a cluster without these addresses."""
    nodes = up.ready["nodes"]
    assert up.ready["kafka_bootstrap"] == ",".join(n["kafka"] for n in nodes if n["role"] == "broker")
    assert [n["kafka"] for n in nodes if n["role"] == "controller"] == [None]
    assert json.loads((up.folder / "cluster.json").read_text())["kafka_bootstrap"] == up.ready["kafka_bootstrap"]
    listed = run("node", "list", "--data", str(up.folder), "--json").json()
    assert listed["kafka_bootstrap"] == up.ready["kafka_bootstrap"]
    ports = [int(address.rpartition(":")[2]) for n in nodes for address in (n["http"], n["kafka"]) if address]
    assert max(n["port"] for n in nodes) < min(ports)


def test_up_without_kafka_has_no_such_listener(tmp_path: Path) -> None:
    with start_up(tmp_path, "--brokers", "1", "--controllers", "1", "--no-kafka") as small:
        assert "kafka_bootstrap" not in small.ready
        assert [n["kafka"] for n in small.ready["nodes"]] == [None, None]
        assert "KAFKA" not in (small.folder / "broker-1" / "broker.toml").read_text()


def test_a_killed_node_is_reported_by_up(up: Up) -> None:
    killed = run("node", "kill", "broker-2", "--data", str(up.folder), "--json")
    assert killed.code == 0
    assert killed.json()["state"] == "down"
    wait_until(lambda: any(e["event"] == "killed" and e["node"] == "broker-2" for e in up.events()), "up tells of the death")
    assert up.process.poll() is None
    assert run("node", "kill", "broker-2", "--data", str(up.folder)).code == 2  # it is not running
    started = run("node", "start", "broker-2", "--data", str(up.folder), "--json")
    assert started.code == 0
    assert started.json()["pid"] > 0


def test_a_stopped_node_shuts_down_cleanly(up: Up) -> None:
    assert run("node", "stop", "broker-3", "--data", str(up.folder)).code == 0
    assert any(e["event"] == "stopped" and "exit code 0" in e["text"] for e in up.events())
    assert run("node", "start", "broker-3", "--data", str(up.folder)).code == 0


def test_a_paused_node_responds_again_when_resumed(up: Up) -> None:
    pid = state_of(up, "broker-1")["pid"]
    assert run("node", "pause", "broker-1", "--data", str(up.folder)).code == 0
    assert state_of(up, "broker-1")["state"] == "paused"
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T", "the process is stopped")
    assert run("node", "resume", "broker-1", "--data", str(up.folder)).code == 0
    assert state_of(up, "broker-1") | {"state": "running", "pid": pid} == state_of(up, "broker-1")


def test_a_node_killed_from_outside_is_reported(up: Up) -> None:
    """`up` also notices a kill -9 that no `strandline node` command sent."""
    os.kill(state_of(up, "broker-2")["pid"], signal.SIGKILL)
    wait_until(lambda: any(e["event"] == "exited" and e["node"] == "broker-2" for e in up.events()), "up tells of the death")
    assert run("node", "start", "broker-2", "--data", str(up.folder)).code == 0


def test_nodes_end_when_up_is_killed(tmp_path: Path) -> None:
    """Each node holds one end of a pipe from `up`, and ends when the pipe closes, however `up` ended."""
    arguments = ["up", "--json", "--data", str(tmp_path / "data"), "--brokers", "1", "--controllers", "1"]
    # A controlled shutdown needs the controller, which ends at the same time.
    arguments += ["--base-port", str(free_port_range(5)), "--set", "controlled.shutdown.timeout.ms=500"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    with process.stdout:
        ready = next(e for e in map(json.loads, process.stdout) if e["event"] == "ready")
        process.kill()
        process.wait()
    for node in ready["nodes"]:
        wait_until(lambda pid=node["pid"]: not _alive(pid), f"{node['name']} ends")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
