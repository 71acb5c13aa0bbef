"""The conversion of a group of the newer protocol to a classic group. All its members speak the classic protocol.

The generation is the group's epoch, and the assignment of a member contains the partitions that it owns. If all members
own their targets, the conversion changes nothing for them.

If the group must rebalance, because a member has left or does not own its target yet, the record has no leader. A
rebalance is in no record. So another coordinator that loaded the record before the end of the rebalance would have a
stable group, and no member would read some of the partitions. Because the record has no leader, it starts the rebalance.
(In Kafka, the record has a leader, and the other coordinator starts no rebalance.)
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
    """The classic group with these members. None if the version of a member's subscription, which its assignment must
    have, cannot be read."""
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
