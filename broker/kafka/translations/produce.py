"""Produce, by hand: record batches stay where they arrived, as views of the frame, in which the leader stamps their offsets.

What a handler of ours does not know is answered here, as Kafka does:

    a name that does not exist                                UNKNOWN_TOPIC_OR_PARTITION
    no batch, several batches, or an older format of them     INVALID_RECORD: one batch per partition since version 3
    zstd below version 7                                      UNSUPPORTED_COMPRESSION_TYPE
    a transactional batch without a transactional id          TRANSACTIONAL_ID_AUTHORIZATION_FAILED, for the whole request

With acks=0 there is no response. Any error closes the connection, so that the producer notices it.

From version 12 on, the leader adds its partitions to the transaction itself (TV2 of KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from struct import Struct as Pack
from typing import Any, NamedTuple

from strandline.broker.kafka.call import KafkaApi, KafkaCall, write_fields
from strandline.broker.kafka.heads import response_frame
from strandline.broker.kafka.translations.by_hand import (
    CLASSIC,
    FLEXIBLE,
    INT32,
    Encoding,
    check_count,
    encoded_size,
    encoded_text,
    node_endpoints,
    text,
    uuid,
)
from strandline.broker.kafka.translations.topics_by_name import code_by_name
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse
from strandline.protocol.messages.security import WRITE
from strandline.protocol.rpc.server_connection import Handler, ServerRequest

LAST = 13
FIRST_FLEXIBLE, FIRST_WITH_IDS, FIRST_TV2 = 9, 13, 12
_FIRST_WITH_ZSTD, _FIRST_ABORTABLE = 7, 11
_ACKS_NONE = 0
_OURS_TV1, _OURS_TV2 = 3, 4
"""Our versions of Produce in a transaction."""

_ACKS_AND_TIMEOUT = Pack(">hi")
_PEEK = Pack(">8xi4xb4xh")
"""The length of a batch, its format, and its attributes."""
_LENGTH_PREFIX, _SHORTEST_LENGTH = 12, 14
_MAGIC, _ZSTD, _CODEC, _TRANSACTIONAL = 2, 4, 7, 0x10


class Early(NamedTuple):
    """The answer for a partition that never reaches the handler."""

    code: ErrorCode
    message: str | None = None


_UNKNOWN = Early(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Asked:
    """The partitions of a request under their topics, as the response has them."""

    __slots__ = ("has_early", "topics")

    def __init__(self) -> None:
        self.topics: list[tuple[str | bytes, list[tuple[int, Early | None]]]] = []
        """Name or id, and the partitions."""
        self.has_early = False


# -- the request ------------------------------------------------------------------------------------------------------


def _read(call: KafkaCall, frame: bytearray, at: int) -> ProduceRequest:
    version = call.version
    encoding = FLEXIBLE if version >= FIRST_FLEXIBLE else CLASSIC
    transactional_id, at = encoding.text(frame, encoding.skip_tags(frame, at))
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    body = ProduceRequest(transactional_id, acks, max(timeout_ms, 0), [], [])
    call.notes = Asked()
    count, at = encoding.size(frame, at + _ACKS_AND_TIMEOUT.size)
    view, topic_ids = memoryview(frame), call.context.image().topics_by_name
    key: str | bytes
    topic_id: bytes | None
    for _ in range(check_count(count, frame, at)):
        if version >= FIRST_WITH_IDS:
            key, at = topic_id, at = uuid(frame, at)
        else:
            key, at = text(frame, at, encoding)
            topic_id = topic_ids.get(key)
        at = _read_partitions(call, frame, view, at, encoding, key, topic_id, body)
    encoding.skip_tags(frame, at)
    return body


def _read_partitions(
    call: KafkaCall,
    frame: bytearray,
    view: memoryview,
    at: int,
    encoding: Encoding,
    key: str | bytes,
    topic_id: bytes | None,
    body: ProduceRequest,
) -> int:
    """Read the partitions of one topic into the request. Returns the offset behind the topic."""
    asked: Asked = call.notes
    partitions: list[tuple[int, Early | None]] = []
    asked.topics.append((key, partitions))
    count, at = encoding.size(frame, at)
    for _ in range(check_count(count, frame, at)):
        (index,) = INT32.unpack_from(frame, at)
        size, at = encoding.size(frame, at + 4)
        end = at + max(size, 0)
        if end > len(frame):
            raise PeerError(f"records of {size} bytes are announced, {len(frame) - at} are left")
        records = view[at:end]
        at = encoding.skip_tags(frame, end)
        early = _UNKNOWN if topic_id is None else _early(call.version, records, body.transactional_id)
        partitions.append((index, early))
        if early is None:
            body.partitions.append(ProducePartition(topic_id, index))  # type: ignore[arg-type]  # it is not None
            body.records.append(records)
        else:
            asked.has_early = True
    return encoding.skip_tags(frame, at)


def _early(version: int, records: memoryview, transactional_id: str | None) -> Early | None:
    """Why Kafka refuses the records of a partition, before it looks at the log."""
    size = len(records)
    if size < _PEEK.size:
        return Early(ErrorCode.INVALID_RECORD, "the request has no record batch for the partition")
    length, magic, attributes = _PEEK.unpack_from(records)
    if length + _LENGTH_PREFIX != size and length >= _SHORTEST_LENGTH:
        return Early(ErrorCode.INVALID_RECORD, "the request must have exactly one whole record batch per partition")
    if magic != _MAGIC:
        return Early(ErrorCode.INVALID_RECORD, f"the record batch has format {magic}; only format 2 is accepted")
    if attributes & _CODEC == _ZSTD and version < _FIRST_WITH_ZSTD:
        return Early(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"version {version} of Produce does not permit zstd")
    if attributes & _TRANSACTIONAL and transactional_id is None:
        return Early(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id")
    return None


def _to_ours(call: KafkaCall) -> ProduceRequest:
    if call.notes.has_early:
        _refuse_foreign(call.notes)
    body: ProduceRequest = call.fields
    return body


def _refuse_foreign(asked: Asked) -> None:
    """Refuse the whole request if it has a transactional batch, and no transactional id with whose right it could be written."""
    for _, partitions in asked.topics:
        for _, early in partitions:
            if early is not None and early.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise BrokerError(early.code, early.message)


def _serve(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    request.body = body = _to_ours(call)
    if body.transactional_id is not None:
        request.api_version = _OURS_TV2 if call.version >= FIRST_TV2 else _OURS_TV1
    result = handler(request)
    if body.acks == _ACKS_NONE and call.notes.has_early:
        _close(call, "a topic does not exist, or its records are refused")
    return result


def _close(call: KafkaCall, reason: str) -> None:
    call.connection.close_because(f"a produce with acks=0 failed: {reason}", call.connection.client_id)


# -- the response -----------------------------------------------------------------------------------------------------

_ROW_3 = Pack(">ihqq")
_ROW_5 = Pack(">ihqqq")
"""Partition, error code, base offset, time of the append, and since version 5 the log start."""
_ENDS = {3: b"", 8: b"\0\0\0\0\xff\xff", FIRST_FLEXIBLE: b"\1\0\0"}
"""First version -> the end of a row: no record errors, no message, no tagged fields."""


class _Shape(NamedTuple):
    """How a version writes a response without errors."""

    is_flexible: bool
    has_log_start: bool
    row_end: bytes
    topic_end: bytes

    def count(self, count: int) -> bytes:
        return encoded_size(count) if self.is_flexible else INT32.pack(count)


_SHAPES = [
    _Shape(version >= FIRST_FLEXIBLE, version >= 5, row_end, b"\0" if version >= FIRST_FLEXIBLE else b"")
    for version in range(LAST + 1)
    for row_end in (next((end for first, end in reversed(_ENDS.items()) if version >= first), b""),)
]
"""By version."""


def _write(call: KafkaCall, body: Message, records: Records | None) -> list[Buffer]:
    assert isinstance(body, ProduceResponse)
    asked: Asked = call.notes
    if asked.has_early or _has_error(body):
        return write_fields(call, _to_kafka(call, body))
    shape, rows = _SHAPES[call.version], iter(body.partitions)
    out = bytearray(shape.count(len(asked.topics)))
    for key, partitions in asked.topics:
        out += key if isinstance(key, bytes) else encoded_text(key, shape.is_flexible)
        out += shape.count(len(partitions))
        for _ in partitions:
            row = next(rows)
            if shape.has_log_start:
                out += _ROW_5.pack(row.partition, 0, row.base_offset, row.log_append_time_ms, row.log_start_offset)
            else:
                out += _ROW_3.pack(row.partition, 0, row.base_offset, row.log_append_time_ms)
            out += shape.row_end
        out += shape.topic_end
    out += INT32.pack(body.throttle_time_ms) + shape.topic_end
    return response_frame(call.correlation_id, shape.is_flexible, out)


def _has_error(body: ProduceResponse) -> bool:
    for row in body.partitions:  # noqa: SIM110  # `any` with a generator takes twice as long
        if row.error_code:
            return True
    return False


def _to_kafka(call: KafkaCall, body: ProduceResponse) -> dict[str, Any]:
    rows, leaders, topics = iter(body.partitions), [], []
    for key, partitions in call.notes.topics:
        found = []
        for index, early in partitions:
            row = next(rows) if early is None else ProducePartitionResponse(b"", index, early.code, error_message=early.message)
            if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and row.current_leader.leader_id >= 0:
                leaders.append(row.current_leader.leader_id)
            found.append(_row(call, key, row))
        topics.append(_topic(key, found))
    endpoints = node_endpoints(call, leaders)
    return {"responses": topics, "throttle_time_ms": body.throttle_time_ms, "node_endpoints": endpoints}


def _topic(key: str | bytes, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic_id" if isinstance(key, bytes) else "name": key, "partition_responses": rows}


def _row(call: KafkaCall, key: str | bytes, row: ProducePartitionResponse) -> dict[str, Any]:
    leader = row.current_leader
    return {
        "index": row.partition,
        "error_code": _code(call, key, row.error_code),
        "base_offset": row.base_offset,
        "log_append_time_ms": row.log_append_time_ms,
        "log_start_offset": row.log_start_offset,
        "record_errors": [{"batch_index": e.batch_index, "batch_index_error_message": e.message} for e in row.record_errors],
        "error_message": row.error_message,
        "current_leader": {"leader_id": leader.leader_id, "leader_epoch": leader.leader_epoch},
    }


_OF_COORDINATOR = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""The coordinator could not be asked about a partition. Kafka's producers know another error after which they only try again."""


def _code(call: KafkaCall, key: str | bytes, code: int) -> int:
    if isinstance(key, str):
        code = code_by_name(call, key, code, WRITE)
    if code in _OF_COORDINATOR or (code == ErrorCode.CONCURRENT_TRANSACTIONS and call.version < FIRST_TV2):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code == ErrorCode.TRANSACTION_ABORTABLE and call.version < _FIRST_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error in each partition: there is no other place for it. With acks=0, the connection is closed and nothing is sent."""
    if call.fields.acks == _ACKS_NONE:
        _close(call, code.name)
    topics = []
    for key, partitions in call.notes.topics:
        rows = [ProducePartitionResponse(b"", index, code, error_message=message) for index, _ in partitions]
        topics.append(_topic(key, [_row(call, key, row) for row in rows]))
    return {"responses": topics, "throttle_time_ms": 0, "node_endpoints": []}


APIS = (
    KafkaApi(
        0,
        "Produce",
        apis.PRODUCE,
        3,
        LAST,
        _to_ours,
        _to_kafka,
        _refused,
        serve=_serve,
        read=_read,
        write=_write,
        advertised_min=0,
    ),
)
