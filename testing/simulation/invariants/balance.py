"""I28: leaders return to their preferred replicas only if these may lead, and never while a broker is in controlled shutdown.

The rules are read from the image that the controller decided on. A decision that has no records is not checked.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.testing.simulation.invariants.violation import Violation

ELECTIONS_MAX = 1000


def check_return(image: MetadataImage, node: int, records: Sequence[PartitionChangeRecord]) -> None:
    """The active controller returns leaders to this broker by these records."""
    if not records:
        return
    leaving = [b.broker_id for b in image.brokers.values() if b.in_controlled_shutdown and not b.fenced]
    if leaving:
        raise Violation("I28", f"leaders return to broker {node} while broker {leaving[0]} is in controlled shutdown", node=node)
    if len(records) > ELECTIONS_MAX:
        raise Violation("I28", f"{len(records)} leaders return to broker {node} in one decision", node=node)
    broker = image.brokers.get(node)
    if broker is None or broker.fenced:
        raise Violation("I28", f"leaders return to broker {node}, which is not registered or is fenced", node=node)
    for record in records:
        partition = image.partition((record.topic_id, record.partition))
        problem = "the partition does not exist" if partition is None else _problem(partition, node, record)
        if problem:
            raise Violation("I28", f"broker {node} is elected for partition {record.partition}, but {problem}", node=node)


def _problem(partition: PartitionRegistration, node: int, record: PartitionChangeRecord) -> str:
    if record.leader != node or partition.replicas[0] != node:
        return f"broker {record.leader} is elected, and broker {partition.replicas[0]} is the preferred replica"
    if node not in partition.isr:
        return f"it is not in the ISR {list(partition.isr)}"
    return "its ISR is changed as well" if record.isr is not None else ""
