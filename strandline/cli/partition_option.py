"""The option `--partition` of the commands that read some partitions of a topic, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import PartitionDescription, TopicDescription

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="NUMBER", help="Only this partition; may be given several times."),
]


def chosen_partitions(topic: TopicDescription, numbers: list[int] | None) -> list[PartitionDescription]:
    """The partitions with these numbers in ascending order; None: all partitions. UsageError for one that does not exist."""
    known = {partition.partition: partition for partition in topic.partitions}
    for number in numbers or ():
        if number not in known:
            raise UsageError(f"topic {topic.name} has no partition {number}; it has {len(known)}")
    return [known[number] for number in sorted(known if numbers is None else set(numbers))]
