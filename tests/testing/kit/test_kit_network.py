"""A cut link delivers and refuses nothing, a dropped message breaks its connection, and a delayed message arrives late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

import pytest

from strandline.client import ClientError, Consumer, Producer, RequestTimeout
from strandline.protocol.errors import UsageError
from strandline.testing import Cluster, caught_up, controller, fenced, hits, hw, isr, leader, leaderless, log_end
from strandline.testing.kit.network import CLIENT, Network

NEVER_S = 0.3
"""Long enough to conclude that nothing arrives: a hundred times as long as an arrival takes."""


async def test_a_follower_behind_a_cut_link_leaves_the_isr(cluster: Cluster) -> None:
    """The leader receives no fetch from it; the controllers receive its heartbeats, and do not fence it."""
    topic = await cluster.create_topic()
    first = await cluster.leader_of(topic)
    follower, other = await cluster.followers_of(topic)
    cluster.partition([first], [follower])
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    assert (await cluster.describe(topic)).isr == {first, other}
    assert not (await cluster.nodes.look()).fenced()
    cluster.heal()
    await cluster.until(caught_up(topic))


async def test_majority_replaces_a_leader_that_is_cut_off(cluster: Cluster) -> None:
    """The old leader cannot acknowledge records with acks=all that it appends after the cut."""
    topic = await cluster.create_topic()
    first = await cluster.leader_of(topic)
    others = [broker for broker in cluster.brokers if broker != first]
    cluster.partition([first], [*others, *cluster.controllers])
    await cluster.until((leader(topic) != first) & fenced(first))
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    cluster.heal()
    await cluster.until(caught_up(topic) & ~fenced(first))
    await cluster.assert_no_acked_loss()
    await cluster.assert_logs_identical(topic)


async def test_an_isolated_broker_is_fenced_and_clients_still_reach_it(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    cluster.isolate(1)
    await cluster.until(fenced(1) & (leader(topic) != 1))
    address = cluster.bootstrap_servers.split(",")[0]
    async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        assert consumer.health()["brokers_connected"] == 1
    cluster.heal()
    await cluster.until(~fenced(1) & caught_up(topic))


async def test_clients_do_not_reach_a_broker_that_is_isolated_from_them_too(cluster: Cluster) -> None:
    """The kernel accepts their connections, which lead nowhere."""
    cluster.isolate(1, clients=True)
    address = cluster.bootstrap_servers.split(",")[0]
    with pytest.raises(ClientError):
        async with Producer(bootstrap_servers=address, request_timeout_ms=200, max_block_ms=int(NEVER_S * 1000)):
            pass
    cluster.heal()
    async with Producer(bootstrap_servers=address):
        pass


async def test_response_does_not_reach_a_client_that_is_cut_off(cluster: Cluster) -> None:
    """The broker sends it, because it does not know of the cut. It arrives when the cut ends."""
    topic = await cluster.create_topic(replicas=[[1]], min_insync_replicas=1)
    async with cluster.producer(request_timeout_ms=20_000) as producer:
        await producer.send_and_wait(topic, b"1")
        cluster.slow_disk(1, 50)
        sending = asyncio.ensure_future(producer.send_and_wait(topic, b"2"))
        await cluster.until(log_end(topic, 0, 1) == 2)
        cluster.isolate(1, clients=True)
        _, waiting = await asyncio.wait([sending], timeout=NEVER_S)
        assert waiting
        cluster.heal()
        assert (await sending).offset == 1


async def test_broker_without_controllers_is_fenced_but_fetches(cluster: Cluster) -> None:
    """Its heartbeats do not reach the controllers. The leader has removed it from the ISR by then, and still serves its
    fetches."""
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    cluster.isolate_controller(3)
    await cluster.until(fenced(3) & (isr(topic) == {1, 2}))
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    await cluster.until(hw(topic) == 1)
    cluster.heal()
    await cluster.until(caught_up(topic))


@pytest.mark.strandline(controllers=3)
async def test_an_active_controller_that_is_cut_off_is_replaced(cluster: Cluster) -> None:
    first = await cluster.active_controller()
    cluster.isolate(first)
    await cluster.until(controller().is_in(set(cluster.controllers) - {first}))
    cluster.heal()
    await cluster.create_topic()


async def test_partition_has_no_leader_without_its_isr(cluster: Cluster) -> None:
    """Only leaderless() holds then: a comparison of leader() does not hold while the partition has no leader."""
    topic = await cluster.create_topic(replicas=[[1]])
    await cluster.kill(1)
    await cluster.until(leaderless(topic))
    with pytest.raises(AssertionError, match="is unknown"):
        await cluster.until(leader(topic) != 1, within_s=0.05)


async def test_bytes_sent_over_a_cut_link_arrive_after_heal(cluster: Cluster) -> None:
    """The connection survives the cut, because TCP retransmits unacknowledged bytes."""
    topic = await cluster.create_topic(replicas=[[1]], min_insync_replicas=1)
    async with cluster.producer(request_timeout_ms=20_000) as producer:
        await producer.send_and_wait(topic, b"1")
        cluster.isolate(1, clients=True)
        sending = asyncio.ensure_future(producer.send_and_wait(topic, b"2"))
        _, waiting = await asyncio.wait([sending], timeout=NEVER_S)
        assert waiting
        assert (await cluster.describe(topic)).log_ends == {1: 1}
        cluster.heal()
        assert (await sending).offset == 1


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_retry_after_a_lost_response_writes_the_record_once(cluster: Cluster) -> None:
    """The producer cannot know whether the record was written. It is idempotent, so it may send the record again."""
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
        with cluster.drop("Produce", where="response", times=1) as rule:
            assert (await producer.send_and_wait(topic, b"2")).offset == 1
        assert rule.hits == 1
    assert [record.value for record in await cluster.read_all(topic)] == [b"1", b"2"]


async def test_without_idempotence_a_lost_answer_makes_a_duplicate(cluster: Cluster) -> None:
    """The duplicate shows that only the response was lost, not the request."""
    topic = await cluster.create_topic()
    async with cluster.producer(enable_idempotence=False) as producer:
        with cluster.drop("Produce", where="response", times=1):
            await producer.send_and_wait(topic, b"1")
    assert [record.value for record in await cluster.read_all(topic)] == [b"1", b"1"]
    assert (await cluster.verdict()).good


async def test_a_lost_request_was_never_carried_out(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer(enable_idempotence=False) as producer:
        with cluster.drop("Produce", where="request", times=1) as rule:
            await producer.send_and_wait(topic, b"1")
        assert rule.hits == 1
    assert [record.value for record in await cluster.read_all(topic)] == [b"1"]


async def test_a_test_can_wait_until_a_rule_has_met_a_message(cluster: Cluster) -> None:
    """A test that kills the leader as soon as a follower has the batch may kill it before the late answer exists."""
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        with cluster.delay("Produce", ms=60_000) as late:
            sent = producer.send_many(topic, [b"1"])
            await cluster.until(hits(late) == 1)
            assert (await cluster.describe(topic, 0)).high_watermark == 1, "acks=all was answered before every replica had it"
            assert not sent.done
        with pytest.raises(AssertionError, match=r"hits\(drop Produce response, p=1\) == 1"):
            await cluster.until(hits(cluster.drop("Produce", times=1)) == 1, within_s=0.05)


async def test_silently_lost_message_lets_its_sender_wait(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer(delivery_timeout_ms=20_000, request_timeout_ms=300) as producer:
        await producer.send_and_wait(topic, b"1")
        connections = producer.health()["brokers_connected"]
        with cluster.drop("Produce", silently=True, times=1) as rule:
            assert (await producer.send_and_wait(topic, b"2")).offset == 1
        assert rule.hits == 1
    assert connections > 0


async def test_rule_applies_to_its_api_receiver_and_sender(cluster: Cluster) -> None:
    """Only the fetches of broker 2 from broker 1 are lost: the other partition and consumers are not affected."""
    topic = await cluster.create_topic(partitions=2, replicas=[[1, 2], [2, 3]], min_insync_replicas=1)
    with cluster.drop("Fetch", at=1, by=2) as rule:
        async with cluster.producer() as producer:
            await producer.send_and_wait(topic, b"a", partition=1)
            await producer.send_and_wait(topic, b"b", partition=0)
        assert rule.hits > 0
        assert (await cluster.describe(topic, 0)).isr == {1}
        assert (await cluster.describe(topic, 1)).isr == {2, 3}
        assert {record.value for record in await cluster.read_all(topic)} == {b"a", b"b"}
    await cluster.until(caught_up(topic, 0))


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_two_connections_may_begin_at_one_port(order: tuple[int, int]) -> None:
    """Operating systems permit that if the remote ports differ. When one connection ends, the other must still belong to its
    node."""
    network = Network(Random(0))
    wires = {node: FakeWire(node, local_port=40_000, remote_port=9000 + node) for node in (2, 3)}
    for node in order:
        network.add(wires[node])  # type: ignore[arg-type]
    assert [network.dialler(40_000, 9002), network.dialler(40_000, 9003)] == [2, 3]
    network.remove(wires[2])  # type: ignore[arg-type]
    assert [network.dialler(40_000, 9002), network.dialler(40_000, 9003)] == [CLIENT, 3]


@dataclass(eq=False)
class FakeWire:
    node: int
    local_port: int
    remote_port: int
    is_dialled = True


async def test_records_arrive_once_with_half_of_the_responses_lost() -> None:
    async with Cluster(seed=7) as cluster:
        topic = await cluster.create_topic()
        with cluster.drop("Produce", p=0.5) as rule:
            async with cluster.producer(linger_ms=0, reconnect_backoff_ms=1, retry_backoff_ms=1) as producer:
                for number in range(20):
                    await producer.send_and_wait(topic, b"%d" % number)
        assert rule.hits > 0
        verdict = await cluster.verdict()
        assert verdict.good, str(verdict)
        assert verdict.acknowledged == 20


@pytest.mark.parametrize("where", ["request", "response"])
async def test_a_late_message_is_late_and_whole(cluster: Cluster, where: str) -> None:
    topic = await cluster.create_topic()
    value = bytes(300_000)
    async with cluster.producer(linger_ms=0) as producer:
        await producer.send_and_wait(topic, b"1")
        now = asyncio.get_running_loop().time
        with cluster.delay("Produce", ms=150, where=where, by="clients"):  # type: ignore[arg-type]
            began = now()
            await producer.send_and_wait(topic, value)
            assert now() - began >= 0.15
        began = now()
        await producer.send_and_wait(topic, b"3")
        assert now() - began < 0.15
    assert [len(record.value) for record in await cluster.read_all(topic)] == [1, 300_000, 1]


async def test_heal_ends_every_fault_of_the_network(cluster: Cluster) -> None:
    cluster.partition([1], [2], [3])
    cluster.isolate_controller(2)
    cluster.drop("Produce")
    cluster.delay(ms=1000)
    assert len(cluster.faults) == 6
    cluster.heal()
    assert cluster.faults == []
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")


async def test_misuse_is_said_in_a_sentence(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"at least two groups"):
        cluster.partition([1])
    with pytest.raises(UsageError, match="there is no node 9"):
        cluster.isolate(9)
    with pytest.raises(UsageError, match="there is no API 'Produse'; there are Produce, "):
        cluster.drop("Produse")
    with pytest.raises(UsageError, match='"request" or "response"'):
        cluster.drop("Produce", where="nowhere")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a probability"):
        cluster.drop("Produce", p=20)
    with pytest.raises(UsageError, match="there is no broker 101"):
        cluster.isolate_controller(101)


async def test_request_without_response_waits_for_its_timeout(cluster: Cluster) -> None:
    """An admin call that is silently dropped ends at its own time limit, not at the cluster's."""
    with cluster.drop("CreateTopics", silently=True):
        async with cluster.admin() as admin:
            with pytest.raises(RequestTimeout):
                await admin.create_topics(["never"], timeout_ms=200)
