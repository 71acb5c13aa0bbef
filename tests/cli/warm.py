"""Runs commands in forks of one process that has imported their modules already.

A command that lists topics spends nine tenths of its time on the start of Python and on imports, and the tests run a thousand
of them. So each test process starts one server, which imports the command line and waits. For each command it forks: the child
has the given arguments, environment, working directory and standard streams, and calls `main` as the console script does. It is
a process of its own, with its own signals, descriptors, exit functions and exit code. The only difference is that the imports
are done; `test_warm.py` compares it with a new process.

    test process                        server                      child of the server            the command
      run(...)      --socket-->    fork ----------------------->    fork ---------------------->   main()
                                                                    waitpid <------ exit code ---
      exit code     <------------------------------------------------
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

NOT_FOR_FORKS = ("PYTHON", "LANG", "LC_", "TZ")
"""Beginnings of the variables that Python and the C library read when they start."""
FORK = b"f"
LENGTH_BYTES = 8


# -- in the tests: a process that looks like one of `subprocess`


class Done(NamedTuple):
    code: int
    out: bytes
    err: bytes


class Server:
    """The process that forks, seen from a test. It ends when this process does, because its socket is closed then."""

    def __init__(self, environment: Mapping[str, str], *, also: Sequence[str] = ()) -> None:
        """`also`: modules that it imports beside those of all commands."""
        self.environment = dict(environment)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        # With pipes as standard streams, Python makes the same stream objects as for a captured command.
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), *also],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        if self._control.recv(1) != FORK:
            raise AssertionError(f"the server did not start: {self.process.communicate()[1].decode()}")

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork sees this environment as a new process does."""
        names = environment.keys() | self.environment.keys()
        return all(environment.get(name) == self.environment.get(name) for name in names if name.startswith(NOT_FOR_FORKS))

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int],
        *,
        folder: Path | None = None,
        terminal: bool = False,
    ) -> Process:
        """Fork a command with these descriptors as its standard streams. With `terminal`, Ctrl-C in the first one reaches it."""
        asked = json.dumps([list(words), dict(environment), str(folder or Path.cwd()), terminal]).encode()
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._control, [FORK], [theirs.fileno()])
        socket.send_fds(ours, [len(asked).to_bytes(LENGTH_BYTES, "big")], streams)
        ours.sendall(asked)
        return Process(words, ours)

    def stop(self) -> None:
        self._control.close()
        self.process.communicate(timeout=30)


class Process:
    """A forked command, with the methods that tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], told: socket.socket) -> None:
        self.words = list(words)
        self._told = told
        self.pid = _number(told)
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self._code

    def wait(self, timeout: float) -> int:
        if self._code is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self._end()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # its parent has not reported an exit code, so the id is not reused

    def _end(self) -> int:
        if self._code is None:
            self._code = _number(self._told)
            self._told.close()
        return self._code


class Command:
    """A forked command with pipes as its standard streams."""

    def __init__(self, server: Server, words: Sequence[str], environment: Mapping[str, str]) -> None:
        (stdin, self._stdin), (self._stdout, stdout), (self._stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self.process = server.start(words, environment, (stdin, stdout, stderr))
        finally:
            for theirs in (stdin, stdout, stderr):
                os.close(theirs)

    def communicate(self, given: bytes, timeout_s: float) -> Done:
        """Write its standard input and read its output until all is closed. It is killed if that takes too long."""
        output: dict[int, bytearray] = {self._stdout: bytearray(), self._stderr: bytearray()}
        os.set_blocking(self._stdin, False)
        try:
            with selectors.DefaultSelector() as ready:
                for stream in output:
                    ready.register(stream, selectors.EVENT_READ)
                ready.register(self._stdin, selectors.EVENT_WRITE)
                self._exchange(ready, memoryview(given), output, time.monotonic() + timeout_s)
            code = self.process.wait(timeout_s)
        except (TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            out, err = map(bytes, output.values())
            raise subprocess.TimeoutExpired(self.process.words, timeout_s, out, err) from None
        finally:
            self._close()
        return Done(code, *map(bytes, output.values()))

    def _exchange(self, ready: selectors.BaseSelector, given: memoryview, output: dict[int, bytearray], deadline: float) -> None:
        while ready.get_map():
            events = ready.select(deadline - time.monotonic())
            if not events:
                raise TimeoutError
            for key, _ in events:
                if key.fd == self._stdin:
                    given = self._write(given)
                    if not given:
                        ready.unregister(self._stdin)
                        self._close_stdin()
                elif read := os.read(key.fd, 65536):
                    output[key.fd] += read
                else:
                    ready.unregister(key.fd)

    def _write(self, given: memoryview) -> memoryview:
        """Write what the pipe takes; returns what is left: nothing if the command has closed its end."""
        try:
            return given[os.write(self._stdin, given[: 1 << 16]) :]
        except BlockingIOError:
            return given
        except BrokenPipeError:
            return given[:0]

    def _close_stdin(self) -> None:
        os.close(self._stdin)
        self._stdin = -1

    def _close(self) -> None:
        if self._stdin >= 0:
            self._close_stdin()
        os.close(self._stdout)
        os.close(self._stderr)


def _number(told: socket.socket) -> int:
    return int.from_bytes(_exactly(told, LENGTH_BYTES), "big", signed=True)


def _exactly(source: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        more = source.recv(count - len(read))
        if not more:
            raise AssertionError("the process that forks commands has ended")
        read += more
    return read


# -- in the server


def _serve(control: socket.socket) -> Sequence[str]:
    """Fork for each request. Returns only in a forked command, with its words; the server exits with the test process."""
    control.sendall(FORK)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        _reap()
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return _become_command(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _become_command(asked: socket.socket) -> Sequence[str]:
    length, streams, _, _ = socket.recv_fds(asked, LENGTH_BYTES, 3)
    length += _exactly(asked, LENGTH_BYTES - len(length))
    words, environment, folder, has_terminal = json.loads(_exactly(asked, int.from_bytes(length, "big")))
    pid = os.fork()
    if pid:
        _report(asked, pid, streams)
    asked.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if has_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if os.isatty(1) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as Python opens it
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(words)


def _report(asked: socket.socket, pid: int, streams: Sequence[int]) -> NoReturn:
    """Tell the test the command's process id and, in the end, its exit code."""
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    try:
        asked.sendall(pid.to_bytes(LENGTH_BYTES, "big"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        asked.sendall(code.to_bytes(LENGTH_BYTES, "big", signed=True))
    except BrokenPipeError:
        pass  # the test has ended
    os._exit(0)


def _import_commands(also: Sequence[str]) -> None:
    from importlib import import_module

    from strandline.cli.commands import COMMANDS

    for module, _ in COMMANDS.values():
        import_module(f"strandline.cli.{module}")
    for module in (
        "cli.root",
        "cli.table",
        "client",
        "client.admin",
        "client.consumer.consumer",
        "client.producer.producer",
        "node",
    ):
        import_module(f"strandline.{module}")
    for module in also:
        import_module(module)


if __name__ == "__main__":
    _import_commands(sys.argv[2:])
    import gc

    from strandline.cli import main

    gc.collect()
    gc.freeze()
    sys.argv = [str(Path(sys.executable).with_name("strandline")), *_serve(socket.socket(fileno=int(sys.argv[1])))]
    main()
