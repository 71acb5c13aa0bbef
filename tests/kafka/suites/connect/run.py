"""Kafka Connect's standalone worker on Strandline: a file becomes a topic, and the topic becomes a file, over a restart."""

from __future__ import annotations

import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from jvm import artifact, java, kafka_libraries, missing  # noqa: E402
from suite import FAILED, PASSED, Results, cluster, main, work_folder  # noqa: E402

from strandline.local_cluster import free_port_range  # noqa: E402

FILE_CONNECTORS = "org.apache.kafka:connect-file:4.3.1"
WORKER = "org.apache.kafka.connect.cli.ConnectStandalone"
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
SECONDS = 60.0
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


def write_properties(path: Path, properties: dict[str, object]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(path)


def properties(bootstrap: str, folder: Path) -> list[str]:
    """Write the files of the worker, the source and the sink; returns their paths."""
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": CONVERTER,
        "value.converter": CONVERTER,
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 200,
        "plugin.discovery": "only_scan",
        "listeners": f"http://127.0.0.1:{free_port_range(1)}",
    }
    source = {"name": "source", "connector.class": "FileStreamSource", "file": folder / "in.txt", "topic": "from_a_file"}
    sink = {"name": "sink", "connector.class": "FileStreamSink", "file": folder / "out.txt", "topics": "from_a_file"}
    files = {"worker": worker, "source": source, "sink": sink}
    return [write_properties(folder / f"{name}.properties", given) for name, given in files.items()]


def copy_lines(bootstrap: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Copy the lines in two parts, each with its own worker. The second one begins where the first one ended."""
    files = properties(bootstrap, folder)
    class_path = [f"{kafka_libraries()}/*", str(artifact(FILE_CONNECTORS))]
    ended: dict[str, tuple[str, str]] = {}
    lines: list[str] = []
    for part in ("first", "after_a_restart"):
        lines += [f"{part} {number}" for number in range(500)]
        (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
        worker = java(class_path, WORKER, *files, log=folder / "connect.log")
        copied = wait_for(folder / "out.txt", lines)
        worker.terminate()
        worker.wait(30)
        why = f"{len(copied)} of {len(lines)} lines are there; see {folder}/connect.log"
        ended[f"copies_{part}"] = (PASSED, "") if copied == lines else (FAILED, why)
    return ended


def wait_for(path: Path, lines: list[str]) -> list[str]:
    deadline = time.monotonic() + SECONDS
    while True:
        copied = path.read_text().splitlines() if path.exists() else []
        if len(copied) >= len(lines) or time.monotonic() > deadline:
            return copied
        time.sleep(0.1)


def results(_tests: list[str]) -> Results:
    """Run all tests, because they build on one another."""
    with work_folder("connect") as folder, cluster(folder / "cluster", settings=SETTINGS) as running:
        return {**copy_lines(running.bootstrap, folder), **running.result()}


if __name__ == "__main__":
    sys.exit(main(HERE, results, missing=missing(), requirement="STRANDLINE_REQUIRE_KAFKA"))
