"""`strandline demo`: runs `strandline.demo`, and prints its result as a table and a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import ERROR, new_app, run, temporary_folder
from strandline.cli.interrupts import AT_ONCE, PROCESSES_GRACE_S
from strandline.cli.output import Form, Output, Table, View, show

if TYPE_CHECKING:
    from strandline.demo import Result

app = new_app()


@app.command()
def demo(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the cluster's files in this folder.")] = None,
    lines: Annotated[int | None, typer.Option(help="Stop after about this many lines, for a quick look.", min=1)] = None,
    output: Output = Form.table,
) -> None:
    """Send Python's standard library line by line through a cluster, kill a leader and the active controller, and check
    that no acknowledged record is lost, doubled or reordered. Exit code 0 only if that holds."""
    from strandline.demo import run_demo

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with temporary_folder("strandline-demo-") as temporary:
        work = run_demo(Path(data or temporary), say=say, limit=lines)
        result = run(work, grace_s=PROCESSES_GRACE_S, on_interrupt=AT_ONCE)
    if not output.is_document:
        for problem in result.problems:
            print(f"problem: {problem}", file=sys.stderr)
    show(_view(result), output)


def _view(result: Result) -> View:
    rows = [
        ("files sent", f"{result.files:,}"),
        ("files rebuilt, SHA-256 equal", f"{result.files_rebuilt:,}"),
        ("records sent", f"{result.records_sent:,}"),
        ("records acknowledged", f"{result.records_acknowledged:,}"),
        ("records read", f"{result.records_read:,}"),
        ("lost", result.records_lost),
        ("doubled", result.records_doubled),
        ("reordered", result.records_reordered),
        ("other anomalies", result.other_anomalies),
        ("replica logs compared / different", f"{result.replicas_compared} / {result.replicas_different}"),
        ("longest gap between acknowledgements", f"{result.longest_gap_ms:.0f} ms"),
        ("cluster ready / sending / reading", f"{result.ready_s:.1f} / {result.send_s:.1f} / {result.read_s:.1f} s"),
    ]
    summary = (
        f"{result.records_acknowledged} acknowledged, {result.records_read} read, {result.records_lost} lost, "
        f"{result.records_doubled} doubled, {result.records_reordered} reordered, longest gap "
        f"{result.longest_gap_ms:.0f} ms: {'all is well' if result.good else 'NOT well'}"
    )
    return View(result.to_json(), [Table(("what", "result"), rows), summary], code=0 if result.good else ERROR)
