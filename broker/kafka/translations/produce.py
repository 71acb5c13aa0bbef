"""Produce, read and written by hand: record batches stay in the frame that arrived, and the leader stamps their offsets there.

Errors that no handler of ours knows are answered here, as in Kafka:

    a name that does not exist                                UNKNOWN_TOPIC_OR_PARTITION
    no batch, several batches, or an older format of them     INVALID_RECORD: one batch per partition since version 3
    zstd below version 7                                      UNSUPPORTED_COMPRESSION_TYPE
    a transactional batch without a transactional id          TRANSACTIONAL_ID_AUTHORIZATION_FAILED, for the whole request

With acks=0 there is no response. Any error closes the connection, so that the producer notices it.

A batch whose sequence is below the expected one, and which is none of the producer's last five batches, is rejected with
DUPLICATE_SEQUENCE_NUMBER if the producer is a client of Strandline: after OUT_OF_ORDER_SEQUENCE_NUMBER it would send the batch
again with another sequence (`client/producer/partition_queue.py`). Kafka's clients may take DUPLICATE_SEQUENCE_NUMBER for
success. They get OUT_OF_ORDER_SEQUENCE_NUMBER, as from Kafka's brokers.

From version 12 on, the leader adds its partitions to the transaction itself (TV2 of KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from struct import Struct as Pack
from typing import Any, NamedTuple

from strandline.broker.kafka.call import KafkaApi, KafkaCall, write_fields
from strandline.broker.kafka.translations.by_hand import (
    CLASSIC,
    FLEXIBLE,
    INT32,
    Encoding,
    encoded_size,
    encoded_text,
    finish_response,
    head_of_response,
    items,
    node_endpoints,
    response_head,
    text,
    uuid,
)
from strandline.broker.kafka.translations.topics_by_name import code_by_id, code_by_name, judged_first
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
"""Strandline's versions of Produce: with transactions of version 1 and of version 2."""

_ACKS_AND_TIMEOUT = Pack(">hi")
_PEEK = Pack(">8xi4xb4xh")
"""The fields of a record batch that are read here: its length, its magic (format), and its attributes."""
_LENGTH_PREFIX, _SHORTEST_LENGTH = 12, 14
_MAGIC, _ZSTD, _CODEC, _TRANSACTIONAL = 2, 4, 7, 0x10


class Early(NamedTuple):
    """The error of a partition that never reaches the handler."""

    code: ErrorCode
    message: str | None = None


_ITEMS_MAX = 30_000
"""The maximum number of topics of a request, and of partitions. The smallest batches for so many partitions have two megabytes,
twice the default `max.request.size` of producers."""
_UNKNOWN = Early(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


Topic = tuple[str | bytes, list[int], dict[int, Early]]
"""A topic of the request, as the response has it: its name or id, its partitions, and the early answers by their places in the
list of partitions."""


class Asked(NamedTuple):
    """The parts of the request that its response repeats."""

    topics: list[Topic]
    start: bytes = b""
    """The bytes from the count of topics to the count of partitions, with which the response begins, too. Empty if the request is
    not of the usual shape."""


# -- the request ------------------------------------------------------------------------------------------------------


def _read(call: KafkaCall, frame: bytearray, at: int) -> ProduceRequest:
    body = _read_one_flexible(call, frame, at) if call.version >= FIRST_FLEXIBLE else _read_one_classic(call, frame, at)
    return _read_any(call, frame, at) if body is None else body


_START_9, _START_3 = Pack(">BBhiBB"), Pack(">hhiih")
"""Tagged fields (9), transactional id, acks, timeout, count of topics, and the size of the first name."""
_PARTITION_3 = Pack(">iii")
_PARTITION_9 = Pack(">Bi")
"""Count of partitions, the first one, and the size of its records (3)."""
_ROOM = 60
"""Every record batch has more bytes than this. `_read_any` reads requests that are shorter."""


def _read_one_flexible(call: KafkaCall, frame: bytearray, at: int) -> ProduceRequest | None:
    """The request, if it is of the usual shape: one partition, whose records have no early answer, and no transaction. Otherwise
    None."""
    if len(frame) < at + _ROOM:
        return None
    tags, transactional_id, acks, timeout_ms, topics, size = _START_9.unpack_from(frame, at)
    name_at = at + 10 if call.version < FIRST_WITH_IDS else at + 9
    name_end = name_at + (size - 1 if call.version < FIRST_WITH_IDS else 16)
    is_long = size > 0x7F and call.version < FIRST_WITH_IDS
    if tags or transactional_id or topics != 2 or is_long or len(frame) < name_end + _ROOM:
        return None
    partitions, index = _PARTITION_9.unpack_from(frame, name_end)
    records_size, records_at = FLEXIBLE.size(frame, name_end + 5)
    end = records_at + records_size
    if partitions != 2 or frame[end:] != b"\0\0\0":
        return None
    return _one(call, frame, (at + 8, name_at, name_end, name_end + 1), (index, records_at, end), acks, timeout_ms)


def _read_one_classic(call: KafkaCall, frame: bytearray, at: int) -> ProduceRequest | None:
    """The same as `_read_one_flexible`, for versions with the classic encoding."""
    if len(frame) < at + _ROOM:
        return None
    transactional_id, acks, timeout_ms, topics, size = _START_3.unpack_from(frame, at)
    name_at = at + _START_3.size
    name_end = name_at + size
    if transactional_id != -1 or topics != 1 or size < 0 or len(frame) < name_end + _ROOM:
        return None
    partitions, index, records_size = _PARTITION_3.unpack_from(frame, name_end)
    records_at = name_end + _PARTITION_3.size
    if partitions != 1 or records_at + records_size != len(frame):
        return None
    places = (name_at - 6, name_at, name_end, name_end + 4)
    return _one(call, frame, places, (index, records_at, len(frame)), acks, timeout_ms)


def _one(
    call: KafkaCall,
    frame: bytearray,
    places: tuple[int, int, int, int],
    partition: tuple[int, int, int],
    acks: int,
    timeout_ms: int,
) -> ProduceRequest | None:
    """The request for one partition; None if the partition has an early answer. `places`: the offsets of the topics, of the
    topic's name, of its end, and of the end of the count of partitions. `partition`: its index, and where its records begin and
    end."""
    start, name_at, name_end, start_end = places
    index, records_at, end = partition
    key: str | bytes
    topic_id: bytes | None
    if call.version >= FIRST_WITH_IDS:
        key = topic_id = bytes(frame[name_at:name_end])
    else:
        key = frame[name_at:name_end].decode()
        topic_id = call.context.topic_id(key)
        if topic_id is None:
            return None
    if _early(call.version, frame, records_at, end - records_at, None) is not None:
        return None
    call.notes = Asked([(key, [index], _NONE_EARLY)], bytes(frame[start:start_end]))
    return ProduceRequest(
        None, acks, max(timeout_ms, 0), [ProducePartition(topic_id, index)], [memoryview(frame)[records_at:end]]
    )


_NONE_EARLY: dict[int, Early] = {}


def _read_any(call: KafkaCall, frame: bytearray, at: int) -> ProduceRequest:
    version = call.version
    encoding = FLEXIBLE if version >= FIRST_FLEXIBLE else CLASSIC
    transactional_id, at = encoding.text(frame, encoding.skip_tags(frame, at))
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    body = ProduceRequest(transactional_id, acks, max(timeout_ms, 0), [], [])
    topics: list[Topic] = []
    call.notes = Asked(topics)
    count, at = encoding.size(frame, at + _ACKS_AND_TIMEOUT.size)
    view, seen = memoryview(frame), 0
    key: str | bytes
    topic_id: bytes | None
    for _ in items(count, frame, at, 0, _ITEMS_MAX):
        if version >= FIRST_WITH_IDS:
            key, at = topic_id, at = uuid(frame, at)
        else:
            key, at = text(frame, at, encoding)
            topic_id = call.context.topic_id(key)
        topic: Topic = (key, [], {})
        topics.append(topic)
        at = _read_partitions(call, frame, view, at, encoding, topic, topic_id, body, seen)
        seen += len(topic[1])
    encoding.skip_tags(frame, at)
    return body


def _read_partitions(
    call: KafkaCall,
    frame: bytearray,
    view: memoryview,
    at: int,
    encoding: Encoding,
    topic: Topic,
    topic_id: bytes | None,
    body: ProduceRequest,
    before: int,
) -> int:
    """Read the partitions of one topic into the request. Returns the offset after the topic."""
    _, partitions, early = topic
    size_of, skip_tags, frame_size = encoding.size, encoding.skip_tags, len(frame)
    count, at = size_of(frame, at)
    for place in items(count, frame, at, before, _ITEMS_MAX):
        (index,) = INT32.unpack_from(frame, at)
        size, at = size_of(frame, at + 4)
        end = at + max(size, 0)
        if end > frame_size:
            raise PeerError(f"records of {size} bytes are announced, {frame_size - at} are left")
        partitions.append(index)
        answer = _early(call.version, frame, at, size, body.transactional_id)
        is_refused_as_a_whole = answer is not None and answer.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if (topic_id is None or index < 0) and not is_refused_as_a_whole:
            answer = _UNKNOWN
        if answer is None:
            body.partitions.append(ProducePartition(topic_id, index))  # type: ignore[arg-type]  # it is not None
            body.records.append(view[at:end])
        else:
            early[place] = answer
        at = skip_tags(frame, end)
    return skip_tags(frame, at)


def _early(version: int, frame: bytearray, at: int, size: int, transactional_id: str | None) -> Early | None:
    """The error with which Kafka rejects the records of a partition before it looks at the log; None if it does not."""
    if size < _PEEK.size:
        return Early(ErrorCode.INVALID_RECORD, "the request has no record batch for the partition")
    length, magic, attributes = _PEEK.unpack_from(frame, at)
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
    """Reject the whole request if it has a transactional batch and no transactional id: the right to write such a batch belongs
    to its transactional id."""
    for _, _, early in call.notes.topics:
        for code, message in early.values():
            if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise BrokerError(code, message)
    body: ProduceRequest = call.fields
    return body


def _serve(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    request.body = body = _to_ours(call)
    if body.transactional_id is not None:
        request.api_version = _OURS_TV2 if call.version >= FIRST_TV2 else _OURS_TV1
    result = handler(request)
    if body.acks == _ACKS_NONE and any(early for _, _, early in call.notes.topics):
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
    """The layout of a response without errors, in one version of the API."""

    is_flexible: bool
    has_log_start: bool
    row_end: bytes
    end: bytes
    """The end of a topic, and of the response: no tagged fields."""
    one_end: bytes
    """The end of a response with one row, without a throttle time."""

    def counted(self, count: int) -> bytes:
        return encoded_size(count) if self.is_flexible else INT32.pack(count)


def _shape(version: int) -> _Shape:
    is_flexible = version >= FIRST_FLEXIBLE
    row_end = next((end for first, end in reversed(_ENDS.items()) if version >= first), b"")
    end = b"\0" if is_flexible else b""
    return _Shape(is_flexible, version >= 5, row_end, end, row_end + end + bytes(4) + end)


_SHAPES = [_shape(version) for version in range(LAST + 1)]


def _write(call: KafkaCall, body: Message, records: Records | None) -> list[Buffer]:
    assert isinstance(body, ProduceResponse)
    is_flexible, has_log_start, row_end, end, _ = shape = _SHAPES[call.version]
    topics, start = call.notes
    if start and has_log_start and not body.partitions[0].error_code:
        return _write_one(call, start, body.partitions[0], shape, body.throttle_time_ms)
    rows = iter(body.partitions)
    out = response_head(is_flexible)
    out += shape.counted(len(topics))
    for key, partitions, early in topics:
        out += key if isinstance(key, bytes) else encoded_text(key, is_flexible)
        out += shape.counted(len(partitions))
        for _ in partitions:
            row = None if early else next(rows)
            if row is None or row.error_code:
                return write_fields(call, _to_kafka(call, body))
            if has_log_start:
                out += _ROW_5.pack(row.partition, 0, row.base_offset, row.log_append_time_ms, row.log_start_offset)
            else:
                out += _ROW_3.pack(row.partition, 0, row.base_offset, row.log_append_time_ms)
            out += row_end
        out += end
    out += INT32.pack(body.throttle_time_ms)
    out += end
    finish_response(out, call.correlation_id, is_flexible)
    return [out]


def _write_one(
    call: KafkaCall, start: bytes, row: ProducePartitionResponse, shape: _Shape, throttle_time_ms: int
) -> list[Buffer]:
    values = _ROW_5.pack(row.partition, 0, row.base_offset, row.log_append_time_ms, row.log_start_offset)
    tail = shape.one_end if not throttle_time_ms else shape.row_end + shape.end + INT32.pack(throttle_time_ms) + shape.end
    head = head_of_response(len(start) + _ROW_5.size + len(tail), call.correlation_id, shape.is_flexible)
    return [head + start + values + tail]


def _to_kafka(call: KafkaCall, body: ProduceResponse) -> dict[str, Any]:
    rows, leaders, topics = iter(body.partitions), [], []
    for key, partitions, early in call.notes.topics:
        found = []
        for place, index in enumerate(partitions):
            answer = early.get(place)
            row = next(rows) if answer is None else _early_row(call, key, index, answer)
            if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and row.current_leader.leader_id >= 0:
                leaders.append(row.current_leader.leader_id)
            found.append(_row(call, key, row))
        topics.append(_topic(key, found))
    endpoints = node_endpoints(call, leaders)
    return {"responses": topics, "throttle_time_ms": body.throttle_time_ms, "node_endpoints": endpoints}


def _topic(key: str | bytes, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic_id" if isinstance(key, bytes) else "name": key, "partition_responses": rows}


def _early_row(call: KafkaCall, key: str | bytes, index: int, answer: Early) -> ProducePartitionResponse:
    """The row of a partition whose records are rejected. As in Kafka, the client's right and the partition are checked first."""
    name = key if isinstance(key, str) else call.context.topic_name(key)
    first = ErrorCode.UNKNOWN_TOPIC_ID if name is None else judged_first(call, name, index, WRITE)
    if first:
        return ProducePartitionResponse(b"", index, first)
    return ProducePartitionResponse(b"", index, answer.code, error_message=answer.message)


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
"""Codes for a temporary reason why the transaction coordinator did not confirm that the partition is in the transaction. Kafka's
producers get NOT_ENOUGH_REPLICAS instead, after which they only retry."""


def _code(call: KafkaCall, key: str | bytes, code: int) -> int:
    code = code_by_name(call, key, code, WRITE) if isinstance(key, str) else code_by_id(call, key, code, WRITE)
    if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
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
    for key, partitions, _ in call.notes.topics:
        rows = [ProducePartitionResponse(b"", index, code, error_message=message) for index in partitions]
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
