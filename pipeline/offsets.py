"""The progress of a stream, as the JSON that Spark stores in its checkpoint.

    {"v": 1,
     "topics": {"orders": {"0": 1200, "1": 1187}},      the next offset to read, by partition
     "epochs": {"orders": {"0": 3, "1": 4}},            the leader epoch up to there, where it was known
     "ids": {"orders": "43da6650a3a54dec96b2421481e09a48"},     the topic's id
     "packing": {"rule": 1, "minPartitions": 4}}                how the batch that ends here is divided into tasks (packing.py)

Spark compares offsets as text, so equal offsets must give equal text: topics and partitions are sorted. With the epochs, a
restarted query notices that the log was truncated below its offsets (`LogTruncated`); with the ids, that the topic was deleted
and recreated. A checkpoint of an earlier release has no "ids" and no "packing", and one of Spark's Kafka connector is only the
object under "topics". Both are accepted, without these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import UsageError

VERSION = 1
NO_EPOCH = -1
UNKNOWN_ID = b""


class ReadPosition(NamedTuple):
    """The next offset to read in one partition. Epoch and topic id show whether the log was truncated or the topic recreated."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """Leader epoch of the record before `offset`; -1: not known."""
    topic_id: bytes = UNKNOWN_ID

    def is_of_another_topic(self, other: ReadPosition) -> bool:
        """Whether the topic was recreated between the two positions: both topic ids are known, and they differ."""
        return self.topic_id != other.topic_id and UNKNOWN_ID not in (self.topic_id, other.topic_id)


ReadPositions = dict[TopicPartition, ReadPosition]


def to_json(tps: Mapping[TopicPartition, ReadPosition], packing: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The JSON that Spark stores; equal positions give equal text. `packing` is that of the batch that ends at these
    positions."""
    topics: dict[str, dict[str, int]] = {}
    epochs: dict[str, dict[str, int]] = {}
    ids: dict[str, str] = {}
    for (topic, partition), position in sorted(tps.items()):
        topics.setdefault(topic, {})[str(partition)] = position.offset
        if position.leader_epoch != NO_EPOCH:
            epochs.setdefault(topic, {})[str(partition)] = position.leader_epoch
        if position.topic_id != UNKNOWN_ID:
            ids[topic] = position.topic_id.hex()
    stored = {"epochs": epochs, "ids": ids, "topics": topics, "v": VERSION}
    return stored if packing is None else {**stored, "packing": dict(packing)}


def from_json(stored: Mapping[str, Any]) -> ReadPositions:
    """The positions in stored offsets. Raises UsageError if they are damaged, of a newer version, or of another source."""
    version = stored.get("v", VERSION if "topics" in stored else 0)
    topics = stored.get("topics") if "topics" in stored or "v" in stored else stored
    epochs, ids = stored.get("epochs", {}), stored.get("ids", {})
    if version not in (0, VERSION):
        raise UsageError(
            f"the checkpoint holds offsets of version {version}, and this release knows version {VERSION}: use the newer release"
        )
    try:
        return dict(_read_positions(topics, epochs, ids))
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f"the checkpoint holds {dict(stored)!r}, which are not offsets of the strandline source") from None


def _read_positions(topics: Any, epochs: Any, ids: Any) -> Iterable[tuple[TopicPartition, ReadPosition]]:
    for topic, of_topic in topics.items():
        known, topic_id = epochs.get(topic, {}), bytes.fromhex(ids.get(topic, ""))
        for partition, offset in of_topic.items():
            epoch = known.get(partition, NO_EPOCH)
            if type(offset) is not int or type(epoch) is not int or offset < 0 or epoch < NO_EPOCH:
                raise ValueError(offset)
            yield TopicPartition(topic, int(partition)), ReadPosition(offset, epoch, topic_id)
