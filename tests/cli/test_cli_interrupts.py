"""Ctrl-C ends every command, at every moment: exit code 130, no traceback, within about a second. So does `| head`, quietly."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, run, wait_until

from strandline.cli import interrupts
from strandline.cli.commands import COMMANDS
from strandline.local_cluster import free_port_range

pytestmark = pytest.mark.processes

SOON_S = 5.0
"""The promise is about a second; a machine that runs other tests gets more."""
SCENARIOS = Path(__file__).parents[2] / "deploy" / "chaos"


class Silent:
    """A server that accepts connections and never answers: a cluster that hangs."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.address = f"127.0.0.1:{server.getsockname()[1]}"

    def was_called(self) -> bool:
        return bool(select.select([self._server], [], [], 0)[0])


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Silent(server)


def invocations(folder: Path, address: str) -> dict[str, list[str]]:
    """For each command a call that takes a while, or never ends by itself."""
    at = ["--bootstrap", address]
    voters = ["--set", f"controller.quorum.voters=101@{address}", "--set", "cluster.id=c", "--set", f"log.dirs={folder / 'node'}"]
    port = free_port_range(12)
    listener = ["--set", f"listeners=PLAINTEXT://127.0.0.1:{port}"]
    return {
        "up": ["up", "--data", str(folder / "up"), "--base-port", str(port)],
        "node": ["node", "list", "--data", str(folder / "silent")],
        "demo": ["demo", "--data", str(folder / "demo")],
        "chaos": ["chaos", "run", str(SCENARIOS / "kill-leader.toml")],
        "topic": ["topic", "list", *at],
        "produce": ["produce", "orders", *at],
        "consume": ["consume", "orders", *at],
        "cluster": ["cluster", "describe", *at],
        "health": ["health", "--cluster", "--timeout", "60", *at],
        "quorum": ["quorum", "describe", *at],
        "elect": ["elect", "orders", "0", "--preferred", *at],
        "log": ["log", "dump", str(folder / "fifo.log")],
        "pipeline": ["pipeline", "offload", "--topic", "orders", "--to", str(folder / "lake"), *at],
        "bench": ["bench", "produce", *at],
        "simulate": ["simulate", "--seeds", "0..999"],
        "config": ["config", "keys"],
        "completion": ["completion", "bash"],
        "broker": ["broker", "--set", "node.id=1", *voters, *listener],
        "controller": ["controller", "--set", "node.id=101", *voters],
    }


CALLERS = ["topic", "produce", "consume", "cluster", "health", "quorum", "elect", "bench"]
"""The commands that ask the cluster, and would wait for it."""


def test_every_command_is_interrupted_here(tmp_path: Path) -> None:
    assert set(invocations(tmp_path, "")) == set(COMMANDS)


@contextmanager
def running(words: list[str], folder: Path, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process; its standard error goes to FOLDER/err."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL} | more
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen([*COMMAND, *words], stderr=err, env=ENVIRONMENT, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def handles(process: subprocess.Popen[bytes]) -> bool:
    """Has the process come to the first line of `main`? From there on it also catches SIGALRM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGALRM - 1) & 1)


def interrupted(process: subprocess.Popen[bytes], folder: Path, within_s: float = SOON_S) -> str:
    """Interrupt it; what it said on its way out."""
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.wait(timeout=within_s) == 130, (folder / "err").read_text()
    assert time.monotonic() - began < within_s
    text = (folder / "err").read_text()
    assert "Traceback" not in text
    assert "Exception" not in text
    assert "Warning" not in text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_starts_is_interrupted(command: str, tmp_path: Path, silent: Silent) -> None:
    """While it imports: where Python would print a traceback of the import."""
    os.mkfifo(tmp_path / "fifo.log")
    with running(invocations(tmp_path, silent.address)[command], tmp_path) as process:
        wait_until(lambda: handles(process), "it has come to its first line")
        assert interrupted(process, tmp_path) == ""


@pytest.mark.parametrize("command", CALLERS)
def test_a_command_that_waits_for_the_cluster_is_interrupted(command: str, tmp_path: Path, silent: Silent) -> None:
    with running(invocations(tmp_path, silent.address)[command], tmp_path) as process:
        wait_until(silent.was_called, "it asks the cluster")
        interrupted(process, tmp_path)


def test_a_slow_end_of_the_interpreter_keeps_the_exit_code() -> None:
    """On a busy machine Python's own clean-up outlasted the grace, and SIGALRM killed the process: no exit code 130."""
    code = """
import os, signal, time
from strandline.cli import interrupts
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
interrupts.install()
slow = Slow()
try:
    with interrupts.unwinding(grace_s=0.1):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
except KeyboardInterrupt:
    interrupts.leave(130)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 130


@pytest.mark.parametrize("command", ["up", "demo", "chaos"])
def test_a_command_that_starts_a_cluster_leaves_no_process(command: str, tmp_path: Path) -> None:
    """Nodes are in sessions of their own, so that a Ctrl-C at the terminal does not reach them: the command ends them."""
    words = invocations(tmp_path, "127.0.0.1:1")[command]
    with running(words, tmp_path) as process:
        wait_until(lambda: len(children(process.pid)) >= 2, "two nodes are started")
        nodes = children(process.pid)
        interrupted(process, tmp_path, within_s=30)
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in nodes), "the nodes have ended")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_reads_a_file_is_interrupted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "00000000000000000000.log")
    with running(["log", "dump", str(tmp_path / "00000000000000000000.log")], tmp_path) as process:
        wait_until(lambda: "wait_for_partner" in where_it_waits(process) or "fifo" in where_it_waits(process), "it waits")
        interrupted(process, tmp_path)


def where_it_waits(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/wchan").read_text()


def test_a_simulation_is_interrupted(tmp_path: Path) -> None:
    with running(["simulate", "--seeds", "0..999"], tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        interrupted(process, tmp_path)


def test_a_second_interrupt_ends_what_does_not_end_by_itself(tmp_path: Path) -> None:
    """A command that never gives way: its task swallows the cancellation."""
    code = """
import asyncio
from strandline.cli import interrupts
from strandline.cli.common import run
async def stubborn():
    while True:
        try:
            print("waiting", flush=True)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
interrupts.install()
run(stubborn(), grace_s=GRACE)
"""
    for grace_s, times in ((60, 2), (0.2, 1)):
        words = [COMMAND[0].replace("strandline", "python"), "-c", code.replace("GRACE", str(grace_s))]
        words[0] = str(Path(COMMAND[0]).with_name("python"))
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            for _ in range(times):
                assert process.stdout.readline() == b"waiting\n"
                process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 130


def test_a_command_is_interrupted_where_the_shell_ignores_the_signal(tmp_path: Path, silent: Silent) -> None:
    """`strandline consume orders &` in a script, and later `kill -INT`: a shell without job control has it ignored."""
    command = f"exec {COMMAND[0]} consume orders --bootstrap {silent.address}"
    shell = ["sh", "-c", f"trap '' INT; {command}"]
    with (tmp_path / "err").open("wb") as err, subprocess.Popen(shell, stderr=err, env=ENVIRONMENT) as process:
        wait_until(silent.was_called, "it asks the cluster")
        interrupted(process, tmp_path)


# -- a reader that has read enough


@pytest.mark.parametrize("words", [["--help"], ["produce", "--help"], ["config", "keys"], ["simulate", "--list"]])
def test_output_that_nobody_reads_is_no_error(words: list[str]) -> None:
    """`strandline config keys | true`"""
    assert closed_pipe(words) == (0, b"")


def closed_pipe(words: list[str]) -> tuple[int, bytes]:
    """Exit code and complaints of a command whose reader is gone before the first byte."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=30, check=False)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["topic", "list"], ["cluster", "describe"], ["quorum", "describe", "--json"]])
def test_tables_that_nobody_reads_are_no_error(arguments: list[str], up: Up) -> None:
    run("topic", "create", "listed", "--if-not-exists", "--bootstrap", up.bootstrap)
    assert closed_pipe([*arguments, "--bootstrap", up.bootstrap]) == (0, b"")


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "config", "keys"], stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (1, b"strandline: No space left on device\n")


def test_a_library_does_not_take_the_signal() -> None:
    """Spark sets a handler in the middle of its start; a later one of ours would leave a moment without it."""
    ours = signal.getsignal(signal.SIGINT)
    with interrupts.kept_from_libraries():
        assert signal.signal(signal.SIGINT, lambda number, frame: None) is ours
        assert signal.getsignal(signal.SIGINT) is ours
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark does in the JVM's process
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, ours)


@pytest.mark.spark
def test_a_pipeline_is_interrupted_while_spark_runs(up: Up, tmp_path: Path) -> None:
    """Spark has a handler of its own, which prints tracebacks; and a JVM, which ends when the command does."""
    assert run("topic", "create", "offloaded", "--partitions", "1", "--if-not-exists", "--bootstrap", up.bootstrap).code == 0
    assert run("produce", "offloaded", "--bootstrap", up.bootstrap, stdin="tea\n").code == 0
    lake = tmp_path / "lake"
    words = ["pipeline", "offload", "--topic", "offloaded", "--to", str(lake), "--continuous", "1", "--bootstrap", up.bootstrap]
    with (tmp_path / "out").open("wb") as out, running(words, tmp_path, stdout=out) as process:
        wait_until(lambda: any((lake / "_manifest").glob("*.json")), "a batch is in the lake", timeout_s=240)
        java = children(process.pid)
        interrupted(process, tmp_path)
        assert (tmp_path / "out").read_text().startswith("1 record in 1 file (")
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in java), "the JVM has ended")
