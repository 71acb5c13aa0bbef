"""The transcript of Kafka's tools (`kafka_tools.transcript`): commands, what a real Kafka answers, and where Strandline differs.

    # text, or nothing     a remark
    @ name text            writes a file into the folder that commands name as {dir}
    $ command              a command; `$ wait NAME` waits for one in the background. `--bootstrap-server` is added, or is $B
    < line                 its standard input
    ~ word                 how the command is run or how its output is masked (below)
      text                 a line of its output, for both
    - text                 a line that only Kafka prints
    + text                 a line that only Strandline prints
    ~ because reason       why the outputs differ; a command with - or + must have one

The output has the lines of stdout and stderr, then `! Name` for each kind of exception, then `= code` if the exit code is not 0.
Ids, addresses and times are masked in all outputs. The words after `~`:

    sort                   the order of lines is ignored
    numbers, floats        numbers are ignored (floats: only those with a point)
    first-word             only the first word of each line is compared: names of configs, without their values
    lines TEXT             only lines with the text are compared
    background NAME        the command runs while the next ones do
    until TEXT [& TEXT]    the command is repeated until its output has the texts
    coordinator            the id of the coordinator is ignored
    assigned               an empty assignment is ignored: it depends on time whether there is one before that of partitions
    log-dirs, quorum, api-versions    see `MASKS`
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tool_runner import ToolResult, ToolRunner

UNTIL_S = 10.0
SECONDS = 30.0

ANYWHERE = [
    (re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,:]\d+)?Z?\]?"), "TIME"),
    (re.compile(r"\b(127\.0\.0\.1|localhost)(:| +)\d{4,5}( \(id: \d)?"), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"(?<![\w-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{22}(?=[\"\s]|$)"), "ID"),
    (re.compile(r"\b1[5-9]\d{11}\b"), "TIME"),
    (re.compile(r"(Complete\w+\s+\d+\s+TIME\s+)\d+"), r"\1N"),
    (re.compile(r"(Error while executing .* command :).*"), r"\1 ..."),
    (re.compile(r"console-consumer-\d+"), "console-consumer-N"),
    (re.compile(r'"log_dirs":\[[^]]*\]'), '"log_dirs":[...]'),
    (re.compile(r"\s+"), " "),
]
NOT_OUTPUT = re.compile(
    r"^(\[20\d\d-|\s*at |Caused by|\s*\.\.\. \d+ more|WARNING: (A|System|Please|java)|The consumer rebalance protocol"
    r"|.*Exception(:|$)|exit \d|.*ToolRunner\$|\(org\.apache\.|\(kafka\.)"
)
"""Logs, stack traces, and what `ToolRunner` adds."""
EXCEPTION = re.compile(r"(?:^|[ :(])[\w.]+\.([A-Z]\w*(?:Exception|Error))\b", re.MULTILINE)
WRAPPERS = {"ExecutionException", "InvocationTargetException", "RuntimeException", "KafkaException", "CompletionException"}


@dataclass
class Step:
    """One command of the transcript. `lines` are its output, marked with the side if only one side prints them."""

    command: str
    input_text: str = ""
    marks: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """The remarks and files before the command."""

    def mark(self, word: str) -> str | None:
        """The text after a mark, or None if the step has no such mark."""
        return next((mark.partition(" ")[2] for mark in self.marks if mark.split()[0] == word), None)

    def expected(self, side: str) -> list[str]:
        """The output of one side: `-` is Kafka's, `+` Strandline's."""
        return [line[2:] for line in self.lines if line[0] in (" ", side)]


def parse(text: str) -> list[Step]:
    """The steps of a transcript. What follows the last command is not kept."""
    steps: list[Step] = []
    before: list[str] = []
    for line in text.splitlines():
        start, rest = line[:2], line[2:]
        if start == "$ ":
            steps.append(Step(rest, before=before))
            before = []
        elif start == "< ":
            steps[-1].input_text += rest + "\n"
        elif start == "~ ":
            steps[-1].marks.append(rest)
        elif start in ("  ", "- ", "+ "):
            steps[-1].lines.append(line)
        else:
            before.append(line)
    return steps


def write(steps: Iterable[Step]) -> str:
    """The text of a transcript."""
    lines: list[str] = []
    for step in steps:
        lines += [*step.before, f"$ {step.command}", *(f"< {line}" for line in step.input_text.splitlines())]
        lines += [*(f"~ {mark}" for mark in step.marks), *step.lines]
    return "\n".join(lines) + "\n"


def merged(kafka: list[str], ours: list[str]) -> list[str]:
    """The lines of a step, from the outputs of both."""
    return [line for line in difflib.ndiff(kafka, ours) if not line.startswith("?")]


class Player:
    """Runs the steps against one cluster."""

    def __init__(self, runner: ToolRunner, bootstrap: str, folder: Path) -> None:
        self._runner = runner
        self._bootstrap = bootstrap
        self._folder = folder
        self._waiting: dict[str, Step] = {}

    def play(self, step: Step) -> list[str]:
        """Run the step; returns the masked lines of its output."""
        for line in step.before:
            if line.startswith("@ "):
                name, _, text = line[2:].partition(" ")
                (self._folder / name).write_text(text + "\n")
        tool, *arguments = shlex.split(step.command)
        if tool == "wait":
            begun = self._waiting.pop(arguments[0])
            return masked(self._runner.wait(arguments[0], SECONDS), begun)
        arguments = self._with_bootstrap([argument.replace("{dir}", str(self._folder)) for argument in arguments])
        name = step.mark("background")
        if name is not None:
            self._waiting[name] = step
            self._runner.start(name, tool, arguments, step.input_text)
            return []
        return self._repeat(step, lambda: self._runner.run(tool, arguments, step.input_text, SECONDS))

    def _with_bootstrap(self, arguments: list[str]) -> list[str]:
        option = ["--bootstrap-server", self._bootstrap]
        if "$B" not in arguments:
            return arguments + option
        at = arguments.index("$B")
        return arguments[:at] + option + arguments[at + 1 :]

    @staticmethod
    def _repeat(step: Step, run: Callable[[], ToolResult]) -> list[str]:
        wanted = (step.mark("until") or "").split(" & ")
        end = time.monotonic() + UNTIL_S
        while True:
            lines = masked(run(), step)
            if all(any(text in line for line in lines) for text in wanted if text) or time.monotonic() > end:
                return lines
            time.sleep(0.1)


# -- masks ------------------------------------------------------------------------------------------------------------


def masked(result: ToolResult, step: Step) -> list[str]:
    """The lines of an output, without what differs from run to run."""
    printed = [*result.out.splitlines(), *result.err.splitlines()]
    lines = [line.rstrip() for line in printed if not NOT_OUTPUT.match(line)]
    for mask, change in MASKS.items():
        if step.mark(mask) is not None:
            lines = change(lines)
    wanted = step.mark("lines") or ""
    lines = [line for line in map(_mask, lines) if line and wanted in line]
    if step.mark("sort") is not None:
        lines.sort()
    names = dict.fromkeys(EXCEPTION.findall(result.err + "\n" + result.out))
    lines += [f"! {name}" for name in names if name not in WRAPPERS]
    return lines + ([f"= {result.code}"] if result.code else [])


def _mask(line: str) -> str:
    for pattern, replacement in ANYWHERE:
        line = pattern.sub(replacement, line)
    return re.sub(r"(?<=Isr: )[\d,]+", lambda found: ",".join(sorted(found[0].split(","))), line).strip()


def _numbers(lines: list[str]) -> list[str]:
    return [re.sub(r"(?<![\w.-])-?\d[\d.,]*(?![\w-])", "N", _mask(line)) for line in lines]


def _coordinator(lines: list[str]) -> list[str]:
    """Mask the broker that coordinates a group or a transaction (before its address or in a column of numbers), and producer
    ids."""
    lines = [re.sub(r"(127\.0\.0\.1|localhost):\d+ +\(\d+\)", "COORDINATOR", line) for line in lines]
    return [
        re.sub(r"^(mover\s+)\d+(\s+)\d+", r"\1N\2N", re.sub(r"^\d+(\s+mover\s+)\d+(\s+)\d+", r"N\1N\2N", line)) for line in lines
    ]


def _log_dirs(lines: list[str]) -> list[str]:
    """Show brokers and partitions, without sizes and folders."""
    shown = []
    for line in lines:
        if line.startswith("{"):
            for broker in json.loads(line)["brokers"]:
                for folder in broker["logDirs"]:
                    names = sorted(p["partition"] for p in folder["partitions"])
                    shown.append(f"broker {broker['broker']}: error {folder['error']}, partitions {names}")
        else:
            shown.append(line)
    return shown


def _quorum(lines: list[str]) -> list[str]:
    """Show the columns and the number of nodes of each kind, but not which one leads."""
    shown = []
    for line in lines:
        words = line.split()
        shown.append(f"{words[0] if not words[0].isdigit() else 'N'} ... {words[-1]}" if words else "")
    return sorted(shown)


def _api_versions(lines: list[str]) -> list[str]:
    """Show the APIs of the first broker and their versions, without the comparison with the tool's own versions."""
    shown: list[str] = []
    for line in lines:
        if line.startswith(")"):
            break
        found = re.match(r"\s+(\w+)\((\d+)\): (.*?)( \[.*)?,?$", line)
        shown.append(f"{found[2]} {found[1]}: {found[3]}" if found else line)
    return shown


MASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "log-dirs": _log_dirs,
    "quorum": _quorum,
    "api-versions": _api_versions,
    "coordinator": _coordinator,
    "first-word": lambda lines: [line.split("=")[0] for line in lines],
    "assigned": lambda lines: [line for line in lines if '"partitions_assigned","partitions":[]' not in line],
    "floats": lambda lines: [re.sub(r"\d+\.\d+", "N", line) for line in lines],
    "numbers": _numbers,
}
"""The masks of `~`, in the order in which they are applied."""
