"""Reads the records of one partition of `__transaction_state` into a new shard."""

from __future__ import annotations

from strandline.broker.coordination.loader import ShardLoader
from strandline.broker.transactions.records import UnknownKeyVersion, decode_record
from strandline.broker.transactions.shard import TransactionShard
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import decode_columns


class TransactionLoader(ShardLoader[TransactionShard]):
    """The load of one shard. A record whose key has an unknown version is skipped, and counted in `skipped`."""

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
