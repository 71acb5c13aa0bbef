"""`strandline doctor`: looks at a cluster from this machine, and says what is wrong and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from strandline.cli.amounts import counted
from strandline.cli.common import DEFAULT_BOOTSTRAP, UNHEALTHY, Bootstrap, new_app, quiet_client
from strandline.cli.doctor_checks import Finding, Level, judge
from strandline.cli.doctor_look import look
from strandline.cli.output import Form, Output, Table, View, terminal_width
from strandline.cli.watch import Watch, present

app = new_app()

WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
LINE_WIDTH = 100
"""The width of sentences if there is no terminal, in characters."""
MARKS = {Level.ok: "ok", Level.note: "note", Level.warning: "warning", Level.problem: "PROBLEM"}


@app.command()
def doctor(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None) -> None:
    """Look at a cluster from this machine, and say what is wrong and what to do. Exit code 3 if there is a problem; warnings
    do not change it.

    It tries the bootstrap addresses and those that the brokers advertise: names, ports, and what listens there. Then it asks for
    controllers, replication, log directories, free space, clocks, versions, and traps in the configuration. It changes nothing.
    """
    quiet_client()

    async def ask() -> View:
        return _view(judge(await look(bootstrap)))

    present(ask, output, watch)


def _view(findings: list[Finding]) -> View:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    document = {
        "problems": counts[Level.problem],
        "warnings": counts[Level.warning],
        "findings": [{**finding._asdict(), "level": finding.level.value} for finding in findings],
    }
    plain = Table(("level", "check", "text", "advice"), [(f.level.value, f.check, f.text, f.advice) for f in findings])
    summary = f"{counted(counts[Level.problem], 'problem')}, {counted(counts[Level.warning], 'warning')}"
    lines = list(_lines(findings, terminal_width() or LINE_WIDTH))
    return View(document, [*lines, summary], code=UNHEALTHY if counts[Level.problem] else 0, plain=plain)


def _lines(findings: Iterable[Finding], width: int) -> Iterable[str]:
    """A paragraph for each finding, with its advice below."""
    for finding in findings:
        head = f"{MARKS[finding.level]:<8} {finding.check:<14} "
        indent = " " * len(head)
        yield textwrap.fill(finding.text, width, initial_indent=head, subsequent_indent=indent, **WHOLE_WORDS)
        if finding.advice:
            first = f"{indent}-> "
            yield textwrap.fill(finding.advice, width, initial_indent=first, subsequent_indent=indent, **WHOLE_WORDS)
