"""The records of the metadata log: every change of the cluster's metadata is one of them.

The active controller decides by writing records. Standby controllers and brokers replay the same records with the same code
(`image.py`). A metadata record is the value of one record in a v2 record batch of the topic `__cluster_metadata`:

    record := msgpack array [type, field, field, ...]

`type` is Kafka's number of the record type; types that Kafka does not have start at 200. A reader rejects a type that it does not
know: if it skipped the record, its metadata would differ from that of all other nodes.

A new type, a new field, or a new value of an old field belongs to a level (`features.py`), and `encode_record` refuses it at the
levels below. New fields are appended with defaults, and `encode_record` leaves them out below their level.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Union

import msgspec
from msgspec import Meta

from strandline.protocol.errors import InternalError, PeerError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.common import Listener, ProducerName, ProducerNote, SupportedFeature

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"

LEVEL_MIN, LEVEL_MAX = 0, 2
"""The levels that this version can read and write."""

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""The value of `PartitionChangeRecord.leader` if the record changes neither the leader nor the leader epoch."""

RECOVERED = 0
RECOVERING = 1
NO_RECOVERY_CHANGE = -1

BrokerIds = tuple[int, ...]
_Uuid = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Flag = Annotated[int, Meta(ge=-1, le=1)]


class MetadataRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of every metadata record."""

    SECRET: ClassVar[tuple[str, ...]] = ()
    """The fields that no log, message or dump shows."""


class RegisterBrokerRecord(MetadataRecord, tag=0, frozen=True):
    """A process has registered as this broker. `broker_epoch` is the offset of the first such record of the process, which starts
    fenced."""

    broker_id: int
    broker_epoch: int
    incarnation_id: _Uuid
    listeners: tuple[Listener, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[_Uuid, ...] = ()
    features: tuple[SupportedFeature, ...] = ()
    """From level 1 on, like `min_insync_replicas`."""
    min_insync_replicas: int = 0
    """The value in the broker's configuration file; 0 if unknown."""
    cordoned_log_dirs: tuple[_Uuid, ...] = ()
    """The log directories that get no new replicas. From level 1 on."""


class UnregisterBrokerRecord(MetadataRecord, tag=1, frozen=True):
    """Removes the broker's registration."""

    broker_id: int
    broker_epoch: int


class TopicRecord(MetadataRecord, tag=2, frozen=True):
    """A topic is created, at first without partitions; each has a `PartitionRecord` after it."""

    name: str
    topic_id: _Uuid


class PartitionRecord(MetadataRecord, tag=3, frozen=True):
    """All fields of a partition, at its creation and in snapshots. It is written after the topic's `TopicRecord`."""

    topic_id: _Uuid
    partition: int
    replicas: BrokerIds
    isr: BrokerIds
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: BrokerIds = ()
    """Replicas outside the ISR that have every committed record (KIP-966); from level 1 on, like `last_known_elr` and an empty
    `isr`."""
    last_known_elr: BrokerIds = ()
    adding_replicas: BrokerIds = ()
    """While the partition is reassigned (KIP-455), like the three fields after it; from level 1 on."""
    removing_replicas: BrokerIds = ()
    original_replicas: BrokerIds = ()
    """The replicas before the reassignment, to which a cancellation returns."""
    throttle_rate: int = 0
    """Bytes per second that a broker may send or receive for this reassignment; 0: no limit."""
    directories: tuple[_Uuid, ...] = ()
    """The log directory of each replica (`directory_ids.py`); empty if none is assigned. From level 1 on."""


class ConfigRecord(MetadataRecord, tag=4, frozen=True):
    """One key of one resource; a `value` of None removes the key."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class PartitionChangeRecord(MetadataRecord, tag=5, frozen=True):
    """The changed fields of a partition; None and the NO_..._CHANGE numbers mean no change.

    A record with a `leader`, even the same one, raises the leader epoch; every record raises the partition epoch.
    """

    topic_id: _Uuid
    partition: int
    isr: BrokerIds | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: BrokerIds | None = None
    """From level 1 on, like the other fields of a reassignment."""
    adding_replicas: BrokerIds | None = None
    removing_replicas: BrokerIds | None = None
    leader_recovery_state: int = NO_RECOVERY_CHANGE
    eligible_leader_replicas: BrokerIds | None = None
    """From level 1 on, like `last_known_elr` and an empty `isr`."""
    last_known_elr: BrokerIds | None = None
    original_replicas: BrokerIds | None = None
    throttle_rate: int | None = None
    directories: tuple[_Uuid, ...] | None = None
    """From level 1 on. If the record changes `replicas` and not this, each replica keeps its directory."""


class RemoveTopicRecord(MetadataRecord, tag=9, frozen=True):
    """Removes the topic, its partitions and its configs."""

    topic_id: _Uuid


class UserScramCredentialRecord(MetadataRecord, tag=11, frozen=True):
    """A user's credential for one SCRAM mechanism (KIP-554). It has the keys that the controller has derived from the salted
    password, never the salted password itself (KAFKA-14881). From level 2 on."""

    SECRET = ("salt", "stored_key", "server_key")

    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"UserScramCredentialRecord(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class FeatureLevelRecord(MetadataRecord, tag=12, frozen=True):
    """The level of a feature from this record on. It belongs to level 1: a log of level 0 has none."""

    name: str
    feature_level: int


class ClientQuotaRecord(MetadataRecord, tag=14, frozen=True):
    """Sets or removes one key of a quota entity (KIP-546). From level 2 on."""

    entity: tuple[tuple[str, str | None], ...]
    """(entity type, name) of each part; a name of None is the default of the type."""
    key: str
    value: float = 0.0
    remove: bool = False


class ProducerIdsRecord(MetadataRecord, tag=15, frozen=True):
    """A broker got a block of producer ids; the next block starts at `next_producer_id`."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class BrokerRegistrationChangeRecord(MetadataRecord, tag=17, frozen=True):
    """`fenced`: 1 fences, -1 unfences, 0 changes nothing. `in_controlled_shutdown`: 1 starts it, 0 changes nothing."""

    broker_id: int
    broker_epoch: int
    fenced: _Flag = 0
    in_controlled_shutdown: _Flag = 0
    log_dirs: tuple[_Uuid, ...] | None = None
    cordoned_log_dirs: tuple[_Uuid, ...] | None = None
    """From level 1 on."""


class AccessControlEntryRecord(MetadataRecord, tag=18, frozen=True):
    """Adds an access rule; the fields are those of Kafka's AclBinding, in Kafka's numbers. From level 2 on."""

    id: _Uuid
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class RemoveAccessControlEntryRecord(MetadataRecord, tag=19, frozen=True):
    """Removes an access rule. From level 2 on."""

    id: _Uuid


class NoOpRecord(MetadataRecord, tag=20, frozen=True):
    """Changes nothing, but advances the offsets of the log and of its followers."""


class RemoveUserScramCredentialRecord(MetadataRecord, tag=22, frozen=True):
    """Removes a user's credential for one SCRAM mechanism. From level 2 on."""

    name: str
    mechanism: int


class ProducerNameRecord(MetadataRecord, tag=200, frozen=True):
    """A producer may write as this work epoch of the name, with this producer epoch. A name keeps its number."""

    name: ProducerName
    number: int
    work_epoch: int
    producer_epoch: int
    last_used_ms: int
    """By the wall clock of the controller that made the decision."""
    note: ProducerNote | None = None
    """The note that the first attempt of the work epoch left for the later ones."""
    oldest_epoch: int = 0
    """The oldest producer epoch of the work epoch that may still write."""


class RemoveProducerNameRecord(MetadataRecord, tag=201, frozen=True):
    """The name was not used for a long time. If it is used again, it gets another number."""

    name: ProducerName


class ProducerNumbersRecord(MetadataRecord, tag=202, frozen=True):
    """In snapshots only: all lower numbers were used, including those of names that were removed."""

    next_producer_number: int


class AskedReplica(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer of a replica that was asked before an unclean election."""

    broker_id: int
    last_epoch: int = -1
    """The leader epoch of its last records."""
    log_end_offset: int = -1
    """-1 if it did not answer; then all other fields are unknown, too."""
    high_watermark: int = -1
    may_lack_records: bool = False
    """Its log may have lost records that it had, for example because its machine lost power."""


class UncleanElectionRecord(MetadataRecord, tag=203, frozen=True):
    """The report of an unclean election, right after the `PartitionChangeRecord` that elects the leader. From level 1 on."""

    topic_id: _Uuid
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[AskedReplica, ...]
    """Every replica of the partition, in the order of its assignment."""
    last_known_leader: int
    last_known_leader_epoch: int
    high_watermark: int
    """The highest high watermark that a replica knew; -1 if none did. The last leader's may have been higher."""
    lost_from: int
    """Every record that was committed below this offset is in the new leader's log."""
    lost_to: int
    """The records from `lost_from` to here, exclusive, may be lost; -1 if the end is unknown. None is lost if both are equal."""
    strategy: str
    """How the leader was chosen: balanced, aggressive, or operator."""
    elected_at_ms: int
    """By the wall clock of the controller that made the decision."""


AnyRecord = Union[  # noqa: UP007 - msgspec reads the union at run time
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    RemoveUserScramCredentialRecord,
    ProducerNameRecord,
    RemoveProducerNameRecord,
    ProducerNumbersRecord,
    UncleanElectionRecord,
]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
_type_only = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode_record(record: MetadataRecord, level: int = LEVEL_MAX) -> bytes:
    """Encode one record in the format of this level. Raises InternalError if the level cannot express it."""
    if level == LEVEL_MAX:
        return _encoder.encode(record)
    if isinstance(record, RECORDS_OF_LEVEL_2):
        raise InternalError(f"a {type(record).__name__} needs level 2 of {METADATA_VERSION}, and the cluster has level {level}")
    return _encoder.encode(record) if level else _encode_at_level_0(record)


RECORDS_OF_LEVEL_2 = (
    UserScramCredentialRecord,
    ClientQuotaRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
)
"""The records of security and quotas."""


_FIELDS_AT_LEVEL_0: dict[type[MetadataRecord], int] = {
    RegisterBrokerRecord: 8,
    BrokerRegistrationChangeRecord: 5,
    PartitionRecord: 12,
    PartitionChangeRecord: 10,
}
"""Record type -> its number of fields at level 0, for the types that have got more fields since."""


def _encode_at_level_0(record: MetadataRecord) -> bytes:
    beyond = _beyond_level_0(record)
    if beyond is not None:
        raise InternalError(
            f"a {type(record).__name__} with {beyond} needs level 1 of {METADATA_VERSION}, and the cluster has level 0"
        )
    count = _FIELDS_AT_LEVEL_0.get(type(record))
    if count is None:
        return _encoder.encode(record)
    return _encoder.encode([record.__struct_config__.tag, *msgspec.structs.astuple(record)[:count]])


def _beyond_level_0(record: MetadataRecord) -> str | None:
    """The content of the record that level 0 cannot express; None if there is none."""
    match record:
        case FeatureLevelRecord():
            return "a level"
        case UncleanElectionRecord():
            return "an unclean election"
        case RegisterBrokerRecord() if record.features:
            return "a range of levels"
        case RegisterBrokerRecord() | BrokerRegistrationChangeRecord() if record.cordoned_log_dirs:
            return "cordoned log directories"
        case PartitionRecord() if record.eligible_leader_replicas or record.last_known_elr:
            return "eligible leader replicas"
        case PartitionChangeRecord() if record.eligible_leader_replicas is not None or record.last_known_elr is not None:
            return "eligible leader replicas"
        case PartitionRecord() | PartitionChangeRecord() if record.isr == ():
            return "an empty ISR"
        case PartitionRecord() if record.adding_replicas or record.removing_replicas or record.original_replicas:
            return "a reassignment"
        case PartitionChangeRecord() if any(getattr(record, name) is not None for name in _FIELDS_OF_REASSIGNMENTS):
            return "a reassignment"
        case PartitionRecord() | PartitionChangeRecord() if record.directories:
            return "log directories"
    return None


_FIELDS_OF_REASSIGNMENTS = ("replicas", "adding_replicas", "removing_replicas", "original_replicas", "throttle_rate")


def decode_record(data: bytes | memoryview) -> AnyRecord:
    """Decode one record. Raises PeerError with the reason if this version cannot read it."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise PeerError(_why_unreadable(data, e)) from None


def _why_unreadable(data: bytes | memoryview, error: Exception) -> str:
    try:
        record_type = msgspec.msgpack.decode(_type_only.decode(data)[0])
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        return f"a metadata record of {len(data)} bytes is not readable: {error}"
    if isinstance(record_type, int) and record_type in RECORD_TYPES:
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
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        RemoveUserScramCredentialRecord,
        ProducerNameRecord,
        RemoveProducerNameRecord,
        ProducerNumbersRecord,
        UncleanElectionRecord,
    )
}
