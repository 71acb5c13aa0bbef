"""A node as a process: the data directories that it accepts (F16, F24), and a closed pipe of its log."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_world import COMMAND, ENVIRONMENT, run, wait_until

from strandline.local_cluster import free_port_range

pytestmark = pytest.mark.processes


def controller(data: Path, port: int, **more: str) -> list[str]:
    """The arguments of a controller that is a quorum of one."""
    node_id = more.get("node_id", "101")
    settings = {
        "node.id": node_id,
        "cluster.id": "test-cluster",
        "log.dirs": str(data),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{port}",
    } | {k.replace("_", "."): v for k, v in more.items()}
    return ["controller", *[word for key, value in settings.items() for word in ("--set", f"{key}={value}")]]


@contextmanager
def running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a node and wait until its log says that it is ready. The caller can read the following lines."""
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    assert process.stderr is not None
    try:
        assert any(line.startswith("{") and json.loads(line)["event"] == "node.started" for line in process.stderr)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_closed_log_pipe_does_not_end_a_node(tmp_path: Path) -> None:
    """F22: in `strandline controller ... 2>&1 | head` the end of `head` must not end the node, nor may SIGPIPE."""
    words = controller(tmp_path / "data", free_port_range(1))
    with running(words) as process:
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGPIPE)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_killed_controller_restarts_on_its_data(tmp_path: Path) -> None:
    words = controller(tmp_path / "data", free_port_range(1))
    for _ in range(2):
        with running(words):
            pass


def test_a_second_controller_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """F24: the second one uses another port, so the lock of the folder must stop it."""
    data = tmp_path / "data"
    with running(controller(data, free_port_range(1))) as process:
        outcome = run(*controller(data, free_port_range(1)))
        assert outcome.code == 1
        assert str(data) in outcome.err.splitlines()[-1]
        assert process.poll() is None


@pytest.mark.parametrize(
    ("setting", "word"), [({"cluster_id": "another-cluster"}, "another-cluster"), ({"node_id": "102"}, "102")], ids=str
)
def test_the_metadata_of_another_cluster_or_node_is_refused(tmp_path: Path, setting: dict[str, str], word: str) -> None:
    """F16: a node must not use a folder that was copied from another node or cluster."""
    data, port = tmp_path / "data", free_port_range(1)
    with running(controller(data, port)):
        wait_until((data / "meta.properties").exists, "the data directory is written")
    outcome = run(*controller(data, port, **setting))
    assert outcome.code == 1
    assert str(data) in outcome.err.splitlines()[-1]
    assert word in outcome.err.splitlines()[-1]
