"""Groups of the newer protocol without a broker: a log that is a list, time that jumps, and metadata that a test writes.

Requests, records and answers are recorded as text, so that a test reads as a story:

    > A joins orders
      log: A subscribes to orders
      log: group epoch 1
      log: target of A: orders 0-2
      log: target epoch 1
      log: A is STABLE in epoch 1 (before: 0) with orders 0-2
      A: epoch 1, orders 0-2

Ranges are inclusive. `orders 0@1` is partition 0, assigned in member epoch 1; the epoch is left out if it is the member's own. An
answer without an assignment has none: what the member owns has not changed. `(500 ms)` is the heartbeat interval, if it is not
the usual one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    CurrentAssignmentRecord,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    RegularExpressionRecord,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
)
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.state import GroupTable
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import RESOURCE_GROUP
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
)

GROUP = "g"
CONFIG = GroupConfig(group_consumer_assignment_interval_ms=0)
"""Target assignments are computed at once, unless a test is about the interval."""
START_MS = 1_700_000_000_000

Owned = dict[str, Iterable[int]]
"""Topic -> partitions."""


class Topics:
    """The metadata image of a controller with topics alone."""

    def __init__(self, **counts: int) -> None:
        self.image = MetadataImage.empty()
        self.changed: set[str] = set()
        self.generations: dict[str, int] = {}
        """Topic -> how often it was created."""
        self.create(**counts)

    def create(self, **counts: int) -> None:
        """Create topics, or add partitions to them, until they have so many."""
        records: list[AnyRecord] = []
        for name, count in counts.items():
            topic = self.image.topic(name)
            if topic is None:
                self.generations[name] = self.generations.get(name, 0) + 1
                records.append(TopicRecord(name, self.topic_id(name)))
            present = 0 if topic is None else len(topic.partitions)
            records += [PartitionRecord(self.topic_id(name), number, (1,), (1,), 1) for number in range(present, count)]
        self._apply(records, counts)

    def remove(self, *names: str) -> None:
        self._apply([RemoveTopicRecord(self.topic_id(name)) for name in names], names)

    def touch(self, *names: str) -> None:
        """Report the topics as changed, as after an election, although their ids and partitions are the same."""
        self.changed.update(names)

    def _apply(self, records: list[AnyRecord], names: Iterable[str]) -> None:
        self.image = self.image.apply(records, self.image.offset + len(records), 1).image
        self.changed.update(names)

    def topic_id(self, name: str) -> bytes:
        """Topic ids sort as the names do."""
        return f"{name:15.15}{self.generations[name]}".encode()

    def name(self, topic_id: bytes) -> str:
        name, generation = topic_id[:15].decode().strip(), topic_id[15:].decode()
        return name if generation == "1" else f"{name}({generation})"


class RecordedAsker:
    def __init__(self) -> None:
        self.answers: list[Message | BrokerError] = []

    def reply(self, response: Message) -> None:
        self.answers.append(response)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self.answers.append(BrokerError(code, message))


class ConsumerWorld:
    """A shard with groups of the newer protocol alone, and the shell's part: it appends, replays, and sends what is decided."""

    def __init__(self, config: GroupConfig = CONFIG, log: Iterable[GroupRecord] = (), **counts: int) -> None:
        self.config = config
        self.now = 1000.0
        self.topics = Topics(**counts)
        self.settings = GroupConfigManager(config)
        self.log: list[GroupRecord] = []
        self.append_error: ErrorCode | None = None
        """The error of all appends until it is None again."""
        self.story: list[str] = []
        self.epochs: dict[str, int] = {}
        """Member -> the epoch of its last answer."""
        self._begin(log)

    def _begin(self, log: Iterable[GroupRecord]) -> None:
        self.groups = GroupTable()
        self.deadlines = Deadlines()
        self.consumer = ConsumerProtocol(self.config, self.groups, self.deadlines, self.topics.image, self.settings)
        self.log = list(log)
        for record in self.log:
            self.consumer.replay(record)
        self.topics.changed.clear()
        for result in self.consumer.on_loaded(self.now, self.now_ms):
            self.apply(result)

    def move(self, log: Iterable[GroupRecord] | None = None) -> None:
        """Another coordinator takes over, and loads this log (default: the present one)."""
        self.story.append("> the coordinator moves")
        self._begin(self.log if log is None else log)

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now * 1000)

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups.get(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    # -- the shell ----------------------------------------------------------------------------------------------------

    def apply(self, result: Result) -> BrokerError | None:
        error = BrokerError(self.append_error) if result.records and self.append_error is not None else None
        if error is None:
            for record in result.records:
                self.log.append(record)
                self.consumer.replay(record)
                self.story.append(f"  log: {self.record_text(record)}")
        else:
            self.story.append("  the append fails")
        replies = [] if result.on_append is None else result.on_append(error)
        for asker, answer in [*replies, *([] if error else result.replies), *self.consumer.take_woken()]:
            if isinstance(answer, BrokerError):
                asker.refuse(answer.code, answer.message)
            else:
                asker.reply(answer)
        return error

    def decide(self, decide: Callable[[RequestContext], Result], client_id: str, host: str = "h") -> Message:
        """Carry out the decision about a request, and return the answer. Raises `BrokerError` if either fails."""
        asker = RecordedAsker()
        result = decide(RequestContext(asker, client_id, host, self.now, self.now_ms))
        error = self.apply(result)
        if error is not None:
            raise error
        (answer,) = asker.answers
        assert not isinstance(answer, BrokerError)
        return answer

    def pass_time(self, seconds: float) -> None:
        """Let time pass, from deadline to deadline."""
        self.story.append(f"> {seconds:g} s pass")
        end = self.now + seconds
        while (due := self.deadlines.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            self._expire()
        self.now = end

    def settle(self) -> None:
        """Run what is due now."""
        while (due := self.deadlines.next_due()) is not None and due <= self.now:
            self._expire()

    def _expire(self) -> None:
        for result in self.deadlines.expire(self.now, self.now_ms):
            self.apply(result)

    def publish(self) -> None:
        """The coordinator gets the new metadata."""
        self.story.append(f"> metadata: {' '.join(sorted(self.topics.changed))}")
        for result in self.consumer.on_image(self.topics.image, set(self.topics.changed), self.now, self.now_ms):
            self.apply(result)
        self.topics.changed.clear()

    def configure(self, group: str = GROUP, **values: int | str | None) -> None:
        """The broker reads new values of the group's own configuration: `session_timeout_ms=50_000`. None removes one."""
        self.story.append("> configuration: " + " ".join(f"{name}={value}" for name, value in values.items()))
        records = [
            ConfigRecord(RESOURCE_GROUP, group, f"consumer.{name.replace('_', '.')}", None if value is None else str(value))
            for name, value in values.items()
        ]
        delta = self.topics.image.apply(records, self.topics.image.offset + len(records), 1)
        self.topics.image = delta.image
        self.settings.apply_delta(delta, self.now)

    # -- members ------------------------------------------------------------------------------------------------------

    def request(self, member: str, epoch: int, owns: Owned | None = None, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        partitions = None
        if owns is not None:
            partitions = [GroupTopicPartitions(self.topics.topic_id(name), list(owns[name])) for name in owns]
        return ConsumerGroupHeartbeatRequest(fields.pop("group", GROUP), member, epoch, topic_partitions=partitions, **fields)

    def send(self, body: ConsumerGroupHeartbeatRequest, host: str = "h") -> ConsumerGroupHeartbeatResponse | ErrorCode:
        try:
            answer = self.decide(lambda context: self.consumer.heartbeat(body, context), f"client-{body.member_id}", host)
        except BrokerError as e:
            self.story.append(f"  {body.member_id}: {e.code.name}")
            return e.code
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.epochs[body.member_id] = answer.member_epoch
        self.story.append(f"  {body.member_id}: {self.answer_text(answer)}")
        return answer

    def join(self, member: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse | ErrorCode:
        known = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), "owns": {}}
        self.story.append(" ".join(["> " + member, "joins", *topics, *_options(fields)]))
        return self.send(self.request(member, 0, **{**known, **fields}))

    def beat(
        self, member: str, epoch: int | None = None, owns: Owned | None = None, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse | ErrorCode:
        """A heartbeat in this epoch, by default in the one of the member's last answer."""
        said = [] if owns is None else ["owns", self.owned_text({self.topics.topic_id(n): owns[n] for n in owns}) or "nothing"]
        in_epoch = [] if epoch is None else ["in epoch", str(epoch)]
        self.story.append(" ".join([f"> {member} beats", *in_epoch, *said, *_options(fields)]))
        host = fields.pop("host", "h")
        return self.send(self.request(member, self.epochs[member] if epoch is None else epoch, owns, **fields), host)

    def park(self, member: str, owns: Owned | None = None, max_wait_ms: int = 60_000) -> RecordedAsker:
        """A heartbeat that may wait for news. Returns the asker that gets the answer."""
        self.story.append(f"> {member} beats, and waits")
        asker = RecordedAsker()
        body = self.request(member, self.epochs[member], owns, max_wait_ms=max_wait_ms)
        self.apply(self.consumer.heartbeat(body, RequestContext(asker, f"client-{member}", "h", self.now, self.now_ms)))
        return asker

    def leave(self, member: str, epoch: int = -1, **fields: Any) -> ConsumerGroupHeartbeatResponse | ErrorCode:
        self.story.append(" ".join([f"> {member} leaves", *(["for a moment"] if epoch == -2 else []), *_options(fields)]))
        return self.send(self.request(member, epoch, **fields))

    def remove(self, *leaving: LeavingMember) -> list[tuple[str, str]]:
        """An operator removes members; returns (member or instance, error) of each."""
        self.story.append("> an operator removes " + " ".join(m.member_id or f"instance {m.group_instance_id}" for m in leaving))
        body = LeaveGroupRequest(GROUP, list(leaving))
        answer = self.decide(lambda context: self.consumer.remove_members(body, context), "operator")
        assert isinstance(answer, LeaveGroupResponse)
        return [(m.member_id or m.group_instance_id or "", ErrorCode(m.error_code).name) for m in answer.members]

    # -- text ---------------------------------------------------------------------------------------------------------

    def check(self, expected: str) -> None:
        """Compare what has happened since the last check."""
        story, self.story = "\n".join(self.story), []
        assert story == textwrap.dedent(expected).strip()

    def forget(self) -> None:
        """Drop the story so far, so that the next check does not compare it."""
        self.story = []

    def owners(self) -> dict[str, str]:
        """Member -> the partitions that it owns, with those that it has to give up."""
        owned: dict[str, dict[bytes, list[int]]] = {}
        for topic_id, owners in self.group.owners.items():
            for number, member in owners.items():
                owned.setdefault(member, {}).setdefault(topic_id, []).append(number)
        return {member: self.owned_text(owned[member]) for member in sorted(owned)}

    def targets(self) -> dict[str, str]:
        return {member: self.owned_text(self.group.targets[member]) for member in sorted(self.group.targets)}

    def owned_text(self, owned: Mapping[bytes, Iterable[int]], epoch: int | None = None) -> str:
        return " ".join(f"{self.topics.name(t)} {_ranges(owned[t], epoch)}" for t in sorted(owned))

    def answer_text(self, answer: ConsumerGroupHeartbeatResponse) -> str:
        text = f"epoch {answer.member_epoch}"
        if answer.assignment is not None:
            owned = {topic.topic_id: topic.partitions for topic in answer.assignment}
            text += ", " + (self.owned_text(owned) or "nothing")
        usual = self.config.group_consumer_heartbeat_interval_ms
        return text if answer.heartbeat_interval_ms in (usual, 0) else f"{text} ({answer.heartbeat_interval_ms} ms)"

    def record_text(self, record: GroupRecord) -> str:
        match record:
            case ConsumerGroupMetadataRecord(value=None):
                return "the group is gone"
            case ConsumerGroupMetadataRecord(value=value):
                return f"group epoch {value.epoch}"
            case MemberMetadataRecord(member_id=member, value=None):
                return f"{member} is gone"
            case MemberMetadataRecord(member_id=member, value=value):
                return f"{member} subscribes to {_subscription(value)}"
            case TargetAssignmentMetadataRecord(value=None):
                return "no target epoch"
            case TargetAssignmentMetadataRecord(value=value):
                return f"target epoch {value.assignment_epoch}"
            case TargetAssignmentMemberRecord(member_id=member, value=None):
                return f"no target of {member}"
            case TargetAssignmentMemberRecord(member_id=member, value=value):
                return f"target of {member}: {self.owned_text(value) or 'nothing'}"
            case CurrentAssignmentRecord(member_id=member, value=None):
                return f"{member} owns nothing"
            case CurrentAssignmentRecord(member_id=member, value=value):
                epoch = value.member_epoch
                text = f"{member} is {value.state.name} in epoch {epoch} (before: {value.previous_member_epoch}) with "
                text += self.owned_text(value.assigned, epoch) or "nothing"
                revoked = self.owned_text(value.pending_revocation, epoch)
                return f"{text}, revokes {revoked}" if revoked else text
            case RegularExpressionRecord(regex=regex, value=None):
                return f"{regex} is gone"
            case RegularExpressionRecord(regex=regex, value=value):
                return f"{regex} matches {' '.join(value.topics) or 'nothing'}"
            case _:
                return str(record)


def _options(fields: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items()]


def _subscription(value: MemberMetadataValue) -> str:
    parts = [*value.subscribed_topic_names, *([value.subscribed_topic_regex] if value.subscribed_topic_regex else [])]
    more = {"instance": value.instance_id, "rack": value.rack_id, "assignor": value.server_assignor}
    return " ".join([*(parts or ["nothing"]), *(f"{name}={text}" for name, text in more.items() if text is not None)])


def _ranges(numbers: Iterable[int], own_epoch: int | None) -> str:
    epochs = numbers if isinstance(numbers, Mapping) else {}
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        last = ranges[-1] if ranges else None
        if last is not None and last[1] == number - 1 and epochs.get(number) == epochs.get(last[0]):
            last[1] = number
        else:
            ranges.append([number, number])
    return ",".join(
        (f"{first}-{last}" if last > first else str(first))
        + ("" if epochs.get(first) in (own_epoch, None) else f"@{epochs[first]}")
        for first, last in ranges
    )


def durable(group: ConsumerGroup) -> dict[str, Any]:
    """All that the records say of a group."""
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "assignment": (group.assignment_epoch, group.assignment_timestamp),
        "members": group.members,
        "static": group.static_members,
        "targets": {member: {t: set(p) for t, p in target.items()} for member, target in group.targets.items()},
        "resolved": group.resolved,
        "owners": group.owners,
        "topics": dict(group.topic_counts),
        "regexes": dict(group.regex_counts),
    }


def copy_of(request: ConsumerGroupHeartbeatRequest, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return msgspec.structs.replace(request, **fields)
