"""The classic protocol as Kafka's clients speak it: each version of its requests, to a real coordinator."""

from __future__ import annotations

import asyncio

import pytest
from groups_world import DESCRIBE, FIND_COORDINATOR, HEARTBEAT, JOIN, LEAVE, SYNC, VERSIONS, GroupWire, subscription
from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.translations import classic_groups
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

Cluster = ThreadedCluster


@pytest.mark.parametrize("version", VERSIONS[FIND_COORDINATOR])
async def test_coordinator_is_found_at_the_listener_of_the_client(groups_cluster: Cluster, version: int) -> None:
    await GroupWire.to(groups_cluster, "g")
    async with KafkaWire.at(groups_cluster.kafka_bootstrap) as wire:
        answer = await wire.call(FIND_COORDINATOR, version, {"key": "g", "coordinator_keys": ["g"]})
    found = answer if version < 4 else answer.coordinators[0]
    assert found.error_code == 0
    assert f"{found.host}:{found.port}" in groups_cluster.kafka_bootstrap.split(",")


@pytest.mark.parametrize("version", [3, 6])
async def test_share_groups_have_no_coordinator(groups_cluster: Cluster, version: int) -> None:
    async with KafkaWire.at(groups_cluster.kafka_bootstrap) as wire:
        answer = await wire.call(FIND_COORDINATOR, version, {"key": "a", "coordinator_keys": ["a", "b"], "key_type": 2})
    rows = [answer] if version < 4 else answer.coordinators
    assert [(row.error_code, row.node_id) for row in rows] == [(ErrorCode.INVALID_REQUEST, -1)] * (1 if version < 4 else 2)


@pytest.mark.parametrize("version", VERSIONS[JOIN])
async def test_member_joins_syncs_beats_and_leaves(groups_cluster: Cluster, version: int) -> None:
    """A member joins at once below version 4. In later versions the coordinator first gives it an id (KIP-394)."""
    async with await GroupWire.to(groups_cluster, f"classic-{version}") as wire:
        joined = await wire.join(version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await wire.join(version, joined.member_id)
        assert (joined.error_code, joined.protocol_name) == (0, "range")
        assert joined.leader == joined.member_id == joined.members[0].member_id
        assert joined.get("protocol_type", "consumer") == "consumer"
        own = [{"member_id": joined.member_id, "assignment": b"mine"}]
        synced = await wire.sync(min(version, 5), joined, assignments=own)
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        assert synced.get("protocol_name", "range") == "range"
        fields = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        assert (await wire.ask(HEARTBEAT, min(version, 4), **fields)).error_code == 0
        assert (await wire.leave(joined.member_id, min(version, 5))).error_code == 0
        beat = await wire.ask(HEARTBEAT, min(version, 4), **fields)
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_leader_gets_the_subscriptions_of_all_members(groups_cluster: Cluster) -> None:
    """Their metadata are opaque bytes to the coordinator, and so are the assignments that the leader sends for the members."""
    async with await GroupWire.to(groups_cluster, "two") as one, await GroupWire.to(groups_cluster, "two") as other:
        first = await one.become_member(9)
        named = await other.join(5)
        rejoin = asyncio.create_task(one.join(9, first.member_id))
        second = await other.join(5, named.member_id, protocols=[{"name": "range", "metadata": b"other"}])
        leader = await rejoin
        assert sorted(m.metadata for m in leader.members) == [subscription("orders"), b"other"]
        assert (second.leader, second.members) == (leader.member_id, [])
        waiting = asyncio.create_task(other.sync(3, second))
        parts = [{"member_id": m.member_id, "assignment": m.member_id.encode()} for m in leader.members]
        await one.sync(5, leader, assignments=parts)
        assert (await waiting).assignment == second.member_id.encode()


@pytest.mark.parametrize(("version", "skips"), [(5, None), (9, True)])
async def test_static_leader_that_returns_does_not_assign(groups_cluster: Cluster, version: int, skips: bool | None) -> None:
    """The assignment is still valid (KIP-814). An old client does not know `skip_assignment`, so the response names another
    leader."""
    async with await GroupWire.to(groups_cluster, f"static-{version}") as wire:
        first = await wire.become_member(version, instance_id="i")
        again = await wire.join(version, instance_id="i")
        assert again.error_code == 0
        assert again.generation_id == first.generation_id
        assert again.member_id != first.member_id
        assert again.get("skip_assignment") == skips
        assert (again.leader == again.member_id) == bool(skips)
        assert bool(again.members) == bool(skips)
        fenced = await wire.sync(5, first, group_instance_id="i")
        assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
        assert (await wire.sync(3, again, group_instance_id="i")).assignment == b"all"


@pytest.mark.parametrize("version", VERSIONS[JOIN])
async def test_refused_join_names_no_protocol(groups_cluster: Cluster, version: int) -> None:
    """Old versions do not permit null there."""
    async with await GroupWire.to(groups_cluster, "refused") as wire:
        refused = await wire.join(version, session_timeout_ms=1)
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert refused.protocol_name == (None if version >= 7 else "")
    assert (refused.generation_id, refused.leader, refused.members) == (-1, "", [])


async def test_sync_must_name_the_protocol(groups_cluster: Cluster) -> None:
    """This is required from version 5 on (KIP-559)."""
    async with await GroupWire.to(groups_cluster, "sync") as wire:
        joined = await wire.become_member()
        for fields in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "sticky"}):
            answer = await wire.sync(5, joined, **fields)
            assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await wire.sync(4, joined)).error_code == 0


async def test_old_leave_has_the_error_of_its_member(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "leave") as wire:
        await wire.become_member()
        for version in VERSIONS[LEAVE]:
            left = await wire.leave("nobody", version)
            if version < 3:
                assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            else:
                assert (left.error_code, left.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)


async def test_static_member_is_removed_by_its_instance_id(groups_cluster: Cluster) -> None:
    """`kafka-consumer-groups` and operators of Kafka Streams send such requests."""
    async with await GroupWire.to(groups_cluster, "removed") as wire:
        joined = await wire.become_member(instance_id="i")
        left = await wire.ask(LEAVE, 5, members=[{"member_id": "", "group_instance_id": "i", "reason": "moved"}])
        assert [(m.group_instance_id, m.error_code) for m in left.members] == [("i", 0)]
        beat = await wire.ask(HEARTBEAT, 4, generation_id=joined.generation_id, member_id=joined.member_id)
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", VERSIONS[DESCRIBE])
async def test_group_and_one_that_does_not_exist_are_described(groups_cluster: Cluster, version: int) -> None:
    name = f"described-{version}"
    async with await GroupWire.to(groups_cluster, name) as wire:
        joined = await wire.become_member(instance_id="i")
        wanted = {"groups": [name, name], "include_authorized_operations": version >= 4}
        group, again = (await wire.ask(DESCRIBE, version, **wanted)).groups
        assert again == group
        assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
            0,
            "Stable",
            "consumer",
            "range",
        )
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "wire", "/127.0.0.1")
        assert member.get("group_instance_id", "i") == "i"
        assert member.member_assignment == b"all"
        if version >= 3:
            assert group.authorized_operations == (0b1101_0100_1000 if version >= 4 else -(2**31))
        (missing,) = (await wire.ask(DESCRIBE, version, groups=["described-not"])).groups
    if missing.error_code != ErrorCode.NOT_COORDINATOR:
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


def test_members_of_a_group_that_loads_get_no_error_that_ends_them() -> None:
    """Java's consumers treat COORDINATOR_LOAD_IN_PROGRESS as a fatal error here."""
    refused = {api.key: api.refused for api in classic_groups.APIS}
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused[HEARTBEAT](None, loading, None)["error_code"] == ErrorCode.NONE  # type: ignore[arg-type]
    assert refused[SYNC](None, loading, None)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[arg-type]


def test_join_that_is_to_be_sent_again_has_a_code_that_all_clients_know() -> None:
    """The group was converted to the newer protocol while the JoinGroup waited. Kafka's code for that ends an aiokafka
    consumer."""
    refused = {api.key: api.refused for api in classic_groups.APIS}[JOIN]
    call = Fields(version=5, fields=Fields(member_id="m"))
    answer = refused(call, ErrorCode.REBALANCE_IN_PROGRESS, None)  # type: ignore[arg-type]
    assert (answer["error_code"], answer["member_id"]) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "m")
