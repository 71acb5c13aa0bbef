"""Random migrations: processes of both protocols start, stop, die and return, while coordinators move and appends fail.

Each process does what its client would do: one of the newer protocol reconciles by its heartbeats; a classic one joins, syncs and
sends heartbeats, and assigns if it leads, eagerly (all give up everything first) or cooperatively. The invariants:

- no two processes read the same partition at the same time;
- every request is answered once, in bounded time;
- a coordinator that replays the log knows what the present one knows;
- when nothing happens any more, the living processes read all partitions; and when all are dead, the group is empty, and its
  deadlines are gone.
"""

from __future__ import annotations

from dataclasses import replace

from consumer_world import CONFIG, durable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from migration_world import GROUP, Asker, MigrationWorld, subscription

from strandline.broker.groups.classic.group import ClassicGroup, State
from strandline.broker.groups.classic.subscription import parse_subscription
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.migration.assignment import encode_assignment, parse_assignment
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

PARTITIONS = 4
"""The partitions of the topic before it grows."""
NAMES = ("A", "B", "C", "D")
STATIC = {"C": "c", "D": "d"}
NO_ANSWER = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
BOUND = 150.0
"""Seconds after which each request is answered: two rebalance timeouts, and the session of a member that has died."""


class NewProcess:
    """A member of the newer protocol."""

    is_classic = False

    def __init__(self, model: Migrations, name: str, number: int) -> None:
        self.model, self.name = model, name
        self.member_id = f"{name}{number}"
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()

    def step(self) -> None:
        world = self.model.world
        fields = {} if self.epoch else {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 20_000}
        owns = {"orders": sorted(self.owned)} if self.epoch and self.owned else {}
        answer = world.send(world.request(self.member_id, self.epoch, owns, instance_id=STATIC.get(self.name), **fields))
        if isinstance(answer, ConsumerGroupHeartbeatResponse):
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = frozenset(n for topic in answer.assignment for n in topic.partitions)
        elif answer not in NO_ANSWER:
            self.epoch, self.owned = 0, frozenset()

    def stop(self) -> None:
        self.owned = frozenset()
        world = self.model.world
        world.send(world.request(self.member_id, -1, instance_id=STATIC.get(self.name)))


class ClassicProcess:
    """A member of the classic protocol."""

    is_classic = True

    def __init__(self, model: Migrations, name: str) -> None:
        self.model, self.name = model, name
        self.member_id, self.generation = "", -1
        self.owned: frozenset[int] = frozenset()
        self.waiting: Asker | None = None
        self.since = 0.0
        self.next_request = "join"
        self.members: list[JoinGroupMember] = []
        """The members to which it assigns, if it leads."""
        self.is_leader = False
        self.known_partitions = 0
        """The number of partitions at its last join. A leader joins again if there are more."""

    def step(self) -> None:
        if self.waiting is None:
            if self.next_request == "beat" and self.is_leader and self.known_partitions != self.model.partitions:
                self.next_request = "join"
            {"join": self._join, "sync": self._sync, "beat": self._beat}[self.next_request]()

    def _send(self, body: Message) -> None:
        self.since = self.model.world.now
        self.waiting = self.model.world.ask(self.name, body)
        self.model.receive()

    def receive(self) -> None:
        """Take over the answer, if there is one."""
        if self.waiting is None or not self.waiting.answers:
            return
        (answer,) = self.waiting.answers
        self.waiting = None
        match answer:
            case JoinGroupResponse():
                self._on_joined(answer)
            case SyncGroupResponse():
                self._on_synced(answer)
            case HeartbeatResponse():
                pass
            case ErrorCode():
                self._on_refused(answer)

    def _join(self) -> None:
        if not self.model.is_cooperative:
            self.owned = frozenset()
        owned = {"orders": sorted(self.owned)} if self.owned else {}
        metadata = subscription(1 if self.model.is_cooperative else 0, ["orders"], owned)
        protocols = [JoinGroupProtocol("range", metadata)]
        self._send(JoinGroupRequest(GROUP, 6_000, 20_000, self.member_id, STATIC.get(self.name), "consumer", protocols))

    def _on_joined(self, answer: JoinGroupResponse) -> None:
        self.member_id = answer.member_id
        if not answer.error_code:
            self.generation, self.next_request = answer.generation_id, "sync"
            self.is_leader = answer.leader == answer.member_id
            # A leader that skips the assignment cannot know how many partitions its earlier self has assigned (KIP-814).
            self.known_partitions = PARTITIONS if answer.skip_assignment else self.model.partitions
            self.members = [] if answer.skip_assignment else answer.members

    def _sync(self) -> None:
        assignments = [
            SyncGroupAssignment(member, encode_assignment(0, {"orders": numbers})) for member, numbers in self._assign()
        ]
        self._send(
            SyncGroupRequest(GROUP, self.generation, self.member_id, STATIC.get(self.name), "consumer", "range", assignments)
        )

    def _assign(self) -> list[tuple[str, list[int]]]:
        """The assignment of the leader: the members in turn. A cooperative leader leaves out partitions that another member still
        owns."""
        owner = {
            number: member.member_id
            for member in self.members
            for number in parse_subscription(member.metadata).owned_partitions.get("orders", ())
        }
        shares: dict[str, list[int]] = {member.member_id: [] for member in self.members}
        members = sorted(shares)
        for number in range(self.model.partitions if members else 0):
            member_id = members[number % len(members)]
            if owner.get(number, member_id) == member_id:
                shares[member_id].append(number)
        return list(shares.items())

    def _on_synced(self, answer: SyncGroupResponse) -> None:
        assigned = frozenset(parse_assignment(answer.assignment).partitions.get("orders", ()))
        revoked, self.owned = self.owned - assigned, assigned
        self.next_request = "join" if revoked and self.model.is_cooperative else "beat"

    def _beat(self) -> None:
        self._send(HeartbeatRequest(GROUP, self.generation, self.member_id, STATIC.get(self.name)))

    def _on_refused(self, code: ErrorCode) -> None:
        if code in NO_ANSWER and self.next_request == "beat":
            return
        self.next_request = "join"
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned = frozenset()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""

    def stop(self) -> None:
        self.owned = frozenset()
        self.model.world.ask(self.name, LeaveGroupRequest(GROUP, [LeavingMember(self.member_id, STATIC.get(self.name))]))


class Migrations(RuleBasedStateMachine):
    @initialize(is_cooperative=st.booleans(), interval_ms=st.sampled_from([0, 1000]))
    def begin(self, is_cooperative: bool, interval_ms: int) -> None:
        self.is_cooperative = is_cooperative
        self.partitions = PARTITIONS
        config = replace(CONFIG, group_consumer_assignment_interval_ms=interval_ms, group_consumer_session_timeout_ms=6_000)
        self.world = MigrationWorld(config, orders=self.partitions)
        self.processes: dict[str, NewProcess | ClassicProcess] = {}
        self.started = 0

    def receive(self) -> None:
        """The processes take over the answers that have arrived."""
        self.world.forget()
        for process in self.processes.values():
            if isinstance(process, ClassicProcess):
                process.receive()

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), is_classic=st.booleans(), is_clean=st.booleans(), seconds=st.sampled_from([0, 1, 5, 15]))
    def restart(self, name: str, is_classic: bool, is_clean: bool, seconds: int) -> None:
        """The process stops, or dies, and starts with one of the protocols."""
        self.stop(name, is_clean)
        self.started += 1
        self.processes[name] = ClassicProcess(self, name) if is_classic else NewProcess(self, name, self.started)
        self.processes[name].step()
        self.run(seconds)

    @precondition(lambda self: len(self.processes) > 1)
    @rule(name=st.sampled_from(NAMES), is_clean=st.booleans())
    def stop(self, name: str, is_clean: bool) -> None:
        process = self.processes.pop(name, None)
        if process is not None and is_clean:
            process.stop()
            self.receive()

    @rule(seconds=st.integers(1, 20))
    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for name in sorted(self.processes):
                self.processes[name].step()
                self._check_owners()
            self.world.pass_time(1)
            self.receive()
            self._check_owners()

    @rule(seconds=st.integers(1, 8))
    def appends_fail_for_a_while(self, seconds: int) -> None:
        self.world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.run(seconds)
        self.world.append_error = None

    @rule()
    def the_coordinator_moves(self) -> None:
        self.world.move()
        self.receive()

    @precondition(lambda self: self.partitions < 8)
    @rule()
    def the_topic_grows(self) -> None:
        self.partitions += 1
        self.world.topics.create(orders=self.partitions)
        self.world.publish()

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_owners(self) -> None:
        read = [number for process in self.processes.values() for number in process.owned]
        assert len(read) == len(set(read)), {p.name: sorted(p.owned) for p in self.processes.values()}

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        if hasattr(self, "processes"):
            self._check_owners()

    @invariant()
    def requests_are_answered_in_time(self) -> None:
        for process in getattr(self, "processes", {}).values():
            if isinstance(process, ClassicProcess) and process.waiting is not None:
                assert self.world.now - process.since <= BOUND

    @invariant()
    def the_log_says_what_is_known(self) -> None:
        if not hasattr(self, "world"):
            return
        group = self.world.groups.get(GROUP)
        loaded = MigrationWorld(self.world.config, orders=self.partitions)
        for offset, record in enumerate(self.world.log):
            loaded.shard.replay(record, offset)
        known = loaded.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            assert isinstance(known, ConsumerGroup)
            assert durable(known) == durable(group)
        elif isinstance(group, ClassicGroup) and group.state is State.STABLE:
            assert isinstance(known, ClassicGroup)
            assert (known.generation, list(known.members), known.leader) == (group.generation, list(group.members), group.leader)

    def teardown(self) -> None:
        """First, all living processes must read everything. Then they die, and the group must come to rest."""
        if not hasattr(self, "world"):
            return
        self.run(120)
        if self.processes:
            read = sorted(number for process in self.processes.values() for number in process.owned)
            assert read == list(range(self.partitions)), {p.name: sorted(p.owned) for p in self.processes.values()}
        self.processes.clear()
        self.world.pass_time(2 * BOUND + 300)
        group = self.world.groups.get(GROUP)
        assert group is None or group.is_empty
        kinds = {key if isinstance(key, str) else key[0] for key in self.world.deadlines._actions}
        assert kinds <= {"expiry of offsets", "regex refresh"}


TestMigrations = Migrations.TestCase
TestMigrations.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
