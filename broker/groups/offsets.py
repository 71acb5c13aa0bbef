"""The committed offsets of the groups of one partition of `__consumer_offsets`: the rules of commits, fetches and expiry.

A group id may have offsets without being in the table of groups: a consumer without a membership commits under it to keep its
positions. That is allowed while the group has no members. A group with members accepts commits of its members only. In an older
epoch, a member of the newer protocol may commit only for partitions that it owned then and still owns (KIP-1251).

**An offset belongs to a topic, not to a name.** The record has the name of the topic, as in Kafka, and its id beside the offset.
A topic that is deleted and recreated starts without offsets: those of the old id do not count, and are deleted. An offset without
a topic id (of an earlier Kafka, or with an expire timestamp of its own) counts for the present topic of that name.

**Offsets of a transaction** are pending until its marker is appended (`PendingOffsets`), and no request sees them before. A
request for stable offsets gets UNSTABLE_OFFSET_COMMIT for a partition with a pending offset. The checks are those of a commit,
except that a rebalance in progress does not matter, and that a member with an outdated epoch may store nothing at all.

**A tombstone deletes an offset**, and the pending ones of its position, in one of these cases:

- Its topic was deleted, also if no coordinator was active at that time (`on_loaded`).
- An operator deletes it, or its group.
- It has expired: no member subscribes to its topic, and either the expire timestamp that the commit named has passed, or the
  retention time since the commit and since the group lost its last member. While a classic group rebalances, the coordinator does
  not know its subscriptions, and none of its offsets expires (KAFKA-13636). An offset whose position has a pending one does not
  expire either.

The expiry also deletes a group that has neither members nor offsets, pending ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.offset_table import GroupOffset, OffsetTable
from strandline.broker.groups.pending_offsets import PositionKey
from strandline.broker.groups.records.types import CommittedOffset, GroupRecord, OffsetCommitRecord
from strandline.broker.groups.records.wire import TEXT_BYTES_MAX
from strandline.broker.groups.result import InTransaction, Removal, RequestContext, Result
from strandline.broker.groups.state import Group, GroupTable
from strandline.controller.metadata.image import MetadataImage, TopicImage
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.groups import (
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
)
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnPartitionResult

_CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose subscriptions the coordinator can read: all of the newer protocol, and most classic ones."""
_TIME_MAX = 2**63 - 1


class OffsetStore:
    """The offsets of one shard."""

    def __init__(self, config: GroupConfig, groups: GroupTable) -> None:
        self._config = config
        self._groups = groups
        self._table = OffsetTable()

    def replay(self, record: OffsetCommitRecord, offset: int) -> None:
        """Apply a record. `offset`: its offset in the log."""
        self._table.replay(record, offset)

    def replay_pending(self, record: OffsetCommitRecord, offset: int, producer_id: int) -> None:
        """Apply a record of a transaction of this producer."""
        self._table.replay_pending(record, offset, producer_id)

    def replay_marker(self, producer_id: int, is_commit: bool, offset: int) -> int:
        """Apply the end of a producer's transaction. Returns the number of its pending offsets that are committed."""
        return self._table.replay_marker(producer_id, is_commit, offset)

    def replay_committed(self, record: OffsetCommitRecord) -> None:
        """Apply a record below the high watermark. The caller applies the later records of the same key after it."""
        self._table.replay_committed(record)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Set the partition's high watermark. The caller does so before it replays records, which bounds the number of earlier
        values that the table keeps."""
        self._table.on_high_watermark(high_watermark)

    def groups_with_offsets(self) -> Iterator[str]:
        """The ids of groups that have an offset, pending and uncommitted ones included."""
        yield from self._table.groups
        yield from self._groups_with_pending_only()

    def _groups_with_pending_only(self) -> Iterator[str]:
        return (group_id for group_id in self._table.pending.groups if group_id not in self._table.groups)

    def __len__(self) -> int:
        """The number of offsets, uncommitted ones included, pending ones not."""
        return len(self._table)

    @property
    def group_count(self) -> int:
        """The number of ids that have an offset, pending and uncommitted ones included."""
        return len(self._table.groups) + sum(1 for _ in self._groups_with_pending_only())

    def has_offsets(self, group_id: str) -> bool:
        return bool(self._table.topics(group_id) or self._table.pending.positions(group_id))

    def offsets_of(self, group_id: str) -> list[GroupOffset]:
        """The committed offsets of a group, as of the last `on_high_watermark`, by topic and partition."""
        return self._table.all_committed(group_id)

    # -- commit -------------------------------------------------------------------------------------------------------

    def commit(self, body: OffsetCommitRequest, image: MetadataImage, context: RequestContext) -> Result:
        """Store offsets. Raises the group's `BrokerError` if the member may commit nothing. The response has an error code for
        each partition; a refused one does not fail the others."""
        codes = self._check_membership(body, context.now)
        records: list[GroupRecord] = []
        answers = []
        for asked, code in zip(body.partitions, codes, strict=True):
            topic = image.topics_by_id.get(asked.topic_id)
            code = self._refusal(asked, topic) or code
            if not code and topic is not None:
                value = _committed(asked, topic, body.retention_time_ms, context.now_ms)
                records.append(OffsetCommitRecord(body.group_id, topic.name, asked.partition, value))
            answers.append(OffsetCommitPartitionResponse(asked.topic_id, asked.partition, code))
        return Result(records, [(context.asker, OffsetCommitResponse(answers))])

    def _check_membership(self, body: OffsetCommitRequest, now: float) -> list[int]:
        """The error code of each partition, by the rules of the group. Raises the `BrokerError` for all of them."""
        group, epoch = self._groups.get(body.group_id), body.generation_id_or_member_epoch
        if epoch < 0 and (group is None or group.is_empty):
            # Any member id is accepted: a Java consumer that has left and reads without a membership still sends its last one.
            return [ErrorCode.NONE] * len(body.partitions)
        if group is None:
            has_group = body.member_id or self.has_offsets(body.group_id)  # in Kafka, ids with offsets are groups
            code = ErrorCode.UNKNOWN_MEMBER_ID if has_group else ErrorCode.ILLEGAL_GENERATION
            raise BrokerError(code, f"the group {body.group_id} has no members")
        partitions = [(asked.topic_id, asked.partition) for asked in body.partitions]
        return group.check_offset_commit(body.member_id, body.group_instance_id, epoch, partitions, now)

    def commit_in_transaction(self, body: TxnOffsetCommitRequest, image: MetadataImage, context: RequestContext) -> Result:
        """Store offsets as a part of the producer's transaction. Raises the group's `BrokerError` if the member may commit
        nothing; a refused partition does not fail the others. The codes are those that Kafka's producers know."""
        self._check_transactional(body, context.now)
        records: list[GroupRecord] = []
        answers = []
        for asked in body.partitions:
            topic = image.topics_by_id.get(asked.topic_id)
            code = self._refusal(asked, topic)
            if not code and topic is not None:
                value = _committed(asked, topic, -1, context.now_ms)
                records.append(OffsetCommitRecord(body.group_id, topic.name, asked.partition, value))
            answers.append(TxnPartitionResult(asked.topic_id, asked.partition, code))
        transaction = InTransaction(body.producer_id, body.producer_epoch)
        return Result(records, [(context.asker, TxnOffsetCommitResponse(answers))], transaction=transaction)

    def _check_transactional(self, body: TxnOffsetCommitRequest, now: float) -> None:
        group, epoch = self._groups.get(body.group_id), body.generation_id_or_member_epoch
        if epoch < 0 and (group is None or group.is_empty):
            return
        if epoch < 0 and not body.member_id and body.group_instance_id is None:
            return  # Producers older than KIP-447, and aiokafka's, name only the group. Then nothing is checked, as in Kafka.
        if group is None:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION, f"the group {body.group_id} has no members")
        partitions = [(asked.topic_id, asked.partition) for asked in body.partitions]
        member = (body.member_id, body.group_instance_id, epoch)
        try:
            codes = group.check_offset_commit(*member, partitions, now, is_transactional=True)
        except BrokerError as e:
            raise BrokerError(_as_generation(e.code), e.message) from e
        if any(codes):
            raise BrokerError(_as_generation(next(filter(None, codes))), "the member no longer owns all of the partitions")

    def _refusal(self, asked: OffsetCommitPartition, topic: TopicImage | None) -> int:
        """The error code of a partition, for reasons that do not depend on the member."""
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if asked.partition not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if asked.committed_offset < 0:
            # Kafka stores it, and every client reads -1 as "no offset".
            return ErrorCode.INVALID_REQUEST
        if _is_too_large(asked.committed_metadata or "", self._config.offset_metadata_max_bytes):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # -- fetch --------------------------------------------------------------------------------------------------------

    def fetch(self, asked: OffsetFetchGroup, image: MetadataImage, high_watermark: int) -> OffsetFetchGroupResponse:
        """The offsets that are committed below the high watermark. The caller has checked the member."""
        self._table.on_high_watermark(high_watermark)
        partitions = self._fetch_all(asked.group_id, image) if asked.topics is None else self._fetch(asked, image)
        return OffsetFetchGroupResponse(asked.group_id, partitions=partitions)

    def _fetch(self, asked: OffsetFetchGroup, image: MetadataImage) -> list[OffsetFetchPartition]:
        answers = []
        for of_topic in asked.topics or ():
            topic = image.topics_by_id.get(of_topic.topic_id)
            for partition in of_topic.partitions:
                if topic is None:
                    answer = _no_offset(of_topic.topic_id, partition, ErrorCode.UNKNOWN_TOPIC_ID)
                else:
                    value = self._table.committed(asked.group_id, topic.name, partition)
                    answer = _fetched(topic, partition, value)
                answers.append(answer)
        return answers

    def fetch_stable(self, asked: OffsetFetchGroup, image: MetadataImage) -> OffsetFetchGroupResponse:
        """The offsets after all records, with UNSTABLE_OFFSET_COMMIT where one is pending (KIP-447). The caller sends the
        response when all that the shard knows now is committed."""
        if asked.topics is not None:
            wanted = [(of.topic_id, image.topics_by_id.get(of.topic_id), n) for of in asked.topics for n in of.partitions]
        else:
            wanted = [(topic.topic_id, topic, n) for topic, n in self._positions(asked.group_id, image)]
        answers = [self._fetch_stable(asked.group_id, *position) for position in wanted]
        return OffsetFetchGroupResponse(asked.group_id, partitions=answers)

    def _fetch_stable(self, group_id: str, topic_id: bytes, topic: TopicImage | None, partition: int) -> OffsetFetchPartition:
        if topic is None:
            return _no_offset(topic_id, partition, ErrorCode.UNKNOWN_TOPIC_ID)
        if self._table.pending.has((group_id, topic.name, partition)):
            return _no_offset(topic_id, partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _fetched(topic, partition, self._table.newest(group_id, topic.name, partition))

    def _positions(self, group_id: str, image: MetadataImage) -> Iterator[tuple[TopicImage, int]]:
        """The partitions for which the group has an offset or a pending one, if their topics exist; sorted by topic and
        partition."""
        offsets = [offset[:2] for offset in self._table.all_newest(group_id) if _is_known(offset, image)]
        for name, partition in sorted({*offsets, *self._table.pending.positions(group_id)}):
            topic = image.topic(name)
            if topic is not None:
                yield topic, partition

    def _fetch_all(self, group_id: str, image: MetadataImage) -> list[OffsetFetchPartition]:
        answers = []
        for name, partition, value in self._table.all_committed(group_id):
            topic = image.topic(name)
            if topic is not None and _belongs_to(value, topic):
                answers.append(_fetched(topic, partition, value))
        return answers

    # -- delete -------------------------------------------------------------------------------------------------------

    def delete(self, body: OffsetDeleteRequest, image: MetadataImage, context: RequestContext) -> Result:
        """Delete offsets of topics to which no member is subscribed (KIP-496). Raises GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP for
        a classic group with members whose subscriptions the coordinator cannot read."""
        group = self._groups.get(body.group_id)
        self._check_deletion(body.group_id, group)
        records: list[GroupRecord] = []
        answers = []
        for of_topic in body.topics:
            topic = image.topics_by_id.get(of_topic.topic_id)
            code = _deletion_refusal(group, topic)
            for partition in of_topic.partitions:
                if not code and topic is not None and self._has_position((body.group_id, topic.name, partition)):
                    records.append(OffsetCommitRecord(body.group_id, topic.name, partition, None))
                answers.append(OffsetDeletePartition(of_topic.topic_id, partition, code))
        return Result(records, [(context.asker, OffsetDeleteResponse(partitions=answers))])

    def _has_position(self, key: PositionKey) -> bool:
        """Whether the position has an offset or a pending one."""
        return self._table.newest(*key) is not None or self._table.pending.has(key)

    def _check_deletion(self, group_id: str, group: Group | None) -> None:
        if group is None:
            if not self.has_offsets(group_id):
                raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        elif not group.is_empty and group.protocol_type != _CONSUMER_PROTOCOL:
            raise BrokerError(
                ErrorCode.NON_EMPTY_GROUP, f"the group {group_id} has members of the protocol type {group.protocol_type!r}"
            )

    def delete_group(self, group_id: str) -> list[GroupRecord]:
        """The tombstones of all offsets of a group."""
        positions = [offset[:2] for offset in self._table.all_newest(group_id)]
        return _tombstones(group_id, sorted({*positions, *self._table.pending.positions(group_id)}))

    def delete_topics(self, removed: Sequence[TopicImage]) -> Result:
        """Delete the offsets of topics that were deleted, of all groups."""
        records: list[GroupRecord] = []
        for group_id in sorted(self._table.groups):
            topics = self._table.topics(group_id)
            for topic in removed:
                of_topic = topics.get(topic.name, {})
                gone = [n for n in sorted(of_topic) if _belongs_to(of_topic[n], topic)]
                records += _tombstones(group_id, [(topic.name, n) for n in gone])
        ids = {topic.name: topic.topic_id for topic in removed}
        records += self._pending_tombstones(lambda name, topic_id: topic_id == ids.get(name))
        return Result(records, removal=Removal.TOPIC_DELETION)

    def _pending_tombstones(self, is_gone: Callable[[str, bytes], bool]) -> list[GroupRecord]:
        """Delete pending offsets of topics that were deleted; `is_gone` gets the topic's name and id. Positions that also have an
        offset are skipped: the tombstone of that offset deletes the pending ones, too."""
        records: list[GroupRecord] = []
        pending = self._table.pending
        for group_id in sorted(pending.groups):
            for name, partition in sorted(pending.positions(group_id)):
                key = (group_id, name, partition)
                if self._table.newest(*key) is None and any(is_gone(name, value.topic_id) for value in pending.values(key)):
                    records.append(OffsetCommitRecord(*key, None))
        return records

    def on_loaded(self, image: MetadataImage) -> Result:
        """Delete the offsets of topics that were deleted while no coordinator was active."""
        records: list[GroupRecord] = []
        for group_id in sorted(group_id for group_id in self._table.groups if self._has_unknown(group_id, image)):
            gone = [offset for offset in self._table.all_newest(group_id) if not _is_known(offset, image)]
            records += _tombstones(group_id, [offset[:2] for offset in gone])
        records += self._pending_tombstones(lambda name, topic_id: not _exists(name, topic_id, image))
        return Result(records, removal=Removal.TOPIC_DELETION)

    def _has_unknown(self, group_id: str, image: MetadataImage) -> bool:
        """Whether the group has an offset of a topic that does not exist. It looks up each topic once, because the end of a
        load calls it for all groups in one step."""
        for name, of_topic in self._table.topics(group_id).items():
            topic = image.topic(name)
            if topic is None or not {value.topic_id for value in of_topic.values()} <= {topic.topic_id, ZERO_UUID}:
                return True
        return False

    def expire(self, now_ms: int) -> Result:
        """Delete the expired offsets, and the groups that have neither members nor offsets."""
        records: list[GroupRecord] = []
        for group_id in sorted({*self._table.groups, *(group.group_id for group in self._groups)}):
            group = self._groups.get(group_id)
            expired = self._expired(group_id, group, now_ms)
            records += _tombstones(group_id, [offset[:2] for offset in expired])
            if group is not None and group.is_empty and self._keeps_nothing(group_id, len(expired)):
                records += group.tombstones()
        return Result(records, removal=Removal.EXPIRATION)

    def _keeps_nothing(self, group_id: str, expired: int) -> bool:
        """Whether the group has no pending offsets, and no offsets but the expired ones. `expired`: their number."""
        return not self._table.pending.positions(group_id) and expired == sum(map(len, self._table.topics(group_id).values()))

    def _expired(self, group_id: str, group: Group | None, now_ms: int) -> list[GroupOffset]:
        """The expired offsets of a group, by topic and partition. Topics to which the group is subscribed are skipped as a whole,
        because one step of the event loop checks all offsets of a shard."""
        empty_since_ms = group.empty_since_ms if group is not None and group.is_empty else -1
        unstable = self._table.pending.positions(group_id)
        expired = []
        for topic, of_topic in self._table.topics(group_id).items():
            if group is None or group.may_expire_offset(topic):
                for partition, value in of_topic.items():
                    if self._is_expired(value, empty_since_ms, now_ms) and (topic, partition) not in unstable:
                        expired.append(GroupOffset(topic, partition, value))
        return sorted(expired, key=lambda offset: offset[:2])

    def _is_expired(self, value: CommittedOffset, empty_since_ms: int, now_ms: int) -> bool:
        """Kafka's rule (`OffsetExpirationConditionImpl`), except that an offset that was committed to an empty group is kept for
        a whole retention time after the commit."""
        if value.expire_timestamp != -1:
            return now_ms >= value.expire_timestamp
        unused_since = max(value.commit_timestamp, empty_since_ms)
        return now_ms - unused_since >= self._config.offsets_retention_minutes * 60_000


def _committed(asked: OffsetCommitPartition, topic: TopicImage, retention_ms: int, now_ms: int) -> CommittedOffset:
    metadata = asked.committed_metadata or ""
    if retention_ms == -1:
        return CommittedOffset(asked.committed_offset, asked.committed_leader_epoch, metadata, now_ms, topic_id=topic.topic_id)
    # The version of the record that has an expire timestamp has neither a leader epoch nor a topic id.
    expires = min(max(now_ms + retention_ms, 0), _TIME_MAX)
    return CommittedOffset(asked.committed_offset, metadata=metadata, commit_timestamp=now_ms, expire_timestamp=expires)


def _is_too_large(metadata: str, characters_max: int) -> bool:
    """Whether the metadata is too large. The limit counts characters of UTF-16, as in Kafka, although its key says bytes. The
    record format limits the bytes as well."""
    characters = len(metadata.encode("utf-16-le")) // 2
    return characters > characters_max or len(metadata.encode()) > TEXT_BYTES_MAX


def _belongs_to(value: CommittedOffset, topic: TopicImage) -> bool:
    """Whether an offset that is stored under the name of the topic is one of this topic."""
    return value.topic_id in (topic.topic_id, ZERO_UUID)


def _is_known(offset: GroupOffset, image: MetadataImage) -> bool:
    return _exists(offset.topic, offset.value.topic_id, image)


def _exists(name: str, topic_id: bytes, image: MetadataImage) -> bool:
    """Whether the topic of an offset exists. `topic_id`: the id that is stored with the offset."""
    topic = image.topic(name)
    return topic is not None and topic_id in (topic.topic_id, ZERO_UUID)


def _as_generation(code: int) -> ErrorCode:
    """Replace STALE_MEMBER_EPOCH by a code that producers know (as in Kafka)."""
    return ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else to_code(code)


def _fetched(topic: TopicImage, partition: int, value: CommittedOffset | None) -> OffsetFetchPartition:
    if value is None or not _belongs_to(value, topic):
        return _no_offset(topic.topic_id, partition)
    return OffsetFetchPartition(
        topic.topic_id, partition, value.offset, value.leader_epoch, value.metadata, value.commit_timestamp
    )


def _no_offset(topic_id: bytes, partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchPartition:
    return OffsetFetchPartition(topic_id, partition, metadata="", error_code=code)


def _deletion_refusal(group: Group | None, topic: TopicImage | None) -> ErrorCode:
    """The error code of a deletion of offsets of the topic."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if group is not None and group.is_subscribed_to(topic.name):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def _tombstones(group_id: str, positions: Iterable[tuple[str, int]]) -> list[GroupRecord]:
    return [OffsetCommitRecord(group_id, topic, partition, None) for topic, partition in positions]
