"""The segments source with `isolation.level=read_committed`: no markers, no records of open and aborted transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from segment_files import write_log

from strandline.pipeline.segments.committed import Committed, committed_of
from strandline.pipeline.segments.layout import segments_of
from strandline.pipeline.segments.options import segment_options
from strandline.pipeline.segments.plan import plan
from strandline.pipeline.segments.task import read_part
from strandline.protocol.errors import UsageError
from strandline.protocol.records.batch import read_header, stamp
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker, encode_marker
from strandline.storage.log.producer_state import ProducerStates

NOW_MS = 1_700_000_000_000


def data(offset: int, producer_id: int, count: int = 1) -> bytes:
    """A batch of data. It belongs to a transaction unless the producer is -1."""
    records = [(b"k", b"%d" % (offset + n), [], NOW_MS) for n in range(count)]
    is_transactional = producer_id >= 0
    sequence = offset if is_transactional else -1
    made = bytearray(
        encode_batch(
            records, producer_id=producer_id, producer_epoch=0 if is_transactional else -1, base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )  # fmt: skip
    stamp(made, 0, offset, 0)
    return bytes(made)


def marker(offset: int, producer_id: int, *, is_commit: bool) -> bytes:
    return encode_marker(EndTransactionMarker(is_commit, 0), producer_id, 0, NOW_MS, base_offset=offset, leader_epoch=0)


def snapshot(*batches: bytes) -> bytes:
    """The producer snapshot after these batches."""
    states = ProducerStates()
    for batch in batches:
        header = read_header(batch, 0)
        if header.producer_id >= 0:
            states.update(header, header.last_offset)
            states.update_transaction(header, None, 0)
    return states.encode()


FIRST = [data(0, 7, 2), data(2, 8), data(3, -1), data(4, 9), marker(5, 8, is_commit=False)]
SECOND = [
    data(6, 9), data(7, 8), marker(8, 7, is_commit=False), marker(9, 9, is_commit=True), marker(10, 8, is_commit=True),
    data(11, 7), data(12, -1),
]  # fmt: skip
COMMITTED = [3, 4, 6, 7]
"""Offset 11 belongs to an open transaction, and 12 waits behind it."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two segments with their transaction index and snapshot, as a broker leaves them."""
    folder = write_log(tmp_path / "orders-0", [(0, b"".join(FIRST)), (6, b"".join(SECOND))])
    (folder / f"{0:020d}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 8, 2, 5, 0))
    (folder / f"{6:020d}.snapshot").write_bytes(snapshot(data(0, 7, 2), data(4, 9)))
    return folder


def read(log: Path, **written: str) -> list[dict[str, Any]]:
    options = segment_options({"path": str(log), "rows": "record", **{k.replace("_", "."): v for k, v in written.items()}})
    return [row for task in plan(options) for part in task for some in read_part(part, options) for row in some.to_pylist()]


def committed_offsets(log: Path, **written: str) -> list[int]:
    return [row["offset"] for row in read(log, isolation_level="read_committed", **written)]


def test_only_committed_records_are_rows(log: Path) -> None:
    assert committed_offsets(log) == COMMITTED
    assert [row["offset"] for row in read(log)] == list(range(13))


def test_split_file_has_the_same_rows(log: Path) -> None:
    """A task must find a transaction that was aborted after the range that the task reads."""
    assert committed_offsets(log, splitBytes="1") == COMMITTED
    assert committed_offsets(log, startingOffset="4", endingOffset="7") == [4, 6]


def test_one_file_of_a_log_has_the_same_rows(log: Path) -> None:
    """The marker that aborts the records at offset 0 is in the other file."""
    assert committed_offsets(log / f"{0:020d}.log") == [3, 4]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: (log / f"{6:020d}.snapshot").unlink(),
        lambda log: (log / f"{6:020d}.snapshot").write_bytes(b"damaged"),
        lambda log: (log / f"{0:020d}.txnindex").write_bytes(b"damaged"),
        lambda log: (log / f"{0:020d}.txnindex").write_bytes(bytes(34)),
    ],
)
def test_damaged_files_are_made_up_for_by_the_batches(log: Path, spoil: Callable[[Path], object]) -> None:
    spoil(log)
    assert committed_offsets(log) == COMMITTED


def test_log_without_transactions_is_wholly_committed(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "orders-0", [(0, data(0, -1, 3))])
    assert committed_of(segments_of(str(folder))) == Committed({})
    assert committed_offsets(folder) == [0, 1, 2]


def test_damage_stays_a_row(log: Path) -> None:
    path = log / f"{6:020d}.log"
    spoiled = bytearray(path.read_bytes())
    spoiled[len(data(6, 9)) - 1] ^= 1
    path.write_bytes(spoiled)
    damage = [row["damage"] for row in read(log, isolation_level="read_committed")]
    assert [text and text.split(":")[0] for text in damage] == [None, None, "checksum", None]


def test_record_row_says_whether_it_is_of_a_transaction(log: Path) -> None:
    assert [row["offset"] for row in read(log) if not row["isTransactional"]] == [3, 12]


def test_isolation_level_needs_rows_of_records() -> None:
    with pytest.raises(UsageError, match="needs rows=record"):
        segment_options({"path": "/data", "isolation.level": "read_committed"})
    with pytest.raises(UsageError, match="must be read_uncommitted or read_committed"):
        segment_options({"path": "/data", "isolation.level": "committed"})
