"""`strandline simulate`: runs a cluster and its clients from one seed, in this process and in virtual time.

Controllers, brokers and clients run their production code; time, network, disks and faults are drawn from the seed. The
same seed gives the same run, to the last event.
"""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, new_app, note
from strandline.cli.output import Form, Output, Table, View, print_document, show
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.testing.simulation.campaign.shrink import Shrunk
    from strandline.testing.simulation.runs.replay import Replay
    from strandline.testing.simulation.runs.run import Report

app = new_app()

SEEDS_DRAWN = 1_000_000_000
"""Upper bound of a random seed: short enough to type again."""


@app.command()
def simulate(
    seed: Annotated[int | None, typer.Option(metavar="N", help="The seed of the run; if not given, a random one.", min=0)] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="A..B", help="Run all these seeds, one after the other; print a line each.")
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="S03", help="A directed scenario. Seeds below 100 run it as written, others perturb it."),
    ] = None,
    until: Annotated[float | None, typer.Option(metavar="T", help="End the run at this second of virtual time.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every event, with pictures of the logs.")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="Reduce a run that fails to the smallest that still fails.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the run as a timeline, in one HTML file.")
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(metavar="JSON|FILE", help='Options that override those drawn from the seed, such as {"brokers": 2}.'),
    ] = None,
    mutation: Annotated[
        str | None,
        typer.Option(metavar="M01", help="Remove this guard from the code during the run, to see what fails without it."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the scenarios, and the guards that --mutation removes.")] = False,
    output: Output = Form.table,
) -> None:
    """Run a whole cluster from one seed, with simulated time, network, disks and faults. Exit code 3 if an invariant was
    violated; the same seed violates it again."""
    if list_:
        _list(output)
        return
    from strandline.testing.simulation.runs.replay import Replay, parse_seeds

    _check_together(seed=seed, seeds=seeds, scenario=scenario, options=options, trace=trace, shrink=shrink, timeline=timeline)
    if until is not None and not (0 < until < math.inf):
        raise UsageError(f"--until is a time in seconds, above 0; not {until:g}")
    if timeline is not None and not timeline.parent.is_dir():
        raise UsageError(f"--timeline: there is no folder {timeline.parent}")
    more: dict[str, Any] = {
        "scenario": scenario_named(scenario),
        "until_s": until,
        "mutation": mutation_named(mutation),
        "changes": _changes(options),
    }
    warnings.simplefilter("ignore", RuntimeWarning)  # killed processes leave coroutines that are never awaited
    if seeds is not None:
        good = _many([Replay(number, **more) for number in parse_seeds(seeds)], output)
    else:
        good = _one(Replay(_any_seed() if seed is None else seed, **more), trace, shrink, timeline, output)
    if not good:
        raise typer.Exit(UNHEALTHY)


# -- what was asked ---------------------------------------------------------------------------------------------------


def _check_together(**given: Any) -> None:
    for one, other in (
        ("seed", "seeds"),
        ("seeds", "trace"),
        ("seeds", "shrink"),
        ("seeds", "timeline"),
        ("scenario", "options"),
    ):
        if given[one] not in (None, False) and given[other] not in (None, False):
            raise UsageError(f"--{one} and --{other} exclude each other")


def _any_seed() -> int:
    import secrets

    return secrets.randbelow(SEEDS_DRAWN)


def scenario_named(word: str | None) -> str | None:
    if word is None:
        return None
    from strandline.testing.simulation.runs.replay import numbered
    from strandline.testing.simulation.scenarios import SCENARIOS, WAITING

    return numbered("scenario", word, SCENARIOS, WAITING)


def mutation_named(word: str | None) -> str | None:
    if word is None:
        return None
    from strandline.testing.simulation.campaign.mutations import MUTATIONS, WAITING
    from strandline.testing.simulation.runs.replay import numbered

    return numbered("mutation", word, MUTATIONS, WAITING)


def _changes(text: str | None) -> dict[str, Any] | None:
    """The options in a JSON object, or in a file with one."""
    if text is None:
        return None
    import json

    try:
        if not text.lstrip().startswith(("{", "[")):
            text = Path(text).read_text(encoding="utf-8")
        changes = json.loads(text)
    except OSError as e:
        raise UsageError(f"--options takes a JSON object or a file with one; {text}: {e.strerror}") from None
    except ValueError as e:
        raise UsageError(f"--options is not JSON: {e}") from None
    if not isinstance(changes, dict):
        raise UsageError('--options takes a JSON object, such as {"brokers": 2}')
    return changes


# -- runs -------------------------------------------------------------------------------------------------------------


def _one(replay: Replay, trace: bool, shrink: bool, timeline: Path | None, output: Form) -> bool:
    report = replay.run(full_trace=trace or timeline is not None)
    shrunk = _shrunk(replay, output.is_document) if shrink and not report.good else None
    if timeline is not None:
        timeline.write_text(_timeline(replay, report), encoding="utf-8")
    if output.is_document:
        print_document(_document(replay, report, trace, shrunk, timeline), output)
    else:
        _print(replay, report, trace, timeline)
        if shrunk is not None:
            _print_shrunk(shrunk)
        elif shrink:
            note("the run does not fail, so there is nothing to shrink")
    return report.good


def _shrunk(replay: Replay, quiet: bool) -> Shrunk:
    from strandline.testing.simulation.campaign.shrink import shrink

    return shrink(replay, tell=(lambda text: None) if quiet else lambda text: print(f"  {text}", file=sys.stderr, flush=True))


def _many(replays: list[Replay], output: Form) -> bool:
    """Run all of them; print a line each, and for a failed one the command that shows its events."""
    bad, documents = [], []
    for replay in replays:
        report = replay.run()
        if not report.good:
            bad.append(replay)
        if output.is_document:
            documents.append(_document(replay, report, False, None, None))
        else:
            print(report if report.good else f"{report}\n  {replay.command}", flush=True)
    if output.is_document:
        verdict = "violation" if bad else "ok"
        document = {"seeds": len(replays), "verdict": verdict, "violated": [r.seed for r in bad], "runs": documents}
        print_document(document, output)
    else:
        print(f"{len(replays)} seeds, {len(bad)} with a violation")
    return not bad


def _document(replay: Replay, report: Report, trace: bool, shrunk: Shrunk | None, timeline: Path | None) -> dict[str, Any]:
    document: dict[str, Any] = {**report.as_dict(), "command": replay.command}
    if trace and report.trace is not None:
        document["trace"] = [event._asdict() for event in report.trace.events()]
    if shrunk is not None:
        document["shrunk"] = {
            "command": shrunk.replay.command,
            "invariant": shrunk.invariant,
            "faults": shrunk.faults,
            "runs": shrunk.runs,
            "dropped": shrunk.steps,
            "options": shrunk.report.options,
        }
    if timeline is not None:
        document["timeline"] = str(timeline)
    return document


# -- pages ------------------------------------------------------------------------------------------------------------


def _list(output: Form) -> None:
    from strandline.testing.simulation.campaign import mutations
    from strandline.testing.simulation.scenarios import SCENARIOS, WAITING

    scenarios = sorted(SCENARIOS.values(), key=lambda scenario: scenario.place)
    guards = [mutations.MUTATIONS[number] for number in sorted(mutations.MUTATIONS)]
    document = {
        "scenarios": [{"number": s.number, "title": s.title, "source": s.source} for s in scenarios],
        "waiting": [{"number": number, "feature": WAITING[number]} for number in sorted(WAITING)],
        "mutations": [{"number": m.number, "meaning": m.meaning} for m in guards],
        "waiting_mutations": [{"number": n, "feature": feature} for n, feature in mutations.WAITING.items()],
    }
    tables = [
        Table(("scenario", "title", "from"), [(s.number, s.title, s.source) for s in scenarios]),
        Table(("not yet", "it needs"), [(number, WAITING[number]) for number in sorted(WAITING)]),
        Table(("mutation", "what the code does with it"), [(m.number, m.meaning) for m in guards]),
    ]
    show(View(document, tables), output)


def _title(replay: Replay) -> str:
    if replay.scenario is None:
        return f"Seed {replay.seed}"
    from strandline.testing.simulation.scenarios import find

    found = find(replay.scenario)
    return f"{found.number}: {found.title}"


def _timeline(replay: Replay, report: Report) -> str:
    from strandline.testing.simulation.invariants.violation import Violation
    from strandline.testing.simulation.story.timeline import render

    assert report.trace is not None
    violation = None
    if report.violations:
        v = report.violations[0]
        violation = Violation(v["invariant"], v["text"], partition=v["partition"], node=v["node"])
    about = {"seed": replay.seed, "verdict": report.verdict, "again": replay.command}
    return render(report.trace, _title(replay), about=about, violation=violation)


def _print(replay: Replay, report: Report, trace: bool, timeline: Path | None) -> None:
    from strandline.testing.simulation.runs.page import page, stories, verdict
    from strandline.testing.simulation.story.story import narrate

    if trace and report.trace is not None:
        print(narrate(report.trace, title=_title(replay)))
    else:
        title = _title(replay) if replay.scenario is None else f"{_title(replay)} (seed {replay.seed})"
        print(f"{title}\n{'=' * len(title)}\n\n{page(report)}")
    if report.violations:
        print(stories(report))
    if timeline is not None:
        print(f"timeline: {timeline}")
    if not report.good:
        print(f"again: {replay.command}")
    print(verdict(report))


def _print_shrunk(shrunk: Shrunk) -> None:
    replay, steps = shrunk.replay, len(shrunk.steps)
    print(f"\nThe smallest run that breaks {shrunk.invariant} as well ({shrunk.runs} runs, {steps} things dropped):\n")
    if replay.scenario is None:
        from strandline.testing.simulation.runs.page import page

        print(page(shrunk.report))
    print(f"again: {replay.command}")
