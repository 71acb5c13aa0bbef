"""Writes the replication report as one HTML file that needs no network and no script.

From top to bottom: the verdict, the main figures, a lane for each node, a lane for each partition (colour: leader; height: share
of replicas in sync), fail-overs, ISR changes by cause, truncations, and sums per hour. Each shape has a tooltip that explains it.
"""

from __future__ import annotations

from html import escape

from strandline.pipeline.jobs.audit_page import tile
from strandline.pipeline.jobs.replication_charts import failovers, isr_changes, truncations
from strandline.pipeline.jobs.replication_lanes import lanes, nodes
from strandline.pipeline.jobs.replication_partition import (
    INTERVAL,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WITHOUT_LEADER,
)
from strandline.pipeline.jobs.replication_pieces import (
    NOTHING,
    cause_words,
    details,
    moment,
    partition_name,
    table,
)
from strandline.pipeline.jobs.replication_result import Replication, duration
from strandline.pipeline.jobs.results import counted

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #52606d; --faint: #66727f; --ground: #f7f8fa; --card: #fff;
  --line: #e4e7eb; --accent: #2f6690; --wrong: #b6452c; --missing: #f3e3df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #b6c0ca; --faint: #98a4b0; --ground: #14181d;
  --card: #1c2229; --line: #2d353e; --wrong: #d4674e; --missing: #4a2c26; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 0; }
main { max-width: 1090px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 4px; } h2 + p { margin: 0 0 8px; }
.faint { color: var(--faint); font-size: 13px; }
.verdict { border-radius: 8px; padding: 16px 20px; margin: 20px 0; color: #fff; font-size: 17px; background: var(--accent); }
.verdict.wrong { background: var(--wrong); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile.bad b { color: var(--wrong); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px;
  margin: 8px 0; overflow-x: auto; }
.card svg { display: block; font-family: system-ui, sans-serif; }
svg .ink { fill: var(--ink); } svg .faint { fill: var(--faint); }
svg .grid { stroke: var(--line); } svg .missing { fill: var(--missing); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin: 8px 0 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
ul { padding-left: 20px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.words, th.words { text-align: left; } th { color: var(--soft); font-weight: 600; }
th { white-space: normal; vertical-align: bottom; }
summary { cursor: pointer; margin: 12px 0; }
@media print { * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } main { max-width: none; padding: 0; }
  .card { overflow: visible; } .card svg { max-width: 100%; height: auto; } .card, .tile { break-inside: avoid; }
  th, td { white-space: normal; } }
@media (max-width: 600px) { main { padding: 16px 10px 40px; } .verdict { padding: 12px 14px; font-size: 15px; } }
"""


def page(found: Replication, title: str = "Replication") -> str:
    """The complete HTML."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<div class=faint>{_range(found)}</div>",
        f"<div class='verdict{' wrong' if found.is_bad else ''}'>{escape(found.verdict[:1].upper() + found.verdict[1:])}</div>",
        _tiles(found),
        _notes(found),
    ]
    if found.partitions:
        parts += [nodes(found), lanes(found), failovers(found), isr_changes(found), truncations(found), _sums(found)]
    parts.append(_assumptions())
    width = "<meta name=viewport content='width=device-width, initial-scale=1'>"
    head = f"<meta charset=utf-8>{width}<title>{escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><main>{''.join(parts)}</main></body></html>\n"


# -- words ------------------------------------------------------------------------------------------------------------


def _range(found: Replication) -> str:
    read = found.read
    files = f"{counted(read.files, 'file')}, {counted(read.lines, 'line')}"
    if not read.events:
        return f"{files}; no line is an event"
    return f"{moment(found.begin_us)} to {moment(found.end_us)} UTC ({duration((found.end_us - found.begin_us) / 1000)}); {files}"


def _tiles(found: Replication) -> str:
    if not found.partitions:
        return ""
    truncated = sum(row.records or 0 for row in found.truncations)
    below = sum(row.below_hw or 0 for row in found.truncations)
    shrinks, expansions = sum(bool(row.removed) for row in found.changes), sum(bool(row.added) for row in found.changes)
    tiles = [
        tile("partitions", len(found.partitions)),
        tile("fail-overs", len(found.failovers)),
        tile("median fail-over", duration(found.failover_ms.median) if found.failovers else NOTHING),
        tile("longest fail-over", duration(found.failover_ms.max) if found.failovers else NOTHING),
        tile("under-replicated", duration(found.total_ms(UNDER_REPLICATED))),
        tile("under min ISR", duration(found.total_ms(UNDER_MIN_ISR)) if found.knows_min_isr else "unknown",
              is_bad=found.total_ms(UNDER_MIN_ISR) > 0),
        tile("without a leader", duration(found.total_ms(WITHOUT_LEADER)), is_bad=found.total_ms(WITHOUT_LEADER) > 0),
        tile("ISR shrinks / expansions", f"{shrinks:,} / {expansions:,}"),
        tile("records truncated", truncated),
        tile("truncated below a HW", below, is_bad=below > 0),
    ]  # fmt: skip
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _notes(found: Replication) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return f"<ul class=faint>{items}</ul>" if items else ""


def _assumptions() -> str:
    return (
        "<h2>What this page assumes</h2><ul class=faint>"
        "<li>The changes of a partition are ordered by its partition epochs, not by clocks.</li>"
        "<li>Times are those of the machine that logged the line. If the clocks of two machines differ, durations between their "
        "lines are wrong by as much.</li>"
        "<li>A fail-over begins when the controller last heard from the leader: when the leader's connection broke, or at its "
        "last heartbeat (for a paused process up to one heartbeat too early). It ends when the new leader has taken its role. "
        "Clients need more time, to find the new leader and to send again.</li>"
        "<li>A partition is under-replicated from the moment at which the ISR shrinks, which is after the replica was "
        "lost. An interval that had not ended at the last line of the logs counts up to that line.</li>"
        "<li>A partition that did not change while these logs were written may be in no line. It is then missing here.</li>"
        "<li>The logs have the lag of the high watermark only at takeovers and shrinks. /metrics has it at all times.</li></ul>"
    )


# -- sums -------------------------------------------------------------------------------------------------------------


def _sums(found: Replication) -> str:
    unknown = set(found.without_min_isr)
    topics = [
        [h.topic, moment(h.hour_us)[:16], duration(h.under_replicated_ms),
         "unknown" if h.topic in unknown else duration(h.under_min_isr_ms), duration(h.without_leader_ms), h.shrinks,
         h.expansions, h.failovers, duration(h.failover_ms_max) if h.failovers else NOTHING, h.handovers, f"{h.records_cut:,}"]
        for h in found.topic_hours()
    ]  # fmt: skip
    brokers = [
        [f"broker-{h.broker}", moment(h.hour_us)[:16], duration(h.out_of_isr_ms), h.left_isr, h.joined_isr, h.leads_lost,
         h.leads_won, h.truncations, f"{h.records_cut:,}"] for h in found.broker_hours()
    ]  # fmt: skip
    topic_heads = ["topic", "hour (UTC)", "under-replicated", "under min ISR", "no leader", "shrinks", "expansions", "fail-overs",
                   "longest", "handovers", "records truncated"]  # fmt: skip
    broker_heads = ["broker", "hour (UTC)", "out of ISRs", "ISRs left", "ISRs joined", "leaderships lost", "leaderships won",
                    "truncations", "records truncated"]  # fmt: skip
    intervals = [row for row in found.of(INTERVAL) if row.what in (UNDER_MIN_ISR, WITHOUT_LEADER)]
    worst = table(
        ["partition", "from (UTC)", "lasted", "what", "cause"],
        [
            [partition_name(r), moment(r.from_us), duration(r.ms) + (" or longer" if r.is_open else ""), r.what.replace("_", " "),
             cause_words(r)] for r in sorted(intervals, key=lambda row: -row.ms)
        ],
        words={3, 4},
    )  # fmt: skip
    first = "<p class=faint>Times are summed over partitions: one minute of two partitions counts as two minutes.</p>"
    per_topic = f"<h2>Per topic and hour</h2>{first}{table(topic_heads, topics)}"
    per_broker = f"<h2>Per broker and hour</h2>{table(broker_heads, brokers)}"
    return (
        per_topic + per_broker + (details(intervals, worst, "intervals under min ISR or without a leader") if intervals else "")
    )
