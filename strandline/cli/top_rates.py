"""The tables of `strandline top`, computed from two samples of the cluster: the present values, and their rates. Pure.

A rate is the growth between the samples, divided by the time between them. It is None if one of the samples has no value, and for
a topic that was recreated in between. A log that became shorter (retention, truncation) has the rate 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.client import ClusterDescription, PartitionDescription, TopicDescription, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupSample:
    """A group at one moment. `lag`: in records, as far as it is known."""

    group_id: str
    state: str
    members: int
    lag: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment, as far as it answered."""

    at_s: float
    """Time of the sample, in seconds on a monotonic clock."""
    cluster: ClusterDescription
    topics: list[TopicDescription]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """High watermarks, of the partitions whose leaders have answered."""
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Broker -> the bytes of each of its replicas; a broker that did not answer is left out."""
    groups: list[GroupSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker_id: int
    address: str
    rack: str | None
    state: str
    leaders: int
    replicas: int
    out_of_sync: int
    """Replicas here that are not in the ISR of their partition."""
    size_bytes: int | None
    records_per_s: float | None
    """Records appended to the partitions that the broker leads."""
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    topic: str
    partition: int
    state: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    end_offset: int | None
    size_bytes: int | None
    records_per_s: float | None
    bytes_per_s: float | None

    @property
    def is_troubled(self) -> bool:
        return self.state != "ok"


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    partitions: int
    replicas: int
    under_replicated: int
    offline: int
    size_bytes: int | None
    records_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    group_id: str
    state: str
    members: int
    lag: int
    lag_per_s: float | None
    """Growth of the lag, in records per second; negative: it shrinks."""

    @property
    def clear_s(self) -> float | None:
        """The seconds until nothing is left to read, at the present rate; None if the lag does not shrink."""
        if self.lag == 0:
            return 0.0
        return self.lag / -self.lag_per_s if self.lag_per_s is not None and self.lag_per_s < 0 else None


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the screen shows."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerRow]
    topics: list[TopicRow]
    partitions: list[PartitionRow]
    """Those with a problem first, then the fastest."""
    groups: list[GroupRow]
    """The largest lag first."""

    @property
    def under_replicated(self) -> int:
        return sum(row.under_replicated for row in self.topics)

    @property
    def offline(self) -> int:
        return sum(row.offline for row in self.topics)

    @property
    def brokers_ok(self) -> int:
        return sum(row.state == "ok" for row in self.brokers)

    @property
    def records_per_s(self) -> float | None:
        return total(row.records_per_s for row in self.topics)

    @property
    def bytes_per_s(self) -> float | None:
        return total(row.bytes_per_s for row in self.topics)


def overview(before: Sample | None, now: Sample) -> Overview:
    """The tables. `before`: an earlier sample; without one there are no rates."""
    partitions = _partitions(before, now)
    return Overview(
        now.cluster.cluster_id,
        now.cluster.controller_id,
        _brokers(now, partitions),
        _topics(now, partitions),
        sorted(partitions, key=lambda row: (not row.is_troubled, -(row.records_per_s or 0), row.topic, row.partition)),
        _groups(before, now),
    )


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    if before is None or now is None or seconds <= 0:
        return None
    return max(0.0, (now - before) / seconds)


def _partitions(before: Sample | None, now: Sample) -> list[PartitionRow]:
    from strandline.client import TopicPartition

    earlier = {topic.name: topic.topic_id for topic in before.topics} if before is not None else {}
    rows = []
    for topic in now.topics:
        is_same = earlier.get(topic.name) == topic.topic_id
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition)
            rows.append(_partition(before if is_same else None, now, tp, p))
    return rows


def _partition(before: Sample | None, now: Sample, tp: TopicPartition, p: PartitionDescription) -> PartitionRow:
    seconds = now.at_s - before.at_s if before is not None else 0
    size = now.sizes.get(p.leader_id, {}).get(tp)
    old_end = before.ends.get(tp) if before is not None else None
    old_size = before.sizes.get(p.leader_id, {}).get(tp) if before is not None else None
    return PartitionRow(
        tp.topic,
        tp.partition,
        _state(p),
        p.leader_id,
        p.leader_epoch,
        p.replicas,
        p.isr,
        now.ends.get(tp),
        size,
        _rate(old_end, now.ends.get(tp), seconds),
        _rate(old_size, size, seconds),
    )


def _state(partition: PartitionDescription) -> str:
    if partition.leader_id < 0:
        return "offline"
    if partition.is_under_replicated:
        return "under-replicated"
    return "reassigning" if partition.adding_replicas else "ok"


def _brokers(now: Sample, partitions: list[PartitionRow]) -> list[BrokerRow]:
    rows = []
    for broker in now.cluster.brokers:
        led = [row for row in partitions if row.leader == broker.broker_id]
        here = [row for row in partitions if broker.broker_id in row.replicas]
        sizes = now.sizes.get(broker.broker_id)
        if broker.is_fenced or broker.in_controlled_shutdown:
            state = "fenced" if broker.is_fenced else "shutting down"
        else:
            state = "no answer" if sizes is None else "draining" if broker.is_draining else "ok"
        rows.append(
            BrokerRow(
                broker.broker_id,
                f"{broker.host}:{broker.port}",
                broker.rack,
                state,
                len(led),
                len(here),
                sum(broker.broker_id not in row.isr for row in here),
                None if sizes is None else sum(sizes.values()),
                total(row.records_per_s for row in led),
                total(row.bytes_per_s for row in led),
            )
        )
    return rows


def _topics(now: Sample, partitions: list[PartitionRow]) -> list[TopicRow]:
    by_topic: dict[str, list[PartitionRow]] = {}
    for row in partitions:
        by_topic.setdefault(row.topic, []).append(row)
    rows = [
        TopicRow(
            topic.name,
            len(topic.partitions),
            topic.replication_factor,
            sum(p.is_under_replicated for p in topic.partitions),
            sum(p.leader_id < 0 for p in topic.partitions),
            _whole(total(row.size_bytes for row in by_topic.get(topic.name, ()))),
            total(row.records_per_s for row in by_topic.get(topic.name, ())),
            total(row.bytes_per_s for row in by_topic.get(topic.name, ())),
        )
        for topic in now.topics
    ]
    return sorted(rows, key=lambda row: (not (row.offline or row.under_replicated), -(row.records_per_s or 0), row.topic))


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _groups(before: Sample | None, now: Sample) -> list[GroupRow]:
    earlier = {group.group_id: group.lag for group in before.groups} if before is not None else {}
    seconds = now.at_s - before.at_s if before is not None else 0
    rows = []
    for group in now.groups:
        old = earlier.get(group.group_id)
        rate = (group.lag - old) / seconds if old is not None and seconds > 0 else None
        rows.append(GroupRow(group.group_id, group.state, group.members, group.lag, rate))
    return sorted(rows, key=lambda row: (-row.lag, row.group_id))
