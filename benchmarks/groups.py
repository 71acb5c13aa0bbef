"""Large and many consumer groups, on real brokers.

    python benchmarks/groups.py large [--members 1000] [--partitions 1000] [--plain]
    python benchmarks/groups.py rolling [--groups 50]

`large`: the members of one group are raw connections that send heartbeats, from a few client processes, at the brokers' interval.
Like Strandline's consumer, a member lets its heartbeats wait at the coordinator; with --plain it only asks once per interval, as
Kafka's clients do. A member acknowledges a new assignment at once. Printed are the time from the last join until each member has
its share, the CPU of each broker at rest, and the time from a clean leave until another member has the partition.

`rolling`: three brokers are stopped in order (SIGTERM) and started again, one after the other, while the consumer of each group
commits ten times per second. A group is without a coordinator for the longest time between two acknowledged commits.

Prints JSON objects, one a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from itertools import pairwise
from typing import Any

from partitions import cpu_s

from strandline.broker.coordination.partitioning import partition_of
from strandline.client import Admin, Consumer, NewTopic, TopicPartition
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.local_cluster import LocalCluster, Node
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)
from strandline.protocol.rpc.connection import Connection

GROUP, TOPIC = "readers", "orders"
WAIT_MS = 60_000
JOINS_AT_ONCE = 20
PATIENCE_S = 120.0
COMMIT_S = 0.1
SETTLE_S = 5.0


def say(**figures: Any) -> None:
    print(
        json.dumps({name: round(figure, 3) if isinstance(figure, float) else figure for name, figure in figures.items()}),
        flush=True,
    )


# -- the members of a large group, in a client process ------------------------------------------------------------------


class Member:
    """One member: a connection, and what the coordinator has assigned."""

    def __init__(self, port: int, *, waits: bool) -> None:
        self.port, self.wait_ms = port, WAIT_MS if waits else 0
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: list[GroupTopicPartitions] = []
        self.heartbeats = 0
        self.changed_at = 0.0

    @property
    def count(self) -> int:
        return sum(len(topic.partitions) for topic in self.owned)

    async def join(self) -> None:
        self.connection = await Connection.connect("127.0.0.1", self.port, client_id="bench")
        self.next = await self._beat(
            subscribed_topic_names=[TOPIC], topic_partitions=[], rebalance_timeout_ms=60_000, returns_at_once=True
        )

    async def _beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        fields.setdefault("returns_at_once", True)
        request = ConsumerGroupHeartbeatRequest(GROUP, self.id, self.epoch, **fields)
        response = await self.connection.request(apis.CONSUMER_GROUP_HEARTBEAT, request, timeout_ms=WAIT_MS)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if response.error_code:
            raise BrokerError(response.error_code, response.error_message)
        self.heartbeats += 1
        self.epoch = response.member_epoch
        return response

    async def live(self) -> None:
        response = self.next
        while True:
            if response.assignment is not None:
                self.owned, self.changed_at = response.assignment, time.monotonic()
                response = await self._beat(topic_partitions=self.owned)
                continue
            if not (response.next_at_once and self.wait_ms):
                await asyncio.sleep(response.heartbeat_interval_ms / 1000)
            response = await self._beat(max_wait_ms=self.wait_ms)

    async def leave(self) -> None:
        self.epoch = -1
        await self._beat()


class Members:
    """The members of one client process, which obeys the lines of its standard input."""

    def __init__(self, port: int, count: int, *, waits: bool) -> None:
        self.members = [Member(port, waits=waits) for _ in range(count)]
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self) -> dict[str, Any]:
        room = asyncio.Semaphore(JOINS_AT_ONCE)

        async def begin(member: Member) -> None:
            async with room:
                await member.join()
            self.tasks.append(asyncio.create_task(member.live()))

        await asyncio.gather(*map(begin, self.members))
        return {"at": time.monotonic()}

    async def state(self) -> dict[str, Any]:
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        return {
            "counts": [member.count for member in self.members],
            "at": max(member.changed_at for member in self.members),
            "heartbeats": sum(member.heartbeats for member in self.members),
        }

    async def leave(self) -> dict[str, Any]:
        """The first member leaves."""
        self.tasks[0].cancel()
        member = self.members[0]
        await asyncio.wait([self.tasks[0]])
        self.members = self.members[1:]
        at = time.monotonic()
        await member.leave()
        return {"at": at}


async def serve(args: argparse.Namespace) -> None:
    members = Members(args.port, args.members, waits=not args.plain)
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        say(**await getattr(members, command)())


class Client:
    """A client process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, port: int, members: int, *, plain: bool) -> Client:
        arguments = ["serve", "--port", str(port), "--members", str(members), *(["--plain"] if plain else [])]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdin=pipe, stdout=pipe))

    async def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command.encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self.process.stdout.readline() or "null")
        return answer


# -- one large group ----------------------------------------------------------------------------------------------------


async def settled(clients: list[Client], members: int, partitions: int) -> tuple[float, int]:
    """Wait until each partition has an owner, and the members' shares differ by one at most. Returns when the last change was."""
    share = partitions // members
    deadline = time.monotonic() + PATIENCE_S
    while True:
        states = await asyncio.gather(*(client.ask("state") for client in clients))
        counts = [count for state in states for count in state["counts"]]
        if sum(counts) == partitions and len(counts) == members and set(counts) <= {share, share + 1}:
            return max(state["at"] for state in states), sum(state["heartbeats"] for state in states)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sum(counts)} partitions are assigned, the shares are {sorted(set(counts))}")
        await asyncio.sleep(0.1)


async def coordinator_of(cluster: LocalCluster, admin: Admin) -> Node:
    (topic,) = await admin.describe_topics([OFFSETS_TOPIC])
    return cluster.broker(topic.partitions[partition_of(GROUP, len(topic.partitions))].leader_id)


async def large(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as folder:
        async with (
            LocalCluster(folder, brokers=args.brokers, controllers=1, settings=replicated(args.brokers)) as cluster,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
        ):
            await admin.create_topics([NewTopic(TOPIC, args.partitions, 1)], timeout_ms=60_000)
            await admin.alter_group_offsets(GROUP, {(TOPIC, 0): 0})
            coordinator = await coordinator_of(cluster, admin)
            each = args.members // args.clients
            clients = [await Client.start(coordinator.port, each, plain=args.plain) for _ in range(args.clients)]
            members = each * args.clients
            await asyncio.gather(*(client.ask("state") for client in clients))  # they have started
            say(members=members, partitions=args.partitions, brokers=args.brokers, coordinator_pid=coordinator.pid)
            began, spent = time.monotonic(), cpu_s(coordinator)
            joined = max(answer["at"] for answer in await asyncio.gather(*(client.ask("join") for client in clients)))
            at, _ = await settled(clients, members, args.partitions)
            await asyncio.sleep(SETTLE_S)  # joins that were decided last may change the target once more
            at, before = await settled(clients, members, args.partitions)
            say(joins_s=joined - began, assigned_s_after_last_join=at - joined, coordinator_cpu_s=cpu_s(coordinator) - spent)
            cpu = {node.name: cpu_s(node) for node in cluster.brokers}
            await asyncio.sleep(args.rest)
            shares = {node.name: round(100 * (cpu_s(node) - cpu[node.name]) / args.rest, 2) for node in cluster.brokers}
            _, after = await settled(clients, members, args.partitions)
            say(coordinator=coordinator.name, cpu_percent_at_rest=shares, heartbeats_per_s=(after - before) / args.rest)
            spent = cpu_s(coordinator)
            left = (await clients[0].ask("leave"))["at"]
            at, _ = await settled(clients, members - 1, args.partitions)
            say(reassigned_s_after_leave=at - left, coordinator_cpu_s=cpu_s(coordinator) - spent)
            for client in clients:
                client.process.kill()
                await client.process.wait()


def replicated(brokers: int) -> dict[str, Any]:
    return {"offsets.topic.replication.factor": brokers} if brokers < 3 else {}


# -- many groups, and a rolling restart ---------------------------------------------------------------------------------


class Committer:
    """The consumer of one group, which commits a higher offset again and again."""

    def __init__(self, bootstrap: str, group: str, partition: int) -> None:
        self.group, self.tp = group, TopicPartition(TOPIC, partition)
        self.consumer = Consumer(
            TOPIC, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, heartbeat_thread=False
        )
        self.acked_at: list[float] = []
        self.acked = 0
        self.failed: dict[str, int] = {}

    async def run(self) -> None:
        async with self.consumer:
            while not self.consumer.assignment():
                await self.consumer.getmany(timeout_ms=100)
            while True:
                try:
                    await self.consumer.commit({self.tp: self.acked + 1})
                except Exception as e:
                    name = type(e).__name__
                    self.failed[name] = self.failed.get(name, 0) + 1
                else:
                    self.acked += 1
                    self.acked_at.append(time.monotonic())
                await self.consumer.getmany(timeout_ms=0)
                await asyncio.sleep(COMMIT_S)

    def gap_s(self, since: float) -> float:
        times = [since, *(at for at in self.acked_at if at >= since)]
        return max((b - a for a, b in pairwise(times)), default=float("inf"))


async def rolling(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as folder:
        async with (
            LocalCluster(folder) as cluster,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
        ):
            await admin.create_topics([NewTopic(TOPIC, 12, 3)])
            committers = [Committer(cluster.bootstrap, f"group-{n}", n % 12) for n in range(args.groups)]
            tasks = [asyncio.create_task(committer.run()) for committer in committers]
            while any(committer.acked < 10 for committer in committers):
                await asyncio.sleep(0.1)
            for node in cluster.brokers:
                await restart(cluster, node.name, committers)
            acked = [committer.acked for committer in committers]
            found = [await admin.list_group_offsets(committer.group) for committer in committers]
            kept = sum(offsets[c.tp].offset >= n for c, n, offsets in zip(committers, acked, found, strict=True))
            described = await admin.describe_groups([committer.group for committer in committers])
            say(
                groups=len(described),
                groups_with_their_member=sum(group.state == "Stable" and len(group.members) == 1 for group in described.values()),
                groups_whose_commits_are_kept=kept,
                commits=sum(acked),
                commits_failed=sum(sum(committer.failed.values()) for committer in committers),
                partitions_lost=sum(c.consumer.metrics()["group"]["partitions_lost"] for c in committers),
            )
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def restart(cluster: LocalCluster, name: str, committers: list[Committer]) -> None:
    began = time.monotonic()
    cluster.terminate(name)
    await cluster.wait_ended(name)
    ended = time.monotonic()
    await cluster.start_node(name)
    await cluster.wait_ready()
    ready = time.monotonic()
    await asyncio.sleep(SETTLE_S + 10)  # leaders return to the broker, and with them the groups
    gaps = sorted(committer.gap_s(began) for committer in committers)
    say(
        restarted=name,
        stop_s=ended - began,
        ready_s=ready - ended,
        median_gap_s=gaps[len(gaps) // 2],
        longest_gap_s=gaps[-1],
        groups_with_gap_over_half_second=sum(gap > 0.5 for gap in gaps),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["large", "rolling", "serve"])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=2, help="processes that the members run in")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rest", type=float, default=30, help="seconds of the measurement at rest")
    parser.add_argument("--plain", action="store_true", help="heartbeats do not wait at the coordinator")
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--port", type=int, default=0, help="of the coordinator, for `serve`: a client process")
    args = parser.parse_args()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"large": large, "rolling": rolling, "serve": serve}[args.what](args))


if __name__ == "__main__":
    main()
