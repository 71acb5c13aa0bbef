"""Runs a command at a pseudo-terminal: tests send keys and read the screen and standard error."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli_world import ENVIRONMENT, forks
from warm import Process

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A process with the pseudo-terminal as its controlling terminal, so that Ctrl-C works as for a person."""

    def __init__(self, master: int, process: Process) -> None:
        self._master = master
        self.process = process
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not appear:\n{self.screen}"
            assert self._look(0.1), f"the command ended without {text!r}:\n{self.screen}"

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait for the process and return its exit code."""
        deadline = time.monotonic() + timeout_s
        while self._look(0.05):
            assert time.monotonic() < deadline, f"it runs on:\n{self.screen}"
        return self.process.wait(timeout=5)

    def _look(self, wait_s: float) -> bool:
        """Read the available output; returns False when the terminal is closed."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return self.process.poll() is None
        try:
            shown = os.read(self._master, 65536)
        except OSError:  # Linux: the last process that had it open has ended
            return False
        self.screen += shown.decode(errors="replace").replace("\r\n", "\n")
        return bool(shown)


@contextmanager
def at_a_terminal(*arguments: str, env: dict[str, str] | None = None, columns: int = 80) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = forks().start(arguments, ENVIRONMENT | (env or {}), (slave, slave, slave), terminal=True)
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait(30)
        os.close(master)
