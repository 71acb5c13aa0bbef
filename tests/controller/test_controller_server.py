"""A real controller server, with its quorum and its listener; the brokers are connections."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from controller_servers import ConnectedBroker, ControllerServers, config_of, server_of
from waiting import free_port, until

from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.node_keys import CONTROLLER_KEYS
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.connection import Connection


def _has_topic(server: ControllerServer) -> bool:
    return server.controller.image.topic("t") is not None


@pytest.fixture
async def single(tmp_path: Path) -> AsyncIterator[ControllerServer]:
    server = server_of(config_of(tmp_path, 101, {101: free_port()}, **{"broker.connection.loss.grace.ms": 30}))
    await server.start()
    await asyncio.wait_for(server.ready.wait(), 10)
    yield server
    await server.stop()


async def test_a_single_controller_serves_brokers_and_topics(single: ControllerServer) -> None:
    broker = ConnectedBroker(1)
    await broker.start(single.port)
    topic = CreatableTopic("t", 3, 1)
    (result,) = (await broker.call(apis.CREATE_TOPICS, CreateTopicsRequest([topic]))).topics
    assert result.error_code == 0
    described: DescribeClusterResponse = await broker.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert [(b.broker_id, b.is_fenced, b.broker_epoch) for b in described.brokers] == [(1, False, broker.epoch)]
    versions = await broker.call(apis.API_VERSIONS, ApiVersionsRequest())
    assert (versions.role, versions.node_id, versions.incarnation_id) == ("controller", 101, single.incarnation_id)
    assert {v.api_key for v in versions.api_keys} == {k for k, api in apis.APIS.items() if "controller" in api.served_by}
    await broker.die()


async def test_a_killed_brokers_leaders_move_long_before_its_session_ends(single: ControllerServer) -> None:
    first, second = ConnectedBroker(1), ConnectedBroker(2)
    await first.start(single.port)
    await second.start(single.port)
    await second.call(apis.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("t", 4, 2)]))
    started = asyncio.get_running_loop().time()
    await first.die()
    await until(lambda: single.controller.committed.brokers[1].fenced)
    topic = single.controller.committed.topic("t")
    assert topic is not None
    assert {(p.leader, p.isr) for p in topic.partitions.values()} == {(2, (2,))}
    assert asyncio.get_running_loop().time() - started < 1.5
    again = ConnectedBroker(1, incarnation=2)
    await again.start(single.port)
    assert again.epoch > first.epoch
    await again.die()
    await second.die()


async def test_a_death_before_the_first_heartbeat_does_not_block_the_successor(single: ControllerServer) -> None:
    """The registration tied the connection to the broker, so the session ends with the connection."""
    first, second = ConnectedBroker(1), ConnectedBroker(1, incarnation=2)
    await first.start(single.port, beat=False)
    active = single.controller.active
    assert active is not None
    assert active.sessions.get(1, first.epoch) is not None
    await first.die()
    await until(lambda: active.sessions.get(1, first.epoch) is None)
    await second.start(single.port)
    await second.die()


async def test_a_broker_whose_connection_only_broke_stays(single: ControllerServer) -> None:
    """The probe of its port answers with the registered incarnation."""
    broker = ConnectedBroker(1)
    await broker.start(single.port)
    broker.connection.close()
    opened = single.opened
    assert opened is not None
    await until(lambda: 1 not in opened.liveness._connections)
    await until(lambda: not opened.liveness._tasks)
    assert not single.controller.image.brokers[1].fenced
    await broker.server.stop()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """The metadata returns by a replay of the log, and then from a snapshot."""
    config = config_of(tmp_path, 101, {101: free_port()})
    images = []
    for round_ in range(3):
        server = server_of(config)
        await server.start()
        await asyncio.wait_for(server.ready.wait(), 10)
        if round_ == 0:
            broker = ConnectedBroker(1)
            await broker.start(server.port)
            await broker.call(apis.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("t", 3, 1)]))
            await broker.die()
        if round_ == 1:
            await server.quorum.take_snapshot()
        await until(functools.partial(_has_topic, server))
        images.append(server.controller.image)
        await server.stop()
    first, *others = images
    assert first.brokers[1].broker_epoch >= 0
    for other in others:
        assert (other.brokers.keys(), other.topics_by_id) == (first.brokers.keys(), first.topics_by_id)


async def test_three_controllers_agree_and_the_next_one_goes_on(tmp_path: Path) -> None:
    controllers = ControllerServers(tmp_path)
    servers = controllers.servers
    for node_id in controllers.ports:
        await controllers.start(node_id)
    for server in servers.values():
        await asyncio.wait_for(server.ready.wait(), 15)
    await until(lambda: controllers.active is not None)
    await until(lambda: all(server.quorum.has_vote for server in servers.values()))
    first = controllers.active
    assert first is not None
    standby = next(s for s in servers.values() if s is not first)
    broker = ConnectedBroker(1)
    connection = await Connection.connect("127.0.0.1", standby.port, client_id="broker-1")
    with pytest.raises(BrokerError, match=f"node {first.config.node_id} is") as caught:
        await connection.request(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert caught.value.code == ErrorCode.NOT_CONTROLLER
    connection.close()
    await broker.start(first.port)
    await broker.call(apis.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    await controllers.stop(first.config.node_id)
    await until(lambda: controllers.active is not None)
    second = controllers.active
    assert second is not None
    assert second.controller.image.topic("t") is not None
    broker.connection.close()
    broker.connection = await Connection.connect("127.0.0.1", second.port, client_id="broker-1")
    assert not (await broker.beat()).is_fenced
    await broker.call(apis.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("u", 2, 1)]))
    await until(lambda: all(s.controller.committed.topic("u") is not None for s in servers.values()))
    await broker.die()
    await controllers.stop()


async def test_an_occupied_port_or_directory_is_one_sentence(single: ControllerServer, tmp_path: Path) -> None:
    ports = {102: single.port}
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{single.port}: Address already in use"):
        await server_of(config_of(tmp_path, 102, ports)).start()
    with pytest.raises(UsageError, match="in use"):
        await server_of(config_of(tmp_path, 101, {101: free_port()})).start()
    assert not (tmp_path / "102" / "meta.properties").exists(), "a start that failed for its port has formatted nothing"
    server = server_of(config_of(tmp_path, 102, {102: free_port()}))
    await server.start()
    await server.stop()
    with pytest.raises(UsageError, match="belongs to cluster c; this node is configured for other"):
        await server_of(config_of(tmp_path, 102, {102: free_port()}, **{"cluster.id": "other"})).start()


async def test_a_fatal_error_of_the_quorum_reaches_the_process(single: ControllerServer) -> None:
    """The owner of the node ends the process with this error; until then the node rejects requests."""
    assert single.failure is not None
    single._on_fatal(RuntimeError("disk on fire"))
    assert "disk on fire" in str(single.failure.result())
    assert single.controller.active is None


# -- configuration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"node.id": 9}, "is not one of controller.quorum.voters"),
        ({"cluster.id": ""}, "must not be empty"),
        ({"log.dirs": "a,b"}, "one directory"),
        ({"controller.quorum.voters": "nonsense"}, "id@host:port"),
        ({"controller.quorum.voters": "1@h:99999"}, "id@host:port"),
        ({"controller.quorum.voters": "101@h:1,101@h:2,103@h:3"}, "twice"),
        ({"controller.quorum.voters": "101@h:1,102@h:2"}, "1, 3 or 5"),
        ({"controller.quorum.voters": "101@h:1,102@h:0,103@h:1"}, "needs a port"),
        ({"controller.quorum.voters": ""}, "at least one"),
        ({"listeners": "CONTROLLER://h:2"}, "is not the port of node 101"),
        ({"listeners": "h:1"}, "NAME://host:port"),
        ({"listeners": "CONTROLLER://h:1,kafka://h:2"}, "KAFKA is a listener for Kafka's clients, and only brokers have one"),
        ({"listeners": "A://h:1,A://h:2"}, "two listeners of the same name"),
        ({"listeners": "SSL://h:1"}, "ssl.keystore.location is missing"),
        ({"broker.session.timeout": 5}, "did you mean 'broker.session.timeout.ms'"),
        ({"broker.session.timeout.ms": "0"}, "at least 1"),
    ],
    ids=str,
)
def test_a_wrong_configuration_is_refused_with_one_sentence(wrong: dict[str, Any], words: str) -> None:
    right = {"node.id": 101, "cluster.id": "c", "log.dirs": "d", "controller.quorum.voters": "101@h:1"}
    with pytest.raises(UsageError, match=words):
        ControllerConfig.from_mapping({**right, **wrong})


def test_a_configuration_has_every_key_with_its_default() -> None:
    right = {"node.id": "101", "cluster.id": "c", "log.dirs": "d", "controller.quorum.voters": "101@[::1]:1"}
    config = ControllerConfig.from_mapping(right)
    assert (config.node_id, config.listeners) == (101, (Listener("CONTROLLER", "::1", 1),))
    assert (config.broker_session_timeout_ms, config.broker_connection_loss_grace_ms) == (3000, 100)
    assert set(config.values) == {key.name for key in CONTROLLER_KEYS}
    given = {**right, "listeners": "CTRL://0.0.0.0:1", "controller.quorum.fetch.timeout.ms": 100}
    config = ControllerConfig.from_mapping(given)
    assert config.listeners == (Listener("CTRL", "0.0.0.0", 1),)
    assert (config.raft.fetch_timeout_ms, config.raft.fetch_wait_ms_max) == (100, 50)


def test_a_fetch_is_not_parked_until_its_request_times_out() -> None:
    """Otherwise every fetch of an idle quorum would fail, and the followers would look for another leader twice a second."""
    given = {"node.id": 101, "log.dirs": "d", "controller.quorum.voters": "101@h:1", "controller.quorum.request.timeout.ms": 500}
    config = ControllerConfig.from_mapping(given)
    assert config.raft.fetch_wait_ms_max == 250
