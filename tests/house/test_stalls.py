"""`make test-stalls` stops the processes below a command for a while, and what a test has paused stays paused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "stalls.py"

LOOKS_AT_THE_CLOCK = """
import subprocess, sys, time
code = "import time\\nlast = time.monotonic()\\nwhile (now := time.monotonic()) - last < 0.25: last = now"
sys.exit(subprocess.run([sys.executable, "-c", code], timeout=30).returncode + 7)
"""
"""Its child ends as soon as its clock has jumped by 0.25 s."""

PAUSES_A_PROCESS = """
import os, pathlib, signal, subprocess, sys, time
paused = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
os.kill(paused.pid, signal.SIGSTOP)
state = lambda: pathlib.Path(f"/proc/{paused.pid}/stat").read_text().rpartition(")")[2].split()[0]
while state() != "T":
    time.sleep(0.001)
seen = set()
until = time.monotonic() + 1.5
while time.monotonic() < until:
    seen.add(state())
    time.sleep(0.005)
paused.kill()
sys.exit(seen != {"T"})
"""


def run(script: str, *options: str) -> int:
    command = [sys.executable, "-c", script]
    return subprocess.run([sys.executable, str(PROGRAM), *options, *command], timeout=60).returncode


def test_children_stall_and_the_exit_code_is_the_commands() -> None:
    assert run(LOOKS_AT_THE_CLOCK, "--gap", "0.1", "--length", "0.4") == 7


def test_paused_process_stays_paused() -> None:
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {PAUSES_A_PROCESS!r}]).returncode)"
    assert run(code, "--gap", "0.1", "--length", "0.1", "--tree") == 0
