"""Draws the lanes of the replication page: one for each node, and one for each partition with its leader and ISR."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from strandline.pipeline.jobs import replication_svg as draw
from strandline.pipeline.jobs.replication_cluster import ACTIVE, FENCED, LEAVING, STANDBY, UP
from strandline.pipeline.jobs.replication_partition import (
    STATE,
    Row,
)
from strandline.pipeline.jobs.replication_pieces import (
    BAD,
    CALM,
    WARN,
    WELL,
    cause_words,
    moment,
    partition_name,
    section,
    short,
    truncation_words,
)
from strandline.pipeline.jobs.replication_result import Replication, duration, leader_name
from strandline.pipeline.jobs.replication_states import NO_LEADER
from strandline.pipeline.jobs.replication_svg import FAINT, INK, LEFT, RIGHT, WIDTH, Scale

LEADERS = ("#2f6690", "#e0a458", "#5b8e7d", "#9b5094", "#81a4cd", "#bc6c4c", "#6a7f3f", "#4a4e8c", "#c28fb0", "#50808e")
"""Colours of the brokers, in the order of their ids. The eleventh broker has the first colour again."""
NODE_COLOURS = {UP: WELL, FENCED: BAD, LEAVING: WARN, ACTIVE: "#2f6690", STANDBY: CALM}
NODE_WORDS = {
    UP: "broker is up",
    FENCED: "broker is fenced",
    LEAVING: "controlled shutdown",
    ACTIVE: "active controller",
    STANDBY: "standby controller",
}
PARTITIONS_MAX = 300
"""The picture shows at most this many partitions, those with the most changes. The tables and the JSON have all."""
SHAPES_MAX = 20_000
"""The picture shows at most this many states, the longest ones, so that a browser can draw it."""


def nodes(found: Replication) -> str:
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
        title = f"{span.node}: {NODE_WORDS[span.state]} from {moment(span.from_us)} for {lasted}"
        title += f" ({span.detail})" if span.detail else ""
        x = scale.x(span.from_us)
        parts.append(
            draw.rect(x, lane[span.node] + 4, scale.x(span.until_us) - x, 14, NODE_COLOURS[span.state], title, ' rx="2"')
        )
    for mark in found.marks:
        parts.append(
            draw.triangle(scale.x(mark.at_us), lane[mark.node] + 11, INK, f"{mark.node}: {mark.text}, {moment(mark.at_us)}")
        )
    states = [state for state in NODE_COLOURS if any(span.state == state for span in found.spans)]
    keys = [(NODE_COLOURS[state], NODE_WORDS[state]) for state in states]
    words = "A triangle marks a process that started, was stopping, failed, or was paused."
    return section("Nodes", words, draw.svg(bottom + 22, parts, "nodes over time"), draw.legend(keys))


def _node_order(name: str) -> tuple[str, int, str]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number), "") if number.isdigit() else (name, 0, name)


def lanes(found: Replication) -> str:
    states = found.of(STATE)
    changes = Counter((row.topic, row.partition) for row in states)
    shown = sorted(sorted(changes, key=lambda partition: (-changes[partition], partition))[:PARTITIONS_MAX])
    height = 22 if len(shown) <= 16 else 14 if len(shown) <= 48 else 7 if len(shown) <= 150 else 5
    scale, top = Scale(found.begin_us, found.end_us), 10
    lane = {partition: top + n * height for n, partition in enumerate(shown)}
    bottom = top + len(shown) * height
    colours = leader_colours(found)
    parts = [draw.axis(scale, top, bottom), *_lane_names(lane, height)]
    drawn = [row for row in states if (row.topic, row.partition) in lane]
    drawn.sort(key=lambda row: -row.ms)
    parts += [_state(row, lane[row.topic, row.partition], height, scale, colours) for row in drawn[:SHAPES_MAX]]
    for row in found.truncations:
        if (row.topic, row.partition) in lane:
            y = lane[row.topic, row.partition] + height * 0.7
            parts.append(draw.triangle(scale.x(row.from_us), y, BAD if row.below_hw else INK, truncation_words(row)))
    keys = [(colour, f"broker {broker} leads") for broker, colour in colours.items()]
    keys.append((BAD, "without a leader"))
    words = "Full height: all replicas are in sync; lower: some are not. A triangle: a replica truncated its log."
    if len(shown) < len(changes):
        words += f" {len(shown)} of {len(changes):,} partitions: those with the most changes."
    return section("Partitions", words, draw.svg(bottom + 22, parts, "leader and ISR of each partition"), draw.legend(keys))


def leader_colours(found: Replication) -> dict[int, str]:
    brokers = sorted(
        {b for row in found.of(STATE) for b in (*row.replicas, *row.isr, row.broker) if b is not None and b != NO_LEADER}
    )
    return {broker: LEADERS[n % len(LEADERS)] for n, broker in enumerate(brokers)}


def _lane_names(lane: dict[tuple[str, int], int], height: float) -> list[str]:
    """Labels each lane with its partition. If the lanes are too thin, labels only the first lane of each topic."""
    if height >= 14:
        return [draw.text(LEFT - 10, y + height - 6, short(f"{t}-{p}"), "end", INK, 12) for (t, p), y in lane.items()]
    parts, labelled = [], -100.0
    for topic, group in groupby(lane.items(), key=lambda item: item[0][0]):
        lanes_of_topic = list(group)
        y = lanes_of_topic[0][1]
        parts.append(draw.line(0, y, WIDTH - RIGHT, y))
        if y - labelled >= 12:
            parts.append(draw.text(LEFT - 10, y + 10, short(topic), "end", INK, 12))
            labelled = y
        count = f"{len(lanes_of_topic)} partitions"
        if len(lanes_of_topic) * height >= 26:
            parts.append(draw.text(LEFT - 10, y + 24, count, "end"))
    return parts


def _state(row: Row, y: float, height: float, scale: Scale, colours: dict[int, str]) -> str:
    x, gap = scale.x(row.from_us), 3 if height >= 14 else 1 if height >= 7 else 0.5
    width = scale.x(row.until_us or row.from_us) - x
    in_sync = len(row.isr) / len(row.replicas) if row.replicas else 1.0
    full = height - gap
    tall = full if row.broker == NO_LEADER else max(1.0, full * in_sync)
    fill = BAD if row.broker == NO_LEADER else colours.get(row.broker or 0, FAINT)
    back = draw.rect(x, y, width, full, draw.MISSING) if tall < full - 0.5 else ""
    return back + draw.rect(x, y + full - tall, width, tall, fill, _state_words(row))


def _state_words(row: Row) -> str:
    cause = f"; {cause_words(row)}" if row.cause else ""
    leads = "no leader" if row.broker == NO_LEADER else f"broker {leader_name(row.broker)} leads"
    isr, replicas = (",".join(map(str, ids)) for ids in (row.isr, row.replicas))
    state = f"{partition_name(row)}: {leads} (leader epoch {row.leader_epoch}), ISR {isr} of {replicas}"
    return f"{state}, from {moment(row.from_us)} for {duration(row.ms)}{cause}"
