"""Compares every log call in the code with docs/logs.md: event names, field names, and complete positions.

An operator who searches a log must be able to rely on these names. The page is the list, because operators read it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from strandline.controller.decision import Cause
from strandline.protocol.log_limits import Suppressed
from strandline.storage.log.log import Log, LogConfig, TailBudget
from strandline.storage.memory.memory_files import MemoryFiles

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "controller", "broker", "client", "pipeline", "strandline")
PAGE = (ROOT / "docs" / "logs.md").read_text()
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
LOGGERS = ("logger",)

POSITION = {"topic", "partition", "leader_epoch", "log_start_offset", "high_watermark", "log_end_offset"}
EXPANDED = {"suppressed": {"suppressed", "suppressed_others"}, **dict.fromkeys(("self", "partition", "log"), POSITION)}
"""`**x.fields`: what it stands for, by the last name before `.fields`. Held against the real things below."""
ABOUT_A_PARTITION = ("partition.", "isr.", "log.")


class Call(NamedTuple):
    place: str
    room: str
    event: ast.expr
    keywords: list[ast.keyword]

    @property
    def name(self) -> str:
        return str(self.event.value) if isinstance(self.event, ast.Constant) else ""

    @property
    def fields(self) -> set[str]:
        named = {keyword.arg for keyword in self.keywords if keyword.arg is not None}
        return named.union(*(EXPANDED[e] for e in self.expansions if e in EXPANDED))

    @property
    def expansions(self) -> list[str]:
        return [expansion(keyword.value) for keyword in self.keywords if keyword.arg is None]


def expansion(node: ast.expr) -> str:
    """Return the last name of the object in `**self.partition.fields`: `partition`. Other expansions are not allowed, because
    neither this test nor a reader can see their fields."""
    if not (isinstance(node, ast.Attribute) and node.attr == "fields"):
        return f"**{ast.unparse(node)}"
    return ast.unparse(node.value).rsplit(".", 1)[-1]


def calls_in(source: str, place: str) -> Iterator[Call]:
    if not any(logger in source for logger in LOGGERS):
        return  # Parsing all files would take a second in each process that collects this file.
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        if ast.unparse(node.func.value).rsplit(".", 1)[-1] in LOGGERS:
            event = node.args[0] if len(node.args) == 1 else ast.Constant(None)
            yield Call(f"{place}:{node.lineno}", place.split("/")[0], event, node.keywords)


def all_calls() -> list[Call]:
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [call for path in files for call in calls_in(path.read_text(), str(path.relative_to(ROOT)))]


CALLS = all_calls()


def names_in(heading: str) -> set[str]:
    """Return the names in the first column of the table below a heading of the page."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


EVENTS, FIELDS = names_in("Events"), names_in("Fields")


def complaints(call: Call) -> list[str]:
    """Return the errors of one log call."""
    found = []
    if not re.fullmatch(r"[a-z_]+\.[a-z_]+", call.name):
        found.append(f"the event is not a constant of the form subject.past_participle: {ast.unparse(call.event)}")
    elif call.name not in EVENTS:
        found.append(f"the event {call.name} is not in docs/logs.md")
    found += [f"the field {name} is not in docs/logs.md" for name in sorted(call.fields - FIELDS)]
    found += [f"{name}: write the fields out, or give the object a `fields`" for name in call.expansions if name not in EXPANDED]
    missing = {"topic", "partition", "leader_epoch"} - call.fields
    about_one = call.name.startswith(ABOUT_A_PARTITION) or "partition" in call.fields
    if about_one and missing & ({"topic", "partition"} if call.room in OUTSIDE else missing) and call.name != EXEMPT:
        found.append(f"a line about a partition without {', '.join(sorted(missing))}")
    return found


OUTSIDE = ("client", "pipeline")
"""Rooms whose lines need no leader epoch."""

EXEMPT = "alter_partition.callback_failed"
"""An event whose code knows only the topic's id, not its name."""


def test_log_calls_are_found() -> None:
    assert len([call for call in CALLS if call.room in ("broker", "controller")]) > 60


def test_every_log_call_follows_the_page() -> None:
    wrong = [f"{call.place}: {complaint}" for call in CALLS for complaint in complaints(call)]
    assert wrong == []


def test_the_page_lists_only_existing_events_and_fields() -> None:
    assert sorted(EVENTS - {call.name for call in CALLS}) == []
    by_the_processors = {"timestamp", "level", "node", "event", "exception"}
    used = set().union(*(call.fields for call in CALLS)) | by_the_processors | {"partition_epoch"}
    assert sorted(FIELDS - used) == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('logger.info("node_started")', "subject.past_participle"),
        ('logger.info(f"partition.{what}")', "subject.past_participle"),
        ('logger.info("partition.came_and_went", **partition.fields)', "not in docs/logs.md"),
        ('logger.info("broker.fenced", broker=1)', "field broker is not"),
        ('logger.info("isr.committed", **partition.fields, leo=1)', "field leo is not"),
        ('logger.info("isr.committed", **facts)', "write the fields out"),
        ('logger.info("isr.committed", topic=t, partition=0)', "without leader_epoch"),
        ('logger.info("broker.fenced", partition=0)', "without leader_epoch, topic"),
    ],
)
def test_a_wrong_log_call_is_found(line: str, complaint: str) -> None:
    [call] = calls_in(line, "broker/x.py")
    assert complaint in "; ".join(complaints(call))


def test_the_page_explains_every_cause() -> None:
    """The controller logs no other cause, because the type of `Decision.cause` allows none. The metric of elections has a series
    for each."""
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `cause` |")]
    assert sorted(re.findall(r"`([^`]+)`", row.split("|")[2])) == sorted(get_args(Cause))


def test_log_fields_have_the_whole_position() -> None:
    files = MemoryFiles()
    files.make_dirs("/data/orders-0")
    arguments = {"topic": "orders", "partition": 0, "topic_id": bytes(16), "config": LogConfig(), "budget": TailBudget()}
    log = Log.open(files, "/data/orders-0", clean_shutdown=True, now_ms=0, **arguments)  # type: ignore[arg-type]
    assert set(log.fields) == POSITION
    assert log.fields["topic"] == "orders"


def test_suppressed_lines_are_counted_under_these_names() -> None:
    assert set(Suppressed(1, 1).fields) == EXPANDED["suppressed"]
    assert Suppressed(0, 0).fields == {}
