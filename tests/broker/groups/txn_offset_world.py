"""An `OffsetWorld` with transactions: its log also holds records of transactions, and markers."""

from __future__ import annotations

from typing import NamedTuple

from offset_world import GROUP, OffsetWorld

from strandline.broker.groups.offsets import OffsetStore
from strandline.broker.groups.records.codec import decode_record, encode_record
from strandline.broker.groups.records.types import GroupRecord, OffsetCommitRecord
from strandline.broker.groups.result import Result
from strandline.broker.groups.state import GroupTable
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import GroupTopicPartitions, OffsetCommitPartition, OffsetFetchGroup
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse


class Pending(NamedTuple):
    """A record of a transaction."""

    producer_id: int
    record: OffsetCommitRecord


class Marker(NamedTuple):
    producer_id: int
    is_commit: bool


class TxnOffsetWorld(OffsetWorld):
    """Records and markers are committed at once, unless `high_watermark` is set."""

    log: list[GroupRecord | Pending | Marker]  # type: ignore[assignment]

    def txn_commit(self, producer_id: int, *partitions: OffsetCommitPartition, **fields: object) -> list[int]:
        """Store offsets in the transaction of a producer; returns the error codes."""
        body = TxnOffsetCommitRequest(
            **{"transactional_id": "t", "group_id": GROUP, "producer_epoch": 3, **fields},  # type: ignore[arg-type]
            producer_id=producer_id,
            partitions=list(partitions),
        )
        answer = self.carry_out(self.store.commit_in_transaction(body, self.image, self.context()))
        assert isinstance(answer, TxnOffsetCommitResponse)
        assert [(p.topic_id, p.partition) for p in answer.partitions] == [(p.topic_id, p.partition) for p in partitions]
        return [p.error_code for p in answer.partitions]

    def end(self, producer_id: int, *, is_commit: bool) -> int:
        """Append a marker; returns how many offsets have come into force."""
        self.log.append(Marker(producer_id, is_commit))
        return self.store.replay_marker(producer_id, is_commit, len(self.log) - 1)

    def carry_out(self, result: Result) -> Message | None:
        if result.transaction is not None:
            producer_id = result.transaction.producer_id
            result.records = [Pending(producer_id, record) for record in result.records]  # type: ignore[arg-type,misc]
        return super().carry_out(result)

    def _replay(self, entry: GroupRecord | Pending | Marker, offset: int) -> None:  # type: ignore[override]
        match entry:
            case Pending(producer_id, record):
                self.store.replay_pending(record, offset, producer_id)
            case Marker(producer_id, is_commit):
                self.store.replay_marker(producer_id, is_commit, offset)
            case record:
                super()._replay(record, offset)

    def restart(self) -> None:
        self.groups = GroupTable()
        self.store = OffsetStore(self.config, self.groups)
        self.store.on_high_watermark(len(self.log) if self.high_watermark is None else self.high_watermark)
        for offset, entry in enumerate(self.log):
            match entry:
                case Marker():
                    self._replay(entry, offset)
                case Pending(producer_id, record):
                    self._replay(Pending(producer_id, decode_record(*encode_record(record))), offset)  # type: ignore[arg-type]
                case record:
                    self._replay(decode_record(*encode_record(record)), offset)

    def stable(self, topics: dict[bytes, list[int]] | None = None, group_id: str = GROUP) -> dict[tuple[bytes, int], int | str]:
        """The answer to a reader of stable offsets: offsets, or names of errors."""
        wanted = None if topics is None else [GroupTopicPartitions(topic_id, of) for topic_id, of in topics.items()]
        answer = self.store.fetch_stable(OffsetFetchGroup(group_id, topics=wanted), self.image)
        assert answer.error_code == 0
        return {
            (p.topic_id, p.partition): ErrorCode(p.error_code).name if p.error_code else p.committed_offset
            for p in answer.partitions
        }
