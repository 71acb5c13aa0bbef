"""Three voters with real sockets on loopback and disks in memory: elections, fail-over, snapshots, failures."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from random import Random

import pytest
import structlog
from structlog.testing import capture_logs
from waiting import free_ports, until

from strandline.controller.metadata.voters import Voter
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.listener import QuorumWriter
from strandline.controller.raft.metadata_log import DIRECTORY, DamagedMetadataLog
from strandline.controller.raft.quorum import Quorum
from strandline.protocol import apis
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Server
from strandline.storage.files import DiskError, MemoryFiles


class Recorder:
    """A listener that records its calls; its state is the list of all committed records."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.next_offset = 0
        self.leading: int | None = None
        self.snapshots: list[SnapshotId] = []

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        assert base_offset == self.next_offset, "in order and once"
        self.next_offset = last_offset + 1
        self.records.extend(records)

    def on_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> None:
        self.records = list(records)
        self.next_offset = snapshot_id.end_offset
        self.snapshots.append(snapshot_id)

    def on_leader(self, epoch: int, writer: QuorumWriter) -> None:
        assert self.leading is None
        self.leading = epoch

    def on_resign(self, epoch: int) -> None:
        assert self.leading == epoch
        self.leading = None

    def on_leader_changed(self, leader_id: int, epoch: int) -> None: ...

    def snapshot_records(self) -> Iterable[bytes]:
        return list(self.records)


class Member:
    """The process of one voter: an open quorum, and the server that carries it."""

    def __init__(self, servers: QuorumServers, voter: Voter) -> None:
        self.voter = voter
        self.listener = Recorder()
        self.fatal: list[BaseException] = []
        self.quorum = Quorum.open(
            node_id=voter.id,
            cluster_id="c",
            voters=servers.voters,
            data_dir="d",
            files=servers.disks[voter.id],
            doors=Doors(lambda: 0, Random(voter.id)),
            config=servers.config,
            listener=self.listener,
            on_fatal=self.fatal.append,
        )
        self.server = Server(self.quorum.handlers, role="controller", node_id=voter.id, cluster_id="c", incarnation_id=bytes(16))

    async def start(self) -> None:
        await self.server.start(self.voter.host, self.voter.port)
        self.quorum.start()

    async def stop(self) -> None:
        await self.quorum.stop()
        await self.server.stop()

    async def kill(self) -> None:
        """Like SIGKILL: nothing is sent or flushed, and the connections break."""
        self.quorum._halt()
        await self.quorum._close_connections()
        await self.server.stop()


class QuorumServers:
    """Voters 1, 2, ...: production quorums on real sockets, without controllers. Their disks are in memory and can lose power."""

    def __init__(self, count: int, config: RaftConfig) -> None:
        self.config = config
        self.voters = [Voter(i, "127.0.0.1", port) for i, port in enumerate(free_ports(count), start=1)]
        self.disks = {voter.id: MemoryFiles(Random(voter.id)) for voter in self.voters}
        self.members: dict[int, Member] = {}

    async def start(self, *ids: int) -> None:
        for voter in self.voters:
            if voter.id in ids or not ids:
                self.members[voter.id] = Member(self, voter)
                await self.members[voter.id].start()

    async def kill(self, node_id: int, *, lossy: bool = True) -> None:
        await self.members.pop(node_id).kill()
        self.disks[node_id].crash(lossy=lossy)

    def leader(self) -> Member | None:
        return next((member for member in self.members.values() if member.listener.leading is not None), None)

    async def elected(self, timeout_s: float = 5.0) -> Member:
        await until(lambda: self.leader() is not None, timeout_s)
        leader = self.leader()
        assert leader is not None
        return leader

    async def agreed(self, records: int) -> None:
        await until(lambda: all(len(member.listener.records) == records for member in self.members.values()))
        states = [member.listener.records for member in self.members.values()]
        assert all(state == states[0] for state in states)


@pytest.fixture
async def make_servers() -> AsyncIterator[Callable[..., QuorumServers]]:
    made: list[QuorumServers] = []

    def make(count: int = 3, **config: int) -> QuorumServers:
        made.append(QuorumServers(count, RaftConfig(**config)))
        return made[-1]

    yield make
    for servers in made:
        for member in servers.members.values():
            await member.kill()


Make = Callable[..., QuorumServers]


async def test_a_single_voter_leads_when_start_returns(make_servers: Make) -> None:
    servers = make_servers(1)
    await servers.start()
    assert (await servers.elected(0.5)).quorum.epoch == 1


async def test_three_voters_elect_a_leader_that_alone_appends(make_servers: Make) -> None:
    servers = make_servers()
    await servers.start()
    leader = await servers.elected()
    last = leader.quorum.append([b"a", b"b"], leader.quorum.epoch)
    await servers.agreed(2)
    await until(lambda: leader.quorum.high_watermark == last + 1)
    follower = next(member for member in servers.members.values() if member is not leader)
    with pytest.raises(BrokerError) as refused:
        follower.quorum.append([b"c"], leader.quorum.epoch)
    assert refused.value.code == ErrorCode.NOT_CONTROLLER


async def test_a_killed_leader_is_replaced_and_comes_back_as_follower(make_servers: Make) -> None:
    servers = make_servers()
    await servers.start()
    first = await servers.elected()
    first.quorum.append([b"a"], first.quorum.epoch)
    await servers.agreed(1)
    await servers.kill(first.voter.id)
    second = await servers.elected()
    assert second.quorum.epoch > first.quorum.epoch
    second.quorum.append([b"b"], second.quorum.epoch)
    await servers.start(first.voter.id)
    await servers.agreed(2)
    assert servers.leader() is second


async def test_a_leader_that_stops_hands_over_before_stop_returns(make_servers: Make) -> None:
    servers = make_servers()
    await servers.start()
    first = await servers.elected()
    await first.stop()
    del servers.members[first.voter.id]
    assert first.quorum.leader_id in servers.members
    assert first.listener.leading is None
    await servers.elected()


async def test_a_voter_far_behind_installs_a_snapshot(make_servers: Make) -> None:
    """The voter does so also after a restart of all voters: the state after the install equals the state after a replay."""
    servers = make_servers(segment_bytes=2000, snapshot_chunk_bytes_max=100)
    await servers.start()
    leader = await servers.elected()
    behind = next(id for id, member in servers.members.items() if member is not leader)
    await servers.kill(behind)
    total = 0
    for _ in range(3):
        for i in range(30):
            leader.quorum.append([b"%d" % (total + i)], leader.quorum.epoch)
        total += 30
        end = leader.quorum.log_end_offset
        await until(lambda end=end: leader.listener.next_offset == end)  # type: ignore[misc]
        assert await leader.quorum.take_snapshot() == SnapshotId(end, leader.quorum.epoch)
    assert leader.quorum.log.start_offset > 30
    await servers.start(behind)
    await servers.agreed(total)
    assert servers.members[behind].listener.snapshots
    leader.quorum.append([b"one more"], leader.quorum.epoch)
    await servers.agreed(total + 1)
    for node_id in list(servers.members):
        await servers.kill(node_id)
    await servers.start()
    await servers.elected()
    await servers.agreed(total + 1)


async def test_a_snapshot_is_taken_when_enough_was_committed(make_servers: Make) -> None:
    servers = make_servers(1, snapshot_after_records=10)
    await servers.start()
    leader = await servers.elected()
    for _ in range(25):
        leader.quorum.append([b"x"], leader.quorum.epoch)
    await until(lambda: leader.quorum.log.latest_snapshot_id is not None)


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
async def test_a_snapshot_that_the_disk_rejects_is_retried_later(make_servers: Make, operation: str) -> None:
    """ENOSPC while a snapshot is written, with enough room for the log: the node continues, and leaves no partial file."""
    structlog.reset_defaults()  # warnings are wanted here
    servers = make_servers(1, snapshot_after_records=10, snapshot_retry_ms=1)
    await servers.start()
    leader = await servers.elected()
    disk = servers.disks[1]
    disk.fail_next(operation, "*.checkpoint.part", errno.ENOSPC)
    with capture_logs() as logs:
        for _ in range(25):
            leader.quorum.append([b"x"], leader.quorum.epoch)
        await until(lambda: any(line["event"] == "quorum.snapshot_failed" for line in logs))
    assert not leader.fatal
    assert not [name for name in disk.list(f"d/{DIRECTORY}") if name.endswith(".part")]
    await until(lambda: leader.quorum.log.latest_snapshot_id is not None)
    assert leader.quorum.is_leader


async def test_a_snapshot_that_reads_back_differently_is_retried_later(
    make_servers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is checked before it gets its name. No promise depends on it yet, so the voter need not stop."""
    servers = make_servers(1, snapshot_retry_ms=20)
    await servers.start()
    first = servers.members[1]
    first.quorum.append([b"a"], first.quorum.epoch)
    await servers.agreed(1)
    read, lies = MemoryFiles.read, [True]

    def lying(files: MemoryFiles, path: str) -> bytes:
        data = read(files, path)
        return bytes(len(data)) if path.endswith(".part") and lies.pop(0) else data

    lies += [False] * 10
    monkeypatch.setattr(MemoryFiles, "read", lying)
    assert await first.quorum.take_snapshot() is None
    assert first.fatal == []
    assert not [name for name in servers.disks[1].list(f"d/{DIRECTORY}") if "checkpoint.part" in name]
    assert await first.quorum.take_snapshot() is not None


async def test_an_error_while_the_log_is_cleaned_stops_the_node(make_servers: Make) -> None:
    """Only a failed snapshot itself may be retried; the log's own files are a promise."""
    servers = make_servers(1, segment_bytes=2000)
    await servers.start()
    leader = await servers.elected()
    disk = servers.disks[1]
    for round in range(2):
        for _ in range(50):
            leader.quorum.append([b"x"], leader.quorum.epoch)
        end = leader.quorum.log_end_offset
        await until(lambda end=end: leader.listener.next_offset == end)  # type: ignore[misc]
        if round:
            disk.fail_next("rename", "*.log", errno.EIO)
            with pytest.raises(DiskError):
                await leader.quorum.take_snapshot()
        else:
            assert await leader.quorum.take_snapshot()
    await until(lambda: bool(leader.fatal))


async def test_appends_of_one_turn_share_one_flush(make_servers: Make) -> None:
    """Group commit: one fsync of the metadata log per event-loop iteration, not one per record."""
    servers = make_servers(1)
    await servers.start()
    leader = await servers.elected()
    before = servers.disks[1].fsyncs
    for _ in range(100):
        leader.quorum.append([b"x"], leader.quorum.epoch)
    await servers.agreed(100)
    assert servers.disks[1].fsyncs - before == 1


async def test_a_failed_disk_stops_the_leader_and_the_others_go_on(make_servers: Make) -> None:
    """S46: after a failed fsync the node cannot keep any promise, so it gives none."""
    servers = make_servers()
    await servers.start()
    first = await servers.elected()
    servers.disks[first.voter.id].fail_next("fsync", "*.log", errno.EIO)
    first.quorum.append([b"a"], first.quorum.epoch)
    await until(lambda: bool(first.fatal))
    assert isinstance(first.fatal[0], DiskError)
    assert not first.quorum.is_leader
    with pytest.raises(BrokerError):
        first.quorum.append([b"b"], first.quorum.epoch)
    del servers.members[first.voter.id]
    await servers.elected()
    await first.kill()


def flip_last_batch(servers: QuorumServers, node_id: int) -> None:
    """Flip a bit in the value of the last record, and drop what the process holds in memory."""
    disk, path = servers.disks[node_id], f"d/{DIRECTORY}/{0:020}.log"
    disk.flip_bit(path, (len(disk.read(path)) - 3) * 8)
    member = servers.members.get(node_id)
    if member is not None:
        member.quorum.log.log.tail.clear()


async def test_a_leader_that_finds_damage_stops_and_is_replaced(make_servers: Make) -> None:
    """It cannot serve the records that it has promised. The log line is a sentence for an operator, without a traceback."""
    servers = make_servers()
    await servers.start()
    first = await servers.elected()
    behind = next(n for n in servers.members if n != first.voter.id)
    await servers.kill(behind)
    first.quorum.append([b"a"], first.quorum.epoch)
    await servers.agreed(1)
    flip_last_batch(servers, first.voter.id)
    with capture_logs() as lines:
        await servers.start(behind)
        await until(lambda: bool(first.fatal))
    assert isinstance(first.fatal[0], DamagedMetadataLog)
    [line] = [line for line in lines if line["event"] == "quorum.failed"]
    assert "is damaged at offset" in line["reason"]
    assert "empty this directory as a whole" in line["reason"]
    assert line["exc_info"] is None
    with pytest.raises(BrokerError, match="is not running"):
        first.quorum.append([b"b"], 1)
    del servers.members[first.voter.id]
    await servers.elected()
    await servers.agreed(1)
    await first.stop()


async def test_a_damaged_voter_does_not_start_and_comes_back_without_a_vote(make_servers: Make) -> None:
    """The last batch is damaged, which looks like a torn tail. If the voter cut it off, it would vote for a candidate without
    that record, although it is committed. After its directory was emptied, the voter recovers first."""
    servers = make_servers()
    await servers.start()
    first = await servers.elected()
    first.quorum.append([b"a"], first.quorum.epoch)
    await servers.agreed(1)
    victim = next(n for n in servers.members if n != first.voter.id)
    await servers.kill(victim, lossy=False)
    flip_last_batch(servers, victim)
    for _ in range(2):
        with pytest.raises(DamagedMetadataLog):
            Member(servers, next(voter for voter in servers.voters if voter.id == victim))
    servers.disks[victim].remove_tree(f"d/{DIRECTORY}")
    await servers.start(victim)
    assert not servers.members[victim].quorum.has_vote
    await servers.agreed(1)
    await until(lambda: servers.members[victim].quorum.has_vote)


async def test_stopping_a_node_that_has_failed_leaves_nothing_behind(make_servers: Make) -> None:
    """The failed node closes its connections by itself, one of them to a voter that is down; `stop` waits for that."""
    servers = make_servers()
    await servers.start()
    leader = await servers.elected()
    await leader.kill()
    del servers.members[leader.voter.id]
    # One of the remaining two becomes the leader and sends requests to the missing one; the other need not.
    attempts: list[tuple[Quorum, asyncio.Task[None]]] = []

    def somebody_connects() -> bool:
        for member in servers.members.values():
            connecting = member.quorum._shell._channels[leader.voter.id]._connecting
            if connecting is not None:
                attempts.append((member.quorum, connecting))
        return bool(attempts)

    await until(somebody_connects)
    quorum, connecting = attempts[0]
    quorum._fail(DiskError("write", "quorum-state", errno.ENOSPC))
    await quorum.stop()
    assert connecting.done()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "close the failed quorum node"] == []


async def test_a_quorum_state_that_is_garbage_refuses_to_start(make_servers: Make) -> None:
    """F18, through the shell: the error is written for a person."""
    servers = make_servers(1)
    disk = servers.disks[1]
    disk.make_dirs(f"d/{DIRECTORY}")
    disk.write_atomic(f"d/{DIRECTORY}/quorum-state", b"\0\0\0")
    with pytest.raises(UsageError, match="quorum-state is damaged"):
        Member(servers, servers.voters[0])


async def test_describe_quorum_over_the_wire_names_the_voters_addresses(make_servers: Make) -> None:
    servers = make_servers()
    await servers.start()
    leader = await servers.elected()
    connection = await Connection.connect(leader.voter.host, leader.voter.port, client_id="test")
    answer = await connection.request(apis.DESCRIBE_QUORUM, DescribeQuorumRequest())
    connection.close()
    assert isinstance(answer, DescribeQuorumResponse)
    assert [(node.node_id, node.host, node.port) for node in answer.nodes] == servers.voters
    assert (answer.leader_id, len(answer.current_voters)) == (leader.voter.id, 3)


def test_a_voter_set_that_cannot_work_is_refused() -> None:
    voters = [Voter(1, "h", 1), Voter(2, "h", 2)]
    with pytest.raises(UsageError, match="must name 1, 3 or 5"):
        make(1, voters)
    with pytest.raises(UsageError, match="is not one of"):
        make(9, [Voter(1, "h", 1)])


def make(node_id: int, voters: list[Voter]) -> Quorum:
    doors = Doors(lambda: 0, Random(0))
    return Quorum.open(
        node_id=node_id,
        cluster_id="c",
        voters=voters,
        data_dir="d",
        files=MemoryFiles(),
        doors=doors,
        config=RaftConfig(),
        listener=Recorder(),
        on_fatal=pytest.fail,
    )
