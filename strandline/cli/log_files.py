"""`strandline log dump` of the files other than segments: indexes, producer snapshots and checkpoints.

The kind of a file follows from its name, as for a broker. Each reader returns one dict per entry, and what is wrong with the file
(empty: nothing is).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

Row = dict[str, Any]


class Content(NamedTuple):
    rows: list[Row]
    problem: str = ""
    remark: str = ""
    """A remark for the reader about something that is not a fault."""


Reader = Callable[[Path, bytes], Content]

_OFFSET_ENTRY, _TIME_ENTRY = Struct(">II"), Struct(">QI")


def reader_of(path: Path) -> Reader | None:
    """The reader of this kind of file; None if it is a segment, a metadata snapshot, or of no known kind."""
    return _BY_NAME.get(path.name) or _BY_SUFFIX.get(_true_name(path).suffix)


def _true_name(path: Path) -> Path:
    """The name without the suffix of a file that a broker deletes, or that its cleaner has written."""
    name = path.name
    for suffix in (".deleted", ".cleaned", ".swap"):
        name = name.removesuffix(suffix)
    return Path(name)


def _base_offset(path: Path) -> int | None:
    name = _true_name(path).stem
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


def _offset_index(path: Path, data: bytes) -> Content:
    return _index(path, data, _OFFSET_ENTRY, lambda base, entry: {"offset": base + entry[0], "position": entry[1]})


def _time_index(path: Path, data: bytes) -> Content:
    return _index(path, data, _TIME_ENTRY, lambda base, entry: {"timestamp_ms": entry[0], "offset": base + entry[1]})


def _index(path: Path, data: bytes, entry: Struct, describe: Callable[[int, tuple[int, int]], Row]) -> Content:
    base = _base_offset(path)
    used = -(-len(data.rstrip(b"\0")) // entry.size) * entry.size
    if len(data) - used <= entry.size:  # One entry of zeros may be a real one.
        used = len(data)
    whole = used - used % entry.size
    entries = list(entry.iter_unpack(data[:whole]))
    problem = ""
    if used % entry.size:
        problem = f"it ends within an entry: {used} bytes are no multiple of {entry.size}"
    elif any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(entries)):
        problem = "its entries do not ascend"
    remark = f"{len(data) - used} bytes of zeros follow: the file was allocated ahead" if used < len(data) else ""
    if base is None:
        remark = "the name has no base offset: offsets are relative to the segment"
    return Content([describe(base or 0, (one[0], one[1])) for one in entries], problem, remark)


def _snapshot(path: Path, data: bytes) -> Content:
    from strandline.storage.log.producer_state import snapshot_rows

    rows = snapshot_rows(data)
    if rows is None:
        return Content([], "it is cut off, of an unknown version, or its checksum is wrong")
    names = (
        "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms", "coordinator_epoch",
        "transaction_first_offset",
    )  # fmt: skip
    return Content([dict(zip(names, row, strict=True)) for row in rows])


_NO_CHECKPOINT = "it is not `version 0, number of lines, lines`, or a line is malformed"


def _offsets(path: Path, data: bytes) -> Content:
    from strandline.storage.checkpoints import OffsetCheckpoint

    offsets = OffsetCheckpoint.decode(data)
    if offsets is None:
        return Content([], _NO_CHECKPOINT)
    return Content([{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in offsets.items()])


def _epochs(path: Path, data: bytes) -> Content:
    from strandline.storage.checkpoints import LeaderEpochCheckpoint

    entries = LeaderEpochCheckpoint.decode(data)
    if entries is None:
        return Content([], _NO_CHECKPOINT)
    return Content([{"epoch": epoch, "start_offset": start} for epoch, start in entries])


def _partition(path: Path, data: bytes) -> Content:
    from strandline.storage.checkpoints import PartitionMetadata, uuid_to_text

    topic_id = PartitionMetadata.decode(data)
    return Content([], "it has no topic id") if topic_id is None else Content([{"topic_id": uuid_to_text(topic_id)}])


_BY_NAME: dict[str, Reader] = {
    "replication-offset-checkpoint": _offsets,
    "recovery-point-offset-checkpoint": _offsets,
    "log-start-offset-checkpoint": _offsets,
    "cleaner-offset-checkpoint": _offsets,
    "removed-tombstones-checkpoint": _offsets,
    "superseding-records-checkpoint": _offsets,
    "leader-epoch-checkpoint": _epochs,
    "partition.metadata": _partition,
}
_BY_SUFFIX: dict[str, Reader] = {".index": _offset_index, ".timeindex": _time_index, ".snapshot": _snapshot}
