"""`strandline up` locks its folder before it writes there, and starts no process with a wrong configuration."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, one_sentence, run, start_up

from strandline.local_cluster import LocalCluster, free_port_range
from strandline.protocol.errors import UsageError

pytestmark = pytest.mark.processes


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Up]:
    """Arguments for one broker and one controller in the test's folder."""
    with start_up(tmp_path, "--brokers", "1", "--controllers", "1") as up:
        yield up


def written_files(folder: Path) -> dict[str, bytes]:
    """Return the files that `up` writes: `cluster.json` and the configuration of each node."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted([*folder.glob("*.json"), *folder.glob("*/*.toml")])}


def test_a_second_up_on_a_used_folder_changes_nothing(small: Up) -> None:
    """Before, it gave every node new ports in its configuration, so a restarted node was unreachable."""
    before, names = written_files(small.folder), sorted(p.name for p in small.folder.iterdir())
    outcome = run("up", "--data", str(small.folder), "--base-port", str(free_port_range(15)))
    assert outcome.code == 1
    complaint = one_sentence(outcome)
    assert str(small.folder) in complaint
    assert str(small.process.pid) in complaint
    assert written_files(small.folder) == before
    assert sorted(p.name for p in small.folder.iterdir()) == names
    assert run("node", "kill", "broker-1", "--data", str(small.folder)).code == 0
    assert run("node", "start", "broker-1", "--data", str(small.folder)).code == 0
    assert run("topic", "create", "works", "--partitions", "1", "--bootstrap", small.bootstrap).code == 0


def test_only_one_of_two_simultaneous_ups_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    arguments = ["up", "--json", "--data", str(folder), "--brokers", "1", "--controllers", "1", "--base-port"]
    both = [
        subprocess.Popen(
            [*COMMAND, *arguments, str(base)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        for base in (free_port_range(5), free_port_range(5))
    ]
    try:
        done = {process: process.stdout.readline() for process in both if process.stdout is not None}
        refused = [process for process, line in done.items() if not line]
        assert len(refused) == 1
        _, complaint = refused[0].communicate(timeout=20)
        assert refused[0].returncode == 1
        assert len(complaint.splitlines()) == 1
        (winner,) = [process for process in both if process is not refused[0]]
        assert winner.stdout is not None
        assert any('"ready"' in line for line in winner.stdout)
    finally:
        for process in both:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def test_up_waits_for_the_nodes_of_a_killed_up(tmp_path: Path) -> None:
    """The kernel frees the folder's lock at once, but the nodes keep their data directories and ports until they end."""
    base = str(free_port_range(5))
    arguments = ("--brokers", "1", "--controllers", "1", "--set", "controlled.shutdown.timeout.ms=500")
    with start_up(tmp_path, *arguments, base_port=base) as first:
        first.process.kill()
        first.process.wait()
    with start_up(tmp_path, *arguments, base_port=base) as second:
        assert [n["name"] for n in second.ready["nodes"]] == ["broker-1", "controller-101"]


def test_a_leftover_node_is_named(tmp_path: Path) -> None:
    """A paused node does not notice that its `up` is gone."""
    with start_up(tmp_path, "--brokers", "1", "--controllers", "1") as first:
        pid = next(n["pid"] for n in first.ready["nodes"] if n["name"] == "broker-1")
        os.kill(pid, signal.SIGSTOP)
        first.process.kill()
        first.process.wait()
    try:
        before = written_files(tmp_path / "data")
        ports = ["--base-port", str(free_port_range(5)), "--brokers", "1", "--controllers", "1"]
        outcome = run("up", "--data", str(tmp_path / "data"), *ports)
        assert outcome.code == 1
        assert f"broker-1 (pid {pid})" in one_sentence(outcome)
        assert written_files(tmp_path / "data") == before
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--controllers", "2"], "--controllers takes 1, 3 or 5, not 2"),
        (["--base-port", "65530"], "65536"),
        (["--base-port", "-5"], "-5"),
        (["--set", "broker.heartbeat.interval.ms=60000"], "broker.heartbeat.interval.ms"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_configuration_is_refused_before_anything_is_written(arguments: list[str], word: str, tmp_path: Path) -> None:
    """Before, two controllers started five processes, and six lines reported their ends."""
    outcome = run("up", "--data", str(tmp_path / "data"), "--base-port", str(free_port_range(15)), *arguments)
    assert outcome.code == 2
    assert word in one_sentence(outcome)
    assert not (tmp_path / "data").exists()


def test_the_controllers_of_a_folder_cannot_change(small: Up) -> None:
    """A quorum of fewer voters could elect a controller that lacks committed metadata."""
    small.process.send_signal(signal.SIGINT)
    assert small.process.wait(30) == 0
    before = written_files(small.folder)
    outcome = run("up", "--data", str(small.folder), "--brokers", "1", "--base-port", str(free_port_range(15)))
    assert outcome.code == 2
    assert "--controllers 1" in one_sentence(outcome)
    assert written_files(small.folder) == before


def test_local_cluster_refuses_two_controllers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not 2"):
        LocalCluster(tmp_path, controllers=2)


def test_a_failed_start_is_one_sentence(tmp_path: Path) -> None:
    """`up` then stops the other nodes itself, and does not report their ends."""
    (tmp_path / "data" / "broker-1").mkdir(parents=True)
    (tmp_path / "data" / "broker-1" / "data").write_text("not a folder")
    words = ["--base-port", str(free_port_range(15)), "--brokers", "1", "--controllers", "1"]
    outcome = run("up", "--data", str(tmp_path / "data"), *words)
    assert outcome.code == 1
    assert "broker-1" in one_sentence(outcome)
