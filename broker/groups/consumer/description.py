"""The description of a group of the newer protocol (ConsumerGroupDescribe)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.target import preferred_assignor
from strandline.broker.groups.records.types import Partitions
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.messages.groups import (
    ConsumerGroupMemberDescription,
    DescribedConsumerGroup,
    NamedTopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_group(group: ConsumerGroup, assignors: Sequence[str], image: MetadataImage) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members.values(), assignors),
        members=[
            _describe_member(group.members[member_id], group.targets.get(member_id, {}), image)
            for member_id in sorted(group.members)
        ],
    )


def _describe_member(member: Member, target: Partitions, image: MetadataImage) -> ConsumerGroupMemberDescription:
    """The description of a member. Its assignment includes the partitions that it has still to revoke."""
    owned: dict[bytes, set[int]] = {}
    for partitions in member.current.assigned, member.current.pending_revocation:
        for topic_id, numbers in partitions.items():
            owned.setdefault(topic_id, set()).update(numbers)
    metadata = member.metadata
    return ConsumerGroupMemberDescription(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_named(owned, image),
        target_assignment=_named(target, image),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _named(partitions: Mapping[bytes, Collection[int]], image: MetadataImage) -> list[NamedTopicPartitions]:
    """The partitions under the names of their topics, sorted by name. A deleted topic has no name, and is left out."""
    named = [
        NamedTopicPartitions(topic_id, topic.name, sorted(numbers))
        for topic_id, numbers in partitions.items()
        if (topic := image.topics_by_id.get(topic_id)) is not None
    ]
    return sorted(named, key=lambda topic: topic.topic_name)
