"""A broker finds its cluster: it asks the controllers, waits for names and ports to appear, and names those it could not
reach."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs
from waiting import free_port

from strandline.broker.process.cluster_id import find_cluster
from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import UsageError
from strandline.protocol.rpc import peer_handshakes
from strandline.protocol.rpc.server import Server

A, B = "A" * 22, "B" * 22


class Quorum:
    """Processes that answer handshakes as controllers do: at once, later, or never."""

    def __init__(self) -> None:
        self.servers: dict[int, Server] = {}
        self.voters: list[Voter] = []

    def expect(self, node_id: int, host: str = "127.0.0.1") -> None:
        self.voters.append(Voter(node_id, host, free_port()))

    async def start(self, node_id: int, cluster_id: str | None, *, role: str = "controller", says: int | None = None) -> None:
        (voter,) = [voter for voter in self.voters if voter.id == node_id]
        server = Server({}, role=role, node_id=says or node_id, cluster_id=cluster_id, incarnation_id=bytes(16))
        self.servers[node_id] = server
        await server.start(voter.host, voter.port)

    async def find(self, known: str | None = None, timeout_ms: int = 5000) -> str:
        return await find_cluster(1, self.voters, known, timeout_ms)


@pytest.fixture
async def quorum() -> AsyncIterator[Quorum]:
    quorum = Quorum()
    for node_id in (101, 102, 103):
        quorum.expect(node_id)
    yield quorum
    for server in quorum.servers.values():
        await server.stop()


async def test_the_id_of_any_controller_that_has_one_is_taken(quorum: Quorum) -> None:
    await quorum.start(102, None)
    await quorum.start(103, A)
    assert await quorum.find() == A


async def test_controllers_that_come_later_are_waited_for(quorum: Quorum) -> None:
    """Containers may start in any order."""
    finding = asyncio.ensure_future(quorum.find(timeout_ms=20_000))
    await asyncio.sleep(0)
    await quorum.start(101, None)
    done, _ = await asyncio.wait([finding], timeout=0.1)
    assert not done
    quorum.servers[101].cluster_id = A
    assert await finding == A


async def test_a_broker_that_knows_its_cluster_refuses_another_one(quorum: Quorum) -> None:
    await quorum.start(101, B)
    with pytest.raises(UsageError, match=f"controller 101 belongs to cluster '{B}', and this broker to another cluster, '{A}'"):
        await quorum.find(known=A)


async def test_a_broker_that_knows_its_cluster_still_looks_for_a_controller(quorum: Quorum) -> None:
    await quorum.start(101, A)
    assert await quorum.find(known=A) == A


async def test_the_error_names_each_missing_controller_and_the_reason(quorum: Quorum) -> None:
    quorum.expect(104, "nowhere.invalid")
    await quorum.start(101, None)
    await quorum.start(102, A, role="broker", says=7)
    with pytest.raises(UsageError) as e:
        await quorum.find(timeout_ms=1500)
    missed = str(e.value).removeprefix("the broker found no controller in 1.5 s: ").split("; ")
    ports = [voter.port for voter in quorum.voters]
    assert missed[0] == f"controller 101 at 127.0.0.1:{ports[0]}: it has no cluster id yet"
    assert missed[1] == f"controller 102 at 127.0.0.1:{ports[1]}: it is broker 7"
    assert missed[2] == f"could not connect to 127.0.0.1:{ports[2]}: Connection refused"
    assert missed[3].startswith(f"cannot resolve nowhere.invalid:{ports[3]}")


async def test_a_silent_controller_holds_up_no_other(quorum: Quorum) -> None:
    """This one accepts connections and never answers."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        quorum.voters.append(Voter(104, "127.0.0.1", hole.getsockname()[1]))
        await quorum.start(103, A)
        async with asyncio.timeout(peer_handshakes.ASK_TIMEOUT_MS / 1000 / 2):
            assert await quorum.find() == A


async def test_waiting_is_logged_once_a_minute(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_handshakes, "FIRST_NOTICE_MS", 20)
    monkeypatch.setattr(peer_handshakes, "RETRY_MS_MAX", 20)
    with capture_logs() as lines, pytest.raises(UsageError):
        await quorum.find(timeout_ms=400)
    (line,) = [line for line in lines if line["event"] == "peers.awaited"]
    assert line["purpose"] == "a controller"
    assert line["awaited"].count("Connection refused") == 3


async def test_asking_for_the_cluster_leaves_no_task_and_no_connection(quorum: Quorum) -> None:
    await quorum.start(101, A)
    before = asyncio.all_tasks()
    await quorum.find()
    assert asyncio.all_tasks() == before
    async with asyncio.timeout(5):
        while quorum.servers[101].connections:
            await asyncio.sleep(0.001)
