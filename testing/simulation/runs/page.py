"""A run as a page of text: the options, the faults, the outcome, and the verdict.

`story.py` explains a violation, or tells a whole run record by record; this is the page above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from strandline.testing.simulation.kernel.trace import Event, Trace
from strandline.testing.simulation.observation.marks import MARKS
from strandline.testing.simulation.options import Options
from strandline.testing.simulation.runs.run import OK, STORIES_MAX, Report
from strandline.testing.simulation.story.drawing import WIDTH
from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS
from strandline.testing.simulation.story.picture import Picture
from strandline.testing.simulation.story.sentences import Sentences

EVENTS = ("phase", "scenario.begins", "scenario.says", "fault.begin", "node.", "controller.elected")
"""The kinds of events on the page: those that show what was done to the cluster."""
HEADINGS = ("phase", "scenario.says")
SETTLED = "nothing that was promised is lost, and every invariant held"


def page(report: Report) -> str:
    """The page of a run, without the stories of its violations; `stories` returns those."""
    parts = [
        _section("Options", _drawn(report)),
        _section("Faults and events", done(report.trace) if report.trace is not None else []),
        _section("Outcome", _outcome(report)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def stories(report: Report) -> str:
    """The violations: a story for each of the first few, and one line for each other one."""
    full = [v["story"] for v in report.violations if v["story"]]
    short = [f"{v['invariant']} at {v['time_s']:.3f} s: {v['text']}" for v in report.violations if not v["story"]]
    more = [f"And {len(short)} more:", *(line for text in short for line in _wrapped(text, hang=4))] if short else []
    return "\n\n".join([*full, *(["\n".join(more)] if more else [])])


def verdict(report: Report) -> str:
    """The last line of the page."""
    if report.verdict == OK:
        return f"ok: {SETTLED}"
    if report.good:
        return f"{report.verdict}: records were lost, which is permitted: more was destroyed than replication survives"
    names = ", ".join(dict.fromkeys(str(v["invariant"]) for v in report.violations))
    return f"{report.verdict}: {names}{'' if len(report.violations) <= STORIES_MAX else f' ({len(report.violations)} in all)'}"


# -- parts ------------------------------------------------------------------------------------------------------------


def _drawn(report: Report) -> list[str]:
    if report.scenario is None:
        table = Options.from_dict(report.options).table().splitlines()
        width = max(len(line) - len(line.partition("  ")[2].lstrip()) for line in table)
        return [wrapped for line in table for wrapped in _wrapped(line, hang=width)]
    fault = "and one random fault" if report.options.get("fault") else "and no other fault"
    return [
        f"delays, clocks and turns from the seed, {fault}"
        if report.options.get("perturbed")
        else "none: the scenario is played as it is written"
    ]


def done(trace: Trace) -> list[str]:
    """Phases, headings and faults, in order."""
    picture, lines = Picture(), []
    sentences = Sentences(picture)
    for event in trace.events(kinds=EVENTS):
        if not _is_reported_elsewhere(event, picture):
            indent = 0 if event.kind in HEADINGS else 2
            lines += _line(event.time, indent, _text(sentences, event))
        picture.on(event)
    return lines


def _is_reported_elsewhere(event: Event, picture: Picture) -> bool:
    """Whether another line reports the event: a fault that an event of its node reports, or the first start of a process."""
    if event.kind == "scenario.begins":
        return True
    if event.kind == "node.started":
        node = picture.nodes.get(event.node)
        return node is None or not node.starts
    return event.kind == "fault.begin" and event.fields.get("fault") in BY_NODE_EVENTS


def _text(sentences: Sentences, event: Event) -> str:
    return str(event.fields["text"]) if event.kind == "scenario.says" else sentences.of(event)


def _outcome(report: Report) -> list[str]:
    seen = sum(1 for count in report.marks.values() if count)
    rows = [
        ("time", f"{report.virtual_s:.1f} s of virtual time in {report.wall_s:.1f} s"),
        ("messages", f"{report.messages}, in {report.events} events"),
        ("records", f"{report.sent} sent, {report.acked} acknowledged" if report.scenario is None else ""),
        ("history", str(report.history).partition("\n")[0] if report.history is not None else ""),
        ("faults", _counts(report.faults) or "none"),
        ("left out", _counts(report.skipped) and f"{_counts(report.skipped)} (no victim, or the budget refused it)"),
        ("marks", f"{seen} of {len(MARKS)} coverage marks reached"),
        ("trace", report.trace_sha256),
    ]
    return [line for name, text in rows if text for line in _wrapped(f"{name:<10}{text}", hang=10)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in sorted(counts.items()) if count)


# -- layout -----------------------------------------------------------------------------------------------------------


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return [title, "-" * len(title), *found] if found else []


def _line(time: float, indent: int, text: str) -> list[str]:
    stamp = f"{time:8.3f} s  {' ' * indent}"
    return textwrap.wrap(text, WIDTH, initial_indent=stamp, subsequent_indent=" " * len(stamp), break_on_hyphens=False)


def _wrapped(text: str, *, hang: int = 0) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * hang, break_on_hyphens=False, break_long_words=False, drop_whitespace=True
    ) or [""]
