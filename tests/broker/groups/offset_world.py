"""One `OffsetStore` on a log that is a list: decisions are appended and replayed, as the coordinator does it."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.offsets import OffsetStore
from strandline.broker.groups.records.codec import decode_record, encode_record
from strandline.broker.groups.records.types import GroupMetadataRecord, GroupRecord, OffsetCommitRecord
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.state import CONSUMER, GroupTable
from strandline.controller.metadata.image import MetadataImage, TopicImage
from strandline.controller.metadata.records import AnyRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
)

GROUP = "readers"
ORDERS, BILLS, RECREATED = b"orders".ljust(16, b"-"), b"bills".ljust(16, b"-"), b"orders again".ljust(16, b"-")
NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
RETENTION_MS = GroupConfig().offsets_retention_minutes * MINUTE_MS


class FakeGroup:
    """A group with the answers that the test gives it."""

    def __init__(self, group_id: str = GROUP, *, members: Sequence[str] = ()) -> None:
        self.group_id = group_id
        self.group_type = CONSUMER
        self.protocol_type = "consumer"
        self.state_name = "Stable"
        self.members = list(members)
        self.empty_since_ms = -1
        self.subscribed: set[str] = set()
        self.is_rebalancing = False
        self.refusals: dict[tuple[bytes, int], int] = {}
        """The error codes of partitions that the member does not own."""
        self.checked: list[tuple[str, str | None, int, float]] = []
        """Member, instance id, epoch and time of each commit that was checked."""
        self.was_transactional = False
        """Whether the last one was part of a transaction."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed

    def may_expire_offset(self, topic: str) -> bool:
        return not self.is_rebalancing and topic not in self.subscribed

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: list[tuple[bytes, int]],
        now: float,
        *,
        is_transactional: bool = False,
    ) -> list[int]:
        self.was_transactional = is_transactional
        self.checked.append((member_id, instance_id, epoch, now))
        if member_id not in self.members:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return [self.refusals.get(partition, 0) for partition in partitions]

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        pass

    def tombstones(self) -> list[GroupRecord]:
        return [GroupMetadataRecord(self.group_id, None)]


class NoAsker:
    """The asker of every request. It must not be called: the tests look at the replies of the decisions."""

    def reply(self, response: Message) -> None:
        raise AssertionError("a core does not reply itself")

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        raise AssertionError("a core does not reply itself")


class OffsetWorld:
    """An `OffsetStore`, and the topics `orders` with three partitions and `bills` with one.

    Appended records are committed at once, unless `high_watermark` is set."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.groups = GroupTable()
        self.store = OffsetStore(self.config, self.groups)
        self.log: list[GroupRecord] = []
        self.high_watermark: int | None = None
        self.now_ms = NOW_MS
        self.image = MetadataImage.EMPTY
        self.create(ORDERS, "orders", 3)
        self.create(BILLS, "bills", 1)

    # -- metadata and groups --

    def change(self, *records: AnyRecord) -> list[TopicImage]:
        """Change the metadata; returns the removed topics."""
        delta = self.image.apply(records, self.image.offset + 1, 0)
        self.image = delta.image
        return delta.removed_topics

    def create(self, topic_id: bytes, name: str, partitions: int) -> None:
        of_topic = [PartitionRecord(topic_id, n, (1,), (1,), 1) for n in range(partitions)]
        self.change(TopicRecord(name, topic_id), *of_topic)

    def remove(self, topic_id: bytes) -> list[TopicImage]:
        return self.change(RemoveTopicRecord(topic_id))

    def group(self, group_id: str = GROUP, *, members: Sequence[str] = ()) -> FakeGroup:
        group = FakeGroup(group_id, members=members)
        self.groups.put(group)
        return group

    # -- requests --

    def context(self) -> RequestContext:
        return RequestContext(NoAsker(), "client", "/10.0.0.1", self.now_ms / 1000, self.now_ms)

    def commit_request(self, *partitions: OffsetCommitPartition, **fields: object) -> OffsetCommitRequest:
        given = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, **fields}
        return OffsetCommitRequest(partitions=list(partitions), **given)  # type: ignore[arg-type]

    def commit(self, *partitions: OffsetCommitPartition, **fields: object) -> list[int]:
        """Commit, append and replay; returns the error codes."""
        result = self.store.commit(self.commit_request(*partitions, **fields), self.image, self.context())
        answer = self.carry_out(result)
        assert isinstance(answer, OffsetCommitResponse)
        assert [(p.topic_id, p.partition) for p in answer.partitions] == [(p.topic_id, p.partition) for p in partitions]
        return [p.error_code for p in answer.partitions]

    def fetch(self, topics: dict[bytes, list[int]] | None = None, group_id: str = GROUP) -> OffsetFetchGroupResponse:
        wanted = None if topics is None else [GroupTopicPartitions(topic_id, of) for topic_id, of in topics.items()]
        committed_end = len(self.log) if self.high_watermark is None else self.high_watermark
        return self.store.fetch(OffsetFetchGroup(group_id, topics=wanted), self.image, committed_end)

    def fetched(self, group_id: str = GROUP) -> dict[tuple[bytes, int], int]:
        """All committed offsets of a group."""
        answer = self.fetch(None, group_id)
        assert answer.error_code == 0
        return {(p.topic_id, p.partition): p.committed_offset for p in answer.partitions}

    def delete(self, topics: dict[bytes, list[int]], group_id: str = GROUP) -> list[int]:
        wanted = [GroupTopicPartitions(topic_id, of) for topic_id, of in topics.items()]
        answer = self.carry_out(self.store.delete(OffsetDeleteRequest(group_id, wanted), self.image, self.context()))
        assert isinstance(answer, OffsetDeleteResponse)
        return [p.error_code for p in answer.partitions]

    def expire(self, after_ms: int) -> list[GroupRecord]:
        """Let time pass, and expire; returns the records."""
        self.now_ms += after_ms
        result = self.store.expire(self.now_ms)
        self.carry_out(result)
        return result.records

    # -- the log --

    def carry_out(self, result: Result) -> Message | None:
        """Append and replay the records; returns the answer, if the decision has one."""
        first = len(self.log)
        self.log += result.records
        for offset, record in enumerate(result.records, first):
            self._replay(record, offset)
        answers = [answer for _, answer in result.replies]
        assert not any(isinstance(answer, BrokerError) for answer in answers)
        return answers[0] if answers else None  # type: ignore[return-value]

    def _replay(self, record: GroupRecord, offset: int) -> None:
        if isinstance(record, OffsetCommitRecord):
            self.store.replay(record, offset)
        elif record.value is None:
            self.groups.remove(record.group_id)

    def restart(self) -> None:
        """A new coordinator loads the log, from its bytes."""
        self.groups = GroupTable()
        self.store = OffsetStore(self.config, self.groups)
        self.store.on_high_watermark(len(self.log) if self.high_watermark is None else self.high_watermark)
        for offset, record in enumerate(self.log):
            self._replay(decode_record(*encode_record(record)), offset)


def at(offset: int, partition: int = 0, topic_id: bytes = ORDERS, **fields: object) -> OffsetCommitPartition:
    """A position of a commit request."""
    return OffsetCommitPartition(topic_id, partition, offset, **fields)  # type: ignore[arg-type]


def gone(partition: int = 0, topic: str = "orders", group_id: str = GROUP) -> OffsetCommitRecord:
    """The tombstone of an offset."""
    return OffsetCommitRecord(group_id, topic, partition, None)
