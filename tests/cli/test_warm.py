"""A forked command behaves like a new process (`warm.py`)."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
import warm
from cli_world import COMMAND, ENVIRONMENT, forks, wait_until


def both(*words: str, given: bytes = b"", **variables: str) -> tuple[warm.Done, warm.Done]:
    """The same command as a fork and as a new process."""
    environment = ENVIRONMENT | variables
    forked = warm.Command(forks(), words, environment).communicate(given, 60)
    done = subprocess.run([*COMMAND, *words], input=given, capture_output=True, env=environment, timeout=60, check=False)
    return forked, warm.Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["config", "keys", "--json"],
        ["topic", "--help"],
        ["topics"],
        ["log", "dump", "nowhere"],
        ["broker", "--no-such-option"],
        ["health"],
        ["topic", "create", "t", "--set", "x"],
    ],
    ids=" ".join,
)
def test_output_and_exit_code_are_the_same(words: list[str]) -> None:
    forked, new = both(*words)
    assert forked == new


def test_the_environment_is_the_commands_own() -> None:
    forked, new = both("topic", "list", STRANDLINE_BOOTSTRAP="nonsense", COLUMNS="40")
    assert forked == new
    assert b"nonsense" in forked.err


def test_standard_input_may_stay_unread() -> None:
    forked, new = both("topic", "--help", given=b"not read" * 100_000)
    assert forked == new


def test_the_working_directory_is_the_tests_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{0:020}.log").write_bytes(b"")
    forked, new = both("log", "dump", f"{0:020}.log")
    assert forked == new
    assert forked.code == 0


def test_a_command_that_takes_too_long_is_killed() -> None:
    command = warm.Command(forks(), ("simulate", "--seeds", "0..1000000"), ENVIRONMENT)
    with pytest.raises(subprocess.TimeoutExpired):
        command.communicate(b"", 0.5)
    wait_until(lambda: not Path(f"/proc/{command.process.pid}").exists(), "the command has ended")


def test_commands_of_several_threads_do_not_mix() -> None:
    outputs: dict[str, bytes] = {}

    def ask(name: str) -> None:
        outputs[name] = warm.Command(forks(), (name, "--help"), ENVIRONMENT).communicate(b"", 60).out

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("topic", "produce", "consume", "health")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: f"Usage: strandline {name} ".encode() in out for name, out in outputs.items()} == dict.fromkeys(outputs, True)


@pytest.mark.parametrize("variable", ["LANG", "LC_ALL", "PYTHONHASHSEED", "TZ"])
def test_what_python_reads_when_it_starts_needs_a_new_process(variable: str) -> None:
    assert forks().can_run(ENVIRONMENT | {"COLUMNS": "40"})
    assert not forks().can_run(ENVIRONMENT | {variable: "other"})


def test_the_server_ends_with_its_socket() -> None:
    """Also if the test process is killed, because the kernel closes its sockets."""
    server = warm.Server(ENVIRONMENT)
    assert server.process.poll() is None
    server.stop()
    assert server.process.returncode == 0
