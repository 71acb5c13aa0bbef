"""Snapshots of the metadata: their names, and their content, which Kafka's tools can read (KIP-630).

    name     := end offset, 20 digits | "-" | epoch, 10 digits | ".checkpoint"
    content  := control batch SnapshotHeader | data batches ... | control batch SnapshotFooter

A snapshot replaces all records below its *end offset*, which is exclusive; its epoch is that of the last of these records. The
offsets of its own batches start at 0. The footer distinguishes a complete snapshot from a torn one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NoReturn

from strandline.controller.raft.log import SnapshotSink
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.frames import Buffer
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.batch import check_crc, iter_headers
from strandline.protocol.records.builder import encode_values
from strandline.protocol.records.control import SnapshotFooter, SnapshotHeader, decode_control, encode_control_batch
from strandline.protocol.records.reader import decode_batch, decode_values

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
"""The suffix while the snapshot is being written or fetched."""
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
RECORDS_PER_BATCH = 1000


def snapshot_name(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.end_offset:020}-{snapshot_id.epoch:010}{SUFFIX}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The snapshot of a file with this name; None if it is not the name of a finished snapshot."""
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None


def sort_key(snapshot_id: SnapshotId) -> tuple[int, int]:
    return snapshot_id.end_offset, snapshot_id.epoch


class SnapshotWriter:
    """Writes a snapshot's records into a sink, one batch at a time, so that the caller can do other work in between."""

    def __init__(self, sink: SnapshotSink, epoch: int, last_timestamp_ms: int) -> None:
        self._sink = sink
        self._epoch = epoch
        self._timestamp_ms = last_timestamp_ms
        self._offset = 1
        self._sink.append(encode_control_batch(SnapshotHeader(last_timestamp_ms), last_timestamp_ms, leader_epoch=epoch))

    def write(self, values: Sequence[bytes]) -> None:
        """Append one batch with these records."""
        self._sink.append(encode_values(values, self._timestamp_ms, base_offset=self._offset, leader_epoch=self._epoch))
        self._offset += len(values)

    def finish(self) -> None:
        """Append the footer, and give the snapshot its name. Raises BrokerError CORRUPT_MESSAGE if it is damaged on the disk."""
        footer = encode_control_batch(SnapshotFooter(), self._timestamp_ms, base_offset=self._offset, leader_epoch=self._epoch)
        self._sink.append(footer)
        self._sink.freeze()


def in_batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The records in lists of at most RECORDS_PER_BATCH."""
    iterator = iter(records)
    while batch := list(islice(iterator, RECORDS_PER_BATCH)):
        yield batch


def check_snapshot(data: Buffer) -> None:
    """Raise BrokerError CORRUPT_MESSAGE if `data` is not a complete snapshot from header to footer."""
    last = None
    for index, (pos, header) in enumerate(iter_headers(data)):
        if not check_crc(data, pos, header.size):
            _damaged(f"the batch at byte {pos} fails its checksum")
        if isinstance(last, SnapshotFooter):
            _damaged("the footer is not at its end")
        last = None
        if header.is_control:
            record = decode_batch(data, pos, header, check_crc=False)[0]
            last = decode_control(record.key, record.value)
        if (index == 0) != isinstance(last, SnapshotHeader):
            _damaged("the header is not at its start")
    if not isinstance(last, SnapshotFooter):
        _damaged("the footer is missing")


def snapshot_values(data: Buffer) -> Iterator[bytes]:
    """The values of a snapshot's records, without header and footer."""
    for pos, header in iter_headers(data):
        if not header.is_control:
            for value in decode_values(data, pos, header):
                yield value or b""


def _damaged(what: str) -> NoReturn:
    raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the snapshot is damaged: {what}")
