"""A verification as one HTML file that needs no network: findings with what to do next, then a picture of each partition's logs.

    orders-0
      broker 1   ▇▇▇▇▇ epoch 0 ▇▇▇▇▇│▇▇ epoch 1 ▇▇▇▇|▒▒▒      one bar per replica, on one scale of offsets; | the high watermark
      broker 2   ▇▇▇▇▇ epoch 0 ▇▇██▇│▇▇ epoch 1 ▇▇▇▇|         red: a finding
      broker 3   ▇▇▇▇▇ epoch 0 ▇▇▇▇▇                          a log that ends earlier

The pictures are HTML boxes with widths in percent, so they fit every window. Colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from strandline.pipeline.jobs.audit_page import tile
from strandline.pipeline.jobs.results import iso
from strandline.pipeline.jobs.verify_result import Finding, Partition, Replica, Verification

COLOURS = 8
"""Number of colours for leader epochs; epoch 8 has the colour of epoch 0."""
PICTURES_MAX = 300
"""The largest number of partitions with a picture; those with findings come first. The JSON has all partitions."""
NOTES_SHOWN = 8
"""How many notes are visible before the reader opens the rest."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #66727f; --ground: #f7f8fa; --card: #fff; --line: #e1e5ea;
  --well: #2f7d4a; --wrong: #b6452c; --wrong-ground: #fbe9e5; --track: #eef1f4; --mark: #1f2933;
  --e0: #2f6690; --e1: #5d8aa8; --e2: #3a7d7b; --e3: #7a6ea8; --e4: #a0764a; --e5: #4f7cac; --e6: #6b8f52; --e7: #8a5a7d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --faint: #98a4b0; --ground: #14181d; --card: #1c2229;
  --line: #2d353e; --well: #2f7d4a; --wrong: #c8553d; --wrong-ground: #3a211c; --track: #262d35; --mark: #fff;
  --e0: #4d86b3; --e1: #7fa8c4; --e2: #55a09d; --e3: #978bc4; --e4: #c09468; --e5: #7099c8; --e6: #8aae70; --e7: #ab7a9e; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 8px; } h3 { font-size: 15px; margin: 0; }
.faint { color: var(--faint); } .small { font-size: 13px; } code { font-size: 13px; overflow-wrap: anywhere; }
.verdict { border-radius: 8px; padding: 16px 20px; margin: 20px 0; color: #fff; font-size: 17px; }
.well { background: var(--well); } .wrong { background: var(--wrong); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; min-width: 104px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile.bad b { color: var(--wrong); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; margin: 12px 0; }
.finding { border-left: 4px solid var(--wrong); } .finding p { margin: 0; } .finding p + p { margin-top: 4px; }
.head { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; margin-bottom: 10px; }
.row { display: grid; grid-template-columns: 92px 1fr; gap: 10px; align-items: center; margin: 6px 0; }
.name { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; font-size: 13px; }
.name.bad { color: var(--wrong); font-weight: 600; }
.track { position: relative; height: 24px; background: var(--track); border-radius: 3px; }
.track > * { position: absolute; top: 0; bottom: 0; min-width: 1px; }
.epoch { overflow: hidden; color: #fff; font-size: 11px; line-height: 24px; padding-left: 5px; white-space: nowrap;
  border-left: 1px solid var(--card); }
.open { background: repeating-linear-gradient(135deg, transparent 0 4px, var(--card) 4px 7px); opacity: .38; }
.fault { background: var(--wrong); min-width: 4px; outline: 1px solid var(--card); }
.other { box-shadow: inset 0 -5px 0 #e0a83a; min-width: 4px; }
.hw { width: 2px; min-width: 2px; background: var(--mark); top: -4px; bottom: -4px; margin-left: -1px; }
.axis { display: flex; justify-content: space-between; font-size: 11px; color: var(--faint); font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 12px; color: var(--faint); margin: 4px 0 0; }
.legend i { display: inline-block; width: 18px; height: 11px; margin-right: 6px; vertical-align: -1px; position: relative; }
.legend i.hw { width: 2px; margin: 0 8px 0 6px; top: 0; }
.scroll { overflow-x: auto; } ul { padding-left: 20px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td:last-child, th:last-child { text-align: left; } th { color: var(--faint); font-weight: 600; }
summary { cursor: pointer; font-size: 13px; color: var(--faint); margin-top: 8px; }
@media (max-width: 560px) { main { padding: 20px 12px 40px; } .row { grid-template-columns: 1fr; gap: 0; } }
"""


def page(found: Verification, title: str = "Verification of brokers' directories") -> str:
    """The HTML of the whole file."""
    partitions = sorted(found.partitions, key=lambda one: (one.is_ok, not one.findings, one.topic, one.partition))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<div class=faint>{iso(int(found.made_at_s))} UTC; {_directories(found)}</div>",
        f"<div class='verdict {'well' if found.is_ok else 'wrong'}'>{escape(found.verdict.capitalize())}</div>",
        _tiles(found),
        _findings(found),
        _notes(found),
        "<h2>The logs</h2>",
        LEGEND,
        *(_partition(one) for one in partitions[:PICTURES_MAX]),
        _more(len(partitions) - PICTURES_MAX),
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    body = f"<body><main>{''.join(parts)}</main></body>"
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head>{body}</html>\n"


# -- words ------------------------------------------------------------------------------------------------------------


def _directories(found: Verification) -> str:
    pairs = zip(found.brokers, found.directories, strict=True)
    return ", ".join(f"broker {escape(broker)}: <code>{escape(path)}</code>" for broker, path in pairs)


def _tiles(found: Verification) -> str:
    replicas = [replica for partition in found.partitions for replica in partition.replicas]
    records = sum(max((replica.records for replica in partition.replicas), default=0) for partition in found.partitions)
    tiles = [
        tile("partitions", len(found.partitions)),
        tile("replicas", len(replicas)),
        tile("records", records),
        tile("bytes read", sum(replica.size for replica in replicas)),
        tile("findings", len(found.bad) + len(found.compared), is_bad=not found.is_ok),
        tile("notes", len(found.all_findings) - len(found.bad)),
    ]
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _findings(found: Verification) -> str:
    cards = [_card(finding) for finding in found.bad]
    cards += [_compared(finding.sentence, finding.examples) for finding in found.compared]
    return f"<h2>Findings</h2>{''.join(cards)}" if cards else ""


def _card(finding: Finding) -> str:
    path = f"<p class='faint small'><code>{escape(finding.path)}</code></p>" if finding.path else ""
    action = f"<p>What to do: {escape(finding.action)}.</p>" if finding.action else ""
    return f"<div class='card finding'><p><b>{escape(finding.sentence)}</b></p>{action}{path}</div>"


def _compared(sentence: str, examples: Sequence[str]) -> str:
    more = f"<p class='faint small'>{escape('; '.join(examples))}</p>" if examples else ""
    return f"<div class='card finding'><p><b>{escape(sentence)}</b></p>{more}</div>"


def _notes(found: Verification) -> str:
    compared = found.comparison.findings if found.comparison is not None else ()
    notes = [one.sentence for one in found.all_findings if not one.is_bad]
    notes += [one.sentence for one in compared if not one.is_bad]
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes[:NOTES_SHOWN])
    rest = "".join(f"<li>{escape(note)}</li>" for note in notes[NOTES_SHOWN:])
    more = f"<details><summary>{len(notes) - NOTES_SHOWN} more notes</summary><ul>{rest}</ul></details>" if rest else ""
    return f"<h2>Notes on legal differences</h2><ul class=small>{items}</ul>{more}"


def _more(count: int) -> str:
    return f"<p class=faint>{count:,} more partitions are in the JSON (--json).</p>" if count > 0 else ""


# -- pictures ---------------------------------------------------------------------------------------------------------

LEGEND = (
    "<div class=legend><span><i style='background:var(--e0)'></i>records, a colour for each leader epoch</span>"
    "<span><i class=hw style='background:var(--mark)'></i>checkpointed high watermark</span>"
    "<span><i style='background:var(--e0)'><i class=open style='position:absolute;inset:0;margin:0'></i></i>"
    "above the checkpointed high watermark</span>"
    "<span><i style='background:var(--wrong)'></i>a finding</span>"
    "<span><i style='box-shadow:inset 0 -5px 0 #e0a83a'></i>different records, not committed</span></div>"
)


def _partition(partition: Partition) -> str:
    low = min((replica.start for replica in partition.replicas), default=0)
    high = max([partition.committed, *(replica.end for replica in partition.replicas), low + 1])
    rows = "".join(_row(replica, partition, low, high) for replica in partition.replicas)
    middle = "".join(f"<span>{low + (high - low) * n // 4:,}</span>" for n in range(5))
    state = "sound" if partition.is_ok else f"<span style='color:var(--wrong)'>{_bad_kinds(partition.findings)}</span>"
    head = f"<h3>{escape(partition.topic)}-{partition.partition}</h3><span class='faint small'>committed up to offset "
    head += f"{partition.committed:,}; topic id {escape(partition.topic_id or 'unknown')}</span><span class=small>{state}</span>"
    axis = f"<div class=row><span></span><div class=axis>{middle}</div></div>"
    return f"<div class=card><div class=head>{head}</div>{rows}{axis}{_table(partition.replicas)}</div>"


def _bad_kinds(findings: Iterable[Finding]) -> str:
    return escape(", ".join(dict.fromkeys(finding.kind.replace("_", " ") for finding in findings if finding.is_bad)))


def _row(replica: Replica, partition: Partition, low: int, high: int) -> str:
    own = [one for one in partition.findings if not one.brokers or replica.broker in one.brokers]
    scale = _Scale(low, high)
    boxes = [
        scale.box("epoch", first, end, f"leader epoch {epoch}, offsets {first:,} to {end - 1:,}", f"epoch {epoch}", colour=epoch)
        for epoch, first, end in replica.epochs
    ]
    known = replica.high_watermark
    if (known or 0) < replica.end:
        boxes.append(scale.box("open", max(known or 0, replica.start), replica.end, "above the checkpointed high watermark"))
    boxes += [scale.box(_mark(one), one.first, one.end or one.first + 1, one.sentence) for one in own if one.first is not None]
    if known is not None:
        boxes.append(f"<i class=hw style='left:{scale.percent(known):.3f}%' title='high watermark {known:,}'></i>")
    is_bad = any(one.is_bad for one in own)
    name = f"<span class='name{' bad' if is_bad else ''}' title='{escape(replica.path)}'>broker {escape(replica.broker)}</span>"
    return f"<div class=row>{name}<div class=track>{''.join(boxes)}</div></div>"


def _mark(finding: Finding) -> str:
    """The CSS class of a finding's box; empty for a note without a box. Of the notes, only different records have one."""
    if finding.is_bad:
        return "fault"
    return "other" if finding.kind == "not_committed" else ""


class _Scale:
    """Converts offsets to percent of a track's width."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def percent(self, offset: int) -> float:
        return 100 * (min(max(offset, self._low), self._high) - self._low) / (self._high - self._low)

    def box(self, name: str, first: int, end: int, title: str, text: str = "", colour: int | None = None) -> str:
        if not name:
            return ""
        left = self.percent(first)
        ground = "" if colour is None else f";background:var(--e{colour % COLOURS})"
        style = f"left:{left:.3f}%;width:{self.percent(end) - left:.3f}%{ground}"
        return f"<span class={name} style='{style}' title='{escape(title)}'>{escape(text)}</span>"


def _table(replicas: Sequence[Replica]) -> str:
    columns = ["broker", "start", "end", "high watermark", "recovery point", "batches", "records", "bytes", "folder"]
    rows: list[list[Any]] = [
        [one.broker, one.start, one.end, one.high_watermark, one.recovery_point, one.batches, one.records, one.size, one.path]
        for one in replicas
    ]
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<details><summary>figures</summary><div class=scroll><table><tr>{head}</tr>{body}</table></div></details>"


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
