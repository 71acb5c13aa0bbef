"""Controllers without a configured cluster id agree on one: never on two, and always on one if all stay up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from controller_servers import ControllerServers
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from waiting import until

from strandline.controller.cluster_id import Agreement
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import ApiVersionsRequest, DescribeClusterRequest
from strandline.protocol.messages.cluster import VoteRequest
from strandline.protocol.rpc import peer_handshakes
from strandline.protocol.rpc.connection import Connection

A, B = "A" * 22, "B" * 22

# -- the decision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "answers", "outcome"),
    [
        (101, {}, "waits"),
        (101, {102: None}, "waits"),
        (101, {102: None, 103: None}, "makes"),
        (102, {101: None, 103: None}, "waits"),
        (103, {101: None, 102: None}, "waits"),
        (101, {102: A}, A),
        (101, {102: None, 103: A}, A),
        (102, {103: A}, A),
        (103, {101: A, 102: A}, A),
    ],
    ids=[
        "nobody has answered",
        "103 may have one",
        "nobody has one",
        "102 is not the lowest",
        "103 is not the lowest",
        "the lowest lost its volume, and adopts",
        "one that has it is enough",
        "from whoever has it",
        "all others have it",
    ],
)
def test_the_lowest_voter_creates_an_id_and_the_others_adopt_it(
    node_id: int, answers: dict[int, str | None], outcome: str
) -> None:
    agreement = Agreement(node_id, [101, 102, 103])
    for voter_id, cluster_id in answers.items():
        agreement.on_answer(voter_id, cluster_id)
    made = "makes" if agreement.may_create else "waits"
    assert (agreement.adopted[0] if agreement.adopted else made) == outcome
    assert agreement.is_decided is (outcome != "waits")


def test_a_single_controller_makes_its_id_at_once() -> None:
    assert Agreement(101, [101]).may_create


def test_the_last_answer_of_a_voter_counts() -> None:
    agreement = Agreement(101, [101, 102, 103])
    agreement.on_answer(102, None)
    agreement.on_answer(102, A)
    agreement.on_answer(103, None)
    assert not agreement.may_create
    assert agreement.adopted == (A, 102)


def test_two_cluster_ids_among_the_voters_are_reported() -> None:
    agreement = Agreement(101, [101, 102, 103])
    agreement.on_answer(102, A)
    with pytest.raises(UsageError, match=f"controller 102 to {A}, controller 103 to {B}"):
        agreement.on_answer(103, B)


def test_an_answer_of_no_voter_is_ignored() -> None:
    agreement = Agreement(101, [101, 102])
    agreement.on_answer(7, A)
    agreement.on_answer(101, A)
    assert not agreement.is_decided


class AgreementModel:
    """Voters as disks and processes. Requests and answers are separate events, and are lost with the process that asked."""

    def __init__(self, voters: int, kind: type[Agreement] = Agreement) -> None:
        self.kind = kind
        self.voter_ids = list(range(1, voters + 1))
        self.disks: dict[int, str | None] = dict.fromkeys(self.voter_ids)
        self.processes: dict[int, Agreement] = {}
        self.travelling: list[tuple[Agreement, int, str | None]] = []
        """Answers in flight: the asking voter, the asked voter, and its id when it was asked."""
        self.names = itertools.count()

    def start(self, voter_id: int) -> None:
        if self.disks[voter_id] is None and voter_id not in self.processes:
            self.processes[voter_id] = self.kind(voter_id, self.voter_ids)

    def crash(self, voter_id: int) -> None:
        self.processes.pop(voter_id, None)

    def is_up(self, voter_id: int) -> bool:
        return voter_id in self.processes or self.disks[voter_id] is not None

    def ask(self, asker_id: int, voter_id: int) -> None:
        asker = self.processes.get(asker_id)
        if asker is not None and asker_id != voter_id and self.is_up(voter_id):
            self.travelling.append((asker, voter_id, self.disks[voter_id]))

    def arrive(self, index: int) -> None:
        if self.travelling:
            asker, voter_id, cluster_id = self.travelling.pop(index % len(self.travelling))
            asker.on_answer(voter_id, cluster_id)

    def decide(self, voter_id: int, *, reaches_the_disk: bool = True) -> None:
        agreement = self.processes.get(voter_id)
        if agreement is None or not agreement.is_decided:
            return
        cluster_id = agreement.adopted[0] if agreement.adopted else f"id-{next(self.names)}"
        self.crash(voter_id)  # it dies before the write to the disk, or has an id already
        if reaches_the_disk:
            self.disks[voter_id] = cluster_id

    @property
    def ids(self) -> set[str]:
        return {cluster_id for cluster_id in self.disks.values() if cluster_id is not None}

    def act(self, action: str, first: int, second: int) -> None:
        one = self.voter_ids[first % len(self.voter_ids)]
        other = self.voter_ids[second % len(self.voter_ids)]
        {
            "start": lambda: self.start(one),
            "crash": lambda: self.crash(one),
            "ask": lambda: self.ask(one, other),
            "arrive": lambda: self.arrive(first),
            "lose": lambda: self.travelling and self.travelling.pop(first % len(self.travelling)),
            "decide": lambda: self.decide(one),
            "die before the disk": lambda: self.decide(one, reaches_the_disk=False),
        }[action]()


ACTIONS = st.sampled_from(
    ["start", "start", "crash", "ask", "ask", "ask", "arrive", "arrive", "lose", "decide", "die before the disk"]
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 3, 5]), st.lists(st.tuples(ACTIONS, st.integers(0, 20), st.integers(0, 4)), max_size=80))
def test_there_is_never_a_second_cluster_id(voters: int, steps: list[tuple[str, int, int]]) -> None:
    """This holds for any order of starts, crashes and answers. When all voters stay up, each of them gets the id."""
    model = AgreementModel(voters)
    for step in steps:
        model.act(*step)
        assert len(model.ids) <= 1
    for _ in range(3):
        for voter_id in model.voter_ids:
            model.start(voter_id)
            for other in model.voter_ids:
                model.ask(voter_id, other)
        while model.travelling:
            model.arrive(0)
        for voter_id in model.voter_ids:
            model.decide(voter_id)
        assert len(model.ids) <= 1
    assert len(model.ids) == 1
    assert None not in model.disks.values()


class MakesTooEarly(Agreement):
    """A mutant that creates an id after any answer, instead of after the answers of all."""

    @property
    def may_create(self) -> bool:
        return bool(self.answers) and all(answer is None for answer in self.answers.values())


@pytest.mark.parametrize(("kind", "ids"), [(Agreement, 0), (MakesTooEarly, 2)])
def test_two_voters_that_asked_the_same_third_create_one_id(kind: type[Agreement], ids: int) -> None:
    """The mutant shows that the model notices a second id."""
    model = AgreementModel(3, kind)
    for voter_id in model.voter_ids:
        model.start(voter_id)
    for asker_id in (1, 3):
        model.ask(asker_id, 2)
        model.arrive(0)
    for voter_id in (1, 3):
        model.decide(voter_id)
    assert len(model.ids) == ids


# -- real servers ---------------------------------------------------------------------------------------------------------

Start = Callable[..., ControllerServer]


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControllerServers]:
    monkeypatch.setattr(peer_handshakes, "RETRY_MS_MAX", 20)
    servers = ControllerServers(tmp_path, **{"cluster.id": None})
    yield servers
    await servers.stop()


async def test_three_fresh_controllers_agree_and_elect(servers: ControllerServers) -> None:
    """The situation of the first `docker-compose up`."""
    for node_id in servers.ports:
        servers.start(node_id)
    cluster_id = await servers.decided()
    assert len(cluster_id) == 22, "16 random bytes, as everywhere"
    await servers.led()
    await servers.stop()
    for node_id in servers.ports:
        servers.start(node_id)
    assert await servers.decided() == cluster_id
    await servers.led()


async def test_no_id_is_created_while_one_controller_is_missing(servers: ControllerServers) -> None:
    """The missing one may be the only one with the id of an existing cluster. No directory is formatted either."""
    with capture_logs() as lines:
        for node_id in (101, 102):
            servers.start(node_id)
        await servers.listens(101)
        await servers.listens(102)
        await asyncio.wait(servers.starts.values(), timeout=0.3)
        assert not any(start.done() for start in servers.starts.values())
        assert not any(servers.is_formatted(node_id) for node_id in (101, 102))
        await servers.stop(101)
        servers.start(101)
        servers.start(103)
        cluster_id = await servers.decided()
    told = {line["node_id"]: line["event"] for line in lines if line["event"].startswith("cluster_id.")}
    assert told == {101: "cluster_id.created", 102: "cluster_id.adopted", 103: "cluster_id.adopted"}
    assert {line["cluster_id"] for line in lines if line["event"].startswith("cluster_id.")} == {cluster_id}


async def test_a_controller_without_a_cluster_id_rejects_requests(servers: ControllerServers) -> None:
    servers.start(101)
    await servers.listens(101)
    connection = await Connection.connect("127.0.0.1", servers.ports[101], client_id="test")
    answer: Any = await connection.request(apis.API_VERSIONS, ApiVersionsRequest())
    assert (answer.cluster_id, answer.node_id, answer.role) == (None, 101, "controller")
    assert {v.api_key for v in answer.api_keys} == {k for k, api in apis.APIS.items() if "controller" in api.served_by}
    requests = [(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()), (apis.VOTE, VoteRequest(A, 101, 1, 102, 0, 0, False))]
    for api_key, body in requests:
        with pytest.raises(BrokerError) as e:
            await connection.request(api_key, body)
        assert (e.value.code, e.value.retriable) == (ErrorCode.NOT_CONTROLLER, True)
    connection.close()


@pytest.mark.parametrize("lost", [101, 103])
async def test_a_controller_that_lost_its_volume_adopts_the_id_and_catches_up(servers: ControllerServers, lost: int) -> None:
    """This includes the lowest voter, which creates ids: it does not create a second one. The controller has no vote before it
    has caught up."""
    for node_id in servers.ports:
        servers.start(node_id)
    cluster_id = await servers.decided()
    await servers.led()
    await servers.stop(lost)
    await until(lambda: any(server.quorum.is_leader for server in servers.servers.values()))
    servers.wipe(lost)
    with capture_logs() as lines:
        await servers.start(lost)
        assert servers.servers[lost].cluster_id == cluster_id
        assert not servers.servers[lost].quorum.has_vote
        await until(lambda: servers.servers[lost].quorum.has_vote)
    assert servers.servers[lost].quorum.high_watermark > 0
    assert {"cluster_id.adopted", "quorum.voter_recovered"} <= {line["event"] for line in lines}


async def test_a_configured_id_is_adopted_by_those_that_have_none(servers: ControllerServers) -> None:
    servers.start(103, **{"cluster.id": A})
    servers.start(101)
    servers.start(102)
    assert await servers.decided() == A
    await servers.led()


async def test_voters_of_two_clusters_are_refused_in_one_sentence(servers: ControllerServers) -> None:
    servers.start(102, **{"cluster.id": A})
    servers.start(103, **{"cluster.id": B})
    await servers.listens(102)
    await servers.listens(103)
    with pytest.raises(UsageError, match=f"different clusters: controller 102 to {A}, controller 103 to {B}"):
        await servers.start(101)
    assert not servers.is_formatted(101)


async def test_missing_voters_are_logged_once_a_minute(servers: ControllerServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_handshakes, "FIRST_NOTICE_MS", 30)
    with capture_logs() as lines:
        servers.start(101)
        await until(lambda: any(line["event"] == "peers.awaited" for line in lines))
        await asyncio.wait(servers.starts.values(), timeout=0.2)
    (line,) = [line for line in lines if line["event"] == "peers.awaited"]
    assert line["purpose"] == "the cluster id"
    assert line["awaited"].count("Connection refused") == 2
    for port in (servers.ports[102], servers.ports[103]):
        assert f"127.0.0.1:{port}" in line["awaited"]
