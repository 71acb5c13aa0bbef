"""Groups of the classic protocol without a broker: a log that is a list, time that jumps, and members that follow a script.

A script is a list of steps, each followed by its visible effects, indented. `check` plays the steps, and compares:

    > A enters                  joins, and joins again with the id that it gets (a member of today's clients)
    > 3 s pass
      A: generation 1, range, leader A, members A
    > A syncs A=a
      log: generation 1, range, leader A: A=a
      A: assigned a

Steps: `A B are stable OPTIONS` (they enter and sync, and are assigned a and b; nothing of it is printed), `A joins|enters|rejoins
OPTIONS`, `A syncs B=b ... OPTIONS`, `A beats OPTIONS`, `A leaves OPTIONS`, `A commits OPTIONS`, `N s pass`, `appends fail: CODE`
(until `appends succeed`), `the coordinator moves`, `group` and `durable group` (show it). Options of a join are kept for the
member's next joins:

    protocols=range,sticky  type=consumer  topics=orders  session=10  rebalance=60  instance=i
    id=X                    send this id (a name stands for its last id; `none` for no id)
    generation=N            send this one instead of the last one learned
    old                     the request's version has no MEMBER_ID_REQUIRED
    noskip                  the request's version has no skip_assignment
    static                  the instance ids are the names in lower case (only `are stable`)

A member id is printed as the name of the member that joined with it; the second id that a member gets as `A'`, and so on; one
that no answer has named yet as `?`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.classic.protocol import ClassicProtocol
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.state import GroupTable
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP = "g"
CONFIG = GroupConfig()
START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """A subscription of version 0, as `test_classic_subscription.py` has it from Kafka."""
    body = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


class RecordedAsker:
    """Takes the answers to one request. Tests expect exactly one."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.answers: list[Message | ErrorCode] = []

    def reply(self, response: Message) -> None:
        self.answers.append(response)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self.answers.append(code)


class ClassicWorld:
    """A shard with classic groups alone, and the shell's part: it appends, replays, and sends what is decided."""

    def __init__(self, config: GroupConfig = CONFIG, seed: int = 0, log: Iterable[GroupMetadataRecord] = ()) -> None:
        self.config = config
        self.seed = seed
        self.now = 1000.0
        self.log: list[GroupMetadataRecord] = []
        self.append_error: ErrorCode | None = None
        """The error of all appends until it is None again."""
        self.answers: list[tuple[RecordedAsker, Message | BrokerError]] = []
        """The answers in the order in which they were sent. `take_answers` empties the list."""
        self._begin(list(log))

    def _begin(self, log: list[GroupMetadataRecord]) -> None:
        self.groups = GroupTable()
        self.deadlines = Deadlines()
        self.seed += 1
        self.classic = ClassicProtocol(self.config, self.groups, self.deadlines, Random(self.seed))
        for record in log:
            self.classic.replay(record)
        self.log = log

    def move(self) -> None:
        """Another coordinator takes over, and replays the log."""
        for asker in self.classic.take_waiting():
            self._send(asker, BrokerError(ErrorCode.NOT_COORDINATOR))
        self._begin(self.log)
        for result in self.classic.on_loaded(self.now, self.now_ms):
            self.apply(result)

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now * 1000)

    @property
    def group(self) -> ClassicGroup:
        group = self.groups.get(GROUP)
        assert isinstance(group, ClassicGroup)
        return group

    def context(self, asker: RecordedAsker) -> RequestContext:
        return RequestContext(asker, asker.name, "127.0.0.1", self.now, self.now_ms)

    # -- what the coordinator does ------------------------------------------------------------------------------------

    def _send(self, asker: object, answer: Message | BrokerError) -> None:
        assert isinstance(asker, RecordedAsker)
        self.answers.append((asker, answer))
        if isinstance(answer, BrokerError):
            asker.refuse(answer.code, answer.message)
        else:
            asker.reply(answer)

    def apply(self, result: Result) -> BrokerError | None:
        error = BrokerError(self.append_error) if result.records and self.append_error is not None else None
        if error is not None:
            for asker, _ in result.replies:
                self._send(asker, error)
        else:
            for record in result.records:
                assert isinstance(record, GroupMetadataRecord)
                self.log.append(record)
                self.classic.replay(record)
        replies = [] if error is not None else list(result.replies)
        if result.on_append is not None:
            replies += result.on_append(error)
        for asker, answer in replies:
            self._send(asker, answer)
        return error

    def request(self, asker: RecordedAsker, body: Message, **versions: bool) -> None:
        """Have the coordinator decide a request, and carry out the decision."""
        try:
            result = self._decide(asker, body, versions)
        except BrokerError as e:
            self._send(asker, e)
            return
        error = self.apply(result)
        if error is not None and result.on_append is None and not result.replies:
            self._send(asker, error)

    def _decide(self, asker: RecordedAsker, body: Message, versions: dict[str, bool]) -> Result:
        context = self.context(asker)
        match body:
            case JoinGroupRequest():
                return self.classic.join(body, context, **versions)
            case SyncGroupRequest():
                return self.classic.sync(body, context)
            case HeartbeatRequest():
                return self.classic.heartbeat(body, context)
            case LeaveGroupRequest():
                return self.classic.leave(body, context)
        raise AssertionError(body)

    def advance(self, seconds: float) -> None:
        """Let time pass: deadline by deadline."""
        end = self.now + seconds
        while (due := self.deadlines.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            for result in self.deadlines.expire(self.now, self.now_ms):
                self.apply(result)
        self.now = end

    def take_answers(self) -> list[tuple[RecordedAsker, Message | BrokerError]]:
        answers, self.answers = self.answers, []
        return answers


# -- scripts ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Actor:
    """A process in a script: it takes over ids and generations from the answers."""

    name: str
    member_id: str = ""
    generation: int = -1
    options: dict[str, str] = field(default_factory=dict)
    ids: int = 0
    """The number of member ids that it has received."""


_JOIN_OPTIONS = {"protocols", "type", "topics", "session", "rebalance", "instance"}


class Script:
    """Plays the steps of a script in a world."""

    def __init__(self, world: ClassicWorld) -> None:
        self.world = world
        self._actors: dict[str, Actor] = {}
        self._labels = {"": "nobody"}
        self._seen_records = len(world.log)

    def play(self, step: str) -> list[str]:
        """Carry out the step. Returns the lines that are seen because of it."""
        self._act(step)
        lines = [*self._new_records()]
        while answers := self.world.take_answers():
            for asker, answer in answers:
                lines.append(f"{asker.name.split()[0]}: {self._answered(asker, answer)}")
        return [*lines, *self._shown(step)]

    # -- steps --------------------------------------------------------------------------------------------------------

    def _act(self, step: str) -> None:
        if match := re.fullmatch(r"([\d.]+) s pass", step):
            self.world.advance(float(match[1]))
        elif match := re.fullmatch(r"appends fail: (\w+)", step):
            self.world.append_error = ErrorCode[match[1]]
        elif step == "appends succeed":
            self.world.append_error = None
        elif match := re.fullmatch(r"([A-Z ]+) are stable(.*)", step):
            self._stabilize(match[1].split(), match[2])
        elif step == "the coordinator moves":
            self.world.move()
        elif step not in ("group", "durable group"):
            name, verb, *words = step.split()
            actor = self._actors.setdefault(name, Actor(name))
            options = {word.partition("=")[0]: word.partition("=")[2] for word in words}
            getattr(self, f"_{verb}")(actor, options)

    def _stabilize(self, names: list[str], options: str) -> None:
        chosen = options.replace(" static", "")
        for name in names:
            instance = f" instance={name.lower()}" if "static" in options else ""
            self.play(f"{name} enters{chosen}{instance}")
        self.world.advance(3 * len(names))
        self._new_records()
        leader = next(actor.name for actor in self._actors.values() if actor.member_id == self.world.group.leader)
        for name in (leader, *(other for other in names if other != leader)):
            self.play(f"{name} syncs " + " ".join(f"{other}={other.lower()}" for other in names if name == leader))
        assert self.world.group.state_name == "Stable"
        self.world.take_answers()

    def _id(self, actor: Actor, options: dict[str, str]) -> str:
        named = options.pop("id", None)
        if named is None:
            return actor.member_id
        if named == "none":
            return ""
        return self._actors[named].member_id if named in self._actors else named

    def _generation(self, actor: Actor, options: dict[str, str]) -> int:
        return int(options.pop("generation", actor.generation))

    def _joins(self, actor: Actor, options: dict[str, str]) -> None:
        actor.options.update((key, value) for key, value in options.items() if key in _JOIN_OPTIONS)
        body = self._join_request(actor, self._id(actor, options))
        versions = {"requires_known_member_id": "old" not in options, "supports_skip_assignment": "noskip" not in options}
        self.world.request(RecordedAsker(actor.name), body, **versions)

    def _enters(self, actor: Actor, options: dict[str, str]) -> None:
        self._joins(actor, {**options, "id": "none"})
        asker, answer = self.world.answers[-1] if self.world.answers else (RecordedAsker(), None)
        if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.world.answers.pop()
            self._learn(asker, answer)
            self._joins(actor, dict(options))

    _rejoins = _joins

    def _join_request(self, actor: Actor, member_id: str) -> JoinGroupRequest:
        chosen = actor.options
        metadata = subscription(*chosen.get("topics", "orders").split("+"))
        names = [name for name in chosen.get("protocols", "range").split(",") if name]
        return JoinGroupRequest(
            GROUP,
            int(float(chosen.get("session", "10")) * 1000),
            int(float(chosen.get("rebalance", "60")) * 1000),
            member_id,
            chosen.get("instance"),
            chosen.get("type", "consumer"),
            [JoinGroupProtocol(name, metadata) for name in names],
        )

    def _syncs(self, actor: Actor, options: dict[str, str]) -> None:
        member_id, generation = self._id(actor, options), self._generation(actor, options)
        instance = options.pop("instance", actor.options.get("instance"))
        named = options.pop("type", None), options.pop("protocol", None)
        assignments = [
            SyncGroupAssignment(self._actors[name].member_id if name in self._actors else name, value.encode())
            for name, value in options.items()
        ]
        body = SyncGroupRequest(GROUP, generation, member_id, instance or None, *named, assignments)
        self.world.request(RecordedAsker(actor.name), body)

    def _beats(self, actor: Actor, options: dict[str, str]) -> None:
        member_id, generation = self._id(actor, options), self._generation(actor, options)
        instance = options.get("instance", actor.options.get("instance"))
        self.world.request(RecordedAsker(actor.name), HeartbeatRequest(GROUP, generation, member_id, instance or None))

    def _leaves(self, actor: Actor, options: dict[str, str]) -> None:
        """Options: `and=B,C` removes these members in the same request; `instances=i,j` is an operator who removes by instance
        ids alone."""
        if "instances" in options:
            leaving = [LeavingMember("", instance) for instance in options["instances"].split(",")]
        else:
            others = [self._actors[name] for name in options.get("and", "").split(",") if name]
            leaving = [LeavingMember(self._id(actor, options), options.get("instance", actor.options.get("instance")))]
            leaving += [LeavingMember(other.member_id, other.options.get("instance")) for other in others]
        self.world.request(RecordedAsker(actor.name), LeaveGroupRequest(GROUP, leaving))

    def _commits(self, actor: Actor, options: dict[str, str]) -> None:
        asker = RecordedAsker(actor.name)
        member_id, generation = self._id(actor, options), self._generation(actor, options)
        instance = options.get("instance", actor.options.get("instance"))
        try:
            codes = self.world.group.check_offset_commit(member_id, instance, generation, [(b"t", 0)], self.world.now)
        except BrokerError as e:
            self.world._send(asker, e)
        else:
            self.world._send(asker, HeartbeatResponse(codes[0]))

    # -- what is seen -------------------------------------------------------------------------------------------------

    def _answered(self, asker: RecordedAsker, answer: Message | BrokerError) -> str:
        match answer:
            case BrokerError():
                return answer.code.name
            case JoinGroupResponse():
                self._learn(asker, answer)
                return self._joined(answer)
            case SyncGroupResponse():
                return f"assigned {answer.assignment.decode() or 'nothing'}"
            case HeartbeatResponse():
                return "ok"
            case LeaveGroupResponse():
                return "left " + ", ".join(self._left(m.member_id, m.group_instance_id, m.error_code) for m in answer.members)
        raise AssertionError(answer)

    def _learn(self, asker: RecordedAsker, answer: JoinGroupResponse) -> None:
        """The process of the asker takes over the member id and the generation. `asker.name` is the name of the process."""
        actor = self._actors[asker.name]
        if answer.member_id != actor.member_id:
            self._labels[answer.member_id] = actor.name + "'" * actor.ids
            actor.ids += 1
        actor.member_id = answer.member_id
        if not answer.error_code:
            actor.generation = answer.generation_id

    def _label(self, member_id: str | None) -> str:
        return self._labels.get(member_id or "", "?")

    def _joined(self, answer: JoinGroupResponse) -> str:
        if answer.error_code:
            return f"{ErrorCode(answer.error_code).name} {self._label(answer.member_id)}"
        words = [f"generation {answer.generation_id}", str(answer.protocol_name), f"leader {self._label(answer.leader)}"]
        if answer.members:
            words.append("members " + " ".join(self._label(member.member_id) for member in answer.members))
        return ", ".join([*words, "skip the assignment"] if answer.skip_assignment else words)

    def _left(self, member_id: str, instance_id: str | None, code: int) -> str:
        label = self._label(member_id) if member_id else str(instance_id)
        return f"{label} {ErrorCode(code).name}" if code else label

    def _new_records(self) -> Iterable[str]:
        # An answer gives its member id a name in the script, and records with the id are appended before the answer.
        for _, answer in self.world.answers:
            if isinstance(answer, JoinGroupResponse):
                self._learn(next(asker for asker, other in self.world.answers if other is answer), answer)
        records, self._seen_records = self.world.log[self._seen_records :], len(self.world.log)
        return [f"log: {self._value(record.value)}" for record in records]

    def _value(self, value: ClassicGroupValue | None) -> str:
        if value is None:
            return "no group"
        if not value.members:
            return f"generation {value.generation_id}, empty"
        members = " ".join(f"{self._label(m.member_id)}={m.assignment.decode()}" for m in value.members)
        return f"generation {value.generation_id}, {value.protocol}, leader {self._label(value.leader)}: {members}"

    def _shown(self, step: str) -> list[str]:
        if step == "group":
            found = self.world.groups.get(GROUP)
            return ["none" if found is None else self._described(self.world.group)]
        if step == "durable group":
            loaded = ClassicWorld(self.world.config, log=list(self.world.log))
            return [self._described(loaded.group)]
        return []

    def _described(self, group: ClassicGroup) -> str:
        words = [group.state_name, f"generation {group.generation}"]
        if group.members:
            words.append(f"leader {self._label(group.leader)}")
            words.append("members " + " ".join(self._label(member_id) for member_id in group.members))
        if group.pending:
            words.append("pending " + " ".join(self._label(member_id) for member_id in group.pending))
        return ", ".join(words)


def check(script: str, **config: int) -> ClassicWorld:
    """Play a script, and compare what is seen. The keywords are settings of the coordinator."""
    expected = textwrap.dedent(script)
    world = ClassicWorld(replace(CONFIG, **config))  # type: ignore[arg-type]
    player = Script(world)
    lines: list[str] = []
    expected = "\n".join(line for line in expected.splitlines() if line.strip())
    for line in expected.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += [f"  {seen}" for seen in player.play(line[2:])]
    actual = "\n".join(lines)
    assert actual == expected, f"the script went on differently:\n{actual}"
    return world
