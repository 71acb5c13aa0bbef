"""Random faults under load: what was acknowledged by all stays, at its offset, on every replica (I7).

The faults come from a seed, the interleaving does not: the sockets are real. A failure names the seed.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from cluster import Cluster, wait_until

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataTopic
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.protocol.rpc.connection import Connection
from strandline.storage.files import MemoryFiles

PARTITIONS = 3
ROUNDS = 6


class Load:
    """One producer per partition, acks=all, one record at a time; remembers what was acknowledged."""

    def __init__(self, cluster: Cluster, topic: MetadataTopic) -> None:
        self.cluster, self.topic = cluster, topic
        self.acked: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(PARTITIONS)}
        self.stopped = False

    async def run(self, partition: int) -> None:
        number, connections = 0, {}
        while not self.stopped:
            value = f"{partition}:{number}".encode()
            try:
                offset = await self._send(partition, value, connections)
            except BrokerError:
                await asyncio.sleep(0.003)
                continue
            self.acked[partition].append((offset, value))
            number += 1
        for connection in connections.values():
            connection.close()

    async def _send(self, partition: int, value: bytes, connections: dict[int, Connection]) -> int:
        brokers = self.cluster.brokers
        images = [broker.metadata.image for broker in brokers.values()]
        newest = max(images, key=lambda image: image.offset)
        registration = newest.partition((self.topic.topic_id, partition))
        if registration is None or registration.leader not in brokers:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
        leader = registration.leader
        connection = connections.get(leader)
        if connection is None or connection.closed:
            connection = connections[leader] = await Connection.connect("127.0.0.1", self.cluster.ports[leader], client_id="load")
        batch = encode_batch([(None, value, [], 1_700_000_000_000)])
        request = ProduceRequest(None, -1, 3000, [ProducePartition(self.topic.topic_id, partition)], [])
        response = await connection.request(apis.PRODUCE, request, [[batch]], timeout_ms=4000)
        answer = response.partitions[0]  # type: ignore[attr-defined]
        if answer.error_code:
            raise BrokerError(answer.error_code)
        return int(answer.base_offset)


async def one_fault(cluster: Cluster, random: Random) -> None:
    kind = random.choice(["process crash", "power cut", "orderly stop", "controller stops", "slow follower crashes"])
    if kind == "controller stops":
        node = random.choice(sorted(cluster.controllers))
        await cluster.stop(node)
        await asyncio.sleep(random.uniform(0, 0.2))
        await cluster.start(node)
        return
    node = random.choice(sorted(cluster.brokers))
    if kind == "slow follower crashes":
        broker = cluster.brokers[node]
        for key in list(broker.replicas.partitions):
            broker.fetchers.remove(key)
        await asyncio.sleep(0.05)
    await (cluster.stop(node) if kind == "orderly stop" else cluster.kill(node))
    if kind == "power cut":
        files = cluster.files[node]
        assert isinstance(files, MemoryFiles)
        files.crash(lossy=True)
    await asyncio.sleep(random.uniform(0, 0.3))
    await cluster.start(node)
    await cluster.ready()


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_acknowledged_is_lost_or_moved_whatever_fails_one_after_the_other(seed: int) -> None:
    """Fewer than min.insync.replicas lossy crashes between two full ISRs: the fault model of acks=all."""
    random = Random(seed)
    async with Cluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", partitions=PARTITIONS, replication=3, min_insync_replicas="2")
        load = Load(cluster, topic)
        producers = [asyncio.ensure_future(load.run(p)) for p in range(PARTITIONS)]

        def isrs_are_full() -> bool:
            image = next(iter(cluster.brokers.values())).metadata.image
            registrations = [image.partition((topic.topic_id, p)) for p in range(PARTITIONS)]
            return all(r is not None and len(r.isr) == 3 for r in registrations)

        for _ in range(ROUNDS):
            await asyncio.sleep(random.uniform(0.05, 0.2))
            async with asyncio.timeout(20):
                await one_fault(cluster, random)
            await wait_until(isrs_are_full, 20, "every ISR is full again")
        load.stopped = True
        await asyncio.gather(*producers)
        for partition, acked in load.acked.items():
            await cluster.in_step(topic.topic_id, [1, 2, 3], partition)
            found = {r.offset: bytes(r.value or b"") for r in iter_records(cluster.log_bytes(1, topic.topic_id, partition))}
            assert acked, "the load got through"
            assert [(offset, found.get(offset)) for offset, _ in acked] == acked
