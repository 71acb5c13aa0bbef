"""Compares the logs of the replicas of one partition, once the cluster is at rest: byte by byte, or, if cleaners have run, record
by record. Each replica has a cleaner of its own, so one may have removed records that another one still holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.marker import is_marker, read_marker
from strandline.protocol.records.reader import Record, iter_records

Replica = TypeVar("Replica", int, str)
"""Id of a broker, or name of a replica."""


def logs_differ(logs: Mapping[int, bytes]) -> str:
    """How the logs of these brokers differ; empty if all have the same bytes."""
    return f"their sizes are { ({n: len(log) for n, log in logs.items()}) }" if len(set(logs.values())) > 1 else ""


def cleaned_logs_differ(logs: Mapping[Replica, bytes], start: int) -> str:
    """How the logs of these replicas differ in what cleaners must not change: the records that two of them hold, and the last
    value of each key. Empty if they do not. Records below `start` are ignored, because some replicas may have deleted them, and
    so are control records and those of aborted transactions: each cleaner removes them in its own time."""
    found: dict[int, tuple[Replica, Record]] = {}
    values: dict[Replica, dict[bytes | None, Record]] = {}
    for node, log in logs.items():
        newest: dict[bytes | None, Record] = {}
        hidden = _hidden(log)
        for record in iter_records(log):
            if record.offset >= start and record.offset not in hidden:
                other, known = found.setdefault(record.offset, (node, record))
                if known != record:
                    return f"{_name(node)} has {record}, {_name(other)} has {known}"
                newest[record.key] = record
        values[node] = {key: record for key, record in newest.items() if record.value is not None}
    return _values_differ(values)


def _hidden(log: bytes) -> dict[int, None]:
    """The offsets of control records, and of records whose transaction was aborted."""
    hidden: dict[int, None] = {}
    ongoing: dict[int, list[int]] = {}
    """Producer id -> the offsets of its records since its last marker."""
    for position, header in iter_headers(log):
        offsets = range(header.base_offset, header.next_offset)
        if header.is_control:
            hidden.update(dict.fromkeys(offsets))
            marker = read_marker(log, position, header) if is_marker(header) else None
            records = ongoing.pop(header.producer_id, []) if marker is not None else []
            hidden.update(dict.fromkeys(records if marker is not None and not marker.is_commit else ()))
        elif header.is_transactional:
            ongoing.setdefault(header.producer_id, []).extend(offsets)
    return hidden


def _values_differ(values: Mapping[Replica, Mapping[bytes | None, Record]]) -> str:
    if not values:
        return ""
    other, most = max(values.items(), key=lambda item: len(item[1]))
    for node, held in values.items():
        keys = [key for key in {**held, **most} if held.get(key) != most.get(key)]
        if keys:
            return f"the last values of the keys {keys} on {_name(node)} are not those on {_name(other)}"
    return ""


def _name(replica: int | str) -> str:
    return f"broker {replica}" if isinstance(replica, int) else replica


def whole_log(log: Any, start: int) -> bytes:
    """All bytes of the log from this offset on, independent of its segments."""
    offset, parts = start, []
    while offset < log.log_end_offset:
        buffers = [bytes(buffer) for buffer in log.read(offset, 1 << 30, log.log_end_offset).buffers]
        parts += buffers
        offset = [header.next_offset for buffer in buffers for _, header in iter_headers(buffer)][-1]
    return b"".join(parts)
