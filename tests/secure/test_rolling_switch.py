"""An open cluster becomes a closed one while clients write: node by node, without a lost record or a pause.

    1  every node gets a second listener: brokers SASL_SSL, controllers TLS with certificates at both ends
    2  nodes talk to each other over it: inter.broker.listener.name, controller.listener.names, controller.quorum.voters
    3  the clients move: they log in with a user
    4  every node drops its plaintext listener, and asks for rights

In each step one node restarts after the other, the controllers first, and the next one when the cluster is whole again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.local_cluster import LocalCluster, Node, free_port_range
from strandline.local_security import LocalSecurity
from strandline.protocol.security.client_security import ClientSecurity

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="function")]
TOPIC = "orders"
INTERVAL_S = 0.005
GAP_S_MAX = 1.0
"""The longest time between two acknowledgements (the issue's bound)."""


class Plan:
    """The configuration of each node, step by step."""

    def __init__(self, cluster: LocalCluster, security: LocalSecurity) -> None:
        self.cluster, self.security = cluster, security
        base = free_port_range(len(cluster.nodes))
        self.secure_port = {name: base + number for number, name in enumerate(cluster.nodes)}
        self.nodes = list(cluster.nodes)

    def voters(self, port: Callable[[Node], int]) -> str:
        return ",".join(f"{node.id}@127.0.0.1:{port(node)}" for node in self.cluster.controllers)

    def config(self, node: Node, step: int) -> dict[str, Any]:
        """The keys that change in this step."""
        plain, secure = ("PLAINTEXT", "SASL_SSL") if node.role == "broker" else ("CONTROLLER", "SECURE")
        keys = self.security.config(node.name, node.role, "", self.nodes)
        listeners = [f"{plain}://127.0.0.1:{node.port}", f"{secure}://127.0.0.1:{self.secure_port[node.name]}"]
        if step < 4:
            del keys["authorizer.class.name"]
        else:
            listeners = listeners[1:]
        old, new = self.voters(lambda node: node.port), self.voters(lambda node: self.secure_port[node.name])
        keys |= {
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT,SECURE:SSL",
            "controller.quorum.voters": old if step < 2 else new,
        }
        if node.role == "broker":
            keys["inter.broker.listener.name"] = plain if step < 2 else secure
            keys["controller.listener.names"] = "CONTROLLER" if step < 2 else "SECURE"
        return keys

    def write(self, node: Node, step: int) -> None:
        config = self.cluster._config(node) | self.config(node, step)
        node.config_file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))

    async def roll(self, step: int) -> None:
        for node in [*self.cluster.controllers, *self.cluster.brokers]:
            self.write(node, step)
            self.cluster.terminate(node.name)
            await self.cluster.wait_ended(node.name)
            if step >= 4 and node.role == "broker":
                node.port = self.secure_port[node.name]
            await self.cluster.start_node(node.name)
            if step >= 4 and node is self.cluster.brokers[0]:
                self.cluster.security = self.security
            await whole(self.cluster, self.security.security_of("admin") if step >= 2 else None, self)


async def whole(cluster: LocalCluster, security: ClientSecurity | None, plan: Plan) -> None:
    """Every broker is unfenced, and every replica is in its ISR."""
    ports = [plan.secure_port[b.name] if security else b.port for b in cluster.brokers]
    options: dict[str, Any] = {"bootstrap_servers": [f"127.0.0.1:{port}" for port in ports]}
    if security:
        options["security"] = security
    async with asyncio.timeout(60), Admin(**options) as admin:
        while True:
            described = await admin.describe_cluster()
            (topic,) = await admin.describe_topics([TOPIC])
            voters = await admin.describe_quorum()
            up = sum(not broker.is_fenced for broker in described.brokers)
            fetched = [voter.log_end_offset for voter in voters.voters]
            if (
                up == len(cluster.brokers)
                and all(set(p.isr) == set(p.replicas) for p in topic.partitions)
                and min(fetched) >= voters.high_watermark - 5
            ):
                return
            await asyncio.sleep(0.05)


class Load:
    """One idempotent producer that sends numbered records until it is stopped."""

    def __init__(self, prefix: str, **options: Any) -> None:
        self.prefix = prefix
        self.acknowledged: list[bytes] = []
        self.acknowledged_at: list[float] = []
        self._options = options
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop, number, pending = asyncio.get_running_loop(), 0, set[asyncio.Task[None]]()
        async with Producer(acks="all", linger_ms=0, **self._options) as producer:
            while not self._stop.is_set():
                value = f"{self.prefix}-{number}".encode()
                receipt = await producer.send(TOPIC, value, partition=number % 3)
                pending.add(asyncio.create_task(self._note(loop, value, receipt)))
                number += 1
                await asyncio.sleep(INTERVAL_S)
            await asyncio.gather(*pending)

    async def _note(self, loop: asyncio.AbstractEventLoop, value: bytes, receipt: Any) -> None:
        await receipt
        self.acknowledged.append(value)
        self.acknowledged_at.append(loop.time())

    async def stop(self) -> None:
        self._stop.set()
        await self._task

    @property
    def gap_s(self) -> float:
        """The longest time without an acknowledgement."""
        return max(after - before for before, after in zip(self.acknowledged_at, self.acknowledged_at[1:], strict=False))


async def read_all(count: int, **options: Any) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(60), Consumer(TOPIC, auto_offset_reset="earliest", group_id="judge", **options) as consumer:
        async for record in consumer:
            values.append(record.value)
            if len(values) >= count:
                break
    return values


async def test_an_open_cluster_is_closed_under_load(tmp_path: Any) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    await cluster.start()
    try:
        security = LocalSecurity(tmp_path / "security")
        security.write(list(cluster.nodes))
        plan = Plan(cluster, security)
        plain = {"bootstrap_servers": cluster.bootstrap}
        async with Admin(**plain) as admin:
            await admin.create_topics([NewTopic(TOPIC, partitions=3, replication_factor=3)])
        before = Load("before", **plain)
        await plan.roll(1)
        await plan.roll(2)
        closed: dict[str, Any] = {
            "bootstrap_servers": [f"127.0.0.1:{plan.secure_port[broker.name]}" for broker in cluster.brokers],
            "security": security.security_of("admin"),
        }
        after = Load("after", **closed)
        await before.stop()
        await plan.roll(4)
        await after.stop()
        print(f"longest gaps: {before.gap_s:.3f} s and {after.gap_s:.3f} s")
        acknowledged = before.acknowledged + after.acknowledged
        assert min(len(before.acknowledged), len(after.acknowledged)) > 1000
        assert sorted(await read_all(len(acknowledged), **closed)) == sorted(acknowledged)
        assert max(before.gap_s, after.gap_s) < GAP_S_MAX
    finally:
        await cluster.stop(abruptly=True)
