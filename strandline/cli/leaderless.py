"""The text about a partition without a leader: for which broker it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.client import PartitionDescription


def waits_for(partition: PartitionDescription) -> str:
    """The end of a sentence about a partition that has no leader."""
    eligible = partition.isr or partition.eligible_leader_replicas
    if eligible:
        return f"it waits for broker {' or '.join(map(str, sorted(eligible)))}"
    last = f" (its last leader was broker {partition.last_known_elr[0]})" if partition.last_known_elr else ""
    return f"no replica is known to have every committed record{last}"
