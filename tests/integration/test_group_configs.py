"""The configuration of a group in a cluster of real nodes: it acts at once, and outlives its coordinator and restarts."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until
from wire_cluster import WireCluster
from wire_groups import GROUP, SETTINGS, Groups

from strandline.client.errors import RequestFailed
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatResponse, DeleteGroupsRequest

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
OWN = {SESSION: 50_000, HEARTBEAT: 12_000}
SHORT = {"group_consumer_min_session_timeout_ms": 100, "group_consumer_min_heartbeat_interval_ms": 10}


def told(answer: ConsumerGroupHeartbeatResponse) -> tuple[int, int]:
    return answer.session_timeout_ms, answer.heartbeat_interval_ms


async def heard(groups: Groups, joined: ConsumerGroupHeartbeatResponse, expected: tuple[int, int]) -> None:
    """Wait until the coordinator has read a change that another broker has answered."""
    async with asyncio.timeout(10):
        while told(await groups.heartbeat("m1", joined.member_epoch)) != expected:
            await asyncio.sleep(0.005)


async def test_a_groups_values_survive_its_coordinator_and_a_restart_of_all_nodes() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups = Groups(cluster)
        await cluster.create("orders", replication_factor=3)
        async with cluster.admin() as admin:
            await admin.alter_configs("group", GROUP, OWN)
            joined = await groups.join("m1", "orders")
            await heard(groups, joined, (50_000, 12_000))
            before = await groups.coordinator()
            await cluster.kill(before)
            await until(lambda: before not in cluster.running, "the coordinator is dead")
            assert told(await groups.heartbeat("m1", joined.member_epoch)) == (50_000, 12_000)
        await cluster.start(before)
        await cluster.restart(*cluster.controllers, *cluster.brokers)
        async with cluster.admin() as admin:
            assert told(await groups.heartbeat("m1", joined.member_epoch)) == (50_000, 12_000)
            await admin.alter_configs("group", GROUP, dict.fromkeys(OWN))

            await heard(groups, joined, (9000, 3000))


async def test_a_silent_member_is_removed_after_the_groups_session() -> None:
    """The brokers' session is far longer."""
    async with WireCluster(brokers=1, **SETTINGS, **SHORT, group_consumer_session_timeout_ms=60_000) as cluster:
        groups = Groups(cluster)
        await cluster.create("orders")
        async with cluster.admin() as admin:
            await admin.alter_configs("group", GROUP, {SESSION: 200, HEARTBEAT: 50})
        joined = await groups.join("m1", "orders")
        assert told(joined)[0] == 200

        async with asyncio.timeout(10):
            while (await groups.ask(apis.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest([GROUP]))).groups[0].members:
                await asyncio.sleep(0.01)
        await groups.ask(apis.DELETE_GROUPS, DeleteGroupsRequest([GROUP]))
        async with cluster.admin() as admin:
            values = {entry.name: entry.value for entry in await admin.describe_configs("group", GROUP)}
        assert values[SESSION] == "200", "the configuration of a deleted group stays, as in Kafka"


async def test_the_admin_client_describes_and_changes_groups() -> None:
    async with WireCluster(brokers=1, group_consumer_heartbeat_interval_ms=4000) as cluster, cluster.admin() as admin:
        assert await admin.alter_configs("group", GROUP, {SESSION: 50_000}, validate_only=True) == []
        assert {entry.source for entry in await admin.describe_configs("group", GROUP)} == {"static", "default"}
        await admin.alter_configs("group", GROUP, {SESSION: 50_000})
        session, heartbeat = await admin.describe_configs("group", GROUP, [SESSION, HEARTBEAT])
        assert (session.value, session.source, session.update) == ("50000", "group", "group")
        assert [(s.name, s.value, s.source) for s in session.synonyms] == [
            (SESSION, "50000", "group"),
            (f"group.{SESSION}", "9000", "default"),
        ]
        assert (heartbeat.value, heartbeat.source) == ("4000", "static")
        with pytest.raises(RequestFailed) as refused:
            await admin.alter_configs("group", GROUP, {SESSION: 1})
        assert (refused.value.code, refused.value.topic) == (ErrorCode.INVALID_CONFIG, None)
        assert "group.consumer.min.session.timeout.ms" in str(refused.value)
