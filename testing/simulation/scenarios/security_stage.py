"""Users in a story: their logins and their rights."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from random import Random
from typing import Any

from strandline.client import Acl
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, CONTROLLER_PORT, Client
from strandline.testing.simulation.cluster.fuzzing_client import error_codes
from strandline.testing.simulation.cluster.intruder import log_in
from strandline.testing.simulation.scenarios.stage import Stage

PATIENCE_MS = 5000


class Peer:
    """A client of a user that can send any request, over one connection to each node."""

    def __init__(self, stage: Stage, user: str) -> None:
        self.stage = stage
        self.user = user
        self.client: Client = stage.cluster.client(f"peer-{user}", user)
        self._connections: dict[int, Connection] = {}

    async def ask(self, node: int, api_key: int, body: Any, records: Any = None) -> Any:
        """Send a request and return the response. Raises BrokerError if the request is refused as a whole, or the connection is
        closed."""
        return await self.client.run(self._ask(node, api_key, body, records))

    async def _ask(self, node: int, api_key: int, body: Any, records: Any) -> Any:
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            connection = self._connections[node] = await self._connect(node, self.client.security)
        return await connection.request(api_key, body, records, timeout_ms=PATIENCE_MS)

    async def ask_at_once(self, node: int, api_key: int, body: Any) -> Any:
        """Send a request over a new connection, without a login. Must run on the client's machine."""
        connection = await self._connect(node)
        return await connection.request(api_key, body, timeout_ms=PATIENCE_MS)

    async def _connect(self, node: int, security: Any = None) -> Connection:
        cluster = self.stage.cluster
        port = BROKER_PORT if node in cluster.broker_ids else CONTROLLER_PORT
        options = {} if security is None else {"security": security}
        return await Connection.connect(cluster.host(node), port, client_id=self.user, **options)

    async def logs_in(self, node: int, user: str, password: str) -> ErrorCode:
        """Log in with raw requests, so that no later login happens automatically; on a connection with a login, log in again.
        Returns the error, or NONE."""
        code: ErrorCode = await self.client.run(self._log_in(node, user, password))
        return code

    async def _log_in(self, node: int, user: str, password: str) -> ErrorCode:
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            connection = self._connections[node] = await self._connect(node)
        try:
            await log_in(connection, user, password, Random(f"{user} {password}"))
        except BrokerError as e:
            return e.code
        return ErrorCode.NONE

    def is_connected(self, node: int) -> bool:
        connection = self._connections.get(node)
        return connection is not None and not connection.closed


async def stranger_asks(stage: Stage, node: int, api_key: int, body: Any) -> Any:
    """The response to a request over a connection without a login."""
    peer = Peer(stage, "stranger")
    return await peer.client.run(peer.ask_at_once(node, api_key, body))


async def code_of(asked: Awaitable[Any]) -> ErrorCode:
    """The error of a request: that of its first item with an error, or of the request as a whole."""
    try:
        response = await asked
    except BrokerError as e:
        return e.code
    found: Iterator[int] = error_codes(response)
    return to_code(next((code for code in found if code), 0))


async def make_user(stage: Stage, user: str, *rules: tuple[str, str, str]) -> Peer:
    """Create a user with these rights: (operation, resource type, name). Returns its client."""
    identities = stage.cluster.identities
    assert identities is not None

    async def make() -> None:
        async with stage.client.admin() as admin:
            await admin.upsert_scram_credentials(user, identities.password(user), mechanisms=[SCRAM_256])

    await stage.client.run(make())
    await change_rules(stage, create=[Acl(f"User:{user}", *rule) for rule in rules])
    return Peer(stage, user)


async def change_rules(stage: Stage, *, create: Sequence[Acl] = (), delete: Sequence[Acl] = ()) -> None:
    """Change access rules, and wait until every broker has the change."""

    async def change() -> None:
        async with stage.client.admin() as admin:
            if delete:
                await admin.delete_acls([rule.filter for rule in delete])
            if create:
                await admin.create_acls(create)

    await stage.client.run(change())
    await everyone_knows(stage)


async def everyone_knows(stage: Stage) -> None:
    """Wait until every broker has the newest metadata."""
    offset = stage.cluster.image().offset
    brokers = stage.cluster.brokers
    await stage.until(
        lambda: all(b.metadata.image.offset >= offset for b in brokers.values()), what="all brokers have applied it"
    )
