"""Rights in a cluster of real nodes: what only nodes may say, what a client may do, and when a rule takes effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from authorized_nodes import AuthorizedNodes, grant
from waiting import until
from wire_cluster import WireCluster

from strandline.broker.fetch.fetch_handler import FetchHandler
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode as E
from strandline.protocol.messages import admin, cluster, data, groups
from strandline.protocol.messages import security as s
from strandline.protocol.messages.common import Listener

TOPIC = s.TOPIC_RESOURCE


@pytest.fixture
async def nodes(tmp_path: Path) -> Any:
    async with AuthorizedNodes(tmp_path) as nodes:
        await nodes.start_brokers()
        yield nodes


async def test_rule_takes_effect_within_a_second(nodes: AuthorizedNodes) -> None:
    """A new rule, and then its deletion, reach the topic's leader, whichever broker got the request."""
    (topic_id,) = await nodes.create("orders")
    assert await nodes.produce("alice", topic_id) == E.UNKNOWN_TOPIC_ID
    rule = grant("alice", s.WRITE, TOPIC, "orders")
    await nodes.allow(rule)
    async with asyncio.timeout(1.0):
        while await nodes.produce("alice", topic_id):
            await asyncio.sleep(0.005)
    assert await nodes.produce("mallory", topic_id) == E.UNKNOWN_TOPIC_ID
    await nodes.ask(2, "admin", apis.DELETE_ACLS, s.DeleteAclsRequest([s.AclFilter(principal="User:alice")]))
    async with asyncio.timeout(1.0):
        while not await nodes.produce("alice", topic_id):
            await asyncio.sleep(0.005)


async def test_forged_follower_moves_no_high_watermark(nodes: AuthorizedNodes) -> None:
    """A client with every right on the topic sends a fetch as the other replica, with a high offset."""
    (topic_id,) = await nodes.create("orders")
    await nodes.allow(grant("mallory", s.ALL, TOPIC, "orders"))
    leader_id = nodes.leader_of(topic_id)
    other = nodes.brokers[3 - leader_id]
    await until(lambda: (topic_id, 0) in nodes.brokers[leader_id].replicas.partitions)
    partition = nodes.brokers[leader_id].replicas.partitions[topic_id, 0]
    epoch = other.lifecycle.broker_epoch
    forged = data.FetchRequest(
        other.config.node_id, epoch, 0, 1, 1 << 20, 0, 0, -1, [data.FetchPartition(topic_id, 0, -1, 10**6, 0, 0, 1 << 20)]
    )
    assert await nodes.ask(leader_id, "mallory", apis.FETCH, forged) == E.CLUSTER_AUTHORIZATION_FAILED
    assert partition.log.high_watermark == 0
    assert await nodes.produce("mallory", topic_id) == 0, "both replicas have it, so the real follower still works"
    assert partition.log.high_watermark == 1


async def test_client_is_no_broker_for_the_controller(nodes: AuthorizedNodes) -> None:
    """It can neither register as a broker, nor keep one alive, nor change an ISR, nor vote, nor read the metadata."""
    for user in ("alice", "mallory"):
        for key, body in {
            apis.BROKER_REGISTRATION: cluster.BrokerRegistrationRequest(3, "c", bytes(16), [Listener("PLAINTEXT", "evil", 1)]),
            apis.BROKER_HEARTBEAT: cluster.BrokerHeartbeatRequest(1, 1, 1, False, False),
            apis.ALTER_PARTITION: cluster.AlterPartitionRequest(1, 1, []),
            apis.VOTE: cluster.VoteRequest("c", 101, 99, 102, 9, 9),
            apis.FETCH: data.FetchRequest(1, 1, 0, 1, 1, 0, 0, -1, []),
            apis.ALLOCATE_PRODUCER_IDS: cluster.AllocateProducerIdsRequest(1, 1),
            apis.ENVELOPE: s.EnvelopeRequest("User:admin", "127.0.0.1", None, apis.CREATE_TOPICS, 0, b"\x90"),
        }.items():
            assert await nodes.ask(101, user, key, body) == E.CLUSTER_AUTHORIZATION_FAILED, apis.api_name(key)
    assert nodes.controller.controller.image.brokers.keys() == {1, 2}


async def test_forwarded_request_has_the_rights_of_its_client(nodes: AuthorizedNodes) -> None:
    """The broker, a super user, forwards it. Each topic is checked, and a rule for one creates one."""
    await nodes.allow(grant("alice", s.CREATE, TOPIC, "hers"))
    await until(lambda: len(nodes.controller.authorizer) == 1)  # type: ignore[arg-type]
    topics = [admin.CreatableTopic(name, 1, 1) for name in ("hers", "others")]
    response = await nodes.ask(1, "alice", apis.CREATE_TOPICS, admin.CreateTopicsRequest(topics))
    assert [(row.name, row.error_code) for row in response.topics] == [("hers", 0), ("others", E.TOPIC_AUTHORIZATION_FAILED)]
    assert nodes.controller.controller.image.topic("others") is None
    change = s.CreateAclsRequest([grant("alice", s.ALL, s.CLUSTER_RESOURCE, s.CLUSTER_NAME)])
    assert await nodes.ask(1, "alice", apis.CREATE_ACLS, change) == E.CLUSTER_AUTHORIZATION_FAILED
    removal = admin.UnregisterBrokerRequest(2)
    assert await nodes.ask(2, "alice", apis.UNREGISTER_BROKER, removal) == E.CLUSTER_AUTHORIZATION_FAILED


async def test_configuration_of_a_group_needs_rights_on_that_group(nodes: AuthorizedNodes) -> None:
    """The broker describes it, and the controller changes it for the client of the forwarded request."""
    await nodes.allow(grant("alice", s.ALTER_CONFIGS, s.GROUP_RESOURCE, "hers"))
    await until(lambda: len(nodes.controller.authorizer) == 1)  # type: ignore[arg-type]
    value = admin.AlterableConfig("consumer.session.timeout.ms", admin.CONFIG_SET, "50000")
    changes = [admin.AlterConfigsResource(admin.RESOURCE_GROUP, name, [value]) for name in ("hers", "others")]
    changed = await nodes.ask(1, "alice", apis.INCREMENTAL_ALTER_CONFIGS, admin.IncrementalAlterConfigsRequest(changes))
    assert [row.error_code for row in changed.responses] == [0, E.GROUP_AUTHORIZATION_FAILED]
    resources = [admin.DescribeConfigsResource(admin.RESOURCE_GROUP, name) for name in ("hers", "others")]
    described = await nodes.ask(1, "alice", apis.DESCRIBE_CONFIGS, admin.DescribeConfigsRequest(resources))
    assert [row.error_code for row in described.results] == [0, E.GROUP_AUTHORIZATION_FAILED]
    assert described.results[0].configs[0].value == "50000"
    assert not nodes.controller.controller.image.config(admin.RESOURCE_GROUP, "others")


async def test_hidden_topics(nodes: AuthorizedNodes) -> None:
    """The same answers for a topic that exists and for one that does not."""
    (topic_id,) = await nodes.create("secret")
    asked = [admin.MetadataTopicRequest(name) for name in ("secret", "no-such")]
    asked += [admin.MetadataTopicRequest(None, id_) for id_ in (topic_id, b"?" * 16)]
    rows = (await nodes.ask(1, "alice", apis.METADATA, admin.MetadataRequest(asked))).topics
    assert [row.error_code for row in rows] == [E.TOPIC_AUTHORIZATION_FAILED] * 2 + [E.UNKNOWN_TOPIC_ID] * 2
    assert (await nodes.ask(1, "alice", apis.METADATA, admin.MetadataRequest(None))).topics == []
    for id_ in (topic_id, b"?" * 16):
        wanted = data.FetchRequest(-1, -1, 0, 1, 1, 0, 0, -1, [data.FetchPartition(id_, 0, -1, 0, -1, -1, 1)])
        leader = nodes.leader_of(topic_id)
        assert (await nodes.ask(leader, "alice", apis.FETCH, wanted)).partitions[0].error_code == E.UNKNOWN_TOPIC_ID
        offsets = data.ListOffsetsRequest(-1, 0, [data.ListOffsetsPartition(id_, 0, -1, -1)])
        assert (await nodes.ask(leader, "alice", apis.LIST_OFFSETS, offsets)).partitions[0].error_code == E.UNKNOWN_TOPIC_ID


async def test_brokers_need_only_cluster_action(tmp_path: Path) -> None:
    """A broker's principal need not be a super user: the cluster replicates, and creates its internal topics, with one right."""
    async with AuthorizedNodes(tmp_path, brokers_are="broker") as nodes:
        await nodes.allow(grant("broker", s.CLUSTER_ACTION, s.CLUSTER_RESOURCE, s.CLUSTER_NAME), node_id=101)
        await nodes.start_brokers()
        (topic_id,) = await nodes.create("orders")
        assert await nodes.produce("admin", topic_id) == 0
        body = groups.FindCoordinatorRequest(["readers"])

        async def coordinator() -> int:
            return int((await nodes.ask(1, "admin", apis.FIND_COORDINATOR, body)).coordinators[0].error_code)

        async with asyncio.timeout(10):
            while await coordinator():
                await asyncio.sleep(0.01)


async def test_restarted_controller_loads_the_rules(tmp_path: Path) -> None:
    """Until it has loaded them, it must not refuse a permitted request with TOPIC_AUTHORIZATION_FAILED, which is not retried."""
    async with AuthorizedNodes(tmp_path) as nodes:
        await nodes.allow(grant("alice", s.CREATE, TOPIC, "hers"), node_id=101)
        await nodes.controller.stop()
        await nodes.start_controller()
        body = admin.CreateTopicsRequest([admin.CreatableTopic("hers", 1, 1)])
        response = await nodes.ask(101, "alice", apis.CREATE_TOPICS, body)
        assert response.topics[0].error_code != E.TOPIC_AUTHORIZATION_FAILED


async def test_without_an_authorizer_no_handler_is_wrapped() -> None:
    """A feature that is off costs nothing."""
    async with WireCluster() as cluster_:
        broker, controller = cluster_.server(1), cluster_.server(101)
        fetch: Any = broker.servers[0].handlers[apis.FETCH]
        assert isinstance(fetch.__self__, FetchHandler)
        assert fetch.__self__.reading is None
        assert broker.authorizer is None
        assert controller.authorizer is None
        for server in (*broker.servers, *controller.servers):
            guarded = [h for h in server.handlers.values() if getattr(h, "__module__", "").endswith("security.rights")]
            assert guarded == []
