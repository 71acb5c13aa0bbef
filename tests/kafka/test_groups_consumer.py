"""Groups of the newer protocol (KIP-848), and mixed ones, as Kafka's clients see them."""

from __future__ import annotations

from uuid import uuid4

import pytest
from groups_world import CONSUMER_DESCRIBE, DESCRIBE, VERSIONS, GroupWire

from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

Cluster = ThreadedCluster


async def test_member_of_version_0_gets_an_id(groups_cluster: Cluster) -> None:
    """From version 1 on, the member creates its own id (KIP-1082)."""
    async with await GroupWire.to(groups_cluster, "v0") as wire:
        one, other = await wire.beat(0), await wire.beat(0)
        assert one.error_code == other.error_code == 0
        assert len(one.member_id) == len(other.member_id) == 22
        assert one.member_id != other.member_id
        assert (await wire.beat(0, one.member_id, one.member_epoch)).error_code in (0, ErrorCode.FENCED_MEMBER_EPOCH)
        for version, epoch in ((1, 0), (0, 3), (0, -1)):
            assert (await wire.beat(version, "", epoch)).error_code == ErrorCode.INVALID_REQUEST


async def test_member_gets_all_partitions_and_leaves(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "alone") as wire:
        member = str(uuid4())
        joined = await wire.beat(member_id=member)
        assert (joined.error_code, joined.member_id, joined.heartbeat_interval_ms > 0) == (0, member, True)
        (assigned,) = joined.assignment.topic_partitions
        assert sorted(assigned.partitions) == [0, 1, 2, 3]
        nothing_new = await wire.beat(member_id=member, member_epoch=joined.member_epoch)
        assert nothing_new.assignment is None
        assert (await wire.beat(member_id=member, member_epoch=-1)).member_epoch == -1
        assert (await wire.beat(member_id=member, member_epoch=7)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_member_subscribes_by_a_regular_expression(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "regex") as wire:
        member = str(uuid4())
        answer = await wire.beat(member_id=member, subscribed_topic_names=None, subscribed_topic_regex="ord.*")
        while answer.assignment is None or not answer.assignment.topic_partitions:
            assert answer.error_code == 0
            answer = await wire.beat(member_id=member, member_epoch=answer.member_epoch)
        assert len(answer.assignment.topic_partitions) == 1
        bad = await wire.beat(member_id=str(uuid4()), subscribed_topic_names=None, subscribed_topic_regex="(")
        assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert bad.error_message


@pytest.mark.parametrize("version", VERSIONS[CONSUMER_DESCRIBE])
async def test_group_is_described_by_the_api_of_its_type(groups_cluster: Cluster, version: int) -> None:
    """Java's admin client asks for a group of the newer type first, and then for a classic one."""
    name = f"newer-{version}"
    async with await GroupWire.to(groups_cluster, name) as wire:
        member = str(uuid4())
        await wire.beat(member_id=member, rack_id="r", instance_id="i")
        wanted = {"group_ids": [name], "include_authorized_operations": version > 0}
        (group,) = (await wire.ask(CONSUMER_DESCRIBE, version, **wanted)).groups
        assert (group.error_code, group.assignor_name) == (0, "uniform")
        (found,) = group.members
        assert found.member_id == member
        assert (found.instance_id, found.rack_id, found.client_id, found.client_host) == (
            "i",
            "r",
            "wire",
            "/127.0.0.1",
        )
        assert found.get("member_type", 1) == 1
        assert found.subscribed_topic_names == ["orders"]
        assert {t.topic_name for m in group.members for t in m.target_assignment.topic_partitions} == {"orders"}
        assert group.authorized_operations == (0b1101_0100_1000 if version else -(2**31))
        for describe in (5, 6):
            (classic,) = (await wire.ask(DESCRIBE, describe, groups=[name])).groups
            assert classic.group_state == "Dead"
            assert classic.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if describe >= 6 else ErrorCode.NONE)


async def test_empty_group_id_is_refused_with_the_code_of_each_api(groups_cluster: Cluster) -> None:
    """Kafka's code for an empty group id differs from API to API."""
    async with await GroupWire.to(groups_cluster, "") as wire:
        assert (await wire.beat(member_id="m")).error_code == ErrorCode.INVALID_REQUEST
        assert (await wire.join(9)).error_code == ErrorCode.INVALID_GROUP_ID
        (group,) = (await wire.ask(CONSUMER_DESCRIBE, 1, group_ids=[""])).groups
        assert group.error_code == ErrorCode.INVALID_GROUP_ID


async def test_classic_group_is_not_described_as_a_newer_one(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "older") as wire:
        await wire.become_member()
        (group,) = (await wire.ask(CONSUMER_DESCRIBE, 1, group_ids=["older"])).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_classic_member_joins_a_group_of_the_newer_protocol(groups_cluster: Cluster) -> None:
    """Online migration with the requests of an old client: it leads nothing, and gets its assignment from the coordinator."""
    async with await GroupWire.to(groups_cluster, "mixed") as wire:
        newer = str(uuid4())
        joined = await wire.beat(member_id=newer)
        named = await wire.join(5)
        assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
        classic = await wire.join(5, named.member_id)
        assert (classic.error_code, classic.leader, classic.members) == (0, "", [])
        at_once = await wire.join(3)
        assert (at_once.error_code, at_once.leader) == (0, "")
        (group,) = (await wire.ask(CONSUMER_DESCRIBE, 1, group_ids=["mixed"])).groups
        assert sorted(m.member_type for m in group.members) == [0, 0, 1]
        await wire.beat(member_id=newer, member_epoch=joined.member_epoch)
