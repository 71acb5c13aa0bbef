"""Our clients with the least rights that their work needs, as docs/authorization.md says it.

The brokers have no right but CLUSTER_ACTION."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from authorized_nodes import AuthorizedNodes, grant, login
from waiting import until

from strandline import Consumer, Producer, TopicPartition
from strandline.client.errors import AuthorizationFailed
from strandline.protocol.messages import security as s

TOPIC, GROUP, TXN = s.TOPIC_RESOURCE, s.GROUP_RESOURCE, s.TRANSACTIONAL_ID_RESOURCE


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[AuthorizedNodes]:
    async with AuthorizedNodes(tmp_path, brokers_are="broker") as nodes:
        await nodes.allow(grant("broker", s.CLUSTER_ACTION, s.CLUSTER_RESOURCE, s.CLUSTER_NAME), node_id=101)
        await nodes.start_brokers()
        await nodes.create("orders", "paid")
        yield nodes


def options(nodes: AuthorizedNodes, user: str) -> dict[str, Any]:
    security = login(user)
    return {
        "bootstrap_servers": [f"127.0.0.1:{port}" for port in nodes.ports.values()],
        "security_protocol": security.security_protocol,
        "sasl_mechanism": security.sasl_mechanism,
        "sasl_plain_username": security.sasl_plain_username,
        "sasl_plain_password": security.sasl_plain_password,
    }


async def granted(nodes: AuthorizedNodes, *acls: s.AclBinding) -> None:
    """Give the rights, and wait until every node knows them."""
    authorizers: list[Any] = [broker.authorizer for broker in nodes.brokers.values()]
    before = len(authorizers[0])
    await nodes.allow(*acls)
    await until(lambda: all(len(each) == before + len(acls) for each in authorizers))


async def test_idempotent_producer_needs_write_on_its_topic(nodes: AuthorizedNodes) -> None:
    await granted(nodes, grant("alice", s.WRITE, TOPIC, "orders"))
    async with Producer(**options(nodes, "alice")) as producer:
        assert (await producer.send_and_wait("orders", b"1")).offset == 0


async def test_named_producer_needs_write_on_its_topic_and_its_name(nodes: AuthorizedNodes) -> None:
    """It also looks up what an earlier process has written under the name."""
    await granted(nodes, grant("alice", s.WRITE, TOPIC, "orders"), grant("alice", s.WRITE, TXN, "etl"))
    for work_epoch in (1, 2):
        async with Producer(producer_name="etl", producer_work_epoch=work_epoch, **options(nodes, "alice")) as producer:
            await producer.written([TopicPartition("orders", 0)])
            await producer.send_and_wait("orders", b"1", partition=0)


async def test_group_needs_read_on_the_group_and_the_topic(nodes: AuthorizedNodes) -> None:
    await granted(
        nodes,
        grant("alice", s.WRITE, TOPIC, "orders"),
        grant("mallory", s.READ, TOPIC, "orders"),
        grant("mallory", s.READ, GROUP, "readers"),
    )
    async with Producer(**options(nodes, "alice")) as producer:
        await producer.send_and_wait("orders", b"1")
    async with asyncio.timeout(30):
        async with Consumer("orders", group_id="readers", auto_offset_reset="earliest", **options(nodes, "mallory")) as consumer:
            record = await consumer.getone()
            assert record.value == b"1"
            await consumer.commit()
            assert await consumer.committed(TopicPartition("orders", 0)) == 1


async def test_transaction_needs_write_on_its_id(nodes: AuthorizedNodes) -> None:
    """Read, process and write: with the offsets of the group in the transaction."""
    await granted(
        nodes,
        grant("admin", s.WRITE, TOPIC, "orders"),
        grant("alice", s.READ, TOPIC, "orders"),
        grant("alice", s.WRITE, TOPIC, "paid"),
        grant("alice", s.READ, GROUP, "readers"),
        grant("alice", s.WRITE, TXN, "payments"),
    )
    async with asyncio.timeout(30):
        async with Producer(transactional_id="payments", **options(nodes, "alice")) as producer:
            for number in range(2):
                async with producer.transaction():
                    await producer.send_and_wait("paid", b"1")
                    await producer.send_offsets_to_transaction({TopicPartition("orders", 0): number + 1}, "readers")


async def test_client_says_which_right_is_missing(nodes: AuthorizedNodes) -> None:
    """An error of rights is not retried until a timeout."""
    async with asyncio.timeout(10):
        async with Producer(**options(nodes, "mallory")) as producer:
            with pytest.raises(AuthorizationFailed):
                await producer.send_and_wait("orders", b"1")
