"""Requests of all APIs of the Kafka door, in all versions, from a seed: good ones, odd ones and broken ones.

good      random fields that follow the schema, with names of things that exist, and short waits
broken    the same with changed, missing, repeated or additional bytes, or with a length that lies
"""

from __future__ import annotations

import random
from typing import Any

from random_messages import random_fields
from wire import request_frame

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.codec import Struct
from strandline.broker.kafka.schemas import Schemas
from strandline.protocol.records.builder import encode_values

_TOPICS = ("fuzz", "fuzz", "fuzz", "fuzz-2", "__consumer_offsets", "missing", "a/b", "x" * 250)
_GROUPS = ("group", "group", "group-2", "missing", "")
_WORDS = ("1000", "retention.ms", "cleanup.policy", "compact", "127.0.0.1", "*", "User:alice", "alice", "SCRAM-SHA-256", "user")
_TEXTS = {
    "topic": _TOPICS,
    "topic_name": _TOPICS,
    "name": _TOPICS,
    "resource_name": (*_TOPICS, "1", "group"),
    "group_id": _GROUPS,
    "group": _GROUPS,
    "key": _GROUPS,
    "transactional_id": ("txn", "txn", "txn-2", "missing", ""),
    "protocol_type": ("consumer", "consumer", "connect"),
    "server_assignor": ("uniform", "range"),
}
"""Values of string fields, by name. A value that is listed more often is used more often."""
_NUMBERS = {"replica_id": (-1, -1, -1, -1, 1), "acks": (-1, -1, 1, 0, 2), "broker_id": (1, 1, 2), "producer_epoch": (0, -1, 1)}
_TIMES_MS = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 6000, "transaction_timeout_ms": 10_000}
_WAIT_MS = 20
_SCHEMAS = Schemas()
HEAD = 8
"""The number of bytes of a request's head before its client id."""
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
LARGE = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f")


class Fuzzer:
    """An endless series of requests."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self._rnd = random.Random(seed)
        self._number = 0
        self._topic_ids = topic_ids
        self._batch = encode_values([b"value"], 1_700_000_000_000)
        self._apis = list(KAFKA_APIS.values())

    def burst(self) -> list[bytes]:
        """Frames to send together: mostly one, and that one is broken more often than not."""
        count = self._rnd.choice((1, 1, 1, 3, 10))
        return [self.next(0.6 if count == 1 else 0.05) for _ in range(count)]

    def next(self, broken: float) -> bytes:
        """A frame, without its length."""
        rnd = self._rnd
        api = rnd.choice(self._apis)
        version = rnd.randint(api.min_version, api.max_version)
        fields = random_fields(rnd, _SCHEMAS.request(api.key, version).struct)
        if rnd.random() < 0.9:
            self._use_names(fields, _SCHEMAS.request(api.key, version).struct)
        self._number += 1
        frame = request_frame(api.key, version, self._number, rnd.choice((None, "fuzz")), fields)
        return self._broken(frame) if rnd.random() < broken else frame

    def _use_names(self, values: dict[str, Any], struct: Struct) -> None:
        """Replace most of the values by meaningful ones."""
        for field in struct.fields:
            value = values.get(field.name)
            if value is None:
                continue
            if isinstance(field.kind, Struct):
                for item in value if field.is_array else [value]:
                    self._use_names(item, field.kind)
            elif field.is_array:
                values[field.name] = [self._meaning(field.name, field.kind, item) for item in value]
            else:
                values[field.name] = self._meaning(field.name, field.kind, value)

    def _meaning(self, name: str, kind: Any, value: Any) -> Any:
        rnd = self._rnd
        if name.endswith("_ms"):
            return _TIMES_MS.get(name, min(abs(value), _WAIT_MS))
        if rnd.random() < 0.1:
            return value
        if kind == "string":
            return rnd.choice(_TEXTS.get(name, _WORDS))
        if kind == "uuid":
            return rnd.choice(self._topic_ids)
        if kind == "bytes":
            return self._batch if name == "records" else value
        if kind in ("int8", "int16", "int32", "int64"):
            return rnd.choice(_NUMBERS.get(name, (0, 0, 0, 1, 1, -1, 2, 5, 100)))
        return value

    def _broken(self, frame: bytes) -> bytes:
        rnd, raw = self._rnd, bytearray(frame)
        for _ in range(rnd.choice((1, 1, 1, 2, 4))):
            begin = 0 if rnd.random() < 0.05 else HEAD
            if len(raw) <= begin:
                break
            at, how = rnd.randrange(begin, len(raw)), rnd.randrange(7)
            if how <= 2:
                raw[at] = rnd.choice(_BYTES) if how else rnd.randrange(256)
            elif how == 3:
                del raw[at : at + rnd.choice((1, 4, len(raw)))]
            elif how == 4:
                raw[at:at] = rnd.randbytes(rnd.choice((1, 4, 50)))
            elif how == 5:
                raw[at : at + 4] = rnd.choice(LARGE)
            else:
                raw[at:at] = raw[rnd.randrange(begin, at + 1) : at]
        return bytes(raw)
