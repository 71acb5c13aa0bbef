"""A summary of a cluster on half a page, to explain why a test failed."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.testing.kit.nodes import Nodes

PARTITIONS_MAX = 20
LINES_MAX = 25


def report(nodes: Nodes, seed: int, faults: Iterable[str], lines: int = LINES_MAX) -> str:
    """States of the nodes, active faults, partitions with their leaders, and the last `lines` log lines."""
    view = nodes.last_view()
    brokers, controllers = len(nodes.broker_ids), len(nodes.controller_ids)
    out = [f"{_count(brokers, 'broker')}, {_count(controllers, 'controller')}, {nodes.kind}; seed {seed}"]
    active = view.controller()
    for node in nodes.views:
        note = ", ".join(filter(None, ("active" if node.id == active else "", node.note)))
        out.append(f"  {node.name:<14} {node.state}{f' ({note})' if note else ''}")
    out += [f"  fault: {fault}" for fault in faults]
    partitions = view.partitions()
    out += [f"  {partition}" for partition in partitions[:PARTITIONS_MAX]]
    if len(partitions) > PARTITIONS_MAX:
        out.append(f"  ... and {len(partitions) - PARTITIONS_MAX} more partitions")
    said = nodes.lines(lines)
    if said:
        out += ["  last log lines:", *(f"    {line}" for line in said)]
    return "\n".join(out)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
