"""The logs of a partition's replicas under each other, split where they differ, with the epochs in the cells.

offset       0..9   10..11   12
broker 1   |  e1  |   e1   |    |   LEO 12   HW 10   dead
broker 2   |  e1  |   e2   |    |   LEO 12   HW 10   in the ISR
broker 3   |  e1  |   e1   | e3 |   LEO 13   HW 10   leads epoch 3, in the ISR
                  ^
                  HW 10: everything to the left is committed
                  the histories diverge here
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS, fault_name
from strandline.testing.simulation.story.picture import UNKNOWN, Picture, Replica, name_of, offsets

WIDTH = 100
"""Columns of a page."""


def draw(picture: Picture, partition: str) -> list[str]:
    """The drawing, in lines of at most `WIDTH` columns; empty if all logs are empty."""
    replicas = [replica for _, replica in sorted(picture.replicas[partition].items())]
    leader = _leader(picture, partition, replicas)
    if not any(replica.runs for replica in replicas):
        return []
    columns = _columns(replicas, leader, room=WIDTH - 52)
    labels = [offsets(base, end - 1) for base, end in columns]
    rows = [[_cell(replica, base, end) for base, end in columns] for replica in replicas]
    widths = [max(map(len, texts)) + 2 for texts in zip(labels, *rows, strict=True)]
    names = [name_of(replica.node) for replica in replicas]
    left = max(map(len, ["offset", *names])) + 3
    out = [f"  {'offset':<{left}} {' '.join(map(str.center, labels, widths))}".rstrip()]
    for replica, name, cells in zip(replicas, names, rows, strict=True):
        hw = "?" if replica.hw is None else replica.hw
        numbers = f"LEO {replica.end:<4} HW {hw:<4} {_role(picture, partition, replica)}"
        row = "".join(f"{cell:^{width}}|" for cell, width in zip(cells, widths, strict=True))
        out.append(f"  {name:<{left}}|{row}   {numbers}".rstrip())
    for end, texts in _remarks(replicas, leader, columns, rows).items():
        at = 2 + left + sum(width + 1 for (base, _), width in zip(columns, widths, strict=True) if base < end)
        out += [" " * at + "^", *(" " * min(at, WIDTH - len(text)) + text for text in texts)]
    return out


def _leader(picture: Picture, partition: str, replicas: Sequence[Replica]) -> Replica | None:
    """The replica that claims the newest leader epoch."""
    leading = [replica for replica in replicas if replica.leads is not None]
    return max(leading, key=lambda replica: replica.leads or 0, default=None)


def _columns(replicas: Sequence[Replica], leader: Replica | None, room: int) -> list[tuple[int, int]]:
    """Ranges of offsets in which no replica changes its epoch. If there are too many, the first ones become one."""
    marks = {mark for replica in replicas for run in replica.runs for mark in (run.base, run.end)}
    if leader is not None and leader.hw is not None and marks and min(marks) < leader.hw < max(marks):
        marks.add(leader.hw)
    columns = list(pairwise(sorted(marks)))
    while len(columns) > 2 and sum(len(offsets(base, end - 1)) + 3 for base, end in columns) > room:
        columns[:2] = [(columns[0][0], columns[1][1])]
    return columns


def _cell(replica: Replica, base: int, end: int) -> str:
    epochs = [run.epoch for run in replica.runs if run.base < end and run.end > base]
    names = ["?" if epoch == UNKNOWN else f"e{epoch}" for epoch in epochs]
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def _role(picture: Picture, partition: str, replica: Replica) -> str:
    node = picture.nodes.get(replica.node)
    parts = []
    if node is not None and node.state != "up":
        parts.append(node.state)
    others = [fault for fault in picture.faults_of(replica.node) if fault.name not in BY_NODE_EVENTS]
    parts += [fault_name(fault.event) for fault in others[:1]]
    if replica.leads is not None:
        parts.append(f"leads epoch {replica.leads}")
    known = picture.partitions.get(partition)
    if known is not None and replica.node in known.isr:
        parts.append("in the ISR")
    return ", ".join(parts)


def _remarks(
    replicas: Sequence[Replica], leader: Replica | None, columns: Sequence[tuple[int, int]], rows: Sequence[Sequence[str]]
) -> dict[int, list[str]]:
    """Remarks below the drawing, by offset."""
    remarks: dict[int, list[str]] = {}
    if leader is not None and leader.hw is not None and any(end == leader.hw for _, end in columns):
        remarks.setdefault(leader.hw, []).append(f"HW {leader.hw}: everything to the left is committed")
    for (base, _), cells in zip(columns, zip(*rows, strict=True), strict=True):
        if len({cell for cell in cells if cell and ".." not in cell and cell != "?"}) > 1:
            remarks.setdefault(base, []).append("the histories diverge here")
            break
    return dict(sorted(remarks.items()))
