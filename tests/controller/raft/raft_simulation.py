"""A quorum of production `RaftNode`s in virtual time, with a bad network and bad disks, and checkers that watch it.

Everything follows from one seed: delays, losses, partitions, crashes (of the process, or of the machine, which loses unflushed
writes), and the points at which a crash falls (before the disk, after it, before the messages leave). After every event the
checkers look at the node that handled it. The ghost variables (leaders, votes, committed records) are kept here and in no node.

The cluster's simulator (`testing/simulation`) runs the same nodes behind the real shell. This one runs the core alone, about a
hundred runs per second, and lets the power fail at each of the points above.

- I1   one leader per epoch, over all incarnations; and it holds every committed record
- I18  a vote is on the disk before it is sent, once per epoch; a fetch claims only flushed offsets; what a leader commits
       is on the disks of a majority, and reaches beyond the start of its own epoch
- I19  committed logs are prefixes of one another; the state at an offset is the same by replay and by snapshot;
       a snapshot ends at a committed batch end
- HW   the high watermark never decreases while a process lives"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from raft_memory_log import Batch, MemoryRaftLog, Platter

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.node import RaftNode
from strandline.controller.raft.outbox import Reply, Send
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader, Role
from strandline.controller.raft.snapshots import SnapshotWriter, snapshot_values
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import VoteRequest, VoteResponse
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.messages.data import FetchRequest
from strandline.protocol.records.builder import encode_values

CLUSTER = "simulated"


class Violation(AssertionError):
    """An invariant is broken."""


@dataclass(frozen=True)
class Weather:
    """The faults of a run; the probabilities are per message or per step of the nemesis."""

    loss: float = 0.0
    slow: float = 0.0
    delay_s: tuple[float, float] = (0.0002, 0.002)
    disk_s: tuple[float, float] = (0.0001, 0.003)
    crash: float = 0.0
    partition: float = 0.0
    snapshot: float = 0.0
    wipe: float = 0.0


CALM = Weather()
ROUGH = Weather(loss=0.02, slow=0.03, crash=0.25, partition=0.25, snapshot=0.3)
WIPES = Weather(loss=0.02, slow=0.03, crash=0.15, partition=0.2, snapshot=0.3, wipe=0.15)


@dataclass(eq=False)
class Ticket:
    """A request in flight: the sender, and the request."""

    sender: SimNode
    incarnation: int
    send: Send
    done: bool = False


class SimNode:
    """One voter: its disk, and its process while it has one."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self.simulation = simulation
        self.id = node_id
        self.platter = Platter()
        self.incarnation = 0
        self.node: RaftNode | None = None
        self.log: MemoryRaftLog
        self.high_watermark = 0
        self.applied = 0
        self.applied_epoch = 0
        self.applied_state = b""
        self.sync_scheduled = False
        self.role: Role | None = None
        self.asked: list[Ticket] = []
        """Requests that it has received and not answered: their connections break when it dies."""

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def raft(self) -> RaftNode:
        assert self.node is not None
        return self.node

    @property
    def state(self) -> RaftState:
        assert self.node is not None
        return self.node.state

    def __repr__(self) -> str:
        if self.node is None:
            return f"{self.id}:dead"
        node = self.node.state
        return f"{self.id}:{type(node.role).__name__}@{node.epoch} hw={node.high_watermark} end={node.log.end_offset}"


class Simulation:
    def __init__(
        self,
        seed: int,
        voters: int,
        weather: Weather = CALM,
        config: RaftConfig | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """`fresh`: every voter begins with an empty disk, as at the first start of a cluster."""
        self.seed = seed
        self.random = Random(seed)
        self.weather = weather
        self.config = config or RaftConfig(snapshot_chunk_bytes_max=64)
        self.now = 0.0
        self.nodes = {node_id: SimNode(self, node_id) for node_id in range(1, voters + 1)}
        if fresh:
            for sim in self.nodes.values():
                sim.platter = empty_platter()
        self.blocked: set[tuple[int, int]] = set()
        """Directed links that lose every message."""
        self.events = 0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._events_now = 0
        self._value = 0
        # ghosts
        self.leaders: dict[int, tuple[int, int]] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.committed: dict[int, Batch] = {}
        self.committed_in: dict[int, int] = {}
        """The epoch in which each record was first seen committed, by offset."""
        self.committed_end = 0
        self.states: dict[int, bytes] = {0: b""}

    # -- time ------------------------------------------------------------------------------------------------------

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, action))

    def step(self) -> None:
        at, _, action = heapq.heappop(self._queue)
        self._events_now = self._events_now + 1 if at == self.now else 0
        if self._events_now > 10_000:
            raise Violation(f"time does not advance at {at}: {list(self.nodes.values())}")
        self.now = at
        self.events += 1
        action()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.step()
        self.now = end

    def run_until(self, met: Callable[[], bool], seconds: float, what: str) -> float:
        start = self.now
        while not met():
            if not self._queue or self._queue[0][0] > start + seconds:
                raise Violation(f"not within {seconds} s: {what}; {list(self.nodes.values())}")
            self.step()
        return self.now - start

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        sim = self.nodes[node_id]
        assert sim.node is None
        sim.incarnation += 1
        sim.log = MemoryRaftLog(sim.platter)
        sim.log.flush()
        sim.node = RaftNode(
            node_id=node_id,
            cluster_id=CLUSTER,
            voter_ids=list(self.nodes),
            log=sim.log,
            election=sim.platter.election,
            config=self.config,
            random=self.random,
        )
        sim.high_watermark = sim.applied = 0
        sim.applied_state, sim.sync_scheduled, sim.role = b"", False, None
        sim.node.start(self.now)
        self._settle(sim)

    def start_all(self) -> None:
        for node_id, sim in self.nodes.items():
            if not sim.alive:
                self.start(node_id)

    def crash(self, node_id: int, *, lossy: bool = True) -> None:
        sim = self.nodes[node_id]
        self.trace.append(f"{self.now:.4f} crash {sim}")
        sim.node = None
        sim.platter.crash(self.random, lossy=lossy)
        for ticket in sim.asked:
            if (node_id, ticket.sender.id) not in self.blocked:
                self.at(self._delay(), partial(self._fail, ticket, ErrorCode.NETWORK_EXCEPTION))
        sim.asked.clear()

    def wipe(self, node_id: int) -> None:
        """Crash the machine and replace its disk; the test starts the voter again."""
        if self.nodes[node_id].alive:
            self.crash(node_id)
        self.trace.append(f"{self.now:.4f} wipe {node_id}")
        self.nodes[node_id].platter = empty_platter()

    def may_wipe(self, node_id: int) -> bool:
        """Whether a quorum must survive the loss of this disk: fewer than half of the disks are lost and not recovered."""
        lost = {sim.id for sim in self.nodes.values() if sim.platter.election.recovering} | {node_id}
        return len(lost) * 2 < len(self.nodes)

    def partition(self, group: Sequence[int]) -> None:
        """Cut the group off from the other voters, in both directions."""
        inside = set(group)
        self.blocked = {(a, b) for a in self.nodes for b in self.nodes if (a in inside) != (b in inside)}

    def heal(self) -> None:
        self.blocked = set()

    def leader(self) -> SimNode | None:
        """The leader of the highest epoch among the live nodes."""
        leaders = [sim for sim in self.nodes.values() if sim.node is not None and sim.state.is_leader]
        return max(leaders, key=lambda sim: sim.state.epoch, default=None)

    # -- the shell's part ------------------------------------------------------------------------------------------

    def _settle(self, sim: SimNode) -> None:
        node = sim.raft
        node.complete_fetches(self.now)
        self._transmit(sim, node.state.outbox.take_at_once())
        if node.state.needs_sync and not sim.sync_scheduled:
            sim.sync_scheduled = True
            self._later(sim, self.random.uniform(*self.weather.disk_s), self._sync)
        self._check(sim)
        deadline = node.next_deadline()
        if deadline != float("inf"):
            self._later(sim, max(0.0, deadline - self.now), self._tick)

    def _later(self, sim: SimNode, delay: float, action: Callable[[SimNode], None]) -> None:
        incarnation = sim.incarnation

        def run() -> None:
            if sim.node is not None and sim.incarnation == incarnation:
                action(sim)

        self.at(delay, run)

    def _tick(self, sim: SimNode) -> None:
        if sim.raft.next_deadline() <= self.now:
            sim.raft.tick(self.now)
            self._settle(sim)

    def _sync(self, sim: SimNode) -> None:
        """Write `quorum-state`, then the log, then send the messages; the power may fail between any two of these steps."""
        node, sim.sync_scheduled = sim.raft, False
        waiting = node.state.outbox.take_after_sync()
        if self._power_fails(sim):
            return
        if node.state.election_dirty:
            sim.platter.election, node.state.election_dirty = node.state.election, False
            if self._power_fails(sim):
                return
        sim.log.flush()
        if self._power_fails(sim):
            return
        node.on_synced(self.now)
        self._transmit(sim, waiting)
        self._settle(sim)

    def _power_fails(self, sim: SimNode) -> bool:
        fails = self.weather.crash > 0 and self.random.random() < 0.002
        if fails:
            self.crash(sim.id)
        return fails

    def _transmit(self, sim: SimNode, messages: list[Send | Reply]) -> None:
        for message in messages:
            if isinstance(message, Send):
                self._send(sim, message)
            else:
                self._reply(sim, message)

    def _send(self, sim: SimNode, send: Send) -> None:
        self._check_leaving_request(sim, send)
        ticket = Ticket(sim, sim.incarnation, send)
        self._later(sim, self.config.request_timeout_ms / 1000, lambda _: self._fail(ticket, ErrorCode.REQUEST_TIMED_OUT))
        if self._is_lost(sim.id, send.to_id):
            return
        self.at(self._delay(), lambda: self._deliver(ticket))
        if self.random.random() < self.weather.loss:
            self.at(self._delay() * 3, lambda: self._deliver(ticket))

    def _deliver(self, ticket: Ticket) -> None:
        target = self.nodes[ticket.send.to_id]
        if target.node is None:
            self.at(self._delay(), lambda: self._fail(ticket, ErrorCode.NETWORK_EXCEPTION))
            return
        send = ticket.send
        target.asked = [other for other in target.asked if not other.done]
        target.asked.append(ticket)
        target.node.on_request(send.api_key, send.body, ticket, ticket.incarnation, self.now)
        self._settle(target)

    def _reply(self, sim: SimNode, reply: Reply) -> None:
        ticket: Any = reply.ticket
        if not isinstance(ticket, Ticket):
            return
        self._check_leaving_reply(sim, ticket.send, reply.body)
        if self._is_lost(sim.id, ticket.sender.id):
            return
        body: Any = reply.body
        if reply.records is not None:
            body.records = [memoryview(bytearray(b"".join(parts))) for parts in reply.records]
        self.at(self._delay(), lambda: self._answer(ticket, body))

    def _answer(self, ticket: Ticket, body: Any) -> None:
        sim = ticket.sender
        if ticket.done or sim.node is None or sim.incarnation != ticket.incarnation:
            return
        ticket.done = True
        sim.node.on_response(ticket.send, body, self.now)
        self._settle(sim)

    def _fail(self, ticket: Ticket, error: ErrorCode) -> None:
        sim = ticket.sender
        if ticket.done or sim.node is None or sim.incarnation != ticket.incarnation:
            return
        ticket.done = True
        sim.node.on_failure(ticket.send, error, self.now)
        self._settle(sim)

    def _is_lost(self, source: int, target: int) -> bool:
        return (source, target) in self.blocked or (self.weather.loss > 0 and self.random.random() < self.weather.loss)

    def _delay(self) -> float:
        slow = self.weather.slow > 0 and self.random.random() < self.weather.slow
        return self.random.uniform(0.05, 1.5) if slow else self.random.uniform(*self.weather.delay_s)

    # -- the load --------------------------------------------------------------------------------------------------

    def append(self, node_id: int, count: int = 1) -> int:
        """Append as a client of this node, whether or not it is the real leader; returns the last offset."""
        node = self.nodes[node_id].raft
        values = [b"value-%d" % (self._value + i) for i in range(count)]
        self._value += count
        offset = node.append(bytearray(encode_values(values, 0)), node.state.epoch)
        self._settle(self.nodes[node_id])
        return offset

    def snapshot(self, node_id: int) -> SnapshotId | None:
        """Write a snapshot of the state at the applied offset, and clean the log before it."""
        sim = self.nodes[node_id]
        latest = sim.log.latest_snapshot_id
        if sim.applied <= (latest.end_offset if latest else 0):
            return None
        snapshot_id = SnapshotId(sim.applied, sim.applied_epoch)
        if sim.applied not in self.states or sim.applied > sim.state.high_watermark:
            raise Violation(f"I19: {snapshot_id} does not end at a committed batch end")
        writer = SnapshotWriter(sim.log.create_snapshot(snapshot_id), sim.applied_epoch, 0)
        writer.write([b"%d" % sim.applied, sim.applied_state])
        writer.finish()
        sim.log.clean()
        return snapshot_id

    def nemesis(self, period_s: float = 0.1) -> None:
        """Cause faults from time to time, and end them again."""
        random, weather = self.random, self.weather
        for sim in self.nodes.values():
            if sim.alive and sim.state.is_leader and random.random() < 0.8:
                self.append(sim.id, random.randint(1, 3))
            if sim.alive and random.random() < weather.snapshot:
                self.snapshot(sim.id)
        if random.random() < weather.crash:
            alive = [sim.id for sim in self.nodes.values() if sim.alive]
            if alive:
                victim = random.choice(alive)
                self.crash(victim, lossy=random.random() < 0.7)
                self.at(random.uniform(0.01, 2.0), lambda: None if self.nodes[victim].alive else self.start(victim))
        for sim in self.nodes.values():
            if not sim.alive and random.random() < 0.1:
                self.start(sim.id)
        if random.random() < weather.partition:
            self.partition(random.sample(list(self.nodes), random.randint(1, len(self.nodes) - 1)))
            if random.random() < 0.3:
                self.blocked = {link for link in sorted(self.blocked) if random.random() < 0.6}
            self.at(random.uniform(0.05, 3.0), self.heal)
        victim = random.choice(list(self.nodes))
        if random.random() < weather.wipe and self.may_wipe(victim):
            self.wipe(victim)
            self.at(random.uniform(0.0, 1.0), partial(self._start_again, victim))
        leader = self.leader()
        if leader is not None and random.random() < 0.02:
            leader.raft.resign(self.now)
            self._settle(leader)
        self.at(random.uniform(0.2, 1.8) * period_s, self.nemesis)

    def _start_again(self, node_id: int) -> None:
        if not self.nodes[node_id].alive:
            self.start(node_id)

    # -- the checkers ----------------------------------------------------------------------------------------------

    def _check_leaving_request(self, sim: SimNode, send: Send) -> None:
        body = send.body
        if isinstance(body, VoteRequest) and not body.pre_vote:
            self._check_vote(sim, body.replica_epoch, sim.id)
        if isinstance(body, FetchRequest):
            claimed = body.partitions[0].fetch_offset
            if sim.platter.journal and sim.platter.log.end < claimed:
                raise Violation(f"I18: {sim} fetches at {claimed}, its disk ends at {sim.platter.log.end}")

    def _check_leaving_reply(self, sim: SimNode, send: Send, body: Any) -> None:
        if isinstance(body, VoteResponse) and body.vote_granted and not send.body.pre_vote:  # type: ignore[attr-defined]
            self._check_vote(sim, send.body.replica_epoch, send.body.replica_id)  # type: ignore[attr-defined]

    def _check_vote(self, sim: SimNode, epoch: int, candidate: int) -> None:
        durable = sim.platter.election
        if (durable.epoch, durable.voted_id) != (epoch, candidate) and durable.epoch <= epoch:
            raise Violation(f"I18: {sim} votes for {candidate} in {epoch}, its disk says {durable}")
        before = self.votes.setdefault((epoch, sim.id), candidate)
        if before != candidate:
            raise Violation(f"I18: {sim} votes for {before} and {candidate} in epoch {epoch}")

    def _check(self, sim: SimNode) -> None:
        node = sim.state
        if node.role is not sim.role:
            sim.role = node.role
            if isinstance(node.role, Leader):
                self._check_new_leader(sim)
        if node.high_watermark < sim.high_watermark:
            raise Violation(f"HW: {sim} went back from {sim.high_watermark}")
        if node.high_watermark > sim.high_watermark:
            self._check_commit(sim)
            sim.high_watermark = node.high_watermark

    def _check_new_leader(self, sim: SimNode) -> None:
        me = (sim.id, sim.incarnation)
        if self.leaders.setdefault(sim.state.epoch, me) != me:
            raise Violation(f"I1: {self.leaders[sim.state.epoch]} and {me} both lead epoch {sim.state.epoch}")
        held = {batch.base: batch for batch in sim.log.batches}
        for base, batch in self.committed.items():
            # A vote may be delayed for long: a leader of an older epoch need not have records that were committed later.
            is_older = self.committed_in[base] < sim.state.epoch
            if is_older and base >= sim.log.start_offset and held.get(base) != batch:
                raise Violation(f"I1: the new leader {sim} misses the committed batch at {base}")

    def _check_commit(self, sim: SimNode) -> None:
        node, role = sim.state, sim.state.role
        if isinstance(role, Leader) and sim.role is role and node.high_watermark > self.committed_end:
            self._check_majority(sim, role)
        latest = sim.log.latest_snapshot_id
        if sim.applied < sim.log.start_offset or (sim.applied == 0 and latest is not None):
            self._load_snapshot(sim)
        for batch in sim.log.batches:
            if batch.end > node.high_watermark:
                break
            if batch.base >= sim.applied:
                self._apply(sim, batch)
        if sim.applied != node.high_watermark:
            raise Violation(f"I19: the high watermark of {sim} is inside a batch (applied {sim.applied})")

    def _check_majority(self, sim: SimNode, role: Leader) -> None:
        end = sim.state.high_watermark
        last = next((batch for batch in sim.log.batches if batch.end == end), None)
        if last is None or end <= role.epoch_start_offset or last.epoch != sim.state.epoch:
            raise Violation(f"I18: {sim} commits {last} without an entry of its own epoch")
        # A disk may be lost between its acknowledgement and the commit; then the voter has no vote until it has the record.
        holders = [other.id for other in self.nodes.values() if _holds(other.platter, last) or other.platter.election.recovering]
        if len(holders) * 2 <= len(self.nodes):
            raise Violation(f"I18: {sim} commits up to {end}, on the disks of {holders} only")

    def _apply(self, sim: SimNode, batch: Batch) -> None:
        known = self.committed.setdefault(batch.base, batch)
        if known != batch:
            raise Violation(f"I19: {sim} commits {batch[:3]}, {known[:3]} was committed there")
        self.committed_in.setdefault(batch.base, sim.state.epoch)
        self.committed_end = max(self.committed_end, batch.end)
        sim.applied_state = hashlib.blake2b(sim.applied_state + batch.data, digest_size=8).digest()
        sim.applied, sim.applied_epoch = batch.end, batch.epoch
        self._check_state(sim)

    def _load_snapshot(self, sim: SimNode) -> None:
        latest = sim.log.latest_snapshot_id
        assert latest is not None
        applied, sim.applied_state = snapshot_values(sim.platter.snapshots[latest])
        sim.applied, sim.applied_epoch = int(applied), latest.epoch
        if sim.applied != latest.end_offset or sim.applied not in self.states:
            raise Violation(f"I19: the snapshot {latest} of {sim} holds {applied!r}")
        self._check_state(sim)

    def _check_state(self, sim: SimNode) -> None:
        if self.states.setdefault(sim.applied, sim.applied_state) != sim.applied_state:
            raise Violation(f"I19: the state of {sim} at {sim.applied} differs from the others'")

    # -- at the end ------------------------------------------------------------------------------------------------

    def recover(self, seconds: float = 12.0) -> None:
        """Without faults all nodes must agree again: one leader, and a new record committed on every node."""
        self.weather = Weather()
        self._queue = [entry for entry in self._queue if entry[2] != self.nemesis]
        heapq.heapify(self._queue)
        self.heal()
        self.start_all()
        deadline = self.now + seconds
        while True:
            self.run_until(lambda: self._agree() is not None, deadline - self.now, "one leader that all follow")
            leader = self._agree()
            assert leader is not None
            offset = self.append(leader.id)
            if self._run_while_agreed(leader, offset):
                return

    def _run_while_agreed(self, leader: SimNode, offset: int) -> bool:
        """Run until the offset is committed on every node. False if a message from the time of the faults deposed the leader."""
        epoch, start = leader.state.epoch, self.now
        while not all(sim.applied > offset for sim in self.nodes.values()):
            if leader.state.epoch != epoch:
                return False
            if self.now > start + 5.0:
                raise Violation(f"not within 5 s: {offset} committed everywhere; {list(self.nodes.values())}")
            self.step()
        return True

    def _agree(self) -> SimNode | None:
        leader = self.leader()
        agreed = leader is not None and all(
            sim.alive and sim.state.epoch == leader.state.epoch and sim.state.leader_id == leader.id
            for sim in self.nodes.values()
        )
        return leader if agreed else None


def empty_platter() -> Platter:
    """A new disk, with the state that `QuorumStateStore.check` gives it."""
    return Platter(election=ElectionState(recovering=True))


def _holds(platter: Platter, batch: Batch) -> bool:
    """Whether this disk holds the batch, in a snapshot or in every state of the log that a crash may leave."""
    if any(snapshot.end_offset >= batch.end for snapshot in platter.snapshots):
        return True
    return all(batch in state.batches for state in [platter.log, *platter.journal])
