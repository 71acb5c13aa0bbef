"""The state of topics, for `topic describe`: metadata and configuration from any broker, offsets from the leaders, sizes from
every broker. If a broker does not answer, its values are missing and the others are shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.cli.topic_offsets import offsets_at
from strandline.client.consumer.partition_state import EARLIEST, LATEST
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.client import Admin, ConfigEntry, PartitionDescription, TopicDescription, UncleanElection

STATE_TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""
CONFIG_TIMEOUT_MS = 5000
"""Any broker answers, and a request to one that is down is repeated."""


@dataclass(frozen=True, slots=True)
class TopicState:
    topics: list[TopicDescription]
    configs: dict[str, list[ConfigEntry]]
    """Topic -> its configuration."""
    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    unclean_elections: dict[str, list[UncleanElection]]
    """Topic -> the reports of its unclean elections."""
    sizes: dict[int, dict[TopicPartition, int]]
    """Broker id -> the size of each of its replicas, in bytes."""
    silent: tuple[int, ...] = ()
    """The brokers that did not answer, ascending: sizes there, and offsets of the partitions that they lead, are not known."""

    @property
    def values(self) -> dict[str, dict[str, str | None]]:
        """Topic -> key -> value."""
        return {topic: {c.name: c.value for c in configs} for topic, configs in self.configs.items()}

    def min_insync_replicas(self, topic: str) -> int:
        return int(self.values[topic].get("min.insync.replicas") or 1)

    def start_offset(self, topic: str, partition: int) -> int | None:
        return self.starts.get(TopicPartition(topic, partition))

    def end_offset(self, topic: str, partition: int) -> int | None:
        return self.ends.get(TopicPartition(topic, partition))

    def size_bytes(self, topic: str, partition: PartitionDescription) -> int | None:
        """Size of the leader's replica; None if unknown."""
        return self.sizes.get(partition.leader_id, {}).get(TopicPartition(topic, partition.partition))

    def partition_json(self, topic: str, partition: PartitionDescription) -> dict[str, Any]:
        place = TopicPartition(topic, partition.partition)
        by_broker = {str(b): self.sizes[b][place] for b in partition.replicas if place in self.sizes.get(b, {})}
        return {"start_offset": self.starts.get(place), "end_offset": self.ends.get(place), "size_bytes_by_broker": by_broker}


async def ask(admin: Admin, names: list[str] | None) -> TopicState:
    """The state of these topics, or of all."""
    topics = await admin.describe_topics(names)
    configs = await _configs(admin, [t.name for t in topics])
    led = [TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader_id >= 0]
    starts, ends = await asyncio.gather(offsets_at(admin, led, EARLIEST), offsets_at(admin, led, LATEST))
    brokers = sorted({b for t in topics for p in t.partitions for b in p.replicas if b not in p.offline_replicas})
    found = await admin.describe_log_dirs(brokers, [t.name for t in topics], timeout_ms=STATE_TIMEOUT_MS)
    sizes = {b: {place: info.size_bytes for d in dirs for place, info in d.replicas.items()} for b, dirs in found.items()}
    leaders = {p.leader_id for t in topics for p in t.partitions if TopicPartition(t.name, p.partition) in set(led) - ends.keys()}
    silent = tuple(sorted(leaders | {b for b in brokers if b not in sizes}))
    return TopicState(topics, configs, starts, ends, await _unclean_elections(admin, topics), sizes, silent)


async def _configs(admin: Admin, topics: list[str]) -> dict[str, list[ConfigEntry]]:
    """Topic -> its configuration; empty for a topic that was deleted meanwhile, or if no broker answers in time."""
    found: dict[str, list[ConfigEntry]] = {}
    for topic in topics:
        try:
            found[topic] = await admin.describe_configs("topic", topic, timeout_ms=CONFIG_TIMEOUT_MS)
        except StrandlineError:
            found[topic] = []
    return found


async def _unclean_elections(admin: Admin, topics: list[TopicDescription]) -> dict[str, list[UncleanElection]]:
    """Topic -> the reports of its unclean elections; empty if no broker answers, or one of an older version does."""
    found: dict[str, list[UncleanElection]] = {}
    try:
        reports = await admin.describe_unclean_elections([t.name for t in topics], timeout_ms=STATE_TIMEOUT_MS)
    except StrandlineError:
        return found
    for report in reports:
        found.setdefault(report.partition.topic, []).append(report)
    return found
