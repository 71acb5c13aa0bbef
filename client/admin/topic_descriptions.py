"""Describes topics as the cluster knows them now, for calls that return descriptions or need the leaders of partitions."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.admin_types import PartitionDescription, TopicDescription
from strandline.client.errors import UnknownTopic
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import admin as messages


class TopicDescriptions(AdminRequests):
    """Describes topics for the admin client's calls."""

    async def _describe(
        self, names: Sequence[str] | None, deadline: float, *, missing_ok: bool = False
    ) -> list[TopicDescription]:
        """Describe these topics, or all, sorted by name. UnknownTopic for a topic that does not exist; with `missing_ok`, it is
        left out. RequestTimeout at the deadline (on the loop's clock)."""
        asked = None if names is None else [messages.MetadataTopicRequest(name) for name in names]
        response = await self._ask(apis.METADATA, messages.MetadataRequest(asked), messages.MetadataResponse, None, deadline)
        found = []
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if missing_ok:
                    continue
                raise UnknownTopic("the topic does not exist", topic=topic.name)
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                check_code(topic.error_code, None, "Metadata", topic=topic.name)
            found.append(_topic_description(topic))
        return sorted(found, key=lambda topic: topic.name)


def _topic_description(topic: messages.MetadataTopic) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=p.partition,
            leader_id=p.leader_id,
            leader_epoch=p.leader_epoch,
            partition_epoch=p.partition_epoch,
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
            offline_replicas=tuple(p.offline_replicas),
            eligible_leader_replicas=tuple(p.eligible_leader_replicas),
            last_known_elr=tuple(p.last_known_elr),
            adding_replicas=tuple(p.adding_replicas),
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition)
    ]
    return TopicDescription(topic.name or "", topic.topic_id, partitions, topic.is_internal)
