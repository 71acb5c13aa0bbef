"""A broker that is silent: its host was cut off, or its process is paused. No connection breaks, and nothing is rejected.

Every time-out that a user can set stays at its default here (30 s for a request): what passes in these tests passes
because the client looks around, not because it gave up waiting.
"""

from __future__ import annotations

import asyncio
import socket
from random import Random

import pytest
from slow_pipe import slow_pipe
from waiting import until

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.protocol.messages import data

from .scripted import ScriptedCluster

pytestmark = pytest.mark.asyncio

SOON_S = 10.0
"""A bound, far below the request time-out; what is tested takes one to four seconds."""


async def test_records_of_a_silent_leader_go_to_its_successor() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"0")
            cluster.brokers[1].fall_silent()
            receipts = [producer.send_nowait("t", b"%d" % n) for n in range(1, 20)]
            await until(lambda: bool(cluster.brokers[1].held))
            cluster.move_leader("t", 0, 2)
            async with asyncio.timeout(SOON_S):
                for receipt in receipts:
                    await receipt
            cluster.brokers[1].answer_late()
            await producer.send_and_wait("t", b"20")
            assert cluster.values("t") == [b"%d" % n for n in range(21)]


async def test_late_acknowledgement_of_the_old_leader_is_ignored() -> None:
    """The acknowledgement has an old leader epoch: only the new leader's answer about the record counts."""
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        key = (cluster.topics["t"], 0)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.brokers[1].fall_silent()
            receipt = producer.send_nowait("t", b"b")
            await until(lambda: bool(cluster.brokers[1].held))
            cluster.brokers[2].hanging = True  # The new leader does not answer yet, either.
            cluster.move_leader("t", 0, 2)
            await until(lambda: any(held.api_key == 0 for held in cluster.brokers[2].held))
            late = [request for request in cluster.brokers[1].held if request.api_key == 0]
            assert late
            for request in late:
                request.reply(data.ProduceResponse([data.ProducePartitionResponse(*key, 0, 999)]))
            async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                await admin.describe_cluster()  # Several round trips later the late answers have arrived.
            assert not receipt.done
            cluster.brokers[2].answer_late()
            async with asyncio.timeout(SOON_S):
                assert (await receipt).offset == 1


async def test_silent_connection_is_closed() -> None:
    """Without idempotence an unanswered batch must not be sent to another leader before its connection ends. If the broker does
    not answer a handshake either, the client closes the connection long before the request time-out."""
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.brokers[1].fall_silent()
            receipt = producer.send_nowait("t", b"b")
            await until(lambda: bool(cluster.brokers[1].held))
            cluster.move_leader("t", 0, 2)
            async with asyncio.timeout(SOON_S):
                await receipt
            assert cluster.values("t") == [b"a", b"b"]


async def test_slow_broker_keeps_its_connection() -> None:
    """A produce may rightly wait (for replicas, a slow disk). The broker answers handshakes meanwhile: no request is given up or
    sent twice."""
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
            await producer.send_and_wait("t", b"a")
            broker.hanging = True
            receipt = producer.send_nowait("t", b"b")
            before = broker.handshakes
            await until(lambda: broker.handshakes >= before + 2)
            assert not receipt.done
            broker.answer_late()
            async with asyncio.timeout(SOON_S):
                await receipt
            assert cluster.values("t") == [b"a", b"b"]


async def test_consumer_leaves_a_silent_leader() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        async with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer("t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            await producer.send_and_wait("t", b"a")
            assert (await consumer.getone()).value == b"a"
            cluster.brokers[1].fall_silent()
            await until(lambda: any(held.api_key == 1 for held in cluster.brokers[1].held))
            cluster.move_leader("t", 0, 2)
            await producer.send_and_wait("t", b"b")
            async with asyncio.timeout(SOON_S):
                assert (await consumer.getone()).value == b"b"
            cluster.brokers[1].answer_late()
            await producer.send_and_wait("t", b"c")
            async with asyncio.timeout(SOON_S):
                assert (await consumer.getone()).value == b"c"


@pytest.mark.parametrize("question", ["begin", "end", "time"])
async def test_silent_leader_does_not_delay_offset_lookups(question: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        place = TopicPartition("t", 0)
        async with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
        ):
            await producer.send_and_wait("t", b"a")
            cluster.brokers[1].fall_silent()
            asked = {
                "begin": lambda: consumer.beginning_offsets([place]),
                "end": lambda: consumer.end_offsets([place]),
                "time": lambda: consumer.offsets_for_times({place: 0}),
            }[question]()
            task = asyncio.ensure_future(asked)
            await until(lambda: bool(cluster.brokers[1].held))
            cluster.move_leader("t", 0, 2)
            async with asyncio.timeout(SOON_S):
                assert place in await task


async def test_change_is_not_sent_to_a_silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is sent to one broker only, because two would carry it out twice: so it is sent to one that has just responded."""
    monkeypatch.setattr("strandline.client.cluster.any_broker.FRESH_S", 0.0)
    async with ScriptedCluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for _ in cluster.brokers:
            await admin.describe_cluster()
        cluster.brokers[1].fall_silent()
        cluster.brokers[2].fall_silent()
        for name in ("t", "u", "v"):
            async with asyncio.timeout(SOON_S):
                await admin.create_topics([NewTopic(name, partitions=1, replication_factor=1)])
        assert list(cluster.topics) == ["t", "u", "v"]


async def test_silent_bootstrap_address_delays_start_briefly() -> None:
    """Its kernel accepts connections, but it never answers. The client tries the next address meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with ScriptedCluster(brokers=1) as cluster:
            cluster.create("t")
            bootstrap = f"127.0.0.1:{silent.getsockname()[1]},{cluster.bootstrap}"
            async with asyncio.timeout(SOON_S), Producer(bootstrap_servers=bootstrap) as producer:
                await producer.send_and_wait("t", b"a")


async def test_consumer_at_the_end_refreshes_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off from the cluster, but not from the client, answers each fetch, but never with new records."""
    monkeypatch.setattr("strandline.client.consumer.fetcher.LOOK_AGAIN_S", 0.3)
    async with ScriptedCluster() as cluster:
        cluster.create("t")
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            waiting = asyncio.ensure_future(consumer.getone())
            await until(lambda: bool(cluster.fetch_requests))
            before = cluster.metadata_requests
            await until(lambda: cluster.metadata_requests > before + 1)
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                await producer.send_and_wait("t", b"a")
            async with asyncio.timeout(SOON_S):
                assert (await waiting).value == b"a"


async def test_producer_on_a_slow_line_sends_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending a large batch takes longer than a broker may stay silent. A ping that is queued behind it reaches the broker only
    after it: silence proves nothing while our own bytes are still being sent."""
    monkeypatch.setattr("strandline.client.cluster.connection_state.QUIET_S", 0.1)
    monkeypatch.setattr("strandline.client.cluster.connection_state.PING_TIMEOUT_MS", 150)
    monkeypatch.setattr("strandline.client.producer.sender.STALL_S", 0.1)
    async with ScriptedCluster(brokers=1) as cluster:
        cluster.create("t")
        async with slow_pipe(cluster.brokers[1].port, bite_up=50_000) as pipe:
            cluster.advertised[1] = ("127.0.0.1", pipe.port)
            options = {"acks": 1, "max_request_size": 10_000_000, "batch_size": 5_000_000}
            async with Producer(bootstrap_servers=cluster.bootstrap, **options) as producer:
                async with asyncio.timeout(SOON_S):
                    await producer.send_and_wait("t", Random(1).randbytes(4_000_000))
            assert pipe.connections == 1
            assert len(cluster.produce_requests) == 1
            assert len(cluster.values("t")) == 1
