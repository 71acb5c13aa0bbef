"""A report on replication as one HTML file that needs no network and no script.

From above: one sentence, figures, the nodes' lanes, a lane for each partition (colour: who leads; height: how many replicas are
in sync), the fail-overs and of what they consist, ISR changes by cause, what was cut, and the sums per hour. Each shape says
under the mouse what it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Any

from strandline.pipeline.jobs import replication_svg as draw
from strandline.pipeline.jobs.replication_cluster import ACTIVE, FENCED, LEAVING, STANDBY, UP
from strandline.pipeline.jobs.replication_partition import (
    INTERVAL,
    LAG,
    NO_LEADER,
    STATE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WITHOUT_LEADER,
    Row,
)
from strandline.pipeline.jobs.replication_result import Replication, duration, leader_name, plural, stamp
from strandline.pipeline.jobs.replication_svg import FAINT, INK, LEFT, RIGHT, WIDTH, Scale

LEADERS = ("#2f6690", "#e0a458", "#5b8e7d", "#9b5094", "#81a4cd", "#bc6c4c", "#6a7f3f", "#4a4e8c", "#c28fb0", "#50808e")
"""By the order of broker ids; from the eleventh on they repeat."""
BAD, WARN, WELL, CALM = "#c8553d", "#f2d388", "#7fb685", "#c9d6df"
NODE_COLOURS = {UP: WELL, FENCED: BAD, LEAVING: WARN, ACTIVE: "#2f6690", STANDBY: CALM}
NODE_WORDS = {
    UP: "broker is up",
    FENCED: "broker is fenced",
    LEAVING: "controlled shutdown",
    ACTIVE: "active controller",
    STANDBY: "other controller",
}
CAUSES = {
    "broker_fenced": ("#c8553d", "broker fenced"),
    "broker_registered": ("#a04030", "broker came back as a new process"),
    "lagging": ("#e0a458", "follower lagged"),
    "lost_records": ("#9b5094", "follower lost records"),
    "controlled_shutdown": ("#81a4cd", "controlled shutdown"),
    "caught_up": ("#7fb685", "follower caught up"),
}
OTHER_CAUSE = ("#a5adb8", "other or unknown")
PARTITIONS_MAX = 300
"""Lanes in the picture: those with the most changes; the tables and the JSON have all."""
SHAPES_MAX = 20_000
ROWS_MAX = 500
NOTHING = "\u2013"

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f7f8fa; margin: 0; }
main { max-width: 1090px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 4px; } h2 + p { margin: 0 0 8px; }
.faint { color: #7b8794; font-size: 13px; }
.verdict { border-radius: 8px; padding: 16px 20px; margin: 20px 0; color: #fff; font-size: 17px; background: #2f6690; }
.verdict.wrong { background: #b6452c; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.tile { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 10px 16px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile.bad b { color: #b6452c; }
.card { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 12px; margin: 8px 0; overflow-x: auto; }
.card svg { display: block; font-family: system-ui, sans-serif; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: #52606d; margin: 8px 0 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
ul { padding-left: 20px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #e4e7eb; white-space: nowrap; }
th:first-child, td:first-child, td.words, th.words { text-align: left; } th { color: #52606d; font-weight: 600; }
th { white-space: normal; vertical-align: bottom; }
summary { cursor: pointer; margin: 12px 0; }
@media (max-width: 600px) { main { padding: 16px 10px 40px; } .verdict { padding: 12px 14px; font-size: 15px; } }
"""


def page(found: Replication, title: str = "Replication") -> str:
    """The whole file."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<div class=faint>{_range(found)}</div>",
        f"<div class='verdict{' wrong' if found.is_bad else ''}'>{escape(found.verdict[:1].upper() + found.verdict[1:])}</div>",
        _tiles(found),
        _notes(found),
    ]
    if found.partitions:
        parts += [_nodes(found), _lanes(found), _failovers(found), _isr_changes(found), _truncations(found), _sums(found)]
    parts.append(_assumptions())
    width = "<meta name=viewport content='width=device-width, initial-scale=1'>"
    head = f"<meta charset=utf-8>{width}<title>{escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><main>{''.join(parts)}</main></body></html>\n"


# -- words ------------------------------------------------------------------------------------------------------------


def _range(found: Replication) -> str:
    read = found.read
    files = f"{plural(read.files, 'file')}, {plural(read.lines, 'line')}"
    if not read.events:
        return f"{files}; none of them is an event"
    return f"{_at(found.begin_us)} to {_at(found.end_us)} UTC ({duration((found.end_us - found.begin_us) / 1000)}); {files}"


def _tiles(found: Replication) -> str:
    if not found.partitions:
        return ""
    cut = sum(row.records or 0 for row in found.truncations)
    below = sum(row.below_hw or 0 for row in found.truncations)
    shrinks, expansions = sum(bool(row.removed) for row in found.changes), sum(bool(row.added) for row in found.changes)
    tiles = [
        _tile("partitions", f"{len(found.partitions):,}"),
        _tile("fail-overs", f"{len(found.failovers):,}"),
        _tile("median fail-over", duration(found.failover_ms.median) if found.failovers else NOTHING),
        _tile("longest fail-over", duration(found.failover_ms.max) if found.failovers else NOTHING),
        _tile("under-replicated", duration(found.total_ms(UNDER_REPLICATED))),
        _tile("under min ISR", duration(found.total_ms(UNDER_MIN_ISR)) if found.knows_min_isr else "unknown",
              is_bad=found.total_ms(UNDER_MIN_ISR) > 0),
        _tile("without a leader", duration(found.total_ms(WITHOUT_LEADER)), is_bad=found.total_ms(WITHOUT_LEADER) > 0),
        _tile("ISR shrinks / expansions", f"{shrinks:,} / {expansions:,}"),
        _tile("records cut", f"{cut:,}"),
        _tile("cut below a HW", f"{below:,}", is_bad=below > 0),
    ]  # fmt: skip
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _tile(name: str, value: str, is_bad: bool = False) -> str:
    return f"<div class='tile{' bad' if is_bad else ''}'><b>{escape(value)}</b><span class=faint>{escape(name)}</span></div>"


def _notes(found: Replication) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return f"<ul class=faint>{items}</ul>" if items else ""


def _assumptions() -> str:
    return (
        "<h2>What this page assumes</h2><ul class=faint>"
        "<li>The order of a partition's changes is that of its partition epochs, not of clocks.</li>"
        "<li>Times are those of the machine that logged the line. A duration between two machines is as exact as their clocks "
        "agree.</li>"
        "<li>A fail-over begins when the controller last heard of the leader (end of its connection, else its last heartbeat, "
        "so that for a process that stands still it may begin one heartbeat too early) and ends when the new leader takes "
        "its role. What clients need on top, to learn of it and to send again, is not in it.</li>"
        "<li>A partition counts as under-replicated from the moment at which the ISR shrinks, which is after the replica was "
        "lost.</li>"
        "<li>How far the high watermark lags is known at take-overs and shrinks alone: between them, the log says nothing, and "
        "/metrics does.</li></ul>"
    )


def _at(us: int | None) -> str:
    return (stamp(us) or "").replace("T", " ").replace("Z", "")


def _name(row: Row) -> str:
    return f"{row.topic}-{row.partition}"


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(found: Replication) -> str:
    names = sorted({span.node for span in found.spans} | {mark.node for mark in found.marks}, key=_node_order)
    if not names:
        return ""
    scale, top = Scale(found.begin_us, found.end_us), 10
    lane = {name: top + n * 24 for n, name in enumerate(names)}
    bottom = top + len(names) * 24
    parts = [draw.axis(scale, top, bottom)]
    parts += [draw.text(LEFT - 10, y + 15, name, "end", INK, 12) for name, y in lane.items()]
    for span in found.spans:
        lasted = duration((span.until_us - span.from_us) / 1000)
        told = f"{span.node}: {NODE_WORDS[span.state]} from {_at(span.from_us)} for {lasted}"
        told += f" ({span.detail})" if span.detail else ""
        x = scale.x(span.from_us)
        parts.append(draw.rect(x, lane[span.node] + 4, scale.x(span.until_us) - x, 14, NODE_COLOURS[span.state], told, ' rx="2"'))
    for mark in found.marks:
        parts.append(
            draw.triangle(scale.x(mark.at_us), lane[mark.node] + 11, INK, f"{mark.node}: {mark.text}, {_at(mark.at_us)}")
        )
    states = [state for state in NODE_COLOURS if any(span.state == state for span in found.spans)]
    keys = [(NODE_COLOURS[state], NODE_WORDS[state]) for state in states]
    words = "A triangle: a process started, was asked to stop, or stood still."
    return _section("Nodes", words, draw.svg(bottom + 22, parts, "nodes over time"), draw.legend(keys))


def _node_order(name: str) -> tuple[str, int, str]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number), "") if number.isdigit() else (name, 0, name)


# -- partitions -------------------------------------------------------------------------------------------------------


def _lanes(found: Replication) -> str:
    states = found.of(STATE)
    changes = Counter((row.topic, row.partition) for row in states)
    shown = sorted(sorted(changes, key=lambda place: (-changes[place], place))[:PARTITIONS_MAX])
    height = 22 if len(shown) <= 16 else 14 if len(shown) <= 48 else 7 if len(shown) <= 150 else 5
    scale, top = Scale(found.begin_us, found.end_us), 10
    lane = {place: top + n * height for n, place in enumerate(shown)}
    bottom = top + len(shown) * height
    colours = leader_colours(found)
    parts = [draw.axis(scale, top, bottom), *_lane_names(lane, height)]
    ours = [row for row in states if (row.topic, row.partition) in lane]
    ours.sort(key=lambda row: -row.ms)
    parts += [_state(row, lane[row.topic, row.partition], height, scale, colours) for row in ours[:SHAPES_MAX]]
    for row in found.truncations:
        if (row.topic, row.partition) in lane:
            y = lane[row.topic, row.partition] + height * 0.7
            parts.append(draw.triangle(scale.x(row.from_us), y, BAD if row.below_hw else INK, _cut_words(row)))
    keys = [(colour, f"broker {broker} leads") for broker, colour in colours.items()]
    keys.append((BAD, "without a leader"))
    words = "Full height: all replicas are in sync; lower: some are not. A triangle: a replica cut its log."
    if len(shown) < len(changes):
        words += f" {len(shown)} of {len(changes):,} partitions: those with the most changes."
    return _section("Partitions", words, draw.svg(bottom + 22, parts, "leader and ISR of each partition"), draw.legend(keys))


def leader_colours(found: Replication) -> dict[int, str]:
    brokers = sorted(
        {b for row in found.of(STATE) for b in (*row.replicas, *row.isr, row.broker) if b is not None and b != NO_LEADER}
    )
    return {broker: LEADERS[n % len(LEADERS)] for n, broker in enumerate(brokers)}


def _lane_names(lane: dict[tuple[str, int], int], height: float) -> list[str]:
    """Each partition's name, or where lanes are thin, each topic's."""
    if height >= 14:
        return [draw.text(LEFT - 10, y + height - 6, _short(f"{t}-{p}"), "end", INK, 12) for (t, p), y in lane.items()]
    parts, labelled = [], -100.0
    for topic, group in groupby(lane.items(), key=lambda item: item[0][0]):
        places = list(group)
        y = places[0][1]
        parts.append(draw.line(0, y, WIDTH - RIGHT, y))
        if y - labelled >= 12:
            parts.append(draw.text(LEFT - 10, y + 10, _short(topic), "end", INK, 12))
            labelled = y
        count = f"{len(places)} partitions"
        if len(places) * height >= 26:
            parts.append(draw.text(LEFT - 10, y + 24, count, "end"))
    return parts


def _short(name: str) -> str:
    return name if len(name) <= 21 else f"{name[:9]}…{name[-11:]}"


def _state(row: Row, y: float, height: float, scale: Scale, colours: dict[int, str]) -> str:
    x, gap = scale.x(row.from_us), 3 if height >= 14 else 1 if height >= 7 else 0.5
    width = scale.x(row.until_us or row.from_us) - x
    in_sync = len(row.isr) / len(row.replicas) if row.replicas else 1.0
    full = height - gap
    tall = full if row.broker == NO_LEADER else max(1.0, full * in_sync)
    fill = BAD if row.broker == NO_LEADER else colours.get(row.broker or 0, FAINT)
    back = draw.rect(x, y, width, full, "#f3e3df") if tall < full - 0.5 else ""
    return back + draw.rect(x, y + full - tall, width, tall, fill, _state_words(row))


def _state_words(row: Row) -> str:
    cause = f"; {_cause_words(row)}" if row.cause else ""
    leads = "no leader" if row.broker == NO_LEADER else f"broker {leader_name(row.broker)} leads"
    isr, replicas = (",".join(map(str, ids)) for ids in (row.isr, row.replicas))
    told = f"{_name(row)}: {leads} (epoch {row.leader_epoch}), ISR {isr} of {replicas}"
    return f"{told}, from {_at(row.from_us)} for {duration(row.ms)}{cause}"


def _cause_words(row: Row) -> str:
    words = CAUSES.get(row.cause, ("", row.cause.replace("_", " ")))[1]
    return f"{words}: {row.detail}" if row.detail else words


# -- fail-overs -------------------------------------------------------------------------------------------------------


def _failovers(found: Replication) -> str:
    rows = found.failovers
    if not rows:
        handovers = len(found.elections)
        planned = f" ({plural(handovers, 'planned handover')})" if handovers else ""
        return f"<h2>Fail-overs</h2><p class=faint>No leader was lost{planned}.</p>"
    spread = found.failover_ms
    words = (
        f"{plural(spread.count, 'fail-over')}: median {duration(spread.median)}, 95 % within {duration(spread.p95)}, longest "
        f"{duration(spread.max)}; besides, {plural(len(found.elections) - len(rows), 'planned handover')}."
    )
    table = _table(
        ["partition", "lost (UTC)", "from", "to", "epoch", "noticed, elected", "took over", "together", "why"],
        [
            [_name(row), _at(row.lost_us), row.previous_broker, row.broker, row.leader_epoch, duration(_noticed(row)),
             duration(row.ms - _noticed(row)), duration(row.ms), _cause_words(row)] for row in rows
        ],
        words={8},
    )  # fmt: skip
    keys = [("#2f6690", "until a new leader was elected"), ("#e0a458", "until it led")]
    return _section("Fail-overs", words, _histogram(rows), "") + _card(_longest(rows), draw.legend(keys)) + _more(rows, table)


def _noticed(row: Row) -> float:
    return max(0, (row.elected_us or row.from_us) - row.from_us) / 1000


BINS_MS = (0, 10, 20, 50, 100, 150, 200, 300, 500, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)


def _histogram(rows: Sequence[Row]) -> str:
    """How many fail-overs took how long; bins by hand, since a second means more at 100 ms than at an hour."""
    counts = Counter(sum(row.ms >= bound for bound in BINS_MS) - 1 for row in rows)
    first, last = max(0, min(counts) - 1), min(len(BINS_MS) - 1, max(counts) + 1)
    width = min(110.0, (WIDTH - 60 - RIGHT) / (last - first + 1))
    top, floor, tallest = 22, 142, max(counts.values())
    parts = [draw.line(50, floor, WIDTH - RIGHT, floor)]
    for n in range(first, last + 1):
        x, count = 50 + (n - first) * width, counts[n]
        tall = (floor - top) * count / tallest
        upto = f"{duration(BINS_MS[n])} to {duration(BINS_MS[n + 1])}" if n + 1 < len(BINS_MS) else f"over {duration(BINS_MS[n])}"
        parts.append(draw.text(x, floor + 15, duration(BINS_MS[n]), "middle"))
        if count:
            parts.append(draw.rect(x + 3, floor - tall, width - 6, tall, "#2f6690", f"{upto}: {count}", ' rx="2"'))
            parts.append(draw.text(x + width / 2, floor - tall - 5, f"{count:,}", "middle", INK, 12))
    return draw.svg(floor + 24, parts, "distribution of fail-over times")


def _longest(rows: Sequence[Row], most: int = 24) -> str:
    """The longest ones, each with its two parts."""
    shown = sorted(rows, key=lambda row: -row.ms)[:most]
    longest = max(row.ms for row in shown) or 1
    left, top = LEFT + 120, 8
    scale = (WIDTH - left - 90) / longest
    parts = []
    for n, row in enumerate(shown):
        y, noticed = top + n * 18, _noticed(row)
        words = f"{_name(row)}, {_at(row.lost_us)}: {_cause_words(row)}"
        parts.append(draw.text(left - 10, y + 12, f"{_short(_name(row))}  {row.previous_broker} → {row.broker}", "end", INK, 12))
        parts.append(draw.rect(left, y + 2, noticed * scale, 12, "#2f6690", words))
        parts.append(draw.rect(left + noticed * scale, y + 2, (row.ms - noticed) * scale, 12, "#e0a458", words))
        parts.append(draw.text(left + row.ms * scale + 8, y + 12, duration(row.ms), fill=INK, size=12))
    return draw.svg(top + len(shown) * 18 + 6, parts, "the longest fail-overs")


# -- ISR changes ------------------------------------------------------------------------------------------------------


def _isr_changes(found: Replication) -> str:
    if not found.changes:
        return "<h2>ISR changes</h2><p class=faint>No ISR changed.</p>"
    step = draw.step_us(found.end_us - found.begin_us, 60)
    up: dict[int, Counter[str]] = {}
    down: dict[int, Counter[str]] = {}
    for row in found.changes:
        for table, members in ((down, row.removed), (up, row.added)):
            if members:
                at = row.from_us - row.from_us % step
                table.setdefault(at, Counter())[row.cause if row.cause in CAUSES else ""] += 1
    used = [cause for cause in (*CAUSES, "") if any(cause in counts for table in (up, down) for counts in table.values())]
    keys = [CAUSES.get(cause, OTHER_CAUSE) for cause in used]
    words = f"Expansions above the line, shrinks below it, for each {duration(step / 1000)}."
    return _section("ISR changes by cause", words, _stacks(found, step, up, down), draw.legend(keys)) + _lag_table(found)


def _stacks(found: Replication, step: int, up: dict[int, Counter[str]], down: dict[int, Counter[str]]) -> str:
    scale, half = Scale(found.begin_us, found.end_us, left=50), 80
    tallest = max(sum(counts.values()) for table in (up, down) for counts in table.values())
    middle = 14 + half
    width = max(1.5, scale.width * step / (scale.end - scale.begin))
    parts = [draw.axis(scale, 14, middle + half), draw.line(50, middle, WIDTH - RIGHT, middle, FAINT)]
    for at_y, label in ((14, tallest), (middle, 0), (middle + half, tallest)):
        parts.append(draw.text(42, at_y + 4, f"{label:,}", "end"))
    for table, sign in ((up, -1), (down, 1)):
        for at, counts in table.items():
            y = float(middle)
            for cause in (*CAUSES, ""):
                colour, words = CAUSES.get(cause, OTHER_CAUSE)
                tall = half * counts[cause] / tallest
                if tall:
                    y = y - tall if sign < 0 else y
                    what = "expansion" if sign < 0 else "shrink"
                    told = f"{_at(at)}: {plural(counts[cause], what)}, {words}"
                    left = scale.x(at)
                    parts.append(draw.rect(left, y, max(1.5, min(width, WIDTH - RIGHT - left) - 1), tall, colour, told))
                    y = y if sign < 0 else y + tall
    return draw.svg(middle + half + 24, parts, "ISR changes over time")


def _lag_table(found: Replication) -> str:
    rows = [row for row in found.of(LAG) if row.records]
    if not rows:
        return ""
    words = {"hw": "not yet committed when it began to lead", "follower": "behind when it left the ISR"}
    cells = [
        [_name(r), _at(r.from_us), r.broker, f"{r.records:,}", words[r.what] + (f" ({r.detail})" if r.detail else "")]
        for r in rows
    ]
    return _more(
        rows, _table(["partition", "at (UTC)", "broker", "records", ""], cells, words={4}), "high-watermark and follower lags"
    )


# -- truncations ------------------------------------------------------------------------------------------------------


def _truncations(found: Replication) -> str:
    rows = found.truncations
    if not rows:
        return "<h2>What was cut</h2><p class=faint>No replica cut its log.</p>"
    words = (
        "Records above the high watermark were never acknowledged with acks=all. Those below it were, and are lost here; whether "
        "they are lost to all is what <code>strandline pipeline audit</code> finds out."
    )
    ordered = sorted(rows, key=lambda row: (-(row.below_hw or 0), row.from_us))
    cells = [
        [_name(row), _at(row.from_us), row.broker, f"{row.first_offset:,}", f"{row.end_offset:,}", f"{row.records:,}",
         f"{row.below_hw or 0:,}", f"{row.what}{': ' + row.detail if row.detail else ''}"] for row in ordered
    ]  # fmt: skip
    heads = ["partition", "at (UTC)", "broker", "from offset", "to (exclusive)", "records", "below HW", "why"]
    return f"<h2>What was cut</h2><p class=faint>{words}</p>{_cuts(found)}{_table(heads, cells, words={7})}"


def _cuts(found: Replication) -> str:
    """For each broker: records cut over time, as circles by size."""
    brokers = sorted({row.broker for row in found.truncations if row.broker is not None})
    scale, top = Scale(found.begin_us, found.end_us), 10
    lane = {broker: top + n * 30 for n, broker in enumerate(brokers)}
    bottom = top + 30 * len(brokers)
    most = max(row.records or 0 for row in found.truncations) or 1
    parts = [draw.axis(scale, top, bottom)]
    parts += [draw.text(LEFT - 10, y + 20, f"broker-{broker}", "end", INK, 12) for broker, y in lane.items()]
    for row in found.truncations:
        if row.broker is not None:
            radius = 3 + 10 * ((row.records or 0) / most) ** 0.5
            where = f'cx="{scale.x(row.from_us):.1f}" cy="{lane[row.broker] + 15}" r="{radius:.1f}"'
            look = f'fill="{BAD if row.below_hw else "#2f6690"}" fill-opacity="0.65"'
            parts.append(f"<circle {where} {look}><title>{escape(_cut_words(row))}</title></circle>")
    keys = [("#2f6690", "above the high watermark"), (BAD, "below it")]
    return _card(draw.svg(bottom + 22, parts, "truncations over time"), draw.legend(keys))


def _cut_words(row: Row) -> str:
    cut = f"cut {plural(row.records or 0, 'record')} from offset {row.first_offset}"
    told = f"{_name(row)} on broker {row.broker}, {_at(row.from_us)}: {cut}"
    below = f", {row.below_hw} of them below the high watermark" if row.below_hw else ""
    return f"{told}{below}{'; ' + row.detail if row.detail else ''}"


# -- sums -------------------------------------------------------------------------------------------------------------


def _sums(found: Replication) -> str:
    topics = [
        [h.topic, _at(h.hour_us)[:16], duration(h.under_replicated_ms),
         duration(h.under_min_isr_ms) if found.knows_min_isr else NOTHING, duration(h.without_leader_ms), h.shrinks, h.expansions,
         h.failovers, duration(h.failover_ms_max) if h.failovers else NOTHING, h.handovers, f"{h.records_cut:,}"]
        for h in found.topic_hours()
    ]  # fmt: skip
    brokers = [
        [f"broker-{h.broker}", _at(h.hour_us)[:16], duration(h.out_of_isr_ms), h.left_isr, h.joined_isr, h.leads_lost,
         h.leads_won, h.truncations, f"{h.records_cut:,}"] for h in found.broker_hours()
    ]  # fmt: skip
    topic_heads = ["topic", "hour (UTC)", "under-replicated", "under min ISR", "no leader", "shrinks", "expansions", "fail-overs",
                   "longest", "handovers", "records cut"]  # fmt: skip
    broker_heads = ["broker", "hour (UTC)", "out of ISRs", "left", "joined", "leads lost", "won", "truncations", "records cut"]
    intervals = [row for row in found.of(INTERVAL) if row.what in (UNDER_MIN_ISR, WITHOUT_LEADER)]
    worst = _table(
        ["partition", "from (UTC)", "lasted", "what", "why"],
        [[_name(r), _at(r.from_us), duration(r.ms) + (" and on" if r.is_open else ""), r.what.replace("_", " "), _cause_words(r)]
         for r in sorted(intervals, key=lambda row: -row.ms)],
        words={3, 4},
    )  # fmt: skip
    first = "<p class=faint>Times are summed over partitions: two of them for a minute are two minutes.</p>"
    per_topic = f"<h2>Per topic and hour</h2>{first}{_table(topic_heads, topics)}"
    per_broker = f"<h2>Per broker and hour</h2>{_table(broker_heads, brokers)}"
    return per_topic + per_broker + (_more(intervals, worst, "intervals under min ISR or without a leader") if intervals else "")


# -- pieces -----------------------------------------------------------------------------------------------------------


def _section(title: str, words: str, picture: str, below: str) -> str:
    return f"<h2>{escape(title)}</h2><p class=faint>{escape(words)}</p>{_card(picture, below)}"


def _card(picture: str, below: str = "") -> str:
    return f"<div class=card>{picture}{below}</div>"


def _more(rows: Sequence[object], table: str, name: str = "rows") -> str:
    return f"<details><summary>{len(rows):,} {escape(name)}</summary>{table}</details>"


def _table(heads: Iterable[str], rows: Sequence[Sequence[Any]], words: set[int] | None = None) -> str:
    left = words or set()

    def cells(tag: str, values: Iterable[Any]) -> str:
        return "".join(f"<{tag}{' class=words' if n in left else ''}>{escape(str(v))}</{tag}>" for n, v in enumerate(values))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows[:ROWS_MAX])
    more = f"<p class=faint>and {len(rows) - ROWS_MAX:,} more rows, which are in the JSON</p>" if len(rows) > ROWS_MAX else ""
    return f"<div class=card><table><tr>{cells('th', heads)}</tr>{lines}</table></div>{more}"
