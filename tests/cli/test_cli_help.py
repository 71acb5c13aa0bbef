"""`strandline --help` is fast, and lists every command."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from cli_world import COMMAND, run

from strandline.cli.commands import COMMANDS


def test_help_lists_every_command() -> None:
    outcome = run("--help")
    assert outcome.code == 0
    assert all(f"\n  {name} " in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, option: str) -> None:
    outcome = run(command, option)
    assert outcome.code == 0
    assert f"Usage: strandline {command}" in outcome.out


@pytest.mark.parametrize("command", ["topic", "group", "config", "context", "node", "pipeline"])
def test_commands_of_a_group_are_listed_with_a_whole_sentence(command: str) -> None:
    shown = run(command, "--help", env={"COLUMNS": "80"}).out.partition("Commands:\n")[2]
    assert shown
    assert "..." not in shown


def test_help_imports_nothing_heavy() -> None:
    """Few imports make the help fast, and unlike a time they do not depend on the machine's load."""
    code = (
        "import sys; from strandline.cli import main; sys.argv = ['strandline', '--help']\ntry: main()\nexcept SystemExit: pass\n"
    )
    code += "print([m for m in ('rich', 'asyncio', 'uvloop', 'msgspec', 'structlog', 'strandline.protocol') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_help_takes_less_than_200_ms() -> None:
    """The fastest of several runs counts, in CPU time, so that the machine's load does not decide."""

    def cpu_s() -> float:
        import resource

        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    started = time.monotonic()
    assert min(cpu_s() for _ in range(5)) < 0.2
    assert time.monotonic() - started < 20


def test_version() -> None:
    assert run("--version").out.strip() == "0.1.0"


def test_without_a_command_the_help_is_shown() -> None:
    outcome = run()
    assert outcome.code == 2
    assert "Commands:" in outcome.out + outcome.err
