"""The metadata image, which is the state of the cluster at one offset of the metadata log, and the delta between two images.

An image never changes. `image.apply(records, offset, epoch)` returns a delta with the image before, the image after and the
differences, in one pass over the records; the two images share their unchanged parts (`persistent_map.py`). Brokers act on
deltas; the active controller decides on the newest image. A replay of all records from the empty image, and the load of a
snapshot (`to_records`), give equal images.

Epoch rules of a partition: every change record raises the partition epoch by one. A record with a leader, even the same one or
none, also raises the leader epoch by one. So the leader epoch never grows faster than the partition epoch.

If a record contradicts the image, or would give a partition a state that no leader, follower or controller can handle safely,
`apply` raises `InternalError`, and the image stays unchanged. The active controller then rejects the request and writes nothing;
a standby controller or broker that reads such a record from the log or a snapshot stops with that error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from strandline.controller.metadata import config_keys
from strandline.controller.metadata.directory_ids import UNASSIGNED, DirectoryIds, is_online
from strandline.controller.metadata.persistent_map import PersistentMap
from strandline.controller.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    RECORDS_OF_LEVEL_2,
    RECOVERED,
    AnyRecord,
    BrokerIds,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    ProducerNameRecord,
    ProducerNumbersRecord,
    RegisterBrokerRecord,
    RemoveProducerNameRecord,
    RemoveTopicRecord,
    TopicRecord,
    UncleanElectionRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.metadata.security.acls import Acl
from strandline.controller.metadata.security.changes import (
    SecurityChanges,
    SecurityMaps,
    UserMechanism,
    security_records,
)
from strandline.controller.metadata.security.quotas import QuotaEntity, entity_order
from strandline.protocol.errors import InternalError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import RESOURCE_BROKER, RESOURCE_TOPIC
from strandline.protocol.messages.common import Listener, SupportedFeature
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import named_producer_id, number_of
from strandline.protocol.security.scram import ScramCredential

UNCLEAN_ELECTIONS_MAX = 8
"""The number of reports of unclean elections that are kept per partition, the newest ones. The controllers log every report."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"
"""The key of topics and of brokers."""

ConfigResource = tuple[int, str]
"""(resource type, name)"""


class PartitionRegistration(msgspec.Struct, frozen=True, gc=False):
    """The controller's state of one partition."""

    replicas: BrokerIds
    """At least one, each broker once. `replicas[0]` is the preferred leader."""
    isr: BrokerIds
    """A subset of `replicas`. A fenced broker is in it only if it was the last member; then there is no leader. It may be empty
    from level 1 of the metadata on (KIP-966); then there is no leader either."""
    leader: int
    """A member of `isr`, or NO_LEADER."""
    leader_epoch: int = 0
    partition_epoch: int = 0
    """>= `leader_epoch`. An AlterPartition request must name it."""
    leader_recovery_state: int = RECOVERED
    elr: BrokerIds = ()
    """Eligible leader replicas (KIP-966), from level 1 of the metadata on: replicas outside of the ISR that have every committed
    record. While there is one, the leader's high watermark does not move."""
    last_known_elr: BrokerIds = ()
    """The last leader of a partition without a leader; empty otherwise."""
    adding_replicas: BrokerIds = ()
    """While the partition is reassigned, the members of `replicas` that are new. They are needed in the ISR to complete."""
    removing_replicas: BrokerIds = ()
    """While the partition is reassigned, the members of `replicas` that leave when it completes. They are the last ones in the
    order of preference."""
    original_replicas: BrokerIds = ()
    """The replicas before the reassignment, still all in `replicas`. Empty exactly when it is not reassigned."""
    throttle_rate: int = 0
    """Bytes per second that a broker may send or receive for this reassignment; 0: no limit. It ends with the reassignment."""

    directories: DirectoryIds = ()
    """The log directory of each replica, in the order of `replicas`; empty if none is assigned. From level 1 on."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.original_replicas)

    def directory_of(self, broker_id: int) -> bytes:
        """The log directory of this broker's replica, as far as it is assigned."""
        return self.directories[self.replicas.index(broker_id)] if self.directories else UNASSIGNED

    def directories_for(self, replicas: BrokerIds) -> DirectoryIds:
        """The directories of these replicas: each one that is known keeps its directory."""
        if not self.directories or replicas == self.replicas:
            return self.directories
        known = dict(zip(self.replicas, self.directories, strict=True))
        return _canonical([known.get(replica, UNASSIGNED) for replica in replicas])

    def directories_with(self, broker_id: int, directory_id: bytes) -> DirectoryIds:
        """The directories after this broker's replica is assigned to `directory_id`."""
        present = self.directories or (UNASSIGNED,) * len(self.replicas)
        return _canonical([directory_id if r == broker_id else d for r, d in zip(self.replicas, present, strict=True)])

    def merge(self, change: PartitionChangeRecord) -> PartitionRegistration:
        """The registration after the change."""
        new_leader = change.leader != NO_LEADER_CHANGE
        recovery = change.leader_recovery_state
        replicas = self.replicas if change.replicas is None else change.replicas
        return PartitionRegistration(
            replicas,
            self.isr if change.isr is None else change.isr,
            change.leader if new_leader else self.leader,
            self.leader_epoch + 1 if new_leader else self.leader_epoch,
            self.partition_epoch + 1,
            self.leader_recovery_state if recovery == NO_RECOVERY_CHANGE else recovery,
            self.elr if change.eligible_leader_replicas is None else change.eligible_leader_replicas,
            self.last_known_elr if change.last_known_elr is None else change.last_known_elr,
            self.adding_replicas if change.adding_replicas is None else change.adding_replicas,
            self.removing_replicas if change.removing_replicas is None else change.removing_replicas,
            self.original_replicas if change.original_replicas is None else change.original_replicas,
            self.throttle_rate if change.throttle_rate is None else change.throttle_rate,
            self.directories_for(replicas) if change.directories is None else change.directories,
        )

    def contradiction(self) -> str | None:
        """The rule that the registration breaks, as a sentence; None if it breaks none. A broker that acted on such a
        registration could lose records: a leader outside the ISR lacks records, and a member of the ISR that is not a replica
        never fetches."""
        replicas, isr = set(self.replicas), set(self.isr)
        if not replicas or len(replicas) != len(self.replicas) or min(replicas) < 0:
            return f"its replicas are {list(self.replicas)}: there must be at least one, and each broker only once"
        if len(isr) != len(self.isr) or not isr <= replicas:
            return f"its ISR is {list(self.isr)}: it must be a part of the replicas {list(self.replicas)}"
        if self.leader != NO_LEADER and self.leader not in isr:
            return f"its leader is broker {self.leader}, which is not in the ISR {list(self.isr)}"
        if not set(self.elr) <= replicas:
            return f"its eligible leader replicas {list(self.elr)} are not all among the replicas {list(self.replicas)}"
        if (self.original_replicas or self.adding_replicas or self.removing_replicas) and self._reassignment_is_wrong(replicas):
            return (
                f"its reassignment from {list(self.original_replicas)} adds {list(self.adding_replicas)} and removes "
                f"{list(self.removing_replicas)}, which contradicts its replicas {list(self.replicas)}"
            )
        if self.directories and len(self.directories) != len(self.replicas):
            return f"it has {len(self.directories)} log directories for the replicas {list(self.replicas)}"
        if not 0 <= self.leader_epoch <= self.partition_epoch:
            return f"its leader epoch is {self.leader_epoch}, which must not exceed its partition epoch {self.partition_epoch}"
        return None

    def _reassignment_is_wrong(self, replicas: set[int]) -> bool:
        adding, removing, original = set(self.adding_replicas), set(self.removing_replicas), set(self.original_replicas)
        if not original or not (adding or removing):
            return True
        return not adding | removing | original <= replicas or bool(adding & (removing | original))

    def beyond_level_0(self) -> str | None:
        """A sentence that names a field of this registration that records of level 0 cannot hold; None if there is none."""
        if not self.isr:
            return "its ISR is empty, which needs level 1 of the metadata"
        if self.elr or self.last_known_elr:
            return "it has eligible leader replicas, which need level 1 of the metadata"
        if self.is_reassigning:
            return "it is reassigned, which needs level 1 of the metadata"
        if self.directories:
            return "its replicas are assigned to log directories, which needs level 1 of the metadata"
        return None


def _canonical(directories: Sequence[bytes]) -> DirectoryIds:
    return tuple(directories) if any(each != UNASSIGNED for each in directories) else ()


class TopicImage(msgspec.Struct, frozen=True):
    """One topic with its partitions."""

    name: str
    topic_id: bytes
    partitions: PersistentMap[int, PartitionRegistration]
    """By index: 0 to n-1, without a gap."""


class BrokerRegistration(msgspec.Struct, frozen=True):
    """The registration of a broker's latest process."""

    broker_id: int
    broker_epoch: int
    """The offset of the first registration record of this process, which is higher for every new process of the broker."""
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = ()
    """The levels that the broker supports (`features.levels_of`); empty while the metadata has level 0."""
    min_insync_replicas: int = 0
    """The value in the broker's configuration file; 0 while the metadata has level 0."""
    cordoned_log_dirs: tuple[bytes, ...] = ()
    """The log directories that get no new replicas."""

    @property
    def is_cordoned(self) -> bool:
        """Whether the broker gets no new replicas, because all its online log directories are cordoned (KIP-1066)."""
        return bool(self.log_dirs) and set(self.log_dirs) <= set(self.cordoned_log_dirs)

    @property
    def is_active(self) -> bool:
        """Whether the broker may join an ISR and lead."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, partition: PartitionRegistration) -> bool:
        """Whether this broker's replica of the partition is in an online log directory."""
        return not partition.directories or is_online(partition.directory_of(self.broker_id), self.log_dirs)

    def endpoint(self, listener_name: str | None = None) -> Listener | None:
        """The broker's address on the named listener, or its first one; None if it has no such listener."""
        for listener in self.listeners:
            if listener_name is None or listener.name == listener_name:
                return listener
        return None


class ProducerName(msgspec.Struct, frozen=True, gc=False):
    """The state of a producer name: its newest work epoch, and the newest producer epoch of that."""

    number: int
    """The number of this name alone. It is never used for another name."""
    work_epoch: int
    producer_epoch: int
    last_used_ms: int
    """When a producer last requested an id for this name, by the wall clock."""
    note: bytes | None = None
    """The note that the first attempt of the work epoch left for the later ones."""
    oldest_epoch: int = 0
    """The oldest producer epoch of the work epoch that may still write."""

    @property
    def producer_id(self) -> int:
        """The id under which the work epoch writes: it follows from the name's number and the work epoch."""
        return named_producer_id(self.number, self.work_epoch)


class MetadataImage(msgspec.Struct, frozen=True):
    """The metadata of the cluster up to and including `offset`."""

    EMPTY: ClassVar[MetadataImage]

    offset: int
    """Offset of the last record applied; -1 if there is none."""
    epoch: int
    """The controller epoch of that record."""
    brokers: dict[int, BrokerRegistration]
    topics_by_id: PersistentMap[bytes, TopicImage]
    topics_by_name: PersistentMap[str, bytes]
    """Name -> topic id. `topic(name)` looks up both."""
    configs: PersistentMap[ConfigResource, dict[str, str]]
    """Only the keys that were set; a resource without any has no entry."""
    next_producer_id: int = 0
    partition_count: int = 0
    producer_names: PersistentMap[str, ProducerName] = PersistentMap()
    producer_numbers: PersistentMap[int, str] = PersistentMap()
    """Number -> name."""
    next_producer_number: int = 0
    feature_level: int = 0
    """The level of the metadata records (`features.py`)."""
    unclean_elections: PersistentMap[TopicIdPartition, tuple[UncleanElectionRecord, ...]] = PersistentMap()
    """Partition -> the reports of its unclean elections, the newest one last. A partition without any has no entry."""
    acls: PersistentMap[bytes, Acl] = PersistentMap()
    """Id -> access rule. All rules are different. From level 2 on, like the fields after it."""
    acl_ids: PersistentMap[Acl, bytes] = PersistentMap()
    """Access rule -> id: the inverse of `acls`."""
    scram_credentials: PersistentMap[UserMechanism, ScramCredential] = PersistentMap()
    """(user, mechanism number) -> credential."""
    client_quotas: PersistentMap[QuotaEntity, dict[str, float]] = PersistentMap()
    """Entity -> quota key -> value. An entity without any has no entry."""

    def oldest_of(self, producer_id: int) -> tuple[int, int]:
        """The oldest work epoch of this id's name that may still write, and its oldest producer epoch; (0, 0) if the name is
        unknown."""
        name = self.producer_numbers.get(number_of(producer_id))
        known = None if name is None else self.producer_names[name]
        return (0, 0) if known is None else (known.work_epoch, known.oldest_epoch)

    @staticmethod
    def empty() -> MetadataImage:
        return MetadataImage(-1, -1, {}, PersistentMap(), PersistentMap(), PersistentMap())

    @staticmethod
    def from_records(records: Iterable[AnyRecord], offset: int, epoch: int) -> MetadataImage:
        """The image of a snapshot that replaces all records up to and including `offset`."""
        return MetadataImage.empty().apply(records, offset, epoch).image

    @property
    def is_blank(self) -> bool:
        """Whether no record of the controllers has been applied: the log is empty, or holds only records of the quorum."""
        counted = self.next_producer_id or self.next_producer_number or self.feature_level
        return not (counted or self.brokers or self.topics_by_id or self.configs)

    @property
    def security(self) -> SecurityMaps:
        return SecurityMaps(self.acls, self.acl_ids, self.scram_credentials, self.client_quotas)

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topics_by_name.get(name)
        return None if topic_id is None else self.topics_by_id.get(topic_id)

    def partition(self, key: TopicIdPartition) -> PartitionRegistration | None:
        topic = self.topics_by_id.get(key[0])
        return None if topic is None else topic.partitions.get(key[1])

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        """The keys that were set on the resource itself."""
        return self.configs.get((resource_type, name)) or {}

    def knows_producer(self, number: int) -> bool:
        """Whether a name has this number, or a newer image may have such a name. False only if the name was removed."""
        return number in self.producer_numbers or number >= self.next_producer_number

    def broker_overrides(self, broker_id: int | None) -> dict[str, str]:
        """The values that are set for one broker. Keys on which all brokers must agree are left out: earlier versions stored
        such values."""
        own = {} if broker_id is None else self.config(RESOURCE_BROKER, str(broker_id))
        return {name: value for name, value in own.items() if name not in config_keys.SAME_ON_ALL_BROKERS}

    def topic_config(
        self, name: str, *, broker_id: int | None = None, static: Mapping[str, Any] | None = None
    ) -> dict[str, config_keys.Value]:
        """The value of every topic key: set on the topic, the broker, all brokers or in `static`, or its default."""
        layers = [
            config_keys.as_topic_values(static or {}),
            config_keys.as_topic_values(self.config(RESOURCE_BROKER, "")),
            config_keys.as_topic_values(self.broker_overrides(broker_id)),
            self.config(RESOURCE_TOPIC, name),
        ]
        merged: dict[str, Any] = {}
        for layer in layers:
            merged.update(layer)
        return config_keys.parse(config_keys.TOPIC_CONFIGS, merged)

    def min_insync_replicas(self, topic_name: str) -> int:
        """`min.insync.replicas` of a topic as the controller knows it: set on the topic, for all brokers, or in the files of the
        brokers. If the files differ, the largest value counts: a leader with a smaller one waits for the ELR to be empty."""
        for resource in (RESOURCE_TOPIC, topic_name), (RESOURCE_BROKER, ""):
            value = self.config(*resource).get(MIN_INSYNC_REPLICAS)
            if value is not None:
                return int(value)
        return max((broker.min_insync_replicas for broker in self.brokers.values()), default=0) or 1

    def apply(self, records: Iterable[AnyRecord], offset: int, epoch: int) -> MetadataDelta:
        """Apply decoded records, the last of which has `offset`. Raises InternalError if one contradicts the image."""
        builder = _Builder(self)
        for record in records:
            builder.replay(record)
        return builder.build(offset, epoch)

    def delta_to(self, image: MetadataImage) -> MetadataDelta:
        """The differences between this image and that of a snapshot which replaces it."""
        return _difference(self, image)

    def to_records(self) -> Iterator[AnyRecord]:
        """The shortest list of records, in a fixed order, that give this image when they are applied to the empty one."""
        if self.feature_level:
            yield FeatureLevelRecord(METADATA_VERSION, self.feature_level)
        for broker_id in sorted(self.brokers):
            yield RegisterBrokerRecord(**msgspec.structs.asdict(self.brokers[broker_id]))
        for name in sorted(self.topics_by_name):
            topic = self.topics_by_id[self.topics_by_name[name]]
            yield TopicRecord(name, topic.topic_id)
            for index in sorted(topic.partitions):
                partition = topic.partitions[index]
                yield PartitionRecord(topic.topic_id, index, *msgspec.structs.astuple(partition))
                yield from self.unclean_elections.get((topic.topic_id, index), ())
        for resource in sorted(self.configs):
            for key, value in sorted(self.configs[resource].items()):
                yield ConfigRecord(*resource, key, value)
        if self.next_producer_id:
            yield ProducerIdsRecord(-1, -1, self.next_producer_id)
        for producer in sorted(self.producer_names):
            yield ProducerNameRecord(producer, **msgspec.structs.asdict(self.producer_names[producer]))
        if self.next_producer_number:
            yield ProducerNumbersRecord(self.next_producer_number)
        yield from security_records(self.security)


class MetadataDelta(msgspec.Struct):
    """The changes of one `apply`. The lists are in the order of the first change, without duplicates."""

    before: MetadataImage
    image: MetadataImage
    """The image after."""
    changed_partitions: list[TopicIdPartition]
    """Created or changed partitions, without those of removed topics."""
    removed_topics: list[TopicImage]
    """The removed topics as they were before."""
    created_topics: list[bytes]
    changed_topics: list[bytes]
    """Topics that were created, or have a created or changed partition."""
    changed_brokers: list[int]
    """Brokers that were registered, changed or unregistered."""
    changed_configs: list[ConfigResource]
    changed_acls: list[bytes] = []
    """Ids of the access rules that were added or removed."""
    changed_scram_credentials: list[UserMechanism] = []
    changed_client_quotas: list[QuotaEntity] = []

    def new_unclean_elections(self) -> list[UncleanElectionRecord]:
        """The reports of unclean elections that this delta adds."""
        before, after = self.before.unclean_elections, self.image.unclean_elections
        if after is before:
            return []
        return [report for key in self.changed_partitions for report in after.get(key, ()) if report not in before.get(key, ())]

    @property
    def is_empty(self) -> bool:
        lists = (self.changed_partitions, self.removed_topics, self.created_topics, self.changed_brokers, self.changed_configs)
        security = (self.changed_acls, self.changed_scram_credentials, self.changed_client_quotas)
        return not any(lists) and not any(security) and self.before.feature_level == self.image.feature_level


class _Builder:
    """Collects the changes of one `apply`. Dicts are used as ordered sets."""

    def __init__(self, before: MetadataImage) -> None:
        self.before = before
        self.brokers: dict[int, BrokerRegistration] | None = None
        self.changed_brokers: dict[int, None] = {}
        self.partitions: dict[bytes, dict[int, PartitionRegistration]] = {}
        """Changed partitions of each topic that exists."""
        self.created: dict[bytes, str] = {}
        self.removed: dict[bytes, TopicImage] = {}
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.next_producer_id = before.next_producer_id
        self.producer_names: dict[str, ProducerName | None] = {}
        """The names that changed; None for a removed one."""
        self.next_producer_number = before.next_producer_number
        self.feature_level = before.feature_level
        self.unclean_elections: dict[TopicIdPartition, tuple[UncleanElectionRecord, ...]] = {}
        """All reports of each partition that has a new one."""
        self.security: SecurityChanges | None = None
        """None if the batch has no record of security or quotas."""

    def replay(self, record: AnyRecord) -> None:
        _REPLAY[type(record)](self, record)

    # -- brokers --

    def _brokers(self) -> dict[int, BrokerRegistration]:
        if self.brokers is None:
            self.brokers = dict(self.before.brokers)
        return self.brokers

    def on_register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers()[record.broker_id] = BrokerRegistration(**msgspec.structs.asdict(record))
        self.changed_brokers[record.broker_id] = None

    def on_unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._brokers()[record.broker_id]
        self.changed_brokers[record.broker_id] = None

    def on_broker_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        self._brokers()[record.broker_id] = msgspec.structs.replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced == 1,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown == 1,
            log_dirs=broker.log_dirs if record.log_dirs is None else record.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs if record.cordoned_log_dirs is None else record.cordoned_log_dirs,
        )
        self.changed_brokers[record.broker_id] = None

    def _broker(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        broker = self._brokers().get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            raise InternalError(f"a metadata record names broker {broker_id} epoch {broker_epoch}, but the image has {broker}")
        return broker

    # -- topics --

    def on_topic(self, record: TopicRecord) -> None:
        if record.topic_id in self.before.topics_by_id or record.topic_id in self.created:
            raise InternalError(f"a metadata record creates topic id {record.topic_id.hex()}, which exists already")
        self.created[record.topic_id] = record.name
        self.partitions[record.topic_id] = {}

    def on_partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        partition = PartitionRegistration(
            record.replicas,
            record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.leader_recovery_state,
            record.eligible_leader_replicas,
            record.last_known_elr,
            record.adding_replicas,
            record.removing_replicas,
            record.original_replicas,
            record.throttle_rate,
            record.directories,
        )
        self._check(record.topic_id, record.partition, partition)
        partitions[record.partition] = partition

    def on_partition_change(self, record: PartitionChangeRecord) -> None:
        topic_id, index = record.topic_id, record.partition
        changed = self.partitions.get(topic_id)
        if changed is None:
            changed = self._partitions_of(topic_id)
        partition = changed.get(index) or self.before.partition((topic_id, index))
        if partition is None:
            raise InternalError(f"a metadata record changes partition {topic_id.hex()}-{index}, which does not exist")
        merged = partition.merge(record)
        self._check(topic_id, index, merged)
        changed[index] = merged

    def on_unclean_election(self, record: UncleanElectionRecord) -> None:
        key = (record.topic_id, record.partition)
        if record.partition not in self._partitions_of(record.topic_id) and self.before.partition(key) is None:
            raise InternalError(
                f"a metadata record reports an election of partition {key[0].hex()}-{key[1]}, which does not exist"
            )
        known = self.unclean_elections.get(key) or self.before.unclean_elections.get(key, ())
        self.unclean_elections[key] = (*known, record)[-UNCLEAN_ELECTIONS_MAX:]

    def _check(self, topic_id: bytes, index: int, partition: PartitionRegistration) -> None:
        """Raise InternalError if the partition breaks a rule. This is checked after each record, so that the result does not
        depend on how many records are applied at once."""
        contradiction = partition.contradiction() or (None if self.feature_level else partition.beyond_level_0())
        if contradiction is not None:
            topic = self.before.topics_by_id.get(topic_id)
            name = self.created.get(topic_id) or (topic.name if topic is not None else topic_id.hex())
            raise InternalError(
                f"a metadata record after offset {self.before.offset} would change partition {name}-{index} to a state that no "
                f"partition may have: {contradiction}; nothing of its batch is applied"
            )

    def _partitions_of(self, topic_id: bytes) -> dict[int, PartitionRegistration]:
        if topic_id not in self.partitions:
            if topic_id not in self.before.topics_by_id or topic_id in self.removed:
                raise InternalError(f"a metadata record names topic id {topic_id.hex()}, which does not exist")
            self.partitions[topic_id] = {}
        return self.partitions[topic_id]

    def on_remove_topic(self, record: RemoveTopicRecord) -> None:
        topic_id = record.topic_id
        name = self.created.pop(topic_id, None)
        self.partitions.pop(topic_id, None)
        if name is None:
            topic = self.before.topics_by_id.get(topic_id)
            if topic is None or topic_id in self.removed:
                raise InternalError(f"a metadata record removes topic id {topic_id.hex()}, which does not exist")
            self.removed[topic_id] = topic
            name = topic.name
        for key in [key for key in self.unclean_elections if key[0] == topic_id]:
            del self.unclean_elections[key]
        resource = (RESOURCE_TOPIC, name)
        if resource in self.configs or resource in self.before.configs:
            self.configs[resource] = {}

    # -- the rest --

    def on_config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self.configs.get(resource)
        if values is None:
            values = self.configs[resource] = dict(self.before.config(*resource))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def on_producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def on_producer_name(self, record: ProducerNameRecord) -> None:
        name = ProducerName(
            record.number, record.work_epoch, record.producer_epoch, record.last_used_ms, record.note, record.oldest_epoch
        )
        self.producer_names[record.name] = name
        self.next_producer_number = max(self.next_producer_number, record.number + 1)

    def on_remove_producer_name(self, record: RemoveProducerNameRecord) -> None:
        if self.producer_names.get(record.name, self.before.producer_names.get(record.name)) is None:
            raise InternalError(f"a metadata record removes the producer name {record.name!r}, which does not exist")
        self.producer_names[record.name] = None

    def on_producer_numbers(self, record: ProducerNumbersRecord) -> None:
        self.next_producer_number = record.next_producer_number

    def on_feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name != METADATA_VERSION:
            raise InternalError(f"a metadata record names the feature {record.name!r}, which this version does not know")
        if record.feature_level < self.feature_level:
            raise InternalError(
                f"a metadata record lowers {METADATA_VERSION} from {self.feature_level} to {record.feature_level}"
            )
        self.feature_level = record.feature_level

    def on_security(self, record: AnyRecord) -> None:
        if self.security is None:
            self.security = SecurityChanges(self.before.security)
        self.security.replay(record, self.feature_level)

    def on_no_op(self, record: NoOpRecord) -> None:
        pass

    # -- the result --

    def build(self, offset: int, epoch: int) -> MetadataDelta:
        before = self.before
        topics: dict[bytes, TopicImage] = {}
        changed_partitions: list[TopicIdPartition] = []
        added = 0
        for topic_id, changed in self.partitions.items():
            name, old = self._name_and_partitions(topic_id)
            partitions = old.updated(changed)
            added += len(partitions) - len(old)
            topics[topic_id] = TopicImage(name, topic_id, partitions)
            changed_partitions += [(topic_id, index) for index in changed]
        # A topic may be removed and recreated in one `apply`: then its name stays.
        names_gone = {t.name: None for t in self.removed.values() if t.name not in self.created.values()}
        gone = sum(len(t.partitions) for t in self.removed.values())
        security = before.security if self.security is None else self.security.build()
        image = MetadataImage(
            offset,
            epoch,
            before.brokers if self.brokers is None else self.brokers,
            before.topics_by_id.updated(topics, self.removed),
            before.topics_by_name.updated({name: topic_id for topic_id, name in self.created.items()}, names_gone),
            before.configs.updated(
                {r: v for r, v in self.configs.items() if v}, {r: None for r, v in self.configs.items() if not v}
            ),
            self.next_producer_id,
            before.partition_count + added - gone,
            *self._producers(),
            self.next_producer_number,
            self.feature_level,
            before.unclean_elections.updated(self.unclean_elections, self._reports_gone()),
            security.acls,
            security.acl_ids,
            security.scram_credentials,
            security.client_quotas,
        )
        acls, credentials, quotas = ([], [], []) if self.security is None else self.security.changed(image.security)
        return MetadataDelta(
            before,
            image,
            changed_partitions,
            list(self.removed.values()),
            list(self.created),
            list(topics),
            list(self.changed_brokers),
            list(self.configs),
            acls,
            credentials,
            quotas,
        )

    def _reports_gone(self) -> dict[TopicIdPartition, None]:
        """The reports of removed topics."""
        reported = self.before.unclean_elections
        keys = ((topic_id, index) for topic_id, topic in self.removed.items() for index in topic.partitions)
        return {key: None for key in keys if key in reported} if reported else {}

    def _producers(self) -> tuple[PersistentMap[str, ProducerName], PersistentMap[int, str]]:
        """The names, and the name of each number."""
        before, changed = self.before, self.producer_names
        if not changed:
            return before.producer_names, before.producer_numbers
        kept = {name: producer for name, producer in changed.items() if producer is not None}
        old = {name: before.producer_names[name] for name in changed if name in before.producer_names}
        numbers = {producer.number: name for name, producer in kept.items()}
        return (
            before.producer_names.updated(kept, {name: None for name in old if name not in kept}),
            before.producer_numbers.updated(numbers, {p.number: None for p in old.values() if p.number not in numbers}),
        )

    def _name_and_partitions(self, topic_id: bytes) -> tuple[str, PersistentMap[int, PartitionRegistration]]:
        if topic_id in self.created:
            return self.created[topic_id], PersistentMap()
        old = self.before.topics_by_id[topic_id]
        return old.name, old.partitions


_REPLAY: dict[type, Callable[[_Builder, Any], None]] = {
    RegisterBrokerRecord: _Builder.on_register_broker,
    UnregisterBrokerRecord: _Builder.on_unregister_broker,
    BrokerRegistrationChangeRecord: _Builder.on_broker_change,
    TopicRecord: _Builder.on_topic,
    PartitionRecord: _Builder.on_partition,
    PartitionChangeRecord: _Builder.on_partition_change,
    RemoveTopicRecord: _Builder.on_remove_topic,
    FeatureLevelRecord: _Builder.on_feature_level,
    ConfigRecord: _Builder.on_config,
    ProducerIdsRecord: _Builder.on_producer_ids,
    NoOpRecord: _Builder.on_no_op,
    ProducerNameRecord: _Builder.on_producer_name,
    RemoveProducerNameRecord: _Builder.on_remove_producer_name,
    ProducerNumbersRecord: _Builder.on_producer_numbers,
    UncleanElectionRecord: _Builder.on_unclean_election,
    **dict.fromkeys(RECORDS_OF_LEVEL_2, _Builder.on_security),
}


def _difference(before: MetadataImage, image: MetadataImage) -> MetadataDelta:
    removed = [topic for topic_id, topic in before.topics_by_id.items() if topic_id not in image.topics_by_id]
    created = [topic_id for topic_id in image.topics_by_id if topic_id not in before.topics_by_id]
    changed: list[TopicIdPartition] = []
    changed_topics: dict[bytes, None] = dict.fromkeys(created)
    for topic_id, topic in image.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        for index, partition in topic.partitions.items():
            if old is None or old.partitions.get(index) != partition:
                changed.append((topic_id, index))
                changed_topics[topic_id] = None
    return MetadataDelta(
        before,
        image,
        changed,
        removed,
        created,
        list(changed_topics),
        _changed_keys(before.brokers, image.brokers),
        _changed_keys(before.configs, image.configs),
        _changed_keys(before.acls, image.acls),
        _changed_keys(before.scram_credentials, image.scram_credentials),
        _changed_keys(before.client_quotas, image.client_quotas, entity_order),
    )


def _changed_keys(before: Mapping[Any, Any], after: Mapping[Any, Any], order: Callable[[Any], Any] | None = None) -> list[Any]:
    return sorted((key for key in {**before, **after} if before.get(key) != after.get(key)), key=order)


MetadataImage.EMPTY = MetadataImage.empty()

__all__ = [
    "NO_LEADER",
    "BrokerRegistration",
    "MetadataDelta",
    "MetadataImage",
    "PartitionRegistration",
    "ProducerName",
    "TopicImage",
]
