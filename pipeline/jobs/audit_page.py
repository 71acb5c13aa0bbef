"""An audit as one HTML file that needs no network: a verdict, pictures, findings in sentences, and every row in tables.

The pictures are SVG, drawn by matplotlib, inside the page. For each topic they show how many records each side has in each
interval, and a grid of partitions and intervals, red if something is lost or doubled. Events (kills, in a drill) can be marked.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from strandline.pipeline.jobs.audit_range import Shown
from strandline.pipeline.jobs.audit_result import BAD, COPY_BAD, NOTES, Audit, CopyInterval, Interval, Seen
from strandline.pipeline.jobs.results import counted, iso
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Mark = tuple[float, str]
"""A time in seconds since the epoch, and the event's label."""

INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
COLOURS = {"log": "#2f6690", "lake": "#81a4cd", "ledger": "#c9d6df", "copy": "#81a4cd"}
WELL, WAITING, WRONG = "#7fb685", "#f2d388", "#c8553d"
MARKS_MAX = 60
"""The largest number of labelled marks; more labels would be unreadable."""
ROWS_MAX = 2000
"""The largest number of rows in one table; the JSON has all rows."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f7f8fa; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 8px; }
.faint { color: #7b8794; } .verdict { border-radius: 8px; padding: 16px 20px; margin: 20px 0; color: #fff; font-size: 17px; }
.well { background: #4c8c5b; } .wrong { background: #b6452c; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 10px 16px; min-width: 110px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile.bad b { color: #b6452c; }
.card { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 12px; margin: 12px 0; overflow-x: auto; }
.card svg { max-width: 100%; height: auto; display: block; }
ul { padding-left: 20px; } li.bad { color: #b6452c; } li .faint { font-size: 13px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #e4e7eb; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: #52606d; font-weight: 600; }
tr.bad td { background: #fbe9e5; } summary { cursor: pointer; margin: 12px 0; }
"""


def page(audit: Audit, title: str = "Audit", marks: Sequence[Mark] = ()) -> str:
    """The HTML of the whole report. `marks` are drawn as labelled lines. Raises UsageError if matplotlib is missing."""
    by_topic = [(topic, list(rows)) for topic, rows in groupby(audit.intervals, key=lambda row: row.topic)]
    by_copy = [(pair, list(rows)) for pair, rows in groupby(audit.copies, key=lambda row: (row.topic, row.copy))]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<div class=faint>{iso(int(audit.made_at_s))} UTC, a row for each {_span(audit.interval_s)}</div>",
        f"<div class='verdict {'well' if audit.is_ok else 'wrong'}'>{escape(_capital(audit.verdict))}</div>",
        _tiles(audit),
        _findings(audit),
        *(_topic(audit, topic, rows, marks) for topic, rows in by_topic),
        *(_copied(audit, *pair, rows, marks) for pair, rows in by_copy),
        _compared(audit),
    ]
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><main>{''.join(parts)}</main></body></html>\n"


# -- words ------------------------------------------------------------------------------------------------------------


def _tiles(audit: Audit) -> str:
    bad = {"lost": 0, "doubled": 0, "different": 0}
    for kind in (*BAD, *COPY_BAD):
        bad[_tile_of(kind)] += audit.counts(kind)
    tiles = [tile(f"in the {source}", audit.count(source)) for source in audit.sources]
    if audit.copies:
        tiles.append(tile("in copies", sum(row.copied for row in audit.copies)))
    tiles += [tile(name, count, is_bad=count > 0) for name, count in bad.items()]
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _tile_of(kind: str) -> str:
    if kind.startswith("lost"):
        return "lost"
    return "doubled" if kind.startswith(("doubled", "acknowledged_twice")) else "different"


def tile(name: str, value: int | str, is_bad: bool = False) -> str:
    """A value with its name, in a box. A number gets separators between its thousands."""
    text = f"{value:,}" if isinstance(value, int) else escape(value)
    return f"<div class='tile{' bad' if is_bad else ''}'><b>{text}</b><span class=faint>{escape(name)}</span></div>"


def _findings(audit: Audit) -> str:
    if not audit.findings:
        return ""
    items = []
    for finding in audit.findings:
        examples = f"<div class=faint>{escape('; '.join(finding.examples))}</div>" if finding.examples else ""
        items.append(f"<li{' class=bad' if finding.is_bad else ''}>{escape(finding.sentence)}{examples}</li>")
    return f"<h2>Findings</h2><ul>{''.join(items)}</ul>"


def _compared(audit: Audit) -> str:
    rows = [[f"{p.topic}-{p.partition}", p.log_start, p.log_end, _dash(p.lake_end)] for p in audit.partitions]
    return "<h2>What was compared</h2>" + _table(["partition", "log begins at", "log ends at", "lake ends at"], rows)


def _span(seconds: int) -> str:
    for size, name in ((3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            return name if seconds == size else f"{seconds // size} {name}s"
    return f"{seconds} s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _dash(value: Any) -> Any:
    return "–" if value is None else value


# -- tables -----------------------------------------------------------------------------------------------------------


def _interval_table(audit: Audit, rows: Sequence[Interval]) -> str:
    kinds = [kind for kind in (*BAD, *NOTES) if any(row.kinds.get(kind) for row in rows)]
    columns = ["partition", "from (UTC)"]
    for source in audit.sources:
        columns += [source, "first offset", "last", "first at", "last at"]
    cells = []
    for row in rows:
        line: list[Any] = [row.partition, iso(row.at_s)]
        for source in audit.sources:
            line += _seen(row.seen[source])
        cells.append([*line, *(row.kinds.get(kind, 0) for kind in kinds)])
    return _table(
        [*columns, *(kind.replace("_", " ") for kind in kinds)], cells, [bool(set(row.kinds) & set(BAD)) for row in rows]
    )


def _seen(seen: Seen) -> list[Any]:
    times = [None if ms is None else f"{iso(ms // 1000)[11:]}.{ms % 1000:03}" for ms in (seen.first_ms, seen.last_ms)]
    return [f"{seen.count:,}", *map(_dash, (seen.first, seen.last, *times))]


def _table(columns: Iterable[str], rows: Sequence[Sequence[Any]], bad: Sequence[bool] = ()) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for n, row in enumerate(rows[:ROWS_MAX]):
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        lines.append(f"<tr{' class=bad' if bad and bad[n] else ''}>{cells}</tr>")
    more = f"<p class=faint>and {len(rows) - ROWS_MAX:,} more rows, which are in the JSON</p>" if len(rows) > ROWS_MAX else ""
    return f"<div class=card><table><tr>{head}</tr>{''.join(lines)}</table></div>{more}"


# -- pictures ---------------------------------------------------------------------------------------------------------


def _topic(audit: Audit, topic: str, rows: Sequence[Interval], marks: Sequence[Mark]) -> str:
    totals = {source: _totals((row.at_s, row.seen[source].count) for row in rows) for source in audit.sources}
    pictures = ""
    if shown := Shown.of(totals, audit.interval_s):
        inside = [row for row in rows if row.at_s is not None and shown.begin_s <= row.at_s < shown.end_s]
        field = _field(inside, shown.begin_s, shown.end_s, audit.interval_s)
        pictures = _card(_bars(totals, shown, audit.interval_s, marks)) + _card(field) + _outside(shown)
    table = f"<details><summary>{len(rows):,} rows</summary>{_interval_table(audit, rows)}</details>"
    return f"<h2>{escape(topic)}</h2>{pictures}{table}"


def _copied(audit: Audit, topic: str, copy: str, rows: Sequence[CopyInterval], marks: Sequence[Mark]) -> str:
    totals = {"log": _totals((row.at_s, row.count) for row in rows), "copy": _totals((row.at_s, row.copied) for row in rows)}
    cells = [[iso(row.at_s), f"{row.count:,}", f"{row.copied:,}", *(row.kinds.get(kind, 0) for kind in COPY_BAD)] for row in rows]
    columns = ["from (UTC)", "source", "copy", *(kind.replace("_", " ") for kind in COPY_BAD)]
    table = _table(columns, cells, [bool(row.kinds) for row in rows])
    picture = ""
    if shown := Shown.of(totals, audit.interval_s):
        picture = _card(_bars(totals, shown, audit.interval_s, marks, {"log": topic, "copy": copy})) + _outside(shown)
    summary = f"<details><summary>{len(rows):,} rows</summary>{table}</details>"
    return f"<h2>{escape(topic)} and its copy {escape(copy)}</h2>{picture}{summary}"


def _outside(shown: Shown) -> str:
    """A sentence about the records that the pictures leave out; empty if there are none."""
    if not shown.outside:
        return ""
    first, *more = shown.outside
    times = f"{iso(first)} UTC" if not more else f"{len(shown.outside):,} intervals from {iso(first)} to {iso(more[-1])} UTC"
    records = counted(shown.records_outside, "record")
    return f"<p class=faint>The pictures leave out {records} at {times}, far from all others; the table has them.</p>"


def _totals(pairs: Iterable[tuple[int | None, int]]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for at_s, count in pairs:
        if at_s is not None:
            totals[at_s] = totals.get(at_s, 0) + count
    return totals


def _bars(
    totals: dict[str, dict[int, int]], shown: Shown, step: int, marks: Sequence[Mark], names: dict[str, str] | None = None
) -> str:
    """A chart with a bar for each interval and side: how many records the side has."""
    begin, end = shown.begin_s, shown.end_s
    totals = {source: {at: n for at, n in counts.items() if begin <= at < end} for source, counts in totals.items()}
    figure = _figure(10.4, 3.0)
    axes: Axes = figure.add_subplot()
    width = step / (len(totals) + 0.4)
    for n, (source, counts) in enumerate(totals.items()):
        xs = [at - begin + (n + 0.5) * width + 0.2 * width for at in counts]
        axes.bar(xs, list(counts.values()), width * 0.92, color=COLOURS[source], label=(names or {}).get(source, source))
    axes.set_ylabel(f"records per {_span(step)}", color=FAINT)
    axes.set_ylim(0, max((max(counts.values(), default=0) for counts in totals.values()), default=0) * 1.25 or 1)
    _whole_numbers(axes)
    _time_axis(axes, begin, end, step)
    _draw_marks(axes, begin, end, marks)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(totals), frameon=False, labelcolor=INK)
    return _svg(figure, f"bars-{'-'.join(totals)}-{begin}")


def _field(rows: Sequence[Interval], begin: int, end: int, step: int) -> str:
    """The grid: a rectangle for each partition and interval."""
    from matplotlib.patches import Patch

    partitions = sorted({row.partition for row in rows})
    lines = {partition: n for n, partition in enumerate(partitions)}
    figure = _figure(10.4, min(8.0, 1.1 + 0.26 * len(partitions)))
    axes: Axes = figure.add_subplot()
    for colour in (WELL, WAITING, WRONG):
        own = [row for row in rows if _colour(row) == colour and row.at_s is not None]
        ys = [lines[row.partition] for row in own]
        axes.barh(ys, step * 0.94, 0.8, [(row.at_s or 0) - begin + step * 0.03 for row in own], color=colour)
    axes.set_yticks(range(len(partitions)), [str(p) for p in partitions])
    axes.set_ylim(len(partitions) - 0.4, -0.6)
    axes.set_ylabel("partition", color=FAINT)
    _time_axis(axes, begin, end, step, has_grid=False)
    texts = {WELL: "each record once", WAITING: "not yet in the lake", WRONG: "lost, doubled or different"}
    patches = [Patch(color=colour, label=text) for colour, text in texts.items()]
    axes.legend(handles=patches, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, labelcolor=INK)
    return _svg(figure, f"field-{begin}")


def _colour(row: Interval) -> str:
    if set(row.kinds) & set(BAD):
        return WRONG
    return WAITING if row.kinds.get("pending") else WELL


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("the pictures of a report need matplotlib, which is not installed: pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def _time_axis(axes: Axes, begin: int, end: int, step: int, has_grid: bool = True) -> None:
    """Sets ticks at the starts of intervals, at most about ten."""
    every = step * max(1, -(-(end - begin) // (step * 10)))
    ticks = range(begin, end + 1, every)
    axes.set_xticks([at - begin for at in ticks], [_time_label(at, end - begin, step) for at in ticks])
    axes.set_xlim(0, end - begin)
    axes.tick_params(colors=FAINT, length=0)
    if has_grid:
        axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _time_label(at_s: int, span_s: int, step_s: int) -> str:
    """The date and time, as precise as needed to distinguish the ticks."""
    if span_s > 300 * 86_400:
        return iso(at_s)[:10]
    return iso(at_s)[5:16] if span_s > 86_400 else iso(at_s)[11 : 16 if step_s >= 60 else 19]


def _whole_numbers(axes: Axes) -> None:
    """Labels the axis with whole numbers: 1,500,000 instead of 1.5 with a factor of 1e6."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))


def _draw_marks(axes: Axes, begin: int, end: int, marks: Sequence[Mark]) -> None:
    """Draws the marks with labels in two alternating rows, so that neighbouring labels can be read."""
    inside = [(at, text) for at, text in sorted(marks) if begin <= at <= end]
    for at, _ in inside:
        axes.axvline(at - begin, color=WRONG, linewidth=0.8, alpha=0.6)
    for at, text in inside[:MARKS_MAX]:
        style: dict[str, Any] = {"rotation": 90, "fontsize": 6.5, "color": WRONG, "ha": "right", "va": "top"}
        axes.annotate(text, (at - begin, 0.98), xycoords=("data", "axes fraction"), **style)


def _svg(figure: Figure, salt: str) -> str:
    """The figure as SVG, with ids that are unique among the pictures of the page."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif", "font.size": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _card(content: str) -> str:
    return f"<div class=card>{content}</div>"
