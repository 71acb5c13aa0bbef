"""A secure cluster of the kit: its users, their rights, and the kit's own checks as the administrator."""

from __future__ import annotations

import pytest

from strandline.client import Producer, StrandlineError, TopicAuthorizationFailed
from strandline.protocol.errors import UsageError
from strandline.reach import security_of
from strandline.testing import Cluster


async def use(cluster: Cluster) -> None:
    """Let the roles do their work, also after a failure, and check that the kit finds every record."""
    topic = await cluster.create_topic()
    writer, reader = cluster.security_of("producer"), cluster.security_of("consumer")
    async with cluster.producer(security=writer) as producer, cluster.consumer(topic, security=reader, group_id="g") as consumer:
        await producer.send_and_wait(topic, b"1")
        assert (await consumer.getone()).value == b"1"
        await cluster.kill(await cluster.leader_of(topic))
        await producer.send_and_wait(topic, b"2")
        assert (await consumer.getone()).value == b"2"
    await cluster.assert_no_acked_loss()
    async with cluster.consumer(topic, security=writer) as consumer:
        with pytest.raises(TopicAuthorizationFailed):
            await consumer.getone()


async def test_roles_work_and_the_kit_judges_in_one_process() -> None:
    async with Cluster(brokers=3, secure=True) as cluster:
        await use(cluster)
        address = cluster.bootstrap_servers
        with pytest.raises(StrandlineError):
            await Producer(bootstrap_servers=address, connect_timeout_ms=200).start()
    assert not security_of(address).has_sasl, "another cluster may get the ports"


@pytest.mark.processes
async def test_roles_work_and_the_kit_judges_on_processes() -> None:
    """The processes use TLS."""
    async with Cluster(brokers=3, secure=True, processes=True) as cluster:
        await use(cluster)


async def test_open_cluster_has_no_users() -> None:
    async with Cluster(brokers=1) as cluster:
        with pytest.raises(UsageError, match="secure=True"):
            cluster.security_of("admin")
