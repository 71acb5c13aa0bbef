"""Groups that change their protocol while they have members: a whole shard and members of both protocols, as a story.

In addition to those of `consumer_world.py`, the story has requests of the classic protocol, whose answers may follow later:

    > C joins orders (classic)
    > 3 s pass
      C: generation 1, range, leader C, members C
    > C syncs with C: orders 0-3
      log: classic generation 1, range, leader C: C orders 0-3
      C: has orders 0-3

Member ids are printed as the names of the processes that got them; the second id of a process as `C'`.
"""

from __future__ import annotations

import struct
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from consumer_world import CONFIG, GROUP, ConsumerWorld, Topics

from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.migration.assignment import encode_assignment, parse_assignment
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord, GroupRecord
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.shard import GroupShard
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

Named = Mapping[str, Collection[int]]
"""Topic -> partitions."""


def subscription(version: int, topics: Iterable[str], owned: Named, rack: str | None = None) -> bytes:
    """Encode a ConsumerProtocolSubscription. Version 0 has no `owned`."""
    names = list(topics)
    data = struct.pack(">hi", version, len(names)) + b"".join(map(_string, names)) + b"\xff\xff\xff\xff"
    if version >= 1:
        data += struct.pack(">i", len(owned))
        for name, numbers in owned.items():
            data += _string(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers))
    if version >= 2:
        data += struct.pack(">i", -1)
    if version >= 3:
        data += struct.pack(">h", -1) if rack is None else _string(rack)
    return data


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


class Asker:
    """The sender of one request. Tests expect exactly one answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: list[Message | ErrorCode] = []

    def reply(self, response: Message) -> None:
        self.answers.append(response)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self.answers.append(code)

    @property
    def answer(self) -> Message | ErrorCode | None:
        return self.answers[-1] if self.answers else None


@dataclass(slots=True)
class Process:
    """A member of the classic protocol: it takes over ids, generations and assignments from the answers."""

    name: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    topics: tuple[str, ...] = ()
    names: tuple[str, ...] = ("range",)
    version: int = 0
    rack: str | None = None
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    ids: int = 0
    owned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The partitions that it names as owned in its subscription, from version 1 on."""


class MigrationWorld(ConsumerWorld):
    def __init__(self, config: GroupConfig = CONFIG, log: Iterable[GroupRecord] = (), **counts: int) -> None:
        self.processes: dict[str, Process] = {}
        self.labels: dict[str, str] = {}
        self._seed = 0
        super().__init__(config, log, **counts)

    def _begin(self, log: Iterable[GroupRecord]) -> None:
        self._seed += 1
        self.shard = GroupShard(self.config, Random(self._seed), self.topics.image)
        self.groups, self.deadlines = self.shard.groups, self.shard.deadlines
        self.consumer = self.shard.consumer
        self.log = list(log)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self.topics.changed.clear()
        for result in self.shard.on_loaded(self.now, self.now_ms):
            self.apply(result)

    def move(self, log: Iterable[GroupRecord] | None = None) -> None:
        self.story.append("> the coordinator moves")
        for asker in self.shard.take_waiting():
            self._send(asker, BrokerError(ErrorCode.NOT_COORDINATOR))
        self._begin(self.log if log is None else log)

    @property
    def classic(self) -> ClassicGroup:
        group = self.groups.get(GROUP)
        assert isinstance(group, ClassicGroup)
        return group

    @property
    def group_type(self) -> str | None:
        group = self.groups.get(GROUP)
        return None if group is None else group.group_type

    # -- the shell ----------------------------------------------------------------------------------------------------

    def apply(self, result: Result) -> BrokerError | None:
        error = BrokerError(self.append_error) if result.records and self.append_error is not None else None
        if error is None:
            for record in result.records:
                self.log.append(record)
                self.shard.replay(record, len(self.log) - 1)
                self.story.append(f"  log: {self.record_text(record)}")
        else:
            self.story.append("  the append fails")
        replies = [(asker, error) for asker, _ in result.replies] if error else list(result.replies)
        if result.on_append is not None:
            replies += result.on_append(error)
        for asker, answer in replies:
            self._send(asker, answer)
        return error

    def _send(self, asker: object, answer: Message | BrokerError) -> None:
        refuse, reply = asker.refuse, asker.reply  # type: ignore[attr-defined]
        if isinstance(answer, BrokerError):
            refuse(answer.code, answer.message)
        else:
            reply(answer)
        if isinstance(asker, Asker):
            assert len(asker.answers) == 1
            self._learn(asker, answer)
            self.story.append(f"  {asker.name}: {self._answer_text(answer)}")

    def ask(self, name: str, body: Message) -> Asker:
        asker = Asker(name)
        context = RequestContext(asker, f"client-{name}", "h", self.now, self.now_ms)
        try:
            result = self._decide(body, context)
        except BrokerError as e:
            self._send(asker, e)
            return asker
        error = self.apply(result)
        if error is not None and result.on_append is None and not result.replies:
            self._send(asker, error)
        return asker

    def _decide(self, body: Message, context: RequestContext) -> Result:
        match body:
            case JoinGroupRequest():
                return self.shard.join(body, context)
            case SyncGroupRequest():
                return self.shard.sync(body, context)
            case HeartbeatRequest():
                return self.shard.heartbeat(body, context)
            case LeaveGroupRequest():
                return self.shard.leave(body, context)
        raise AssertionError(body)

    def _learn(self, asker: Asker, answer: Message | BrokerError) -> None:
        if not isinstance(answer, JoinGroupResponse):
            return
        process = self.process(asker.name)
        if answer.member_id != process.member_id:
            self.labels[answer.member_id] = process.name + "'" * process.ids
            process.ids += 1
            process.member_id = answer.member_id
        if not answer.error_code:
            process.generation = answer.generation_id

    # -- members of the classic protocol ------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        return self.processes.setdefault(name, Process(name))

    def classic_join(self, name: str, *topics: str, new_id: bool = False, member_id: str | None = None, **options: Any) -> Asker:
        """Join as a client does: a process without an id gets one first. `options`: fields of `Process`, kept for later joins."""
        process = self.process(name)
        process.topics = topics or process.topics
        for option, value in options.items():
            setattr(process, option, value)
        said = [*process.topics, *(["as a new process"] if new_id else []), *([f"as {member_id}"] if member_id else [])]
        self.story.append(f"> {name} joins {' '.join(said)} (classic)")
        if new_id:
            process.member_id = ""
        asker = self.ask(name, self._join_request(process, member_id))
        if isinstance(asker.answer, JoinGroupResponse) and asker.answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.story.pop()
            asker = self.ask(name, self._join_request(process, None))
        return asker

    def _join_request(self, process: Process, member_id: str | None) -> JoinGroupRequest:
        metadata = subscription(process.version, process.topics, process.owned, process.rack)
        return JoinGroupRequest(
            GROUP,
            process.session_timeout_ms,
            process.rebalance_timeout_ms,
            process.member_id if member_id is None else member_id,
            process.instance_id,
            "consumer",
            [JoinGroupProtocol(protocol, metadata) for protocol in process.names],
        )

    def sync(self, name: str, assign: Mapping[str, Named] | None = None, **fields: Any) -> Asker:
        """Send a SyncGroup. `assign`: process -> topic -> partitions. `fields` replace fields of the request."""
        process = self.process(name)
        given = ", ".join(f"{other}: {_named_text(assign[other])}" for other in assign) if assign else ""
        differs = [f"{field_name}={value}" for field_name, value in fields.items()]
        self.story.append(" ".join([f"> {name} syncs", *([f"with {given}"] if given else []), *differs]))
        assignments = [
            SyncGroupAssignment(self.processes[other].member_id, encode_assignment(0, partitions))
            for other, partitions in (assign or {}).items()
        ]
        values = {
            "generation_id": process.generation,
            "member_id": process.member_id,
            "group_instance_id": process.instance_id,
            "assignments": assignments,
            **fields,
        }
        return self.ask(name, SyncGroupRequest(GROUP, **values))

    def classic_beat(self, name: str, **fields: Any) -> Asker:
        process = self.process(name)
        differs = [f"{field_name}={value}" for field_name, value in fields.items()]
        self.story.append(" ".join([f"> {name} beats (classic)", *differs]))
        values = {
            "generation_id": process.generation,
            "member_id": process.member_id,
            "group_instance_id": process.instance_id,
            **fields,
        }
        return self.ask(name, HeartbeatRequest(GROUP, **values))

    def classic_leave(self, *names: str) -> Asker:
        self.story.append(f"> {' '.join(names)} leave (classic)")
        leaving = [LeavingMember(self.process(name).member_id, self.process(name).instance_id) for name in names]
        return self.ask(names[0], LeaveGroupRequest(GROUP, leaving))

    def commit(self, name: str, *partitions: tuple[str, int], generation: int | None = None) -> list[str]:
        """Commit, and return the error codes of the partitions, or the one of the whole request."""
        process = self.process(name)
        asked = [(self.topics.topic_id(topic), number) for topic, number in partitions]
        group = self.groups.get(GROUP)
        assert group is not None
        epoch = process.generation if generation is None else generation
        try:
            codes = group.check_offset_commit(process.member_id, process.instance_id, epoch, asked, self.now)
        except BrokerError as e:
            return [e.code.name]
        return [ErrorCode(code).name for code in codes]

    def stable(self, *names: str, assign: Mapping[str, Named], **options: Any) -> None:
        """Form a stable classic group of these processes, subscribed to the topics that are assigned. The story leaves it out."""
        topics = sorted({topic for partitions in assign.values() for topic in partitions})
        for name in names:
            self.classic_join(name, *topics, **options)
        self.pass_time(3.0 * len(names))
        leader = next(name for name in names if self.processes[name].member_id == self.classic.leader)
        for name in (leader, *(other for other in names if other != leader)):
            self.sync(name, assign if name == leader else None)
        assert self.classic.state_name == "Stable"
        self.forget()

    # -- text ---------------------------------------------------------------------------------------------------------

    def check(self, expected: str) -> None:
        story, self.story = "\n".join(self.story), []
        assert self._labelled(story) == textwrap.dedent(expected).strip()

    def _labelled(self, text: str) -> str:
        for member_id in sorted(self.labels, key=len, reverse=True):
            text = text.replace(member_id, self.labels[member_id])
        return text

    def _answer_text(self, answer: Message | BrokerError) -> str:
        match answer:
            case BrokerError():
                return answer.code.name
            case JoinGroupResponse():
                return _joined_text(answer)
            case SyncGroupResponse():
                return f"has {_named_text(parse_assignment(answer.assignment).partitions)}"
            case HeartbeatResponse():
                return "ok"
            case LeaveGroupResponse():
                codes = (ErrorCode(member.error_code).name for member in answer.members)
                return "left: " + " ".join("ok" if code == "NONE" else code for code in codes)
        raise AssertionError(answer)

    def record_text(self, record: GroupRecord) -> str:
        if not isinstance(record, GroupMetadataRecord):
            return super().record_text(record)
        value = record.value
        return "no classic group" if value is None else f"classic generation {value.generation_id}, {_value_text(value)}"


def _joined_text(answer: JoinGroupResponse) -> str:
    if answer.error_code:
        return f"{ErrorCode(answer.error_code).name} {answer.member_id}"
    words = [f"generation {answer.generation_id}", str(answer.protocol_name)]
    if answer.leader:
        words.append(f"leader {answer.leader}")
    if answer.members:
        words.append("members " + " ".join(member.member_id for member in answer.members))
    return ", ".join([*words, "skip the assignment"] if answer.skip_assignment else words)


def _value_text(value: ClassicGroupValue) -> str:
    if not value.members:
        return "empty"
    members = (f"{m.member_id} {_named_text(parse_assignment(m.assignment).partitions)}" for m in value.members)
    return f"{value.protocol}, leader {value.leader}: " + "; ".join(members)


def _named_text(partitions: Named) -> str:
    texts = []
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        ranges: list[list[int]] = []
        for number in numbers:
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        texts.append(f"{topic} " + ",".join(f"{a}-{b}" if a < b else str(a) for a, b in ranges))
    return " ".join(texts) or "nothing"


__all__ = ["CONFIG", "GROUP", "Asker", "MigrationWorld", "Topics", "subscription"]
