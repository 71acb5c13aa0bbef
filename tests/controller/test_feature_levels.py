"""The level of the metadata: what each level can express, the decision to raise it, and the look at the files before a start."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from controller_world import ControllerWorld, registration

from strandline.controller.cluster_control import check_registration
from strandline.controller.controller import ActiveState
from strandline.controller.decision import Decision
from strandline.controller.feature_control import NodeLevels, needs_answers, update_features
from strandline.controller.metadata.features import (
    LEVEL_0_ONLY,
    SUPPORTED,
    Levels,
    UnsupportedLevel,
    decode_records,
    levels_of,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    LEVEL_MAX,
    NO_LEADER,
    AccessControlEntryRecord,
    AnyRecord,
    ClientQuotaRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from strandline.controller.raft.metadata_log import DIRECTORY
from strandline.controller.raft.recorded_level import recorded_level
from strandline.controller.raft.snapshots import snapshot_values
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, FeatureUpdate, UpdateFeaturesRequest
from strandline.protocol.messages.common import Listener
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_values
from strandline.protocol.records.reader import decode_values
from strandline.storage.files import MemoryFiles

RECORDED = Path(__file__).parents[1] / "integration" / "level_0_cluster.tar.gz"
A = b"a" * 16
LEVEL_1 = FeatureLevelRecord(METADATA_VERSION, 1)
TOPIC = TopicRecord("t", A)
BROKER = RegisterBrokerRecord(1, 5, b"i" * 16, (Listener("PLAINTEXT", "h", 9092),), "rack", log_dirs=(b"d" * 16,))

RECORDS_OF_SECURITY: list[AnyRecord] = [
    UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4096),
    RemoveUserScramCredentialRecord("alice", 1),
    ClientQuotaRecord((("user", None),), "producer_byte_rate", 1024.0),
    AccessControlEntryRecord(A, 2, "t", 3, "User:alice", "*", 3, 3),
    RemoveAccessControlEntryRecord(A),
]


def recorded_files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each file that a controller without levels has written."""
    with tarfile.open(RECORDED) as archive:
        for member in archive:
            if member.isfile() and "controller-101" in member.name:
                content = archive.extractfile(member)
                assert content is not None
                yield member.name, content.read()


def recorded_values() -> list[bytes]:
    """Every metadata record of that controller, from its log and its snapshot."""
    found: list[bytes] = []
    for name, data in recorded_files():
        if name.endswith(".log"):
            for position, header in iter_headers(data):
                if not header.is_control:
                    found += [value or b"" for value in decode_values(data, position, header)]
        elif name.endswith(".checkpoint"):
            found += snapshot_values(data)
    return found


# -- the format of a level --------------------------------------------------------------------------------------------


def test_records_of_level_0_are_the_bytes_of_a_version_without_levels() -> None:
    """Each record that such a version wrote is decoded and encoded again: an older controller reads the same bytes as before."""
    values = recorded_values()
    assert len(values) > 50
    assert {type(decode_record(value)).__name__ for value in values} == {
        "BrokerRegistrationChangeRecord",
        "ConfigRecord",
        "PartitionChangeRecord",
        "PartitionRecord",
        "ProducerIdsRecord",
        "ProducerNameRecord",
        "ProducerNumbersRecord",
        "RegisterBrokerRecord",
        "RemoveTopicRecord",
        "TopicRecord",
    }
    assert [encode_record(decode_record(value), 0) for value in values] == values


@pytest.mark.parametrize(
    "record",
    [
        LEVEL_1,
        msgspec.structs.replace(BROKER, features=SUPPORTED.features),
        PartitionRecord(A, 0, (1, 2), (), NO_LEADER),
        PartitionRecord(A, 0, (1, 2), (1,), 1, eligible_leader_replicas=(2,)),
        PartitionRecord(A, 0, (1, 2), (1,), 1, last_known_elr=(2,)),
        PartitionChangeRecord(A, 0, isr=()),
        PartitionChangeRecord(A, 0, eligible_leader_replicas=()),
        PartitionChangeRecord(A, 0, last_known_elr=()),
    ],
    ids=repr,
)
def test_a_record_that_level_0_does_not_have_is_not_written_there(record: MetadataRecord) -> None:
    with pytest.raises(InternalError, match=r"needs level 1 of metadata\.version, and the cluster has level 0"):
        encode_record(record, 0)
    assert decode_record(encode_record(record, 1)) == record


@pytest.mark.parametrize("record", RECORDS_OF_SECURITY, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("level", [0, 1])
def test_a_record_of_security_is_neither_written_nor_read_below_level_2(record: AnyRecord, level: int) -> None:
    """The image refuses it as well, even if the same batch raises the level after it."""
    with pytest.raises(InternalError, match=rf"needs level 2 of metadata\.version, and the cluster has level {level}"):
        encode_record(record, level)
    assert decode_record(encode_record(record, 2)) == record
    before = MetadataImage.EMPTY.apply([FeatureLevelRecord(METADATA_VERSION, level)], 0, 1).image
    with pytest.raises(InternalError, match=rf"needs level 2 .* has level {level}"):
        before.apply([record, FeatureLevelRecord(METADATA_VERSION, 2)], 2, 1)


def test_the_active_controller_writes_nothing_if_its_level_cannot_express_a_record() -> None:
    world = ControllerWorld(brokers=3, levels=LEVEL_0_ONLY)
    topic_id = world.create("t", [[1, 2, 3]])
    before, end = world.image, world.quorum.log_end_offset

    def decide(_: ActiveState) -> Decision[None]:
        return Decision(None, [PartitionChangeRecord(topic_id, 0, eligible_leader_replicas=(3,))])

    with pytest.raises(InternalError, match="needs level 1"):
        world.controller.submit(decide, lambda reply: None)
    assert (world.image, world.quorum.log_end_offset) == (before, end)


def test_the_image_of_level_0_takes_no_content_of_level_1() -> None:
    """This holds however the records are divided: the level that counts is the one before the record."""
    partition = PartitionRecord(A, 0, (1, 2), (), NO_LEADER, eligible_leader_replicas=(1,))
    with pytest.raises(InternalError, match="its ISR is empty, which needs level 1"):
        MetadataImage.EMPTY.apply([TOPIC, partition], 1, 1)
    with pytest.raises(InternalError, match="needs level 1"):
        MetadataImage.EMPTY.apply([TOPIC, partition, LEVEL_1], 2, 1)
    assert MetadataImage.EMPTY.apply([LEVEL_1, TOPIC, partition], 2, 1).image.feature_level == 1


def test_a_snapshot_carries_the_level_first() -> None:
    """A node that does not support the level stops before it meets a record that it cannot read."""
    image = MetadataImage.EMPTY.apply([TOPIC, LEVEL_1, BROKER], 2, 1).image
    assert next(iter(image.to_records())) == LEVEL_1
    again = MetadataImage.from_records(image.to_records(), 2, 1)
    assert (again, again.feature_level) == (image, 1)


def test_a_level_is_never_lowered_by_a_record_and_an_unknown_feature_is_a_contradiction() -> None:
    image = MetadataImage.EMPTY.apply([LEVEL_1], 0, 1).image
    with pytest.raises(InternalError, match=r"lowers metadata\.version from 1 to 0"):
        image.apply([FeatureLevelRecord(METADATA_VERSION, 0)], 1, 1)
    with pytest.raises(InternalError, match=r"the feature 'kraft\.version'"):
        image.apply([FeatureLevelRecord("kraft.version", 1)], 1, 1)


def test_decoding_stops_at_a_level_that_is_not_supported() -> None:
    """It stops before the records after the level, whose form may be unknown here."""
    values = [encode_record(TOPIC), encode_record(FeatureLevelRecord(METADATA_VERSION, 3)), b"\x91\x63"]
    with pytest.raises(UnsupportedLevel, match=r"has level 3 .* supports 0 to 2: start the version that the other nodes run"):
        decode_records(values, SUPPORTED)
    with pytest.raises(PeerError, match="type 99"):
        decode_records(values, Levels(0, 3))


# -- the first level --------------------------------------------------------------------------------------------------


def test_a_new_cluster_begins_at_the_highest_supported_level() -> None:
    world = ControllerWorld()
    world.commit()
    assert world.controller.committed.feature_level == LEVEL_MAX
    assert decode_record(world.quorum.log[1][1]) == FeatureLevelRecord(METADATA_VERSION, LEVEL_MAX)


def test_metadata_without_a_level_stays_at_level_0() -> None:
    """It stays there also under a new active controller of the new version."""
    world = ControllerWorld(brokers=1, levels=LEVEL_0_ONLY)
    world.controller.on_resign(1)
    world.controller.levels = SUPPORTED
    world.become_active(2)
    world.start_broker(2)
    assert world.image.feature_level == 0
    assert {broker.features for broker in world.image.brokers.values()} == {()}
    assert world.replayed() == world.image


# -- the decision -----------------------------------------------------------------------------------------------------


def old_world(brokers: int = 2) -> ControllerWorld:
    """A cluster of level 0 whose active controller has the new version."""
    world = ControllerWorld(brokers=brokers, levels=LEVEL_0_ONLY)
    world.controller.levels = SUPPORTED
    return world


def answers(world: ControllerWorld, voters: dict[int, Levels | str] | None = None, **brokers: Levels | str) -> NodeLevels:
    """The nodes' answers: all support level 1, except those that are given (`broker_2=...`)."""
    found = {
        broker.incarnation_id + bytes([broker.broker_id]): brokers.get(f"broker_{broker.broker_id}", SUPPORTED)
        for broker in world.image.brokers.values()
    }
    return NodeLevels(
        {102: SUPPORTED, 103: SUPPORTED} if voters is None else voters,
        {incarnation[:16]: levels for incarnation, levels in found.items()},
    )


def upgrade(world: ControllerWorld, found: NodeLevels, *updates: FeatureUpdate, validate_only: bool = False) -> list[Any]:
    request = UpdateFeaturesRequest(1000, list(updates) or [FeatureUpdate(METADATA_VERSION, 1)], validate_only)
    replies: list[Any] = []
    world.controller.submit(
        lambda _: update_features(world.image, world.controller.levels, [102, 103], found, request), replies.append
    )
    world.commit()
    (reply,) = replies
    return [(ErrorCode(result.error_code).name, result.error_message) for result in reply.results]


def test_an_upgrade_writes_the_level_and_the_ranges_in_one_batch() -> None:
    """The rest of a registration stays the same: no broker is fenced, and no epoch is new."""
    world = ControllerWorld(levels=LEVEL_0_ONLY)
    world.controller.levels = SUPPORTED
    for broker_id in (1, 2):
        world.start_broker(broker_id, incarnation=broker_id)
    before = {b.broker_id: (b.broker_epoch, b.fenced, b.listeners) for b in world.image.brokers.values()}
    assert upgrade(world, answers(world)) == [("NONE", None)]
    assert world.image.feature_level == 1
    assert {b.broker_id: (b.broker_epoch, b.fenced, b.listeners) for b in world.image.brokers.values()} == before
    assert [levels_of(b.features) for b in world.image.brokers.values()] == [SUPPORTED, SUPPORTED]
    base, last = world.quorum.batches[-1]
    assert [type(decode_record(r)).__name__ for _, r in world.quorum.log[base : last + 1]] == [
        "FeatureLevelRecord",
        "RegisterBrokerRecord",
        "RegisterBrokerRecord",
    ]
    assert world.replayed() == world.image


def test_an_upgrade_from_level_1_trusts_the_ranges_of_the_registrations() -> None:
    """A broker that has registered with an older version prevents it, until it runs the new one."""
    level_1 = Levels(0, 1)
    world = ControllerWorld(levels=level_1)
    world.controller.levels = SUPPORTED
    world.register(1, features=list(SUPPORTED.features))
    world.register(2, features=list(level_1.features))
    to_level_2 = FeatureUpdate(METADATA_VERSION, 2)
    ((code, message),) = upgrade(world, answers(world), to_level_2)
    assert code == "INVALID_UPDATE_VERSION"
    assert "broker 2 supports metadata.version 0 to 1, not 2: install the new version there first" in message
    world.heartbeat(2, want_shut_down=True)
    world.now += 10
    world.register(2, 9, features=list(SUPPORTED.features))
    assert upgrade(world, answers(world), to_level_2) == [("NONE", None)]
    assert world.image.feature_level == 2
    assert world.replayed() == world.image


def test_a_second_upgrade_to_the_same_level_changes_nothing() -> None:
    world = old_world()
    upgrade(world, answers(world))
    end = world.quorum.log_end_offset
    assert upgrade(world, NodeLevels()) == [("NONE", None)]
    assert world.quorum.log_end_offset == end


def test_a_dry_run_writes_nothing() -> None:
    world = old_world()
    assert upgrade(world, answers(world), validate_only=True) == [("NONE", None)]
    assert world.image.feature_level == 0


@pytest.mark.parametrize(
    ("voters", "brokers", "code", "words"),
    [
        ({102: SUPPORTED, 103: LEVEL_0_ONLY}, {}, "INVALID_UPDATE_VERSION", "controller 103 supports metadata.version 0, not 1"),
        (
            {102: SUPPORTED},
            {},
            "FEATURE_UPDATE_FAILED",
            "controller 103 supports are not known: it was not asked",
        ),
        (
            {102: "refused", 103: SUPPORTED},
            {},
            "FEATURE_UPDATE_FAILED",
            "controller 102 supports are not known: refused",
        ),
        (None, {"broker_1": LEVEL_0_ONLY}, "INVALID_UPDATE_VERSION", "broker 1 supports metadata.version 0, not 1"),
        (
            None,
            {"broker_1": "timed out"},
            "FEATURE_UPDATE_FAILED",
            "broker 1 supports are not known: timed out",
        ),
    ],
)
def test_every_node_must_support_the_level(voters: Any, brokers: Any, code: str, words: str) -> None:
    world = old_world(brokers=1)
    ((found, message),) = upgrade(world, answers(world, voters, **brokers))
    assert found == code
    assert words in message
    assert world.image.feature_level == 0


def test_a_broker_that_registers_after_the_questions_prevents_the_upgrade() -> None:
    world = old_world(brokers=1)
    found = answers(world)
    world.start_broker(2, incarnation=9)
    ((code, message),) = upgrade(world, found)
    assert code == "FEATURE_UPDATE_FAILED"
    assert "broker 2 supports are not known: it has registered only now; retry" in message


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (FeatureUpdate(METADATA_VERSION, 0), "cannot be lowered from 2 to 0"),
        (FeatureUpdate(METADATA_VERSION, 0, SAFE_DOWNGRADE), "cannot be lowered from 2 to 0"),
        (FeatureUpdate(METADATA_VERSION, 0, UNSAFE_DOWNGRADE), "cannot be lowered from 2 to 0"),
        (FeatureUpdate(METADATA_VERSION, -1), "cannot be lowered from 2 to -1"),
        (FeatureUpdate(METADATA_VERSION, 3), "this controller supports metadata.version 0 to 2, not 3"),
        (FeatureUpdate(METADATA_VERSION, 3, SAFE_DOWNGRADE), "asks for a downgrade, but level 3 is above the cluster's level 2"),
        (
            FeatureUpdate(METADATA_VERSION, 3, 9),
            "the upgrade type 9 is not 1 (upgrade), 2 (safe downgrade) or 3 (unsafe downgrade)",
        ),
        (FeatureUpdate(METADATA_VERSION, 2, 0), "the upgrade type 0 is not 1 (upgrade)"),
        (FeatureUpdate("group.version", 1), "there is no feature 'group.version'"),
    ],
    ids=repr,
)
def test_an_update_is_refused_without_asking_any_node(update: FeatureUpdate, words: str) -> None:
    """This includes a downgrade, even an unsafe one: the log may hold records that the lower level does not have."""
    world = ControllerWorld()
    assert not needs_answers(world.image, SUPPORTED, UpdateFeaturesRequest(0, [update]))
    ((code, message),) = upgrade(world, NodeLevels(), update)
    assert code == "INVALID_UPDATE_VERSION"
    assert words in message


def test_a_feature_that_is_named_twice_is_refused() -> None:
    world = ControllerWorld()
    update = FeatureUpdate(METADATA_VERSION, LEVEL_MAX)
    assert [code for code, _ in upgrade(world, NodeLevels(), update, update)] == ["NONE", "INVALID_REQUEST"]


# -- registrations ----------------------------------------------------------------------------------------------------


def test_a_broker_that_does_not_support_the_level_is_not_registered() -> None:
    """A version without levels sends no range."""
    world = ControllerWorld(brokers=1)
    for features in ([], list(LEVEL_0_ONLY.features)):
        with pytest.raises(BrokerError, match=r"has level 2 .* supports 0: start the version") as e:
            world.register(2, features=features)
        assert e.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert set(world.image.brokers) == {1}
    assert world.image.brokers[1].features == SUPPORTED.features


def test_a_broker_of_an_older_version_is_registered_at_level_0() -> None:
    world = ControllerWorld(levels=LEVEL_0_ONLY)
    active = world.controller.active
    assert active is not None
    check_registration(world.image, active.sessions, registration(1, features=[]), "cluster", 0.0)
    world.start_broker(1, features=[])
    assert world.image.brokers[1].features == ()


def test_the_same_process_that_registers_again_writes_no_record() -> None:
    for world in (ControllerWorld(brokers=1), ControllerWorld(brokers=1, levels=LEVEL_0_ONLY)):
        end = world.quorum.log_end_offset
        epoch = world.call(apis.BROKER_REGISTRATION, registration(1)).broker_epoch
        assert (epoch, world.quorum.log_end_offset) == (world.epoch(1), end)


# -- the files, before a start ----------------------------------------------------------------------------------------


def files_with(*, log: bytes = b"", snapshot: bytes = b"") -> MemoryFiles:
    files = MemoryFiles()
    files.make_dirs(f"/data/{DIRECTORY}")
    files.write(f"/data/{DIRECTORY}/{0:020}.log", log)
    files.write(f"/data/{DIRECTORY}/{7:020}-{1:010}.checkpoint", snapshot)
    return files


def batch(*records: MetadataRecord | bytes, offset: int = 0) -> bytes:
    values = [record if isinstance(record, bytes) else encode_record(record) for record in records]
    return bytes(encode_values(values, 0, base_offset=offset))


def test_the_level_in_the_files_is_found() -> None:
    two = FeatureLevelRecord(METADATA_VERSION, 2)
    assert recorded_level(MemoryFiles(), "/data") == 0
    assert recorded_level(files_with(log=batch(TOPIC)), "/data") == 0
    assert recorded_level(files_with(log=batch(TOPIC) + batch(LEVEL_1, offset=1)), "/data") == 1
    assert recorded_level(files_with(snapshot=batch(two, b"\x91\x63"), log=batch(TOPIC)), "/data") == 2
    assert recorded_level(files_with(log=batch(LEVEL_1) + batch(two, b"\x91\x63", offset=1)), "/data") == 2


def test_the_look_at_the_files_survives_damage_and_does_not_believe_other_records() -> None:
    """Damage is reported when the log is opened. A topic may have the name of the feature."""
    whole = batch(TOPIC) + batch(LEVEL_1, offset=1)
    for size in range(len(whole)):
        assert recorded_level(files_with(log=whole[:size]), "/data") == 0
    assert recorded_level(files_with(log=whole + b"\xff" * 30), "/data") == 1
    assert recorded_level(files_with(log=batch(TopicRecord(METADATA_VERSION, A))), "/data") == 0


def test_the_recorded_directory_has_no_level() -> None:
    files = MemoryFiles()
    for name, data in recorded_files():
        path = f"/data/{name.partition('controller-101/')[2]}"
        files.make_dirs(path.rpartition("/")[0])
        files.write(path, io.BytesIO(data).getvalue())
    assert recorded_level(files, "/data") == 0
