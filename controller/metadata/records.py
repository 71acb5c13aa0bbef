"""The records of the metadata log: the only thing that ever changes what the cluster agrees on.

The active controller decides by writing records; standby controllers and brokers replay the same records with the same
code (`image.py`). One record is the value of one entry in a v2 record batch of the topic `__cluster_metadata`:

    record := msgpack array [type, field, field, ...]

`type` is Kafka's number of the record type; ours begin at 200. Fields are appended with defaults; a reader ignores what
a newer writer appended, and refuses a type that it does not know: skipping it would make its picture differ from
everybody else's.
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

from strandline.protocol.errors import PeerError
from strandline.protocol.messages.common import Listener, ProducerName, ProducerNote

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"
METADATA_PARTITION = (METADATA_TOPIC_ID, 0)
"""The key of the metadata log's only partition."""

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""`PartitionChangeRecord.leader` when the record leaves the leader (and so the leader epoch) alone."""

RECOVERED = 0
RECOVERING = 1
NO_RECOVERY_CHANGE = -1

BrokerIds = tuple[int, ...]
_Uuid = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Flag = Annotated[int, Meta(ge=-1, le=1)]


class MetadataRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of every metadata record."""


class RegisterBrokerRecord(MetadataRecord, tag=0, frozen=True):
    """A process took the broker id. `broker_epoch` is the offset of this very record. A new registration starts fenced."""

    broker_id: int
    broker_epoch: int
    incarnation_id: _Uuid
    listeners: tuple[Listener, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[_Uuid, ...] = ()


class UnregisterBrokerRecord(MetadataRecord, tag=1, frozen=True):
    broker_id: int
    broker_epoch: int


class TopicRecord(MetadataRecord, tag=2, frozen=True):
    name: str
    topic_id: _Uuid


class PartitionRecord(MetadataRecord, tag=3, frozen=True):
    """A partition in full: at its creation and in snapshots. The topic's `TopicRecord` comes first."""

    topic_id: _Uuid
    partition: int
    replicas: BrokerIds
    isr: BrokerIds
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED
    elr: BrokerIds = ()
    last_known_elr: BrokerIds = ()
    adding_replicas: BrokerIds = ()
    removing_replicas: BrokerIds = ()


class ConfigRecord(MetadataRecord, tag=4, frozen=True):
    """One key of one resource; `value` None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class PartitionChangeRecord(MetadataRecord, tag=5, frozen=True):
    """What changed in a partition; None and the NO_..._CHANGE numbers mean "as before".

    Naming a `leader`, even the same one, bumps the leader epoch; every change bumps the partition epoch.
    """

    topic_id: _Uuid
    partition: int
    isr: BrokerIds | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: BrokerIds | None = None
    adding_replicas: BrokerIds | None = None
    removing_replicas: BrokerIds | None = None
    leader_recovery_state: int = NO_RECOVERY_CHANGE
    elr: BrokerIds | None = None
    last_known_elr: BrokerIds | None = None


class RemoveTopicRecord(MetadataRecord, tag=9, frozen=True):
    """Removes the topic, its partitions and its configs."""

    topic_id: _Uuid


class ProducerIdsRecord(MetadataRecord, tag=15, frozen=True):
    """A block of producer ids was given to a broker; the next block starts at `next_producer_id`."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class BrokerRegistrationChangeRecord(MetadataRecord, tag=17, frozen=True):
    """`fenced`: 1 fence, -1 unfence, 0 as before. `in_controlled_shutdown`: 1 begins, 0 as before."""

    broker_id: int
    broker_epoch: int
    fenced: _Flag = 0
    in_controlled_shutdown: _Flag = 0
    log_dirs: tuple[_Uuid, ...] | None = None


class NoOpRecord(MetadataRecord, tag=20, frozen=True):
    """Says nothing; lets the log (and with it the followers' offsets) move on."""


class ProducerNameRecord(MetadataRecord, tag=200, frozen=True):
    """Somebody writes, or will, as this work epoch of the name, in this epoch. The name has the number for ever."""

    name: ProducerName
    number: int
    work_epoch: int
    producer_epoch: int
    last_used_ms: int
    """By the wall clock of the controller that decided."""
    note: ProducerNote | None = None
    """What the first attempt of the work epoch left for the later ones."""
    oldest_epoch: int = 0
    """Of the work epoch: nothing of an epoch before it may be written any more."""


class RemoveProducerNameRecord(MetadataRecord, tag=201, frozen=True):
    """Nobody used the name for long; the same name would get another number."""

    name: ProducerName


class ProducerNumbersRecord(MetadataRecord, tag=202, frozen=True):
    """In snapshots: the numbers below were given, also those of names that were removed."""

    next_producer_number: int


AnyRecord = Union[  # noqa: UP007 - msgspec reads the union at run time
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    ProducerNameRecord,
    RemoveProducerNameRecord,
    ProducerNumbersRecord,
]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
_type_only = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode_record(record: MetadataRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes | memoryview) -> AnyRecord:
    """The record; `PeerError` with the reason when the bytes are no record that this version knows."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise PeerError(_why_unreadable(data, e)) from None


def _why_unreadable(data: bytes | memoryview, error: Exception) -> str:
    try:
        record_type = msgspec.msgpack.decode(_type_only.decode(data)[0])
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        return f"a metadata record of {len(data)} bytes is not readable: {error}"
    if record_type in RECORD_TYPES:
        return f"a metadata record of type {RECORD_TYPES[record_type]} is malformed: {error}"
    return f"a metadata record has the type {record_type!r}, which this version does not know; a newer version wrote it"


RECORD_TYPES: dict[object, str] = {
    kind.__struct_config__.tag: kind.__name__
    for kind in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        RemoveTopicRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        NoOpRecord,
        ProducerNameRecord,
        RemoveProducerNameRecord,
        ProducerNumbersRecord,
    )
}
