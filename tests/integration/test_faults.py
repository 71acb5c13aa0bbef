"""Random faults under load: an acknowledged record (acks=all) stays at its offset on every replica (I7).

The faults are drawn from a seed; the interleaving is not, because the sockets are real. A failure names the seed.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataTopic
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.protocol.rpc.connection import Connection

PARTITIONS = 3
ROUNDS = 6


class Load:
    """One producer per partition that sends one record at a time with acks=all and remembers the acknowledged ones."""

    def __init__(self, cluster: WireCluster, topic: MetadataTopic) -> None:
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
        registration = self.cluster.hosted.image().partition((self.topic.topic_id, partition))
        if registration is None or registration.leader not in self.cluster.running:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
        leader = registration.leader
        connection = connections.get(leader)
        if connection is None or connection.closed:
            connection = connections[leader] = await Connection.connect("127.0.0.1", self.cluster.port(leader), client_id="load")
        batch = encode_batch([(None, value, [], 1_700_000_000_000)])
        request = ProduceRequest(None, -1, 3000, [ProducePartition(self.topic.topic_id, partition)], [])
        response = await connection.request(apis.PRODUCE, request, [[batch]], timeout_ms=4000)
        answer = response.partitions[0]  # type: ignore[attr-defined]
        if answer.error_code:
            raise BrokerError(answer.error_code)
        return int(answer.base_offset)


async def one_fault(cluster: WireCluster, random: Random) -> None:
    kind = random.choice(["process crash", "power cut", "orderly stop", "controller stops", "slow follower crashes"])
    if kind == "controller stops":
        node = random.choice(sorted(cluster.controllers))
        await cluster.stop(node)
        await asyncio.sleep(random.uniform(0, 0.2))
        await cluster.start(node)
        return
    node = random.choice(sorted(cluster.brokers))
    if kind == "slow follower crashes":
        with cluster.drop("Fetch", by=node, may_miss=True):
            await asyncio.sleep(0.05)
    await (cluster.stop(node) if kind == "orderly stop" else cluster.kill(node))
    if kind == "power cut":
        cluster.disk(node).crash(lossy=True)
    await asyncio.sleep(random.uniform(0, 0.3))
    await cluster.start(node)


@pytest.mark.parametrize("seed", [1, 2])
async def test_acknowledged_records_survive_faults_one_after_the_other(seed: int) -> None:
    """Between two moments of full ISRs there are fewer lossy crashes than min.insync.replicas, as acks=all permits."""
    random = Random(seed)
    async with WireCluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create("orders", partitions=PARTITIONS, replication_factor=3, min_insync_replicas="2")
        load = Load(cluster, topic)
        producers = [asyncio.ensure_future(load.run(p)) for p in range(PARTITIONS)]

        def isrs_are_full() -> bool:
            image = cluster.hosted.image()
            registrations = [image.partition((topic.topic_id, p)) for p in range(PARTITIONS)]
            return all(r is not None and len(r.isr) == 3 for r in registrations)

        for _ in range(ROUNDS):
            await asyncio.sleep(random.uniform(0.05, 0.2))
            async with asyncio.timeout(20):
                await one_fault(cluster, random)
            await until(isrs_are_full, "every ISR is full again", 20)
        load.stopped = True
        await asyncio.gather(*producers)
        for partition, acked in load.acked.items():
            await cluster.in_step(topic.topic_id, [1, 2, 3], partition)
            found = {r.offset: bytes(r.value or b"") for r in iter_records(cluster.log_bytes(1, topic.topic_id, partition))}
            assert acked, "the load got through"
            assert [(offset, found.get(offset)) for offset, _ in acked] == acked
