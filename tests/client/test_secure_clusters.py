"""Clients of a cluster with users and rights: who may connect, what a missing right fails, and what it leaves alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strandline import sync
from strandline.client import (
    Acl,
    AclFilter,
    Admin,
    AuthenticationFailed,
    ClientSecurity,
    ClusterAuthorizationFailed,
    Consumer,
    DeliveryFailed,
    DeliveryNotAuthorized,
    GroupAuthorizationFailed,
    GroupMembershipFailed,
    NoBrokersAvailable,
    Producer,
    RequestFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UsageError,
)
from strandline.client.cluster.shared_cluster import SharedCluster
from strandline.protocol.errors import ErrorCode
from strandline.testing import Cluster
from strandline.testing.kit.security import as_user

SOON_S = 4.0
"""A bound in seconds. An error for a missing right or credential is raised at once; a machine that runs other tests needs
more."""
ALICE = as_user("alice", "wonderland")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster in which "alice" may write to "orders" and read it in the group "g"; there is a topic "secret", too."""
    async with Cluster(brokers=3, secure=True, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3) as cluster:
        for topic in ("orders", "secret"):
            await cluster.create_topic(topic, partitions=2)
        async with cluster.admin() as admin:
            await admin.upsert_scram_credentials("alice", "wonderland", iterations=4096)
            rights = [("TOPIC", "orders", "WRITE"), ("TOPIC", "orders", "READ"), ("GROUP", "g", "READ")]
            await admin.create_acls([Acl("User:alice", right, kind, name) for kind, name, right in rights])
        await until_known(cluster)
        yield cluster


async def until_known(cluster: Cluster) -> None:
    """Wait until every broker has alice and her rights."""

    async def knows() -> bool:
        try:
            async with Producer(bootstrap_servers=cluster.bootstrap_servers, security=ALICE) as producer:
                await producer.send_and_wait("orders", b"first", partition=0)
            return True
        except RequestFailed:
            return False

    deadline = time.monotonic() + 10
    while not await knows():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def alice(cluster: Cluster, **options: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "security": ALICE, **options}


# -- who may connect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
async def test_wrong_password_fails_the_start_at_once(cluster: Cluster, kind: type[Any]) -> None:
    """The start does not wait for `connect_timeout_ms`, because another attempt would fail in the same way."""
    began = time.monotonic()
    for wrong in (as_user("alice", "looking-glass"), as_user("nobody", "wonderland")):
        with pytest.raises(AuthenticationFailed) as e:
            await kind(**alice(cluster, security=wrong, connect_timeout_ms=60_000)).start()
        assert (e.value.retriable, e.value.code) == (False, ErrorCode.SASL_AUTHENTICATION_FAILED)
        assert "looking-glass" not in str(e.value)
    assert time.monotonic() - began < SOON_S


async def test_mechanism_that_the_listener_lacks_fails_the_start_at_once(cluster: Cluster) -> None:
    plain = ClientSecurity(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_plain_username="alice", sasl_plain_password="wonderland"
    )
    with pytest.raises(AuthenticationFailed) as e:
        await Producer(**alice(cluster, security=plain)).start()
    assert e.value.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


async def test_client_without_security_does_not_get_in(cluster: Cluster) -> None:
    with pytest.raises(NoBrokersAvailable):
        await Producer(bootstrap_servers=cluster.bootstrap_servers, connect_timeout_ms=500).start()


async def lose_connections(client: Any) -> None:
    for state in client._cluster.connections._states.values():
        if state.connection is not None:
            state.connection._give_up(ConnectionError("lost by the test"))


async def test_running_clients_fail_when_their_credential_is_withdrawn_and_return_with_it(cluster: Cluster) -> None:
    async with (
        cluster.admin() as admin,
        Producer(**alice(cluster)) as producer,
        Consumer("orders", **alice(cluster, auto_offset_reset="earliest")) as consumer,
    ):
        await producer.send_and_wait("orders", b"1")
        await consumer.getone()
        await admin.delete_scram_credentials("alice")
        await until_refused(cluster)
        await lose_connections(producer)
        await lose_connections(consumer)
        began = time.monotonic()
        with pytest.raises(AuthenticationFailed):
            await producer.send_and_wait("orders", b"2")
        with pytest.raises(AuthenticationFailed):
            await read_on(consumer)
        assert time.monotonic() - began < SOON_S
        await admin.upsert_scram_credentials("alice", "wonderland", iterations=4096)
        await until_known(cluster)
        assert (await eventually(lambda: producer.send_and_wait("orders", b"3"))).topic == "orders"
        await eventually(lambda: consumer.getmany(timeout_ms=1000))


async def read_on(consumer: Any) -> None:
    """Read until a call fails; records that were fetched before may be returned first."""
    while True:
        await consumer.getmany(timeout_ms=60_000)


async def until_refused(cluster: Cluster) -> None:
    """Wait until no broker accepts alice."""
    for address in cluster.bootstrap_servers.split(","):
        for _ in range(500):
            try:
                async with Admin(bootstrap_servers=address, security=ALICE):
                    await asyncio.sleep(0.01)
            except AuthenticationFailed:
                break


async def eventually(call: Any) -> Any:
    deadline = time.monotonic() + 10
    while True:
        try:
            return await call()
        except AuthenticationFailed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


# -- producers --------------------------------------------------------------------------------------------------------


async def test_record_of_a_denied_topic_fails_alone(cluster: Cluster) -> None:
    async with Producer(**alice(cluster)) as producer:
        denied = producer.send_nowait("secret", b"x")
        assert (await producer.send_and_wait("orders", b"1")).topic == "orders"
        with pytest.raises(TopicAuthorizationFailed) as e:
            await denied
        assert e.value.topics == ("secret",)
        with pytest.raises(TopicAuthorizationFailed):
            await producer.send_and_wait("no-such-topic", b"x")
        assert (await producer.send_and_wait("orders", b"2")).topic == "orders"


async def test_topic_that_may_be_seen_and_not_written_fails_its_records_only(cluster: Cluster) -> None:
    """The principal may read the topic's metadata, so it is the leader that rejects the batch."""
    await allow(cluster, Acl("User:alice", "DESCRIBE", "TOPIC", "secret"))
    async with Producer(**alice(cluster)) as producer:
        denied = producer.send_nowait("secret", b"x", partition=0)
        allowed = producer.send_nowait("orders", b"1", partition=0)
        with pytest.raises(DeliveryNotAuthorized) as e:
            await denied
        assert isinstance(e.value, DeliveryFailed)
        assert isinstance(e.value, TopicAuthorizationFailed)
        assert (await allowed).topic == "orders"


async def allow(cluster: Cluster, *rules: Acl) -> None:
    """Add rules, and wait until every broker has them: an admin client asks each of them."""
    async with cluster.admin() as admin:
        await admin.create_acls(rules)
    for address in cluster.bootstrap_servers.split(","):
        async with cluster.admin(bootstrap_servers=address) as admin:
            while not set(rules) <= set(await admin.describe_acls()):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("option", ["transactional_id", "producer_name"])
async def test_name_without_a_right_fails_the_start_at_once(cluster: Cluster, option: str) -> None:
    began = time.monotonic()
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await Producer(**alice(cluster, **{option: "till"})).start()
    assert time.monotonic() - began < SOON_S


async def test_principal_that_may_write_nothing_gets_no_producer_id(cluster: Cluster) -> None:
    """As in Kafka, the required right is one on the cluster, because the request names no topic."""
    security = cluster.security_of("consumer")
    async with Producer(**alice(cluster, security=security)) as producer:
        with pytest.raises(ClusterAuthorizationFailed):
            await producer.send_and_wait("orders", b"1")


# -- consumers --------------------------------------------------------------------------------------------------------


async def test_denied_topic_is_raised_and_the_others_go_on(cluster: Cluster) -> None:
    async with Consumer("orders", "secret", **alice(cluster, auto_offset_reset="earliest")) as consumer:
        found, errors, deadline = [], [], time.monotonic() + 10
        while not (found and errors):
            assert time.monotonic() < deadline
            try:
                records = await consumer.getmany(timeout_ms=1000)
                found += [record.value for of_partition in records.values() for record in of_partition]
            except TopicAuthorizationFailed as e:
                errors.append(e)
        assert {topic for e in errors for topic in e.topics} == {"secret"}
        assert len(errors) < 10, "the program gets an error about once a second, and not in a loop"


async def test_partition_is_read_when_the_right_is_granted(cluster: Cluster) -> None:
    await allow(cluster, Acl("User:alice", "DESCRIBE", "TOPIC", "secret"))
    async with cluster.producer() as producer:
        await producer.send_and_wait("secret", b"1", partition=0)
    async with Consumer(**alice(cluster, auto_offset_reset="earliest")) as consumer:
        await consumer.assign([("secret", 0)])
        with pytest.raises(TopicAuthorizationFailed) as e:
            await consumer.getone()
        assert e.value.topics == ("secret",)
        await allow(cluster, Acl("User:alice", "READ", "TOPIC", "secret"))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                assert (await consumer.getone()).value == b"1"
                break
            except TopicAuthorizationFailed:
                continue
        else:
            pytest.fail("the partition was not read")


async def test_denied_group_is_named(cluster: Cluster) -> None:
    async with Consumer("orders", **alice(cluster, group_id="g", auto_offset_reset="earliest")) as consumer:
        assert (await consumer.getone()).value == b"first"
    async with Consumer("orders", **alice(cluster, group_id="other")) as consumer:
        with pytest.raises(GroupAuthorizationFailed, match="other") as e:
            await consumer.getone()
        assert isinstance(e.value, GroupMembershipFailed)


async def test_look_up_of_a_denied_topic_is_answered_at_once(cluster: Cluster) -> None:
    began = time.monotonic()
    async with Consumer(**alice(cluster, max_block_ms=60_000)) as consumer:
        with pytest.raises(TopicAuthorizationFailed):
            await consumer.end_offsets([("secret", 0)])
        with pytest.raises(TopicAuthorizationFailed):
            await consumer.partitions_for_topic("no-such-topic")
    assert time.monotonic() - began < SOON_S


# -- the admin client -------------------------------------------------------------------------------------------------


async def test_rules_and_users_are_for_administrators(cluster: Cluster) -> None:
    async with Admin(**alice(cluster)) as admin:
        for call in (
            admin.describe_acls(),
            admin.create_acls([Acl("User:alice", "ALL", "CLUSTER", "kafka-cluster")]),
            admin.delete_acls([AclFilter()]),
            admin.describe_scram_credentials(),
            admin.upsert_scram_credentials("eve", "password"),
        ):
            with pytest.raises(ClusterAuthorizationFailed):
                await call


async def test_mistakes_in_rules_are_found_before_anything_is_sent(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        with pytest.raises(UsageError, match="unknown operation 'FLY'"):
            await admin.create_acls([Acl("User:alice", "FLY", "TOPIC", "orders")])
        with pytest.raises(UsageError, match="a list"):
            await admin.create_acls("User:alice")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a password is a non-empty str"):
            await admin.upsert_scram_credentials("bob", "")
        with pytest.raises(UsageError, match="unknown mechanism 'MD5'"):
            await admin.upsert_scram_credentials("bob", "b", mechanisms=["MD5"])
        with pytest.raises(RequestFailed, match=r"0 of 1 rules were created|not a principal|principal"):
            await admin.create_acls([Acl("alice", "READ", "TOPIC", "orders")])


# -- other clients ----------------------------------------------------------------------------------------------------


async def test_clients_without_asyncio_connect_in_the_same_way(cluster: Cluster) -> None:
    def work() -> bytes | None:
        with sync.Producer(**alice(cluster)) as producer:
            producer.send_and_wait("orders", b"2", partition=1)
        with sync.Consumer("orders", **alice(cluster, auto_offset_reset="earliest", group_id="g")) as consumer:
            record: bytes | None = consumer.getone().value
        with sync.Admin(**alice(cluster)) as admin, pytest.raises(ClusterAuthorizationFailed):
            admin.describe_acls()
        with pytest.raises(AuthenticationFailed):
            sync.Producer(**alice(cluster, security=as_user("alice", "no"))).start()
        return record

    assert await asyncio.to_thread(work) in (b"first", b"2")


async def test_shared_connections_belong_to_one_identity(cluster: Cluster) -> None:
    """Otherwise a task could write with the rights of another one."""
    shared = SharedCluster(**alice(cluster))
    try:
        for options in ({}, {"security": ALICE}):
            async with Producer(cluster=shared, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
                await producer.send_and_wait("orders", b"1")
        with pytest.raises(UsageError, match="other security settings"):
            Producer(cluster=shared, security=cluster.security_of("producer"))
    finally:
        await shared.close()
