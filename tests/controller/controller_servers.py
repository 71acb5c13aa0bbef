"""Real controllers in this process, each with its quorum, its listener and its folder, and a broker that is a connection to one.

servers = ControllerServers(tmp_path)       three controllers, which the test starts and stops one by one
broker = ConnectedBroker(1)                 registers, sends heartbeats, and dies when the test says so
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from waiting import free_port, until

from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.features import SUPPORTED
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.doors import Doors
from strandline.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerRegistrationRequest
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Server
from strandline.storage.checkpoints import META_PROPERTIES, MetaProperties
from strandline.storage.files import RealFiles


class ControllerServers:
    """The controllers 101, 102, ...; each keeps its folder and its port over a restart. The test starts and stops them."""

    def __init__(self, folder: Path, voters: int = 3, **settings: Any) -> None:
        """`settings`: configuration of all of them. They have the cluster id "c" unless `settings` says otherwise."""
        self.folder = folder
        self.settings = settings
        self.ports = {101 + i: free_port() for i in range(voters)}
        self.servers: dict[int, ControllerServer] = {}
        self.starts: dict[int, asyncio.Task[None]] = {}

    def start(self, node_id: int, **more: Any) -> asyncio.Task[None]:
        """Start the server and return the task: without a cluster id, the start ends only when the voters agree on one."""
        config = config_of(self.folder, node_id, self.ports, **{**self.settings, **more})
        server = self.servers[node_id] = server_of(config)
        self.starts[node_id] = asyncio.get_running_loop().create_task(server.start())
        return self.starts[node_id]

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.servers):
            start, server = self.starts.pop(node_id), self.servers.pop(node_id)
            if start.done() and not start.exception():
                await server.stop()
            else:
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)

    async def decided(self) -> str:
        """Wait until all servers have started; returns their cluster id."""
        async with asyncio.timeout(20):
            await asyncio.gather(*self.starts.values())
        (cluster_id,) = {server.cluster_id for server in self.servers.values()}
        assert cluster_id is not None
        assert {self.meta(node_id).cluster_id for node_id in self.servers} == {cluster_id}
        return cluster_id

    async def led(self) -> None:
        """Wait until a controller leads the quorum and all have a vote."""
        await until(lambda: any(server.quorum.is_leader for server in self.servers.values()))
        await until(lambda: all(server.quorum.has_vote for server in self.servers.values()))

    def meta(self, node_id: int) -> MetaProperties:
        file = self.folder / str(node_id) / META_PROPERTIES
        return MetaProperties.decode(file.read_bytes(), str(file))

    def is_formatted(self, node_id: int) -> bool:
        return (self.folder / str(node_id) / META_PROPERTIES).exists()

    async def listens(self, node_id: int) -> None:
        await until(lambda: self.servers[node_id].listening)

    @property
    def active(self) -> ControllerServer | None:
        return next((server for server in self.servers.values() if server.controller.active is not None), None)

    def wipe(self, node_id: int) -> None:
        """Take the controller's disk away, by renaming its folder."""
        (self.folder / str(node_id)).rename(self.folder / f"lost-{node_id}")


def config_of(folder: Path, node_id: int, ports: dict[int, int], **more: Any) -> ControllerConfig:
    mapping = {
        "node.id": node_id,
        "cluster.id": "c",
        "log.dirs": str(folder / str(node_id)),
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in ports.items()),
        **more,
    }
    return ControllerConfig.from_mapping(mapping)


def server_of(config: ControllerConfig) -> ControllerServer:
    doors = Doors(wall_clock_ms=lambda: 1_700_000_000_000, random=Random(config.node_id))
    return ControllerServer(config, doors, RealFiles())


class ConnectedBroker:
    """A broker as the controller sees it: a listener that answers the handshake, and a connection with heartbeats."""

    def __init__(self, broker_id: int, incarnation: int = 1) -> None:
        self.broker_id = broker_id
        self.incarnation_id = bytes([incarnation]) * 16
        self.server = Server({}, role="broker", node_id=broker_id, cluster_id="c", incarnation_id=self.incarnation_id)
        self.connection: Connection
        self.epoch = -1

    async def start(self, port: int, *, beat: bool = True) -> None:
        own_port = await self.server.start("127.0.0.1", 0)
        self.connection = await Connection.connect("127.0.0.1", port, client_id=f"broker-{self.broker_id}")
        listener = Listener("PLAINTEXT", "127.0.0.1", own_port)
        features = list(SUPPORTED.features)
        body = BrokerRegistrationRequest(self.broker_id, "c", self.incarnation_id, [listener], features=features)
        self.epoch = (await self.call(apis.BROKER_REGISTRATION, body)).broker_epoch
        if beat:
            assert not (await self.beat()).is_fenced

    async def call(self, api_key: int, body: Any) -> Any:
        return await self.connection.request(api_key, body, timeout_ms=10_000)

    async def beat(self) -> Any:
        body = BrokerHeartbeatRequest(self.broker_id, self.epoch, 10**9, want_fence=False, want_shut_down=False)
        return await self.call(apis.BROKER_HEARTBEAT, body)

    async def die(self) -> None:
        """Stop like a killed process, whose listening port the kernel closes first."""
        await self.server.stop()
        self.connection.close()
