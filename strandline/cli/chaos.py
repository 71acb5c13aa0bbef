"""`strandline chaos`: runs a fault scenario under load, prints each event as it happens, and ends with a verdict."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, new_app, parse_settings, run, temporary_folder
from strandline.cli.output import Form, Output, Table, View, print_document, print_table, show
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.chaos.drivers import Driver
    from strandline.chaos.report import Event, Report
    from strandline.chaos.scenario import Scenario

app = new_app("Run a fault scenario under load, or list the scenarios.")


@app.command("list")
def list_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A folder of scenario files.", show_default="the package's scenarios")
    ] = None,
    output: Output = Form.table,
) -> None:
    """List scenarios with their titles: those of the package, or those of a folder."""
    from strandline.chaos.scenario import OURS, load_scenario

    files = sorted((folder or OURS).glob("*.toml"))
    if not files:
        raise UsageError(f"there are no scenario files (*.toml) in {folder or OURS}")
    scenarios = [(file, load_scenario(file)) for file in files]
    rows = [(f.stem if folder is None else str(f), s.title, ", ".join(s.requires)) for f, s in scenarios]
    table = Table(("name" if folder is None else "file", "title", "requires"), rows)
    show(View({"scenarios": [_describe(file, scenario) for file, scenario in scenarios]}, [table]), output)


def _describe(file: Path, scenario: Scenario) -> dict[str, Any]:
    s = scenario
    return {"file": str(file), "title": s.title, "why": s.why, "requires": s.requires, "parameters": s.parameters}


@app.command("run")
def run_(
    file: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A name from `strandline chaos list`, such as kill-leader, or a TOML file.")
    ],
    compose: Annotated[
        Path | None, typer.Option(metavar="PROJECT_DIR", help="Use the running compose project of this folder.")
    ] = None,
    local: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use the cluster that `strandline up --data DIR` runs.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="The compose project's name, if a folder has several.")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Start a cluster with TLS, users and rights.")] = False,
    repeat: Annotated[
        int, typer.Option(help="Run the scenario several times; print min, median and max of the longest gap.", min=1)
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="A parameter of the scenario; may be given several times."),
    ] = None,
    output: Output = Form.table,
) -> None:
    """Run a scenario under a steady load with acks=all, and check what the clients saw. Without --compose or --local, the
    command starts a new cluster. Every fault is healed at the end, also after Ctrl-C. Exit code 3 if the verdict is bad."""
    from strandline.chaos.report import summary
    from strandline.chaos.scenario import find_scenario, load_scenario

    if compose is not None and local is not None:
        raise UsageError("--compose and --local exclude each other")
    if secure and (compose is not None or local is not None):
        raise UsageError("--secure is for a cluster that the command starts: leave out --compose and --local")
    scenario = load_scenario(find_scenario(file), parse_settings(settings))
    print(f"{scenario.title}\n{scenario.why}\n", file=sys.stderr)
    reports = []
    for number in range(1, repeat + 1):
        if repeat > 1:
            print(f"-- run {number} of {repeat}", file=sys.stderr)
        with ExitStack() as stack:
            work = _one(scenario, _driver(compose, local, project, stack, secure=secure))
            report = run(work, grace_s=HEALING_GRACE_S, on_interrupt=HEALING)
        reports.append(report)
        if not output.is_document:
            _print(report, output)
    if output.is_document:
        document = reports[0].to_json() if repeat == 1 else {**summary(reports), "reports": [r.to_json() for r in reports]}
        print_document(document, output)
    elif repeat > 1:
        gaps = summary(reports)["longest_gap_ms"]
        print(f"longest gap of {repeat} runs: min {gaps['min']:.0f} ms, median {gaps['median']:.0f} ms, max {gaps['max']:.0f} ms")
    if not all(r.good for r in reports):
        raise typer.Exit(UNHEALTHY)


def _driver(compose: Path | None, local: Path | None, project: str | None, stack: ExitStack, *, secure: bool) -> Driver:
    if compose is not None:
        from strandline.chaos.compose import ComposeProject

        return ComposeProject(compose, project)
    from strandline.chaos.local import OwnCluster, RunningCluster

    if local is not None:
        return RunningCluster(local)
    return OwnCluster(Path(stack.enter_context(temporary_folder("strandline-chaos-"))), secure=secure)


async def _one(scenario: Scenario, driver: Driver) -> Report:
    from strandline.chaos.run import run_scenario

    return await run_scenario(scenario, driver, _say)


HEALING_GRACE_S = 120.0
HEALING = "healing the scenario's faults (Ctrl-C again: exit at once, and leave them)"

MARKS = {"step": ">", "seen": " ", "claim": " ", "note": "#", "problem": "!"}


def _say(event: Event) -> None:
    print(f"{event.at_s:8.3f} s {MARKS[event.kind]} {event.text}", file=sys.stderr, flush=True)


def _print(report: Report, output: Form) -> None:
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    by_fault = [(f"gap after: {f.do} {', '.join(f.nodes)}", f"{f.gap_ms:.0f} ms") for f in report.faults]
    rows = [
        (
            "records sent / acknowledged / failed",
            f"{report.records_sent} / {report.records_acknowledged} / {report.records_failed}",
        ),
        ("records read", report.records_read),
        ("lost / doubled / reordered", f"{report.records_lost} / {report.records_doubled} / {report.records_reordered}"),
        *([("lost in the reported range", str(report.records_lost_as_reported))] if report.records_lost_as_reported else []),
        ("other anomalies", report.other_anomalies),
        ("replica logs compared / different", f"{report.replicas_compared} / {report.replicas_different}"),
        ("claims held", f"{sum(c['ok'] for c in report.claims)} of {len(report.claims)}"),
        *by_fault,
        ("longest gap before any fault", f"{report.steady_gap_ms:.0f} ms"),
        ("longest gap of the whole topic", f"{report.whole_topic_gap_ms:.0f} ms"),
    ]
    print_table(("what", "result"), rows, output)
    goal = "" if report.gap_goal_ms is None else f" (expected: at most {report.gap_goal_ms:.0f} ms)"
    print(
        f"{report.records_acknowledged} acknowledged, {report.records_lost} lost, {report.records_doubled} doubled, "
        f"{report.records_reordered} reordered; longest gap {report.longest_gap_ms:.0f} ms{goal}: "
        f"{'all is well' if report.good else 'NOT well'}"
    )
