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
    """A server that accepts connections and never responds, like a cluster that hangs."""

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
    """Return for each command a call that takes long or never ends by itself."""
    at = ["--bootstrap", address]
    voters = ["--set", f"controller.quorum.voters=101@{address}", "--set", "cluster.id=c", "--set", f"log.dirs={folder / 'node'}"]
    port = free_port_range(15)
    listener = ["--set", f"listeners=PLAINTEXT://127.0.0.1:{port}"]
    return {
        "up": ["up", "--data", str(folder / "up"), "--base-port", str(port)],
        "node": ["node", "list", "--data", str(folder / "silent")],
        "demo": ["demo", "--data", str(folder / "demo")],
        "chaos": ["chaos", "run", str(SCENARIOS / "kill-leader.toml")],
        "topic": ["topic", "list", *at],
        "produce": ["produce", "orders", *at],
        "consume": ["consume", "orders", *at],
        "cat": ["cat", "orders", "-C", *at],
        "cluster": ["cluster", "describe", *at],
        "health": ["health", "--cluster", "--timeout", "60", *at],
        "top": ["top", *at],
        "doctor": ["doctor", *at],
        "quorum": ["quorum", "describe", *at],
        "features": ["features", "describe", *at],
        "elect": ["elect", "orders", "0", "--preferred", *at],
        "log-dirs": ["log-dirs", "move", "orders:0", "--broker", "1", "--to", "/disk2", *at],
        "reassign": ["reassign", "--progress", *at],
        "recover": ["recover", "--plan", *at],
        "log": ["log", "dump", str(folder / "fifo.log")],
        "pipeline": ["pipeline", "offload", "--topic", "orders", "--to", str(folder / "lake"), *at],
        "bench": ["bench", "produce", *at],
        "simulate": ["simulate", "--seeds", "0..999"],
        "group": ["group", "list", *at],
        "transaction": ["transaction", "list", *at],
        "acl": ["acl", "list", *at],
        "user": ["user", "list", *at],
        "quota": ["quota", "list", *at],
        "cert": ["cert", "list", "--dir", str(folder)],
        "context": ["context", "list"],
        "config": ["config", "keys"],
        "completion": ["completion", "bash"],
        "broker": ["broker", "--set", "node.id=1", *voters, *listener],
        "controller": ["controller", "--set", "node.id=101", *voters],
    }


CALLERS = [
    "topic",
    "produce",
    "consume",
    "cat",
    "cluster",
    "health",
    "quorum",
    "doctor",
    "group",
    "transaction",
    "features",
    "elect",
    "log-dirs",
    "reassign",
    "recover",
    "bench",
]
"""The commands that ask the cluster, and would wait for it."""


def test_every_command_has_an_interrupt_test(tmp_path: Path) -> None:
    assert set(invocations(tmp_path, "")) == set(COMMANDS)


@contextmanager
def running(words: list[str], folder: Path, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command as a process whose standard error goes to FOLDER/err."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL} | more
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen([*COMMAND, *words], stderr=err, env=ENVIRONMENT, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def handles(process: subprocess.Popen[bytes]) -> bool:
    """Return True once the process has reached the first line of `main`: from then on it handles SIGALRM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGALRM - 1) & 1)


def interrupted(process: subprocess.Popen[bytes], folder: Path, within_s: float = SOON_S) -> str:
    """Interrupt the process; returns its last output on standard error."""
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
def test_a_command_is_interrupted_during_its_imports(command: str, tmp_path: Path, silent: Silent) -> None:
    """During imports Python itself would print a traceback."""
    os.mkfifo(tmp_path / "fifo.log")
    with running(invocations(tmp_path, silent.address)[command], tmp_path) as process:
        wait_until(lambda: handles(process), "it has come to its first line")
        assert interrupted(process, tmp_path) == ""


@pytest.mark.parametrize("command", CALLERS)
def test_a_command_is_interrupted_while_it_waits_for_the_cluster(command: str, tmp_path: Path, silent: Silent) -> None:
    with running(invocations(tmp_path, silent.address)[command], tmp_path) as process:
        wait_until(silent.was_called, "it asks the cluster")
        interrupted(process, tmp_path)


def test_a_slow_interpreter_shutdown_keeps_the_exit_code() -> None:
    """On a busy machine Python's clean-up took longer than the grace period, and SIGALRM killed the process without 130."""
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
    """Nodes run in their own sessions, so a Ctrl-C at the terminal does not reach them, and the command must end them."""
    words = invocations(tmp_path, "127.0.0.1:1")[command]
    with running(words, tmp_path) as process:
        wait_until(lambda: len(children(process.pid)) >= 2, "two nodes are started")
        nodes = children(process.pid)
        interrupted(process, tmp_path, within_s=30)
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in nodes), "the nodes have ended")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_command_that_reads_a_file_is_interrupted(tmp_path: Path) -> None:
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


def test_a_second_interrupt_ends_a_hanging_command(tmp_path: Path) -> None:
    """The task of this command swallows the cancellation."""
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


def test_a_background_command_is_interrupted(tmp_path: Path, silent: Silent) -> None:
    """A shell without job control starts `strandline consume orders &` with SIGINT ignored; `kill -INT` must end it all the
    same."""
    command = f"exec {COMMAND[0]} consume orders --bootstrap {silent.address}"
    shell = ["sh", "-c", f"trap '' INT; {command}"]
    with (tmp_path / "err").open("wb") as err, subprocess.Popen(shell, stderr=err, env=ENVIRONMENT) as process:
        wait_until(silent.was_called, "it asks the cluster")
        interrupted(process, tmp_path)


# -- a reader that has read enough


@pytest.mark.parametrize("words", [["--help"], ["produce", "--help"], ["config", "keys"], ["simulate", "--list"]])
def test_a_closed_output_is_no_error(words: list[str]) -> None:
    """`strandline config keys | true`"""
    assert closed_pipe(words) == (0, b"")


def closed_pipe(words: list[str]) -> tuple[int, bytes]:
    """Return exit code and standard error of a command whose output pipe is closed before the first byte."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=90, check=False)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["topic", "list"], ["cluster", "describe"], ["quorum", "describe", "--json"]])
def test_a_closed_pipe_is_no_error_for_tables(arguments: list[str], up: Up) -> None:
    run("topic", "create", "listed", "--if-not-exists", "--bootstrap", up.bootstrap)
    assert closed_pipe([*arguments, "--bootstrap", up.bootstrap]) == (0, b"")


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "config", "keys"], stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (1, b"strandline: No space left on device\n")


def test_a_library_cannot_replace_the_handler() -> None:
    """Spark sets a signal handler during its start. To set our own afterwards would leave a moment without it."""
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
    """Spark's own handler prints tracebacks, and its JVM must end with the command."""
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
