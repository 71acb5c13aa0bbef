"""Random histories of a group of the classic protocol, under invariants that are checked after each step.

Processes join, sync, send heartbeats, commit, leave, restart as static members, and die; they lose responses, and send requests
with ids and generations that they had before. Appends fail, and coordinators move. The invariants:

- one generation has one leader, one protocol, and one set of members: in all responses, and on each coordinator;
- no two members of a generation have the same instance id;
- an assignment that a member has received is in the log, for this member and generation;
- every request is answered exactly once, in bounded time: at the latest when all sessions and rebalances could end;
- a coordinator that replays the log knows what the present one knows to be durable;
- whatever happened, time alone brings the group to rest: without members, and without deadlines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from classic_world import GROUP, ClassicWorld, RecordedAsker, subscription
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from thorough import examples

from strandline.broker.groups.classic.group import ClassicGroup, State
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.types import ClassicGroupValue
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

NAMES = ("A", "B", "C", "D", "E")
STATIC = {"D": "d", "E": "e"}
BOUND = 2 * 60.0 + 300.0 + 1.0
"""Seconds after which every request is answered: a rebalance, a phase that is extended, and the time of a new member."""


@dataclass(slots=True, eq=False)
class Process:
    """A member, as it sees itself."""

    name: str
    member_id: str = ""
    generation: int = -1
    members: list[str] = field(default_factory=list)
    """The members to which it assigns, if it leads."""
    earlier: list[tuple[str, int]] = field(default_factory=list)
    next_request: str = "join"
    """The next request of the client: join, sync or beat."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way."""

    process: Process
    body: Message
    asker: RecordedAsker
    since: float
    member_id: str


class ClassicGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ClassicWorld(GroupConfig(group_max_size=4))
        self.processes = {name: Process(name) for name in NAMES}
        self.asked: list[Asked] = []
        self.generations: dict[int, tuple[str, str, frozenset[str] | None]] = {}
        """Generation -> leader, protocol, and members if a JoinGroup response has named them.

        A generation without an assignment in the log is dropped when the coordinator moves: the next one may use its number
        again."""
        self.received: dict[int, dict[str, bytes]] = {}
        """Generation -> member -> the assignment that it has received."""

    # -- requests -----------------------------------------------------------------------------------------------------

    def _send(self, process: Process, body: Message, member_id: str, **versions: bool) -> None:
        asked = Asked(process, body, RecordedAsker(process.name), self.world.now, member_id)
        self.asked.append(asked)
        self.world.request(asked.asker, body, **versions)
        self._receive()

    def _receive(self) -> None:
        """Give each answer to the process that waits for it."""
        for asker, answer in self.world.take_answers():
            (asked,) = [asked for asked in self.asked if asked.asker is asker]
            self.asked.remove(asked)
            assert len(asker.answers) == 1
            match answer:
                case JoinGroupResponse():
                    self._on_joined(asked, answer)
                case SyncGroupResponse():
                    self._on_synced(asked, answer)
                case BrokerError():
                    self._on_refused(asked, answer.code)

    def _on_joined(self, asked: Asked, answer: JoinGroupResponse) -> None:
        process = asked.process
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
        if answer.member_id != process.member_id:
            process.earlier.append((process.member_id, process.generation))
        process.member_id = answer.member_id
        if answer.error_code:
            return
        process.generation = answer.generation_id
        process.members = [member.member_id for member in answer.members]
        members = frozenset(process.members) if process.members else None
        assert members is None or (answer.leader == answer.member_id and answer.member_id in members)
        assert answer.protocol_name is not None
        instances = [member.group_instance_id for member in answer.members if member.group_instance_id is not None]
        assert len(instances) == len(set(instances))
        self._check_generation(answer.generation_id, answer.leader, answer.protocol_name, members)
        process.next_request = "sync"

    def _check_generation(self, generation: int, leader: str, protocol: str, members: frozenset[str] | None) -> None:
        known = self.generations.setdefault(generation, (leader, protocol, members))
        assert known[1] == protocol
        group = self.world.group
        if group.state is State.COMPLETING:
            # Leader and members stay those of the join until a static member returns.
            assert known[0] == leader
            assert None in (known[2], members) or known[2] == members
        self.generations[generation] = (leader, protocol, members or known[2])

    def _on_synced(self, asked: Asked, answer: SyncGroupResponse) -> None:
        assert isinstance(asked.body, SyncGroupRequest)
        generation = asked.body.generation_id
        recorded = [
            member.assignment
            for value in self._values()
            if value.generation_id == generation
            for member in value.members
            if member.member_id == asked.member_id
        ]
        assert answer.assignment in recorded
        before = self.received.setdefault(generation, {}).setdefault(asked.member_id, answer.assignment)
        assert before == answer.assignment
        asked.process.next_request = "beat"

    def _on_refused(self, asked: Asked, code: ErrorCode) -> None:
        process = asked.process
        process.next_request = "join"
        if asked.member_id == process.member_id and code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            process.earlier.append((process.member_id, process.generation))
            process.member_id, process.generation = "", -1

    def _values(self) -> list[ClassicGroupValue]:
        return [record.value for record in self.world.log if record.value is not None]

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), seconds=st.integers(1, 20))
    def clients_run(self, names: set[str], seconds: int) -> None:
        """These processes act as clients do; the others are silent."""
        for _ in range(seconds):
            for name in sorted(names):
                self._run(self.processes[name])
            self.world.advance(1)
            self._receive()

    def _run(self, process: Process) -> None:
        if any(asked.process is process for asked in self.asked):
            return
        if process.next_request == "join":
            self._join(process, process.member_id, ("range", "sticky"), "orders", 60, False)
        elif process.next_request == "sync":
            self.syncs(process.name, 9)
        else:
            self.beats(process.name, False)

    @rule(
        name=st.sampled_from(NAMES),
        protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)]),
        topic=st.sampled_from(["orders", "payments"]),
        rebalance=st.sampled_from([0, 10, 60]),
        is_old=st.booleans(),
    )
    def joins(self, name: str, protocols: tuple[str, ...], topic: str, rebalance: int, is_old: bool) -> None:
        process = self.processes[name]
        self._join(process, process.member_id, protocols, topic, rebalance, is_old)

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), is_old=st.booleans())
    def restart(self, names: set[str], is_old: bool) -> None:
        """These processes have died without LeaveGroup, and join as new ones."""
        for process in (self.processes[name] for name in sorted(names)):
            process.earlier.append((process.member_id, process.generation))
            process.member_id, process.generation = "", -1
            self._join(process, "", ("range", "sticky"), "orders", 60, is_old)

    def _join(
        self, process: Process, member_id: str, protocols: tuple[str, ...], topic: str, rebalance: int, is_old: bool
    ) -> None:
        metadata = [JoinGroupProtocol(protocol, subscription(topic)) for protocol in protocols]
        body = JoinGroupRequest(GROUP, 10_000, rebalance * 1000, member_id, STATIC.get(process.name), "consumer", metadata)
        self._send(process, body, member_id, requires_known_member_id=not is_old, supports_skip_assignment=not is_old)

    @rule(name=st.sampled_from(NAMES), forgotten=st.integers(0, 4))
    def syncs(self, name: str, forgotten: int) -> None:
        """Sync. A leader leaves the member with the index `forgotten` out of its assignments."""
        process = self.processes[name]
        given = [member for i, member in enumerate(process.members) if i != forgotten]
        assignments = [SyncGroupAssignment(member, f"{process.generation} {i}".encode()) for i, member in enumerate(given)]
        body = SyncGroupRequest(GROUP, process.generation, process.member_id, STATIC.get(name), "consumer", None, assignments)
        self._send(process, body, process.member_id)

    @rule(name=st.sampled_from(NAMES), is_stale=st.booleans())
    def beats(self, name: str, is_stale: bool) -> None:
        process = self.processes[name]
        member_id, generation = process.earlier[-1] if is_stale and process.earlier else (process.member_id, process.generation)
        self._send(process, HeartbeatRequest(GROUP, generation, member_id, STATIC.get(name)), member_id)

    @precondition(lambda self: self.world.groups.get(GROUP) is not None)
    @rule(name=st.sampled_from(NAMES), is_stale=st.booleans())
    def commits(self, name: str, is_stale: bool) -> None:
        """Only a current member in the current generation may commit, or a program without a membership if the group is empty."""
        process, group = self.processes[name], self.world.group
        member_id, generation = process.earlier[-1] if is_stale and process.earlier else (process.member_id, process.generation)
        try:
            group.check_offset_commit(member_id, STATIC.get(name), generation, [(b"t", 0)], self.world.now)
        except BrokerError:
            return
        is_member = member_id in group.members and generation == group.generation and group.state is not State.COMPLETING
        assert is_member or (generation < 0 and group.is_empty)

    @rule(name=st.sampled_from(NAMES), is_operator=st.booleans())
    def leaves(self, name: str, is_operator: bool) -> None:
        process = self.processes[name]
        instance_id, member_id = STATIC.get(name), process.member_id
        if is_operator and instance_id is not None:
            member_id = ""
        self._send(process, LeaveGroupRequest(GROUP, [LeavingMember(member_id, instance_id)]), member_id)

    # -- the world ----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 9.0, 10.0, 60.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self._receive()

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), seconds=st.integers(0, 12))
    def appends_fail_for_a_while(self, names: set[str], seconds: int) -> None:
        self.world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.clients_run(names, seconds)
        self.world.append_error = None

    @rule()
    def the_coordinator_moves(self) -> None:
        self.world.move()
        self._receive()
        durable = {value.generation_id for value in self._values()}
        self.generations = {generation: known for generation, known in self.generations.items() if generation in durable}
        assert not self.asked, "no request is left behind"

    @precondition(lambda self: self.world.groups.get(GROUP) is not None and self.world.group.is_empty)
    @rule()
    def is_deleted(self) -> None:
        for record in self.world.group.tombstones():
            self.world.log.append(record)  # type: ignore[arg-type]
            self.world.classic.replay(record)  # type: ignore[arg-type]
        assert len(self.world.deadlines) == 0
        self.generations.clear()
        self.received.clear()
        self.world.log.clear()

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def requests_wait_no_longer_than_they_may(self) -> None:
        assert all(self.world.now - asked.since <= BOUND for asked in self.asked)

    @invariant()
    def requests_that_are_not_answered_wait(self) -> None:
        waiting = [asked.asker for asked in self.asked]
        group = self.world.groups.get(GROUP)
        known = [*group.joining.values(), *group.syncing.values()] if isinstance(group, ClassicGroup) else []
        assert sorted(map(id, waiting)) == sorted(map(id, known))

    @invariant()
    def what_is_durable_is_in_the_log(self) -> None:
        """A stable group is as the log says. (An empty one may differ, after an append that failed.)"""
        group = self.world.groups.get(GROUP)
        if not isinstance(group, ClassicGroup) or group.state is not State.STABLE:
            return
        loaded = ClassicWorld(self.world.config, log=list(self.world.log)).group
        assert (loaded.state, loaded.generation, loaded.protocol, loaded.protocol_type, loaded.leader) == (
            group.state,
            group.generation,
            group.protocol,
            group.protocol_type,
            group.leader,
        )
        assert loaded.static_members == group.static_members
        assert list(loaded.members) == list(group.members)
        for member_id, member in group.members.items():
            other = loaded.members[member_id]
            assert other.assignment == member.assignment
            assert other.metadata(group.protocol) == member.metadata(group.protocol)

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.world.groups.get(GROUP)
        if not isinstance(group, ClassicGroup):
            return
        assert {m.instance_id: m.member_id for m in group.members.values() if m.is_static} == group.static_members
        assert (group.leader in group.members) is bool(group.members)
        assert not (group.joining and group.state is not State.PREPARING)
        assert not (group.syncing and group.state is not State.COMPLETING)
        assert not (group.unsynced and group.state not in (State.COMPLETING, State.STABLE))
        assert set(group.joining) | set(group.syncing) | set(group.unsynced) <= set(group.members)
        assert not set(group.pending) & set(group.members)
        assert not (group.is_empty and group.members)
        for protocol in ("range", "sticky"):
            supporters = sum(protocol in member.protocols for member in group.members.values())
            assert group._supporters.get(protocol, 0) == supporters

    @invariant()
    def all_that_waits_has_a_deadline(self) -> None:
        group, deadlines = self.world.groups.get(GROUP), self.world.deadlines
        if not isinstance(group, ClassicGroup):
            return
        assert (("classic join", GROUP) in deadlines) is (group.state is State.PREPARING)
        assert (("classic sync", GROUP) in deadlines) is bool(group.unsynced)
        with_session = {key[2] for key in deadlines._actions if key[0] == "classic session"}  # type: ignore[index]
        paused = {member_id for member_id, member in group.members.items() if group.is_session_paused(member)}
        assert with_session | paused == set(group.members) | set(group.pending) | paused
        assert with_session <= set(group.members) | set(group.pending)

    def teardown(self) -> None:
        """Let time bring the group to rest."""
        self.world.advance(2 * BOUND)
        self._receive()
        assert not self.asked
        assert len(self.world.deadlines) == 0
        group = self.world.groups.get(GROUP)
        assert group is None or group.is_empty


TestClassicGroups = ClassicGroups.TestCase
TestClassicGroups.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
