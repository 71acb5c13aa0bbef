"""Shared parts of the replication page: colours, the words for causes, names, cards and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from strandline.pipeline.jobs.replication_partition import (
    Row,
)
from strandline.pipeline.jobs.replication_result import stamp
from strandline.pipeline.jobs.results import counted

BAD, WARN, WELL, CALM = "#c8553d", "#f2d388", "#7fb685", "#c9d6df"

CAUSES = {
    "broker_fenced": ("#c8553d", "broker fenced"),
    "broker_registered": ("#a04030", "broker restarted"),
    "lagging": ("#e0a458", "follower lagged"),
    "lost_records": ("#9b5094", "follower lost records"),
    "controlled_shutdown": ("#81a4cd", "controlled shutdown"),
    "caught_up": ("#7fb685", "follower caught up"),
}
OTHER_CAUSE = ("#a5adb8", "other or unknown")
ROWS_MAX = 500
"""A table shows at most this many rows."""
NOTHING = "\u2013"
"""A cell without a value."""


def moment(us: int | None) -> str:
    """A time in UTC for readers, such as `2026-01-31 09:00:00.000`."""
    return (stamp(us) or "").replace("T", " ").replace("Z", "")


def partition_name(row: Row) -> str:
    return f"{row.topic}-{row.partition}"


def short(name: str) -> str:
    return name if len(name) <= 21 else f"{name[:9]}…{name[-11:]}"


def cause_words(row: Row) -> str:
    words = CAUSES.get(row.cause, ("", row.cause.replace("_", " ")))[1]
    return f"{words}: {row.detail}" if row.detail else words


def truncation_words(row: Row) -> str:
    truncated = f"truncated {counted(row.records or 0, 'record')} from offset {row.first_offset}"
    words = f"{partition_name(row)} on broker {row.broker}, {moment(row.from_us)}: {truncated}"
    below = f", {row.below_hw} of them below the high watermark" if row.below_hw else ""
    return f"{words}{below}{'; ' + row.detail if row.detail else ''}"


def section(title: str, words: str, picture: str, below: str) -> str:
    return f"<h2>{escape(title)}</h2><p class=faint>{escape(words)}</p>{card(picture, below)}"


def card(picture: str, below: str = "") -> str:
    return f"<div class=card>{picture}{below}</div>"


def details(rows: Sequence[object], table: str, names: str) -> str:
    """A table that the reader can unfold. `names` is the plural of what a row is."""
    return f"<details><summary>Table of {escape(names)} ({len(rows):,})</summary>{table}</details>"


def table(heads: Iterable[str], rows: Sequence[Sequence[Any]], words: set[int] | None = None) -> str:
    """An HTML table. `words` are the indexes of columns with text, which is aligned to the left."""
    left = words or set()

    def cells(tag: str, values: Iterable[Any]) -> str:
        return "".join(f"<{tag}{' class=words' if n in left else ''}>{escape(str(v))}</{tag}>" for n, v in enumerate(values))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows[:ROWS_MAX])
    more = f"<p class=faint>and {len(rows) - ROWS_MAX:,} more rows; the JSON has all of them</p>" if len(rows) > ROWS_MAX else ""
    return f"<div class=card><table><tr>{cells('th', heads)}</tr>{lines}</table></div>{more}"
