"""Finds the processes of a Spark driver in /proc (Linux), and their roles.

    driver        the Python program
      JVM         Spark itself; with the master `local-cluster[...]` it contains Spark's master and workers too
        planner   Python: chooses the offsets of a stream's next batch
        executor  a JVM
          daemon  Python: forks the workers
            worker  Python: runs tasks

Every process that a driver starts stays in the driver's session, even if its parent dies, so `end_sessions` finds all of them.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    command: str


def processes() -> list[Process]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # The process ended meanwhile.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if fields[0] != "Z":
                found.append(Process(int(folder.name), int(fields[1]), int(fields[3]), command))
    return found


def role_of(process: Process, all_of_them: dict[int, Process]) -> str:
    command = process.command
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "python_streaming_source_runner" in command:
        return "planner"
    if "pyspark.daemon" in command:
        parent = all_of_them.get(process.parent)
        return "worker" if parent is not None and "pyspark.daemon" in parent.command else "daemon"
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return "jvm"
    return ""


def by_role(sessions: set[int]) -> dict[str, list[int]]:
    """Role -> sorted pids of Spark's processes in these sessions."""
    own = {process.pid: process for process in processes() if process.session in sessions}
    roles: dict[str, list[int]] = {}
    for process in own.values():
        if role := role_of(process, own):
            roles.setdefault(role, []).append(process.pid)
    return {role: sorted(pids) for role, pids in roles.items()}


def kill(pid: int) -> None:
    """Send SIGKILL. A process that has already ended is ignored."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_sessions(sessions: set[int]) -> None:
    for process in processes():
        if process.session in sessions:
            kill(process.pid)
