"""The existing topics to which a member subscribes, and the hash that shows whether they have changed.

A member subscribes by names, by a regular expression, or by both. The topics of an expression are in a record (`regex_scans.py`
looks them up). A topic that does not exist is left out, and so is an expression whose topics are not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from strandline.broker.groups.consumer.assignors.spec import TopicIds
from strandline.broker.groups.records.types import MemberMetadataValue, RegularExpressionValue
from strandline.controller.metadata.image import MetadataImage


class Subscriptions:
    """The subscriptions of a group's members, for one decision."""

    def __init__(self, image: MetadataImage, resolved: Mapping[str, RegularExpressionValue]) -> None:
        self._image = image
        self._resolved = resolved
        self._topics: dict[tuple[tuple[str, ...], str | None], TopicIds] = {}
        """A cache: most members of a group subscribe to the same topics."""

    def topics_of(self, metadata: MemberMetadataValue) -> TopicIds:
        """The topics to which the member subscribes."""
        key = (metadata.subscribed_topic_names, metadata.subscribed_topic_regex)
        topics = self._topics.get(key)
        if topics is None:
            ids = map(self._image.topics_by_name.get, self._names(metadata))
            topics = self._topics[key] = dict.fromkeys(sorted({topic_id for topic_id in ids if topic_id is not None}))
        return topics

    def all_topics(self) -> TopicIds:
        """The topics of all members for which `topics_of` was called."""
        return {topic_id: None for topics in self._topics.values() for topic_id in topics}

    def _names(self, metadata: MemberMetadataValue) -> Iterable[str]:
        yield from metadata.subscribed_topic_names
        resolved = self._resolved.get(metadata.subscribed_topic_regex or "")
        if resolved is not None:
            yield from resolved.topics


def metadata_hash(topics: Iterable[str], image: MetadataImage) -> int:
    """A hash of the id and the number of partitions of each of these topics that exists; 0 if none does. 64 bits with a sign.

    Kafka's hash (XXH3) covers the racks of the replicas, too. No assignor looks at racks, so here a replica that moves to another
    rack causes no rebalance. Only the coordinator compares the value."""
    found = [topic for name in sorted(topics) if (topic := image.topic(name)) is not None]
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for topic in found:
        digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
