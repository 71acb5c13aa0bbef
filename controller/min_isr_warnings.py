"""Warnings about values of `min.insync.replicas` that have another effect than expected.

A value above the replication factor is accepted, as in Kafka, and acts as the replication factor: a broker requires
min(min.insync.replicas, replicas) replicas in sync. It does not stop writes, and does not guarantee that many copies. It gets a
warning and is not refused: a default of the cluster above the factor of some topics is common, and tools that create topics from
one template for all environments would break.

A value above the number of replicas in sync rejects writes with acks=all until the replicas have caught up. The value asks for
that, so it is a warning too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.messages.admin import RESOURCE_TOPIC

NAMED_MAX = 5


class Assigned(Protocol):
    """The part of a partition that counts here; a PartitionRegistration or a PartitionRecord."""

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...


def warnings_of_topic(name: str, min_isr: int, partitions: Iterable[Assigned]) -> list[str]:
    """The warnings for a topic that gets this min.insync.replicas."""
    partitions = list(partitions)
    warnings = []
    factor = min((len(p.replicas) for p in partitions), default=min_isr)
    if min_isr > factor:
        warnings.append(
            f"min.insync.replicas={min_isr} acts as {factor} on topic {name}, because a partition of it has only {factor} "
            f"replica{'s' if factor > 1 else ''}"
        )
    lacking = _lacking(min_isr, partitions)
    if lacking:
        warnings.append(
            f"{lacking} of {len(partitions)} partitions of topic {name} reject writes with acks=all until more of their replicas "
            "are in sync"
        )
    return warnings


def warnings_of_cluster(image: MetadataImage, min_isr: int) -> list[str]:
    """The warnings for a cluster that gets this default of min.insync.replicas: for all topics without a value of their own."""
    capped, rejecting = [], []
    for name, topic_id in sorted(image.topics_by_name.items()):
        if "min.insync.replicas" not in image.config(RESOURCE_TOPIC, name):
            partitions = image.topics_by_id[topic_id].partitions.values()
            if any(len(p.replicas) < min_isr for p in partitions):
                capped.append(name)
            if _lacking(min_isr, partitions):
                rejecting.append(name)
    warnings = []
    if capped:
        warnings.append(f"min.insync.replicas={min_isr} acts as the replication factor on {_named(capped)}, which is smaller")
    if rejecting:
        warnings.append(f"partitions of {_named(rejecting)} reject writes with acks=all until more of their replicas are in sync")
    return warnings


def _lacking(min_isr: int, partitions: Collection[Assigned]) -> int:
    return sum(len(p.isr) < min(min_isr, len(p.replicas)) for p in partitions)


def _named(topics: list[str]) -> str:
    more = f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics[:NAMED_MAX])}{more}"
