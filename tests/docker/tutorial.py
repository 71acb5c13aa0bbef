"""Runs docs/failover.md: every command of its console blocks, in order, in one shell, against a fresh compose project.

    python tests/docker/tutorial.py              compare the output with the page
    python tests/docker/tutorial.py --write      write the output into the page

In a ```console block a line that begins with `$ ` is a command, `> ` continues it, and what follows is its output. Prose
and pictures are in other blocks, which stay unchanged.

The page uses the default names: containers `broker-1`, network `strandline_cluster`, port 19092. The tests use other names and
ports, so that they do not disturb a running cluster: they are replaced in the commands and restored in the output.

Offsets, leaders, leader epochs, ISRs, error names and words must agree exactly, because the page teaches them. Values that
differ per run are replaced by a placeholder on both sides:

    a time of day, a timestamp in ms, a checksum             <time>, <crc>
    an amount with a unit: 12 ms, 0.3 s, 5 attempts          <n> ms ...
    a cluster id, a container id                             <id>
    a broker epoch, a partition epoch, a metadata offset     <n>
    in tables of nodes and in the output of a scenario (`cluster`, `quorum`, `chaos`): every number but 0, so that lost,
    doubled and reordered records still count
    the order of broker ids in a list                        sorted
    columns: runs of blanks and of rules                     one
    lines that `fold` broke                                  joined

The output of a scenario is compared as a set of lines, because the order of partitions is random.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine import ROOT, docker
from project import Project

PAGE = ROOT / "docs" / "failover.md"
COMMAND_MAX_S = 180.0
"""A build from scratch takes longest."""
PORTS = {"PORT": range(19092, 19095)}


@dataclass
class Step:
    """One command of the page, with the output on the page."""

    line: int
    command: str
    shown: list[str] = field(default_factory=list)


# -- the page ---------------------------------------------------------------------------------------------------------


FENCE = "```console"


def steps_of(page: str, fence: str = FENCE) -> Iterator[Step]:
    step: Step | None = None
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if step is not None:
                yield step
            step, inside = None, line == fence
        elif not inside:
            continue
        elif line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(number, line[2:])
        elif step is not None and not step.shown and (line.startswith("> ") or line == ">"):
            step.command += "\n" + line[2:]
        else:
            assert step is not None, f"line {number}: output without a command"
            step.shown.append(line)


def with_outputs(page: str, printed: dict[int, list[str]], fence: str = FENCE) -> str:
    """Return the page with each command's output replaced. `printed`: line of the command -> its output."""
    lines: list[str] = []
    is_output = inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            inside, is_output = line == fence, False
        if number in printed:
            lines += _fenced(line, number, page, printed)
            is_output = True
        elif not (inside and is_output):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _fenced(line: str, number: int, page: str, printed: dict[int, list[str]]) -> list[str]:
    """Parse a block: each command with its continuation lines, then its output."""
    command = [line]
    for following in page.splitlines()[number:]:
        if not (following.startswith("> ") or following == ">"):
            break
        command.append(following)
    return command + printed[number]


# -- comparing --------------------------------------------------------------------------------------------------------

PLACEHOLDERS = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "<time>"),
    (r"\b1[6-9]\d{11}\b", "<time>"),
    (r"\bcrc [0-9a-f]{8}\b", "crc <crc>"),
    (r"\b\d+(\.\d+)? ?(ms|s|attempts|attempt)\b", r"<n> \2"),
    (r"\b(broker_epoch|partition_epoch|metadata_offset|attempts): \d+", r"\1: <n>"),
    (r"(?<=\bcluster )[A-Za-z0-9_-]{22}(?=,|$)", "<id>"),
    (r"\b[0-9a-f]{12,64}\b", "<id>"),
    (r"─+", "─"),
    (r"[ \t]+", " "),
)
ANY_NUMBER = re.compile(r"strandline (cluster|quorum|chaos)\b")
FOLDED = re.compile(r"^facts |\| fold ")
# `docker exec`, which is behind `beside`, carries both output streams and does not keep the order between them.
ANY_ORDER = re.compile(r"strandline chaos\b|^beside strandline\b")


def shape(command: str, output: list[str]) -> list[str]:
    """Replace the values that differ per run by placeholders, as the module's docstring lists them."""
    lines = []
    for line in output:
        for pattern, placeholder in PLACEHOLDERS:
            line = re.sub(pattern, placeholder, line)
        line = re.sub(r"\b\d(, ?\d)+\b", lambda ids: ",".join(sorted(re.findall(r"\d", ids[0]))), line)
        if ANY_NUMBER.search(command):
            line = re.sub(r"[1-9]\d*(,\d+)*", "<n>", line)
        if line.strip():
            lines.append(line.strip())
    if FOLDED.search(command):
        return [" ".join(lines)]
    return sorted(set(lines)) if ANY_ORDER.search(command) else lines


# -- running ----------------------------------------------------------------------------------------------------------


class Shell:
    """One bash for the whole page, so that variables and functions of a command exist for the next."""

    END = "-- end of command --"

    def __init__(self, project: Project) -> None:
        self._names = {
            "strandline_": f"{project.name}_",
            **{f"{port}": f"{own}" for port, own in zip(PORTS["PORT"], project.ports.values(), strict=True)},
        }
        self._prefix = f"{project.name}-"
        environment = {**project.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        assert self._bash.stdout is not None
        os.set_blocking(self._bash.stdout.fileno(), False)

    def run(self, command: str) -> list[str]:
        """Run a command; returns its output with the page's names. Raises TimeoutError."""
        assert self._bash.stdin is not None
        script = f"{{\n{self._ours(command)}\n}} < /dev/null\nprintf '\\n{self.END}\\n'\n"
        self._bash.stdin.write(script.encode())
        self._bash.stdin.flush()
        return self._as_on_the_page(self._read(command)).splitlines()

    def _read(self, command: str) -> str:
        assert self._bash.stdout is not None
        deadline, data = time.monotonic() + COMMAND_MAX_S, b""
        ending = f"\n{self.END}\n".encode()
        with selectors.DefaultSelector() as ready:
            ready.register(self._bash.stdout, selectors.EVENT_READ)
            while not data.endswith(ending):
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"{command!r} did not end within {COMMAND_MAX_S:g} s; it printed: {data.decode()}")
                piece = self._bash.stdout.read()
                if not piece:
                    raise RuntimeError(f"the shell ended in {command!r}; it printed: {data.decode()}")
                data += piece
        return data[: -len(ending)].decode().strip("\n")

    def _ours(self, command: str) -> str:
        for theirs, ours in self._names.items():
            command = command.replace(theirs, ours)
        return re.sub(r"\b(broker|controller)-([123])\b", rf"{self._prefix}\1-\2", command)

    def _as_on_the_page(self, text: str) -> str:
        text = text.replace(self._prefix, "")
        for theirs, ours in self._names.items():
            text = text.replace(ours, theirs)
        return text

    def close(self) -> None:
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()


def run_page(image: str, page: str) -> Iterator[tuple[Step, list[str]]]:
    """Run each command and yield it with its output; the project is removed afterwards in any case."""
    project = Project(image)
    shell = Shell(project)
    try:
        for step in steps_of(page):
            yield step, [line.rstrip() for line in shell.run(step.command)]
    finally:
        shell.close()
        project.down("--volumes")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the commands of docs/failover.md and compare what they print.")
    parser.add_argument("--write", action="store_true", help="put what is printed into the page")
    wants = parser.parse_args()
    page, image = PAGE.read_text(), f"strandline:tutorial-{os.getpid()}"
    printed: dict[int, list[str]] = {}
    differs = 0
    try:
        for step, output in run_page(image, page):
            print(f"$ {step.command}", *output, sep="\n", flush=True)
            printed[step.line] = output
            if shape(step.command, output) != shape(step.command, step.shown):
                differs += 1
                print(f"-- {PAGE.name}:{step.line}: the page shows something else", flush=True)
    finally:
        docker("rmi", "--no-prune", image, check=False)
    if wants.write:
        PAGE.write_text(with_outputs(page, printed))
        return 0
    print(f"{len(printed)} commands, {differs} of them print something else than the page shows")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
