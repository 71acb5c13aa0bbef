"""A controller and two brokers with an authorizer, in this process: every connection logs in with SCRAM.

The users `node` and `admin` are super users; `alice` and `mallory` have the rights that a test gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any

from waiting import free_port, free_ports, until

from strandline.broker.config import BrokerConfig
from strandline.broker.process.server import BrokerServer
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.node_security.users_file import format_users
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import admin, data
from strandline.protocol.messages import security as s
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.protocol.security.scram import new_credential
from strandline.storage.files import RealFiles

USERS = ("node", "broker", "admin", "alice", "mallory")


def login(user: str) -> ClientSecurity:
    return ClientSecurity(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=SCRAM_256,
        sasl_plain_username=user,
        sasl_plain_password=f"{user}-secret",
    )


def grant(user: str, operation: int, kind: int, name: str) -> s.AclBinding:
    return s.AclBinding(kind, name, s.LITERAL_PATTERN, f"User:{user}", "*", operation, s.ALLOW)


class AuthorizedNodes:
    """The nodes 101 (controller), 1 and 2, each on a disk of its own in `folder`."""

    def __init__(self, folder: Path, *, brokers_are: str = "node") -> None:
        """`brokers_are`: the user that brokers are for other nodes."""
        self._folder = folder
        self._brokers_are = brokers_are
        self._controller_port = free_port()
        self.ports = dict(zip((1, 2), free_ports(2), strict=True))
        self.controller: ControllerServer
        self.brokers: dict[int, BrokerServer] = {}
        self._connections: dict[tuple[int, str], Connection] = {}

    async def __aenter__(self) -> AuthorizedNodes:
        await self.start_controller()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for connection in self._connections.values():
            connection.close()
        for broker in self.brokers.values():
            await broker.kill()
        await self.controller.stop()

    async def start_controller(self) -> None:
        self._write_secrets()
        config = self._config(101, "node", [f"CONTROLLER://127.0.0.1:{self._controller_port}"])
        self.controller = ControllerServer(ControllerConfig.from_mapping(config), real_doors(), RealFiles())
        await self.controller.start()
        await until(lambda: self.controller.controller.active is not None)

    async def start_brokers(self) -> None:
        for node_id, port in self.ports.items():
            config = self._config(node_id, self._brokers_are, [f"PLAINTEXT://127.0.0.1:{port}"])
            for topic in ("offsets.topic", "transaction.state.log"):
                config |= {f"{topic}.replication.factor": 1, f"{topic}.num.partitions": 1}
            config["transaction.state.log.min.isr"] = 1
            self.brokers[node_id] = BrokerServer(BrokerConfig.from_mapping(config), real_doors(), RealFiles())
        async with asyncio.timeout(20):
            await asyncio.gather(*(broker.start() for broker in self.brokers.values()))
            await asyncio.gather(*(broker.ready.wait() for broker in self.brokers.values()))

    def _write_secrets(self) -> None:
        users = {
            (user, SCRAM_256): new_credential(SCRAM_256, f"{user}-secret", lambda size: b"salt" * (size // 4)) for user in USERS
        }
        (self._folder / "users.toml").write_text(format_users(users))
        for user in USERS:
            (self._folder / f"{user}.password").write_text(f"{user}-secret")

    def _config(self, node_id: int, user: str, listeners: list[str]) -> dict[str, Any]:
        return {
            "node.id": node_id,
            "cluster.id": "c",
            "log.dirs": str(self._folder / str(node_id)),
            "controller.quorum.voters": f"101@127.0.0.1:{self._controller_port}",
            "listeners": listeners,
            "listener.security.protocol.map": ["CONTROLLER:SASL_PLAINTEXT", "PLAINTEXT:SASL_PLAINTEXT"],
            "sasl.enabled.mechanisms": [SCRAM_256],
            "sasl.mechanism.inter.broker.protocol": SCRAM_256,
            "sasl.mechanism.controller.protocol": SCRAM_256,
            "sasl.scram.users.file": str(self._folder / "users.toml"),
            "sasl.node.username": user,
            "sasl.node.password.file": str(self._folder / f"{user}.password"),
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": "User:node;User:admin",
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, node_id: int, user: str, api_key: int, body: Any) -> Any:
        """The response, or the error code by which the node refuses the request."""
        connection = self._connections.get((node_id, user))
        if connection is None or connection.closed:
            port = self._controller_port if node_id == 101 else self.ports[node_id]
            connection = await Connection.connect("127.0.0.1", port, client_id=user, security=login(user))
            self._connections[node_id, user] = connection
        try:
            return await connection.request(api_key, body)
        except BrokerError as e:
            return e.code

    async def allow(self, *acls: s.AclBinding, node_id: int = 1) -> None:
        response = await self.ask(node_id, "admin", apis.CREATE_ACLS, s.CreateAclsRequest(list(acls)))
        assert [result.error_code for result in response.results] == [0] * len(acls), response

    async def create(self, *names: str, user: str = "admin", replicas: int = 2, node_id: int = 1) -> list[bytes]:
        """The ids of topics with one partition."""
        topics = [admin.CreatableTopic(name, 1, replicas) for name in names]
        response = await self.ask(node_id, user, apis.CREATE_TOPICS, admin.CreateTopicsRequest(topics))
        assert not any(row.error_code for row in response.topics), response
        return [row.topic_id for row in response.topics]

    def leader_of(self, topic_id: bytes) -> int:
        return self.brokers[1].metadata.image.topics_by_id[topic_id].partitions[0].leader

    async def produce(self, user: str, topic_id: bytes) -> int:
        """The error code of a record."""
        records = memoryview(encode_batch([(None, b"x", [], 1)]))
        body = data.ProduceRequest(None, -1, 1000, [data.ProducePartition(topic_id, 0)], [records])
        response = await self.ask(self.leader_of(topic_id), user, apis.PRODUCE, body)
        return int(response if isinstance(response, ErrorCode) else response.partitions[0].error_code)
