"""Requests of operators about groups, in each version of Kafka's requests."""

from __future__ import annotations

from uuid import uuid4

import pytest
from groups_world import DELETE, DESCRIBE, LIST, VERSIONS, GroupWire

from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

Cluster = ThreadedCluster


@pytest.mark.parametrize("version", VERSIONS[LIST])
async def test_groups_of_all_kinds_are_listed(groups_cluster: Cluster, version: int) -> None:
    classic, newer, simple = (f"{kind}-{version}" for kind in ("classic", "newer", "simple"))
    async with await GroupWire.to(groups_cluster, classic) as wire:
        await wire.become_member()
    async with await GroupWire.to(groups_cluster, newer) as wire:
        await wire.beat(member_id=str(uuid4()))
    async with await GroupWire.to(groups_cluster, simple) as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        listed = {group.group_id: group for group in (await wire.call(LIST, version)).groups}
    kinds = {classic: ("consumer", "classic"), newer: ("consumer", "consumer"), simple: ("", "classic")}
    for name, (protocol_type, group_type) in kinds.items():
        assert listed[name].protocol_type == protocol_type
        assert listed[name].get("group_type", group_type) == group_type
    assert listed[simple].get("group_state", "Empty") == "Empty"


async def test_groups_are_listed_by_state_and_type(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "b-simple") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        for wanted, is_listed in (({"states_filter": ["empty"]}, True), ({"types_filter": ["consumer"]}, False)):
            groups = {group.group_id for group in (await wire.call(LIST, 5, wanted)).groups}
            assert ("b-simple" in groups) == is_listed


@pytest.mark.parametrize("version", [5, 6])
async def test_group_of_offsets_alone_is_described_as_empty(groups_cluster: Cluster, version: int) -> None:
    """A program that commits without a membership creates such a group, and `kafka-consumer-groups --describe` shows it."""
    async with await GroupWire.to(groups_cluster, "simple") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        (group,) = (await wire.ask(DESCRIBE, version, groups=["simple"])).groups
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", [])


@pytest.mark.parametrize("version", VERSIONS[DELETE])
async def test_groups_without_members_are_deleted(groups_cluster: Cluster, version: int) -> None:
    async with await GroupWire.to(groups_cluster, "gone") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        for expected in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            (result,) = (await wire.call(DELETE, version, {"groups_names": ["gone"]})).results
            assert (result.group_id, result.error_code) == ("gone", expected)
        await wire.become_member()
        (result,) = (await wire.call(DELETE, version, {"groups_names": ["gone"]})).results
        assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    async with await GroupWire.to(groups_cluster, "gone") as wire:
        (group,) = (await wire.ask(DESCRIBE, 6, groups=["gone"])).groups
        await wire.leave(group.members[0].member_id)
