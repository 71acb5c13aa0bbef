"""Our codec's bytes are those of another implementation, in both directions, for every API and version.

kafka-python has its own codec, and the schemas of Kafka 4.3 as JSON. Our schemas are from `kio`. So a mistake in either one, in a
field's name, order, type, null or default, or in the encoding, makes these tests fail."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_python_schemas import Key, TheirSchema, their_schemas
from kio.schema.index import api_key_map
from random_messages import from_json, plain, random_fields, with_defaults

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.codec import Struct
from strandline.broker.kafka.schemas import MessageCodec, Schemas

MESSAGES = 4
"""The number of random messages of each version."""
BY_NODES_ALONE = {
    *(38, 39, 40, 41),  # delegation tokens
    *(52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 70, 73, 80, 81, 82),  # brokers and controllers
    *(71, 72),  # telemetry
    *(68, 69, 76, 77, 78, 79, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92),  # the newer kinds of groups
}
"""The APIs that kafka-python does not have."""
_SCHEMAS = Schemas()


def codec_of(key: Key, version: int) -> MessageCodec:
    return _SCHEMAS.request(key[0], version) if key[1] == "request" else _SCHEMAS.response(key[0], version)


def codecs(key: Key) -> Iterator[tuple[int, MessageCodec]]:
    lowest, highest = their_schemas()[key].versions
    return ((version, codec_of(key, version)) for version in range(lowest, highest + 1))


KEYS = sorted(their_schemas())
each_message = pytest.mark.parametrize("key", KEYS, ids=[f"{api_key_map[key]}-{kind}" for key, kind in KEYS])


@each_message
def test_fields_are_kafkas(key):
    """The names (in snake case), order, kinds, nulls, tags and defaults are Kafka's."""
    theirs = their_schemas()[key]
    for version, codec in codecs(key):
        assert codec.is_flexible == theirs.is_flexible(version)
        assert described(codec.struct) == described_theirs(theirs.struct, version), version


def described(struct: Struct) -> list[Any]:
    """The fields, with those inside them. The tagged ones are last, because their order does not matter."""
    rows = []
    for field in sorted(struct.fields, key=lambda field: field.tag):
        inner = described(field.kind) if isinstance(field.kind, Struct) else _KINDS.get(field.kind, field.kind)
        rows.append((field.tag, field.name, inner, field.is_array, field.is_nullable))
    return rows


_KINDS = {"error_code": "int16"}


def described_theirs(struct: Any, version: int) -> list[Any]:
    rows = []
    fields = [field for field in struct.fields.values() if field.for_version_q(version)]
    tags = {field.name: field.tag if field.tagged_field_q(version) else -1 for field in fields}
    for field in sorted(fields, key=lambda field: tags[field.name]):
        is_struct = field.is_struct() or field.is_struct_array()
        kind = field._type_str.removeprefix("[]").replace("records", "bytes")
        inner = described_theirs(getattr(field, "array_of", field), version) if is_struct else kind
        is_array, is_nullable = field._type_str.startswith("[]"), field.nullable_for_version_q(version)
        rows.append((tags[field.name], field.name, inner, is_array, is_nullable))
    return rows


@each_message
def test_bytes_are_kafka_pythons_in_both_directions(key):
    theirs = their_schemas()[key]
    rnd = random.Random(f"golden {key}")
    for version, codec in codecs(key):
        for _ in range(MESSAGES):
            check(theirs, codec, version, random_fields(rnd, codec.struct))


def check(theirs: TheirSchema, codec: MessageCodec, version: int, values: dict[str, Any]) -> None:
    ours = bytearray()
    codec.write(ours, values)
    expected = with_defaults(codec.struct, values)
    assert bytes(ours) == theirs.encode(codec.struct, version, values)
    assert theirs.decode(codec.struct, version, bytes(ours)) == expected
    fields, end = codec.read(ours, 0)
    assert end == len(ours)
    assert plain(fields) == expected


GOLDEN = json.loads(Path(__file__).with_name("golden_messages.json").read_text())


def test_bytes_of_the_apis_that_kafka_python_lacks():
    """The golden messages were recorded with kafka-python's codec and the schemas in Kafka's jar
    (`record_golden_messages.py`)."""
    for row in GOLDEN:
        codec, values = codec_of((row["api_key"], row["kind"]), row["version"]), from_json(row["values"])
        ours = bytearray()
        codec.write(ours, values)
        assert ours.hex() == row["bytes"]
        fields, end = codec.read(ours, 0)
        assert (plain(fields), end) == (with_defaults(codec.struct, values), len(ours))


def test_every_api_that_is_served_is_compared():
    """Each is compared in every version. (When kio was pinned, the fields of the APIs that are not served were compared with
    those in the jar of Kafka 4.3.1, too: names, order, kinds, nulls, tags and versions are the same.)"""
    assert {key for key in api_key_map if (key, "request") not in their_schemas()} == BY_NODES_ALONE
    recorded = {(row["api_key"], row["kind"], row["version"]) for row in GOLDEN}
    for api in KAFKA_APIS.values():
        for kind in ("request", "response"):
            theirs = their_schemas().get((api.key, kind))
            for version in range(api.min_version, api.max_version + 1):
                compared = (api.key, kind, version) in recorded or (theirs is not None and version <= theirs.versions[1])
                assert compared, (api.name, version)
