"""One small cluster, run by `strandline up`, for all tests of the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, wait_until

from strandline.local_cluster import free_port_range


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three brokers and one controller, by the command itself."""
    folder = tmp_path_factory.mktemp("up")
    output = folder / "up.jsonl"
    arguments = ["up", "--json", "--data", str(folder / "data"), "--base-port", str(free_port_range(8)), "--controllers", "1"]
    with output.open("w") as out, (folder / "up.err").open("w") as err:
        process = subprocess.Popen([*COMMAND, *arguments], stdout=out, stderr=err, text=True, env=ENVIRONMENT)
    try:

        def events() -> list[dict[str, Any]]:
            return [json.loads(line) for line in output.read_text().splitlines()]

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "up.err").read_text()
            return any(e["event"] == "ready" for e in events())

        wait_until(is_ready, "the cluster is ready")
        ready = next(e for e in events() if e["event"] == "ready")
        yield Up(process, ready, folder / "data", events)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
