"""The classic group that a group of the newer protocol becomes.

All its members speak the classic protocol. Its generation is the group's epoch, and their assignments are what they own now,
encoded as their leader would have. If each owns what it is to own, no member notices.

**If the group has to rebalance** (a member left, or one had not come to its target), the record has no leader. The rebalance is
in no record, so a coordinator that took over before its end would find a stable group, in which some partitions are read by
none. As the record has no leader, it begins the rebalance again. (Kafka writes one, and does not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.broker.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE, MalformedMetadata, MetadataReader
from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.classic.member import ClassicMember
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.migration.assignment import by_name, encode_assignment
from strandline.broker.groups.records.types import ClassicGroupValue
from strandline.controller.metadata.image import MetadataImage


def downgraded(group: ConsumerGroup, members: Sequence[Member], image: MetadataImage) -> ClassicGroup | None:
    """The group with these members, in the generation that is the group's epoch. None if a member's subscription, in whose
    version its assignment is encoded, cannot be read."""
    result = ClassicGroup(group.group_id, lambda *_: None)
    for member in members:
        result.add(_classic(member), CONSUMER_PROTOCOL_TYPE)
    result.generation = group.epoch
    result.protocol = result.select_protocol()
    try:
        for member in members:
            version = MetadataReader(result.members[member.member_id].metadata(result.protocol)).version()
            assigned = {topic_id: sorted(numbers) for topic_id, numbers in member.current.assigned.items()}
            result.members[member.member_id].assignment = encode_assignment(version, by_name(assigned, image))
    except MalformedMetadata:
        return None
    return result


def _classic(member: Member) -> ClassicMember:
    metadata = member.metadata
    classic = metadata.classic_member_metadata
    assert classic is not None, "the member speaks the newer protocol"
    return ClassicMember(
        member.member_id,
        metadata.instance_id,
        metadata.client_id,
        metadata.client_host,
        metadata.rebalance_timeout_ms,
        classic.session_timeout_ms,
        {protocol.name: protocol.metadata for protocol in classic.supported_protocols},
    )


def value_of(group: ClassicGroup, now_ms: int, *, is_rebalance_needed: bool) -> ClassicGroupValue:
    """The record of a downgraded group."""
    value = group.value({member_id: member.assignment for member_id, member in group.members.items()}, now_ms)
    return replace(value, leader=None) if is_rebalance_needed else value
