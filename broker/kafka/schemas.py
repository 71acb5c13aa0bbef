"""Kafka's schemas: each message of each API and version, described for `codec.py`. The only file that knows `kio`.

kio's classes are generated from the schemas in Kafka's source, and are read here for their fields alone. kio's own decoder is not
used: it allocates what a length field claims, and a hostile length ends the process.

kio is imported when the first message is read, and without `hypothesis`, whose import would take half a second.

kio names times without their unit (`timeout`, `throttle_time`). Here they have Kafka's names (`timeout_ms`), and are plain
integers, and so are error codes. Names are Kafka's in snake case.
"""

from __future__ import annotations

import dataclasses
import sys
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from types import ModuleType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from strandline.broker.kafka.codec import ITEMS_MAX, REQUIRED, Field, Fields, Read, Struct, Write, struct_codec

_KINDS = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "records": "bytes",
}
"""kio's kinds that have another name here."""
_ITEMS_MAX = {
    8: 50_000,  # OffsetCommit
    13: 50_000,  # LeaveGroup
    24: 50_000,  # AddPartitionsToTxn
    28: 50_000,  # TxnOffsetCommit
    75: 50_000,  # DescribeTopicPartitions
    **dict.fromkeys(
        (
            19,  # CreateTopics
            20,  # DeleteTopics
            30,  # CreateAcls
            31,  # DeleteAcls
            33,  # AlterConfigs
            37,  # CreatePartitions
            44,  # IncrementalAlterConfigs
            45,  # AlterPartitionReassignments
            49,  # AlterClientQuotas
            51,  # AlterUserScramCredentials
            57,  # UpdateFeatures
        ),
        60_000,
    ),
    43: 100_000,  # ElectLeaders
    46: 100_000,  # ListPartitionReassignments
}
"""Key -> the maximum number of items of a request that must be served as a whole (`slices.py` has the others), and that takes
long for each item. The batch of a commit with so many partitions would be larger than Kafka's brokers accept. The controller
refuses more than 10,000 changes in one request (`controller/request_limits.py`): a reassignment of 10,000 partitions to four
brokers has 50,001 items."""
_TIMES = ("timedelta_i32", "timedelta_i64", "datetime_i64")
_NULLABLE = ("string", "bytes")
"""The primitive kinds that can be null in Kafka. (kio shows a uuid of zeros and a time of -1 as None, too.)"""


class MessageCodec(NamedTuple):
    """The functions that read and write a message in one version."""

    struct: Struct
    read: Read
    write: Write

    @property
    def is_flexible(self) -> bool:
        return self.struct.is_flexible


class Schemas:
    """The codecs of all messages. Each is built at its first use, because there are more than a thousand."""

    def __init__(self) -> None:
        self._requests: dict[tuple[int, int], MessageCodec] = {}
        self._responses: dict[tuple[int, int], MessageCodec] = {}

    def request(self, api_key: int, version: int) -> MessageCodec:
        """The codec of a request."""
        codec = self._requests.get((api_key, version))
        if codec is None:
            entity = _index().load_request_schema(api_key, version)
            codec = self._requests[api_key, version] = _codec(entity, _ITEMS_MAX.get(api_key, ITEMS_MAX))
        return codec

    def response(self, api_key: int, version: int) -> MessageCodec:
        """The codec of a response."""
        codec = self._responses.get((api_key, version))
        if codec is None:
            codec = self._responses[api_key, version] = _codec(_index().load_response_schema(api_key, version))
        return codec


@cache
def _index() -> ModuleType:
    """kio's index of messages. kio imports `hypothesis` if it is installed, to describe its types to tests."""
    is_absent = "hypothesis" not in sys.modules
    if is_absent:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's way to say that an import fails.
    try:
        import kio.index
    finally:
        if is_absent:
            del sys.modules["hypothesis"]
    return kio.index


def api_names() -> dict[int, str]:
    """The name of each API of Kafka's, by its key."""
    return {key: "".join(word.title() for word in name.split("_")) for key, name in _index().api_key_map.items()}


def _codec(entity: Any, items_max: int = ITEMS_MAX) -> MessageCodec:
    struct = describe(entity)
    return MessageCodec(struct, *struct_codec(struct, items_max))


def describe(entity: Any) -> Struct:
    """Describe a message class of kio."""
    return Struct(entity.__name__, bool(entity.__flexible__), tuple(_field(f) for f in dataclasses.fields(entity)))


def _field(field: dataclasses.Field[Any]) -> Field:
    kio_kind = field.metadata.get("kafka_type")
    inner, is_nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(get_args(inner)[0])
    kind = describe(inner) if kio_kind is None else _KINDS.get(kio_kind, kio_kind)
    is_nullable &= is_array or isinstance(kind, Struct) or kind in _NULLABLE
    tag = int(field.metadata.get("tag", -1))
    default = REQUIRED if field.default is dataclasses.MISSING else _plain(field.default, kind, is_array)
    if default is REQUIRED and tag >= 0:
        default = _zero(kind, is_array, is_nullable)
    name = field.name.rstrip("_") + ("_ms" if kio_kind in _TIMES else "")
    return Field(name, kind, is_array, is_nullable, tag, default)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    members = [member for member in get_args(annotation) if member is not type(None)]
    return members[0], len(members) < len(get_args(annotation))


def _zero(kind: str | Struct, is_array: bool, is_nullable: bool) -> Any:
    """The default of a tagged field that names none."""
    if is_nullable:
        return None
    if is_array:
        return ()
    if isinstance(kind, Struct):
        return Fields(**{field.name: _default(field) for field in kind.fields})
    return {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False}.get(kind, 0)


def _default(field: Field) -> Any:
    return _zero(field.kind, field.is_array, field.is_nullable) if field.default is REQUIRED else field.default


def _plain(value: Any, kind: str | Struct, is_array: bool = False) -> Any:
    """A default of kio as the value that is read and written here."""
    if is_array:
        return value if value is None else tuple(_plain(item, kind) for item in value)
    if isinstance(kind, Struct):
        return value if value is None else Fields(**{f.name: _plain_field(value, f) for f in kind.fields})
    if kind == "uuid":
        return bytes(16) if value is None else value.bytes if isinstance(value, UUID) else value
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, IntEnum):
        return int(value)
    return -1 if value is None and kind == "int64" else value


def _plain_field(value: Any, field: Field) -> Any:
    name = field.name if hasattr(value, field.name) else field.name.removesuffix("_ms")
    return _plain(getattr(value, name), field.kind, field.is_array)
