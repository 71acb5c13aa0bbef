"""The response of Fetch, written by hand: rows, and between them the buffers of the log.

| frame head | throttle time, error, session | topic, row | records | end of row | row | records | ... | end |
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Pack
from typing import Any, NamedTuple

from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.codec import Field, Struct, struct_codec
from strandline.broker.kafka.errors import kafka_code
from strandline.broker.kafka.translations.by_hand import (
    INT32,
    encoded_size,
    encoded_text,
    finish_response,
    node_endpoints,
    response_head,
)
from strandline.broker.kafka.translations.topics_by_name import code_by_id, code_by_name
from strandline.protocol.errors import ErrorCode
from strandline.protocol.frames import LENGTH, Buffer, Records
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import AbortedTransaction, FetchPartitionResponse, FetchResponse
from strandline.protocol.messages.security import READ

_FIRST_FLEXIBLE, _FIRST_WITH_IDS, _FIRST_WITH_ENDPOINTS = 12, 13, 16
_FIRST_WITH_LOG_START, _FIRST_WITH_SESSIONS, _FIRST_WITH_REPLICA = 5, 7, 11

_HEAD_4, _HEAD_7 = Pack(">i"), Pack(">ihi")
"""Throttle time, and since version 7 error code and session id."""
_ABORTED = Pack(">qq")
"""Producer id and first offset."""

Topic = tuple[bytes, list[FetchPartitionResponse]]
"""The id of a topic, and rows of it that follow each other."""


_CONVERGING = FetchPartitionResponse(b"", 0).diverging_epoch
"""The default diverging epoch of a row. A row with it and without an error has no tagged fields."""


class _Shape(NamedTuple):
    """The layout of the rows, in one version of the API."""

    is_flexible: bool
    has_sessions: bool
    row: Pack
    """Partition, error code, high watermark, last stable offset, and since version 5 the log start."""
    has_log_start: bool
    has_replica: bool
    has_ids: bool
    end: bytes
    """The end of a topic: no tagged fields."""
    not_aborted: bytes
    """Null in place of the aborted transactions."""

    def counted(self, count: int) -> bytes:
        return encoded_size(count) if self.is_flexible else INT32.pack(count)


def _shape(version: int) -> _Shape:
    is_flexible, has_log_start = version >= _FIRST_FLEXIBLE, version >= _FIRST_WITH_LOG_START
    return _Shape(
        is_flexible,
        version >= _FIRST_WITH_SESSIONS,
        Pack(">ihqqq" if has_log_start else ">ihqq"),
        has_log_start,
        version >= _FIRST_WITH_REPLICA,
        version >= _FIRST_WITH_IDS,
        b"\0" if is_flexible else b"",
        b"\0" if is_flexible else INT32.pack(-1),
    )


_SHAPES = [_shape(version) for version in range(19)]


def write_response(call: KafkaCall, body: Message, records: Records | None) -> list[Buffer]:
    """The frame of a response. `call.notes` has the names of the request."""
    assert isinstance(body, FetchResponse)
    if call.version >= _FIRST_FLEXIBLE and _is_usual(body) and not call.notes.unknown:
        one = _write_one(call, body, records or [()])
        if one is not None:
            return one
    shape, topics, unknown = _SHAPES[call.version], _by_topic(body.partitions), call.notes.unknown
    keys = None if shape.has_ids else _names(call, topics, shape.is_flexible)
    if keys is None and not shape.has_ids:
        body = FetchResponse(body.throttle_time_ms, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, [], [])
        topics, records = [], None
    first = out = response_head(shape.is_flexible)
    if shape.has_sessions:
        out += _HEAD_7.pack(body.throttle_time_ms, kafka_code(body.error_code), body.session_id)
    else:
        out += _HEAD_4.pack(body.throttle_time_ms)
    out += shape.counted(len(topics) + len(unknown))
    buffers: list[Buffer] = []
    parts = iter(records or ())
    for place, (topic_id, rows) in enumerate(topics):
        out += topic_id if keys is None else keys[place]
        out += shape.counted(len(rows))
        for row in rows:
            out = _add_row(shape, row, _code(call, row) if row.error_code else 0, next(parts), out, buffers)
        out += shape.end
    for name, partitions in unknown:
        out += _unknown_topic(call, shape, name, partitions)
    if shape.is_flexible:
        out += _end(call, body)
    finish_response(first, call.correlation_id, shape.is_flexible, sum(map(len, buffers)) + len(out) - len(first))
    buffers.append(out)
    return buffers


def _is_usual(body: FetchResponse) -> bool:
    """Whether the response has one row, which has nothing but offsets and records."""
    rows = body.partitions
    if len(rows) != 1 or body.error_code:
        return False
    row = rows[0]
    return not row.error_code and row.aborted_transactions is None and row.diverging_epoch is _CONVERGING


_START = Pack(">IixihiB")
"""The head of the frame, throttle time, no error, session id, and one topic."""
_ONE_ROW = Pack(">BihqqqBi")
"""One partition, no error, its offsets, no aborted transactions, and the replica to read from."""
_NO_TAGS = b"\0\0\0"
"""The ends of the row, of the topic and of the response: no tagged fields."""


def _write_one(call: KafkaCall, body: FetchResponse, records: Records) -> list[Buffer] | None:
    """The frame of the usual response of a flexible version; None if the request named the topic and it no longer has a name."""
    (row,), (parts,) = body.partitions, records
    key = row.topic_id
    if call.version < _FIRST_WITH_IDS:
        names = _names(call, [(key, [])], True)
        if names is None:
            return None
        (key,) = names
    size = 0
    for part in parts:
        size += len(part)
    offsets = row.high_watermark, row.last_stable_offset, row.log_start_offset
    rest = key + _ONE_ROW.pack(2, row.partition, 0, *offsets, 0, row.preferred_read_replica) + encoded_size(size)
    total = _START.size - LENGTH.size + len(rest) + size + len(_NO_TAGS)
    start = _START.pack(total, call.correlation_id, body.throttle_time_ms, 0, body.session_id, 2) + rest
    return [start, *parts, _NO_TAGS] if size else [start + _NO_TAGS]


def _by_topic(rows: Sequence[FetchPartitionResponse]) -> list[Topic]:
    """The rows under their topics. A topic occurs twice if there are rows of other topics in between, as in Kafka."""
    topics: list[Topic] = []
    last = None
    for row in rows:
        if row.topic_id != last:
            last = row.topic_id
            topics.append((last, []))
        topics[-1][1].append(row)
    return topics


def _names(call: KafkaCall, topics: list[Topic], is_flexible: bool) -> list[bytes] | None:
    """The encoded names of the topics; None if this broker no longer knows one of them."""
    found = []
    for topic_id, _ in topics:
        name = call.notes.names.get(topic_id) or call.context.topic_name(topic_id)
        if name is None:
            return None
        call.notes.names[topic_id] = name
        found.append(encoded_text(name, is_flexible))
    return found


def _add_row(
    shape: _Shape,
    row: FetchPartitionResponse,
    code: int,
    records: Sequence[Buffer],
    out: bytearray,
    buffers: list[Buffer],
) -> bytearray:
    """Append a row to `out`, which becomes one of the buffers if the row has records. Returns the bytearray for the next row."""
    if shape.has_log_start:
        out += shape.row.pack(row.partition, code, row.high_watermark, row.last_stable_offset, row.log_start_offset)
    else:
        out += shape.row.pack(row.partition, code, row.high_watermark, row.last_stable_offset)
    aborted = row.aborted_transactions
    out += shape.not_aborted if aborted is None else _aborted(shape, aborted)
    if shape.has_replica:
        out += INT32.pack(row.preferred_read_replica)
    size = 0
    for part in records:
        size += len(part)
    out += encoded_size(size) if shape.is_flexible else INT32.pack(size)
    if size:
        buffers.append(out)
        buffers += records
        out = bytearray()
    if shape.is_flexible:
        out += _tags(row) if code or row.diverging_epoch is not _CONVERGING else b"\0"
    return out


def _aborted(shape: _Shape, transactions: list[AbortedTransaction]) -> bytes:
    rows = [_ABORTED.pack(each.producer_id, each.first_offset) + shape.end for each in transactions]
    return shape.counted(len(rows)) + b"".join(rows)


def _code(call: KafkaCall, row: FetchPartitionResponse) -> int:
    code = row.error_code
    if call.version < _FIRST_WITH_IDS:
        code = code_by_name(call, call.notes.names[row.topic_id], code, READ)
    elif code == ErrorCode.UNKNOWN_TOPIC_ID:
        code = code_by_id(call, row.topic_id, code, READ)
    if code == ErrorCode.KAFKA_STORAGE_ERROR and call.version <= _LAST_WITHOUT_STORAGE_ERROR:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # KAFKA_STORAGE_ERROR is unknown to these clients; now they look for the leader
    return kafka_code(code)


_LAST_WITHOUT_STORAGE_ERROR = 5

_LEADER = Struct("LeaderIdAndEpoch", True, (Field("leader_id", "int32"), Field("leader_epoch", "int32")))
_EPOCH = Struct("EpochEndOffset", True, (Field("epoch", "int32"), Field("end_offset", "int64")))
_, _write_tags = struct_codec(
    Struct(
        "PartitionDataTags",
        True,
        (Field("diverging_epoch", _EPOCH, tag=0, default=None), Field("current_leader", _LEADER, tag=1, default=None)),
    )
)


def _tags(row: FetchPartitionResponse) -> bytes:
    diverging, leader = row.diverging_epoch, row.current_leader
    if diverging.epoch < 0 and diverging.end_offset < 0 and leader.leader_epoch < 0:
        return b"\0"
    found: dict[str, Any] = {}
    if diverging.epoch >= 0 or diverging.end_offset >= 0:
        found["diverging_epoch"] = {"epoch": diverging.epoch, "end_offset": diverging.end_offset}
    if leader.leader_epoch >= 0:
        found["current_leader"] = {"leader_id": leader.leader_id, "leader_epoch": leader.leader_epoch}
    out = bytearray()
    _write_tags(out, found)
    return bytes(out)


def _unknown_topic(call: KafkaCall, shape: _Shape, name: str, partitions: list[int]) -> bytes:
    code = code_by_name(call, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, READ)
    out = bytearray(encoded_text(name, shape.is_flexible))
    out += shape.counted(len(partitions))
    for index in partitions:
        out = _add_row(shape, FetchPartitionResponse(b"", index), code, (), out, [])
    out += shape.end
    return bytes(out)


def _end(call: KafkaCall, body: FetchResponse) -> bytes:
    """The tagged fields of the response: the addresses of the leaders that its rows name."""
    if call.version < _FIRST_WITH_ENDPOINTS:
        return b"\0"
    leaders = [row.current_leader.leader_id for row in body.partitions if row.error_code and row.current_leader.leader_id >= 0]
    if not leaders:
        return b"\0"
    out = bytearray()
    _write_end(out, {"node_endpoints": node_endpoints(call, leaders)})
    return bytes(out)


_NODE = Struct(
    "NodeEndpoint",
    True,
    (Field("node_id", "int32"), Field("host", "string"), Field("port", "int32"), Field("rack", "string", is_nullable=True)),
)
_, _write_end = struct_codec(
    Struct("FetchResponseTags", True, (Field("node_endpoints", _NODE, is_array=True, tag=0, default=[]),))
)


def error_row(partition: int, code: int) -> dict[str, Any]:
    """The fields of a row that has an error only."""
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"",
    }
