"""Metadata that names the leaders of partitions."""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, PartitionRecord, TopicRecord


def image_with(**topics: dict[int, int]) -> MetadataImage:
    """An image with these topics: topic -> number of the partition -> its leader."""
    records: list[AnyRecord] = []
    for name, leaders in topics.items():
        topic_id = name.encode().ljust(16, b".")
        records.append(TopicRecord(name, topic_id))
        records += [PartitionRecord(topic_id, number, (1, 2), (1, 2), leader, 1, 1) for number, leader in leaders.items()]
    return MetadataImage.EMPTY.apply(records, len(records), 1).image
