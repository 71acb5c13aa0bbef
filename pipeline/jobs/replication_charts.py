"""The charts and tables of the replication page about fail-overs, ISR changes by cause, and truncations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from strandline.pipeline.jobs import replication_svg as draw
from strandline.pipeline.jobs.replication_partition import (
    LAG,
    Row,
)
from strandline.pipeline.jobs.replication_pieces import (
    BAD,
    CAUSES,
    OTHER_CAUSE,
    card,
    cause_words,
    details,
    moment,
    partition_name,
    section,
    short,
    table,
    truncation_words,
)
from strandline.pipeline.jobs.replication_result import Replication, duration
from strandline.pipeline.jobs.replication_svg import FAINT, INK, LEFT, RIGHT, WIDTH, Scale
from strandline.pipeline.jobs.results import counted

# -- fail-overs -------------------------------------------------------------------------------------------------------


def failovers(found: Replication) -> str:
    rows = found.failovers
    if not rows:
        handovers = len(found.elections)
        planned = f" ({counted(handovers, 'planned handover')})" if handovers else ""
        return f"<h2>Fail-overs</h2><p class=faint>No leader was lost{planned}.</p>"
    spread = found.failover_ms
    words = f"1 fail-over, which took {duration(spread.max)}"
    if spread.count > 1:
        words = f"{counted(spread.count, 'fail-over')}: median {duration(spread.median)}, "
        words += f"95 % within {duration(spread.p95)}, longest {duration(spread.max)}"
    words += f"; {counted(len(found.elections) - len(rows), 'planned handover')}."
    all_of_them = table(
        ["partition", "leader lost (UTC)", "from", "to", "leader epoch", "detection, election", "takeover", "total", "cause"],
        [
            [partition_name(row), moment(row.lost_us), row.previous_broker, row.broker, row.leader_epoch,
             duration(_election_ms(row)), duration(row.ms - _election_ms(row)), duration(row.ms), cause_words(row)]
            for row in rows
        ],
        words={8},
    )  # fmt: skip
    keys = [("#2f6690", "leader lost until new leader elected"), ("#e0a458", "elected until it leads")]
    pictures = section("Fail-overs", words, _histogram(rows), "") + card(_longest(rows), draw.legend(keys))
    return pictures + details(rows, all_of_them, "fail-overs")


def _election_ms(row: Row) -> float:
    """Time from the loss of the leader to the election of the new one, in ms."""
    return max(0, (row.elected_us or row.from_us) - row.from_us) / 1000


BINS_MS = (0, 10, 20, 50, 100, 150, 200, 300, 500, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)


def _histogram(rows: Sequence[Row]) -> str:
    """A histogram of fail-over times. The bins grow, because a second matters more after 100 ms than after an hour."""
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
    """A bar for each of the `most` longest fail-overs, divided into the time until the election and the time until the
    takeover."""
    shown = sorted(rows, key=lambda row: -row.ms)[:most]
    longest = max(row.ms for row in shown) or 1
    left, top = LEFT + 120, 8
    scale = (WIDTH - left - 90) / longest
    parts = []
    for n, row in enumerate(shown):
        y, election_ms = top + n * 18, _election_ms(row)
        words = f"{partition_name(row)}, {moment(row.lost_us)}: {cause_words(row)}"
        parts.append(
            draw.text(left - 10, y + 12, f"{short(partition_name(row))}  {row.previous_broker} → {row.broker}", "end", INK, 12)
        )
        parts.append(draw.rect(left, y + 2, election_ms * scale, 12, "#2f6690", words))
        parts.append(draw.rect(left + election_ms * scale, y + 2, (row.ms - election_ms) * scale, 12, "#e0a458", words))
        parts.append(draw.text(left + row.ms * scale + 8, y + 12, duration(row.ms), fill=INK, size=12))
    return draw.svg(top + len(shown) * 18 + 6, parts, "the longest fail-overs")


# -- ISR changes ------------------------------------------------------------------------------------------------------


def isr_changes(found: Replication) -> str:
    if not found.changes:
        return "<h2>ISR changes</h2><p class=faint>No ISR changed.</p>"
    step = draw.step_us(found.end_us - found.begin_us, 60)
    up: dict[int, Counter[str]] = {}
    down: dict[int, Counter[str]] = {}
    for row in found.changes:
        for side, members in ((down, row.removed), (up, row.added)):
            if members:
                at = row.from_us - row.from_us % step
                side.setdefault(at, Counter())[row.cause if row.cause in CAUSES else ""] += 1
    used = [cause for cause in (*CAUSES, "") if any(cause in counts for side in (up, down) for counts in side.values())]
    keys = [CAUSES.get(cause, OTHER_CAUSE) for cause in used]
    words = f"Expansions above the line, shrinks below it; each bar counts the changes of {duration(step / 1000)}."
    return section("ISR changes by cause", words, _stacks(found, step, up, down), draw.legend(keys)) + _lag_table(found)


def _stacks(found: Replication, step: int, up: dict[int, Counter[str]], down: dict[int, Counter[str]]) -> str:
    scale, half = Scale(found.begin_us, found.end_us, left=50), 80
    tallest = max(sum(counts.values()) for side in (up, down) for counts in side.values())
    middle = 14 + half
    width = max(1.5, scale.width * step / (scale.end - scale.begin))
    parts = [draw.axis(scale, 14, middle + half), draw.line(50, middle, WIDTH - RIGHT, middle, FAINT)]
    for at_y, label in ((14, tallest), (middle, 0), (middle + half, tallest)):
        parts.append(draw.text(42, at_y + 4, f"{label:,}", "end"))
    for side, sign in ((up, -1), (down, 1)):
        for at, counts in side.items():
            y = float(middle)
            for cause in (*CAUSES, ""):
                colour, words = CAUSES.get(cause, OTHER_CAUSE)
                tall = half * counts[cause] / tallest
                if tall:
                    y = y - tall if sign < 0 else y
                    what = "expansion" if sign < 0 else "shrink"
                    title = f"{moment(at)}: {counted(counts[cause], what)}, {words}"
                    left = scale.x(at)
                    parts.append(draw.rect(left, y, max(1.5, min(width, WIDTH - RIGHT - left) - 1), tall, colour, title))
                    y = y if sign < 0 else y + tall
    return draw.svg(middle + half + 24, parts, "ISR changes over time")


def _lag_table(found: Replication) -> str:
    rows = [row for row in found.of(LAG) if row.records]
    if not rows:
        return ""
    words = {
        "hw": "above the high watermark when the broker became leader",
        "follower": "missing on the follower when it left the ISR",
    }
    cells = [
        [partition_name(r), moment(r.from_us), r.broker, f"{r.records:,}", words[r.what] + (f" ({r.detail})" if r.detail else "")]
        for r in rows
    ]
    return details(
        rows,
        table(["partition", "at (UTC)", "broker", "records", "which are"], cells, words={4}),
        "high watermark and follower lags",
    )


# -- truncations ------------------------------------------------------------------------------------------------------


def truncations(found: Replication) -> str:
    rows = found.truncations
    if not rows:
        return "<h2>Truncations</h2><p class=faint>No replica truncated its log.</p>"
    words = (
        "Records above the high watermark were never acknowledged with acks=all. Records below it were, and this replica has "
        "lost them; <code>strandline pipeline audit</code> finds out whether the cluster has lost them too."
    )
    ordered = sorted(rows, key=lambda row: (-(row.below_hw or 0), row.from_us))
    cells = [
        [partition_name(row), moment(row.from_us), row.broker, f"{row.first_offset:,}", f"{row.end_offset:,}", f"{row.records:,}",
         f"{row.below_hw or 0:,}", f"{row.what}{': ' + row.detail if row.detail else ''}"] for row in ordered
    ]  # fmt: skip
    heads = ["partition", "at (UTC)", "broker", "from offset", "to (exclusive)", "records", "below HW", "cause"]
    return f"<h2>Truncations</h2><p class=faint>{words}</p>{_truncation_lanes(found)}{table(heads, cells, words={7})}"


def _truncation_lanes(found: Replication) -> str:
    """A lane for each broker, with a circle for each truncation. Its area grows with the number of records."""
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
            parts.append(f"<circle {where} {look}><title>{escape(truncation_words(row))}</title></circle>")
    keys = [("#2f6690", "above the high watermark"), (BAD, "below it")]
    return card(draw.svg(bottom + 22, parts, "truncations over time"), draw.legend(keys))
