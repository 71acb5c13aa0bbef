"""Fetch, read and written by hand: the records of an answer are buffers of the log, which are not copied.

Versions below 13 name their topics, and the sessions of Strandline have the topics' ids. So the names of a session are in the
client's memory only:

    a name that does not exist, in a full request           a row with its error; the response establishes no session, so that
                                                            the client names the topic again
    ... that an incremental request adds                    INVALID_FETCH_SESSION_EPOCH: the client begins a new session
    a topic of the session that was deleted, and perhaps    the same, because the broker no longer knows its name
    created again under its name

A topic that the client may not read is treated as one that does not exist. Otherwise the session would reveal that it exists.

Kafka does not continue a session with ids if it began with names, or the reverse (FETCH_SESSION_TOPIC_ID_ERROR). Here all
sessions have ids, so the client may change between the two.

Followers fetch in Strandline's protocol: a request that claims to come from a follower is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Pack
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall
from strandline.broker.kafka.codec import Field, Struct, skip_tagged, struct_codec
from strandline.broker.kafka.translations.by_hand import CLASSIC, FLEXIBLE, INT32, Encoding, items, text, uuid
from strandline.broker.kafka.translations.fetch_response import error_row, write_response
from strandline.broker.kafka.translations.topics_by_name import access_of, by_topic
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, SESSION_ERRORS
from strandline.protocol.messages.data import FetchPartition, FetchRequest, ForgottenPartition
from strandline.protocol.messages.security import READ, TOPIC_RESOURCE

FIRST, LAST = 4, 18
_FIRST_FLEXIBLE, _FIRST_WITH_IDS = 12, 13
_FIRST_WITH_SESSIONS, _FIRST_WITH_RACK, _FIRST_WITH_STATE = 7, 11, 15
_REPLICA_STATE_TAG = 1
_CONSUMER = -1
_NO_SESSION = 0


class Asked:
    """The parts of a request that its response needs: the names of its topics, and the topics that do not exist."""

    __slots__ = ("names", "replica_id", "unknown")

    def __init__(self, replica_id: int) -> None:
        self.names: dict[bytes, str] = {}
        """Topic id -> the name in the request."""
        self.unknown: list[tuple[str, list[int]]] = []
        """The topics that do not exist, and their partitions."""
        self.replica_id = replica_id


_BY_IDS = Asked(_CONSUMER)
"""Shared by all consumer requests with ids: such a request adds nothing to it."""


# -- the request ------------------------------------------------------------------------------------------------------

_HEADS = [
    Pack(">iiibii" if version >= _FIRST_WITH_STATE else ">iiiibii" if version >= _FIRST_WITH_SESSIONS else ">iiiib")
    for version in range(LAST + 1)
]
"""The fields before the topics, by version: replica id, maximum wait in ms, minimum and maximum bytes, isolation level, session
id and epoch."""
_ENDS = [
    b"\1\1\0" if version >= _FIRST_FLEXIBLE else bytes(6 if version >= _FIRST_WITH_RACK else 4 if version >= 7 else 0)
    for version in range(LAST + 1)
]
"""The end of a request that forgets nothing, names no rack, and has no tagged fields, by version."""


def _partition_3(topic_id: bytes, values: tuple[int, ...]) -> FetchPartition:
    partition, offset, max_bytes = values
    return FetchPartition(topic_id, partition, -1, offset, -1, -1, max_bytes)


def _partition_4(topic_id: bytes, values: tuple[int, ...]) -> FetchPartition:
    partition, offset, _, max_bytes = values
    return FetchPartition(topic_id, partition, -1, offset, -1, -1, max_bytes)


def _partition_5(topic_id: bytes, values: tuple[int, ...]) -> FetchPartition:
    partition, epoch, offset, _, max_bytes = values
    return FetchPartition(topic_id, partition, epoch if epoch >= 0 else -1, offset, -1, -1, max_bytes)


def _partition_6(topic_id: bytes, values: tuple[int, ...]) -> FetchPartition:
    partition, epoch, offset, last, _, max_bytes = values
    return FetchPartition(topic_id, partition, epoch if epoch >= 0 else -1, offset, last if last >= 0 else -1, -1, max_bytes)


_PARTITIONS = [
    (Pack(">iiqiqi"), _partition_6)
    if version >= _FIRST_FLEXIBLE
    else (Pack(">iiqqi"), _partition_5)
    if version >= 9
    else (Pack(">iqqi"), _partition_4)
    if version >= 5
    else (Pack(">iqi"), _partition_3)
    for version in range(LAST + 1)
]
"""The layout of a partition, and the function that builds a FetchPartition from its values, by version. (The log start offset is
for followers, and is dropped.)"""


def _read(call: KafkaCall, frame: bytearray, at: int) -> FetchRequest:
    version = call.version
    encoding = FLEXIBLE if version >= _FIRST_FLEXIBLE else CLASSIC
    at = encoding.skip_tags(frame, at)
    head = _HEADS[version]
    values: Sequence[int] = head.unpack_from(frame, at)
    replica_id = _CONSUMER
    if version < _FIRST_WITH_STATE:
        replica_id, *values = values
    max_wait_ms, min_bytes, max_bytes, isolation_level, *session = values
    session_id, session_epoch = session or (_NO_SESSION, FINAL_EPOCH)
    call.notes = _BY_IDS if version >= _FIRST_WITH_IDS and replica_id < 0 else Asked(replica_id)
    body = FetchRequest(_CONSUMER, -1, max(max_wait_ms, 0), min_bytes, max_bytes, isolation_level, session_id, session_epoch, [])
    at = _read_topics(call, frame, at + head.size, encoding, body)
    if frame[at:] != _ENDS[version]:
        _read_end(call, frame, at, encoding, body)
    return body


def _read_end(call: KafkaCall, frame: bytearray, at: int, encoding: Encoding, body: FetchRequest) -> None:
    version = call.version
    if version >= _FIRST_WITH_SESSIONS:
        at = _read_forgotten(call, frame, at, encoding, body)
    if version >= _FIRST_WITH_RACK:
        body.rack_id, at = text(frame, at, encoding)
    if version >= _FIRST_WITH_STATE and frame[at]:
        call.notes = Asked(_replica_of_tags(frame, at))


def _read_topics(call: KafkaCall, frame: bytearray, at: int, encoding: Encoding, body: FetchRequest) -> int:
    has_tags, has_ids = encoding is FLEXIBLE, call.version >= _FIRST_WITH_IDS
    pack, make = _PARTITIONS[call.version]
    unpack, size, wanted = pack.unpack_from, pack.size, body.partitions
    count, at = encoding.size(frame, at)
    unknown: list[int] = []
    seen = 0
    topic_id: bytes | None
    for _ in items(count, frame, at):
        if has_ids:
            topic_id, at = uuid(frame, at)
        else:
            topic_id, unknown, at = _read_name(call, frame, at, encoding)
        partitions, at = encoding.size(frame, at)
        for _ in items(partitions, frame, at, seen):
            values = unpack(frame, at)
            at += size
            if has_tags:
                at = skip_tagged(frame, at) if frame[at] else at + 1
            if topic_id is None:
                unknown.append(values[0])
            else:
                wanted.append(make(topic_id, values))
        seen += partitions
        at = encoding.skip_tags(frame, at)
    return at


def _read_name(call: KafkaCall, frame: bytearray, at: int, encoding: Encoding) -> tuple[bytes | None, list[int], int]:
    """The id of a topic, or a list that takes its partitions if there is no such topic."""
    name, at = text(frame, at, encoding)
    found = call.context.topic_id(name)
    unknown: list[int] = []
    if found is None:
        call.notes.unknown.append((name, unknown))
    else:
        call.notes.names[found] = name
    return found, unknown, at


def _read_forgotten(call: KafkaCall, frame: bytearray, at: int, encoding: Encoding, body: FetchRequest) -> int:
    count, at = encoding.size(frame, at)
    topic_id: bytes | None
    seen = 0
    if count:
        body.forgotten = forgotten = []
    for _ in items(count, frame, at):
        if call.version >= _FIRST_WITH_IDS:
            topic_id, at = uuid(frame, at)
        else:
            name, at = text(frame, at, encoding)
            topic_id = call.context.topic_id(name)
        partitions, at = encoding.size(frame, at)
        for _ in items(partitions, frame, at, seen):
            if topic_id is not None:
                forgotten.append(ForgottenPartition(topic_id, *INT32.unpack_from(frame, at)))
            at += 4
        seen += partitions
        at = encoding.skip_tags(frame, at)
    return at


def _replica_of_tags(frame: bytearray, at: int) -> int:
    """The id of the replica in the tagged fields of a request; -1 if it names none."""
    state = _read_replica_state(frame, at)[0].replica_state
    return _CONSUMER if state is None else int(state.replica_id)


_read_replica_state, _ = struct_codec(
    Struct(
        "ReplicaStateOfFetch",
        True,
        (
            Field(
                "replica_state",
                Struct("ReplicaState", True, (Field("replica_id", "int32"), Field("replica_epoch", "int64"))),
                tag=_REPLICA_STATE_TAG,
                default=None,
            ),
        ),
    )
)


def _to_ours(call: KafkaCall) -> FetchRequest:
    body: FetchRequest = call.fields
    asked: Asked = call.notes
    if asked.replica_id >= 0:
        reason = "followers do not replicate over a listener for Kafka's clients"
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, reason)
    if body.isolation_level not in (0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no isolation level {body.isolation_level}")
    if asked.unknown or _names_hidden_topics(call, asked):
        if body.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            text = "the request adds a topic that does not exist, or that the client may not read"
            raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, text)
        body.session_epoch = FINAL_EPOCH
    return body


def _names_hidden_topics(call: KafkaCall, asked: Asked) -> bool:
    """Whether the client may not read one of the topics. A session with such a topic would reveal that it exists."""
    access = access_of(call) if asked.names else None
    return access is not None and not all(access.sees(READ, TOPIC_RESOURCE, name) for name in asked.names.values())


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error at the top. Versions with names repeat it in each partition, because the first versions have no other place for
    it; an error of the session is at the top only."""
    body: FetchRequest = call.fields
    topics: list[Any] = []
    if call.version < _FIRST_WITH_IDS and code not in SESSION_ERRORS:
        names = call.notes.names
        rows = [(names[item.topic_id], error_row(item.partition, code)) for item in body.partitions]
        rows += [(name, error_row(index, code)) for name, indexes in call.notes.unknown for index in indexes]
        topics = by_topic(rows, "topic")
    session_id = _NO_SESSION if code in SESSION_ERRORS else body.session_id
    return {"throttle_time_ms": 0, "error_code": code, "session_id": session_id, "responses": topics, "node_endpoints": []}


def _no_fields(call: KafkaCall, body: Any) -> dict[str, Any]:
    raise AssertionError("the answers of Fetch are written by hand")


APIS = (KafkaApi(1, "Fetch", apis.FETCH, FIRST, LAST, _to_ours, _no_fields, _refused, read=_read, write=write_response),)
