"""Real brokers: what the load of a coordinator costs the produce requests beside it.

    python benchmarks/group_load_beside.py [--commits 1400000] [--rounds 4]

Two brokers have the one partition of `__consumer_offsets`, which 100 groups have filled with commits. Each round moves its
leadership to the other broker, which loads it, while a client sends records at a fixed pace to a topic that this broker leads.
The requests that began during the load are compared with those of the seconds before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time

from strandline.client import Admin, NewTopic, Producer
from strandline.local_cluster import LocalCluster, Node
from strandline.protocol import apis
from strandline.protocol.messages.groups import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitResponse
from strandline.protocol.rpc.connection import Connection

OFFSETS_TOPIC = "__consumer_offsets"
READ, GROUPS, PARTITIONS = "orders", 100, 10
IN_FLIGHT = 20
Sent = list[tuple[float, float]]
"""When each send began, and how long it took, in seconds."""


async def fill(cluster: LocalCluster, admin: Admin, commits: int) -> None:
    """Commit the offsets of all groups and partitions in turn: ten offsets in each request."""
    await admin.alter_group_offsets("group-0", {(READ, 0): 0})
    (read,) = await admin.describe_topics([READ])
    leader = cluster.broker(await leader_of(admin, OFFSETS_TOPIC))
    connection = await Connection.connect("127.0.0.1", leader.port, client_id="bench")
    room = asyncio.Semaphore(IN_FLIGHT)

    async def commit(number: int) -> None:
        items = [OffsetCommitPartition(read.topic_id, partition, number) for partition in range(PARTITIONS)]
        request = OffsetCommitRequest(f"group-{number % GROUPS}", -1, "", None, items)
        response = await connection.request(apis.OFFSET_COMMIT, request)
        assert isinstance(response, OffsetCommitResponse)
        assert not any(partition.error_code for partition in response.partitions)
        room.release()

    async with asyncio.TaskGroup() as tasks:
        for number in range(commits // PARTITIONS):
            await room.acquire()
            tasks.create_task(commit(number))
    connection.close()


async def leader_of(admin: Admin, topic: str) -> int:
    (described,) = await admin.describe_topics([topic])
    return described.partitions[0].leader_id


async def produce(producer: Producer, topic: str, rate: float, until: asyncio.Future[object]) -> Sent:
    """Send one record after the other; a late one does not delay the next."""
    sent: Sent = []

    async def send() -> None:
        began = time.perf_counter()
        await producer.send_and_wait(topic, b"x" * 100, partition=0)
        sent.append((began, time.perf_counter() - began))

    loop, number = asyncio.get_running_loop(), 0
    start = loop.time()
    async with asyncio.TaskGroup() as tasks:
        while not until.done():
            tasks.create_task(send())
            number += 1
            await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
    return sent


def loads(broker: Node) -> list[dict[str, float]]:
    """The loads with records that a broker has logged."""
    return [json.loads(line) for line in broker.log_file.read_text().splitlines() if "groups.loaded" in line]


async def move(admin: Admin, broker: Node) -> tuple[float, float]:
    """Make the broker the coordinator; returns when the load began at the earliest, and the seconds that it took."""
    before, began = len(loads(broker)), time.perf_counter()
    await admin.alter_partition_reassignments({(OFFSETS_TOPIC, 0): [broker.id, 3 - broker.id]})
    (elected,) = await admin.elect_leaders([(OFFSETS_TOPIC, 0)])
    assert elected.code == 0, elected
    while len(found := loads(broker)) == before:
        await asyncio.sleep(0.02)
    return began, found[-1]["took_ms"] / 1000


def percentile(sent: Sent, percent: int) -> float:
    times = sorted(took for _, took in sent)
    return 1000 * times[len(times) * percent // 100]


async def round_(cluster: LocalCluster, admin: Admin, producer: Producer, args: argparse.Namespace) -> None:
    target = cluster.broker(3 - await leader_of(admin, OFFSETS_TOPIC))
    topic = f"loaded-{target.id}"
    without = await produce(producer, topic, args.rate, asyncio.create_task(asyncio.sleep(args.seconds)))
    moving = asyncio.create_task(move(admin, target))
    sent = await produce(producer, topic, args.rate, moving)
    began, took_s = moving.result()
    beside = [each for each in sent if each[0] < began + took_s]
    figures: dict[str, float] = {"load, s": took_s, "requests beside it": len(beside)}
    for percent in (50, 99):
        figures[f"p{percent} without, ms"] = percentile(without, percent)
        figures[f"p{percent} beside, ms"] = percentile(beside, percent)
    print(json.dumps({name: round(figure, 2) for name, figure in figures.items()}), flush=True)


async def measure(args: argparse.Namespace) -> None:
    settings = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 2, "auto.leader.rebalance.enable": "false"}
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as folder:
        async with (
            LocalCluster(folder, brokers=2, controllers=1, settings=settings) as cluster,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=0) as producer,
        ):
            await admin.create_topics([NewTopic(READ, PARTITIONS, 1)])
            await admin.create_topics([NewTopic(f"loaded-{id}", replica_assignments={0: [id, 3 - id]}) for id in (1, 2)])
            await fill(cluster, admin, args.commits)
            for _ in range(args.rounds):
                await round_(cluster, admin, producer, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_400_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rate", type=float, default=300, help="records per second that the client sends")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement without a load")
    args = parser.parse_args()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(args))


if __name__ == "__main__":
    main()
