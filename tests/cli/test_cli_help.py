"""The command line answers quickly, and knows what it can do."""

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


def test_help_imports_nothing_heavy() -> None:
    """What makes it quick, and unlike a time it is the same on a busy machine."""
    code = (
        "import sys; from strandline.cli import main; sys.argv = ['strandline', '--help']\ntry: main()\nexcept SystemExit: pass\n"
    )
    code += "print([m for m in ('rich', 'asyncio', 'uvloop', 'msgspec', 'structlog', 'strandline.protocol') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_help_takes_well_under_200_ms() -> None:
    """The fastest of a few, in processor time: how busy the machine is must not decide."""

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


def test_no_command_shows_the_help() -> None:
    outcome = run()
    assert outcome.code == 2
    assert "Commands:" in outcome.out + outcome.err
