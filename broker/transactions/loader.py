"""Reads the records of one partition of `__transaction_state` into a new shard: what `ShardLoader` leaves to the transactions."""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.coordination.loader import ShardLoader, Step
from strandline.broker.disk_work import RunBlocking
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.transactions.records import UnknownKeyVersion, decode_record
from strandline.broker.transactions.shard import TransactionShard
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import decode_columns


class TransactionLoader(ShardLoader):
    """The load of one shard. A record whose key has a version that is not known is skipped."""

    def __init__(
        self,
        leader_state: LeaderState,
        shard: TransactionShard,
        *,
        is_current: Callable[[], bool],
        call_soon: Callable[[Step], object],
        run_blocking: RunBlocking | None,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(leader_state, is_current=is_current, call_soon=call_soon, run_blocking=run_blocking, on_end=on_end)
        self.shard = shard

    def read_batch(self, buffer: Buffer, position: int, header: BatchHeader, high_watermark: int) -> None:
        if header.is_control or not header.record_count:
            return
        columns = decode_columns(buffer, position, header, check_crc=False)
        keys = columns.keys if columns.keys is not None else [None] * len(columns.values)
        for key, value in zip(keys, columns.values, strict=True):
            self._replay(key, value)

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        try:
            record = decode_record(key, value)
        except UnknownKeyVersion:
            self.skipped += 1
            return
        self.shard.replay(record)
        self.records += 1
