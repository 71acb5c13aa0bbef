"""The parts of a broker that the translations of Kafka's requests use: its metadata, the rights of clients, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strandline.broker.coordination.topics import InternalTopic
from strandline.broker.kafka.schemas import Schemas
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.access import Access, Rights


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaContext:
    """Shared by the connections of a broker's Kafka listeners."""

    image: Callable[[], MetadataImage]
    """The broker's newest metadata."""
    rights: Rights | None = None
    """The rights of clients; None: every client may do everything."""
    wall_clock_ms: Callable[[], int] = lambda: 0
    auto_create_topics: bool = True
    """Whether Metadata requests create the topics that they name (`auto.create.topics.enable`)."""
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    """Name of an internal topic -> the settings with which a Metadata request that names it creates it."""
    schemas: Schemas = field(default_factory=Schemas)

    def topic_id(self, name: str) -> bytes | None:
        """The id of a topic; None if no topic has this name."""
        topic_id: bytes | None = self.image().topics_by_name.get(name)
        return topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic; None if no topic has this id."""
        topic = self.image().topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def access_of(self, request: object) -> Access | None:
        """The rights of a request's sender; None: it may do everything."""
        return None if self.rights is None else self.rights.access_of(request)
