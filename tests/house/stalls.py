"""Runs a command, usually pytest with several processes, on a machine that seems to stall: `make test-stalls`.

    python tests/house/stalls.py [--gap S] [--length S] [--tree] COMMAND...

Each child of the command is stopped (SIGSTOP) for about `length` seconds, on average `gap` seconds after it last went on, as busy
build machines do. A test that fails here and passes otherwise has a limit that is too short for such a machine. With `--tree`,
what a child has started (brokers, controllers) stalls with it. Processes that a test has paused stay paused.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    """The children of a process of this machine (Linux); [] if it has ended."""
    try:
        return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether the process runs. False: it has ended, or is already stopped (by a test)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "TZ"


def stop(pid: int, tree: bool) -> Iterator[int]:
    """Stop the process, and with `tree` then its descendants; yields those that were not paused before. The parent is stopped
    first, so it can no longer pause a child, and a child that a test has paused is never taken for one that was stopped here."""
    if is_running(pid):
        send(signal.SIGSTOP, pid)
        yield pid
        for child in children(pid) if tree else ():
            yield from stop(child, tree)


def send(signum: signal.Signals, pid: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def stall(child: int, gap_s: float, length_s: float, tree: bool) -> None:
    """Stop and continue the child until it has ended."""
    while Path(f"/proc/{child}").exists():
        time.sleep(random.expovariate(1 / gap_s))
        stopped = list(stop(child, tree))
        time.sleep(length_s * random.uniform(0.5, 1.3))
        for pid in stopped:
            send(signal.SIGCONT, pid)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command whose child processes stall again and again.")
    parser.add_argument("--gap", type=float, default=2.0, metavar="S", help="average time between two stalls (default 2)")
    parser.add_argument("--length", type=float, default=0.8, metavar="S", help="average length of a stall (default 0.8)")
    parser.add_argument("--tree", action="store_true", help="what a child has started stalls with it")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    process = subprocess.Popen(given.command)
    known: set[int] = set()
    while process.poll() is None:
        for child in children(process.pid):
            if child not in known:
                known.add(child)
                threading.Thread(target=stall, args=(child, given.gap, given.length, given.tree), daemon=True).start()
        time.sleep(0.5)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
